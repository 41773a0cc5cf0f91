/* SPDX-License-Identifier: MIT
 *
 * Profiles on a GPU: test_profile with the CUDA executor everywhere.
 */
#define FX_ON_GPU
#include "test_profile.c"
