/* SPDX-License-Identifier: MIT
 *
 * config_check.c: the scalars of rkv_cache_params: checked, defaults filled.
 * Each mistake has a sentence of its own, with the value and the limit.
 */
#include "config_layers.h"

#include "diag.h"

#define SEGMENTS_EXTRA_MAX (1u << 20)
#define COUNT_MAX 0x7fffffffu /* above it: a wrapped negative */
#define STEPS_AHEAD_MAX 16u
#define THREADS_MAX 4096u
#define NUMA_NODE_MAX 1023
#define DRAFT_ROWS_DEFAULT 16u
#define MAX_ROWS_DEFAULT 512u

rkv_status rkvi_check_size(const char *name, uint64_t value)
{
    if (value <= RKVI_SIZE_MAX)
        return RKV_OK;
    return rkvi_fail(RKV_E_OVERFLOW, "%s is %llu, above 2^62: a negative number that was cast?", name,
                     (unsigned long long)value);
}

rkv_status rkvi_check_count(const char *name, uint32_t value, uint32_t least, uint32_t most)
{
    if (value >= least && value <= most)
        return RKV_OK;
    return rkvi_fail(RKV_E_ARGUMENT, "%s is %u; it must be from %u to %u", name, value, least, most);
}

static rkv_status check_sizes(const rkv_cache_params *p)
{
    const struct {
        const char *name;
        uint64_t value;
    } sizes[] = {
        {"capacity_cells", p->capacity_cells},
        {"ring_bytes", p->ring_bytes},
        {"copy_bytes", p->copy_bytes},
        {"device_limit_bytes", p->device_limit_bytes},
        {"host_limit_bytes", p->host_limit_bytes},
        {"step_ns", p->step_ns},
        {"link_bytes_per_s", p->link_bytes_per_s == RKV_LINK_UNKNOWN ? 0 : p->link_bytes_per_s},
        {"host.link_bytes_per_s", p->host.link_bytes_per_s},
        {"host.copy_cost_ns", p->host.copy_cost_ns},
        {"host.copy_latency_ns", p->host.copy_latency_ns},
        {"host.memory_bytes", p->host.memory_bytes},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const rkv_status s = rkvi_check_size(sizes[i].name, sizes[i].value);
        if (s != RKV_OK)
            return s;
    }
    if (p->capacity_cells == 0)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "capacity_cells is 0; it has no default: give the cells of all "
                         "sequences together");
    return RKV_OK;
}

static rkv_status check_counts(const rkvi_config *cfg)
{
    const uint32_t t = cfg->tile_cells;
    if (t < RKVI_TILE_MIN || t > RKVI_TILE_MAX || (t & (t - 1)))
        return rkvi_fail(RKV_E_ARGUMENT, "tile_cells is %u; it must be a power of two from %u to %u", t,
                         RKVI_TILE_MIN, RKVI_TILE_MAX);
    rkv_status s = rkvi_check_count("n_sequences", cfg->n_sequences, 1, COUNT_MAX);
    if (s == RKV_OK)
        s = rkvi_check_count("active_sequences", cfg->active_sequences, 1, cfg->n_sequences);
    if (s == RKV_OK)
        s = rkvi_check_count("max_rows", cfg->max_rows, 1, COUNT_MAX);
    if (s == RKV_OK)
        s = rkvi_check_count("draft_rows", cfg->draft_rows, 0, COUNT_MAX);
    if (s == RKV_OK)
        s = rkvi_check_count("steps_ahead", cfg->steps_ahead, 1, STEPS_AHEAD_MAX);
    if (s == RKV_OK)
        s = rkvi_check_count("host.n_threads", cfg->host.n_threads, 0, THREADS_MAX);
    return s;
}

static rkv_status check_choices(const rkv_cache_params *p)
{
    const uint32_t flags =
        RKV_FLAG_NO_JOIN | RKV_FLAG_NO_PREDICT | RKV_FLAG_NO_PROMOTE | RKV_FLAG_NO_HUGE_PAGES | RKV_FLAG_GRAPHS;
    if (p->mode != RKV_MODE_RING && p->mode != RKV_MODE_OP_LEVEL)
        return rkvi_fail(RKV_E_ARGUMENT, "mode is %u; use RKV_MODE_RING (0) or RKV_MODE_OP_LEVEL (1)",
                         p->mode);
    if (p->flags & ~flags)
        return rkvi_fail(RKV_E_ARGUMENT, "flags is 0x%x; only the bits 0x%x are known", p->flags,
                         flags);
    if ((p->flags & RKV_FLAG_GRAPHS) && p->mode != RKV_MODE_RING)
        return rkvi_fail(RKV_E_UNSUPPORTED, "RKV_FLAG_GRAPHS goes with RKV_MODE_RING alone");
    if (p->numa < RKV_NUMA_OFF || p->numa > NUMA_NODE_MAX + 1)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "numa is %d; use RKV_NUMA_DEVICE (0), RKV_NUMA_OFF (-1), or node + 1 up to %d",
                         p->numa, NUMA_NODE_MAX + 1);
    if (!p->device_allocator.alloc != !p->device_allocator.free)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "device_allocator has only one of alloc and free; give both or none");
    if (p->extra_segments > SEGMENTS_EXTRA_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "extra_segments is %u; it must be from 0 (for %u) to %u", p->extra_segments,
                         RKVI_SEGMENTS_EXTRA, SEGMENTS_EXTRA_MAX);
    if (p->reserved)
        return rkvi_fail(RKV_E_ARGUMENT, "reserved is %u; it must be 0", p->reserved);
    if (p->host.reserved)
        return rkvi_fail(RKV_E_ARGUMENT, "host.reserved is %u; it must be 0", p->host.reserved);
    return RKV_OK;
}

static void take_scalars(rkvi_config *cfg, const rkv_cache_params *p)
{
    cfg->device = p->device;
    cfg->capacity_cells = p->capacity_cells;
    cfg->n_sequences = p->n_sequences ? p->n_sequences : 1;
    cfg->active_sequences = p->active_sequences ? p->active_sequences : cfg->n_sequences;
    cfg->extra_segments = p->extra_segments ? p->extra_segments : RKVI_SEGMENTS_EXTRA;
    cfg->max_rows = p->max_rows ? p->max_rows : MAX_ROWS_DEFAULT;
    cfg->tile_cells = p->tile_cells ? p->tile_cells : RKVI_TILE_DEFAULT;
    cfg->draft_rows = p->draft_rows == RKV_DRAFT_NONE ? 0
                      : p->draft_rows                 ? p->draft_rows
                                                      : DRAFT_ROWS_DEFAULT;
    cfg->steps_ahead = p->steps_ahead ? p->steps_ahead : 2;
    cfg->mode = p->mode;
    cfg->flags = p->flags;
    cfg->numa = p->numa;
    cfg->step_ns = p->step_ns;
    cfg->link_is_unknown = p->link_bytes_per_s == RKV_LINK_UNKNOWN;
    cfg->link_bytes_per_s = cfg->link_is_unknown ? 0 : p->link_bytes_per_s;
    cfg->allocator = p->device_allocator;
    cfg->host = p->host;
    cfg->progress = p->progress;
    cfg->progress_user = p->progress_user;
}

rkv_status rkvi_config_check(rkvi_config *cfg, const rkv_cache_params *p)
{
    rkv_status s = check_sizes(p);
    if (s == RKV_OK)
        s = check_choices(p);
    if (s != RKV_OK)
        return s;
    take_scalars(cfg, p);
    s = check_counts(cfg);
    if (s == RKV_OK)
        s = rkvi_config_take_cpu(cfg, p);
    if (s == RKV_OK)
        s = rkvi_config_take_rope(cfg, p);
    if (s == RKV_OK)
        s = rkvi_config_take_layers(cfg, p);
    if (s == RKV_OK)
        s = rkvi_config_take_sites(cfg, p);
    return s;
}
