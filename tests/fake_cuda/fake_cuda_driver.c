/* SPDX-License-Identifier: MIT
 *
 * fake_cuda_driver.c: devices, contexts, errors, and the driver's calls.
 */
#include "fake_cuda_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_DEVICES 2
#define STACK 16

fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local struct CUctx_st *stack[STACK];
static _Thread_local uint32_t depth;
static _Thread_local cudaError_t last_error;

void fake_wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "fake CUDA: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

void *fake_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        fake_wrong("no memory");
    return p;
}

void *fake_grow(void *at, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return at;
    *cap = *cap ? 2 * *cap : 4;
    at = realloc(at, *cap * size);
    if (!at)
        fake_wrong("no memory");
    return at;
}

/* ------------------------------------------------------------------ contexts */

static struct CUctx_st *context_new(int ordinal)
{
    struct CUctx_st *c = fake_alloc(sizeof *c);
    *c = (struct CUctx_st){.next = fake.contexts, .ordinal = ordinal, .is_alive = true};
    c->legacy = fake_stream_new(c);
    fake.contexts = c;
    return c;
}

static struct CUctx_st *primaries[N_DEVICES];

static struct CUctx_st *primary(int ordinal)
{
    if (!primaries[ordinal])
        primaries[ordinal] = context_new(ordinal);
    return primaries[ordinal];
}

/* The runtime makes the primary one current where none is. */
static struct CUctx_st *current(void)
{
    if (depth == 0 || !stack[depth - 1]) {
        depth = depth ? depth : 1;
        stack[depth - 1] = primary(0);
    }
    return stack[depth - 1];
}

cudaError_t fake_enter(struct CUctx_st **out_ctx)
{
    pthread_mutex_lock(&fake.lock);
    *out_ctx = current();
    if (!(*out_ctx)->is_alive)
        fake_wrong("a context that was destroyed is used");
    return (*out_ctx)->fault;
}

cudaError_t fake_enter_unsafe(struct CUctx_st **out_ctx)
{
    const cudaError_t e = fake_enter(out_ctx);
    const cudaError_t refused = fake_capture_refuses();
    return e == cudaSuccess ? refused : e;
}

cudaError_t fake_leave(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    fake_access(false);
    pthread_mutex_unlock(&fake.lock);
    return e;
}

/* Pushing and popping don't need a context that answers. */
static CUresult ctx_get_current(CUcontext *out)
{
    *out = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

static CUresult ctx_get_device(CUdevice *out)
{
    if (depth == 0 || !stack[depth - 1])
        return 201; /* CUDA_ERROR_INVALID_CONTEXT */
    *out = stack[depth - 1]->ordinal;
    return CUDA_SUCCESS;
}

static CUresult ctx_set_current(CUcontext ctx)
{
    depth = depth ? depth : 1;
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

static CUresult ctx_push(CUcontext ctx)
{
    if (depth == STACK)
        fake_wrong("contexts are pushed and not popped");
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

static CUresult ctx_pop(CUcontext *out)
{
    if (depth == 0)
        fake_wrong("a context is popped that was not pushed");
    *out = stack[--depth];
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *out, int ordinal)
{
    *out = ordinal;
    return ordinal >= 0 && ordinal < N_DEVICES ? CUDA_SUCCESS : (CUresult)cudaErrorInvalidDevice;
}

static CUresult primary_retain(CUcontext *out, CUdevice dev)
{
    pthread_mutex_lock(&fake.lock);
    *out = primary(dev);
    pthread_mutex_unlock(&fake.lock);
    return CUDA_SUCCESS;
}

static CUresult ctx_create(CUcontext *out, unsigned flags, CUdevice dev)
{
    (void)flags;
    pthread_mutex_lock(&fake.lock);
    *out = context_new(dev);
    pthread_mutex_unlock(&fake.lock);
    return ctx_push(*out);
}

static CUresult ctx_destroy(CUcontext ctx)
{
    pthread_mutex_lock(&fake.lock);
    fake_run_all();
    fake_access(false);
    ctx->is_alive = false;
    pthread_mutex_unlock(&fake.lock);
    if (depth && stack[depth - 1] == ctx)
        depth--;
    return CUDA_SUCCESS;
}

typedef void (*any_fn)(void);
static const struct {
    const char *name;
    any_fn fn;
} driver_calls[] = {
    {"cuCtxGetCurrent", (any_fn)ctx_get_current}, {"cuCtxGetDevice", (any_fn)ctx_get_device},
    {"cuCtxSetCurrent", (any_fn)ctx_set_current}, {"cuCtxPushCurrent", (any_fn)ctx_push},
    {"cuCtxPopCurrent", (any_fn)ctx_pop},         {"cuDeviceGet", (any_fn)device_get},
    {"cuCtxCreate", (any_fn)ctx_create},          {"cuCtxDestroy", (any_fn)ctx_destroy},
    {"cuDevicePrimaryCtxRetain", (any_fn)primary_retain},
};

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *out_found)
{
    (void)version;
    (void)flags;
    *out_found = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof driver_calls / sizeof *driver_calls; i++)
        if (strcmp(driver_calls[i].name, name) == 0) {
            memcpy(out, &driver_calls[i].fn, sizeof *out);
            *out_found = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}

/* ------------------------------------------------------------------- devices */

static cudaError_t told(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

cudaError_t cudaGetDeviceCount(int *out)
{
    *out = N_DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
    CUcontext ctx;
    if (ordinal < 0 || ordinal >= N_DEVICES)
        return told(cudaErrorInvalidDevice);
    primary_retain(&ctx, ordinal);
    ctx_set_current(ctx);
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *out)
{
    struct CUctx_st *ctx;
    const cudaError_t e = fake_enter(&ctx);
    *out = ctx->ordinal;
    return fake_leave(e);
}

cudaError_t cudaDeviceSynchronize(void)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter(&ctx);
    fake_run_all();
    return fake_leave(ctx->fault != cudaSuccess ? ctx->fault : e);
}

cudaError_t cudaDriverGetVersion(int *out)
{
    *out = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
    *out = (struct cudaDeviceProp){.multiProcessorCount = 4};
    snprintf(out->name, sizeof out->name, "fake %d", ordinal);
    return ordinal >= 0 && ordinal < N_DEVICES ? cudaSuccess : told(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr what, int ordinal)
{
    *out = 0x7fffffff;
    return what == cudaDevAttrMaxPitch && ordinal >= 0 && ordinal < N_DEVICES ? cudaSuccess
                                                                               : told(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int ordinal)
{
    snprintf(out, (size_t)bytes, "FFFF:%02X:1F.7", (unsigned)ordinal);
    return cudaSuccess;
}

/* -------------------------------------------------------------------- errors */

cudaError_t cudaPeekAtLastError(void)
{
    struct CUctx_st *ctx;
    const cudaError_t fault = fake_enter(&ctx), e = fault == cudaSuccess ? last_error : fault;
    pthread_mutex_unlock(&fake.lock);
    return e;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return e;
}

#define NAME(name, number) \
    case number: return "cudaError" #name;
const char *cudaGetErrorName(cudaError_t e)
{
    switch ((int)e) {
        FAKE_CUDA_ERRORS(NAME)
    case 0: return "cudaSuccess";
    default: return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}

/* ----------------------------------------------------------- what tests call */

fake_cuda_held fake_cuda_holds(void)
{
    pthread_mutex_lock(&fake.lock);
    fake_cuda_held h = fake.held;
    for (const fake_block *b = fake.blocks; b; b = b->next)
        *(b->is_device ? &h.device_blocks : &h.pinned_blocks) += 1;
    h.pinned_bytes = fake_pinned_bytes();
    pthread_mutex_unlock(&fake.lock);
    return h;
}

void fake_cuda_heal(void)
{
    pthread_mutex_lock(&fake.lock);
    fake_run_all(); /* of faulted contexts: nothing is carried out */
    fake_access(false);
    for (struct CUctx_st *c = fake.contexts; c; c = c->next)
        c->fault = cudaSuccess;
    last_error = cudaSuccess;
    pthread_mutex_unlock(&fake.lock);
}
