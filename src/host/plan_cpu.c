/* plan_cpu.c: which part of a site's tail the CPU computes where it lies.
 *
 *   tail of a site   | by the ring, launches 0 .. n - 1 | by the CPU, launch n |
 *
 * It is the end of the tail: so launches still rise along the leaves, and the
 * CPU has the whole of the ring's time.  Its first tile is one where a run of
 * tiles begins, so that few partials come back. */
#include "plan_work.h"

#define CPU_RUNS 32u/* of the share: where its beginning may lie */
#define CPU_UNITS_A_THREAD 24u /* so that the last ones are short; a partial back costs less than half a us */

/* Only decode over cells whose q is as the engine gives it: prefill hides the tail
 * by itself. */
static bool takes_part(const rkvi_plan_view *v)
{
    if (v->cfg->cpu_share == 0 || v->no_cpu || v->cfg->mode != RKV_MODE_RING)
        return false;
    for (uint32_t e = 0; e < v->batch->n_entries; e++) {
        const rkvi_batch_entry *be = &v->batch->entries[e];
        const rkvi_seq *s = &v->seqs[be->sequence];
        if (be->is_prefill || be->is_tree)
            return false;
        for (uint32_t i = 0; i < s->n_segments; i++)
            if (s->segments[i].turn != 0)
                return false;
    }
    return true;
}

uint32_t rkvi_plan_cpu_first(const rkvi_plan_view *v, uint32_t site, const uint32_t *bases, uint32_t n)
{
    const rkvi_layer_config *l = &v->cfg->layers[v->cfg->sites[site].kv_layer];
    const uint32_t wanted = (uint32_t)((uint64_t)n * v->cfg->cpu_share / RKVI_CPU_PARTS);
    if (wanted == 0 || wanted * l->geom.bytes < v->cfg->cpu_least_bytes || !takes_part(v))
        return n;
    uint32_t run = 1;
    while (2 * run <= wanted / CPU_RUNS)
        run *= 2;
    uint32_t first = n - wanted;
    while (first < n && bases[first] % run != 0)
        first++;
    return first;
}

uint64_t rkvi_plan_cpu_items(const rkvi_config *cfg, uint32_t site)
{
    const uint64_t heads = cfg->layers[cfg->sites[site].kv_layer].geom.n_heads;
    const uint64_t items = CPU_UNITS_A_THREAD * (uint64_t)cfg->cpu_threads / heads;
    return items ? items : 1;
}
