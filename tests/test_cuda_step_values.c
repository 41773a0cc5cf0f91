/* SPDX-License-Identifier: MIT
 *
 * Whole steps, by value, on a GPU: test_step_values with the CUDA executor
 * everywhere, on the engine's own stream or the legacy one.  Tensors lie in
 * pinned memory.
 */
#define FX_ON_GPU
#include "test_step_values.c"
