/* SPDX-License-Identifier: MIT
 *
 * cuda.h: the driver's types and calls that src/cuda and its tests use, for the
 * fake runtime (fake_cuda.h).  Numbers are those of CUDA.
 */
#ifndef FAKE_CUDA_DRIVER_H
#define FAKE_CUDA_DRIVER_H

typedef int CUdevice;
typedef int CUresult;
typedef struct CUctx_st *CUcontext;
enum { CUDA_SUCCESS = 0 };
#define CUDAAPI

#endif
