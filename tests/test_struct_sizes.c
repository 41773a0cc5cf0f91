/* SPDX-License-Identifier: MIT
 *
 * Callers that were compiled against an older or a newer header: each output
 * struct (but rkv_graph, whose size is fixed) with every size, each input struct
 * cut short, and longer with zeros (accepted) or with something (refused).
 */
#include "rollkv/cells.h"
#include "rollkv/host.h"
#include "rollkv/profile.h"
#include "rollkv/state.h"

#include <stdbool.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 64, MORE = 32, BIG = 4096 };
static float rows[DIM], out[DIM];

static rkv_kv_layer_params layer = RKV_KV_LAYER_PARAMS_INIT;
static rkv_site_params site = RKV_SITE_PARAMS_INIT;
static rkv_cache_params params = RKV_CACHE_PARAMS_INIT;
static rkv_batch_entry entry = RKV_BATCH_ENTRY_INIT;
static rkv_batch batch = RKV_BATCH_INIT;
static rkv_attend_params attend = RKV_ATTEND_PARAMS_INIT;
static rkv_cache *cache;

static void set_up(void)
{
    layer.n_kv_heads = 1;
    layer.head_dim_k = DIM;
    site.n_q_heads = 1;
    params.device = RKV_DEVICE_HOST;
    params.kv_layers = &layer;
    params.sites = &site;
    params.n_kv_layers = params.n_sites = 1;
    params.capacity_cells = 512;
    params.max_rows = 4;
    params.host.n_threads = 1;
    params.flags = RKV_FLAG_GRAPHS;
    entry.n_rows = entry.n_new_cells = 1;
    batch.entries = &entry;
    batch.n_entries = 1;
    attend.q = attend.k = attend.v = (rkv_tensor){.data = rows, .type = RKV_TYPE_F32};
    attend.out = (rkv_tensor){.data = out, .type = RKV_TYPE_F32};
    assert_int_equal(rkv_cache_create(&params, &cache), RKV_OK);
    assert_int_equal(rkv_step_begin(cache, &batch), RKV_OK);
    assert_int_equal(rkv_step_attend(cache, &attend, NULL), RKV_OK);
    assert_int_equal(rkv_step_end(cache, NULL, NULL), RKV_OK);
    assert_int_equal(rkv_host_stream_sync(cache, NULL), RKV_OK);
}

/* ------------------------------------------------------------------- outputs */

typedef rkv_status (*get_fn)(void *out);
static rkv_status get_info(void *o) { return rkv_cache_info_get(cache, o); }
static rkv_status get_stats(void *o) { return rkv_cache_stats_get(cache, o); }
static rkv_status get_layer(void *o) { return rkv_kv_layer_info_get(cache, 0, o); }
static rkv_status get_site(void *o) { return rkv_site_info_get(cache, 0, o); }
static rkv_status get_sequence(void *o) { return rkv_sequence_info(cache, 0, o); }
static rkv_status get_estimate(void *o) { return rkv_cache_estimate(&params, o); }
static rkv_status get_device(void *o) { return rkv_device_info_get(RKV_DEVICE_HOST, o); }
static rkv_status get_setting(void *o) { return rkv_setting_at(0, o); }
static rkv_status get_mass(void *o) { return rkv_profile_mass_get(cache, 0, RKV_PROFILE_ALL_HEADS, o); }

static const rkv_advise_params wish = {.struct_size = sizeof wish, .context_cells = 512, .device_bytes = 1 << 20};
static rkv_status get_advice(void *o) { return rkv_profile_advise(cache, &wish, o, NULL); }

static rkv_status get_advice_sum(void *o)
{
    rkv_advice one = {.struct_size = sizeof one};
    return rkv_profile_advise(cache, &wish, &one, o);
}

typedef struct output {
    const char *name;
    get_fn get;
    uint32_t size;
} output;
static const output outputs[] = {
    {"cache_info", get_info, sizeof(rkv_cache_info)},       {"cache_stats", get_stats, sizeof(rkv_cache_stats)},
    {"kv_layer_info", get_layer, sizeof(rkv_kv_layer_info)}, {"site_info", get_site, sizeof(rkv_site_info)},
    {"sequence_state", get_sequence, sizeof(rkv_sequence_state)}, {"estimate", get_estimate, sizeof(rkv_estimate)},
    {"device_info", get_device, sizeof(rkv_device_info)},   {"setting", get_setting, sizeof(rkv_setting)},
    {"profile_mass", get_mass, sizeof(rkv_profile_mass)},   {"advice", get_advice, sizeof(rkv_advice)},
    {"advice_sum", get_advice_sum, sizeof(rkv_advice_sum)},
};

static void test_outputs(void **state)
{
    (void)state;
    static union {
        uint32_t struct_size;
        uint64_t align;
        unsigned char bytes[BIG];
    } whole, part;
    for (uint32_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const output *o = &outputs[i];
        memset(&whole, 0, sizeof whole);
        whole.struct_size = o->size;
        assert_int_equal(o->get(&whole), RKV_OK);
        bool is_known = false; /* from a least size on */
        for (uint32_t size = 4; size <= o->size + MORE; size += 4) {
            memset(&part, 0xa5, sizeof part);
            part.struct_size = size;
            const rkv_status s = o->get(&part);
            if (s != RKV_OK && (is_known || size >= o->size))
                fail_msg("%s of %u bytes: %s", o->name, size, rkv_error_message());
            is_known = s == RKV_OK;
            const uint32_t filled = !is_known ? 4 : size < o->size ? size : o->size;
            /* device_info and estimate tell what is free now, which may change */
            if (o->get != get_device && o->get != get_estimate)
                assert_memory_equal(part.bytes + 4, whole.bytes + 4, filled - 4);
            for (uint32_t b = is_known ? size : 4; b < BIG; b++)
                if (part.bytes[b] != 0xa5)
                    fail_msg("%s of %u bytes: byte %u was written", o->name, size, b);
        }
        for (uint32_t size = 0; size < 4; size++) {
            part.struct_size = size;
            assert_int_equal(o->get(&part), RKV_E_ARGUMENT);
        }
    }
}

/* An array lies at the caller's stride, whatever that is. */
static void test_output_arrays(void **state)
{
    (void)state;
    enum { STRIDE = 20 };
    rkv_kv_layer_params layers[2] = {layer, layer};
    rkv_site_params sites[2] = {site, site};
    rkv_cache_params p = params;
    rkv_cache *two = NULL;
    rkv_advice whole[2] = {{.struct_size = sizeof *whole}};
    union {
        rkv_advice first;
        unsigned char bytes[3 * STRIDE];
    } part;
    sites[1].kv_layer = 1;
    p.kv_layers = layers;
    p.sites = sites;
    p.n_kv_layers = p.n_sites = 2;
    assert_int_equal(rkv_cache_create(&p, &two), RKV_OK);
    assert_int_equal(rkv_profile_advise(two, &wish, whole, NULL), RKV_OK);
    memset(&part, 0xa5, sizeof part);
    part.first.struct_size = STRIDE;
    assert_int_equal(rkv_profile_advise(two, &wish, &part.first, NULL), RKV_OK);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t size;
        memcpy(&size, part.bytes + i * STRIDE, sizeof size);
        assert_int_equal(size, STRIDE);
        assert_memory_equal(part.bytes + i * STRIDE + 4, (unsigned char *)&whole[i] + 4, STRIDE - 4);
    }
    for (uint32_t b = 2 * STRIDE; b < sizeof part.bytes; b++)
        assert_int_equal(part.bytes[b], 0xa5);
    rkv_cache_destroy(two);
}

/* -------------------------------------------------------------------- inputs */

static rkv_status give_params(const void *p)
{
    rkv_estimate e = {.struct_size = sizeof e};
    return rkv_cache_estimate(p, &e);
}

static rkv_status give_layer(const void *p)
{
    rkv_cache_params with = params;
    with.kv_layers = p;
    return give_params(&with);
}

static rkv_status give_site(const void *p)
{
    rkv_cache_params with = params;
    with.sites = p;
    return give_params(&with);
}

static rkv_status give_batch(const void *p) { return rkv_cache_check(cache, p, 1); }

static rkv_status give_entry(const void *p)
{
    rkv_batch with = batch;
    with.entries = p;
    return give_batch(&with);
}

static rkv_status give_attend(const void *p)
{
    assert_int_equal(rkv_step_begin(cache, &batch), RKV_OK);
    const rkv_status s = rkv_step_attend(cache, p, NULL);
    assert_int_equal(rkv_step_abort(cache), RKV_OK);
    assert_int_equal(rkv_host_stream_sync(cache, NULL), RKV_OK);
    return s;
}

/* The cache has no threads: what is well-formed is refused for that alone. */
static rkv_status give_share(const void *p)
{
    const rkv_status s = rkv_cache_set_cpu_share(cache, p);
    return s == RKV_E_UNSUPPORTED ? RKV_OK : s;
}

static rkv_status give_wish(const void *p)
{
    rkv_advice one = {.struct_size = sizeof one};
    return rkv_profile_advise(cache, p, &one, NULL);
}

static rkv_status give_cells(const void *p)
{
    const rkv_pos_range all = {0, RKV_POS_END};
    return rkv_export_cells(cache, 0, &all, p, NULL);
}

static int32_t write_nowhere(void *user, const void *data, uint64_t size_bytes)
{
    (void)user, (void)data, (void)size_bytes;
    return 0;
}

/* In a build without states all are refused, with another sentence. */
static rkv_status give_state(const void *p)
{
    const rkv_status s = rkv_state_save(cache, p);
    return s == RKV_E_UNSUPPORTED ? RKV_OK : s;
}

/* One of another step: what is well-formed is refused for its key alone. */
static rkv_status give_graph(const void *p)
{
    assert_int_equal(rkv_step_begin(cache, &batch), RKV_OK);
    const rkv_status s = rkv_step_replay(cache, p, NULL);
    const bool is_known = s == RKV_E_STATE && strstr(rkv_error_message(), "key");
    assert_int_equal(rkv_step_abort(cache), RKV_OK);
    return is_known ? RKV_OK : s;
}

typedef struct input {
    const char *name;
    rkv_status (*give)(const void *p);
    const void *good;
    uint32_t size, least; /* least: up to the last field that must be given */
} input;

static void test_inputs(void **state)
{
    (void)state;
    const rkv_cpu_share_params share = {.struct_size = sizeof share, .share = 1};
    const rkv_cells cells = {.struct_size = sizeof cells, .n_cells = 1, .k = attend.out, .v = attend.out};
    const rkv_state_params save = {.struct_size = sizeof save, .write = write_nowhere};
    const rkv_graph graph = {.struct_size = sizeof graph, .n_sites = 1, .key = 1};
    const input inputs[] = {
        {"cpu_share_params", give_share, &share, sizeof share, offsetof(rkv_cpu_share_params, site_shares)},
        {"cache_params", give_params, &params, sizeof params, offsetof(rkv_cache_params, n_sequences)},
        {"kv_layer_params", give_layer, &layer, sizeof layer, offsetof(rkv_kv_layer_params, head_dim_v)},
        {"site_params", give_site, &site, sizeof site, offsetof(rkv_site_params, scale)},
        {"batch", give_batch, &batch, sizeof batch, sizeof batch},
        {"batch_entry", give_entry, &entry, sizeof entry, offsetof(rkv_batch_entry, regime)},
        {"advise_params", give_wish, &wish, sizeof wish, offsetof(rkv_advise_params, link_bytes_per_s)},
        {"cells", give_cells, &cells, sizeof cells, sizeof cells},
        {"state_params", give_state, &save, sizeof save, offsetof(rkv_state_params, user)},
        {"graph", give_graph, &graph, sizeof graph, sizeof graph},
        {"attend_params", give_attend, &attend, sizeof attend, offsetof(rkv_attend_params, lse)},
    };
    static union {
        uint32_t struct_size;
        uint64_t align;
        unsigned char bytes[BIG];
    } given;
    for (uint32_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        const input *in = &inputs[i];
        for (uint32_t size = in->least; size <= in->size + MORE; size += 8) {
            memset(&given, size < in->size ? 0xa5 : 0, sizeof given); /* not ours, beyond its size */
            memcpy(&given, in->good, size < in->size ? size : in->size);
            given.struct_size = size;
            const rkv_status s = in->give(&given);
            if (s != RKV_OK)
                fail_msg("%s of %u bytes: %d, %s", in->name, size, s, rkv_error_message());
        }
        given.struct_size = in->size + MORE;
        given.bytes[in->size + MORE - 1] = 1;
        assert_int_equal(in->give(&given), RKV_E_ARGUMENT);
        assert_non_null(strstr(rkv_error_message(), "newer"));
        given.struct_size = 0;
        assert_int_equal(in->give(&given), RKV_E_ARGUMENT);
        given.struct_size = 0xffffffffu;
        assert_int_equal(in->give(&given), RKV_E_ARGUMENT);
    }
}

int main(void)
{
    set_up();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_output_arrays),
        cmocka_unit_test(test_inputs),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rkv_cache_destroy(cache);
    return failed;
}
