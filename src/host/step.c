#include "step_profile.h"
#include "step_types.h"

#include "cache_unseen.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

rkv_status rkvi_step_seen_status(rkv_cache *h, rkv_status s)
{
    if (s <= RKV_E_POISONED && h->poison == RKV_OK) {
        h->poison = s;
        snprintf(h->poison_text, sizeof h->poison_text, "%s", rkvi_error_text());
    }
    return s;
}

bool rkvi_step_is_open(const rkv_cache *h)
{
    return h->state != RKVI_STEP_IDLE;
}

uint32_t rkvi_step_next_site(const rkv_cache *h)
{
    return h->next_site;
}

const rkvi_batch *rkvi_step_batch(const rkv_cache *h)
{
    return &h->batch;
}

/* -------------------------------------------------------------------- begin */

/* The same sequences again, with the next positions. */
static void predict_batch(rkv_cache *h)
{
    rkvi_batch_copy(&h->next, &h->batch);
    for (uint32_t e = 0; e < h->next.n_entries; e++) {
        const rkvi_batch_entry *be = &h->next.entries[e];
        int64_t pos = rkvi_seq_pos_end(&h->cache.seqs[be->sequence]);
        for (uint32_t i = 0; be->n_new && i < be->n_rows; i++)
            h->next.rows[be->row0 + i] = (rkvi_row){.pos = pos++, .from = 0, .to = INT64_MAX};
    }
}

/* The launches of the batch are numbered from launch_base on. */
static rkvi_plan_view view_of(rkv_cache *h, const rkvi_batch *batch, uint64_t launch_base)
{
    const bool op_level = h->cfg.mode == RKV_MODE_OP_LEVEL;
    const uint64_t most = rkvi_ring_launch_bytes(h->ring.bytes, h->cfg.largest_tile_layer_bytes, h->ring.laps);
    const uint64_t group = h->cfg.copy_bytes < most ? h->cfg.copy_bytes : most;
    return (rkvi_plan_view){.cfg = &h->cfg,
                            .tiles = &h->cache.tiles,
                            .seqs = h->cache.seqs,
                            .batch = batch,
                            .step = h->cache.step,
                            .launch_base = launch_base,
                            .launch_bytes = op_level ? 0 : most,
                            .group_bytes = group,
                            .target_runs = h->is_profiled ? UINT32_MAX : h->target_runs,
                            .wide_runs = h->is_profiled ? 0 : h->wide_runs,
                            .no_cpu = !rkvi_step_cpu_can(h),
                            .ticket0 = rkvi_step_cpu_ticket(h),
                            .fixed = h->graphs};
}

static void predict(rkv_cache *h, const rkvi_batch *next, uint64_t last_launch)
{
    if (h->ring.bytes == 0 || h->cfg.mode == RKV_MODE_OP_LEVEL || (h->cfg.flags & RKV_FLAG_NO_PREDICT))
        return;
    rkvi_plan_view v = view_of(h, next, last_launch + 1);
    v.predict = true;
    uint32_t n = 0;
    if (rkvi_plan_list(&h->plan, &v, rkvi_ring_new_items(&h->ring), &n) == RKV_OK)
        rkvi_ring_predict(&h->ring, n, last_launch);
}

/* The same sequences again. */
static void predict_same(rkv_cache *h, uint64_t last_launch)
{
    if (h->steady.is_valid && h->cfg.mode == RKV_MODE_RING && rkvi_step_predict_again(h, last_launch))
        return;
    predict_batch(h);
    predict(h, &h->next, last_launch);
}

/* The mirror is free once the step that used it has ended. */
static rkv_status take_tables(rkv_cache *h)
{
    rkvi_step_tables *t = &h->tables[h->cache.step % h->cfg.steps_ahead];
    if (t->marker || t->abort_mark || t->upload_mark) {
        h->stats.host_waits +=
            !rkvi_timeline_is_done(&h->ends, t->marker) || !rkvi_timeline_is_done(&h->compute, t->abort_mark);
        rkv_status s = rkvi_timeline_sync(&h->ends, t->marker);
        if (s == RKV_OK)
            s = rkvi_timeline_sync(&h->compute, t->abort_mark);
        if (s == RKV_OK)
            s = rkvi_timeline_sync(&h->uploads, t->upload_mark);
        if (s != RKV_OK)
            return s;
        t->marker = t->abort_mark = t->upload_mark = 0;
    }
    h->now = t;
    return RKV_OK;
}

static rkv_status write_tables(rkv_cache *h, const rkvi_plan_view *v)
{
    rkvi_mirror spare = {.host = h->image.spare, .bytes = h->cfg.table_bytes};
    rkv_status s = rkvi_plan_tables(&h->plan, v, h->ring.items, (uint64_t)(uintptr_t)h->ring_memory, h->ring.bytes,
                                    h->graphs ? &spare : &h->now->mirror);
    if (s == RKV_OK && h->graphs) {
        rkvi_step_image_update(h);
        rkvi_graph_list(h);
        h->key = rkvi_plan_hash(&h->plan, &h->cfg, &h->batch) ^ h->list_hash;
    }
    return s;
}

static rkv_status plan_anew(rkv_cache *h)
{
    const rkvi_plan_view v = view_of(h, &h->batch, h->launched + 1);
    const uint64_t wrong = h->ring.predicted_wrong;
    if (h->ring_is_past)
        rkvi_ring_reset(&h->ring, h->launched);
    h->ring_is_past = h->ring_is_old = false;
    h->ring_base = h->launched + 1;
    uint32_t n = 0;
    rkv_status s = rkvi_plan_list(&h->plan, &v, rkvi_ring_new_items(&h->ring), &n);
    if (s != RKV_OK)
        return s;
    if (h->ring.bytes)
        rkvi_ring_plan(&h->ring, n);
    h->missed = h->ring.predicted_wrong != wrong;
    if (!(h->cfg.flags & (RKV_FLAG_NO_PROMOTE | RKV_FLAG_GRAPHS)))
        s = rkvi_cache_promote(&h->cache, h->ring.items, n);
    return s == RKV_OK ? write_tables(h, &v) : s;
}

static rkv_status plan_step(rkv_cache *h)
{
    const rkvi_range mirror = {.ptr = h->now->mirror.host, .bytes = h->now->mirror.bytes, .rows = 1,
                               .access = RKVI_WRITE};
    h->dev->vt->host_access(h->dev, &mirror, 1);
    rkvi_step_cpu_take_book(h);
    if (h->is_profiled || !rkvi_step_carry_on(h)) {
        h->steady.is_valid = false;
        h->now->plan = 0;
        rkv_status s = plan_anew(h);
        if (s != RKV_OK)
            return s;
        h->now->plan = ++h->steady.plan;
        if (h->is_profiled)
            return rkvi_profile_begin(h);
    } else if (!h->expects_replay) {
        rkvi_step_ring_now(h);
        if (!h->graphs) /* its slots go round; a graph's stay */
            rkvi_plan_ring_bases(&h->plan, &h->cfg, h->ring.items, (uint64_t)(uintptr_t)h->ring_memory,
                                 &h->now->mirror);
    }
    rkvi_step_steady_keep(h);
    rkvi_step_cpu_write_book(h);
    return RKV_OK;
}

static rkv_status enqueue_begin(rkv_cache *h)
{
    rkv_status s = rkvi_step_bring_back(h);
    if (s == RKV_OK)
        s = rkvi_step_upload(h);
    if (s == RKV_OK && h->cfg.mode == RKV_MODE_RING && !h->expects_replay)
        s = rkvi_step_pump(h, 0);
    return s;
}

rkv_status rkvi_step_quiet(rkv_cache *h)
{
    rkv_status s = rkvi_timeline_sync(&h->compute, h->compute.last);
    if (s == RKV_OK)
        s = rkvi_timeline_sync(&h->in, h->in.last);
    if (s == RKV_OK)
        s = rkvi_timeline_sync(&h->out, h->out.last);
    return s;
}

/* A device call failed between enqueueing and marking: the host waits for the
 * library's streams, so that nothing is in flight there without a mark. */
static rkv_status wait_unmarked(rkv_cache *h)
{
    rkv_status s = rkvi_dev(stream_sync, h->dev, h->in_stream);
    if (s == RKV_OK)
        s = rkvi_dev(stream_sync, h->dev, h->out_stream);
    if (s == RKV_OK)
        s = rkvi_dev(stream_sync, h->dev, h->table_stream);
    return s;
}

/* What can't be taken back ends the handle. */
static void poison(rkv_cache *h)
{
    rkvi_step_seen_status(h, RKV_E_POISONED);
}

/* The same with work on `stream` that no mark covers, for destroy to wait for. */
static void poison_after(rkv_cache *h, void *stream)
{
    poison(h);
    if (rkvi_dev(stream_sync, h->dev, stream) == RKV_OK)
        wait_unmarked(h);
}

rkv_status rkvi_step_failed(rkv_cache *h, rkv_status s)
{
    char text[256];
    snprintf(text, sizeof text, "%s", rkvi_error_text());
    if (wait_unmarked(h) != RKV_OK)
        poison(h);
    return h->poison == RKV_OK ? rkvi_fail(s, "%s", text) : rkvi_handle_alive(h);
}

/* What begin took is given back; copies that are in flight run on. */
static rkv_status take_back(rkv_cache *h, rkv_status s)
{
    char text[256];
    snprintf(text, sizeof text, "%s", rkvi_error_text());
    rkvi_cache_repark(&h->cache, &h->batch);
    rkvi_cache_undo(&h->cache, &h->batch);
    rkvi_step_cpu_abort(h);
    rkvi_ring_reset(&h->ring, h->launched);
    return s == RKV_OK ? s : rkvi_fail(s, "%s", text);
}

static rkv_status begin(rkv_cache *h)
{
    bool waited = false;
    rkv_status s = take_tables(h);
    if (s == RKV_OK)
        s = rkvi_cache_begin(&h->cache, &h->batch, &waited);
    h->stats.host_waits += waited;
    if (s != RKV_OK)
        return s;
    s = plan_step(h);
    if (s != RKV_OK)
        return take_back(h, s);
    s = enqueue_begin(h);
    return s == RKV_OK ? RKV_OK : take_back(h, rkvi_step_failed(h, s));
}

rkv_status rkvi_step_begin(rkv_cache *h, const rkvi_batch *batch)
{
    if (h->state != RKVI_STEP_IDLE)
        return rkvi_fail(RKV_E_STATE, "a step is open: end or abort it before the next begin");
    rkvi_batch_copy(&h->batch, batch);
    h->is_profiled = rkvi_profile_wants(h);
    const uint64_t print = rkvi_batch_print(&h->batch);
    const bool repeats = print == h->batch_print;
    rkv_status s = begin(h);
    if (s != RKV_OK)
        return rkvi_step_seen_status(h, s);
    h->batch_print = print;
    h->state = RKVI_STEP_BEGUN;
    h->next_site = 0;
    h->replayed = false;
    h->stats.steps++;
    h->stats.last_step_list_bytes = h->plan.list_bytes;
    rkvi_step_clock_begin(h);
    h->stats.own_entries += h->plan.own_entries;
    /* Hints tell of a batch that changes: better to wait for the next one. */
    if (((!h->missed && !h->hint_differs) || repeats) && !h->expects_replay)
        predict_same(h, h->launched + h->plan.n_launches);
    return RKV_OK;
}

/* ----------------------------------------------------------- start, streams */

/* What follows on `stream` comes after all compute so far. */
static rkv_status follow(rkv_cache *h, void *stream)
{
    uint64_t unseen = 0;
    rkv_status s = rkvi_timeline_wait(&h->compute, h->compute.last, stream, &unseen);
    if (s == RKV_OK) {
        h->stream = stream;
        h->has_stream = true;
    }
    return s;
}

/* A call on another stream than the call before comes after it. */
rkv_status rkvi_step_order(rkv_cache *h, void *stream)
{
    const rkv_status s = rkvi_step_settle(h);
    if (s != RKV_OK || (h->has_stream && stream == h->stream))
        return s;
    return follow(h, stream);
}

rkv_status rkvi_step_mark_compute(rkv_cache *h, void *stream)
{
    rkv_status s = rkvi_timeline_record(&h->compute, stream);
    h->cache.compute_mark = h->compute.last;
    return s;
}

static rkv_status start(rkv_cache *h, void *stream)
{
    uint64_t unseen = 0;
    /* Between steps an engine may have made a new stream with an old handle. */
    rkv_status s = follow(h, stream);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->uploads, h->now->upload_mark, stream, &unseen);
    if (s == RKV_OK) /* once, here: what follows may be captured, and replayed */
        s = rkvi_step_copy_shared(h, stream);
    if (s == RKV_OK && h->graphs)
        s = rkvi_step_image_patch(h, stream);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->in, h->cache.fetched_in, stream, &h->compute_seen.in);
    if (s == RKV_OK)
        s = rkvi_step_mark_compute(h, stream);
    if (s == RKV_OK)
        h->state = RKVI_STEP_RUNNING;
    return s;
}

rkv_status rkvi_step_start(rkv_cache *h, void *stream)
{
    if (h->state == RKVI_STEP_IDLE)
        return rkvi_fail(RKV_E_STATE, "no step is open: begin one before start");
    if (h->state != RKVI_STEP_BEGUN)
        return rkvi_fail(RKV_E_STATE, "the step was started already");
    return rkvi_step_seen_status(h, start(h, stream));
}

/* ------------------------------------------------------------------- attend */

/* Waits of the store: host copies given up, places handed on, transit. */
rkv_status rkvi_step_before_store(rkv_cache *h, const rkvi_site_call *c)
{
    const uint32_t layer = c->site->kv_layer;
    const rkvi_layer_state *ls = &h->cache.layers[layer];
    uint64_t out = ls->store_out;
    for (uint32_t e = 0; e < h->batch.n_entries; e++) {
        const uint32_t tile = h->cache.joined[e];
        const uint64_t mark = tile == UINT32_MAX ? 0 : rkvi_cache_drop_host_copy(&h->cache, tile, layer);
        out = mark > out ? mark : out;
    }
    if (c->layer->has_tail) {
        const uint64_t mark = h->cache.transit[h->cache.transit_of[layer]].out_mark;
        out = mark > out ? mark : out;
    }
    rkv_status s = rkvi_timeline_wait(&h->out, out, c->stream, &h->compute_seen.out);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->in, ls->store_in, c->stream, &h->compute_seen.in);
    return s;
}

/* Waits until the slots that a launch reads are filled.  Items lie in order of
 * launches: *item is the launch's first, then the next one's. */
static rkv_status wait_filled(rkv_cache *h, const rkvi_site_call *c, uint64_t number, uint32_t *item, bool *out_reads)
{
    const uint32_t first = *item, end = c->plan->list0 + c->plan->n_list;
    uint64_t mark = 0;
    for (; *item < end && h->ring.items[*item].launch == number; ++*item) {
        const rkvi_ring_item *it = &h->ring.items[*item];
        assert(it->in_mark);
        mark = it->in_mark > mark ? it->in_mark : mark;
    }
    *out_reads = *item > first;
    return rkvi_timeline_wait(&h->in, mark, c->stream, &h->compute_seen.in);
}

static rkv_status fill(rkv_cache *h, const rkvi_site_call *c, uint32_t g, uint32_t *item, bool *out_reads)
{
    const uint64_t number = c->plan->number0 + g;
    rkv_status s = RKV_OK;
    if (h->ring.bytes)
        s = h->cfg.mode == RKV_MODE_OP_LEVEL
                ? rkvi_step_pump_op_level(h, g + 1 < c->plan->n_launches ? number + 1 : number)
                : rkvi_step_pump(h, number);
    return s == RKV_OK ? wait_filled(h, c, number, item, out_reads) : s;
}

/* Launch g is enqueued; its slots may be filled anew behind `mark`. */
static rkv_status launched(rkv_cache *h, uint64_t number, bool reads)
{
    h->launch_marks[number % h->launch_room] = h->compute.last;
    h->launched = number;
    return reads && h->cfg.mode == RKV_MODE_RING ? rkvi_step_pump(h, 0) : RKV_OK;
}

/* Nothing stands between the launches of a site that could keep the next one
 * from starting early: the wait comes before the store where there is one launch,
 * and the mark behind the last one's merge. */
static rkv_status run_launches(rkv_cache *h, const rkvi_site_call *c, bool is_filled, uint32_t item, bool reads)
{
    const uint32_t n = c->plan->n_launches;
    rkv_status s = RKV_OK;
    for (uint32_t g = 0; g < n && s == RKV_OK; g++) {
        const uint64_t number = c->plan->number0 + g;
        if (g > 0 || !is_filled)
            s = fill(h, c, g, &item, &reads);
        if (s == RKV_OK)
            s = g == c->plan->cpu_launch && h->cpu.is_running ? rkvi_step_cpu_finish(h, c)
                                                              : rkvi_launch_attend(h, c, g);
        if (s == RKV_OK && reads)
            s = rkvi_step_promote(h, number, c->stream);
        if (s == RKV_OK && g + 1 < n && reads)
            s = rkvi_step_mark_compute(h, c->stream);
        if (s == RKV_OK && g + 1 < n)
            s = launched(h, number, reads);
    }
    if (s == RKV_OK)
        s = rkvi_launch_output(h, c);
    if (s == RKV_OK)
        s = rkvi_step_mark_compute(h, c->stream);
    return s == RKV_OK ? launched(h, c->plan->number0 + n - 1, reads) : s;
}

static rkv_status attend(rkv_cache *h, const rkvi_site_call *c)
{
    rkv_status s = h->state == RKVI_STEP_BEGUN ? start(h, c->stream) : rkvi_step_order(h, c->stream);
    const bool op_level = h->cfg.mode == RKV_MODE_OP_LEVEL;
    bool reads = false;
    uint32_t item = c->plan->list0;
    rkvi_step_ring_now(h);
    if (s == RKV_OK && !op_level)
        s = fill(h, c, 0, &item, &reads);
    if (s == RKV_OK && c->site->stores && h->plan.n_new_cells) {
        s = rkvi_step_before_store(h, c);
        if (s == RKV_OK)
            s = rkvi_launch_open(h, c);
        if (s == RKV_OK)
            s = rkvi_launch_store(h, c);
    }
    if (s == RKV_OK && op_level)
        s = rkvi_step_mark_compute(h, c->stream); /* the barrier: copies come after q */
    if (s == RKV_OK)
        s = rkvi_launch_rotate(h, c);
    if (s == RKV_OK)
        s = rkvi_step_cpu_begin(h, c);
    if (s == RKV_OK)
        s = run_launches(h, c, !op_level, item, reads);
    if (s == RKV_OK && c->a->site == c->layer->last_site)
        s = rkvi_step_leave(h, c->site->kv_layer);
    return s;
}

/* What the call that failed has enqueued gets its mark now, while the caller's
 * stream is there for certain.  Where the call did not get as far as to be
 * ordered on that stream, it enqueued nothing there. */
static rkv_status settle_broken(rkv_cache *h, void *stream)
{
    rkv_status s = wait_unmarked(h);
    if (s != RKV_OK || !h->has_stream || stream != h->stream)
        return s;
    s = rkvi_step_mark_compute(h, stream);
    if (s == RKV_OK) /* abort gives up the slots that it reads */
        s = rkvi_timeline_wait(&h->compute, h->compute.last, h->in_stream, &h->in_seen.compute);
    /* No memory for a mark, say: the host waits instead. */
    return s == RKV_OK ? s : rkvi_dev(stream_sync, h->dev, stream);
}

/* A call of the running step failed: only abort is left, or nothing.  What a
 * device calls an argument (a stream that is none, say) is told as a failed call,
 * since an argument's error leaves the step as it was. */
rkv_status rkvi_step_broken(rkv_cache *h, rkv_status s, void *stream)
{
    char text[256];
    if (s > RKV_E_CAPACITY)
        s = RKV_E_DEVICE_CALL;
    h->state = RKVI_STEP_BROKEN;
    if (rkvi_step_seen_status(h, s) <= RKV_E_POISONED)
        return s;
    snprintf(text, sizeof text, "%s", rkvi_error_text());
    if (settle_broken(h, stream) == RKV_OK)
        return rkvi_fail(s, "%s", text);
    poison(h);
    return rkvi_handle_alive(h);
}

rkv_status rkvi_step_attend(rkv_cache *h, const rkvi_attend *a, void *stream)
{
    if (h->state == RKVI_STEP_IDLE)
        return rkvi_fail(RKV_E_STATE, "no step is open: begin one before attend");
    if (h->state == RKVI_STEP_BROKEN)
        return rkvi_fail(RKV_E_STATE, "an earlier call of this step failed: abort the step");
    const rkvi_site_config *site = &h->cfg.sites[a->site];
    const rkvi_site_call c = {.a = a,
                              .site = site,
                              .layer = &h->cfg.layers[site->kv_layer],
                              .plan = &h->plan.sites[a->site],
                              .stream = stream};
    if (h->capture.is_on)
        return rkvi_step_seen_status(h, rkvi_capture_attend(h, &c));
    rkv_status s = attend(h, &c);
    if (s != RKV_OK)
        return rkvi_step_broken(h, s, stream);
    h->next_site++;
    return RKV_OK;
}

/* --------------------------------------------------------------- end, abort */

static rkv_status end(rkv_cache *h, const rkvi_batch *next, void *stream)
{
    rkv_status s = rkvi_step_order(h, stream);
    if (s == RKV_OK)
        s = rkvi_step_mark_compute(h, stream);
    if (s == RKV_OK)
        s = rkvi_timeline_record(&h->ends, stream);
    if (s == RKV_OK)
        s = rkvi_step_leave(h, UINT32_MAX);
    if (s == RKV_OK && next && !h->replayed) {
        rkvi_batch_copy(&h->next, next);
        predict(h, &h->next, h->launched);
    }
    h->hint_differs = next && rkvi_batch_print(next) != h->batch_print;
    if (s == RKV_OK && h->cfg.mode == RKV_MODE_RING && !h->replayed)
        s = rkvi_step_pump(h, 0);
    if (s == RKV_OK)
        rkvi_cache_end(&h->cache); /* last: it can't be taken back */
    return s;
}

rkv_status rkvi_step_end(rkv_cache *h, const rkvi_batch *next, void *stream)
{
    if (h->state == RKVI_STEP_IDLE)
        return rkvi_fail(RKV_E_STATE, "no step is open: there is nothing to end");
    if (h->state == RKVI_STEP_BROKEN)
        return rkvi_fail(RKV_E_STATE, "an earlier call of this step failed: abort the step");
    if (h->next_site < h->cfg.n_sites)
        return rkvi_fail(RKV_E_STATE, "site %u of %u has not been attended: attend it, or abort the step",
                         h->next_site, h->cfg.n_sites);
    rkv_status s = end(h, next, stream);
    if (s != RKV_OK)
        return rkvi_step_broken(h, s, stream);
    rkvi_cache_free_unseen(&h->cache, &h->batch);
    h->now->marker = h->ends.last;
    h->state = RKVI_STEP_IDLE;
    h->expects_replay = h->replayed;
    return RKV_OK;
}

void rkvi_step_abort(rkv_cache *h)
{
    h->capture.is_on = false;
    h->n_ahead = 0; /* the graph may not have been launched */
    if (rkvi_step_settle(h) != RKV_OK)
        poison_after(h, h->stream);
    take_back(h, RKV_OK);
    h->now->abort_mark = h->compute.last;
    h->clock.begun_ns = 0; /* no step from begin to begin */
    h->state = RKVI_STEP_IDLE;
    h->stats.aborted_steps++;
}

/* -------------------------------------------------------------------- accept */

static rkv_status move_cells(rkv_cache *h, const rkvi_seq *seq, const uint32_t *cells, uint32_t n, void *stream)
{
    rkv_status s = follow(h, stream);
    bool moved = false;
    for (uint32_t layer = 0; layer < h->cfg.n_layers && s == RKV_OK; layer++) {
        s = rkvi_launch_move(h, layer, seq, cells, n, stream);
        moved = moved || s == RKV_OK;
    }
    if (s == RKV_OK && rkvi_step_mark_compute(h, stream) != RKV_OK)
        s = rkvi_dev(stream_sync, h->dev, stream); /* what has ended needs no mark */
    if (s != RKV_OK && moved) { /* some KV layers' cells lie elsewhere by now */
        poison_after(h, stream);
        return rkvi_handle_alive(h);
    }
    return rkvi_step_seen_status(h, s);
}

rkv_status rkvi_step_accept(rkv_cache *h, uint32_t sequence, const uint32_t *cells, uint32_t n, void *stream)
{
    uint32_t n_still = 0;
    while (n_still < n && cells[n_still] == n_still)
        n_still++;
    if (n_still < n) {
        const rkv_status s = move_cells(h, &h->cache.seqs[sequence], cells, n, stream);
        if (s != RKV_OK)
            return s;
    }
    rkvi_cache_sequence_accept(&h->cache, sequence, cells, n);
    return RKV_OK;
}
