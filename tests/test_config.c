/* SPDX-License-Identifier: MIT
 *
 * Parameters made effective: defaults, sizes, the windows and the ring that the
 * library chooses.
 */
#include "config_setup.h"

#include <math.h>

/* --------------------------------------------------------- defaults and sizes */

static void test_defaults(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    set_up(&s);
    s.layers[0].type_k = RKV_TYPE_FP8_E4M3;
    s.layers[0].k_scale = 0.5f;
    s.layers[0].v_scale = 3; /* f16 has none */
    assert_init(&s, &cfg);
    assert_int_equal(cfg.n_sequences, 1);
    assert_int_equal(cfg.max_rows, 512);
    assert_int_equal(cfg.tile_cells, 256);
    assert_int_equal(cfg.draft_rows, 16);
    assert_int_equal(cfg.steps_ahead, 2);
    assert_int_equal(cfg.capacity_tiles, 64);
    assert_int_equal(cfg.layers[0].geom.dv, 64);
    assert_int_equal(cfg.layers[0].geom.type_v, RKV_TYPE_F16);
    assert_true(cfg.layers[0].geom.k_scale == 0.5f && cfg.layers[0].geom.v_scale == 1.0f);
    assert_true(cfg.sites[0].scale == 0.125f);
    assert_true(cfg.sites[0].stores && cfg.sites[1].stores && !cfg.sites[2].stores);
    assert_int_equal(cfg.layers[1].first_site, 1);
    assert_int_equal(cfg.layers[1].last_site, 2);
    assert_int_equal(cfg.layers[1].n_sites, 2);
    assert_int_equal(cfg.device_limit_bytes, 8 * GIB / 10 * 9);
    assert_int_equal(cfg.host_limit_bytes, 64 * GIB / 10 * 9);
    rkvi_config_free(&cfg);
    s.params.draft_rows = RKV_DRAFT_NONE;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.draft_rows, 0);
    rkvi_config_free(&cfg);
}

static void test_windows(void **state)
{
    (void)state;
    static const struct {
        uint64_t resident_cells;
        uint32_t n_sequences;
        uint64_t window_tiles, device_places, host_places;
        bool has_tail;
    } table[] = {
        {RKV_RESIDENT_NONE, 1, 0, 5, 64, true}, /* 2 * ceil(16 / 256) + 3 */
        {1, 1, 1, 6, 64, true},
        {256, 1, 1, 6, 64, true},
        {257, 1, 2, 7, 64, true},
        {8192, 1, 32, 37, 36, true},
        {16000, 1, 63, 64, 5, true},
        {16384, 1, 64, 64, 0, false},
        {RKV_RESIDENT_ALL, 1, 64, 64, 0, false},
        {RKV_RESIDENT_NONE, 4, 0, 20, 67, true}, /* 67 tiles: ragged ends */
        {8192, 4, 32, 52, 51, true},
        {16383, 4, 64, 67, 19, true},
        {16384, 4, 67, 67, 0, false}, /* the whole capacity: never a tail */
        {(uint64_t)1 << 62, 4, 67, 67, 0, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        setup s;
        rkvi_config cfg;
        set_up(&s);
        s.layers[0].resident_cells = table[i].resident_cells;
        s.params.n_sequences = table[i].n_sequences;
        assert_init(&s, &cfg);
        const rkvi_layer_config *layer = &cfg.layers[0];
        assert_int_equal(layer->window_tiles, table[i].window_tiles);
        assert_int_equal(layer->device_places, table[i].device_places);
        assert_int_equal(layer->host_places, table[i].host_places);
        assert_int_equal(layer->has_tail, table[i].has_tail);
        rkvi_config_free(&cfg);
    }
}

static void test_sums(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    set_up(&s);
    s.layers[0].resident_cells = 2048;
    s.params.ring_bytes = MIB;
    assert_init(&s, &cfg);
    const uint64_t bytes = 256 * 2 * 2 * 64 * 2; /* T x heads x (K, V) x dim x f16 */
    assert_int_equal(cfg.layers[0].geom.bytes, bytes);
    assert_int_equal(cfg.largest_tile_layer_bytes, bytes);
    assert_int_equal(cfg.ring_bytes, MIB);
    assert_int_equal(cfg.copy_bytes, MIB / 4);
    assert_int_equal(cfg.window_bytes, 8 * bytes);
    assert_int_equal(cfg.active_bytes, 10 * bytes);
    assert_int_equal(cfg.transit_tiles, 2);
    assert_int_equal(cfg.transit_ring_bytes, 2 * 2 * bytes);
    assert_int_equal(cfg.transit_bytes, 3 * 2 * bytes);
    assert_int_equal(cfg.partial_slots, 512 + 16 * 4 * (13 + 1) + RKVI_RUN_SLOTS /* 4160 leaves */);
    assert_int_equal(cfg.partial_bytes, (cfg.partial_slots + cfg.tree_slots) * 4 * 66 * 4);
    assert_int_equal(cfg.max_spans, 64 + RKVI_SEGMENTS_EXTRA);
    assert_int_equal(cfg.device_bytes, cfg.window_bytes + cfg.active_bytes + cfg.ring_bytes +
                                           cfg.transit_bytes + cfg.partial_bytes + 2 * cfg.table_bytes);
    assert_int_equal(cfg.layers[0].extent_places, 2); /* a copy of 256 KiB */
    assert_int_equal(cfg.host_tail_bytes, (60 + 64) * bytes);
    assert_int_equal(cfg.table_bytes % 256, 0);
    assert_true(cfg.max_items_site >= 64 && cfg.max_nodes_site >= 64 && cfg.max_merges_site >= 2);
    rkvi_config_free(&cfg);
}

/* KV layers unlike each other: sums go layer by layer. */
static void test_unlike_layers(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    set_up(&s);
    s.layers[0] = (rkv_kv_layer_params){.struct_size = sizeof s.layers[0],
                                        .n_kv_heads = 16,
                                        .head_dim_k = 256,
                                        .type_k = RKV_TYPE_Q8_0,
                                        .type_v = RKV_TYPE_Q4_0,
                                        .resident_cells = RKV_RESIDENT_NONE};
    s.layers[1] = (rkv_kv_layer_params){.struct_size = sizeof s.layers[1],
                                        .n_kv_heads = 4,
                                        .head_dim_k = 512,
                                        .head_dim_v = 64,
                                        .type_k = RKV_TYPE_BF16,
                                        .resident_cells = RKV_RESIDENT_ALL};
    s.sites[0].n_q_heads = 32;
    assert_init(&s, &cfg);
    const uint64_t a = 256 * 16 * (256 + 16 + 128 + 16), b = 256 * 4 * (1024 + 128);
    assert_int_equal(cfg.layers[0].geom.bytes, a);
    assert_int_equal(cfg.layers[1].geom.bytes, b);
    assert_int_equal(cfg.n_leaf_classes, 2);
    assert_int_equal(cfg.leaf_cells[cfg.layers[0].leaf_class], 128);
    assert_int_equal(cfg.leaf_cells[cfg.layers[1].leaf_class], 64);
    assert_int_equal(cfg.max_spans, 64 * 4 + RKVI_SEGMENTS_EXTRA);
    assert_int_equal(cfg.window_bytes, 64 * b);
    assert_int_equal(cfg.active_bytes, 5 * a);
    assert_int_equal(cfg.host_tail_bytes, 64 * a);
    assert_int_equal(cfg.largest_tile_layer_bytes, a); /* of those with a tail */
    assert_int_equal(cfg.transit_bytes, 2 * 2 * a);
    assert_int_equal(cfg.partial_bytes, (cfg.partial_slots + cfg.tree_slots) * 32 * 258 * 4);
    rkvi_config_free(&cfg);
}

/* More than 4 GiB in a KV layer, 2^32 - 1 cells: numbers stay exact. */
static void test_large(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    rkv_status fit;
    set_up(&s);
    s.machine.host_memory_bytes = (uint64_t)1 << 50;
    s.params.capacity_cells = UINT32_MAX;
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(cfg.capacity_tiles, 1u << 24);
    assert_int_equal(cfg.host_tail_bytes, ((uint64_t)1 << 24) * 2 * 131072);
    rkvi_config_free(&cfg);
    s.machine.host_memory_bytes = 64 * GIB;
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(fit, RKV_E_HOST_LIMIT);
    assert_non_null(strstr(rkvi_error_text(), "host limit"));
    rkvi_config_free(&cfg);
    s.layers[0].resident_cells = RKV_RESIDENT_ALL;
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(fit, RKV_E_DEVICE_LIMIT);
    assert_int_equal(cfg.window_bytes, ((uint64_t)1 << 24) * 131072);
    assert_non_null(strstr(rkvi_error_text(), "device limit"));
    rkvi_config_free(&cfg);
}

/* ---------------------------------------------------------------------- ring */

static void test_ring(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    rkv_status fit;
    set_up(&s);
    s.params.ring_bytes = 131072; /* the smallest legal one: a tile-layer */
    assert_init(&s, &cfg);
    assert_int_equal(cfg.ring_bytes, 131072);
    assert_int_equal(cfg.copy_bytes, 131072);
    rkvi_config_free(&cfg);
    s.params.ring_bytes = 131071;
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(fit, RKV_E_RING);
    assert_non_null(strstr(rkvi_error_text(), "131072"));
    rkvi_config_free(&cfg);
    s.params.ring_bytes = 0; /* no hints: four copies, but no more than a step's list */
    assert_init(&s, &cfg);
    assert_int_equal(cfg.ring_bytes, 3 * 64 * 131072);
    assert_int_equal(cfg.copy_bytes, cfg.ring_bytes / 4);
    rkvi_config_free(&cfg);
    s.params.capacity_cells = 1 << 20;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.ring_bytes, 64 * MIB);
    assert_int_equal(cfg.copy_bytes, 16 * MIB);
    rkvi_config_free(&cfg);
    s.params.copy_bytes = MIB;
    for (uint32_t rows = 1023; rows <= 1024; rows++) { /* long chunks: four launches of 64 tile-layers */
        s.params.max_rows = rows;
        assert_init(&s, &cfg);
        assert_int_equal(cfg.ring_bytes, rows == 1024 ? 4 * 64 * 131072 : 4 * MIB);
        rkvi_config_free(&cfg);
    }
    s.params.device_limit_bytes = 128 * MIB; /* but a sixteenth of the limit at most */
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(cfg.ring_bytes, 8 * MIB);
    rkvi_config_free(&cfg);
    s.params.copy_bytes = s.params.max_rows = 0;
    s.params.device_limit_bytes = 100 * MIB; /* never more than a quarter */
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(cfg.ring_bytes, 25 * MIB);
    rkvi_config_free(&cfg);
    s.params.device_limit_bytes = 4 * 131072 - 256; /* though one tile-layer */
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(cfg.ring_bytes, 131072);
    rkvi_config_free(&cfg);
    s.params.device_limit_bytes = 0;
    s.params.capacity_cells = 256; /* a list of one tile-layer: room for two */
    s.layers[1].resident_cells = RKV_RESIDENT_ALL;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.ring_bytes, 2 * 131072);
    rkvi_config_free(&cfg);
    s.layers[0].resident_cells = s.layers[1].resident_cells = RKV_RESIDENT_ALL;
    s.params.device_limit_bytes = 0;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.ring_bytes, 0);
    assert_int_equal(cfg.transit_bytes, 0);
    assert_int_equal(cfg.host_tail_bytes, 0);
    rkvi_config_free(&cfg);
}

/* The longest gap between two sites that read a tail, the step's edge included. */
static void test_ring_rule(void **state)
{
    (void)state;
    static const struct {
        uint64_t gaps[3], step_ns;
        uint64_t resident[2];
        uint64_t longest_ns;
    } table[] = {
        {{0, 0, 0}, 3000000, {RKV_RESIDENT_NONE, RKV_RESIDENT_NONE}, 1000000},
        {{0, 0, 0}, 3000000, {RKV_RESIDENT_NONE, RKV_RESIDENT_ALL}, 3000000},
        {{0, 0, 0}, 3000000, {RKV_RESIDENT_ALL, RKV_RESIDENT_NONE}, 2000000},
        {{1000000, 2000000, 5000000}, 0, {RKV_RESIDENT_NONE, RKV_RESIDENT_NONE}, 5000000},
        {{1000000, 2000000, 5000000}, 1, {RKV_RESIDENT_NONE, RKV_RESIDENT_ALL}, 8000000},
        {{1000000, 2000000, 5000000}, 1, {RKV_RESIDENT_ALL, RKV_RESIDENT_NONE}, 6000000},
        {{7000000, 2000000, 500000}, 0, {RKV_RESIDENT_ALL, RKV_RESIDENT_NONE}, 7500000},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        setup s;
        rkvi_config cfg;
        set_up(&s);
        s.params.capacity_cells = 1 << 22;
        s.machine.host_memory_bytes = s.machine.device_memory_bytes = (uint64_t)1 << 40;
        s.params.step_ns = table[i].step_ns;
        s.params.link_bytes_per_s = 10000000000; /* 10 bytes a ns */
        for (int k = 0; k < 3; k++)
            s.sites[k].gap_ns = table[i].gaps[k];
        for (int k = 0; k < 2; k++)
            s.layers[k].resident_cells = table[i].resident[k];
        assert_init(&s, &cfg);
        assert_int_equal(cfg.ring_rule_bytes, 10 * table[i].longest_ns + 2 * 4 * MIB);
        assert_true(cfg.ring_bytes >= cfg.ring_rule_bytes &&
                    cfg.ring_bytes < cfg.ring_rule_bytes + 256);
        rkvi_config_free(&cfg);
    }
}

/* ---------------------------------------------------------------------- AUTO */

static void test_auto(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    rkv_status fit;
    set_up(&s);
    s.layers[0].resident_cells = s.layers[1].resident_cells = RKV_RESIDENT_AUTO;
    s.params.capacity_cells = 1 << 20;
    assert_init(&s, &cfg); /* all fits: no tail */
    assert_true(!cfg.layers[0].has_tail && !cfg.layers[1].has_tail);
    rkvi_config_free(&cfg);

    s.params.device_limit_bytes = 512 * MIB; /* half of it fits */
    assert_init(&s, &cfg);
    assert_true(cfg.layers[0].has_tail && cfg.layers[1].has_tail);
    assert_int_equal(cfg.layers[0].window_tiles, cfg.layers[1].window_tiles);
    assert_true(cfg.layers[0].window_tiles > 0);
    assert_true(cfg.device_bytes <= cfg.device_limit_bytes);
    assert_true(cfg.device_bytes + 2 * 131072 >
                cfg.device_limit_bytes); /* one more tile would not fit */
    rkvi_config_free(&cfg);

    s.params.device_limit_bytes = MIB;
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(fit, RKV_E_DEVICE_LIMIT);
    assert_int_equal(cfg.layers[0].window_tiles, 0);
    rkvi_config_free(&cfg);

    /* on the host executor, where nobody set a limit, a tail would win nothing */
    s.params.device_limit_bytes = 0;
    s.machine.is_host = true;
    assert_init(&s, &cfg);
    assert_false(cfg.layers[0].has_tail);
    rkvi_config_free(&cfg);
    s.params.host.memory_bytes = 512 * MIB; /* somebody did */
    s.machine.device_memory_bytes = 512 * MIB;
    assert_init(&s, &cfg);
    assert_true(cfg.layers[0].has_tail);
    rkvi_config_free(&cfg);
}

/* Layers that free what their masks hide: AUTO gives them all that they hold
 * before the others get a window, and a tail only where memory is shortest. */
static void test_auto_masked(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    set_up(&s);
    s.layers[0].resident_cells = s.layers[1].resident_cells = RKV_RESIDENT_AUTO;
    s.params.capacity_cells = 1 << 20;
    s.params.device_limit_bytes = 512 * MIB;
    for (uint32_t i = 0; i < s.params.n_sites; i++)
        if (s.sites[i].kv_layer == 1) {
            s.sites[i].mask = RKV_MASK_SLIDING;
            s.sites[i].mask_width = 5000;
        }
    assert_init(&s, &cfg);
    const uint64_t held = rkvi_div_up(5000 + cfg.draft_rows, cfg.tile_cells) + 3;
    const uint64_t most = cfg.n_sequences * held + cfg.max_rows / cfg.tile_cells;
    assert_true(cfg.layers[0].has_tail && !cfg.layers[0].frees && !cfg.layers[1].has_tail && cfg.layers[1].frees);
    assert_int_equal(cfg.layers[0].most_tiles, cfg.capacity_tiles);
    assert_int_equal(cfg.layers[1].most_tiles, most);
    assert_int_equal(cfg.layers[1].window_tiles, most);
    assert_int_equal(cfg.layers[1].device_places, most);
    assert_int_equal(cfg.layers[1].host_places, 0);
    assert_true(cfg.layers[0].window_tiles > most);
    rkvi_config_free(&cfg);

    s.layers[1].resident_cells = cfg.tile_cells; /* a tail was asked for */
    assert_init(&s, &cfg);
    assert_true(cfg.layers[1].has_tail);
    assert_int_equal(cfg.layers[1].window_tiles, 1);
    assert_true(cfg.layers[1].host_places <= most);
    rkvi_config_free(&cfg);

    s.layers[1].resident_cells = RKV_RESIDENT_AUTO;
    s.layers[1].keep_all = 1;
    assert_init(&s, &cfg);
    assert_true(cfg.layers[1].has_tail && !cfg.layers[1].frees);
    assert_int_equal(cfg.layers[1].window_tiles, cfg.layers[0].window_tiles);
    rkvi_config_free(&cfg);
}

/* Many sequences share the capacity's leaves: their rows need few partials each. */
static void test_many_sequences(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    set_up(&s);
    s.params.capacity_cells = 1 << 20;
    s.params.max_rows = 1024;
    s.params.n_sequences = 64;
    s.params.ring_bytes = MIB;
    s.layers[0].resident_cells = s.layers[1].resident_cells = RKV_RESIDENT_NONE;
    assert_init(&s, &cfg);
    const uint64_t launches = cfg.capacity_tiles; /* nearly: a launch reads two tile-layers */
    assert_true(cfg.partial_slots - cfg.max_rows - RKVI_RUN_SLOTS <= 40 * 1024);
    assert_true(cfg.max_items_site <= cfg.max_spans + (1024 / 64) * launches + 3 * (1024 / 64 + 64));
    assert_true(cfg.table_bytes < 16 * MIB);
    rkvi_config_free(&cfg);
}

/* A limit above what the device has is held against what it has; what an
 * engine's allocator gives is the engine's to know. */
static void *no_memory(void *user, uint64_t size_bytes)
{
    (void)user, (void)size_bytes;
    return NULL;
}

static void nothing_to_free(void *user, void *ptr, uint64_t size_bytes)
{
    (void)user, (void)ptr, (void)size_bytes;
}

static void test_limit_above_memory(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    rkv_status fit;
    set_up(&s);
    s.layers[0].resident_cells = s.layers[1].resident_cells = RKV_RESIDENT_ALL;
    s.machine.device_memory_bytes = 4 * MIB;
    s.params.device_limit_bytes = GIB;
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(fit, RKV_E_DEVICE_LIMIT);
    assert_non_null(strstr(rkvi_error_text(), "free device memory 4194304 does not hold"));
    rkvi_config_free(&cfg);
    s.machine.device_memory_bytes = 4096; /* not even the tables */
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(fit, RKV_E_DEVICE_LIMIT);
    assert_non_null(strstr(rkvi_error_text(), "4096 does not hold these layers at any capacity_cells: "));
    s.machine.device_memory_bytes = cfg.device_bytes;
    rkvi_config_free(&cfg);
    assert_init(&s, &cfg);
    assert_int_equal(cfg.device_limit_bytes, cfg.device_bytes);
    rkvi_config_free(&cfg);
    s.machine.device_memory_bytes = 4 * MIB;
    s.params.device_allocator = (rkv_allocator){.alloc = no_memory, .free = nothing_to_free};
    assert_init(&s, &cfg);
    assert_int_equal(cfg.device_limit_bytes, GIB);
    rkvi_config_free(&cfg);
}

static void test_rope_is_copied(void **state)
{
    (void)state;
    float frequencies[2] = {1, 0.5f};
    setup s;
    rkvi_config cfg;
    rkv_status fit;
    set_up(&s);
    s.params.rope = (rkv_rope_params){frequencies, 2, 1};
    assert_init(&s, &cfg);
    frequencies[1] = NAN;
    assert_true(cfg.ropes[0].frequencies[1] == 0.5f);
    assert_int_equal(cfg.ropes[0].n, 2);
    rkvi_config_free(&cfg);
    assert_int_equal(init(&s, &cfg, &fit), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkvi_error_text(), "rope.frequencies[1]"));
}

/* Room for turned q: where positions can be shifted, for sites that turn theirs. */
static void test_turned_room(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    set_up(&s);
    assert_init(&s, &cfg);
    assert_int_equal(cfg.max_turns, 0);
    assert_int_equal(cfg.turned_bytes, 0);
    const uint64_t tables = cfg.table_bytes;
    rkvi_config_free(&cfg);
    s.params.rope = (rkv_rope_params){some_frequencies, 4, 0};
    s.params.max_rows = 512;
    assert_init(&s, &cfg);
    uint64_t row = 0;
    for (uint32_t i = 0; i < cfg.n_sites; i++) {
        const uint64_t n = (uint64_t)cfg.sites[i].n_q_heads * cfg.layers[cfg.sites[i].kv_layer].geom.dk;
        row = n > row ? n : row;
    }
    assert_int_equal(cfg.max_turns, 8);
    assert_int_equal(cfg.turned_bytes, 8 * 512 * row * sizeof(float));
    assert_true(cfg.table_bytes > tables);
    rkvi_config_free(&cfg);
    for (uint32_t l = 0; l < s.params.n_kv_layers; l++)
        s.layers[l].k_form = RKV_K_PLAIN;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.max_turns, 8);
    assert_int_equal(cfg.turned_bytes, 0);
    rkvi_config_free(&cfg);
    s.layers[0].k_form = RKV_K_OTHER;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.max_turns, 0);
    rkvi_config_free(&cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_unlike_layers),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_ring_rule),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_auto_masked),
        cmocka_unit_test(test_many_sequences),
        cmocka_unit_test(test_limit_above_memory),
        cmocka_unit_test(test_rope_is_copied),
        cmocka_unit_test(test_turned_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
