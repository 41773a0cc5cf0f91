/* SPDX-License-Identifier: MIT
 *
 * The cache's counting and moves: random steps, aborts, failures, roll-backs
 * and clears, with the invariants checked after each.  Device addresses are
 * numbers; nothing is copied.
 */
#include "cache_world.h"

/* -------------------------------------------------------------------- steps */

/* As plan lists them: the batch's tail tile-layers, site by site. */
static uint32_t make_items(rkvi_ring_item *items)
{
    uint32_t n = 0;
    for (uint32_t site = 0; site < w.cfg.n_sites; site++)
        for (uint32_t e = 0; e < w.batch.n_entries; e++) {
            const rkvi_seq *s = &w.cache.seqs[w.batch.entries[e].sequence];
            const uint32_t layer = w.cfg.sites[site].kv_layer;
            for (uint32_t t = 0; t < s->n_tiles; t++)
                if (tl(s->tiles[t], layer)->state == RKVI_IN_TAIL)
                    items[n++] = (rkvi_ring_item){.site = site,
                                                  .layer = layer,
                                                  .tile = s->tiles[t],
                                                  .serial = w.cache.tiles.tiles[s->tiles[t]].serial};
        }
    return n;
}

/* The tile that an entry's first new cell joins. */
static uint32_t joined_tile(const rkvi_batch_entry *e)
{
    const rkvi_seq *s = &w.cache.seqs[e->sequence];
    const uint64_t before = s->n_cells - e->n_new;
    return e->n_new && before % w.cfg.tile_cells ? s->tiles[before / w.cfg.tile_cells] : UINT32_MAX;
}

static void store(uint32_t layer)
{
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        const uint32_t tile = joined_tile(&w.batch.entries[e]);
        if (tile == UINT32_MAX)
            continue;
        rkvi_tile_layer *y = tl(tile, layer);
        const uint32_t generation = y->generation;
        const bool had_copy = y->host_valid;
        assert_true(y->device_addr != 0);
        rkvi_cache_drop_host_copy(&w.cache, tile, layer);
        assert_int_equal(y->generation, generation + had_copy);
        assert_false(y->host_valid);
    }
}

static void promote(uint32_t layer)
{
    for (uint32_t i = 0; i < w.cache.n_moves; i++)
        if (w.cache.moves[i].kind == RKVI_MOVE_PROMOTE && w.cache.moves[i].layer == layer) {
            w.cache.moves[i].done = true;
            w.promoted++;
        }
}

static void leave(uint32_t layer)
{
    for (uint32_t i = 0; i < w.cache.n_moves; i++) {
        rkvi_move *m = &w.cache.moves[i];
        if (m->kind != RKVI_MOVE_LEAVE || m->done || (layer != UINT32_MAX && (m->layer != layer || !m->in_step)))
            continue;
        const bool copies = !m->has_copy;
        rkvi_cache_left(&w.cache, m, copies ? ++w.mark : 0);
        const rkvi_tile_layer *y = tl(m->tile, m->layer);
        assert_int_equal(y->state, RKVI_LEAVING);
        assert_int_equal(y->enter_step, w.cache.step + (m->in_step ? 1 : 2));
        assert_true(!copies || y->out_mark == w.mark);
        w.left++;
    }
}

/* Tiles beyond the lag are in the window or on their way out; those within it
 * stay. */
static void check_due(void)
{
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        const rkvi_seq *s = &w.cache.seqs[w.batch.entries[e].sequence];
        const uint64_t end = s->n_cells, lag = w.cfg.draft_rows;
        const uint64_t due = end > lag ? (end - lag) / w.cfg.tile_cells : 0;
        for (uint32_t t = 0; t < s->n_tiles; t++)
            for (uint32_t l = 0; l < w.cfg.n_layers; l++)
                if (t < due)
                    assert_true(tl(s->tiles[t], l)->state != RKVI_ON_DEVICE);
    }
}

/* The first position that the next row sees, with the last `less` cells cut off. */
static int64_t floor_of(const rkvi_seq *s, uint32_t layer, uint64_t less)
{
    int64_t end = 0, floor = INT64_MAX;
    uint64_t cells = s->n_cells > less ? s->n_cells - less : 0;
    for (uint32_t i = 0; i < s->n_segments && cells; i++) {
        const uint64_t n = s->segments[i].count < cells ? s->segments[i].count : cells;
        end = s->segments[i].pos + (int64_t)n;
        cells -= n;
    }
    for (uint32_t i = 0; i < w.cfg.n_sites; i++) {
        const rkvi_site_mask m = w.cfg.sites[i].mask;
        if (w.cfg.sites[i].kv_layer != layer)
            continue;
        const int64_t lo = m.kind == RKV_MASK_SLIDING ? end - m.width + 1 : end - end % m.width;
        floor = lo < floor ? lo : floor;
    }
    return floor;
}

/* What the next row sees is held; what none sees, not even after a roll-back of
 * draft_rows cells, is freed. */
static void check_held_layer(const rkvi_seq *s, uint32_t layer)
{
    const int64_t seen = floor_of(s, layer, 0), unseen = floor_of(s, layer, w.cfg.draft_rows);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i];
        const bool is_freed = tl(s->tiles[g->tile_index], layer)->state == RKVI_FREED;
        w.freed += is_freed;
        if (g->pos + g->count > seen || g->tile_index + 1 == s->n_tiles)
            assert_false(is_freed);
        else if (g->pos + g->count > unseen)
            continue; /* cut back within the lag */
        else if (i + 1 == s->n_segments || s->segments[i + 1].tile_index != g->tile_index)
            assert_true(is_freed);
    }
}

static void check_held(void)
{
    for (uint32_t e = 0; e < w.batch.n_entries; e++)
        for (uint32_t l = 0; l < w.cfg.n_layers; l++)
            if (w.cfg.layers[l].frees)
                check_held_layer(&w.cache.seqs[w.batch.entries[e].sequence], l);
}

/* Are there tiles for the batch, `times` over? */
static bool has_room(uint32_t times)
{
    uint64_t tiles = 0;
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        const rkvi_seq *s = &w.cache.seqs[w.batch.entries[e].sequence];
        const uint64_t end = s->n_cells + (uint64_t)times * w.batch.entries[e].n_new;
        tiles += rkvi_div_up(end, w.cfg.tile_cells) - s->n_tiles;
    }
    return tiles <= w.cache.tiles.n_free;
}

/* check says the same as begin, for several batches in a row. */
static void check_batches(void)
{
    rkvi_cache_check_reset(&w.cache);
    for (uint32_t times = 1; times <= 3; times++)
        assert_int_equal(rkvi_cache_check_add(&w.cache, &w.batch),
                         rkvi_cache_batch_sees(&w.cache, &w.batch) != RKV_OK ? RKV_E_SEQUENCE
                         : has_room(times)                                   ? RKV_OK
                                                                             : RKV_E_CAPACITY);
}

static snapshot before;

/* True when the step was begun. */
static bool begin(bool host_is_short)
{
    bool waited;
    const bool sees = rkvi_cache_batch_sees(&w.cache, &w.batch) == RKV_OK, fits = has_room(1) && sees;
    take_snapshot(&before);
    check_batches();
    const rkv_status s = rkvi_cache_begin(&w.cache, &w.batch, &waited);
    if (s != RKV_E_CAPACITY && s != RKV_E_SEQUENCE)
        let_enter(&before);
    if (s != RKV_OK) {
        if (fits && !(host_is_short && (s == RKV_E_HOST_LIMIT || s == RKV_E_HOST_MEMORY)))
            fail_msg("T %u, draft %u, %u sequences: %s", w.cfg.tile_cells, w.cfg.draft_rows, w.cfg.n_sequences,
                     rkvi_error_text());
        assert_true(fits || s == (sees ? RKV_E_CAPACITY : RKV_E_SEQUENCE));
        check_unchanged(&before);
        check(false);
        w.refused++;
        return false;
    }
    assert_true(fits);
    w.begun++;
    for (uint32_t l = 0; l < w.cfg.n_layers; l++)
        w.brought_back += moves_of(l, RKVI_MOVE_BRING_BACK);
    check(true);
    return true;
}

static void bring_back(void)
{
    for (uint32_t i = 0; i < w.cache.n_moves; i++)
        if (w.cache.moves[i].kind == RKVI_MOVE_BRING_BACK)
            w.cache.moves[i].done = true;
}

static void abort_step(bool enqueued)
{
    rkvi_cache_undo(&w.cache, &w.batch);
    for (uint32_t q = 0; q < w.cfg.n_sequences; q++) {
        assert_int_equal(w.cache.seqs[q].n_cells, before.n_cells[q]);
        assert_int_equal(w.cache.seqs[q].n_tiles, before.n_tiles[q]);
    }
    before.step = w.cache.step; /* begins are counted */
    if (!enqueued)
        check_unchanged(&before);
    check(false);
    w.aborted++;
}

static void run_step(bool aborts, bool host_is_short)
{
    static rkvi_ring_item items[ITEMS_MAX];
    const uint32_t stop = aborts && one_in(3) ? one_in(3) ? 0 : below(2 * w.cfg.n_layers) : UINT32_MAX;
    make_batch();
    if (!begin(host_is_short))
        return;
    if (one_in(2))
        ok(rkvi_cache_promote(&w.cache, items, make_items(items)));
    check(true);
    if (stop == 0) {
        abort_step(false);
        return;
    }
    bring_back();
    for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
        if (stop == 2 * l + 1) {
            abort_step(true);
            return;
        }
        store(l);
        promote(l);
        if (stop == 2 * l + 2) {
            abort_step(true);
            return;
        }
        leave(l);
    }
    w.cache.compute_mark++;
    leave(UINT32_MAX);
    rkvi_cache_end(&w.cache);
    rkvi_cache_free_unseen(&w.cache, &w.batch);
    check(false);
    check_due();
    check_held();
}

static void cut_sequence(void)
{
    const uint32_t q = below(w.cfg.n_sequences);
    const rkvi_seq *s = &w.cache.seqs[q];
    const int64_t end = rkvi_seq_pos_end(s);
    const int64_t from = one_in(4) ? 0 : one_in(2) ? end - (int64_t)below(40) : (int64_t)below((uint64_t)end + 1);
    if (rkvi_cache_can_end(&w.cache, q, from) != RKV_OK) {
        w.not_cut++;
        return;
    }
    rkvi_cache_sequence_remove(&w.cache, q, from, INT64_MAX);
    assert_true(rkvi_seq_pos_end(s) <= (from < 0 ? 0 : from) || rkvi_seq_pos_end(s) <= end);
    check(false);
}

static void run_world(uint32_t draft_rows, uint32_t host_tenths)
{
    make_world(draft_rows, host_tenths);
    const bool aborts = one_in(2), cuts = !one_in(4);
    for (uint32_t i = 0; i < 60; i++) {
        run_step(aborts, host_tenths < 10);
        if (cuts && one_in(w.cache.tiles.n_free ? 6 : 2))
            cut_sequence();
    }
    for (uint32_t q = 0; q < w.cfg.n_sequences; q++)
        rkvi_cache_sequence_remove(&w.cache, q, INT64_MIN, INT64_MAX);
    check(false);
    assert_int_equal(w.cache.tiles.n_free, w.cfg.capacity_tiles);
    free_world();
}

static world sum;

static void add_up(void)
{
    sum.begun += w.begun;
    sum.refused += w.refused;
    sum.aborted += w.aborted;
    sum.promoted += w.promoted;
    sum.left += w.left;
    sum.brought_back += w.brought_back;
    sum.passed += w.passed;
    sum.freed += w.freed;
    sum.not_cut += w.not_cut;
}

static void print_sum(void)
{
    print_message("%llu begun, %llu refused, %llu aborted; %llu left, %llu promoted, %llu brought back, %llu passed; "
                  "%llu freed, %llu cuts refused\n",
                  (unsigned long long)sum.begun, (unsigned long long)sum.refused, (unsigned long long)sum.aborted,
                  (unsigned long long)sum.left, (unsigned long long)sum.promoted,
                  (unsigned long long)sum.brought_back, (unsigned long long)sum.passed,
                  (unsigned long long)sum.freed, (unsigned long long)sum.not_cut);
    assert_true(sum.begun && sum.refused && sum.aborted && sum.left && sum.promoted && sum.brought_back && sum.passed);
    assert_true(sum.freed && sum.not_cut);
}

/* Device and host places are enough, whatever happens. */
static void test_places_suffice(void **state)
{
    (void)state;
    static const uint32_t drafts[] = {RKV_DRAFT_NONE, 16, 40};
    start_random();
    sum = (world){0};
    for (uint32_t i = 0; i < rounds(200, 15); i++) {
        run_world(drafts[i % 3], 20);
        add_up();
    }
    print_sum();
}

/* Host memory runs out: begins fail whole. */
static void test_host_memory_short(void **state)
{
    (void)state;
    start_random();
    sum = (world){0};
    for (uint32_t i = 0; i < rounds(80, 15); i++) {
        run_world(one_in(2) ? RKV_DRAFT_NONE : 16, below(8));
        add_up();
    }
    print_sum();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_suffice),
        cmocka_unit_test(test_host_memory_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
