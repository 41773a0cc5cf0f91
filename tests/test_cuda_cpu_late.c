/* SPDX-License-Identifier: MIT
 *
 * Threads of the CPU's share that are late for a GPU, or don't come: test_cpu_late with
 * the CUDA executor.
 */
#define FX_ON_GPU
#include "test_cpu_late.c"
