/* SPDX-License-Identifier: MIT
 *
 * test_trees with the CUDA executor everywhere.
 */
#define FX_ON_GPU
#include "test_trees.c"
