/* step_cpu.c: see step_cpu.h. */
#include "step_types.h"

#include <stdlib.h>
#include <time.h>

#define EVENTS 256u
#define PARTIAL_BYTES ((uint64_t)32 << 20) /* at most; a launch that wants more is left to the GPU */

/* ------------------------------------------------------------- create, destroy */

static uint64_t q_floats(const rkvi_config *cfg)
{
    uint64_t most = 0;
    for (uint32_t s = 0; s < cfg->n_sites; s++) {
        const uint64_t row = (uint64_t)cfg->sites[s].n_q_heads * cfg->layers[cfg->sites[s].kv_layer].geom.dk;
        most = row > most ? row : most;
    }
    return most * cfg->max_rows;
}

rkv_status rkvi_step_cpu_init(rkv_cache *h, int32_t numa_node)
{
    rkvi_step_cpu *c = &h->cpu;
    const rkvi_config *cfg = &h->cfg;
    if (cfg->cpu_share == 0)
        return RKV_OK;
    rkvi_ops_best(&c->ops, NULL);
    c->partial_bytes = cfg->partial_bytes < PARTIAL_BYTES ? cfg->partial_bytes : PARTIAL_BYTES;
    c->jobs = calloc((size_t)cfg->steps_ahead * cfg->n_sites, sizeof *c->jobs);
    if (!c->jobs)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the CPU's share of %u sites", cfg->n_sites);
    rkv_status s = rkvi_dev(host_alloc, h->dev, q_floats(cfg) * sizeof(float), (void **)&c->q);
    if (s == RKV_OK)
        s = rkvi_dev(host_alloc, h->dev, c->partial_bytes, (void **)&c->partials);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, h->dev, "rollkv cpu", &c->stream);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&c->done, h->dev, EVENTS);
    return s == RKV_OK ? rkvi_cpu_team_create(cfg->cpu_threads, numa_node, &c->team) : s;
}

void rkvi_step_cpu_free(rkv_cache *h)
{
    rkvi_step_cpu *c = &h->cpu;
    if (c->stream)
        rkvi_dev(stream_destroy, h->dev, c->stream);
    rkvi_timeline_free(&c->done);
    rkvi_cpu_team_destroy(c->team);
    if (c->q)
        rkvi_dev(host_free, h->dev, c->q);
    if (c->partials)
        rkvi_dev(host_free, h->dev, c->partials);
    free(c->jobs);
}

rkv_status rkvi_step_cpu_sync(rkv_cache *h)
{
    return h->cpu.stream ? rkvi_dev(stream_sync, h->dev, h->cpu.stream) : RKV_OK;
}

bool rkvi_step_cpu_can(const rkv_cache *h)
{
    rkvi_arena_counters arena = {0};
    if (!h->cpu.team || h->is_profiled)
        return false;
    if (h->arena)
        rkvi_arena_counters_get(h->arena, &arena);
    return arena.unpinned_bytes == 0; /* a GPU may have to read what the CPU can't take */
}

/* -------------------------------------------------------------------- computing */

/* Unit: one KV head of one item, whose partials lie one after another. */
static void compute_unit(const void *job, uint64_t index)
{
    const rkvi_cpu_job *j = job;
    const uint32_t heads = j->args.geom.n_heads;
    rkvi_item item = j->args.items[index / heads];
    rkvi_attend_args args = j->args;
    item.slot = index / heads * args.max_rows;
    args.items = &item;
    j->decode(&args, index % heads);
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void compute(void *arg)
{
    const rkvi_cpu_job *j = arg;
    const uint64_t from_ns = now_ns();
    rkvi_cpu_team_run(j->team, compute_unit, j, j->n_items * j->args.geom.n_heads);
    atomic_fetch_add_explicit(j->busy_ns, now_ns() - from_ns, memory_order_relaxed);
}

static const rkvi_plan_launch *launch_of(const rkv_cache *h, const rkvi_site_call *c)
{
    return &h->plan.launches[(c->plan->launch0 + c->plan->cpu_launch) * h->plan.n_rounds];
}

static uint64_t slot_floats(const rkvi_site_call *c)
{
    return (uint64_t)c->site->n_q_heads * (c->layer->geom.dv + 2);
}

static void fill_job(rkv_cache *h, const rkvi_site_call *c, rkvi_cpu_job *j)
{
    const unsigned char *m = h->now->mirror.host;
    const rkvi_plan_class *pc = &h->plan.classes[c->layer->leaf_class];
    const rkvi_plan_launch *l = launch_of(h, c);
    const uint32_t q_heads = c->site->n_q_heads, dk = c->layer->geom.dk;
    *j = (rkvi_cpu_job){
        .args = {.geom = c->layer->geom,
                 .entries = (const rkvi_entry *)(m + pc->entries_off),
                 .rows = (const rkvi_row *)(m + h->plan.rows_off),
                 .spans = (const rkvi_span *)(m + pc->spans_off),
                 .bases = (const uint64_t *)(m + c->plan->bases_off),
                 .items = (const rkvi_item *)(m + c->plan->items_off) + l->decode0,
                 .partials = h->cpu.partials,
                 .q = {h->cpu.q, (int64_t)q_heads * dk, dk, RKV_TYPE_F32},
                 .row_map = h->plan.is_mapped ? (const uint32_t *)(m + h->plan.row_map_off) : NULL,
                 .mask = c->site->mask,
                 .q_heads = q_heads,
                 .scale = c->site->scale,
                 .softcap = c->site->softcap,
                 .max_rows = l->decode_rows},
        .n_items = l->n_decode,
        .decode = h->cpu.ops.fn[RKVI_OP_DECODE],
        .team = h->cpu.team,
        .busy_ns = &h->cpu.busy_ns,
    };
}

/* --------------------------------------------------------------------- enqueueing */

/* What the ranges of a launch or host call are, where the executor wants them. */
static rkv_status carry(rkv_cache *h, const rkvi_carry_args *args, uint64_t grid, void *stream)
{
    const rkvi_launch l = {.op = RKVI_OP_CARRY, .args_bytes = sizeof *args, .args = args, .grid = grid,
                           .ranges = h->ranges, .n_ranges = h->n_ranges};
    h->n_ranges = 0;
    h->stats.launches++;
    h->stats.extra_launches++;
    return rkvi_dev(launch, h->dev, &l, stream);
}

static rkv_status carry_q(rkv_cache *h, const rkvi_site_call *c)
{
    const uint32_t dk = c->layer->geom.dk, heads = c->site->n_q_heads;
    const uint64_t size = rkvi_tensor_type_bytes(c->a->q.type);
    const rkvi_carry_args args = {.from = c->a->q, .to = h->cpu.q, .heads = heads, .dim = dk};
    for (uint32_t r = 0; h->dev->wants_ranges && r < h->batch.n_rows; r++)
        for (uint32_t i = 0; i < heads; i++)
            rkvi_launch_add_range(h, (const char *)c->a->q.data + ((int64_t)r * c->a->q.row_stride + (int64_t)i * c->a->q.head_stride) * (int64_t)size,
                                  dk * size, RKVI_READ);
    rkvi_launch_add_range(h, h->cpu.q, (uint64_t)h->batch.n_rows * heads * dk * sizeof(float), RKVI_WRITE);
    return carry(h, &args, (uint64_t)h->batch.n_rows * heads, c->stream);
}

/* What the CPU reads of the tail. */
static void tail_ranges(rkv_cache *h, const rkvi_site_call *c)
{
    const uint32_t *marks = h->plan.tile_launch + (uint64_t)c->a->site * h->plan.n_bases;
    const uint64_t *bases = (const uint64_t *)(h->now->mirror.host + c->plan->bases_off);
    for (uint64_t b = 0; h->dev->wants_ranges && b < h->plan.n_bases; b++)
        if (marks[b] == c->plan->cpu_launch)
            rkvi_launch_add_range(h, (const void *)(uintptr_t)bases[b], c->layer->geom.bytes, RKVI_READ);
}

static rkv_status call_host(rkv_cache *h, const rkvi_site_call *c, rkvi_cpu_job *j)
{
    rkvi_step_cpu *p = &h->cpu;
    h->n_ranges = 0;
    tail_ranges(h, c);
    rkvi_launch_add_range(h, p->q, (uint64_t)h->batch.n_rows * j->args.q_heads * j->args.geom.dk * sizeof(float), RKVI_READ);
    rkvi_launch_add_range(h, p->partials, j->n_items * j->args.max_rows * slot_floats(c) * sizeof(float), RKVI_WRITE);
    rkvi_launch_add_range(h, h->now->mirror.host, h->plan.table_bytes, RKVI_READ);
    const size_t n = h->n_ranges;
    h->n_ranges = 0;
    rkv_status s = rkvi_timeline_wait(&h->compute, h->compute.last, p->stream, &p->seen.compute);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->out, c->plan->cpu_out_mark, p->stream, &p->seen.out);
    if (s == RKV_OK)
        s = rkvi_dev(host_call, h->dev, compute, j, h->ranges, n, p->stream);
    if (s == RKV_OK)
        s = rkvi_timeline_record(&p->done, p->stream);
    h->stats.cpu_bytes += s == RKV_OK ? c->plan->n_cpu * c->layer->geom.bytes : 0;
    return s;
}

rkv_status rkvi_step_cpu_begin(rkv_cache *h, const rkvi_site_call *c)
{
    h->cpu.is_running = false;
    if (c->plan->cpu_launch == RKVI_NO_LAUNCH)
        return RKV_OK;
    rkvi_cpu_job *j = &h->cpu.jobs[(size_t)(h->now - h->tables) * h->cfg.n_sites + c->a->site];
    fill_job(h, c, j);
    if (c->plan->cpu_is_mixed || j->n_items == 0 ||
        j->n_items * j->args.max_rows * slot_floats(c) * sizeof(float) > h->cpu.partial_bytes)
        /* its launch reads the tail where it lies */
        return rkvi_timeline_wait(&h->out, c->plan->cpu_out_mark, c->stream, &h->compute_seen.out);
    rkv_status s = carry_q(h, c);
    if (s == RKV_OK)
        s = rkvi_step_mark_compute(h, c->stream);
    if (s == RKV_OK)
        s = call_host(h, c, j);
    h->cpu.is_running = s == RKV_OK;
    return s;
}

rkv_status rkvi_step_cpu_finish(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_cpu_job *j = &h->cpu.jobs[(size_t)(h->now - h->tables) * h->cfg.n_sites + c->a->site];
    const uint64_t floats = slot_floats(c), first = launch_of(h, c)->decode0;
    const uint64_t items_off = c->plan->items_off + first * sizeof(rkvi_item);
    const rkvi_carry_args args = {.from = {h->cpu.partials, (int64_t)floats, 0, RKV_TYPE_F32},
                                  .to = h->partials,
                                  .items = (const rkvi_item *)(uintptr_t)(h->now->mirror.device_addr + items_off),
                                  .heads = 1,
                                  .dim = (uint32_t)floats,
                                  .item_rows = j->args.max_rows};
    const uint64_t rows = j->n_items * j->args.max_rows;
    uint64_t seen = 0;
    h->cpu.is_running = false;
    rkv_status s = rkvi_timeline_wait(&h->cpu.done, h->cpu.done.last, c->stream, &seen);
    if (s != RKV_OK)
        return s;
    rkvi_launch_add_range(h, h->cpu.partials, rows * floats * sizeof(float), RKVI_READ);
    rkvi_launch_add_range(h, args.items, j->n_items * sizeof(rkvi_item), RKVI_READ);
    for (uint64_t i = 0; i < j->n_items; i++)
        rkvi_launch_add_range(h, (float *)h->partials + j->args.items[i].slot * floats,
                              j->args.items[i].n_rows * floats * sizeof(float), RKVI_WRITE);
    return carry(h, &args, rows, c->stream);
}

void rkvi_handle_set_cpu_share(rkv_cache *h, uint32_t share)
{
    h->cfg.cpu_share = h->cpu.team ? share : 0;
    h->steady.is_valid = false;
}
