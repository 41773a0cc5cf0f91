/* SPDX-License-Identifier: MIT
 *
 * api_shift.c: shifting positions of a sequence.
 */
#include "api_internal.h"

static rkv_status check_range(int64_t from, int64_t to, int64_t delta)
{
    const rkv_status s = rkvi_api_need_range(from, to);
    if (s != RKV_OK)
        return s;
    if (delta <= -RKV_POS_END || delta >= RKV_POS_END)
        return rkvi_fail(RKV_E_ARGUMENT, "delta is %lld; it must lie between -2^62 and 2^62", (long long)delta);
    return RKV_OK;
}

static rkv_status check_shift(const rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to, int64_t delta)
{
    const rkvi_config *cfg = rkvi_handle_config(cache);
    rkv_status s = rkvi_api_need_sequence(cache, "sequence", sequence);
    if (s == RKV_OK)
        s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK)
        s = check_range(from, to, delta);
    if (s == RKV_OK)
        s = rkvi_config_can_shift(cfg);
    if (s == RKV_OK)
        s = rkvi_api_need_accepted(cache, sequence);
    return s;
}

rkv_status rkv_sequence_can_shift(const rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to, int64_t delta)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = check_shift(cache, sequence, from, to, delta);
    if (s == RKV_OK)
        s = rkvi_handle_sequence_can_shift(cache, sequence, from, to, delta);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_sequence_shift(rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to, int64_t delta)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = check_shift(cache, sequence, from, to, delta);
    if (s == RKV_OK)
        s = rkvi_handle_sequence_shift(cache, sequence, from, to, delta);
    return rkvi_api_leave(cache, __func__, s);
}
