/* SPDX-License-Identifier: MIT
 *
 * api_state.c: exported functions that save and load, by callbacks.
 */
#include "api_internal.h"
#include "state_hash.h"
#include "step_state.h"

static const rkvi_copy_spec params_spec = {"rkv_state_params", sizeof(rkv_state_params),
                                           offsetof(rkv_state_params, size_bytes)};

static rkv_status check_sequence(const rkv_cache *cache, uint32_t sequence)
{
    const uint32_t n = rkvi_handle_config(cache)->n_sequences;
    if (sequence < n || sequence == RKV_STATE_ALL)
        return RKV_OK;
    return rkvi_fail(RKV_E_SEQUENCE,
                     "sequence is %u, but there are %u sequences; RKV_STATE_ALL means all", sequence,
                     n);
}

static rkv_status check_now(const rkv_cache *cache, uint32_t sequence)
{
    rkv_status s = rkvi_state_hash_built();
    if (s == RKV_OK)
        s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK)
        s = check_sequence(cache, sequence);
    for (uint32_t i = 0; i < rkvi_handle_config(cache)->n_sequences && s == RKV_OK; i++)
        if (i == sequence || sequence == RKV_STATE_ALL)
            s = rkvi_api_need_accepted(cache, i);
    return s;
}

rkv_status rkv_state_size(rkv_cache *cache, uint32_t sequence, uint64_t *out_bytes)
{
    uint64_t bytes = 0;
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = out_bytes ? check_now(cache, sequence) : rkvi_fail(RKV_E_ARGUMENT, "out_bytes is NULL");
    if (s == RKV_OK)
        s = rkvi_state_size(cache, sequence, &bytes);
    if (s == RKV_OK)
        *out_bytes = bytes;
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkvi_api_state_params(const rkv_state_params *params, rkv_state_params *out)
{
    const rkv_status s = rkvi_copy_in(&params_spec, params, out);
    if (s == RKV_OK && out->size_bytes > RKVI_SIZE_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "size_bytes is %llu, above 2^62: a negative number?",
                         (unsigned long long)out->size_bytes);
    return s;
}

rkv_status rkvi_api_state_run(rkv_cache *cache, const rkv_state_params *p, bool is_load)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return s;
    s = check_now(cache, p->sequence);
    if (s == RKV_OK)
        s = is_load ? rkvi_state_load(cache, p) : rkvi_state_save(cache, p);
    rkvi_handle_unlock(cache);
    return s;
}

static rkv_status run(rkv_cache *cache, const char *call, const rkv_state_params *params, bool is_load)
{
    rkv_state_params p;
    rkv_status s = rkvi_api_state_params(params, &p);
    if (s == RKV_OK && is_load && (!p.read || p.write))
        s = rkvi_fail(RKV_E_ARGUMENT, p.write ? "write is set, but a load only reads" : "read is NULL");
    if (s == RKV_OK && !is_load && (!p.write || p.read))
        s = rkvi_fail(RKV_E_ARGUMENT, p.read ? "read is set, but a save only writes" : "write is NULL");
    if (s == RKV_OK && !is_load && p.size_bytes)
        s = rkvi_fail(RKV_E_ARGUMENT, "size_bytes is %llu; a save works it out itself: leave it 0",
                      (unsigned long long)p.size_bytes);
    if (s == RKV_OK)
        s = rkvi_api_state_run(cache, &p, is_load);
    return rkvi_api_told(call, s);
}

rkv_status rkv_state_save(rkv_cache *cache, const rkv_state_params *params)
{
    return run(cache, __func__, params, false);
}

rkv_status rkv_state_load(rkv_cache *cache, const rkv_state_params *params)
{
    return run(cache, __func__, params, true);
}
