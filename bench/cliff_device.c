/* SPDX-License-Identifier: MIT
 *
 * cliff_device.c: the executor of a synthetic step, and how fast its link is.
 */
#include "cliff_device.h"

#include "device_host.h"
#include "device_sim.h"

#include <string.h>

#define PLAIN_COPY_BYTES ((uint64_t)64 << 20)
#define COPIES 4u

static void nothing(const void *args, uint64_t index)
{
    (void)args;
    (void)index;
}

static const rkvi_ops empty_ops = {.fn = {[RKVI_OP_OPEN] = nothing,
                                          [RKVI_OP_STORE] = nothing,
                                          [RKVI_OP_DECODE] = nothing,
                                          [RKVI_OP_PREFILL] = nothing,
                                          [RKVI_OP_MERGE] = nothing,
                                          [RKVI_OP_UPLOAD] = nothing,
                                          [RKVI_OP_PATCH] = nothing},
                                   .name = "empty"};

/* The executor's table with one entry changed: tables that are uploaded are
 * cut, since they are not scaled and nobody reads them. */
static rkvi_device_vt scaled_vt;
static rkv_status (*plain_launch)(rkvi_device *d, const rkvi_launch *launch, void *stream);

static rkv_status scaled_launch(rkvi_device *d, const rkvi_launch *launch, void *stream)
{
    rkvi_launch l = *launch;
    if (l.op == RKVI_OP_UPLOAD || l.op == RKVI_OP_PATCH)
        l.cost_bytes = l.cost_bytes / CLIFF_SCALE + 1;
    return plain_launch(d, &l, stream);
}

cliff_machine cliff_machine_h200(cliff_executor executor)
{
    rkvi_device_sim_settings s = {0};
    rkvi_device_sim_like_h200(&s);
    return (cliff_machine){.executor = executor,
                           .link_bytes_per_s = s.h2d.bytes_per_s,
                           .copy_cost_ns = s.h2d.cost_ns,
                           .row_cost_ns = s.h2d.row_cost_ns,
                           .device_bytes_per_s = executor == CLIFF_SIM ? s.device_bytes_per_s : 0,
                           .launch_ns = executor == CLIFF_SIM ? s.launch_ns : 0};
}

rkv_status cliff_device_create(const cliff_machine *m, rkvi_device **out)
{
    const rkvi_link_settings link = {.bytes_per_s = m->link_bytes_per_s / CLIFF_SCALE,
                                     .cost_ns = m->copy_cost_ns,
                                     .row_cost_ns = m->row_cost_ns};
    rkv_status s;
    if (m->executor == CLIFF_HOST) {
        const rkvi_device_host_settings host = {.h2d = link, .d2h = link};
        s = rkvi_device_host_create(&host, &empty_ops, out);
    } else {
        const rkvi_device_sim_settings sim = {.order = RKVI_SIM_TIME,
                                              .skip_fill = true,
                                              .n_workers = 132,
                                              .h2d = link,
                                              .d2h = link,
                                              .device_bytes_per_s = m->device_bytes_per_s / CLIFF_SCALE,
                                              .launch_ns = m->launch_ns};
        s = rkvi_device_sim_create(&sim, &empty_ops, out);
    }
    if (s != RKV_OK)
        return s;
    scaled_vt = *(*out)->vt;
    if (scaled_vt.launch != scaled_launch)
        plain_launch = scaled_vt.launch;
    scaled_vt.launch = scaled_launch;
    (*out)->vt = &scaled_vt;
    return RKV_OK;
}

/* ------------------------------------------------------------------- the link */

/* Plain copies one behind the other, an event after each; copy i lies between
 * events i and i + 1. */
typedef struct plain {
    rkvi_device *dev;
    void *host, *device, *stream;
    rkvi_event *events[COPIES + 1];
    uint64_t bytes;
} plain;

static rkv_status plain_open(plain *p)
{
    rkv_status s = rkvi_dev(host_alloc, p->dev, p->bytes, &p->host);
    if (s == RKV_OK)
        s = rkvi_dev(mem_alloc, p->dev, p->bytes, &p->device);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, p->dev, "plain", &p->stream);
    for (uint32_t i = 0; i <= COPIES && s == RKV_OK; i++)
        s = rkvi_dev(event_create, p->dev, &p->events[i]);
    return s;
}

static rkv_status plain_run(plain *p)
{
    const rkvi_copy copy = {
        .direction = RKVI_H2D, .dst = p->device, .src = p->host, .width_bytes = p->bytes, .rows = 1};
    rkv_status s = rkvi_dev(event_record, p->dev, p->events[0], p->stream);
    for (uint32_t i = 0; i < COPIES && s == RKV_OK; i++) {
        s = rkvi_dev(copy, p->dev, &copy, p->stream);
        if (s == RKV_OK)
            s = rkvi_dev(event_record, p->dev, p->events[i + 1], p->stream);
    }
    return s == RKV_OK ? rkvi_dev(stream_sync, p->dev, p->stream) : s;
}

static rkv_status plain_best(const plain *p, double *out_bytes_per_s)
{
    *out_bytes_per_s = 0;
    for (uint32_t i = 0; i < COPIES; i++) {
        int64_t ns = 1;
        const rkv_status s = rkvi_dev(event_elapsed, p->dev, p->events[i], p->events[i + 1], &ns);
        if (s != RKV_OK)
            return s;
        const double rate = (double)p->bytes * CLIFF_SCALE * 1e9 / (double)ns;
        *out_bytes_per_s = rate > *out_bytes_per_s ? rate : *out_bytes_per_s;
    }
    return RKV_OK;
}

rkv_status cliff_link_measure(const cliff_machine *machine, double *out_bytes_per_s)
{
    plain p = {.bytes = PLAIN_COPY_BYTES / CLIFF_SCALE};
    rkv_status s = cliff_device_create(machine, &p.dev);
    if (s != RKV_OK)
        return s;
    s = plain_open(&p);
    if (s == RKV_OK)
        s = plain_run(&p);
    if (s == RKV_OK)
        s = plain_best(&p, out_bytes_per_s);
    for (uint32_t i = 0; i <= COPIES; i++)
        if (p.events[i])
            rkvi_dev(event_destroy, p.dev, p.events[i]);
    rkvi_dev_destroy(p.dev); /* with its memory and streams */
    return s;
}
