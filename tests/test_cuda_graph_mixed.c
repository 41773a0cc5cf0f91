/* SPDX-License-Identifier: MIT
 *
 * Replayed and eager steps in turn on a GPU: test_graph_mixed with the CUDA executor everywhere.
 */
#define FX_ON_GPU
#include "test_graph_mixed.c"
