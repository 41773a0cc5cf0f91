/* SPDX-License-Identifier: MIT
 *
 * sizing.h: rollkv-bench sizing ARGUMENTS: the rule for ring bytes and copy
 * size against a sweep, in virtual time.
 */
#ifndef SIZING_H
#define SIZING_H

int sizing_main(int argc, char **argv);

#endif
