/* SPDX-License-Identifier: MIT
 *
 * device_pool.h: worker threads that run the items of launches.
 *
 * Several streams may run launches at once.  The calling thread takes items
 * too, so a pool of n workers starts n - 1 threads, and a lone launch runs on
 * n threads.
 */
#ifndef RKVI_DEVICE_POOL_H
#define RKVI_DEVICE_POOL_H

#include "ops.h"

typedef struct rkvi_pool rkvi_pool;

rkv_status rkvi_pool_create(uint32_t n_workers, rkvi_pool **out);
void rkvi_pool_destroy(rkvi_pool *pool); /* no launch may be running */
/* Runs fn(args, i) for i in [0, grid), in any order; returns when all are done. */
void rkvi_pool_run(rkvi_pool *pool, rkvi_op_fn fn, const void *args, uint64_t grid);

#endif
