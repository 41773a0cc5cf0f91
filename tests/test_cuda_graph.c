/* SPDX-License-Identifier: MIT
 *
 * Captures and replays of steps on a GPU: test_graph with the CUDA executor.
 */
#define FX_ON_GPU
#include "test_graph.c"
