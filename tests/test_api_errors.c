/* SPDX-License-Identifier: MIT
 *
 * Wrong arguments and calls at the wrong time: each gives its own status and a
 * sentence that names what was wrong, and the cache works on, unchanged: every
 * mistake is made in the midst of a step, whose outputs are then compared, bit
 * by bit, with those of a cache that saw none.
 *
 * Mistakes in parameters are in test_config_refused.c.
 */
#include "api_world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct mistake {
    world_stage stage;
    rkv_status (*make)(world *w);
    rkv_status status;
    const char *word; /* in the sentence */
} mistake;

/* Statements that end in the call's status. */
#define MAKE(name, ...) \
    static rkv_status name(world *w) \
    { \
        (void)w; \
        __VA_ARGS__ \
    }

/* ------------------------------------------------------------------- batches */

/* The step's batch, in which `change` was made. */
#define BEGIN(name, change) \
    MAKE(name, rkv_batch_entry e[4]; memcpy(e, w->entries, sizeof w->entries); e[3] = e[2]; \
         rkv_batch b = w->batch; b.entries = e; change; return rkv_step_begin(w->cache, &b);)

static const int64_t negative[3] = {-1, 0, 1}, repeated[3] = {1000, 1001, 1001}, old[3] = {0, 1, 2},
                     beyond[3] = {1000, 1001, (int64_t)1 << 62};
static const rkv_pos_range reversed[3] = {{0, 5}, {6, 5}, {0, 5}}, below[3] = {{-1, 5}, {0, 5}, {0, 5}},
                           above[3] = {{0, 5}, {0, 5}, {0, INT64_MAX}};
static const uint64_t tree[3];

MAKE(begin_null, return rkv_step_begin(w->cache, NULL);)
MAKE(begin_no_cache, return rkv_step_begin(NULL, &w->batch);)
BEGIN(begin_size_0, b.struct_size = 0)
BEGIN(begin_entries_null, b.entries = NULL)
BEGIN(begin_empty, b.n_entries = 0)
BEGIN(begin_too_many, b.n_entries = 4)
BEGIN(begin_wrapped, b.n_entries = (uint32_t)-1)
BEGIN(begin_sequence_3, e[1].sequence = 3)
BEGIN(begin_sequence_wrapped, e[1].sequence = (uint32_t)-1)
BEGIN(begin_twice, e[2].sequence = 0)
BEGIN(begin_no_rows, e[0].n_rows = e[0].n_new_cells = 0)
BEGIN(begin_some_new, e[1].n_new_cells = 7)
BEGIN(begin_rows, e[1].n_rows = e[1].n_new_cells = WORLD_MAX_ROWS + 1)
BEGIN(begin_rows_sum, e[1].n_rows = e[1].n_new_cells = WORLD_MAX_ROWS - 3)
BEGIN(begin_rows_wrapped, e[1].n_rows = e[1].n_new_cells = (uint32_t)-4)
BEGIN(begin_capacity, e[1].n_rows = e[1].n_new_cells = WORLD_CAPACITY + 40)
BEGIN(begin_regime, e[0].regime = 3)
BEGIN(begin_decode_20, e[1].regime = RKV_REGIME_DECODE)
BEGIN(begin_reserved, e[0].reserved = 1)
BEGIN(begin_tree, e[0].tree_mask = tree)
BEGIN(begin_negative, e[0].positions = negative)
BEGIN(begin_repeated, e[0].positions = repeated)
BEGIN(begin_beyond, e[0].positions = beyond)
BEGIN(begin_reversed, e[0].visible = reversed)
BEGIN(begin_below, e[0].visible = below)
BEGIN(begin_above, e[0].visible = above)
BEGIN(begin_old, e[0].positions = old)
BEGIN(begin_query, (e[2].n_rows = 250, e[2].n_new_cells = 0))

MAKE(check_null, return rkv_cache_check(w->cache, NULL, 2);)
MAKE(check_no_cache, return rkv_cache_check(NULL, &w->batch, 1);)
MAKE(check_twice, rkv_batch_entry e[2] = {w->entries[0], w->entries[0]};
     const rkv_batch b = {sizeof b, 2, e}; return rkv_cache_check(w->cache, &b, 1);)
MAKE(check_open, return rkv_cache_check(w->cache, &w->batch, 1);)
/* each would succeed alone; together they exceed the capacity */
MAKE(check_capacity, rkv_batch_entry e = w->entries[1]; e.n_rows = e.n_new_cells = 64; rkv_batch b[5];
     for (int i = 0; i < 5; i++) b[i] = (rkv_batch){sizeof *b, 1, &e};
     return rkv_cache_check(w->cache, b, 5);)

/* ------------------------------------------------------------------- tensors */

#define ATTEND(name, the_site, change) \
    MAKE(name, rkv_attend_params p = world_attend(w, the_site); change; \
         return rkv_step_attend(w->cache, &p, NULL);)

MAKE(attend_null, return rkv_step_attend(w->cache, NULL, NULL);)
MAKE(attend_no_cache, const rkv_attend_params p = world_attend(w, 0);
     return rkv_step_attend(NULL, &p, NULL);)
ATTEND(attend_size, 0, p.struct_size = 4)
ATTEND(attend_0, 0, (void)p)
ATTEND(attend_1, 1, (void)p)
ATTEND(attend_2, 2, (void)p)
ATTEND(attend_site_3, 0, p.site = 3)
ATTEND(attend_site_wrapped, 0, p.site = (uint32_t)-1)
ATTEND(attend_q_null, 0, p.q.data = NULL)
ATTEND(attend_q_type, 0, p.q.type = RKV_TYPE_Q8_0)
ATTEND(attend_q_unknown, 0, p.q.type = 99)
ATTEND(attend_q_negative, 0, p.q.row_stride = -256)
ATTEND(attend_q_far, 0, p.q.row_stride = INT64_MAX)
ATTEND(attend_q_heads_far, 0, p.q.head_stride = (int64_t)1 << 61)
ATTEND(attend_q_odd, 0, p.q.data = (char *)p.q.data + 1)
ATTEND(attend_q_reserved, 0, p.q.reserved = 5)
ATTEND(attend_k_null, 0, p.k.data = NULL)
ATTEND(attend_v_null, 0, p.v.data = NULL)
ATTEND(attend_v_negative, 0, p.v.head_stride = -1)
ATTEND(attend_k_again, 2, p.k = p.v = world_attend(w, 1).k)
ATTEND(attend_out_null, 0, p.out.data = NULL)
ATTEND(attend_out_type, 0, p.out.type = RKV_TYPE_FP8_E4M3)
ATTEND(attend_out_overlap, 0, p.out.row_stride = WORLD_DIM)
ATTEND(attend_lse_negative, 0, p.lse_row_stride = -4)
ATTEND(attend_lse_overlap, 0, p.lse_row_stride = 3)
ATTEND(attend_lse_far, 0, p.lse_row_stride = INT64_MAX)
ATTEND(attend_lse_odd, 0, p.lse = (float *)(void *)((char *)p.lse + 2))
ATTEND(attend_sinks_odd, 0, p.sinks = (const float *)(const void *)((const char *)p.q.data + 2))

/* --------------------------------------------------------------------- order */

MAKE(begin_again, return rkv_step_begin(w->cache, &w->batch);)
MAKE(start_early, return rkv_step_start(w->cache, NULL);)
MAKE(start_no_cache, return rkv_step_start(NULL, NULL);)
MAKE(end_early, return rkv_step_end(w->cache, NULL, NULL);)
MAKE(end_no_cache, return rkv_step_end(NULL, NULL, NULL);)
MAKE(end_next_empty, const rkv_batch b = {sizeof b, 0, w->entries};
     return rkv_step_end(w->cache, &b, NULL);)
MAKE(end_next_old, rkv_batch_entry e = w->entries[1]; const rkv_batch b = {sizeof b, 1, &e};
     const int64_t zero[20] = {0}; e.positions = zero; return rkv_step_end(w->cache, &b, NULL);)
MAKE(abort_early, return rkv_step_abort(w->cache);)
MAKE(abort_no_cache, return rkv_step_abort(NULL);)
MAKE(clear_now, return rkv_cache_clear(w->cache);)
MAKE(clear_no_cache, return rkv_cache_clear(NULL);)

/* ----------------------------------------------------------------- sequences */

MAKE(clear_sequence_now, return rkv_sequence_clear(w->cache, 0);)
MAKE(clear_sequence_3, return rkv_sequence_clear(w->cache, 3);)
MAKE(clear_sequence_wrapped, return rkv_sequence_clear(w->cache, (uint32_t)-1);)
MAKE(remove_now, return rkv_sequence_remove(w->cache, 0, 0, RKV_POS_END);)
MAKE(remove_3, return rkv_sequence_remove(w->cache, 3, 0, RKV_POS_END);)
MAKE(remove_negative, return rkv_sequence_remove(w->cache, 1, -1, RKV_POS_END);)
MAKE(remove_reversed, return rkv_sequence_remove(w->cache, 1, 5, 4);)
MAKE(remove_beyond, return rkv_sequence_remove(w->cache, 1, 5, RKV_POS_END + 1);)
MAKE(keep_now, return rkv_sequence_keep(w->cache, 0);)
MAKE(keep_3, return rkv_sequence_keep(w->cache, 3);)
MAKE(append_from_now, return rkv_sequence_append_from(w->cache, 0, 1, 0, 1);)
MAKE(append_from_3, return rkv_sequence_append_from(w->cache, 3, 1, 0, 1);)
MAKE(append_from_src_3, return rkv_sequence_append_from(w->cache, 1, 3, 0, 1);)
MAKE(append_from_itself, return rkv_sequence_append_from(w->cache, 1, 1, 0, 1);)
MAKE(append_from_reversed, return rkv_sequence_append_from(w->cache, 1, 0, 5, 4);)
MAKE(append_from_behind, return rkv_sequence_append_from(w->cache, 1, 0, 1, 3);)
MAKE(fork_now, return rkv_sequence_fork(w->cache, 0, 1);)
MAKE(fork_3, return rkv_sequence_fork(w->cache, 0, 3);)
MAKE(fork_onto, return rkv_sequence_fork(w->cache, 1, 0);)
MAKE(ranges_3, uint64_t n; return rkv_sequence_ranges(w->cache, 3, NULL, 0, &n);)
MAKE(ranges_null, uint64_t n; return rkv_sequence_ranges(w->cache, 1, NULL, 1, &n);)
MAKE(ranges_room, rkv_pos_range r; uint64_t n; return rkv_sequence_ranges(w->cache, 1, &r, (uint64_t)-1, &n);)
MAKE(ranges_n_null, rkv_pos_range r; return rkv_sequence_ranges(w->cache, 1, &r, 1, NULL);)
MAKE(remove_no_cache, return rkv_sequence_remove(NULL, 0, 0, 1);)

/* ------------------------------------------------------------------- answers */

MAKE(info_null, return rkv_cache_info_get(w->cache, NULL);)
MAKE(info_size, rkv_cache_info i = {.struct_size = 3}; return rkv_cache_info_get(w->cache, &i);)
MAKE(info_no_cache, rkv_cache_info i = {.struct_size = sizeof i};
     return rkv_cache_info_get(NULL, &i);)
MAKE(stats_null, return rkv_cache_stats_get(w->cache, NULL);)
MAKE(stats_no_cache, rkv_cache_stats i = {.struct_size = sizeof i};
     return rkv_cache_stats_get(NULL, &i);)
MAKE(layer_2, rkv_kv_layer_info i = {.struct_size = sizeof i};
     return rkv_kv_layer_info_get(w->cache, 2, &i);)
MAKE(site_9, rkv_site_info i = {.struct_size = sizeof i}; return rkv_site_info_get(w->cache, 9, &i);)
MAKE(site_null, return rkv_site_info_get(w->cache, 0, NULL);)
MAKE(layer_null, return rkv_kv_layer_info_get(w->cache, 0, NULL);)
MAKE(state_3, rkv_sequence_state i = {.struct_size = sizeof i};
     return rkv_sequence_info(w->cache, 3, &i);)
MAKE(state_null, return rkv_sequence_info(w->cache, 0, NULL);)
MAKE(state_no_cache, rkv_sequence_state i = {.struct_size = sizeof i};
     return rkv_sequence_info(NULL, 0, &i);)

static void nothing(void *arg)
{
    (void)arg;
}
MAKE(stream_no_cache, void *s; return rkv_host_stream_create(NULL, &s);)
MAKE(stream_null, return rkv_host_stream_create(w->cache, NULL);)
MAKE(stream_call_null, return rkv_host_stream_call(w->cache, NULL, NULL, NULL);)
MAKE(stream_call_no_cache, return rkv_host_stream_call(NULL, NULL, nothing, NULL);)
MAKE(stream_sync_no_cache, return rkv_host_stream_sync(NULL, NULL);)

/* -------------------------------------------------------------------- create */

/* A second cache beside the one that works; it must not come to be. */
#define CREATE(name, change) \
    MAKE(name, world_params p; world_params_init(&p); rkv_cache *made = w->cache; change; \
         const rkv_status s = rkv_cache_create(&p.params, &made); assert_ptr_equal(made, w->cache); \
         unsetenv("ROLLKV_KERNELS"); unsetenv("ROLLKV_THREADS"); unsetenv("ROLLKV_THREAD_NAMES"); return s;)

MAKE(create_null, rkv_cache *made = w->cache; const rkv_status s = rkv_cache_create(NULL, &made);
     assert_ptr_equal(made, w->cache); return s;)
MAKE(create_nowhere, world_params p; world_params_init(&p); return rkv_cache_create(&p.params, NULL);)
CREATE(create_capacity_0, p.params.capacity_cells = 0)
CREATE(create_capacity_wrapped, p.params.capacity_cells = (uint64_t)-1)
/* a legal number: 70 TB that no machine here holds */
CREATE(create_capacity_4g, p.params.capacity_cells = UINT32_MAX; p.params.ring_bytes = 0;
       p.layers[0].resident_cells = RKV_RESIDENT_ALL;
       p.layers[0].n_kv_heads = p.sites[0].n_q_heads = 64)
CREATE(create_heads, p.sites[1].n_q_heads = 3)
CREATE(create_type, p.layers[0].type_k = 31)
CREATE(create_dim_80, (p.layers[0].head_dim_k = 80, p.layers[0].type_k = RKV_TYPE_Q8_0))
CREATE(create_gpu, p.params.device = 1000)
CREATE(create_device, p.params.device = -7)
CREATE(create_device_limit, p.params.device_limit_bytes = 10000)
CREATE(create_host_limit, p.params.host_limit_bytes = 10000)
CREATE(create_ring, p.params.ring_bytes = 512)
CREATE(create_kernels, setenv("ROLLKV_KERNELS", "fastest", 1))
CREATE(create_threads, (setenv("ROLLKV_THREADS", "-3", 1)))
CREATE(create_names, (setenv("ROLLKV_THREAD_NAMES", "2", 1)))

/* -------------------------------------------------------------------- tables */

#define ARG RKV_E_ARGUMENT
static const mistake mistakes[] = {
    {WORLD_IDLE, begin_null, ARG, "rkv_batch is NULL"},
    {WORLD_IDLE, begin_no_cache, ARG, "cache is NULL"},
    {WORLD_IDLE, begin_size_0, ARG, "struct_size of rkv_batch is 0"},
    {WORLD_IDLE, begin_entries_null, ARG, "rkv_batch_entry is NULL"},
    {WORLD_IDLE, begin_empty, RKV_E_BATCH, "no entries"},
    {WORLD_IDLE, begin_too_many, RKV_E_BATCH, "4 entries, but there are 3 sequences"},
    {WORLD_IDLE, begin_wrapped, RKV_E_BATCH, "4294967295 entries"},
    {WORLD_IDLE, begin_sequence_3, RKV_E_SEQUENCE, "entries[1]: sequence is 3, but there are 3"},
    {WORLD_IDLE, begin_sequence_wrapped, RKV_E_SEQUENCE, "sequence is 4294967295"},
    {WORLD_IDLE, begin_twice, RKV_E_BATCH, "entries[0] and [2] both have sequence 0"},
    {WORLD_IDLE, begin_no_rows, RKV_E_BATCH, "n_rows is 0"},
    {WORLD_IDLE, begin_some_new, RKV_E_BATCH, "n_new_cells is 7; it must be 0 or n_rows, 20"},
    {WORLD_IDLE, begin_rows, RKV_E_BATCH, "more than max_rows, 300"},
    {WORLD_IDLE, begin_rows_sum, RKV_E_BATCH, "more than max_rows, 300"},
    {WORLD_IDLE, begin_rows_wrapped, RKV_E_BATCH, "more than max_rows, 300"},
    {WORLD_IDLE, begin_capacity, RKV_E_CAPACITY, "capacity"},
    {WORLD_IDLE, begin_regime, RKV_E_BATCH, "regime is 3"},
    {WORLD_IDLE, begin_decode_20, RKV_E_BATCH, "20 rows in the decode regime"},
    {WORLD_IDLE, begin_reserved, RKV_E_BATCH, "reserved is 1"},
    {WORLD_IDLE, begin_tree, RKV_E_BATCH, "tree"},
    {WORLD_IDLE, begin_negative, RKV_E_BATCH, "position -1 is not in"},
    {WORLD_IDLE, begin_repeated, RKV_E_BATCH, "row 2: position 1001; it must be at least 1002"},
    {WORLD_IDLE, begin_beyond, RKV_E_BATCH, "position 4611686018427387904 is not in"},
    {WORLD_IDLE, begin_reversed, RKV_E_BATCH, "row 1: visible [6, 5)"},
    {WORLD_IDLE, begin_below, RKV_E_BATCH, "row 0: visible [-1, 5)"},
    {WORLD_IDLE, begin_above, RKV_E_BATCH, "row 2: visible [0, 9223372036854775807)"},
    {WORLD_IDLE, begin_old, RKV_E_BATCH, "increase strictly"},
    {WORLD_IDLE, begin_query, RKV_E_BATCH, "a query of its last 250 rows"},
    {WORLD_BEGUN, begin_again, RKV_E_STATE, "a step is open"},
    {WORLD_SITE_1, begin_again, RKV_E_STATE, "a step is open"},
    {WORLD_ATTENDED, begin_again, RKV_E_STATE, "a step is open"},
    {WORLD_IDLE, check_null, ARG, "batches is NULL"},
    {WORLD_IDLE, check_no_cache, ARG, "cache is NULL"},
    {WORLD_IDLE, check_twice, RKV_E_BATCH, "both have sequence 0"},
    {WORLD_IDLE, check_capacity, RKV_E_CAPACITY, "new tiles"},
    {WORLD_SITE_1, check_open, RKV_E_STATE, "a step is open"},

    {WORLD_IDLE, attend_0, RKV_E_STATE, "no step is open"},
    {WORLD_IDLE, attend_no_cache, ARG, "cache is NULL"},
    {WORLD_BEGUN, attend_null, ARG, "rkv_attend_params is NULL"},
    {WORLD_BEGUN, attend_size, ARG, "struct_size of rkv_attend_params is 4"},
    {WORLD_BEGUN, attend_1, RKV_E_STATE, "site 1 is out of order: site 0 is next"},
    {WORLD_SITE_1, attend_0, RKV_E_STATE, "site 0 is out of order: site 1 is next"},
    {WORLD_SITE_1, attend_2, RKV_E_STATE, "site 2 is out of order: site 1 is next"},
    {WORLD_ATTENDED, attend_0, RKV_E_STATE, "all 3 sites"},
    {WORLD_BEGUN, attend_site_3, ARG, "site is 3, but there are 3 sites"},
    {WORLD_BEGUN, attend_site_wrapped, ARG, "site is 4294967295"},
    {WORLD_BEGUN, attend_q_null, ARG, "q: data is NULL"},
    {WORLD_BEGUN, attend_q_type, ARG, "q: type 5 is no tensor type"},
    {WORLD_BEGUN, attend_q_unknown, ARG, "q: type 99 is no tensor type"},
    {WORLD_BEGUN, attend_q_negative, ARG, "q: row_stride -256"},
    {WORLD_BEGUN, attend_q_far, ARG, "q: row_stride 9223372036854775807 and head_stride 0 reach"},
    {WORLD_BEGUN, attend_q_heads_far, ARG, "q: row_stride 0 and head_stride 2305843009213693952 reach"},
    {WORLD_BEGUN, attend_q_odd, ARG, "q: data is not aligned"},
    {WORLD_BEGUN, attend_q_reserved, ARG, "q: reserved is 5"},
    {WORLD_BEGUN, attend_k_null, ARG, "k: data is NULL"},
    {WORLD_BEGUN, attend_v_null, ARG, "v: data is NULL"},
    {WORLD_BEGUN, attend_v_negative, ARG, "v: row_stride 0, head_stride -1"},
    {WORLD_SITE_2, attend_k_again, ARG, "site 2: k and v must be NULL: site 1"},
    {WORLD_BEGUN, attend_out_null, ARG, "out: data is NULL"},
    {WORLD_BEGUN, attend_out_type, ARG, "out: type 4 is no tensor type"},
    {WORLD_BEGUN, attend_out_overlap, ARG, "out: with row_stride 64"},
    {WORLD_BEGUN, attend_lse_negative, ARG, "lse_row_stride is -4"},
    {WORLD_BEGUN, attend_lse_overlap, ARG, "lse_row_stride is 3"},
    {WORLD_BEGUN, attend_lse_far, ARG, "lse_row_stride 9223372036854775807 reaches"},
    {WORLD_BEGUN, attend_lse_odd, ARG, "lse is not aligned"},
    {WORLD_BEGUN, attend_sinks_odd, ARG, "sinks is not aligned"},

    {WORLD_IDLE, start_early, RKV_E_STATE, "no step is open"},
    {WORLD_IDLE, start_no_cache, ARG, "cache is NULL"},
    {WORLD_IDLE, end_early, RKV_E_STATE, "no step is open"},
    {WORLD_BEGUN, end_early, RKV_E_STATE, "attended 0 of 3 sites"},
    {WORLD_SITE_2, end_early, RKV_E_STATE, "attended 2 of 3 sites"},
    {WORLD_IDLE, end_no_cache, ARG, "cache is NULL"},
    {WORLD_ATTENDED, end_next_empty, RKV_E_BATCH, "no entries"},
    {WORLD_ATTENDED, end_next_old, RKV_E_BATCH, "increase strictly"},
    {WORLD_IDLE, abort_early, RKV_E_STATE, "no step is open"},
    {WORLD_IDLE, abort_no_cache, ARG, "cache is NULL"},
    {WORLD_BEGUN, clear_now, RKV_E_STATE, "a step is open"},
    {WORLD_IDLE, clear_no_cache, ARG, "cache is NULL"},

    {WORLD_SITE_1, clear_sequence_now, RKV_E_STATE, "a step is open"},
    {WORLD_IDLE, clear_sequence_3, RKV_E_SEQUENCE, "sequence is 3"},
    {WORLD_IDLE, clear_sequence_wrapped, RKV_E_SEQUENCE, "sequence is 4294967295"},
    {WORLD_BEGUN, remove_now, RKV_E_STATE, "a step is open"},
    {WORLD_IDLE, remove_3, RKV_E_SEQUENCE, "sequence is 3"},
    {WORLD_IDLE, remove_negative, ARG, "[-1, 4611686018427387904)"},
    {WORLD_IDLE, remove_reversed, ARG, "[5, 4)"},
    {WORLD_IDLE, remove_beyond, ARG, "RKV_POS_END"},
    {WORLD_BEGUN, keep_now, RKV_E_STATE, "step is open"},
    {WORLD_IDLE, keep_3, RKV_E_SEQUENCE, "sequence is 3"},
    {WORLD_BEGUN, append_from_now, RKV_E_STATE, "step is open"},
    {WORLD_IDLE, append_from_3, RKV_E_SEQUENCE, "sequence is 3"},
    {WORLD_IDLE, append_from_src_3, RKV_E_SEQUENCE, "src is 3"},
    {WORLD_IDLE, append_from_itself, ARG, "dst and src are both sequence 1"},
    {WORLD_IDLE, append_from_reversed, ARG, "[5, 4)"},
    {WORLD_IDLE, append_from_behind, ARG, "sequence 0 has cells from 1 on in [1, 3)"},
    {WORLD_BEGUN, fork_now, RKV_E_STATE, "step is open"},
    {WORLD_IDLE, fork_3, RKV_E_SEQUENCE, "src is 3"},
    {WORLD_IDLE, fork_onto, ARG, "a fork goes to an empty one"},
    {WORLD_IDLE, ranges_3, RKV_E_SEQUENCE, "sequence is 3"},
    {WORLD_IDLE, ranges_null, ARG, "out_ranges is NULL"},
    {WORLD_IDLE, ranges_room, ARG, "room is 18446744073709551615, above 2^62"},
    {WORLD_IDLE, ranges_n_null, ARG, "out_n is NULL"},
    {WORLD_IDLE, remove_no_cache, ARG, "cache is NULL"},

    {WORLD_IDLE, info_null, ARG, "rkv_cache_info to fill is NULL"},
    {WORLD_IDLE, info_size, ARG, "struct_size of rkv_cache_info is 3"},
    {WORLD_IDLE, info_no_cache, ARG, "cache is NULL"},
    {WORLD_IDLE, stats_null, ARG, "rkv_cache_stats to fill is NULL"},
    {WORLD_IDLE, stats_no_cache, ARG, "cache is NULL"},
    {WORLD_BEGUN, layer_2, ARG, "kv_layer is 2, but there are 2"},
    {WORLD_BEGUN, site_9, ARG, "site is 9, but there are"},
    {WORLD_IDLE, site_null, ARG, "rkv_site_info to fill is NULL"},
    {WORLD_IDLE, layer_null, ARG, "rkv_kv_layer_info to fill is NULL"},
    {WORLD_IDLE, state_3, RKV_E_SEQUENCE, "sequence is 3"},
    {WORLD_IDLE, state_null, ARG, "rkv_sequence_state to fill is NULL"},
    {WORLD_IDLE, state_no_cache, ARG, "cache is NULL"},
    {WORLD_IDLE, stream_no_cache, ARG, "cache is NULL"},
    {WORLD_IDLE, stream_null, ARG, "out_stream is NULL"},
    {WORLD_IDLE, stream_call_null, ARG, "fn is NULL"},
    {WORLD_IDLE, stream_call_no_cache, ARG, "cache is NULL"},
    {WORLD_IDLE, stream_sync_no_cache, ARG, "cache is NULL"},

    {WORLD_IDLE, create_null, ARG, "rkv_cache_params is NULL"},
    {WORLD_IDLE, create_nowhere, ARG, "out_cache is NULL"},
    {WORLD_IDLE, create_capacity_0, ARG, "capacity_cells is 0"},
    {WORLD_SITE_1, create_capacity_wrapped, RKV_E_OVERFLOW, "capacity_cells is 18446744073709551615"},
    {WORLD_IDLE, create_capacity_4g, RKV_E_DEVICE_LIMIT, "device limit"},
    {WORLD_IDLE, create_heads, ARG, "sites[1]: n_q_heads is 3"},
    {WORLD_IDLE, create_type, RKV_E_UNSUPPORTED, "type 31 is no storage type"},
    {WORLD_IDLE, create_dim_80, RKV_E_UNSUPPORTED, "head dim 80"},
    {WORLD_IDLE, create_gpu, RKV_E_NO_DEVICE, "no device 1000"},
    {WORLD_IDLE, create_device, RKV_E_NO_DEVICE, "no device -7"},
    {WORLD_SITE_1, create_device_limit, RKV_E_DEVICE_LIMIT, "device limit 10000"},
    {WORLD_IDLE, create_host_limit, RKV_E_HOST_LIMIT, "host limit 10000"},
    {WORLD_IDLE, create_ring, RKV_E_RING, "ring_bytes 512 does not hold the largest tile-layer"},
    {WORLD_IDLE, create_kernels, ARG, "ROLLKV_KERNELS is \"fastest\""},
    {WORLD_IDLE, create_threads, ARG, "ROLLKV_THREADS is \"-3\""},
    {WORLD_IDLE, create_names, ARG, "ROLLKV_THREAD_NAMES is \"2\"; it must be a number from 0 to 1"},
};
#define N_MISTAKES (sizeof mistakes / sizeof *mistakes)

static void make_mistake(world *w, world_stage stage, void *arg)
{
    const mistake *m = arg;
    if (stage != m->stage)
        return;
    const rkv_status s = m->make(w);
    if (s != m->status || !strstr(rkv_error_message(), m->word))
        fail_msg("mistake %td: %s: %s; wanted %s: ...%s...", m - mistakes, rkv_status_name(s),
                 rkv_error_message(), rkv_status_name(m->status), m->word);
}

static void test_mistakes(void **state)
{
    (void)state;
    static world w, twin;
    world_create(&w);
    world_create(&twin);
    world_step(&w, NULL, NULL);
    world_step(&twin, NULL, NULL);
    for (size_t i = 0; i < N_MISTAKES; i++) {
        world_step(&w, make_mistake, (void *)(uintptr_t)&mistakes[i]);
        world_step(&twin, NULL, NULL);
        world_compare(&w, &twin);
    }
    rkv_cache_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(rkv_cache_stats_get(w.cache, &stats), RKV_OK);
    assert_true(stats.steps > N_MISTAKES);
    assert_true(stats.streamed_bytes > 0); /* what was compared came from the tail, too */
    printf("%zu mistakes, each with its status and its sentence\n", N_MISTAKES);
    world_destroy(&w);
    world_destroy(&twin);
}

/* Legal, though it looks odd. */
static void test_no_mistakes(void **state)
{
    (void)state;
    static world w;
    world_create(&w);
    world_step(&w, NULL, NULL);
    assert_int_equal(rkv_sequence_remove(w.cache, 1, 5, 5), RKV_OK);
    assert_int_equal(rkv_sequence_remove(w.cache, 1, 100, 200), RKV_OK);
    assert_int_equal(rkv_sequence_remove(w.cache, 0, 0, 3), RKV_OK); /* to its end */
    assert_int_equal(rkv_sequence_clear(w.cache, 2), RKV_OK);
    assert_int_equal(rkv_cache_check(w.cache, NULL, 0), RKV_OK);
    assert_int_equal(rkv_cache_check(w.cache, &w.batch, 1), RKV_OK);
    rkv_cache_info info = {.struct_size = sizeof info};
    assert_int_equal(rkv_cache_info_get(w.cache, &info), RKV_OK);
    assert_non_null(strstr(rkv_build_info(), info.kernels));
    rkv_sequence_state s = {.struct_size = sizeof s};
    assert_int_equal(rkv_sequence_info(w.cache, 0, &s), RKV_OK);
    assert_true(s.n_cells == 0 && s.pos_begin == 0 && s.pos_end == 0);
    assert_int_equal(rkv_sequence_info(w.cache, 1, &s), RKV_OK);
    assert_true(s.n_cells == 20 && s.pos_end == 20);
    assert_int_equal(rkv_host_stream_destroy(w.cache, NULL), RKV_OK);
    rkv_cache_destroy(NULL);
    world_destroy(&w);
}

/* A step without new cells takes no k and v; over gaps it must say where its rows are. */
static void test_queries(void **state)
{
    (void)state;
    static world w;
    world_create(&w);
    world_step(&w, NULL, NULL);
    rkv_batch_entry e = {.struct_size = sizeof e, .sequence = 1, .n_rows = 1};
    const rkv_batch b = {sizeof b, 1, &e};
    assert_int_equal(rkv_step_begin(w.cache, &b), RKV_OK);
    for (uint32_t site = 0; site < WORLD_SITES; site++) {
        rkv_attend_params p = world_attend(&w, site);
        if (p.k.data) {
            assert_int_equal(rkv_step_attend(w.cache, &p, NULL), RKV_E_ARGUMENT);
            assert_non_null(strstr(rkv_error_message(), "the step has no new cells"));
        }
        p.k.data = p.v.data = NULL;
        assert_int_equal(rkv_step_attend(w.cache, &p, NULL), RKV_OK);
    }
    assert_int_equal(rkv_step_end(w.cache, NULL, NULL), RKV_OK);
    assert_int_equal(rkv_sequence_remove(w.cache, 1, 5, 9), RKV_OK);
    assert_int_equal(rkv_step_begin(w.cache, &b), RKV_E_BATCH);
    assert_non_null(strstr(rkv_error_message(), "16 cells at positions [0, 20) leave gaps"));
    const int64_t last = 19;
    e.positions = &last;
    assert_int_equal(rkv_step_begin(w.cache, &b), RKV_OK);
    assert_int_equal(rkv_step_abort(w.cache), RKV_OK);
    world_destroy(&w);
}

/* An abort takes back what the step appended. */
static void abort_step(world *w, world_stage stage, void *arg)
{
    rkv_sequence_state before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    if (stage != WORLD_IDLE)
        return;
    assert_int_equal(rkv_sequence_info(w->cache, 1, &before), RKV_OK);
    assert_int_equal(rkv_step_begin(w->cache, &w->batch), RKV_OK);
    for (uint32_t site = 0; site < *(const uint32_t *)arg; site++) {
        const rkv_attend_params p = world_attend(w, site);
        assert_int_equal(rkv_step_attend(w->cache, &p, NULL), RKV_OK);
    }
    assert_int_equal(rkv_step_abort(w->cache), RKV_OK);
    assert_int_equal(rkv_sequence_info(w->cache, 1, &after), RKV_OK);
    assert_memory_equal(&before, &after, sizeof before);
}

static void test_abort(void **state)
{
    (void)state;
    static world w, twin;
    world_create(&w);
    world_create(&twin);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t n_sites = i % (WORLD_SITES + 1);
        world_step(&w, abort_step, &n_sites);
        world_step(&twin, NULL, NULL);
        for (uint32_t site = 0; site < WORLD_SITES; site++)
            assert_memory_equal(w.sites[site].out, twin.sites[site].out, sizeof w.sites[site].out);
    }
    world_destroy(&w);
    world_destroy(&twin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_no_mistakes),
        cmocka_unit_test(test_queries),
        cmocka_unit_test(test_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
