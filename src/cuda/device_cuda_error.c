/* SPDX-License-Identifier: MIT
 *
 * device_cuda_error.c: CUDA's errors as statuses with a sentence.
 */
#include "device_cuda_impl.h"

#include "ops_cuda.h"

#include <stdio.h>

/* Drivers newer than the toolkit may answer with these, which older ones have no names for. */
#define ERROR_CONTAINED 226          /* cudaErrorContained */
#define ERROR_TENSOR_MEMORY_LEAK 721 /* cudaErrorTensorMemoryLeak */

/* After these the context answers nothing but themselves. */
static bool is_sticky(cudaError_t e)
{
    switch ((int)e) {
    case cudaErrorCudartUnloading:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case ERROR_CONTAINED:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case ERROR_TENSOR_MEMORY_LEAK:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return true;
    default: return false;
    }
}

static bool is_missing_code(cudaError_t e)
{
    return e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidKernelImage ||
           e == cudaErrorInvalidDeviceFunction || e == cudaErrorUnsupportedPtxVersion ||
           e == cudaErrorJitCompilerNotFound || e == cudaErrorJitCompilationDisabled;
}

static rkv_status status_of(cudaError_t e)
{
    switch (e) {
    case cudaErrorMemoryAllocation: return RKV_E_DEVICE_MEMORY;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered: return RKV_E_ARGUMENT;
    case cudaErrorStreamCaptureUnmatched: return RKV_E_STATE;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorInitializationError: return RKV_E_NO_DEVICE;
    default: return RKV_E_DEVICE_CALL;
    }
}

/* The first fault's sentence is kept. */
static void poison(cuda_device *c, cudaError_t e, const char *what)
{
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->is_poisoned)) {
        snprintf(c->poison_text, sizeof c->poison_text, "%s at %s: %s (%s)", what, rkvi_call_site,
                 cudaGetErrorString(e), cudaGetErrorName(e));
        atomic_store(&c->is_poisoned, true);
    }
    pthread_mutex_unlock(&c->lock);
}

rkv_status rkvi_cuda_poisoned(cuda_device *c)
{
    return rkvi_fail(RKV_E_POISONED,
                     "CUDA device %d faulted, which first showed in %s; its context is lost with all "
                     "that is in it: only destroying the cache is left",
                     c->ordinal, c->poison_text);
}

rkv_status rkvi_cuda_fail(cuda_device *c, cudaError_t e, const char *what)
{
    cudaGetLastError(); /* nothing is left for others to find */
    if (c && is_sticky(e)) {
        poison(c, e, what);
        return rkvi_cuda_poisoned(c);
    }
    if (is_missing_code(e))
        return rkvi_fail(RKV_E_UNSUPPORTED,
                         "%s: this build has kernels for sm_%s, none that this GPU runs: %s", what,
                         rkvk_archs(), cudaGetErrorString(e));
    return rkvi_fail(status_of(e), "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}
