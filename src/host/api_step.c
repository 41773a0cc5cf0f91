/* SPDX-License-Identifier: MIT
 *
 * api_step.c: exported functions of a step, and the check of batches.
 */
#include "api_internal.h"
#include "trace.h"


#include <stdlib.h>

static void end_now(const void *from, uint32_t sequence, rkvi_api_end *out)
{
    rkv_sequence_state state = {.struct_size = sizeof state};
    rkvi_handle_sequence(from, sequence, &state);
    *out = (rkvi_api_end){state.n_cells, state.pos_begin, state.pos_end, state.n_tree_cells};
}

/* What the sequence ends with once the open step has ended.  The step's cells
 * count once, whether the cache has them in the sequence by now or not. */
static void end_after_step(const void *from, uint32_t sequence, rkvi_api_end *out)
{
    const rkvi_batch *batch = rkvi_step_batch(from);
    end_now(from, sequence, out);
    out->n_tree = 0; /* to be accepted by then: as if all of it were */
    for (uint32_t i = 0; i < batch->n_entries; i++) {
        const rkvi_batch_entry *entry = &batch->entries[i];
        if (entry->sequence == sequence && rkvi_batch_stored(batch, entry)->pos >= out->pos_end)
            rkvi_api_end_add(out, batch, entry);
    }
}

static void end_in_array(const void *from, uint32_t sequence, rkvi_api_end *out)
{
    *out = ((const rkvi_api_end *)from)[sequence];
}

/* Several begins in a row: each batch continues where the ones before it end. */
static rkv_status check_batches(rkv_cache *cache, const rkv_batch *batches, uint32_t n,
                                rkvi_api_end *ends)
{
    const rkvi_api_batch_source source = {rkvi_handle_config(cache), end_in_array, ends};
    rkvi_batch *batch = rkvi_handle_batch(cache);
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < source.cfg->n_sequences; i++)
        end_now(cache, i, &ends[i]);
    rkvi_check_reset(cache);
    for (uint32_t i = 0; i < n && s == RKV_OK; i++) {
        s = rkvi_api_batch(&source, batches, i, batch);
        if (s == RKV_OK)
            s = rkvi_check_add(cache, batch);
        for (uint32_t e = 0; e < batch->n_entries && s == RKV_OK; e++)
            rkvi_api_end_add(&ends[batch->entries[e].sequence], batch, &batch->entries[e]);
    }
    return s;
}

/* The handle's batch and its counts are scratch: for the caller nothing changes. */
rkv_status rkv_cache_check(const rkv_cache *cache, const rkv_batch *batches, uint32_t n_batches)
{
    rkv_cache *h = (rkv_cache *)(uintptr_t)cache;
    rkvi_api_end *ends = NULL;
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK && n_batches && !batches)
        s = rkvi_fail(RKV_E_ARGUMENT, "batches is NULL, but %u are announced", n_batches);
    if (s == RKV_OK) {
        ends = malloc(rkvi_handle_config(cache)->n_sequences * sizeof *ends);
        s = ends ? check_batches(h, batches, n_batches, ends)
                 : rkvi_fail(RKV_E_HOST_MEMORY, "memory for a check of %u sequences was refused",
                             rkvi_handle_config(cache)->n_sequences);
    }
    free(ends);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_step_begin(rkv_cache *cache, const rkv_batch *batch)
{
    RKVI_TRACE("rkv begin");
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK) {
        const rkvi_api_batch_source source = {rkvi_handle_config(cache), end_now, cache};
        s = rkvi_api_batch(&source, batch, 0, rkvi_handle_batch(cache));
    }
    if (s == RKV_OK)
        s = rkvi_step_begin(cache, rkvi_handle_batch(cache));
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_step_start(rkv_cache *cache, void *stream)
{
    RKVI_TRACE("rkv start");
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_step(cache);
    if (s == RKV_OK)
        s = rkvi_step_start(cache, stream);
    return rkvi_api_leave(cache, __func__, s);
}

static rkv_status check_order(const rkv_cache *cache, uint32_t site)
{
    const uint32_t n = rkvi_handle_config(cache)->n_sites;
    const uint32_t next = rkvi_step_captures(cache) ? rkvi_step_capture_site(cache) : rkvi_step_next_site(cache);
    if (site == next)
        return RKV_OK;
    if (next == n)
        return rkvi_fail(RKV_E_STATE, "site %u: all %u sites of the step are done; end it", site, n);
    return rkvi_fail(RKV_E_STATE, "site %u is out of order: site %u is next", site, next);
}

rkv_status rkv_step_attend(rkv_cache *cache, const rkv_attend_params *params, void *stream)
{
    RKVI_TRACE("rkv attend");
    rkvi_attend attend;
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_step(cache);
    if (s == RKV_OK)
        s = rkvi_api_attend(rkvi_handle_config(cache), rkvi_step_batch(cache), params, &attend);
    if (s == RKV_OK)
        s = check_order(cache, attend.site);
    if (s == RKV_OK)
        s = rkvi_step_attend(cache, &attend, stream);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_step_end(rkv_cache *cache, const rkv_batch *next, void *stream)
{
    RKVI_TRACE("rkv end");
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_step(cache);
    const uint32_t n = rkvi_handle_config(cache)->n_sites;
    if (s == RKV_OK && rkvi_step_captures(cache))
        s = rkvi_fail(RKV_E_STATE, "a capture is under way: end it, and replay it, before the step ends");
    if (s == RKV_OK && rkvi_step_next_site(cache) != n)
        s = rkvi_fail(RKV_E_STATE, "the step has attended %u of %u sites; it stays open",
                      rkvi_step_next_site(cache), n);
    if (s == RKV_OK && next) {
        const rkvi_api_batch_source source = {rkvi_handle_config(cache), end_after_step, cache};
        s = rkvi_api_batch(&source, next, 0, rkvi_handle_batch(cache));
    }
    if (s == RKV_OK)
        s = rkvi_step_end(cache, next ? rkvi_handle_batch(cache) : NULL, stream);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_step_abort(rkv_cache *cache)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_step(cache);
    if (s == RKV_OK)
        rkvi_step_abort(cache);
    return rkvi_api_leave(cache, __func__, s);
}
