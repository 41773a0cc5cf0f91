/* SPDX-License-Identifier: MIT
 *
 * cuda_runtime_api.h: the runtime's types and calls that src/cuda and its tests
 * use, for the fake runtime (fake_cuda.h).  Numbers are those of CUDA.
 */
#ifndef FAKE_CUDA_RUNTIME_H
#define FAKE_CUDA_RUNTIME_H

#include <stddef.h>

#define CUDART_VERSION 13000

/* X(name, number): cudaError<name>. */
#define FAKE_CUDA_ERRORS(X) \
    X(InvalidValue, 1) X(MemoryAllocation, 2) X(InitializationError, 3) X(CudartUnloading, 4) \
    X(InvalidPitchValue, 12) X(InsufficientDriver, 35) X(DevicesUnavailable, 46) X(InvalidDeviceFunction, 98) \
    X(NoDevice, 100) X(InvalidDevice, 101) X(InvalidKernelImage, 200) X(NoKernelImageForDevice, 209) \
    X(ECCUncorrectable, 214) X(NvlinkUncorrectable, 220) X(JitCompilerNotFound, 221) \
    X(UnsupportedPtxVersion, 222) X(JitCompilationDisabled, 223) X(Contained, 226) \
    X(InvalidResourceHandle, 400) X(SymbolNotFound, 500) X(NotReady, 600) X(IllegalAddress, 700) \
    X(LaunchOutOfResources, 701) X(LaunchTimeout, 702) X(ContextIsDestroyed, 709) X(Assert, 710) \
    X(HostMemoryAlreadyRegistered, 712) X(HostMemoryNotRegistered, 713) X(HardwareStackError, 714) \
    X(IllegalInstruction, 715) X(MisalignedAddress, 716) X(InvalidAddressSpace, 717) X(InvalidPc, 718) \
    X(LaunchFailure, 719) X(TensorMemoryLeak, 721) X(NotSupported, 801) X(SystemNotReady, 802) \
    X(SystemDriverMismatch, 803) X(MpsClientTerminated, 810) X(StreamCaptureUnsupported, 900) \
    X(StreamCaptureInvalidated, 901) X(StreamCaptureMerge, 902) X(StreamCaptureUnmatched, 903) \
    X(StreamCaptureUnjoined, 904) X(StreamCaptureIsolation, 905) X(StreamCaptureImplicit, 906) \
    X(CapturedEvent, 907) X(StreamCaptureWrongThread, 908) X(ExternalDevice, 911) X(Unknown, 999)

#define FAKE_CUDA_ENUM(name, number) cudaError##name = number,
typedef enum cudaError { cudaSuccess = 0, FAKE_CUDA_ERRORS(FAKE_CUDA_ENUM) } cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *arg);

enum { cudaHostAllocPortable = 1, cudaHostRegisterPortable = 1, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventDisableTiming = 2, cudaEventWaitDefault = 0, cudaEnableDefault = 0 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1
};
enum cudaDeviceAttr { cudaDevAttrMaxPitch = 11 };
struct cudaDeviceProp {
    char name[256];
    int multiProcessorCount;
};

cudaError_t cudaGetDeviceCount(int *out);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaGetDevice(int *out);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *out);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal);
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr what, int ordinal);
cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int ordinal);
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *out_found);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);

cudaError_t cudaStreamCreate(cudaStream_t *out);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *out_ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t rows, enum cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t s);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg);

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

#endif
