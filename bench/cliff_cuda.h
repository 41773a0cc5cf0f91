/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda.h: the cliff curve on a GPU, at full size: real products, real
 * attention, real copies.  One mode at a time, since each mode's cache may want
 * all of the memory; within a mode the context grows from point to point.
 */
#ifndef CLIFF_CUDA_H
#define CLIFF_CUDA_H

#include "cliff.h"

/* As cliff_run_rings. */
rkv_status cliff_cuda_run(const cliff_options *options, const uint64_t *ring_bytes, uint32_t n_rings, FILE *progress,
                          cliff_curve *out);

#endif
