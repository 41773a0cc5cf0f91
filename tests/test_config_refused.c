/* SPDX-License-Identifier: MIT
 *
 * Parameters copied in: what is refused, and with which sentence; structs of other
 * sizes.
 */
#include "config_setup.h"

#include <math.h>

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
MAKE(more_active, s->params.active_sequences = 2)
MAKE(rows_wrapped, s->params.max_rows = (uint32_t)-1)
MAKE(tile_odd, s->params.tile_cells = 48)
MAKE(tile_small, s->params.tile_cells = 8)
MAKE(tile_large, s->params.tile_cells = 8192)
MAKE(draft_wrapped, s->params.draft_rows = (uint32_t)-2)
MAKE(ahead_large, s->params.steps_ahead = 1000)
MAKE(mode_unknown, s->params.mode = 2)
MAKE(flags_unknown, s->params.flags = 1u << 20)
MAKE(graphs_op_level, (s->params.flags = RKV_FLAG_GRAPHS, s->params.mode = RKV_MODE_OP_LEVEL))
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
MAKE(rope_wide, s->layers[1].rope = ((rkv_rope_params){some_frequencies, 40, 0}); s->layers[1].head_dim_k = 64)
MAKE(rope_pairing, s->layers[1].rope = ((rkv_rope_params){some_frequencies, 4, 2}))
MAKE(k_form_unknown, s->layers[1].k_form = 3)
MAKE(turns_many, s->params.max_turns = 256)
MAKE(segments_many, s->params.extra_segments = (1u << 20) + 1)
MAKE(reserved, s->params.reserved = 3)
MAKE(cpu_threads_many, s->params.cpu_threads = 1025)
MAKE(cpu_free_alone, (s->params.cpu_threads = 2, s->params.cpu_free_bytes = 4096))
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
    {more_active, RKV_E_ARGUMENT, "active_sequences is 2; it must be from 1 to 1"},
    {rows_wrapped, RKV_E_ARGUMENT, "max_rows is 4294967295"},
    {tile_odd, RKV_E_ARGUMENT, "power of two"},
    {tile_small, RKV_E_ARGUMENT, "tile_cells is 8"},
    {tile_large, RKV_E_ARGUMENT, "tile_cells is 8192"},
    {draft_wrapped, RKV_E_ARGUMENT, "draft_rows is 4294967294"},
    {ahead_large, RKV_E_ARGUMENT, "steps_ahead is 1000"},
    {mode_unknown, RKV_E_ARGUMENT, "mode is 2"},
    {flags_unknown, RKV_E_ARGUMENT, "flags is 0x100000"},
    {graphs_op_level, RKV_E_UNSUPPORTED, "RKV_FLAG_GRAPHS goes with RKV_MODE_RING alone"},
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
    {reserved, RKV_E_ARGUMENT, "reserved is 3; it must be 0"},
    {cpu_threads_many, RKV_E_ARGUMENT, "cpu_threads is 1025"},
    {cpu_free_alone, RKV_E_ARGUMENT, "cpu_free_bytes is given, and no cpu_share"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_struct_sizes),
        cmocka_unit_test(test_array_stride),
        cmocka_unit_test(test_copy_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
