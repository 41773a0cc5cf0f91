/* SPDX-License-Identifier: MIT
 *
 * overheads.h: rollkv-bench overheads ARGUMENTS: what a cache costs beyond its
 * bytes and copies, on the first GPU.
 */
#ifndef OVERHEADS_H
#define OVERHEADS_H

int overheads_main(int argc, char **argv);

#endif
