/* SPDX-License-Identifier: MIT
 *
 * device_workers.h: worker threads that run the items of launches.
 *
 * Several streams may run launches at once.  The calling thread takes items
 * too, so n workers are n - 1 threads, and a lone launch runs on
 * n threads.
 */
#ifndef RKVI_DEVICE_WORKERS_H
#define RKVI_DEVICE_WORKERS_H

#include "ops.h"

typedef struct rkvi_workers rkvi_workers;

rkv_status rkvi_workers_create(uint32_t n_workers, rkvi_workers **out);
void rkvi_workers_destroy(rkvi_workers *w); /* no launch may be running */
/* Runs fn(args, i) for i in [0, grid), in any order; returns when all are done. */
void rkvi_workers_run(rkvi_workers *w, rkvi_op_fn fn, const void *args, uint64_t grid);

#endif
