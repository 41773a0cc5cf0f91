/* SPDX-License-Identifier: MIT
 *
 * prefill.h: rollkv-bench prefill ARGUMENTS: chunks of a prompt with most of the
 * cache in the tail, beside all of it on the device, on the first GPU.
 */
#ifndef PREFILL_H
#define PREFILL_H

int prefill_main(int argc, char **argv);

#endif
