/* SPDX-License-Identifier: MIT
 *
 * api_sequence.c: exported functions of sequences.
 */
#include "api_internal.h"

static const rkvi_copy_spec state_spec = {"rkv_sequence_state", sizeof(rkv_sequence_state),
                                          offsetof(rkv_sequence_state, n_cells)};

rkv_status rkvi_api_need_sequence(const rkv_cache *cache, const char *name, uint32_t sequence)
{
    const uint32_t n = rkvi_handle_config(cache)->n_sequences;
    if (sequence < n)
        return RKV_OK;
    return rkvi_fail(RKV_E_SEQUENCE, "%s is %u, but there are %u sequences", name, sequence, n);
}

rkv_status rkvi_api_need_range(int64_t from, int64_t to)
{
    if (from >= 0 && from <= to && to <= RKV_POS_END)
        return RKV_OK;
    return rkvi_fail(RKV_E_ARGUMENT,
                     "[%lld, %lld) is no range of positions; from is at least 0 and at most to, which is at "
                     "most RKV_POS_END, 2^62",
                     (long long)from, (long long)to);
}

rkv_status rkvi_api_need_room(const char *name, uint64_t room)
{
    if (room <= RKVI_SIZE_MAX)
        return RKV_OK;
    return rkvi_fail(RKV_E_ARGUMENT, "%s is %llu, above 2^62: a negative number?", name, (unsigned long long)room);
}

rkv_status rkvi_api_need_layer(const rkv_cache *cache, uint32_t kv_layer)
{
    const uint32_t n = rkvi_handle_config(cache)->n_layers;
    if (kv_layer < n)
        return RKV_OK;
    return rkvi_fail(RKV_E_ARGUMENT, "kv_layer is %u, but there are %u KV layers", kv_layer, n);
}

rkv_status rkvi_api_enter_change(const rkv_cache *cache, uint32_t sequence, const char *call)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(call, s);
    s = rkvi_api_need_sequence(cache, "sequence", sequence);
    if (s == RKV_OK)
        s = rkvi_api_need_no_step(cache);
    return s == RKV_OK ? RKV_OK : rkvi_api_leave(cache, call, s);
}

/* -------------------------------------------------------------------- asking */

rkv_status rkv_sequence_info(const rkv_cache *cache, uint32_t sequence, rkv_sequence_state *out_state)
{
    rkv_sequence_state state = {.struct_size = sizeof state};
    rkv_status s = rkvi_copy_out_check(&state_spec, out_state);
    if (s == RKV_OK)
        s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_sequence(cache, "sequence", sequence);
    if (s == RKV_OK) {
        rkvi_handle_sequence(cache, sequence, &state);
        rkvi_copy_out(&state_spec, &state, out_state);
    }
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_sequence_ranges(const rkv_cache *cache, uint32_t sequence, rkv_pos_range *out_ranges, uint64_t room,
                               uint64_t *out_n)
{
    rkv_status s = RKV_OK;
    if (!out_n || (room && !out_ranges))
        s = rkvi_fail(RKV_E_ARGUMENT, "%s is NULL", out_n ? "out_ranges" : "out_n");
    else
        s = rkvi_api_need_room("room", room);
    if (s == RKV_OK)
        s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_sequence(cache, "sequence", sequence);
    if (s == RKV_OK)
        *out_n = rkvi_handle_ranges(cache, sequence, out_ranges, room);
    return rkvi_api_leave(cache, __func__, s);
}

/* ------------------------------------------------------------------- cutting */

rkv_status rkv_sequence_clear(rkv_cache *cache, uint32_t sequence)
{
    const rkv_status s = rkvi_api_enter_change(cache, sequence, __func__);
    if (s != RKV_OK)
        return s;
    rkvi_handle_sequence_remove(cache, sequence, 0, INT64_MAX);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_sequence_keep(rkv_cache *cache, uint32_t sequence)
{
    const rkv_status s = rkvi_api_enter_change(cache, sequence, __func__);
    if (s != RKV_OK)
        return s;
    for (uint32_t i = 0; i < rkvi_handle_config(cache)->n_sequences; i++)
        if (i != sequence)
            rkvi_handle_sequence_remove(cache, i, 0, INT64_MAX);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_sequence_remove(rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to)
{
    rkv_status s = rkvi_api_enter_change(cache, sequence, __func__);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_need_range(from, to);
    if (s == RKV_OK)
        s = rkvi_api_need_accepted(cache, sequence);
    if (s == RKV_OK)
        s = rkvi_handle_can_remove(cache, sequence, from, to);
    if (s == RKV_OK)
        s = rkvi_handle_sequence_remove(cache, sequence, from, to);
    return rkvi_api_leave(cache, __func__, s);
}

/* ------------------------------------------------------------------- sharing */

static rkv_status append_from(rkv_cache *cache, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    rkv_sequence_state d = {.struct_size = sizeof d};
    rkv_status s = rkvi_api_need_range(from, to);
    if (s == RKV_OK && dst == src)
        s = rkvi_fail(RKV_E_ARGUMENT, "dst and src are both sequence %u: its positions would come twice", dst);
    if (s == RKV_OK)
        s = rkvi_api_need_accepted(cache, dst);
    if (s == RKV_OK)
        s = rkvi_api_need_accepted(cache, src);
    if (s != RKV_OK)
        return s;
    const int64_t first = rkvi_handle_first_pos(cache, src, from, to);
    if (first == to)
        return RKV_OK;
    rkvi_handle_sequence(cache, dst, &d);
    if (first < d.pos_end)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "sequence %u ends at position %lld, and sequence %u has cells from %lld on in [%lld, %lld): "
                         "positions increase strictly; remove cells first, or take a later range",
                         dst, (long long)d.pos_end, src, (long long)first, (long long)from, (long long)to);
    return rkvi_handle_sequence_share(cache, dst, src, from, to);
}

rkv_status rkv_sequence_append_from(rkv_cache *cache, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    rkv_status s = rkvi_api_enter_change(cache, dst, __func__);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_need_sequence(cache, "src", src);
    if (s == RKV_OK)
        s = append_from(cache, dst, src, from, to);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_sequence_fork(rkv_cache *cache, uint32_t dst, uint32_t src)
{
    rkv_sequence_state d = {.struct_size = sizeof d};
    rkv_status s = rkvi_api_enter_change(cache, dst, __func__);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_need_sequence(cache, "src", src);
    if (s == RKV_OK) {
        rkvi_handle_sequence(cache, dst, &d);
        if (d.n_cells)
            s = rkvi_fail(RKV_E_ARGUMENT, "sequence %u has %llu cells: a fork goes to an empty one; clear it first",
                          dst, (unsigned long long)d.n_cells);
    }
    if (s == RKV_OK)
        s = append_from(cache, dst, src, 0, RKV_POS_END);
    return rkvi_api_leave(cache, __func__, s);
}
