/* SPDX-License-Identifier: MIT
 *
 * test_shift with the CUDA executor everywhere.
 */
#define FX_ON_GPU
#include "test_shift.c"
