/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_none.c: cliff_cuda.h where there is no CUDA, or no cuBLAS.
 */
#include "cliff_cuda.h"

#include "diag.h"

rkv_status cliff_cuda_run(const cliff_options *options, const uint64_t *ring_bytes, uint32_t n_rings, FILE *progress,
                          cliff_curve *out)
{
    (void)options;
    (void)ring_bytes;
    (void)n_rings;
    (void)progress;
    (void)out;
    return rkvi_fail(RKV_E_UNSUPPORTED, "--executor cuda: this build has no CUDA executor, or found no cuBLAS");
}
