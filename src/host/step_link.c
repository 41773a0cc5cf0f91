/* SPDX-License-Identifier: MIT
 *
 * step_link.c: see step_link.h.
 */
#include "step_link.h"

#include "arena_slab.h"
#include "step_types.h"

#define MIB ((uint64_t)1 << 20)
#define COPIED_BYTES (64 * MIB) /* at least, */
#define MOST_NS 60000000u       /* where they don't take longer */
#define MOST_COPIES 256u
#define COPY_NS 5000000u        /* a copy on a slow link */
#define NEW_COPY_BYTES (16 * MIB) /* links are at full speed (docs/sizing.md) */

static uint64_t now_ns(const rkvi_step_link *c)
{
    return rkvi_device_now_ns(c->is_device_time ? c->dev : NULL);
}

uint64_t rkvi_step_link_rate(uint64_t bytes, uint64_t ns)
{
    return (uint64_t)((double)bytes * 1e9 / (double)(ns ? ns : 1));
}

rkv_status rkvi_step_link_copy(const rkvi_step_link *c, uint64_t n)
{
    const rkvi_copy copy = {
        .direction = RKVI_H2D, .dst = c->dst, .src = c->src, .width_bytes = c->copy_bytes, .rows = 1};
    rkv_status s = RKV_OK;
    for (uint64_t i = 0; i < n && s == RKV_OK; i++)
        s = rkvi_dev(copy, c->dev, &copy, c->stream);
    return s;
}

static rkv_status timed(const rkvi_step_link *c, uint64_t n, uint64_t *out_ns)
{
    const uint64_t from_ns = now_ns(c);
    rkv_status s = rkvi_step_link_copy(c, n);
    if (s == RKV_OK)
        s = rkvi_dev(stream_sync, c->dev, c->stream);
    *out_ns = now_ns(c) - from_ns;
    return s;
}

uint64_t rkvi_step_link_count(uint64_t copy_bytes, uint64_t bytes_per_s, uint64_t ns)
{
    const double per_ns = (double)bytes_per_s * 1e-9;
    double bytes = per_ns * (double)ns;
    if (bytes < (double)COPIED_BYTES)
        bytes = (double)COPIED_BYTES < per_ns * MOST_NS ? (double)COPIED_BYTES : per_ns * MOST_NS;
    const uint64_t n = (uint64_t)(bytes / (double)copy_bytes);
    return n < 1 ? 1 : n < MOST_COPIES ? n : MOST_COPIES;
}

void rkvi_step_link_cut(rkvi_step_link *c, uint64_t unit_bytes, uint64_t bytes_per_s)
{
    const uint64_t most = (uint64_t)((double)bytes_per_s * 1e-9 * COPY_NS) / unit_bytes;
    if (c->copy_bytes > most * unit_bytes)
        c->copy_bytes = most ? most * unit_bytes : unit_bytes;
}

rkv_status rkvi_step_link_measure(rkvi_step_link *c, uint64_t first_bytes, uint64_t unit_bytes, uint64_t ns,
                                  uint64_t *out_bytes_per_s)
{
    rkvi_step_link first = *c;
    uint64_t took_ns = 0;
    first.copy_bytes = first_bytes;
    rkv_status s = timed(&first, 1, &took_ns);
    const uint64_t about = rkvi_step_link_rate(first_bytes, took_ns);
    rkvi_step_link_cut(c, unit_bytes, about);
    const uint64_t n = rkvi_step_link_count(c->copy_bytes, about, ns);
    if (s == RKV_OK)
        s = timed(c, n, &took_ns);
    *out_bytes_per_s = rkvi_step_link_rate(n * c->copy_bytes, took_ns);
    return s;
}

/* ---------------------------------------------------------- before a cache is made */

static bool is_wanted(const rkvi_config *cfg)
{
    return cfg->ring_bytes && cfg->mode == RKV_MODE_RING && !cfg->link_bytes_per_s && !cfg->link_is_unknown;
}

/* What a failure left on the stream has ended when that goes, so that memory may go too. */
static rkv_status measure_on_stream(rkvi_step_link *c, uint64_t *out_bytes_per_s)
{
    const uint64_t unit_bytes = c->copy_bytes < MIB ? c->copy_bytes : MIB;
    rkv_status s = rkvi_dev(stream_create, c->dev, "rollkv link", &c->stream);
    if (s != RKV_OK)
        return s;
    s = rkvi_step_link_measure(c, c->copy_bytes, unit_bytes, 0, out_bytes_per_s);
    rkvi_dev(stream_destroy, c->dev, c->stream);
    return s;
}

/* Memory as the tail will have it: near the device, and pinned. */
static rkv_status measure_from(rkvi_slab_maker *maker, rkvi_step_link *c, uint64_t *out_bytes_per_s)
{
    rkvi_slab slab;
    rkv_status s = rkvi_slab_make(maker, rkvi_arena_extent_bytes(c->copy_bytes), NULL, &slab);
    if (s != RKV_OK)
        return s;
    c->src = slab.base;
    if (slab.kind == RKVI_SLAB_UNPINNED) /* nor will the tail be */
        s = rkvi_fail(RKV_E_HOST_MEMORY, "no pinned memory to measure the link's rate with");
    else
        s = measure_on_stream(c, out_bytes_per_s);
    rkvi_slab_release(maker, &slab);
    return s;
}

static rkv_status measure(rkvi_device *dev, const rkvi_config *cfg, int32_t device_node, uint64_t *out_bytes_per_s)
{
    const uint64_t least = cfg->host_tail_bytes < cfg->device_bytes ? cfg->host_tail_bytes : cfg->device_bytes;
    const uint64_t bytes = least < NEW_COPY_BYTES ? least : NEW_COPY_BYTES;
    rkvi_step_link c = {.dev = dev, .copy_bytes = bytes, .is_device_time = true};
    const rkvi_arena_settings settings = {.dev = dev, .numa_node = rkvi_handle_tail_node(cfg, device_node),
                                          .n_touch_threads = 1,
                                          .no_huge_pages = (cfg->flags & RKV_FLAG_NO_HUGE_PAGES) != 0};
    rkvi_slab_maker maker;
    rkvi_slab_maker_init(&maker, &settings);
    rkv_status s = rkvi_allocator_take(dev, &cfg->allocator, bytes, &c.dst);
    if (s != RKV_OK)
        return s;
    s = measure_from(&maker, &c, out_bytes_per_s);
    rkvi_allocator_give(dev, &cfg->allocator, c.dst, bytes);
    return s;
}

rkv_status rkvi_step_link_measure_new(rkvi_device *dev, const rkvi_config *cfg, uint64_t *out_bytes_per_s)
{
    rkvi_device_info info;
    *out_bytes_per_s = 0;
    if (!is_wanted(cfg))
        return RKV_OK;
    rkv_status s = rkvi_dev(info, dev, &info);
    if (s != RKV_OK || !info.has_link)
        return s;
    s = measure(dev, cfg, info.numa_node, out_bytes_per_s);
    if (s != RKV_E_DEVICE_MEMORY && s != RKV_E_HOST_MEMORY)
        return s;
    rkvi_log(RKVI_LOG_INFO, "the link's rate was not measured, the ring has room for four copies: %s",
             rkvi_error_text());
    rkvi_error_clear();
    *out_bytes_per_s = 0;
    return RKV_OK;
}
