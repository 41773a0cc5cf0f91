/* SPDX-License-Identifier: MIT
 *
 * Plans of random batches against an oracle, launch by launch (plan_oracle.h),
 * and of batches made for one property each.
 */
#include "plan_oracle.h"

static void count(uint64_t *sites, uint64_t *launches, uint64_t *compactions)
{
    *sites += w.cfg.n_sites;
    *launches += w.plan.n_launches;
    for (uint32_t g = 0; g < w.plan.n_launches; g++)
        *compactions += w.plan.launches[g].n_merge > 0;
}

static void test_random(void **state)
{
    (void)state;
    start_random();
    uint64_t launches = 0, compactions = 0, sites = 0, refused = 0, shared = 0, repeats = 0, fixed = 0;
    for (uint32_t round = 0; round < rounds(60, 60); round++) {
        make_world();
        fill_sequences();
        make_batch();
        if (w.batch.n_entries) {
            make_residency();
            shared += w.shares;
            if (make_plan(one_in(2) ? between(1, 8) : between(8, 300))) {
                check_all();
                count(&sites, &launches, &compactions);
                fixed += w.view.fixed;
                repeats += w.plan.own_entries;
            } else {
                refused++;
            }
        }
        free_world();
    }
    print_message("%llu sites, %llu launches, %llu compactions\n", (unsigned long long)sites,
                  (unsigned long long)launches, (unsigned long long)compactions);
    print_message("%llu of %llu batches with shared tiles refused, %llu rows shared items, %llu own entries\n",
                  (unsigned long long)refused, (unsigned long long)shared, (unsigned long long)n_mapped,
                  (unsigned long long)repeats);
    assert_true(launches > sites && compactions > 0 && fixed > 0);
    assert_true(n_mapped > 0 && repeats > 0 && refused * 4 < shared);
    free(nodes);
    nodes = NULL;
    nodes_room = 0;
}

/* One sequence of n_tiles, all but its last tile in the tail, and one entry of n_rows. */
static void make_one(uint32_t n_tiles, uint32_t n_rows, bool is_prefill)
{
    rkvi_row rows[16];
    open_world();
    while (w.seqs[0].n_tiles < n_tiles) {
        next_rows(&w.seqs[0], rows, 16, 0);
        assert_true(append(&w.seqs[0], rows, 16));
    }
    next_rows(&w.seqs[0], w.batch.rows, n_rows, 0);
    assert_true(append(&w.seqs[0], w.batch.rows, n_rows));
    w.batch.n_rows = n_rows;
    w.batch.n_entries = 1;
    w.batch.entries[0] = (rkvi_batch_entry){.n_rows = n_rows, .n_new = n_rows, .is_prefill = is_prefill};
    for (uint32_t t = 0; t < w.seqs[0].n_tiles; t++)
        for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
            rkvi_tile_layer *y = rkvi_tile_layer_at(&w.tiles, w.seqs[0].tiles[t], l);
            y->state = t < n_tiles - 1 ? RKVI_IN_TAIL : RKVI_ON_DEVICE;
            y->device_addr = t < n_tiles - 1 ? 0 : 256 * (t + 1);
        }
    make_plan(one_in(2) ? between(1, 8) : between(8, 300));
}

static void simple_params(uint32_t n_sites)
{
    memset(&w, 0, sizeof w);
    core_params_init(&w.params, false);
    w.params.p.n_kv_layers = 1;
    w.params.p.n_sites = n_sites;
    for (uint32_t i = 0; i < n_sites; i++)
        w.params.sites[i] = (rkv_site_params){.struct_size = sizeof w.params.sites[i], .n_q_heads = 4};
    w.params.p.tile_cells = 16;
    w.params.p.n_sequences = 1;
}

/* A copy that holds a little less than two tile-layers: a launch for each; but for
 * prefill a quarter of the ring. */
static void test_most_launches(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        simple_params(1);
        const uint64_t bytes = core_largest_bytes(&w.params);
        w.params.p.capacity_cells = 16 * 1600;
        w.params.p.max_rows = 700;
        w.params.p.ring_bytes = i % 2 ? bytes * 20 : bytes * 3;
        w.params.p.copy_bytes = i % 2 ? bytes * 2 - 256 : bytes * 3;
        make_one(1550, i < 2 ? 700 : 16, i < 2);
        assert_int_equal(w.plan.sites[0].n_launches, i == 1 ? 310 : 1549);
        check_all();
        free_world();
    }
}

/* Sites alike share their work; other masks have their own. */
static void test_shared_items(void **state)
{
    (void)state;
    simple_params(4);
    w.params.sites[2].mask = RKV_MASK_SLIDING;
    w.params.sites[2].mask_width = 40;
    w.params.p.capacity_cells = 16 * 40;
    w.params.p.ring_bytes = 6 * core_largest_bytes(&w.params);
    make_one(30, 1, false);
    check_all();
    const rkvi_plan_site *s = w.plan.sites;
    assert_int_equal(s[1].items_off, s[0].items_off);
    assert_int_equal(s[1].merges_off, s[0].merges_off);
    assert_true(s[2].items_off != s[0].items_off);
    assert_int_equal(s[3].items_off, s[0].items_off);
    assert_int_equal(s[2].n_list, 2);
    assert_int_equal(s[3].n_list, 29);
    assert_true(s[1].bases_off != s[0].bases_off); /* other slots */
    free_world();
}

/* The step after: what enters the tail by then has entered, what joins the
 * window has joined. */
static void test_predicted_list(void **state)
{
    static const struct {
        rkvi_tile_layer layer;
        bool now, then;
    } cases[] = {
        {{.state = RKVI_IN_TAIL}, true, true},
        {{.state = RKVI_IN_TAIL, .promoting = true}, true, false},
        {{.state = RKVI_LEAVING, .enter_step = 8}, false, true},
        {{.state = RKVI_LEAVING, .enter_step = 9}, false, false},
        {{.state = RKVI_ON_DEVICE, .enter_step = 8, .out_mark = RKVI_MARK_PENDING}, false, true},
        {{.state = RKVI_ON_DEVICE, .out_mark = RKVI_MARK_PENDING}, false, false},
        {{.state = RKVI_ON_DEVICE, .enter_step = 8}, false, false},
        {{.state = RKVI_IN_WINDOW}, false, false},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    rkvi_ring_item items[2 * N];
    (void)state;
    simple_params(2);
    w.params.p.capacity_cells = 16 * 20;
    make_one(N + 1, 1, false);
    for (uint32_t i = 0; i < N; i++)
        *rkvi_tile_layer_at(&w.tiles, w.seqs[0].tiles[i], 0) = cases[i].layer;
    w.view.step = 7;
    for (int predict = 0; predict < 2; predict++) {
        w.view.predict = predict;
        uint32_t n;
        ok(rkvi_plan_list(&w.plan, &w.view, items, &n));
        for (uint32_t i = 0, k = 0; i < N; i++)
            if (predict ? cases[i].then : cases[i].now) {
                assert_true(2 * k < n);
                assert_int_equal(items[k].tile, w.seqs[0].tiles[i]);
                assert_int_equal(items[n / 2 + k].tile, w.seqs[0].tiles[i]);
                k++;
            }
        assert_int_equal(n, predict ? 2 * 3 : 2 * 2);
    }
    free_world();
}

/* Many columns, of dims that have kernels for them: another number of items. */
static void test_wide_runs(void **state)
{
    (void)state;
    enum { CELLS = 64 * 256, ROWS = 9 };
    const uint32_t dims[] = {128, 256}, wide[] = {0, 16}, most[][2] = {{32, 16}, {32, 32}};
    for (int k = 0; k < 4; k++) {
        memset(&w, 0, sizeof w);
        rkv_cache_params *p = &w.params.p;
        core_params_init(&w.params, false);
        p->n_kv_layers = p->n_sites = p->n_sequences = 1;
        w.params.layers[0].n_kv_heads = 1;
        w.params.layers[0].head_dim_k = dims[k / 2];
        w.params.sites[0].kv_layer = 0;
        p->tile_cells = 256;
        p->capacity_cells = p->max_rows = CELLS + ROWS;
        open_world();
        rkvi_row *rows = calloc(CELLS, sizeof *rows);
        assert_non_null(rows);
        next_rows(&w.seqs[0], rows, CELLS, 0);
        assert_true(append(&w.seqs[0], rows, CELLS));
        next_rows(&w.seqs[0], w.batch.rows, ROWS, 0);
        assert_true(append(&w.seqs[0], w.batch.rows, ROWS));
        w.batch.entries[w.batch.n_entries++] = (rkvi_batch_entry){.n_rows = ROWS, .n_new = ROWS};
        w.batch.n_rows = ROWS;
        for (uint32_t t = 0; t < w.seqs[0].n_tiles; t++)
            *rkvi_tile_layer_at(&w.tiles, w.seqs[0].tiles[t], 0) =
                (rkvi_tile_layer){.state = RKVI_IN_WINDOW, .device_addr = 256};
        wide_runs = wide[k % 2];
        make_plan(32);
        wide_runs = 0;
        const uint64_t n = w.plan.launches[0].n_decode;
        assert_true(n > most[k / 2][k % 2] / 2 && n <= most[k / 2][k % 2] + 2);
        free(rows);
        free_world();
    }
}

/* One sequence, its first half in the tail: each launch of many has the work
 * items wanted, and merges make room between few of them. */
static void test_items_a_launch(void **state)
{
    (void)state;
    enum { TILES = 1024, TILE_CELLS = 256, TARGET = 24 };
    memset(&w, 0, sizeof w);
    rkv_cache_params *p = &w.params.p;
    core_params_init(&w.params, false);
    p->n_kv_layers = p->n_sites = 1;
    w.params.layers[0].n_kv_heads = 2;
    w.params.layers[0].head_dim_k = 512;
    w.params.sites[0].kv_layer = 0;
    p->tile_cells = TILE_CELLS;
    p->n_sequences = 1;
    p->capacity_cells = (TILES + 2) * TILE_CELLS;
    p->max_rows = 1024;
    p->copy_bytes = 8 * core_largest_bytes(&w.params);
    p->ring_bytes = 4 * p->copy_bytes;
    open_world();
    rkvi_row rows[1024];
    for (uint32_t i = 0; i < TILES * TILE_CELLS / 1024; i++) {
        next_rows(&w.seqs[0], rows, 1024, 0);
        assert_true(append(&w.seqs[0], rows, 1024));
    }
    next_rows(&w.seqs[0], w.batch.rows, 1, 0);
    assert_true(append(&w.seqs[0], w.batch.rows, 1));
    w.batch.entries[w.batch.n_entries++] = (rkvi_batch_entry){.n_rows = 1, .n_new = 1};
    w.batch.n_rows = 1;
    for (uint32_t t = 0; t < w.seqs[0].n_tiles; t++)
        *rkvi_tile_layer_at(&w.tiles, w.seqs[0].tiles[t], 0) = (rkvi_tile_layer){
            .state = t < TILES / 2 ? RKVI_IN_TAIL : RKVI_IN_WINDOW, .device_addr = 256, .host_addr = 256};
    make_plan(2 * TARGET);
    const rkvi_plan_site *s = &w.plan.sites[0];
    uint32_t n_stops = 0;
    uint64_t leaves = 0;
    assert_true(s->n_launches >= TILES / 2 / 8);
    for (uint32_t g = 0; g < s->n_launches; g++) {
        const rkvi_plan_launch *l = &w.plan.launches[s->launch0 + g];
        assert_true(l->n_decode > TARGET / 2 && l->n_decode <= (g ? TARGET : 2 * TARGET + 2));
        n_stops += l->n_merge > 0;
        leaves += l->decode_leaves;
    }
    assert_true(n_stops <= 4);
    assert_int_equal(leaves, rkvi_div_up(TILES * TILE_CELLS + 1, w.cfg.layers[0].geom.leaf_cells));
    free_world();
}

static void test_range(void **state)
{
    (void)state;
    rkvi_row rows[3] = {
        {.pos = 100, .from = 0, .to = 1000}, {.pos = 300, .from = 0, .to = 250}, {.pos = 500, .from = 7, .to = 7}};
    const rkvi_batch b = {.rows = rows, .n_rows = 3, .n_entries = 1};
    rkvi_batch_entry e = {.n_rows = 2};
    int64_t lo, hi;
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_SLIDING, .width = 60}, &lo, &hi);
    assert_int_equal(lo, 41);
    assert_int_equal(hi, 250);
    e.n_rows = 1;
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_CHUNKED, .width = 64}, &lo, &hi);
    assert_int_equal(lo, 64);
    assert_int_equal(hi, 101);
    e.row0 = 2; /* nothing, wherever it lies */
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_CAUSAL}, &lo, &hi);
    assert_true(lo >= hi);
    e.row0 = 0;
    e.n_rows = 3;
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_CAUSAL}, &lo, &hi);
    assert_int_equal(lo, 0);
    assert_int_equal(hi, 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range),
        cmocka_unit_test(test_shared_items),
        cmocka_unit_test(test_predicted_list),
        cmocka_unit_test(test_most_launches),
        cmocka_unit_test(test_wide_runs), cmocka_unit_test(test_items_a_launch),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
