/* SPDX-License-Identifier: MIT
 *
 * nvToolsExt.h: what trace.h uses of NVTX, as test_trace defines it.
 */
#ifndef FAKE_NVTOOLSEXT_H
#define FAKE_NVTOOLSEXT_H

int nvtxRangePushA(const char *name);
int nvtxRangePop(void);

#endif
