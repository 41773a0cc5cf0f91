/* SPDX-License-Identifier: MIT
 *
 * emu_device.c: device_cuda.h, carried out by the executor on CPU threads, whose
 * launches run the CUDA kernels' code (emu_core.hpp) in place of the plain C one.
 * So the GPU's tests run without one; what they ask of CUDA's streams, events and
 * graphs is answered by that executor.  There is one of it for all that are made
 * here: a stream of one is a stream of the others, as on a GPU.
 */
#include "device_cuda.h"

#include "device_host.h"
#include "geometry.h"
#include "ops_cuda.h"
#include "ops_ref.h"

#include <stdlib.h>
#include <string.h>

/* A launch: kept as long as the program, since graphs run it again and again. */
typedef struct call {
    struct call *next;
    uint32_t op;
    uint64_t grid;
    _Alignas(16) unsigned char args[RKVI_ARGS_MAX];
} call;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static call *calls;
static rkvi_device *host; /* behind all devices; never destroyed */

/* -------------------------------------------------------------------- launches */

static void run_call(void *arg)
{
    const call *c = arg;
    if (rkvk_launch(c->op, c->args, c->grid, NULL) != 0)
        abort();
}

static rkv_status emu_launch(rkvi_device *d, const rkvi_launch *l, void *stream)
{
    (void)d;
    if (l->grid == 0)
        return RKV_OK;
    if (l->args_bytes > RKVI_ARGS_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "arguments of %u bytes", l->args_bytes);
    call *c = calloc(1, sizeof *c);
    if (!c)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a launch");
    c->op = l->op;
    c->grid = l->grid;
    memcpy(c->args, l->args, l->args_bytes);
    const rkv_status s = host->vt->host_call(host, run_call, c, l->ranges, l->n_ranges, stream);
    if (s != RKV_OK) {
        free(c);
        return s;
    }
    pthread_mutex_lock(&lock);
    c->next = calls;
    calls = c;
    pthread_mutex_unlock(&lock);
    return RKV_OK;
}

static rkv_status emu_geom_prepare(rkvi_device *d, const rkvi_geom *g)
{
    (void)d;
    char list[1024];
    if (!rkvk_find(g)) {
        rkvk_variants_text(list, sizeof list);
        return rkvi_fail(RKV_E_UNSUPPORTED, "no attention kernel for this KV layer; there are %s", list);
    }
    return rkvk_prepare_geom(g) == 0 ? RKV_OK : rkvi_fail(RKV_E_DEVICE_CALL, "kernels are not prepared");
}

/* --------------------------------------------------- calls that are passed on */

#define PASS_ON(name, parameters, ...)                    \
    static rkv_status emu_##name parameters               \
    {                                                     \
        (void)d;                                          \
        return host->vt->name(host, __VA_ARGS__);         \
    }
PASS_ON(mem_alloc, (rkvi_device * d, size_t bytes, void **out), bytes, out)
PASS_ON(mem_free, (rkvi_device * d, void *p), p)
PASS_ON(host_register, (rkvi_device * d, void *p, size_t bytes), p, bytes)
PASS_ON(host_unregister, (rkvi_device * d, void *p), p)
PASS_ON(host_alloc, (rkvi_device * d, size_t bytes, void **out), bytes, out)
PASS_ON(host_free, (rkvi_device * d, void *p), p)
PASS_ON(stream_create, (rkvi_device * d, const char *name, void **out), name, out)
PASS_ON(stream_destroy, (rkvi_device * d, void *stream), stream)
PASS_ON(stream_sync, (rkvi_device * d, void *stream), stream)
PASS_ON(stream_wait, (rkvi_device * d, void *stream, rkvi_event *event), stream, event)
PASS_ON(event_create, (rkvi_device * d, rkvi_event **out), out)
PASS_ON(event_destroy, (rkvi_device * d, rkvi_event *event), event)
PASS_ON(event_record, (rkvi_device * d, rkvi_event *event, void *stream), event, stream)
PASS_ON(event_sync, (rkvi_device * d, rkvi_event *event), event)
PASS_ON(event_query, (rkvi_device * d, rkvi_event *event, bool *out), event, out)
PASS_ON(event_elapsed, (rkvi_device * d, rkvi_event *from, rkvi_event *to, int64_t *out), from, to, out)
PASS_ON(copy, (rkvi_device * d, const rkvi_copy *copy, void *stream), copy, stream)
PASS_ON(fill, (rkvi_device * d, void *dst, int byte, size_t bytes, void *stream), dst, byte, bytes, stream)
PASS_ON(host_call, (rkvi_device * d, rkvi_host_fn fn, void *arg, const rkvi_range *ranges, size_t n, void *stream),
        fn, arg, ranges, n, stream)
PASS_ON(delay, (rkvi_device * d, int64_t ns, void *stream), ns, stream)
PASS_ON(capture_begin, (rkvi_device * d, void *stream, bool global), stream, global)
PASS_ON(capture_end, (rkvi_device * d, void *stream, rkvi_graph **out), stream, out)
PASS_ON(graph_launch, (rkvi_device * d, rkvi_graph *graph, void *stream), graph, stream)
PASS_ON(graph_destroy, (rkvi_device * d, rkvi_graph *graph), graph)

static bool emu_capture_relax(rkvi_device *d, bool relaxed)
{
    (void)d;
    return host->vt->capture_relax(host, relaxed);
}

static void emu_host_access(rkvi_device *d, const rkvi_range *ranges, size_t n)
{
    (void)d;
    host->vt->host_access(host, ranges, n);
}

static rkv_status emu_info(rkvi_device *d, rkvi_device_info *out)
{
    (void)d;
    const rkv_status s = host->vt->info(host, out);
    strcpy(out->name, "emulated kernels");
    strcpy(out->kernels, "cuda");
    out->is_host = false;
    return s;
}

static void emu_destroy(rkvi_device *d)
{
    free(d);
}

static const rkvi_device_vt emu_vt = {
    .destroy = emu_destroy,
    .info = emu_info,
    .mem_alloc = emu_mem_alloc,
    .mem_free = emu_mem_free,
    .host_register = emu_host_register,
    .host_unregister = emu_host_unregister,
    .host_alloc = emu_host_alloc,
    .host_free = emu_host_free,
    .stream_create = emu_stream_create,
    .stream_destroy = emu_stream_destroy,
    .stream_sync = emu_stream_sync,
    .stream_wait = emu_stream_wait,
    .event_create = emu_event_create,
    .event_destroy = emu_event_destroy,
    .event_record = emu_event_record,
    .event_sync = emu_event_sync,
    .event_query = emu_event_query,
    .event_elapsed = emu_event_elapsed,
    .copy = emu_copy,
    .fill = emu_fill,
    .launch = emu_launch,
    .host_call = emu_host_call,
    .delay = emu_delay,
    .host_access = emu_host_access,
    .geom_prepare = emu_geom_prepare,
    .capture_relax = emu_capture_relax,
    .capture_begin = emu_capture_begin,
    .capture_end = emu_capture_end,
    .graph_launch = emu_graph_launch,
    .graph_destroy = emu_graph_destroy,
};

/* -------------------------------------------------------------- device_cuda.h */

uint32_t rkvi_device_cuda_count(const char **out_why)
{
    (void)out_why;
    return 1;
}

static rkv_status open_host(void)
{
    static rkvi_ops ops;
    const rkvi_device_host_settings settings = {.n_workers = 1};
    rkvi_ops_ref(&ops);
    pthread_mutex_lock(&lock);
    rkv_status s = host ? RKV_OK : rkvi_device_host_create(&settings, &ops, &host);
    pthread_mutex_unlock(&lock);
    if (s == RKV_OK && rkvk_prepare() != 0)
        s = rkvi_fail(RKV_E_DEVICE_CALL, "kernels are not prepared");
    return s;
}

rkv_status rkvi_device_cuda_info(int32_t ordinal, rkvi_device_info *out)
{
    if (ordinal != 0)
        return rkvi_fail(RKV_E_NO_DEVICE, "there is one emulated device, 0");
    const rkv_status s = open_host();
    return s == RKV_OK ? emu_info(NULL, out) : s;
}

rkv_status rkvi_device_cuda_create(const rkvi_device_cuda_settings *s, rkvi_device **out)
{
    if (s && s->ordinal != 0)
        return rkvi_fail(RKV_E_NO_DEVICE, "there is one emulated device, 0");
    const rkv_status status = open_host();
    if (status != RKV_OK)
        return status;
    rkvi_device *d = calloc(1, sizeof *d);
    if (!d)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a device");
    d->vt = &emu_vt;
    *out = d;
    return RKV_OK;
}
