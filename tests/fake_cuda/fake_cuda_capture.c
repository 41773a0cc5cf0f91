/* SPDX-License-Identifier: MIT
 *
 * fake_cuda_capture.c: captures of streams, graphs, and their launches.
 */
#include "fake_cuda_impl.h"

#include <stdlib.h>
#include <string.h>

_Thread_local enum cudaStreamCaptureMode fake_mode = cudaStreamCaptureModeGlobal;

void fake_ids_add(fake_ids *ids, uint32_t id)
{
    for (uint32_t i = 0; i < ids->n; i++)
        if (ids->at[i] == id)
            return;
    ids->at = fake_grow(ids->at, ids->n, &ids->cap, sizeof *ids->at);
    ids->at[ids->n++] = id;
}

static void add_all(fake_ids *to, const fake_ids *from)
{
    for (uint32_t i = 0; i < from->n; i++)
        fake_ids_add(to, from->at[i]);
}

static void nodes_unref(fake_nodes *nodes)
{
    if (--nodes->refs > 0)
        return;
    for (uint32_t i = 0; i < nodes->n; i++) {
        fake_work_free(&nodes->at[i].work);
        free(nodes->at[i].before.at);
    }
    free(nodes->at);
    free(nodes);
}

/* ------------------------------------------------------------------ captures */

cudaError_t fake_capture_break(fake_capture *c, cudaError_t e)
{
    c->is_broken = true;
    return e;
}

/* Unsafe calls: of a thread in global mode beside any global capture, of one in
 * thread-local mode beside a capture of its own. */
cudaError_t fake_capture_refuses(void)
{
    cudaError_t e = cudaSuccess;
    if (fake_mode == cudaStreamCaptureModeRelaxed)
        return e;
    for (fake_capture *c = fake.captures; c; c = c->next) {
        const bool own = pthread_equal(c->thread, pthread_self());
        const bool global = fake_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal;
        if (global || (own && c->mode != cudaStreamCaptureModeRelaxed))
            e = fake_capture_break(c, cudaErrorStreamCaptureUnsupported);
    }
    return e;
}

cudaError_t fake_capture_add(struct CUstream_st *s, fake_work work)
{
    fake_capture *c = s->capture;
    if (c->is_broken) {
        fake_work_free(&work);
        return cudaErrorStreamCaptureInvalidated;
    }
    fake_nodes *nodes = c->nodes;
    nodes->at = fake_grow(nodes->at, nodes->n, &nodes->cap, sizeof *nodes->at);
    nodes->at[nodes->n] = (fake_node){.work = work, .before = s->front, .lane = s};
    for (uint32_t i = 0; i < s->front.n; i++)
        nodes->at[s->front.at[i]].has_after = true;
    s->front = (fake_ids){0};
    fake_ids_add(&s->front, nodes->n++);
    return cudaSuccess;
}

void fake_capture_record(struct CUstream_st *s, struct CUevent_st *e)
{
    e->capture_id = s->capture->id;
    e->front.n = 0;
    add_all(&e->front, &s->front);
}

static fake_capture *capture_of(uint64_t id)
{
    fake_capture *c = fake.captures;
    while (c && c->id != id)
        c = c->next;
    return c;
}

/* The stream is of a capture, or the event is. */
cudaError_t fake_capture_wait(struct CUstream_st *s, struct CUevent_st *e)
{
    if (s->capture && s->capture->is_broken)
        return cudaErrorStreamCaptureInvalidated;
    if (!e->capture_id) /* recorded outside, or never */
        return e->mark ? fake_capture_break(s->capture, cudaErrorStreamCaptureIsolation) : cudaSuccess;
    fake_capture *c = capture_of(e->capture_id);
    if (!c)
        return s->capture ? fake_capture_break(s->capture, cudaErrorCapturedEvent) : cudaErrorCapturedEvent;
    if (s == s->ctx->legacy)
        return fake_capture_break(c, cudaErrorStreamCaptureImplicit);
    if (s->capture && s->capture != c) {
        fake_capture_break(s->capture, cudaErrorStreamCaptureMerge);
        return fake_capture_break(c, cudaErrorStreamCaptureMerge);
    }
    s->capture = c;
    add_all(&s->front, &e->front);
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    const enum cudaStreamCaptureMode former = fake_mode;
    fake_mode = *mode;
    *mode = former;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    if (!s)
        return fake_leave(e);
    if (s == ctx->legacy)
        return fake_leave(cudaErrorStreamCaptureUnsupported);
    if (s->capture)
        return fake_leave(cudaErrorStreamCaptureUnsupported);
    fake_capture *c = fake_alloc(sizeof *c);
    *c = (fake_capture){.next = fake.captures, .id = ++fake.next_capture, .origin = s, .mode = mode,
                        .thread = pthread_self(), .nodes = fake_alloc(sizeof *c->nodes)};
    *c->nodes = (fake_nodes){.refs = 1};
    fake.captures = c;
    s->capture = c;
    s->front.n = 0;
    return fake_leave(cudaSuccess);
}

/* What no other node comes after, the origin must have come to. */
static bool is_joined(const fake_capture *c)
{
    for (uint32_t i = 0; i < c->nodes->n; i++) {
        bool found = c->nodes->at[i].has_after;
        for (uint32_t k = 0; k < c->origin->front.n && !found; k++)
            found = c->origin->front.at[k] == i;
        if (!found)
            return false;
    }
    return true;
}

static void capture_free(fake_capture *gone)
{
    fake_capture **at = &fake.captures;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    for (struct CUstream_st *s = fake.streams; s; s = s->next)
        if (s->capture == gone) {
            s->capture = NULL;
            s->front.n = 0;
        }
    free(gone);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    if (!s)
        return fake_leave(e);
    fake_capture *c = s->capture;
    if (!c || c->origin != s)
        return fake_leave(c ? cudaErrorStreamCaptureUnmatched : cudaErrorInvalidValue);
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        return fake_leave(cudaErrorStreamCaptureWrongThread);
    if (c->is_broken)
        e = cudaErrorStreamCaptureInvalidated;
    else if (!is_joined(c))
        e = cudaErrorStreamCaptureUnjoined;
    fake_nodes *nodes = c->nodes;
    capture_free(c);
    *out = NULL;
    if (e != cudaSuccess) {
        nodes_unref(nodes);
        return fake_leave(e);
    }
    struct CUgraph_st *g = fake_alloc(sizeof *g);
    *g = (struct CUgraph_st){.magic = FAKE_ALIVE, .nodes = nodes};
    fake.held.graphs++;
    *out = g;
    return fake_leave(cudaSuccess);
}

/* -------------------------------------------------------------------- graphs */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    struct CUctx_st *ctx;
    (void)flags;
    const cudaError_t e = fake_enter(&ctx);
    if (e != cudaSuccess)
        return fake_leave(e);
    struct CUgraphExec_st *x = fake_alloc(sizeof *x);
    *x = (struct CUgraphExec_st){.magic = FAKE_ALIVE, .next = fake.execs, .nodes = graph->nodes};
    graph->nodes->refs++;
    fake.execs = x;
    fake.held.execs++;
    *out = x;
    return fake_leave(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    struct CUctx_st *ctx;
    const cudaError_t e = fake_enter(&ctx);
    if (graph->magic != FAKE_ALIVE)
        fake_wrong("a graph is destroyed twice");
    nodes_unref(graph->nodes);
    free(graph);
    fake.held.graphs--;
    return fake_leave(e);
}

/* A start that comes after the stream's last operation and the graph's last
 * launch, the nodes, and an end that the stream goes on from. */
static void launch(struct CUgraphExec_st *x, struct CUstream_st *s)
{
    const fake_work nothing = {.kind = FAKE_MARK};
    const fake_nodes *nodes = x->nodes;
    fake_op **ops = fake_alloc((nodes->n + 1) * sizeof *ops);
    fake_op *start = fake_op_new(s->ctx, &nothing, s), *end = fake_op_new(s->ctx, &nothing, s);
    fake_op_after(start, x->last);
    fake_push(s, start);
    for (uint32_t i = 0; i < nodes->n; i++) {
        const fake_node *node = &nodes->at[i];
        const fake_work w = fake_work_clone(&node->work);
        ops[i] = fake_op_new(s->ctx, &w, node->lane);
        fake_op_after(ops[i], start);
        for (uint32_t k = 0; k < node->before.n; k++)
            fake_op_after(ops[i], ops[node->before.at[k]]);
        if (!node->has_after)
            fake_op_after(end, ops[i]);
    }
    fake_op_unref(x->last);
    x->last = fake_op_ref(end);
    fake_push(s, end);
    fake_op_ready(start);
    for (uint32_t i = 0; i < nodes->n; i++) {
        fake_op_ready(ops[i]);
        fake_op_unref(ops[i]);
    }
    fake_op_ready(end);
    free(ops);
    fake_eager();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t handle)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, handle, &e);
    if (!s)
        return fake_leave(e);
    if (x->magic != FAKE_ALIVE)
        fake_wrong("a graph that was destroyed is launched");
    if (s->capture)
        return fake_leave(fake_capture_break(s->capture, cudaErrorStreamCaptureUnsupported));
    launch(x, s);
    return fake_leave(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    struct CUctx_st *ctx;
    const cudaError_t e = fake_enter(&ctx);
    if (x->magic != FAKE_ALIVE)
        fake_wrong("an executable graph is destroyed twice");
    x->magic = FAKE_DEAD;
    fake_op_unref(x->last);
    x->last = NULL;
    nodes_unref(x->nodes);
    x->nodes = NULL;
    fake.held.execs--;
    return fake_leave(e);
}
