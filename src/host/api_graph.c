/* SPDX-License-Identifier: MIT
 *
 * api_graph.c: exported functions of captures and replays.
 */
#include "api_internal.h"

#define U(x) ((unsigned long long)(x))

static const rkvi_copy_spec graph_spec = {"rkv_graph", sizeof(rkv_graph), sizeof(rkv_graph)};

static rkv_status need_graphs(const rkv_cache *cache)
{
    if (rkvi_handle_config(cache)->flags & RKV_FLAG_GRAPHS)
        return RKV_OK;
    return rkvi_fail(RKV_E_UNSUPPORTED, "the cache was created without RKV_FLAG_GRAPHS");
}

/* Enters the handle, with a step open. */
static rkv_status enter(const rkv_cache *cache, const char *call)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(call, s);
    s = need_graphs(cache);
    if (s == RKV_OK)
        s = rkvi_api_need_step(cache);
    return s == RKV_OK ? s : rkvi_api_leave(cache, call, s);
}

rkv_status rkv_step_graph_key(const rkv_cache *cache, uint64_t *out_key)
{
    rkv_status s = enter(cache, __func__);
    if (s != RKV_OK)
        return s;
    if (out_key)
        *out_key = rkvi_step_key(cache);
    else
        s = rkvi_fail(RKV_E_ARGUMENT, "out_key is NULL");
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_graph_capture(rkv_cache *cache, uint32_t first_site, uint32_t n_sites, void *stream)
{
    rkv_status s = enter(cache, __func__);
    if (s != RKV_OK)
        return s;
    const uint32_t n = rkvi_handle_config(cache)->n_sites;
    if (first_site >= n || n_sites > n - first_site)
        s = rkvi_fail(RKV_E_ARGUMENT, "a capture of %u sites from %u on, but there are %u", n_sites, first_site, n);
    else if (rkvi_step_captures(cache))
        s = rkvi_fail(RKV_E_STATE, "a capture is under way: end it first");
    else
        s = rkvi_step_capture_begin(cache, first_site, n_sites ? n_sites : n - first_site, stream);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_graph_capture_end(rkv_cache *cache, void *stream, rkv_graph *out_graph)
{
    rkv_graph graph = {.struct_size = sizeof graph};
    rkvi_step_graph g = {0};
    rkv_status s = enter(cache, __func__);
    if (s != RKV_OK)
        return s;
    s = rkvi_copy_out_check(&graph_spec, out_graph);
    if (s == RKV_OK && !rkvi_step_captures(cache))
        s = rkvi_fail(RKV_E_STATE, "no capture is under way");
    if (s == RKV_OK)
        s = rkvi_step_capture_end(cache, stream, &g);
    if (s == RKV_OK) {
        graph.first_site = g.first_site;
        graph.n_sites = g.n_sites;
        graph.n_ahead = g.n_ahead;
        graph.key = g.key;
        rkvi_copy_out(&graph_spec, &graph, out_graph);
    }
    return rkvi_api_leave(cache, __func__, s);
}

static rkv_status check_graph(const rkv_cache *cache, const rkv_graph *g)
{
    const uint32_t next = rkvi_step_next_site(cache), n = rkvi_handle_config(cache)->n_sites;
    if (g->n_sites == 0 || g->first_site >= n || g->n_sites > n - g->first_site)
        return rkvi_fail(RKV_E_ARGUMENT, "the graph is of %u sites from %u on, but there are %u: it is no capture's",
                         g->n_sites, g->first_site, n);
    if (rkvi_step_captures(cache))
        return rkvi_fail(RKV_E_STATE, "a capture is under way: end it first");
    if (g->key != rkvi_step_key(cache))
        return rkvi_fail(RKV_E_STATE, "the graph was captured for key %016llx, and the step has %016llx: capture anew",
                         U(g->key), U(rkvi_step_key(cache)));
    if (g->first_site != next)
        return rkvi_fail(RKV_E_STATE, "the graph begins with site %u: site %u is next", g->first_site, next);
    return RKV_OK;
}

rkv_status rkv_step_replay(rkv_cache *cache, const rkv_graph *graph, void *stream)
{
    rkv_graph g;
    rkv_status s = enter(cache, __func__);
    if (s != RKV_OK)
        return s;
    s = rkvi_copy_in(&graph_spec, graph, &g);
    if (s == RKV_OK)
        s = check_graph(cache, &g);
    if (s == RKV_OK) {
        const rkvi_step_graph inside = {
            .first_site = g.first_site, .n_sites = g.n_sites, .n_ahead = g.n_ahead, .key = g.key};
        s = rkvi_step_replay(cache, &inside, stream);
    }
    return rkvi_api_leave(cache, __func__, s);
}
