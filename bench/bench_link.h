/* SPDX-License-Identifier: MIT
 *
 * bench_link.h: copies of 16 MiB from pinned host memory to the first GPU, one
 * behind the other, by a thread of their own: what else a host's memory is read
 * by while something is measured beside them.
 */
#ifndef BENCH_LINK_H
#define BENCH_LINK_H

#include "device.h"

typedef struct bench_link bench_link;

/* false: said why. No GPU: *out_none says so, where the build has CUDA. */
bool bench_link_open(bench_link **out, const char **out_none);
void bench_link_close(bench_link *l);

/* Copies from here on; returns when they are under way. */
bool bench_link_start(bench_link *l);
/* Until all copies are done. */
void bench_link_stop(bench_link *l);

/* Bytes that have crossed since the link was opened. */
uint64_t bench_link_bytes(const bench_link *l);

#endif
