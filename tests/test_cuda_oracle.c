/* SPDX-License-Identifier: MIT
 *
 * Random operations against a plain record, on a GPU: test_oracle with the CUDA executor everywhere.
 */
#define FX_ON_GPU
#include "test_oracle.c"
