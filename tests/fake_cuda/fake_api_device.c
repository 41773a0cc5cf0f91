/* SPDX-License-Identifier: MIT
 *
 * fake_api_device.c: the API's device 0 is the fake GPU.
 */
#include "rkvi_config.h"

#undef RKVI_HAVE_CUDA
#define RKVI_HAVE_CUDA 1
#include "api_device.c"
