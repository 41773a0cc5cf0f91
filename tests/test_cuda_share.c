/* SPDX-License-Identifier: MIT
 *
 * Sequences that share tiles, on a GPU: test_share with the CUDA executor everywhere.
 */
#define FX_ON_GPU
#include "test_share.c"
