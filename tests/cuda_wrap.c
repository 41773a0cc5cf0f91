/* SPDX-License-Identifier: MIT
 *
 * cuda_wrap.c: see cuda_wrap.h.
 */
#include "cuda_wrap.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>

const char *const wrap_names[WRAP_KINDS] = {
    "any call",     "cudaMalloc", "cudaHostAlloc", "cudaHostRegister", "stream creation", "event creation",
    "event record", "stream wait", "event sync",   "event query",      "stream sync",     "copy",
    "fill",         "host function", "launch",     "loading kernels",  "device info",     "capture",
    "graph",        "release",    "context"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_calls[WRAP_KINDS];
static struct {
    wrap_kind kind;
    uint64_t nth;
    cudaError_t error, now; /* now: every call's */
    bool sticky, was_hit;
} armed;
static wrap_held held;
static int64_t n_left;
static _Thread_local cudaError_t left; /* the thread's last error */

static cudaError_t keep_last(cudaError_t e)
{
    n_left += left == cudaSuccess;
    left = e;
    return e;
}

/* With the lock held. */
static bool is_hit(wrap_kind kind)
{
    n_calls[kind]++;
    n_calls[WRAP_ANY] += kind != WRAP_CONTEXT;
    const bool counts = armed.kind == kind || (armed.kind == WRAP_ANY && kind != WRAP_CONTEXT);
    return armed.nth && counts && --armed.nth == 0;
}

static cudaError_t fails(wrap_kind kind)
{
    cudaError_t e = cudaSuccess;
    pthread_mutex_lock(&lock);
    const bool hit = is_hit(kind);
    if (hit)
        armed.was_hit = true;
    if (hit && armed.sticky) {
        cudaDeviceSynchronize(); /* nothing is in flight when memory goes */
        armed.now = armed.error;
    }
    if (armed.now != cudaSuccess || hit)
        e = keep_last(armed.now != cudaSuccess ? armed.now : armed.error);
    pthread_mutex_unlock(&lock);
    return e;
}

static void count(int64_t *what, int64_t by)
{
    pthread_mutex_lock(&lock);
    *what += by;
    pthread_mutex_unlock(&lock);
}

/* A context that faulted gives nothing back, and is told. */
static bool is_given(cudaError_t e)
{
    return e == cudaSuccess || e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure;
}

#define WRAP(kind, type, name, params, args) \
    type __real_##name params; \
    type __wrap_##name params; \
    type __wrap_##name params \
    { \
        const cudaError_t e = fails(kind); \
        return e == cudaSuccess ? __real_##name args : (type)e; \
    }
#define WRAP_TAKES(kind, what, name, params, args) \
    cudaError_t __real_##name params; \
    cudaError_t __wrap_##name params; \
    cudaError_t __wrap_##name params \
    { \
        cudaError_t e = fails(kind); \
        if (e == cudaSuccess && (e = __real_##name args) == cudaSuccess) \
            count(&held.what, 1); \
        return e; \
    }
#define WRAP_GIVES(what, name, params, args) \
    cudaError_t __real_##name params; \
    cudaError_t __wrap_##name params; \
    cudaError_t __wrap_##name params \
    { \
        const cudaError_t real = __real_##name args; \
        if (is_given(real)) \
            count(&held.what, -1); \
        const cudaError_t e = fails(WRAP_RELEASE); \
        return e == cudaSuccess ? real : e; \
    }

WRAP_TAKES(WRAP_MALLOC, device, cudaMalloc, (void **out, size_t n), (out, n))
WRAP_GIVES(device, cudaFree, (void *p), (p))
WRAP_TAKES(WRAP_HOST_ALLOC, pinned, cudaHostAlloc, (void **out, size_t n, unsigned f), (out, n, f))
WRAP_GIVES(pinned, cudaFreeHost, (void *p), (p))
WRAP_TAKES(WRAP_REGISTER, registered, cudaHostRegister, (void *p, size_t n, unsigned f), (p, n, f))
WRAP_GIVES(registered, cudaHostUnregister, (void *p), (p))
WRAP_TAKES(WRAP_STREAM_CREATE, streams, cudaStreamCreateWithFlags, (cudaStream_t *out, unsigned f), (out, f))
WRAP_GIVES(streams, cudaStreamDestroy, (cudaStream_t s), (s))
WRAP_TAKES(WRAP_EVENT_CREATE, events, cudaEventCreateWithFlags, (cudaEvent_t *out, unsigned f), (out, f))
WRAP_GIVES(events, cudaEventDestroy, (cudaEvent_t ev), (ev))
WRAP_TAKES(WRAP_GRAPH, execs, cudaGraphInstantiate, (cudaGraphExec_t *out, cudaGraph_t g, unsigned long long f),
           (out, g, f))
WRAP_GIVES(execs, cudaGraphExecDestroy, (cudaGraphExec_t x), (x))

WRAP(WRAP_RECORD, cudaError_t, cudaEventRecord, (cudaEvent_t ev, cudaStream_t s), (ev, s))
WRAP(WRAP_WAIT, cudaError_t, cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t ev, unsigned f), (s, ev, f))
WRAP(WRAP_EVENT_SYNC, cudaError_t, cudaEventSynchronize, (cudaEvent_t ev), (ev))
WRAP(WRAP_EVENT_QUERY, cudaError_t, cudaEventQuery, (cudaEvent_t ev), (ev))
WRAP(WRAP_STREAM_SYNC, cudaError_t, cudaStreamSynchronize, (cudaStream_t s), (s))
WRAP(WRAP_COPY, cudaError_t, cudaMemcpyAsync,
     (void *dst, const void *src, size_t n, enum cudaMemcpyKind k, cudaStream_t s), (dst, src, n, k, s))
WRAP(WRAP_COPY, cudaError_t, cudaMemcpy2DAsync,
     (void *dst, size_t dp, const void *src, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k, cudaStream_t s),
     (dst, dp, src, sp, w, h, k, s))
WRAP(WRAP_FILL, cudaError_t, cudaMemsetAsync, (void *p, int byte, size_t n, cudaStream_t s), (p, byte, n, s))
WRAP(WRAP_HOST_FUNC, cudaError_t, cudaLaunchHostFunc, (cudaStream_t s, cudaHostFn_t fn, void *arg), (s, fn, arg))
WRAP(WRAP_INFO, cudaError_t, cudaMemGetInfo, (size_t *n, size_t *total), (n, total))
WRAP(WRAP_INFO, cudaError_t, cudaDeviceGetAttribute, (int *out, enum cudaDeviceAttr what, int dev), (out, what, dev))
WRAP(WRAP_CAPTURE, cudaError_t, cudaStreamBeginCapture, (cudaStream_t s, enum cudaStreamCaptureMode m), (s, m))
WRAP(WRAP_GRAPH, cudaError_t, cudaGraphLaunch, (cudaGraphExec_t x, cudaStream_t s), (x, s))

struct rkvi_geom;
WRAP(WRAP_LAUNCH, int, rkvk_launch, (uint32_t op, const void *args, uint64_t grid, void *s), (op, args, grid, s))
WRAP(WRAP_PREPARE, int, rkvk_prepare, (void), ())
WRAP(WRAP_PREPARE, int, rkvk_prepare_geom, (const struct rkvi_geom *g), (g))

/* A capture that fails to end has ended. */
cudaError_t __real_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    const cudaError_t real = __real_cudaStreamEndCapture(s, out), e = fails(WRAP_CAPTURE);
    if (e == cudaSuccess)
        return real;
    if (real == cudaSuccess)
        cudaGraphDestroy(*out);
    *out = NULL;
    return e;
}

/* ---------------------------------------------------------------- last errors */

cudaError_t __real_cudaGetLastError(void);
cudaError_t __wrap_cudaGetLastError(void);
cudaError_t __wrap_cudaGetLastError(void)
{
    const cudaError_t real = __real_cudaGetLastError();
    pthread_mutex_lock(&lock);
    const cudaError_t e = left == cudaSuccess ? real : left;
    n_left -= left != cudaSuccess;
    left = cudaSuccess;
    pthread_mutex_unlock(&lock);
    return e;
}

int64_t wrap_left_errors(void)
{
    pthread_mutex_lock(&lock);
    const int64_t n = n_left + (cudaPeekAtLastError() != cudaSuccess && armed.now == cudaSuccess);
    pthread_mutex_unlock(&lock);
    return n;
}

/* ------------------------------------------------------------ the driver's calls */

#if CUDART_VERSION >= 12050 /* before, src/cuda finds them by another call */
static CUresult (*real_get_current)(CUcontext *ctx);
static CUresult (*real_push)(CUcontext ctx);

static CUresult get_current(CUcontext *ctx)
{
    pthread_mutex_lock(&lock);
    const bool hit = is_hit(WRAP_CONTEXT);
    armed.was_hit = armed.was_hit || hit;
    pthread_mutex_unlock(&lock);
    return hit ? (CUresult)armed.error : real_get_current(ctx);
}

static CUresult push(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    const bool hit = is_hit(WRAP_CONTEXT);
    armed.was_hit = armed.was_hit || hit;
    pthread_mutex_unlock(&lock);
    return hit ? (CUresult)armed.error : real_push(ctx);
}

cudaError_t __real_cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found)
{
    CUresult (*const mine_get)(CUcontext *) = get_current;
    CUresult (*const mine_push)(CUcontext) = push;
    const cudaError_t e = __real_cudaGetDriverEntryPointByVersion(name, out, version, flags, found);
    if (e == cudaSuccess && *out && strcmp(name, "cuCtxGetCurrent") == 0) {
        memcpy(&real_get_current, out, sizeof *out);
        memcpy(out, &mine_get, sizeof *out);
    } else if (e == cudaSuccess && *out && strcmp(name, "cuCtxPushCurrent") == 0) {
        memcpy(&real_push, out, sizeof *out);
        memcpy(out, &mine_push, sizeof *out);
    }
    return e;
}

#endif

/* -------------------------------------------------------------- what tests call */

void wrap_arm(wrap_kind kind, uint64_t nth, int error, bool sticky)
{
    pthread_mutex_lock(&lock);
    armed.kind = kind;
    armed.nth = nth;
    armed.error = (cudaError_t)error;
    armed.now = cudaSuccess;
    armed.sticky = sticky;
    armed.was_hit = false;
    pthread_mutex_unlock(&lock);
}

bool wrap_was_hit(void)
{
    pthread_mutex_lock(&lock);
    const bool hit = armed.was_hit;
    pthread_mutex_unlock(&lock);
    return hit;
}

bool wrap_disarm(void)
{
    const bool hit = wrap_was_hit();
    wrap_arm(WRAP_ANY, 0, 0, false);
    return hit;
}

uint64_t wrap_calls(wrap_kind kind)
{
    pthread_mutex_lock(&lock);
    const uint64_t n = n_calls[kind];
    pthread_mutex_unlock(&lock);
    return n;
}

wrap_held wrap_holds(void)
{
    pthread_mutex_lock(&lock);
    const wrap_held h = held;
    pthread_mutex_unlock(&lock);
    return h;
}
