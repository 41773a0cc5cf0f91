/* SPDX-License-Identifier: MIT
 *
 * fake_cuda_streams.c: streams, events, and work on them.
 */
#include "fake_cuda_impl.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- streams */

struct CUstream_st *fake_stream_new(struct CUctx_st *ctx)
{
    struct CUstream_st *s = fake_alloc(sizeof *s);
    *s = (struct CUstream_st){.magic = FAKE_ALIVE, .next = fake.streams, .ctx = ctx};
    fake.streams = s;
    return s;
}

struct CUstream_st *fake_stream(struct CUctx_st *ctx, cudaStream_t s, cudaError_t *e)
{
    if (*e != cudaSuccess)
        return NULL;
    if (!s)
        s = ctx->legacy;
    if (s->magic == FAKE_DEAD)
        fake_wrong("a stream that was destroyed is used");
    if (s->magic != FAKE_ALIVE || s->ctx != ctx)
        *e = cudaErrorInvalidResourceHandle;
    return *e == cudaSuccess ? s : NULL;
}

static struct CUevent_st *event_of(struct CUctx_st *ctx, cudaEvent_t ev, cudaError_t *e)
{
    if (*e != cudaSuccess)
        return NULL;
    if (ev && ev->magic == FAKE_DEAD)
        fake_wrong("an event that was destroyed is used");
    if (!ev || ev->magic != FAKE_ALIVE || ev->ctx != ctx)
        *e = cudaErrorInvalidResourceHandle;
    return *e == cudaSuccess ? ev : NULL;
}

void fake_push(struct CUstream_st *s, fake_op *op)
{
    fake_op_after(op, s->last);
    fake_op_unref(s->last);
    s->last = op;
}

cudaError_t fake_enqueue(struct CUstream_st *s, fake_work work)
{
    if (s->capture)
        return fake_capture_add(s, work);
    fake_op *op = fake_op_new(s->ctx, &work, s);
    fake_push(s, op);
    fake_op_ready(op);
    fake_eager();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    struct CUctx_st *ctx;
    (void)flags;
    const cudaError_t e = fake_enter_unsafe(&ctx);
    if (e == cudaSuccess) {
        *out = fake_stream_new(ctx);
        fake.held.streams++;
    }
    return fake_leave(e);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, 0);
}

/* Its work goes on. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter_unsafe(&ctx), found = cudaSuccess;
    struct CUstream_st *s = e == cudaSuccess || e == ctx->fault ? fake_stream(ctx, handle, &found) : NULL;
    if (!s)
        return fake_leave(e == cudaSuccess ? found : e);
    if (s->capture)
        return fake_leave(fake_capture_break(s->capture, cudaErrorStreamCaptureUnsupported));
    fake_op_unref(s->last);
    s->last = NULL;
    fake_lane_gone(s);
    s->magic = FAKE_DEAD;
    fake.held.streams--;
    return fake_leave(e);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter_unsafe(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    if (!s)
        return fake_leave(e);
    if (s->capture)
        return fake_leave(fake_capture_break(s->capture, cudaErrorStreamCaptureUnsupported));
    fake_run_until(s->last);
    return fake_leave(ctx->fault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    struct CUctx_st *ctx;
    (void)flags;
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    struct CUevent_st *ev = event_of(ctx, event, &e);
    if (!s || !ev)
        return fake_leave(e);
    if (s->capture || ev->capture_id)
        return fake_leave(fake_capture_wait(s, ev));
    if (!ev->mark)
        return fake_leave(cudaSuccess);
    fake_op *op = fake_op_new(ctx, &(fake_work){.kind = FAKE_MARK}, s);
    fake_op_after(op, ev->mark);
    fake_push(s, op);
    fake_op_ready(op);
    fake_eager();
    return fake_leave(cudaSuccess);
}

/* -------------------------------------------------------------------- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    struct CUctx_st *ctx;
    const cudaError_t e = fake_enter_unsafe(&ctx);
    if (e != cudaSuccess)
        return fake_leave(e);
    struct CUevent_st *ev = fake_alloc(sizeof *ev);
    *ev = (struct CUevent_st){.magic = FAKE_ALIVE, .next = fake.events, .ctx = ctx,
                              .is_timed = flags != cudaEventDisableTiming};
    fake.events = ev;
    fake.held.events++;
    *out = ev;
    return fake_leave(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter_unsafe(&ctx), found = cudaSuccess;
    struct CUevent_st *ev = e == cudaSuccess || e == ctx->fault ? event_of(ctx, event, &found) : NULL;
    if (!ev)
        return fake_leave(e == cudaSuccess ? found : e);
    fake_op_unref(ev->mark);
    ev->mark = NULL;
    free(ev->front.at);
    ev->front = (fake_ids){0};
    ev->magic = FAKE_DEAD;
    fake.held.events--;
    return fake_leave(e);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    struct CUevent_st *ev = event_of(ctx, event, &e);
    if (!s || !ev)
        return fake_leave(e);
    fake_op_unref(ev->mark);
    ev->mark = NULL;
    ev->capture_id = 0;
    if (s->capture) {
        fake_capture_record(s, ev);
        return fake_leave(s->capture->is_broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    }
    fake_op *op = fake_op_new(ctx, &(fake_work){.kind = FAKE_MARK}, s);
    ev->mark = fake_op_ref(op);
    fake_push(s, op);
    fake_op_ready(op);
    fake_eager();
    return fake_leave(cudaSuccess);
}

/* The event, unless it is of a capture. */
static struct CUevent_st *enter_event(cudaEvent_t event, struct CUctx_st **ctx, cudaError_t *e)
{
    *e = fake_enter_unsafe(ctx);
    struct CUevent_st *ev = event_of(*ctx, event, e);
    if (ev && ev->capture_id)
        *e = cudaErrorCapturedEvent;
    return *e == cudaSuccess ? ev : NULL;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    struct CUctx_st *ctx;
    cudaError_t e;
    struct CUevent_st *ev = enter_event(event, &ctx, &e);
    if (!ev)
        return fake_leave(e);
    fake_op *mark = fake_op_ref(ev->mark);
    fake_run_until(mark);
    fake_op_unref(mark);
    return fake_leave(ctx->fault);
}

/* One more operation runs, so that a host that polls comes to an end. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    struct CUctx_st *ctx;
    cudaError_t e;
    struct CUevent_st *ev = enter_event(event, &ctx, &e);
    if (!ev)
        return fake_leave(e);
    const bool is_done = !ev->mark || ev->mark->is_done;
    if (!is_done)
        fake_run_one();
    e = ctx->fault;
    return fake_leave(e == cudaSuccess && !is_done ? cudaErrorNotReady : e);
}

cudaError_t cudaEventElapsedTime(float *out_ms, cudaEvent_t from, cudaEvent_t to)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter_unsafe(&ctx);
    const struct CUevent_st *a = event_of(ctx, from, &e), *b = event_of(ctx, to, &e);
    if (!a || !b)
        return fake_leave(e);
    if (!a->is_timed || !b->is_timed || !a->mark || !b->mark)
        return fake_leave(cudaErrorInvalidResourceHandle);
    if (!a->mark->is_done || !b->mark->is_done)
        return fake_leave(cudaErrorNotReady);
    *out_ms = (float)((double)(b->mark->time_ns - a->mark->time_ns) / 1e6);
    return fake_leave(cudaSuccess);
}

/* ---------------------------------------------------------------------- work */

/* Pageable memory: its source is read at once, its target written at once. */
static cudaError_t copy_on(struct CUstream_st *s, fake_work *w)
{
    fake_copy *c = &w->u.copy;
    const size_t to = (c->rows - 1) * c->dst_pitch + c->width, from = (c->rows - 1) * c->src_pitch + c->width;
    const bool to_host = c->kind == cudaMemcpyDeviceToHost, from_host = c->kind == cudaMemcpyHostToDevice;
    if ((!to_host && !fake_holds_device(c->dst, to)) || (!from_host && !fake_holds_device(c->src, from)))
        return cudaErrorInvalidValue;
    const bool pageable = (to_host && !fake_holds(c->dst, to)) || (from_host && !fake_holds(c->src, from));
    fake.held.pageable_copies += pageable;
    if (pageable && from_host && !s->capture) {
        c->staged = fake_alloc(from);
        memcpy(c->staged, c->src, from);
    }
    const cudaError_t e = fake_enqueue(s, *w);
    if (e == cudaSuccess && pageable && to_host && !s->capture)
        fake_run_until(s->last);
    return e;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t rows, enum cudaMemcpyKind kind, cudaStream_t handle)
{
    struct CUctx_st *ctx;
    fake_work w = {.kind = FAKE_COPY, .u.copy = {.dst = dst, .src = src, .dst_pitch = dst_pitch,
                                                 .src_pitch = src_pitch, .width = width, .rows = rows, .kind = kind}};
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    if (!s)
        return fake_leave(e);
    if (rows > 1 && (dst_pitch < width || src_pitch < width || dst_pitch > 0x7fffffff || src_pitch > 0x7fffffff))
        return fake_leave(cudaErrorInvalidPitchValue);
    return fake_leave(width && rows ? copy_on(s, &w) : cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, s);
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t handle)
{
    struct CUctx_st *ctx;
    const fake_work w = {.kind = FAKE_FILL, .u.fill = {dst, bytes, byte}};
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    if (!s)
        return fake_leave(e);
    return fake_leave(fake_holds_device(dst, bytes) ? fake_enqueue(s, w) : cudaErrorInvalidValue);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void *arg)
{
    struct CUctx_st *ctx;
    const fake_work w = {.kind = FAKE_HOST, .u.host = {fn, arg}};
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    return fake_leave(s ? fake_enqueue(s, w) : e);
}
