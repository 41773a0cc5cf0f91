/* SPDX-License-Identifier: MIT
 *
 * Whole steps, counted, on a GPU: test_steps with the CUDA executor everywhere,
 * on the engine's own stream or the legacy one.  Tensors lie in pinned memory.
 */
#define FX_ON_GPU
#include "test_steps.c"
