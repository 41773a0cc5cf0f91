/* step_profile.c: profiling of steps. */
#include "step_profile.h"

#include <assert.h>
#include <stdlib.h>

/* What a host call is given. */
typedef struct call {
    struct rkvi_step_profile *profile;
    const rkvi_item *items; /* in the mirror, which waits for the step's end */
    uint64_t n, slot0;
    bool is_first, is_last;
    rkvi_mass_tables tables;
} call;

/* The calls of a step, from its begin until it has ended: as long as its tables. */
typedef struct step_calls {
    call *calls;
    uint64_t n, room;
    int64_t *begin; /* [row] where the row's sequence begins */
} step_calls;

struct rkvi_step_profile {
    rkvi_profile sums;
    uint32_t every;
    bool is_on;
    float *staging;    /* pinned; NULL: stopped */
    step_calls *steps; /* [steps_ahead] beside the handle's tables */
    uint32_t n_steps;
};

/* -------------------------------------------------------------- start and stop */

static uint64_t staging_bytes(const rkv_cache *h, const rkvi_profile *p)
{
    return h->cfg.partial_slots * 2 * p->most_q_heads * sizeof(float);
}

static void free_profile(struct rkvi_step_profile *p)
{
    for (uint32_t i = 0; i < p->n_steps; i++) {
        free(p->steps[i].calls);
        free(p->steps[i].begin);
    }
    free(p->steps);
    rkvi_profile_free(&p->sums);
    free(p);
}

/* All but the staging memory; NULL, with the sentence: refused. */
static struct rkvi_step_profile *make_profile(const rkvi_config *cfg)
{
    struct rkvi_step_profile *p = calloc(1, sizeof *p);
    step_calls *steps = calloc(cfg->steps_ahead, sizeof *steps);
    bool ok = p && steps;
    for (uint32_t i = 0; ok && i < cfg->steps_ahead; i++) {
        steps[i].begin = calloc(cfg->max_rows, sizeof *steps[i].begin);
        p->n_steps += steps[i].begin != NULL;
        ok = steps[i].begin != NULL;
    }
    if (!p) {
        free(steps);
        rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a profile");
        return NULL;
    }
    p->steps = steps;
    if (ok && rkvi_profile_init(&p->sums, cfg) == RKV_OK)
        return p;
    free_profile(p);
    if (!ok)
        rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a profile of steps of %u rows", cfg->max_rows);
    return NULL;
}

rkv_status rkvi_profile_start(rkv_cache *h, uint32_t every)
{
    void *staging = NULL;
    if (h->graphs)
        return rkvi_fail(RKV_E_UNSUPPORTED, "profiles are not built for caches with RKV_FLAG_GRAPHS");
    struct rkvi_step_profile *p = make_profile(&h->cfg);
    if (!p)
        return RKV_E_HOST_MEMORY;
    const rkv_status s = rkvi_dev(host_alloc, h->dev, staging_bytes(h, &p->sums), &staging);
    if (s != RKV_OK) {
        free_profile(p);
        return rkvi_step_seen_status(h, s);
    }
    rkvi_profile_drop(h);
    p->staging = staging;
    p->every = every ? every : 1;
    p->is_on = true;
    h->profile = p;
    return RKV_OK;
}

bool rkvi_profile_runs(const rkv_cache *h)
{
    return h->profile && h->profile->is_on;
}

rkv_status rkvi_profile_stop(rkv_cache *h)
{
    rkv_status s = rkvi_timeline_sync(&h->compute, h->compute.last);
    if (s == RKV_OK) {
        s = rkvi_dev(host_free, h->dev, h->profile->staging);
        h->profile->staging = NULL;
        h->profile->is_on = false;
    }
    return rkvi_step_seen_status(h, s);
}

rkv_status rkvi_profile_sums(rkv_cache *h, const rkvi_profile **out)
{
    const rkv_status s = rkvi_timeline_sync(&h->compute, h->compute.last);
    *out = h->profile ? &h->profile->sums : NULL;
    return rkvi_step_seen_status(h, s);
}

void rkvi_profile_drop(rkv_cache *h)
{
    struct rkvi_step_profile *p = h->profile;
    if (!p)
        return;
    h->profile = NULL;
    if (p->staging)
        rkvi_dev(host_free, h->dev, p->staging);
    free_profile(p);
}

/* -------------------------------------------------------------------- in a step */

bool rkvi_profile_wants(const rkv_cache *h)
{
    return rkvi_profile_runs(h) && h->cache.step % h->profile->every == 0;
}

static step_calls *calls_now(const rkv_cache *h)
{
    return &h->profile->steps[h->now - h->tables];
}

rkv_status rkvi_profile_begin(rkv_cache *h)
{
    step_calls *c = calls_now(h);
    const uint64_t n = (uint64_t)h->plan.n_launches * h->plan.n_rounds + h->cfg.n_sites;
    if (n > c->room) {
        call *p = realloc(c->calls, n * sizeof *p);
        if (!p)
            return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %llu host calls of a profile", (unsigned long long)n);
        c->calls = p;
        c->room = n;
    }
    c->n = 0;
    for (uint32_t e = 0; e < h->batch.n_entries; e++) {
        const rkvi_batch_entry *be = &h->batch.entries[e];
        for (uint32_t r = 0; r < be->n_rows; r++)
            c->begin[be->row0 + r] = rkvi_seq_pos_begin(&h->cache.seqs[be->sequence]);
    }
    return RKV_OK;
}

static void take_over(void *arg)
{
    const call *c = arg;
    rkvi_profile *p = &c->profile->sums;
    if (c->is_first)
        rkvi_profile_site(p);
    if (c->n)
        rkvi_profile_add(p, c->items, c->n, c->profile->staging, c->slot0, c->tables.q_heads);
    if (c->is_last)
        rkvi_profile_finish(p, &c->tables);
}

/* What the host call reads: the slots of its items (executors that ask). */
static void add_ranges(rkv_cache *h, const call *c)
{
    const uint64_t slot_floats = 2 * (uint64_t)c->tables.q_heads;
    for (uint64_t i = 0; h->dev->wants_ranges && i < c->n; i++)
        rkvi_launch_add_range(h, c->profile->staging + (c->items[i].slot - c->slot0) * slot_floats,
                              c->items[i].n_rows * slot_floats * sizeof(float), RKVI_READ);
}

static rkv_status enqueue(rkv_cache *h, const call *what, void *stream)
{
    step_calls *calls = calls_now(h);
    assert(calls->n < calls->room);
    call *c = &calls->calls[calls->n++];
    *c = *what;
    add_ranges(h, c);
    const size_t n = h->n_ranges;
    h->n_ranges = 0;
    return rkvi_dev(host_call, h->dev, take_over, c, h->ranges, n, stream);
}

/* m and l of slots [slot0, slot0 + n) lie at the end of each slot. */
static rkv_status copy_sums(rkv_cache *h, const rkvi_site_call *c, uint64_t slot0, uint64_t n)
{
    const uint64_t heads = c->site->n_q_heads, slot_floats = heads * (c->layer->geom.dv + 2);
    const rkvi_copy copy = {.direction = RKVI_D2H,
                            .dst = h->profile->staging,
                            .src = (const float *)h->partials + slot0 * slot_floats +
                                   heads * c->layer->geom.dv,
                            .width_bytes = 2 * heads * sizeof(float),
                            .rows = n,
                            .dst_pitch_bytes = 2 * heads * sizeof(float),
                            .src_pitch_bytes = slot_floats * sizeof(float)};
    return rkvi_dev(copy, h->dev, &copy, c->stream);
}

rkv_status rkvi_profile_launch(rkv_cache *h, const rkvi_site_call *c, uint32_t round)
{
    const rkvi_plan_launch *l = &h->plan.launches[c->plan->launch0 * h->plan.n_rounds + round];
    const rkvi_item *items = (const rkvi_item *)(h->now->mirror.host + c->plan->items_off) + l->decode0;
    call what = {.profile = h->profile, .items = items, .n = l->n_decode, .is_first = round == 0};
    uint64_t end = 0;
    what.tables.q_heads = c->site->n_q_heads;
    what.slot0 = UINT64_MAX;
    if (l->n_decode == 0 && round > 0)
        return RKV_OK;
    for (uint64_t i = 0; i < l->n_decode; i++) {
        what.slot0 = items[i].slot < what.slot0 ? items[i].slot : what.slot0;
        end = items[i].slot + items[i].n_rows > end ? items[i].slot + items[i].n_rows : end;
    }
    const uint64_t n_slots = end ? end - what.slot0 : 0;
    const rkv_status s = n_slots ? copy_sums(h, c, what.slot0, n_slots) : RKV_OK;
    return s == RKV_OK ? enqueue(h, &what, c->stream) : s;
}

rkv_status rkvi_profile_output(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_plan_class *pc = &h->plan.classes[c->layer->leaf_class];
    const unsigned char *m = h->now->mirror.host;
    const uint32_t *map =
        h->plan.is_mapped ? (const uint32_t *)(const void *)(m + h->plan.row_map_off) : NULL;
    const call what = {.profile = h->profile,
                       .is_last = true,
                       .tables = {.begin = calls_now(h)->begin,
                                  .entries = (const rkvi_entry *)(m + pc->entries_off),
                                  .rows = (const rkvi_row *)(m + h->plan.rows_off),
                                  .spans = (const rkvi_span *)(m + pc->spans_off),
                                  .row_map = map,
                                  .layer = c->site->kv_layer,
                                  .q_heads = c->site->n_q_heads,
                                  .kv_heads = c->layer->geom.n_heads,
                                  .mask = c->site->mask}};
    return enqueue(h, &what, c->stream);
}
