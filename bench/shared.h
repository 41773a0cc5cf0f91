/* SPDX-License-Identifier: MIT
 *
 * shared.h: rollkv-bench shared ARGUMENTS: step time and bytes streamed of N
 * sequences on one shared prefix that lies in the tail.
 */
#ifndef BENCH_SHARED_H
#define BENCH_SHARED_H

int shared_main(int argc, char **argv);

#endif
