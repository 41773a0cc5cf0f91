/* SPDX-License-Identifier: MIT
 *
 * device_cuda_context.c: which context a call runs in, and what surrounds it.
 *
 * The runtime follows the thread's current context.  Contexts are pushed and
 * popped through the driver, since cudaSetDevice would replace an engine's own
 * context by the primary one, and make one on the device that it goes back to.
 */
#include "device_cuda_impl.h"

#include <string.h>

typedef struct driver {
    cudaError_t error; /* why there is none */
    CUresult(CUDAAPI *ctx_get_current)(CUcontext *ctx);
    CUresult(CUDAAPI *ctx_get_device)(CUdevice *dev);
    CUresult(CUDAAPI *ctx_push)(CUcontext ctx);
    CUresult(CUDAAPI *ctx_pop)(CUcontext *ctx);
    CUresult(CUDAAPI *device_get)(CUdevice *dev, int ordinal);
    CUresult(CUDAAPI *primary_retain)(CUcontext *ctx, CUdevice dev);
} driver;

static driver drv;
static pthread_once_t drv_once = PTHREAD_ONCE_INIT;

/* The calls used have been the same since CUDA 11. */
static cudaError_t entry_point(const char *name, void **out_fn, enum cudaDriverEntryPointQueryResult *out_found)
{
#if CUDART_VERSION >= 12050
    return cudaGetDriverEntryPointByVersion(name, out_fn, 12000, cudaEnableDefault, out_found);
#else /* the toolkit's own version */
    return cudaGetDriverEntryPoint(name, out_fn, cudaEnableDefault, out_found);
#endif
}

static void find(const char *name, void *out_fn)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *fn = NULL;
    cudaError_t e = drv.error;
    if (e == cudaSuccess)
        e = entry_point(name, &fn, &found);
    if (e == cudaSuccess && (found != cudaDriverEntryPointSuccess || !fn))
        e = cudaErrorSymbolNotFound;
    drv.error = e;
    memcpy(out_fn, &fn, sizeof fn);
}

static void find_driver(void)
{
    int n;
    drv.error = cudaGetDeviceCount(&n); /* initialises the driver */
    find("cuCtxGetCurrent", &drv.ctx_get_current);
    find("cuCtxGetDevice", &drv.ctx_get_device);
    find("cuCtxPushCurrent", &drv.ctx_push);
    find("cuCtxPopCurrent", &drv.ctx_pop);
    find("cuDeviceGet", &drv.device_get);
    find("cuDevicePrimaryCtxRetain", &drv.primary_retain);
}

static cudaError_t load_driver(void)
{
    pthread_once(&drv_once, find_driver);
    return drv.error;
}

/* The driver's results that are told apart have the same number as errors of
 * the runtime. */
static cudaError_t error_of(CUresult r)
{
    return (cudaError_t)r;
}

rkv_status rkvi_cuda_context(int ordinal, CUcontext *out)
{
    CUcontext now = NULL;
    CUdevice dev, now_dev;
    cudaError_t e = load_driver();
    if (e == cudaSuccess)
        e = error_of(drv.device_get(&dev, ordinal));
    if (e == cudaSuccess)
        e = error_of(drv.ctx_get_current(&now));
    if (e == cudaSuccess && now)
        e = error_of(drv.ctx_get_device(&now_dev));
    if (e != cudaSuccess)
        return rkvi_cuda_fail(NULL, e, "looking for a CUDA context");
    if (now && now_dev == dev) {
        *out = now;
        return RKV_OK;
    }
    e = error_of(drv.primary_retain(out, dev));
    return e == cudaSuccess ? RKV_OK : rkvi_cuda_fail(NULL, e, "making a CUDA context");
}

rkv_status rkvi_cuda_push(CUcontext context, bool *out_pushed)
{
    CUcontext now = NULL;
    cudaError_t e = load_driver();
    if (e == cudaSuccess)
        e = error_of(drv.ctx_get_current(&now));
    *out_pushed = e == cudaSuccess && now != context;
    if (*out_pushed)
        e = error_of(drv.ctx_push(context));
    if (e == cudaSuccess)
        return RKV_OK;
    *out_pushed = false;
    return rkvi_cuda_fail(NULL, e, "entering the CUDA context");
}

void rkvi_cuda_pop(void)
{
    CUcontext gone;
    drv.ctx_pop(&gone);
}

rkv_status rkvi_cuda_enter(cuda_device *c, uint32_t flags, cuda_guard *g)
{
    *g = (cuda_guard){.mode = cudaStreamCaptureModeRelaxed};
    if (atomic_load_explicit(&c->is_poisoned, memory_order_relaxed) && !(flags & RKVI_CUDA_RELEASES))
        return rkvi_cuda_poisoned(c);
    const rkv_status s = rkvi_cuda_push(c->context, &g->pushed);
    if (s != RKV_OK || flags & RKVI_CUDA_QUEUES)
        return s;
    g->relaxed = cudaThreadExchangeStreamCaptureMode(&g->mode) == cudaSuccess;
    return RKV_OK;
}

rkv_status rkvi_cuda_leave(cuda_device *c, const cuda_guard *g, cudaError_t e, const char *what)
{
    const bool was_poisoned = atomic_load_explicit(&c->is_poisoned, memory_order_relaxed);
    rkv_status s = e == cudaSuccess ? RKV_OK : rkvi_cuda_fail(c, e, what);
    if (was_poisoned)
        s = rkvi_cuda_poisoned(c);
    enum cudaStreamCaptureMode mode = g->mode;
    if (g->relaxed)
        cudaThreadExchangeStreamCaptureMode(&mode);
    if (g->pushed)
        rkvi_cuda_pop();
    return s;
}
