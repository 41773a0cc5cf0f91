/* SPDX-License-Identifier: MIT
 *
 * The CPU's share of the tail beside a GPU: test_cpu_share with the CUDA executor.
 */
#define FX_ON_GPU
#include "test_cpu_share.c"
