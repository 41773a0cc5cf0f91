/* SPDX-License-Identifier: MIT
 *
 * trace.h: ranges that profilers show (NVTX), in builds with -Dnvtx=enabled;
 * nothing otherwise.
 */
#ifndef RKVI_TRACE_H
#define RKVI_TRACE_H

#include "rkvi_config.h"

#if RKVI_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>

static inline void rkvi_trace_end(const int *range)
{
    (void)range;
    nvtxRangePop();
}

/* From here to the end of the block. */
#define RKVI_TRACE(name) \
    const int rkvi_trace_range __attribute__((cleanup(rkvi_trace_end), unused)) = nvtxRangePushA(name)
#else
#define RKVI_TRACE(name) ((void)0)
#endif

#endif
