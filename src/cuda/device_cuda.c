/* SPDX-License-Identifier: MIT
 *
 * device_cuda.c: device.h on the CUDA runtime.  See device_cuda.h.
 *
 * Events are cudaEvent_t and streams cudaStream_t; the executor keeps no list of
 * either.  A graph is a cudaGraphExec_t.
 */
#include "device_cuda_impl.h"

#include "ops_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static cuda_device *cuda_of(rkvi_device *d)
{
    return (cuda_device *)d;
}

static cudaEvent_t event_of(rkvi_event *event)
{
    return (cudaEvent_t)(void *)event;
}

static cudaGraphExec_t graph_of(rkvi_graph *graph)
{
    return (cudaGraphExec_t)(void *)graph;
}

/* Runs `call`, an expression of type cudaError_t, between enter and leave, and
 * returns from the function. */
#define GUARDED(d, flags, call, what) \
    do { \
        cuda_guard guard_; \
        const rkv_status entered_ = rkvi_cuda_enter(cuda_of(d), flags, &guard_); \
        if (entered_ != RKV_OK) \
            return entered_; \
        const cudaError_t error_ = (call); \
        return rkvi_cuda_leave(cuda_of(d), &guard_, error_, what); \
    } while (0)

static void cuda_destroy(rkvi_device *d)
{
    cuda_device *c = cuda_of(d);
    if (c->pid != getpid())
        return;
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- memory ---- */

static rkv_status cuda_mem_alloc(rkvi_device *d, size_t bytes, void **out)
{
    char what[64];
    if (bytes == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "mem_alloc of 0 bytes");
    if (bytes > RKVI_SIZE_MAX) /* CUDA rounds sizes up, and would wrap */
        return rkvi_fail(RKV_E_DEVICE_MEMORY, "mem_alloc of %zu bytes: no device has that", bytes);
    snprintf(what, sizeof what, "cudaMalloc of %zu bytes", bytes);
    GUARDED(d, 0, cudaMalloc(out, bytes), what);
}

static rkv_status cuda_mem_free(rkvi_device *d, void *ptr)
{
    if (!ptr)
        return RKV_OK;
    GUARDED(d, RKVI_CUDA_RELEASES, cudaFree(ptr), "cudaFree");
}

/* Refused pinning is a matter of the host's memory, whatever the reason:
 * limits of the system, of the driver, of the kind of mapping. */
static rkv_status pinning_status(rkv_status s)
{
    return s == RKV_E_DEVICE_MEMORY || s == RKV_E_DEVICE_CALL ? RKV_E_HOST_MEMORY : s;
}

static rkv_status register_now(rkvi_device *d, void *ptr, size_t bytes)
{
    char what[80];
    snprintf(what, sizeof what, "cudaHostRegister of %zu bytes", bytes);
    GUARDED(d, 0, cudaHostRegister(ptr, bytes, cudaHostRegisterPortable), what);
}

static rkv_status cuda_host_register(rkvi_device *d, void *ptr, size_t bytes)
{
    if (!ptr || bytes == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "host_register of %zu bytes at %p", bytes, ptr);
    return pinning_status(register_now(d, ptr, bytes));
}

static rkv_status cuda_host_unregister(rkvi_device *d, void *ptr)
{
    GUARDED(d, RKVI_CUDA_RELEASES, cudaHostUnregister(ptr), "cudaHostUnregister");
}

static rkv_status host_alloc_now(rkvi_device *d, size_t bytes, void **out)
{
    char what[80];
    snprintf(what, sizeof what, "cudaHostAlloc of %zu bytes", bytes);
    GUARDED(d, 0, cudaHostAlloc(out, bytes, cudaHostAllocPortable), what);
}

static rkv_status cuda_host_alloc(rkvi_device *d, size_t bytes, void **out)
{
    if (bytes == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "host_alloc of 0 bytes");
    return pinning_status(host_alloc_now(d, bytes, out));
}

static rkv_status cuda_host_free(rkvi_device *d, void *ptr)
{
    if (!ptr)
        return RKV_OK;
    GUARDED(d, RKVI_CUDA_RELEASES, cudaFreeHost(ptr), "cudaFreeHost");
}

/* ---- streams ---- */

static rkv_status cuda_stream_create(rkvi_device *d, const char *name, void **out)
{
    (void)name;
    GUARDED(d, 0, cudaStreamCreateWithFlags((cudaStream_t *)out, cudaStreamNonBlocking),
            "cudaStreamCreateWithFlags");
}

static cudaError_t drain_and_destroy(cudaStream_t stream)
{
    const cudaError_t e = cudaStreamSynchronize(stream);
    const cudaError_t gone = cudaStreamDestroy(stream);
    return e == cudaSuccess ? gone : e;
}

static rkv_status cuda_stream_destroy(rkvi_device *d, void *stream)
{
    if (!stream)
        return rkvi_fail(RKV_E_ARGUMENT, "stream_destroy of the default stream");
    GUARDED(d, RKVI_CUDA_RELEASES, drain_and_destroy(stream), "cudaStreamDestroy");
}

static rkv_status cuda_stream_sync(rkvi_device *d, void *stream)
{
    GUARDED(d, 0, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

static rkv_status cuda_stream_wait(rkvi_device *d, void *stream, rkvi_event *event)
{
    GUARDED(d, RKVI_CUDA_QUEUES, cudaStreamWaitEvent(stream, event_of(event), cudaEventWaitDefault),
            "cudaStreamWaitEvent");
}

/* ---- events ---- */

static rkv_status cuda_event_create(rkvi_device *d, rkvi_event **out)
{
    const unsigned flags = cuda_of(d)->timed_events ? cudaEventDefault : cudaEventDisableTiming;
    GUARDED(d, 0, cudaEventCreateWithFlags((cudaEvent_t *)(void *)out, flags),
            "cudaEventCreateWithFlags");
}

static rkv_status cuda_event_destroy(rkvi_device *d, rkvi_event *event)
{
    if (!event)
        return RKV_OK;
    GUARDED(d, RKVI_CUDA_RELEASES, cudaEventDestroy(event_of(event)), "cudaEventDestroy");
}

static rkv_status cuda_event_record(rkvi_device *d, rkvi_event *event, void *stream)
{
    GUARDED(d, RKVI_CUDA_QUEUES, cudaEventRecord(event_of(event), stream), "cudaEventRecord");
}

static rkv_status cuda_event_sync(rkvi_device *d, rkvi_event *event)
{
    GUARDED(d, 0, cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}

/* Not yet done is no error, but CUDA keeps it as the last one. */
static cudaError_t query(cudaEvent_t event, bool *out_done)
{
    const cudaError_t e = cudaEventQuery(event);
    *out_done = e == cudaSuccess;
    if (e != cudaErrorNotReady)
        return e;
    cudaGetLastError();
    return cudaSuccess;
}

static rkv_status cuda_event_query(rkvi_device *d, rkvi_event *event, bool *out_done)
{
    GUARDED(d, 0, query(event_of(event), out_done), "cudaEventQuery");
}

static rkv_status elapsed_now(rkvi_device *d, rkvi_event *from, rkvi_event *to, float *out_ms)
{
    GUARDED(d, 0, cudaEventElapsedTime(out_ms, event_of(from), event_of(to)), "cudaEventElapsedTime");
}

static rkv_status cuda_event_elapsed(rkvi_device *d, rkvi_event *from, rkvi_event *to, int64_t *out_ns)
{
    float ms = 0;
    if (!cuda_of(d)->timed_events)
        return rkvi_fail(RKV_E_UNSUPPORTED,
                         "event_elapsed: this executor's events were made without time");
    const rkv_status s = elapsed_now(d, from, to, &ms);
    if (s == RKV_OK)
        *out_ns = (int64_t)((double)ms * 1e6);
    /* not recorded, or not completed: the caller's order of calls */
    return s == RKV_E_ARGUMENT || s == RKV_E_DEVICE_CALL ? RKV_E_STATE : s;
}

/* ---- work ---- */

static enum cudaMemcpyKind kind_of(rkvi_direction direction)
{
    static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                cudaMemcpyDeviceToDevice};
    return kinds[direction];
}

/* CUDA has an upper limit to pitches (2 GiB): beyond it, row by row. */
static cudaError_t copy_rows(const rkvi_copy *copy, void *stream)
{
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < copy->rows && e == cudaSuccess; i++)
        e = cudaMemcpyAsync((char *)copy->dst + i * copy->dst_pitch_bytes,
                            (const char *)copy->src + i * copy->src_pitch_bytes, copy->width_bytes,
                            kind_of(copy->direction), stream);
    return e;
}

static cudaError_t copy_now(const rkvi_copy *copy, size_t max_pitch_bytes, void *stream)
{
    if (copy->rows == 1)
        return cudaMemcpyAsync(copy->dst, copy->src, copy->width_bytes, kind_of(copy->direction),
                               stream);
    if (copy->dst_pitch_bytes > max_pitch_bytes || copy->src_pitch_bytes > max_pitch_bytes)
        return copy_rows(copy, stream);
    return cudaMemcpy2DAsync(copy->dst, copy->dst_pitch_bytes, copy->src, copy->src_pitch_bytes,
                             copy->width_bytes, copy->rows, kind_of(copy->direction), stream);
}

static rkv_status cuda_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    if (copy->rows > 1 &&
        (copy->dst_pitch_bytes < copy->width_bytes || copy->src_pitch_bytes < copy->width_bytes))
        return rkvi_fail(RKV_E_ARGUMENT, "copy of rows of %zu bytes with pitches of %zu and %zu",
                         copy->width_bytes, copy->dst_pitch_bytes, copy->src_pitch_bytes);
    if (copy->rows == 0 || copy->width_bytes == 0)
        return RKV_OK;
    GUARDED(d, RKVI_CUDA_QUEUES, copy_now(copy, cuda_of(d)->max_pitch_bytes, stream),
            "cudaMemcpyAsync");
}

static rkv_status cuda_fill(rkvi_device *d, void *dst, int byte, size_t bytes, void *stream)
{
    if (bytes == 0)
        return RKV_OK;
    GUARDED(d, RKVI_CUDA_QUEUES, cudaMemsetAsync(dst, byte, bytes, stream), "cudaMemsetAsync");
}

static rkv_status cuda_launch(rkvi_device *d, const rkvi_launch *l, void *stream)
{
    static const char *const names[RKVI_OP_COUNT] = {
        [RKVI_OP_OPEN] = "launch of open",       [RKVI_OP_STORE] = "launch of store",
        [RKVI_OP_DECODE] = "launch of decode",   [RKVI_OP_PREFILL] = "launch of prefill",
        [RKVI_OP_MERGE] = "launch of merge",     [RKVI_OP_PATCH] = "launch of patch",
        [RKVI_OP_ROTATE] = "launch of rotate",   [RKVI_OP_TREE] = "launch of tree",
        [RKVI_OP_MOVE] = "launch of move",       [RKVI_OP_UPLOAD] = "launch of upload",
        [RKVI_OP_PUBLISH] = "launch of publish", [RKVI_OP_AWAIT] = "launch of await",
        [RKVI_OP_TAKE] = "launch of take",
    };
    if (l->op >= RKVI_OP_COUNT || l->args_bytes > RKVI_ARGS_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "launch of op %u with %u bytes of arguments", l->op,
                         l->args_bytes);
    if (l->grid == 0)
        return RKV_OK;
    GUARDED(d, RKVI_CUDA_QUEUES, (cudaError_t)rkvk_launch(l->op, l->args, l->grid, stream),
            names[l->op]);
}

static rkv_status cuda_host_call(rkvi_device *d, rkvi_host_fn fn, void *arg, const rkvi_range *ranges,
                                 size_t n_ranges, void *stream)
{
    (void)ranges;
    (void)n_ranges;
    GUARDED(d, RKVI_CUDA_QUEUES, cudaLaunchHostFunc(stream, fn, arg), "cudaLaunchHostFunc");
}

static rkv_status cuda_delay(rkvi_device *d, int64_t ns, void *stream)
{
    GUARDED(d, RKVI_CUDA_QUEUES, (cudaError_t)rkvk_launch_delay(ns, stream), "launch of a delay");
}

static void cuda_host_access(rkvi_device *d, const rkvi_range *ranges, size_t n_ranges)
{
    (void)d;
    (void)ranges;
    (void)n_ranges;
}

static rkv_status cuda_geom_prepare(rkvi_device *d, const rkvi_geom *g)
{
    char list[400];
    if (!rkvk_find(g)) {
        rkvk_variants_text(list, sizeof list);
        return rkvi_fail(
            RKV_E_UNSUPPORTED,
            "attention over K %s, V %s with head dims %u and %u is not in this build; it has %s",
            rkvi_type_name(g->type_k), rkvi_type_name(g->type_v), g->dk, g->dv, list);
    }
    GUARDED(d, 0, (cudaError_t)rkvk_prepare_geom(g), "loading attention kernels");
}

/* ---- captures ---- */

/* The mode that relaxing replaced, to go back to: engines may have set theirs. */
static _Thread_local enum cudaStreamCaptureMode former_mode = cudaStreamCaptureModeGlobal;

/* In the executor's context, as every call: the runtime may make one else. */
static bool cuda_capture_relax(rkvi_device *d, bool relaxed)
{
    bool pushed;
    enum cudaStreamCaptureMode mode = relaxed ? cudaStreamCaptureModeRelaxed : former_mode;
    if (rkvi_cuda_push(cuda_of(d)->context, &pushed) != RKV_OK)
        return false;
    const cudaError_t e = cudaThreadExchangeStreamCaptureMode(&mode);
    if (e != cudaSuccess)
        cudaGetLastError();
    if (pushed)
        rkvi_cuda_pop();
    if (e != cudaSuccess)
        return false;
    if (relaxed && mode != cudaStreamCaptureModeRelaxed)
        former_mode = mode;
    return mode == cudaStreamCaptureModeRelaxed;
}

static rkv_status cuda_capture_begin(rkvi_device *d, void *stream, bool global)
{
    const enum cudaStreamCaptureMode mode =
        global ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeRelaxed;
    GUARDED(d, RKVI_CUDA_QUEUES, cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture");
}

static cudaError_t end_capture(cudaStream_t stream, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    cudaError_t e = cudaStreamEndCapture(stream, &graph);
    if (e != cudaSuccess)
        return e;
    e = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    return e;
}

static rkv_status cuda_capture_end(rkvi_device *d, void *stream, rkvi_graph **out)
{
    cudaGraphExec_t exec = NULL;
    cuda_guard g;
    rkv_status s = rkvi_cuda_enter(cuda_of(d), RKVI_CUDA_QUEUES, &g);
    if (s != RKV_OK)
        return s;
    s = rkvi_cuda_leave(cuda_of(d), &g, end_capture(stream, &exec), "cudaStreamEndCapture");
    if (s == RKV_OK)
        *out = (rkvi_graph *)(void *)exec;
    return s;
}

static rkv_status cuda_graph_launch(rkvi_device *d, rkvi_graph *graph, void *stream)
{
    GUARDED(d, RKVI_CUDA_QUEUES, cudaGraphLaunch(graph_of(graph), stream), "cudaGraphLaunch");
}

/* A launch still running goes on: CUDA keeps what it needs. */
static rkv_status cuda_graph_destroy(rkvi_device *d, rkvi_graph *graph)
{
    if (!graph)
        return RKV_OK;
    GUARDED(d, RKVI_CUDA_RELEASES, cudaGraphExecDestroy(graph_of(graph)), "cudaGraphExecDestroy");
}

/* ---- the table ---- */

static rkv_status cuda_info(rkvi_device *d, rkvi_device_info *out)
{
    cuda_device *c = cuda_of(d);
    if (atomic_load(&c->is_poisoned))
        return rkvi_cuda_poisoned(c);
    return rkvi_cuda_info_in(c, c->context, c->ordinal, out);
}

static const rkvi_device_vt cuda_vt = {
    .destroy = cuda_destroy,
    .info = cuda_info,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .stream_wait = cuda_stream_wait,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_sync = cuda_event_sync,
    .event_query = cuda_event_query,
    .event_elapsed = cuda_event_elapsed,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .launch = cuda_launch,
    .host_call = cuda_host_call,
    .delay = cuda_delay,
    .host_access = cuda_host_access,
    .geom_prepare = cuda_geom_prepare,
    .capture_relax = cuda_capture_relax,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
};

static cudaError_t prepare_now(cuda_device *c)
{
    int bytes = 0;
    const cudaError_t e = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxPitch, c->ordinal);
    c->max_pitch_bytes = (size_t)bytes;
    return e == cudaSuccess ? (cudaError_t)rkvk_prepare() : e;
}

static rkv_status prepare(cuda_device *c)
{
    GUARDED(&c->base, 0, prepare_now(c), "loading kernels");
}

rkv_status rkvi_device_cuda_create(const rkvi_device_cuda_settings *settings, rkvi_device **out)
{
    cuda_device *c = calloc(1, sizeof *c);
    if (!c)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the CUDA executor");
    c->base.vt = &cuda_vt;
    c->ordinal = settings->ordinal;
    c->timed_events = settings->timed_events;
    c->pid = getpid();
    pthread_mutex_init(&c->lock, NULL);
    rkv_status s = rkvi_cuda_context(c->ordinal, &c->context);
    if (s == RKV_OK)
        s = prepare(c);
    if (s != RKV_OK) {
        cuda_destroy(&c->base);
        return s;
    }
    *out = &c->base;
    return RKV_OK;
}
