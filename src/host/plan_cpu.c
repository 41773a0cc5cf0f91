/* plan_cpu.c: which part of a site's tail the CPU computes where it lies.
 *
 *   tail of a site   | by the ring, launches 0 .. n - 1 | by the CPU, launch n |
 *
 * It is the end of the tail: so launches still rise along the leaves, and the
 * CPU has the whole of the ring's time.  Its first tile is one where a run of
 * tiles begins, so that few partials come back; what that and whole tiles take
 * off a site's part is owed to the next site. */
#include "plan_work.h"

#define CPU_RUNS 32u /* of the share: where its beginning may lie */
#define CPU_UNITS_A_THREAD 24u /* to begin one costs a thread 3 us, a partial back less than half a us */
#define CPU_ITEM_LEAVES 1024u  /* about, at most: a GPU may have to compute it, with room for what is pending */
#define CPU_ITEMS_LEAST 16u    /* whose partials must have room */

/* Of decode rows alone, token trees' among them: prefill hides the tail by itself. */
static bool takes_part(const rkvi_plan_view *v)
{
    if (v->cfg->cpu_share == 0 || v->no_cpu || v->cfg->mode != RKV_MODE_RING)
        return false;
    for (uint32_t e = 0; e < v->batch->n_entries; e++)
        if (v->batch->entries[e].is_prefill)
            return false;
    return true;
}

/* Most rows of an item: those of all entries, where they may share tiles. */
static uint64_t most_rows(const rkvi_plan_view *v)
{
    return v->tiles->n_shared ? v->batch->n_rows : v->batch->most_rows;
}

/* Items whose partials have room in host memory. */
static uint64_t items_room(const rkvi_plan_view *v)
{
    return v->cfg->cpu_partial_bytes / (v->cfg->cpu_slot_bytes * most_rows(v));
}

void rkvi_plan_cpu_open(const rkvi_plan_view *v, uint64_t tail_bytes, rkvi_cpu_cut *out)
{
    const rkvi_config *cfg = v->cfg;
    *out = (rkvi_cpu_cut){0};
    if (!takes_part(v) || tail_bytes <= cfg->cpu_free_bytes ||
        items_room(v) < CPU_ITEMS_LEAST + 4 * (uint64_t)v->batch->n_entries)
        return;
    out->part = 1 - (double)cfg->cpu_free_bytes / (double)tail_bytes;
    out->owed_bytes = (double)cfg->cpu_least_bytes / 2; /* what the last sites leave is as often more as less */
}

uint32_t rkvi_plan_cpu_first(const rkvi_config *cfg, rkvi_cpu_cut *cut, uint32_t site, const uint32_t *bases,
                             uint32_t n)
{
    const uint64_t bytes = cfg->layers[cfg->sites[site].kv_layer].geom.bytes;
    const double share = cfg->sites[site].cpu_part * cut->part;
    cut->owed_bytes += share * (double)n * (double)bytes;
    if (share <= 0 || n < 2 || cut->owed_bytes < (double)bytes || cut->owed_bytes < (double)cfg->cpu_least_bytes)
        return n;
    const double owed = cut->owed_bytes / (double)bytes;
    const uint32_t wanted = owed < n - 1 ? (uint32_t)owed : n - 1;
    uint32_t run = 1, first = n - wanted;
    while (2 * run <= wanted / CPU_RUNS)
        run *= 2;
    while (first < n && bases[first] % run != 0)
        first++;
    cut->owed_bytes -= (double)(n - first) * (double)bytes;
    return first;
}

uint64_t rkvi_plan_cpu_items(const rkvi_plan_view *v, uint32_t site, uint64_t n_leaves)
{
    const uint64_t heads = v->cfg->layers[v->cfg->sites[site].kv_layer].geom.n_heads;
    const uint64_t even = CPU_UNITS_A_THREAD * (uint64_t)v->cfg->cpu_threads / heads,
                   least = n_leaves / CPU_ITEM_LEAVES + 1;
    const uint64_t items = even > least ? even : least;
    const uint64_t room = items_room(v) / 2; /* ends of runs take as much again */
    return items < room ? items : room;
}
