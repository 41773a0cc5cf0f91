/* SPDX-License-Identifier: MIT
 *
 * rkvi_config.h: this build's, with NVTX.
 */
#include_next <rkvi_config.h>

#undef RKVI_HAVE_NVTX
#define RKVI_HAVE_NVTX 1
