/* SPDX-License-Identifier: MIT
 *
 * Parameters made effective: what is refused and with which sentence, defaults,
 * sizes, the windows and the ring that the library chooses.
 */
#include "config.h"
#include "config_copy.h"
#include "diag.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* Two KV layers; the second one is read by two sites. */
typedef struct setup {
    rkv_kv_layer_params layers[2];
    rkv_site_params sites[3];
    rkv_cache_params params;
    rkvi_machine machine;
} setup;

static void set_up(setup *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 2; i++)
        s->layers[i] = (rkv_kv_layer_params){.struct_size = sizeof s->layers[i],
                                             .n_kv_heads = 2,
                                             .head_dim_k = 64,
                                             .resident_cells = RKV_RESIDENT_NONE};
    for (uint32_t i = 0; i < 3; i++)
        s->sites[i] =
            (rkv_site_params){.struct_size = sizeof s->sites[i], .kv_layer = i > 0, .n_q_heads = 4};
    s->params = (rkv_cache_params){.struct_size = sizeof s->params,
                                   .device = RKV_DEVICE_HOST,
                                   .kv_layers = s->layers,
                                   .sites = s->sites,
                                   .n_kv_layers = 2,
                                   .n_sites = 3,
                                   .capacity_cells = 16384};
    s->machine =
        (rkvi_machine){.device_memory_bytes = 8 * GIB, .host_memory_bytes = 64 * GIB, .is_host = false};
}

static rkv_status init(const setup *s, rkvi_config *cfg, rkv_status *fit)
{
    *fit = 12345;
    return rkvi_config_init(cfg, &s->params, &s->machine, fit);
}

static void assert_init(const setup *s, rkvi_config *cfg)
{
    rkv_status fit;
    if (init(s, cfg, &fit) != RKV_OK || fit != RKV_OK)
        fail_msg("refused: %s", rkvi_error_text());
}

/* ------------------------------------------------------------------ refusals */

typedef struct mistake {
    void (*make)(setup *s);
    rkv_status status;
    const char *word; /* in the sentence */
} mistake;

#define MAKE(name, statement) \
    static void name(setup *s) \
    { \
        statement; \
    }
MAKE(capacity_0, s->params.capacity_cells = 0)
MAKE(capacity_wrapped, s->params.capacity_cells = (uint64_t)-1)
MAKE(capacity_huge, s->params.capacity_cells = (uint64_t)1 << 61)
MAKE(capacity_numbers, s->params.capacity_cells = (uint64_t)1 << 39)
MAKE(no_layers, s->params.n_kv_layers = 0)
MAKE(layers_wrapped, s->params.n_kv_layers = (uint32_t)-1)
MAKE(layers_null, s->params.kv_layers = NULL)
MAKE(no_sites, s->params.n_sites = 0)
MAKE(sites_null, s->params.sites = NULL)
MAKE(sites_wrapped, s->params.n_sites = (uint32_t)-2)
MAKE(sequences_wrapped, s->params.n_sequences = (uint32_t)-1)
MAKE(rows_wrapped, s->params.max_rows = (uint32_t)-1)
MAKE(tile_odd, s->params.tile_cells = 48)
MAKE(tile_small, s->params.tile_cells = 8)
MAKE(tile_large, s->params.tile_cells = 8192)
MAKE(draft_wrapped, s->params.draft_rows = (uint32_t)-2)
MAKE(ahead_large, s->params.steps_ahead = 1000)
MAKE(mode_unknown, s->params.mode = 2)
MAKE(flags_unknown, s->params.flags = 1u << 20)
MAKE(numa_negative, s->params.numa = -2)
MAKE(ring_wrapped, s->params.ring_bytes = (uint64_t)-4096)
MAKE(ring_slots, (s->params.ring_bytes = (uint64_t)1 << 50, s->layers[0].resident_cells = RKV_RESIDENT_NONE))
MAKE(copy_wrapped, s->params.copy_bytes = (uint64_t)-1)
MAKE(device_limit_wrapped, s->params.device_limit_bytes = (uint64_t)-1)
MAKE(host_limit_wrapped, s->params.host_limit_bytes = (uint64_t)-1)
MAKE(step_wrapped, s->params.step_ns = (uint64_t)-5)
MAKE(link_wrapped, s->params.link_bytes_per_s = (uint64_t)-5)
MAKE(half_allocator, s->params.device_allocator.alloc = (void *(*)(void *, uint64_t))(uintptr_t)1)
MAKE(rope_missing, s->params.rope.n_frequencies = 32)
static const float some_frequencies[40];
MAKE(rope_wide, s->layers[1].rope = ((rkv_rope_params){some_frequencies, 40, 0}); s->layers[1].head_dim_k = 64)
MAKE(rope_pairing, s->layers[1].rope = ((rkv_rope_params){some_frequencies, 4, 2}))
MAKE(k_form_unknown, s->layers[1].k_form = 3)
MAKE(turns_many, s->params.max_turns = 256)
MAKE(segments_many, s->params.extra_segments = (1u << 20) + 1)
MAKE(host_reserved, s->params.host.reserved = 1)
MAKE(host_memory_wrapped, s->params.host.memory_bytes = (uint64_t)-1)
MAKE(host_threads, s->params.host.n_threads = (uint32_t)-1)
MAKE(size_0, s->params.struct_size = 0)
MAKE(size_absurd, s->params.struct_size = (uint32_t)-1)
MAKE(heads_0, s->layers[1].n_kv_heads = 0)
MAKE(heads_wrapped, s->layers[1].n_kv_heads = (uint32_t)-1)
MAKE(dim_0, s->layers[1].head_dim_k = 0)
MAKE(dim_odd, s->layers[1].head_dim_k = 60)
MAKE(dim_large, s->layers[1].head_dim_v = 2048)
MAKE(dim_80_q8, (s->layers[1].head_dim_k = 80, s->layers[1].type_k = RKV_TYPE_Q8_0))
MAKE(dim_80_q4_v, (s->layers[1].head_dim_v = 80, s->layers[1].type_v = RKV_TYPE_Q4_0))
MAKE(type_f32, s->layers[0].type_k = RKV_TYPE_F32)
MAKE(type_unknown, s->layers[0].type_v = 77)
MAKE(v_prefix, s->layers[0].v_source = RKV_V_K_PREFIX)
MAKE(v_none, s->layers[0].v_source = RKV_V_NONE)
MAKE(k_scale_negative, s->layers[0].k_scale = -1)
MAKE(v_scale_nan, s->layers[0].v_scale = NAN)
MAKE(v_scale_inf, s->layers[0].v_scale = INFINITY)
MAKE(resident_wrapped, s->layers[1].resident_cells = (uint64_t)-256)
MAKE(keep_all_2, s->layers[1].keep_all = 2)
MAKE(strides_differ, s->layers[1].struct_size = 40)
MAKE(site_layer, s->sites[2].kv_layer = 2)
MAKE(layer_unused, (s->sites[1].kv_layer = 0, s->sites[2].kv_layer = 0))
MAKE(q_heads_0, s->sites[0].n_q_heads = 0)
MAKE(q_heads_5, s->sites[0].n_q_heads = 5)
MAKE(scale_nan, s->sites[0].scale = NAN)
MAKE(scale_inf, s->sites[0].scale = -INFINITY)
MAKE(softcap_negative, s->sites[0].softcap = -30)
MAKE(softcap_nan, s->sites[0].softcap = NAN)
MAKE(mask_unknown, s->sites[0].mask = 3)
MAKE(sliding_0, s->sites[0].mask = RKV_MASK_SLIDING)
MAKE(chunked_0, s->sites[0].mask = RKV_MASK_CHUNKED)
MAKE(causal_width, s->sites[0].mask_width = 5)
MAKE(width_wrapped, (s->sites[0].mask = RKV_MASK_SLIDING, s->sites[0].mask_width = (uint64_t)-1))
MAKE(gap_wrapped, s->sites[0].gap_ns = (uint64_t)-1)

static const mistake mistakes[] = {
    {capacity_0, RKV_E_ARGUMENT, "capacity_cells is 0"},
    {capacity_wrapped, RKV_E_OVERFLOW, "capacity_cells is 18446744073709551615, above 2^62"},
    {capacity_huge, RKV_E_OVERFLOW, "tiles"},
    {capacity_numbers, RKV_E_OVERFLOW, "can't be numbered"},
    {no_layers, RKV_E_ARGUMENT, "n_kv_layers is 0"},
    {layers_wrapped, RKV_E_ARGUMENT, "n_kv_layers is 4294967295"},
    {layers_null, RKV_E_ARGUMENT, "kv_layers is NULL"},
    {no_sites, RKV_E_ARGUMENT, "n_sites is 0"},
    {sites_null, RKV_E_ARGUMENT, "sites is NULL"},
    {sites_wrapped, RKV_E_ARGUMENT, "n_sites is 4294967294"},
    {sequences_wrapped, RKV_E_ARGUMENT, "n_sequences is 4294967295"},
    {rows_wrapped, RKV_E_ARGUMENT, "max_rows is 4294967295"},
    {tile_odd, RKV_E_ARGUMENT, "power of two"},
    {tile_small, RKV_E_ARGUMENT, "tile_cells is 8"},
    {tile_large, RKV_E_ARGUMENT, "tile_cells is 8192"},
    {draft_wrapped, RKV_E_ARGUMENT, "draft_rows is 4294967294"},
    {ahead_large, RKV_E_ARGUMENT, "steps_ahead is 1000"},
    {mode_unknown, RKV_E_ARGUMENT, "mode is 2"},
    {flags_unknown, RKV_E_ARGUMENT, "flags is 0x100000"},
    {numa_negative, RKV_E_ARGUMENT, "numa is -2"},
    {ring_wrapped, RKV_E_OVERFLOW, "ring_bytes"},
    {copy_wrapped, RKV_E_OVERFLOW, "copy_bytes"},
    {ring_slots, RKV_E_OVERFLOW, "at most 2^30 are numbered"},
    {device_limit_wrapped, RKV_E_OVERFLOW, "device_limit_bytes"},
    {host_limit_wrapped, RKV_E_OVERFLOW, "host_limit_bytes"},
    {step_wrapped, RKV_E_OVERFLOW, "step_ns"},
    {link_wrapped, RKV_E_OVERFLOW, "link_bytes_per_s"},
    {half_allocator, RKV_E_ARGUMENT, "device_allocator"},
    {rope_missing, RKV_E_ARGUMENT, "rope.frequencies is NULL"},
    {rope_wide, RKV_E_ARGUMENT, "kv_layers[1]: 40 rotary frequencies turn 80 elements, but head_dim_k is 64"},
    {rope_pairing, RKV_E_ARGUMENT, "kv_layers[1]: rope.pairing is 2"},
    {k_form_unknown, RKV_E_ARGUMENT, "kv_layers[1]: k_form is 3"},
    {turns_many, RKV_E_ARGUMENT, "max_turns is 256"},
    {segments_many, RKV_E_ARGUMENT, "extra_segments is 1048577"},
    {host_reserved, RKV_E_ARGUMENT, "host.reserved"},
    {host_memory_wrapped, RKV_E_OVERFLOW, "host.memory_bytes"},
    {host_threads, RKV_E_ARGUMENT, "host.n_threads"},
    {size_0, RKV_E_ARGUMENT, "struct_size of rkv_cache_params is 0"},
    {size_absurd, RKV_E_ARGUMENT, "struct_size of rkv_cache_params is 4294967295"},
    {heads_0, RKV_E_ARGUMENT, "kv_layers[1]: n_kv_heads is 0"},
    {heads_wrapped, RKV_E_ARGUMENT, "kv_layers[1]: n_kv_heads is 4294967295"},
    {dim_0, RKV_E_ARGUMENT, "kv_layers[1]: head dim 0 of K"},
    {dim_odd, RKV_E_ARGUMENT, "head dim 60 of K must be a multiple of 8"},
    {dim_large, RKV_E_ARGUMENT, "head dim 2048 of V"},
    {dim_80_q8, RKV_E_UNSUPPORTED, "head dim 80 of K is no multiple of 32 and has no q8_0 form"},
    {dim_80_q4_v, RKV_E_UNSUPPORTED, "head dim 80 of V is no multiple of 32 and has no q4_0 form"},
    {type_f32, RKV_E_UNSUPPORTED, "type 1 is no storage type for K"},
    {type_unknown, RKV_E_UNSUPPORTED, "type 77 is no storage type for V"},
    {v_prefix, RKV_E_UNSUPPORTED, "v_source is 1"},
    {v_none, RKV_E_UNSUPPORTED, "v_source is 2"},
    {k_scale_negative, RKV_E_ARGUMENT, "kv_layers[0]: k_scale is -1"},
    {v_scale_nan, RKV_E_ARGUMENT, "kv_layers[0]: v_scale"},
    {v_scale_inf, RKV_E_ARGUMENT, "kv_layers[0]: v_scale"},
    {resident_wrapped, RKV_E_OVERFLOW, "kv_layers[1]: resident_cells"},
    {keep_all_2, RKV_E_ARGUMENT, "kv_layers[1]: keep_all is 2"},
    {strides_differ, RKV_E_ARGUMENT, "struct_size of kv_layers 1 is 40"},
    {site_layer, RKV_E_ARGUMENT, "sites[2]: kv_layer is 2, but there are 2"},
    {layer_unused, RKV_E_ARGUMENT, "kv_layers[1] has no site"},
    {q_heads_0, RKV_E_ARGUMENT, "sites[0]: n_q_heads is 0"},
    {q_heads_5, RKV_E_ARGUMENT, "sites[0]: n_q_heads is 5"},
    {scale_nan, RKV_E_ARGUMENT, "sites[0]: scale is not finite"},
    {scale_inf, RKV_E_ARGUMENT, "sites[0]: scale is not finite"},
    {softcap_negative, RKV_E_ARGUMENT, "softcap is -30"},
    {softcap_nan, RKV_E_ARGUMENT, "softcap"},
    {mask_unknown, RKV_E_ARGUMENT, "mask is 3"},
    {sliding_0, RKV_E_ARGUMENT, "a sliding mask needs at least 1"},
    {chunked_0, RKV_E_ARGUMENT, "a chunked mask needs at least 1"},
    {causal_width, RKV_E_ARGUMENT, "mask_width is 5"},
    {width_wrapped, RKV_E_OVERFLOW, "sites[0]: mask_width"},
    {gap_wrapped, RKV_E_OVERFLOW, "sites[0]: gap_ns"},
};

static void test_mistakes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const mistake *m = &mistakes[i];
        setup s;
        rkvi_config cfg;
        rkv_status fit;
        set_up(&s);
        m->make(&s);
        rkvi_error_clear();
        const rkv_status status = init(&s, &cfg, &fit);
        if (status != m->status || !strstr(rkvi_error_text(), m->word))
            fail_msg("mistake %zu: %s: %s; wanted %s: ...%s...", i, rkvi_status_name(status),
                     rkvi_error_text(), rkvi_status_name(m->status), m->word);
        assert_null(cfg.layers); /* nothing is left allocated */
        assert_null(cfg.sites);
    }
    printf("%zu wrong parameters, each with its status and its sentence\n",
           sizeof mistakes / sizeof *mistakes);
}

/* ------------------------------------------------------------------- copy-in */

/* A caller that knows more fields than we do. */
typedef struct newer {
    rkv_cache_params params;
    uint64_t unknown[2];
} newer;

static void test_struct_sizes(void **state)
{
    (void)state;
    setup s;
    rkvi_config cfg;
    rkv_status fit;
    set_up(&s);
    newer n = {.params = s.params};
    n.params.struct_size = sizeof n;
    assert_int_equal(rkvi_config_init(&cfg, &n.params, &s.machine, &fit), RKV_OK);
    rkvi_config_free(&cfg);
    n.unknown[1] = 7;
    assert_int_equal(rkvi_config_init(&cfg, &n.params, &s.machine, &fit), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkvi_error_text(), "newer library"));
    /* an older caller's struct ends before max_rows; what follows is not ours */
    s.params.struct_size = offsetof(rkv_cache_params, max_rows);
    s.params.max_rows = 77;
    s.params.mode = 99;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.max_rows, 512);
    assert_int_equal(cfg.mode, RKV_MODE_RING);
    rkvi_config_free(&cfg);
    assert_int_equal(rkvi_config_init(&cfg, NULL, &s.machine, &fit), RKV_E_ARGUMENT);
}

/* The stride is that of element 0; the others may leave their size at 0. */
static void test_array_stride(void **state)
{
    (void)state;
    struct {
        rkv_site_params site;
        uint64_t unknown;
    } sites[3];
    setup s;
    rkvi_config cfg;
    set_up(&s);
    memset(sites, 0, sizeof sites);
    for (int i = 0; i < 3; i++) {
        sites[i].site = s.sites[i];
        sites[i].site.n_q_heads = 2u << i;
        sites[i].site.struct_size = i == 1 ? 0 : sizeof sites[0];
    }
    s.params.sites = &sites[0].site;
    assert_init(&s, &cfg);
    assert_int_equal(cfg.sites[1].n_q_heads, 4);
    assert_int_equal(cfg.sites[2].n_q_heads, 8);
    rkvi_config_free(&cfg);
}

static void test_copy_out(void **state)
{
    (void)state;
    static const rkvi_copy_spec spec = {"x", 16, 8};
    const uint32_t from[4] = {16, 1, 2, 3};
    uint32_t small[4] = {12, 9, 9, 9}, large[6] = {24, 9, 9, 9, 9, 9}, tiny[1] = {4};
    assert_int_equal(rkvi_copy_out_check(&spec, small), RKV_OK);
    rkvi_copy_out(&spec, from, small);
    rkvi_copy_out(&spec, from, large);
    const uint32_t want_small[4] = {12, 1, 2, 9}, want_large[6] = {24, 1, 2, 3, 9, 9};
    assert_memory_equal(small, want_small, sizeof small);
    assert_memory_equal(large, want_large, sizeof large);
    assert_int_equal(rkvi_copy_out_check(&spec, tiny), RKV_E_ARGUMENT);
    assert_int_equal(rkvi_copy_out_check(&spec, NULL), RKV_E_ARGUMENT);
}

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
    s.params.device_limit_bytes = 100 * MIB; /* never more than a quarter */
    assert_int_equal(init(&s, &cfg, &fit), RKV_OK);
    assert_int_equal(cfg.ring_bytes, 25 * MIB);
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
        cmocka_unit_test(test_turned_room),
        cmocka_unit_test(test_mistakes),       cmocka_unit_test(test_struct_sizes),
        cmocka_unit_test(test_array_stride),   cmocka_unit_test(test_copy_out),
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_windows),
        cmocka_unit_test(test_sums),           cmocka_unit_test(test_unlike_layers),
        cmocka_unit_test(test_large),          cmocka_unit_test(test_ring),
        cmocka_unit_test(test_ring_rule),      cmocka_unit_test(test_auto),
        cmocka_unit_test(test_auto_masked),
        cmocka_unit_test(test_rope_is_copied), cmocka_unit_test(test_many_sequences),
        cmocka_unit_test(test_limit_above_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
