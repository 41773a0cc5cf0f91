/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_device.c: see cliff_cuda_device.h.
 */
#include "cliff_cuda_device.h"

#include "cliff_engine.h"
#include "device_cuda.h"
#include "diag.h"
#include "ops.h"

#include <stdlib.h>
#include <string.h>

#define PLAIN_COPY_BYTES ((uint64_t)256 << 20)
#define COPIES 4u
#define PAIRS 12000u
#define DEBT_BYTES ((uint64_t)64 << 20)
#define LEAST_PART_BYTES ((uint64_t)64 << 10)

/* The executor's table with three entries changed. */
static const rkvi_device_vt *plain_vt;
static rkvi_device_vt changed_vt;

static struct {
    double repeat, debt_bytes; /* H2D, still to be repeated */
    void *debt_from, *debt_to; /* what repeats copy */
    void *in_stream;           /* "rollkv in" of the newest cache */
    bool is_probing, is_part, has_events;
    uint32_t n;
    cudaEvent_t from[PAIRS], to[PAIRS];
    cliff_probe kind[PAIRS];
    uint64_t bytes[PAIRS];
} state;

/* ---------------------------------------------------------------------- probes */

/* The index of the pair, PAIRS where none is left or nobody asks. */
static uint32_t probe_from(void *stream)
{
    state.is_part |= state.is_probing && state.n == PAIRS;
    if (!state.is_probing || state.n == PAIRS)
        return PAIRS;
    return cudaEventRecord(state.from[state.n], stream) == cudaSuccess ? state.n++ : PAIRS;
}

static void probe_to(uint32_t i, cliff_probe kind, uint64_t bytes, void *stream)
{
    if (i == PAIRS)
        return;
    state.kind[i] = kind;
    state.bytes[i] = bytes;
    cudaEventRecord(state.to[i], stream);
}

rkv_status cliff_probe_start(void)
{
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < PAIRS && !state.has_events && s == RKV_OK; i++) {
        s = CLIFF_CUDA(cudaEventCreate(&state.from[i]));
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventCreate(&state.to[i]));
    }
    state.has_events = s == RKV_OK;
    state.n = 0;
    state.is_part = false;
    state.is_probing = s == RKV_OK;
    return s;
}

rkv_status cliff_probe_stop(cliff_probed *out)
{
    *out = (cliff_probed){.is_part = state.is_part};
    state.is_probing = false;
    rkv_status s = CLIFF_CUDA(cudaDeviceSynchronize());
    for (uint32_t i = 0; i < state.n && s == RKV_OK; i++) {
        float ms = 0;
        s = CLIFF_CUDA(cudaEventElapsedTime(&ms, state.from[i], state.to[i]));
        out->ns[state.kind[i]] += (double)ms * 1e6;
        out->bytes[state.kind[i]] += state.bytes[i];
        out->count[state.kind[i]]++;
    }
    return s;
}

/* -------------------------------------------------------------- changed entries */

/* What is still owed of this copy and those before it, in as few copies as there
 * can be, so that the slowed link has its full speed with small ones too, as a
 * slow one has. */
static rkv_status repeat_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    rkv_status s = RKV_OK;
    state.debt_bytes += (double)copy->width_bytes * (double)copy->rows * (state.repeat - 1);
    while (state.debt_bytes >= (double)LEAST_PART_BYTES && s == RKV_OK) {
        const uint64_t owed = (uint64_t)state.debt_bytes / 256 * 256;
        const rkvi_copy part = {.direction = RKVI_H2D,
                                .dst = state.debt_to,
                                .src = state.debt_from,
                                .width_bytes = owed < DEBT_BYTES ? owed : DEBT_BYTES,
                                .rows = 1};
        s = plain_vt->copy(d, &part, stream);
        state.debt_bytes -= (double)part.width_bytes;
    }
    return s;
}

/* Kept until the process ends. */
static rkv_status make_debt_room(rkvi_device *d)
{
    rkv_status s = RKV_OK;
    if (!state.debt_from)
        s = rkvi_dev(host_alloc, d, DEBT_BYTES, &state.debt_from);
    if (s == RKV_OK && !state.debt_to)
        s = CLIFF_CUDA(cudaMalloc(&state.debt_to, DEBT_BYTES));
    return s;
}

static rkv_status changed_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    if (copy->direction != RKVI_H2D || copy->rows == 0 || copy->width_bytes == 0)
        return plain_vt->copy(d, copy, stream);
    const uint32_t pair = probe_from(stream);
    rkv_status s = plain_vt->copy(d, copy, stream);
    if (s == RKV_OK && state.repeat > 1)
        s = repeat_copy(d, copy, stream);
    probe_to(pair, stream == state.in_stream ? CLIFF_PROBE_IN : CLIFF_PROBE_TABLES,
             (uint64_t)copy->width_bytes * copy->rows, stream);
    return s;
}

static cliff_probe kind_of(uint32_t op)
{
    return op == RKVI_OP_MERGE                              ? CLIFF_PROBE_MERGE
           : op == RKVI_OP_UPLOAD                           ? CLIFF_PROBE_TABLES
           : op == RKVI_OP_DECODE || op == RKVI_OP_PREFILL ? CLIFF_PROBE_ATTEND
                                                            : CLIFF_PROBE_STORE;
}

static rkv_status changed_launch(rkvi_device *d, const rkvi_launch *launch, void *stream)
{
    const uint32_t pair = launch->grid ? probe_from(stream) : PAIRS;
    const rkv_status s = plain_vt->launch(d, launch, stream);
    probe_to(pair, kind_of(launch->op), launch->cost_bytes, stream);
    return s;
}

static rkv_status changed_stream_create(rkvi_device *d, const char *name, void **out)
{
    const rkv_status s = plain_vt->stream_create(d, name, out);
    if (s == RKV_OK && strcmp(name, "rollkv in") == 0)
        state.in_stream = *out;
    return s;
}

rkv_status cliff_cuda_device_create(double repeat, rkvi_device **out)
{
    const rkvi_device_cuda_settings settings = {.ordinal = 0};
    const rkv_status s = rkvi_device_cuda_create(&settings, out);
    if (s != RKV_OK)
        return s;
    plain_vt = (*out)->vt;
    changed_vt = *plain_vt;
    changed_vt.copy = changed_copy;
    changed_vt.launch = changed_launch;
    changed_vt.stream_create = changed_stream_create;
    (*out)->vt = &changed_vt;
    state.repeat = repeat;
    state.debt_bytes = 0;
    if (repeat <= 1)
        return RKV_OK;
    const rkv_status room = make_debt_room(*out);
    if (room != RKV_OK)
        rkvi_dev_destroy(*out);
    return room;
}

/* -------------------------------------------------------------------- the link */

typedef struct plain {
    rkvi_device *dev;
    void *host, *device, *stream;
    cudaEvent_t events[COPIES + 1];
} plain;

static rkv_status plain_open(plain *p)
{
    rkv_status s = rkvi_dev(host_alloc, p->dev, PLAIN_COPY_BYTES, &p->host);
    if (s == RKV_OK)
        s = rkvi_dev(mem_alloc, p->dev, PLAIN_COPY_BYTES, &p->device);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, p->dev, "plain", &p->stream);
    for (uint32_t i = 0; i <= COPIES && s == RKV_OK; i++)
        s = CLIFF_CUDA(cudaEventCreate(&p->events[i]));
    if (s == RKV_OK)
        memset(p->host, 1, PLAIN_COPY_BYTES);
    return s;
}

static void plain_close(plain *p)
{
    for (uint32_t i = 0; i <= COPIES; i++)
        if (p->events[i])
            cudaEventDestroy(p->events[i]);
    if (p->stream)
        rkvi_dev(stream_destroy, p->dev, p->stream);
    rkvi_dev(mem_free, p->dev, p->device);
    rkvi_dev(host_free, p->dev, p->host);
    rkvi_dev_destroy(p->dev);
}

/* One behind the other; the first one warms up. */
static rkv_status plain_run(plain *p, double *out_bytes_per_s)
{
    const rkvi_copy copy = {
        .direction = RKVI_H2D, .dst = p->device, .src = p->host, .width_bytes = PLAIN_COPY_BYTES, .rows = 1};
    rkv_status s = rkvi_dev(copy, p->dev, &copy, p->stream);
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaEventRecord(p->events[0], p->stream));
    for (uint32_t i = 0; i < COPIES && s == RKV_OK; i++) {
        s = rkvi_dev(copy, p->dev, &copy, p->stream);
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventRecord(p->events[i + 1], p->stream));
    }
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaStreamSynchronize(p->stream));
    for (uint32_t i = 0; i < COPIES && s == RKV_OK; i++) {
        float ms = 1;
        s = CLIFF_CUDA(cudaEventElapsedTime(&ms, p->events[i], p->events[i + 1]));
        const double rate = (double)PLAIN_COPY_BYTES * 1e3 / (double)ms;
        *out_bytes_per_s = rate > *out_bytes_per_s ? rate : *out_bytes_per_s;
    }
    return s;
}

rkv_status cliff_cuda_link(double repeat, double *out_bytes_per_s)
{
    plain p = {0};
    *out_bytes_per_s = 0;
    rkv_status s = cliff_cuda_device_create(repeat, &p.dev);
    if (s != RKV_OK)
        return s;
    s = plain_open(&p);
    if (s == RKV_OK)
        s = plain_run(&p, out_bytes_per_s);
    plain_close(&p);
    return s;
}

struct cliff_busy {
    plain p;
};

rkv_status cliff_busy_start(int64_t ns, double link_bytes_per_s, cliff_busy **out)
{
    const uint64_t n = (uint64_t)((double)ns * 1e-9 * link_bytes_per_s / (double)PLAIN_COPY_BYTES) + 1;
    cliff_busy *b = calloc(1, sizeof *b);
    if (!b)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for copies");
    rkv_status s = cliff_cuda_device_create(1, &b->p.dev);
    if (s != RKV_OK) {
        free(b);
        return s;
    }
    s = plain_open(&b->p);
    const rkvi_copy copy = {
        .direction = RKVI_H2D, .dst = b->p.device, .src = b->p.host, .width_bytes = PLAIN_COPY_BYTES, .rows = 1};
    for (uint64_t i = 0; i < n && s == RKV_OK; i++)
        s = rkvi_dev(copy, b->p.dev, &copy, b->p.stream);
    if (s != RKV_OK)
        cliff_busy_stop(b);
    else
        *out = b;
    return s;
}

void cliff_busy_stop(cliff_busy *b)
{
    rkvi_dev(stream_sync, b->p.dev, b->p.stream);
    plain_close(&b->p);
    free(b);
}
