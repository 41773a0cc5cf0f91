/* step_park.c: sequence calls between steps that copy. */
#include "step_types.h"

#include "cache_park.h"

static rkv_status park(rkv_cache *h, uint32_t sequence)
{
    bool waited = false;
    rkv_status s = rkvi_cache_park(&h->cache, sequence, &waited);
    h->stats.host_waits += waited;
    if (s != RKV_OK)
        return s;
    s = rkvi_step_leave(h, UINT32_MAX);
    if (s == RKV_OK) {
        rkvi_cache_parked(&h->cache, sequence);
        return RKV_OK;
    }
    s = rkvi_step_failed(h, s);
    rkvi_cache_unmove(&h->cache);
    return s;
}

rkv_status rkvi_handle_park(rkv_cache *h, uint32_t sequence)
{
    h->cache.layout++;
    return rkvi_step_seen_status(h, park(h, sequence));
}

static rkv_status fetch(rkv_cache *h, uint32_t sequence)
{
    rkv_status s = rkvi_cache_fetch(&h->cache, sequence);
    if (s != RKV_OK)
        return s;
    s = rkvi_step_bring_back(h);
    if (s == RKV_OK) {
        rkvi_cache_fetched(&h->cache, sequence, h->in.last);
        return RKV_OK;
    }
    s = rkvi_step_failed(h, s);
    h->cache.fetched_in = h->in.last; /* of what went out before it failed (promote, step_copy.c) */
    rkvi_cache_unmove(&h->cache);
    return s;
}

rkv_status rkvi_handle_fetch(rkv_cache *h, uint32_t sequence)
{
    h->cache.layout++;
    return rkvi_step_seen_status(h, fetch(h, sequence));
}
