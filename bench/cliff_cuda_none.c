/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_none.c: cliff_cuda.h where there is no CUDA, or no cuBLAS.
 */
#include "cliff_cuda.h"

#include "diag.h"

rkv_status cliff_cuda_run(const cliff_options *options, FILE *progress, cliff_curve *out)
{
    (void)options;
    (void)progress;
    (void)out;
    return rkvi_fail(RKV_E_UNSUPPORTED, "--executor cuda: this build has no CUDA executor, or found no cuBLAS");
}
