/* SPDX-License-Identifier: MIT
 *
 * api_park.c: exported functions that move a sequence between device and host.
 */
#include "api_internal.h"

/* Enters a call that is legal between steps alone. */
static rkv_status enter_idle(const rkv_cache *cache, uint32_t sequence, const char *call)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(call, s);
    const uint32_t n = rkvi_handle_config(cache)->n_sequences;
    if (sequence >= n)
        s = rkvi_fail(RKV_E_SEQUENCE, "sequence is %u, but there are %u sequences", sequence, n);
    if (s == RKV_OK)
        s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK) /* accept works on the device */
        s = rkvi_api_need_accepted(cache, sequence);
    return s == RKV_OK ? RKV_OK : rkvi_api_leave(cache, call, s);
}

rkv_status rkv_sequence_park(rkv_cache *cache, uint32_t sequence)
{
    const rkv_status s = enter_idle(cache, sequence, __func__);
    return s == RKV_OK ? rkvi_api_leave(cache, __func__, rkvi_handle_park(cache, sequence)) : s;
}

rkv_status rkv_sequence_fetch(rkv_cache *cache, uint32_t sequence)
{
    const rkv_status s = enter_idle(cache, sequence, __func__);
    return s == RKV_OK ? rkvi_api_leave(cache, __func__, rkvi_handle_fetch(cache, sequence)) : s;
}
