/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_graph.c: see cliff_cuda_graph.h.
 */
#include "cliff_cuda_graph.h"

#include "diag.h"

#include <stdlib.h>
#include <time.h>

struct cliff_cuda_graphs {
    cliff_graphs kind;
    uint32_t n_sites;
    cliff_engine *engine;
    rkv_cache *cache;
    cudaStream_t stream;
    cudaGraphExec_t whole, pieces[CLIFF_SITES_MAX + 1];
    cliff_qkv qkv[CLIFF_SITES_MAX]; /* of pieces: where the products put them */
    rkv_graph graph;
};

rkv_status cliff_cuda_graphs_create(cliff_graphs kind, const cliff_shape *shape, cliff_engine *engine,
                                    rkv_cache *cache, cliff_cuda_graphs **out)
{
    cliff_cuda_graphs *g = calloc(1, sizeof *g);
    if (!g)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for graphs");
    g->kind = kind;
    g->n_sites = shape->n_sites;
    g->engine = engine;
    g->cache = cache;
    g->stream = cliff_engine_stream(engine);
    g->graph = (rkv_graph)RKV_GRAPH_INIT;
    *out = g;
    return RKV_OK;
}

void cliff_cuda_graphs_destroy(cliff_cuda_graphs *g)
{
    if (!g)
        return;
    cudaStreamSynchronize(g->stream);
    if (g->whole)
        cudaGraphExecDestroy(g->whole);
    for (uint32_t i = 0; i <= g->n_sites; i++)
        if (g->pieces[i])
            cudaGraphExecDestroy(g->pieces[i]);
    free(g);
}

static rkv_status attend(cliff_cuda_graphs *g, uint32_t site)
{
    const cliff_qkv *x = &g->qkv[site];
    const rkv_attend_params a = {.struct_size = sizeof a,
                                 .site = site,
                                 .q = {.data = x->q},
                                 .k = {.data = x->k},
                                 .v = {.data = x->v},
                                 .out = {.data = x->out}};
    return rkv_step_attend(g->cache, &a, g->stream);
}

static rkv_status capture(cliff_cuda_graphs *g, rkv_status (*work)(cliff_cuda_graphs *, uint32_t), uint32_t arg,
                          cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t former = *out;
    rkv_status s = CLIFF_CUDA(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeRelaxed));
    if (s != RKV_OK)
        return s;
    s = work(g, arg);
    const rkv_status ended = CLIFF_CUDA(cudaStreamEndCapture(g->stream, &graph));
    if (s == RKV_OK)
        s = ended;
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaGraphInstantiate(out, graph, 0));
    if (graph)
        cudaGraphDestroy(graph);
    if (s == RKV_OK && former)
        s = CLIFF_CUDA(cudaGraphExecDestroy(former));
    return s;
}

/* --------------------------------------------------------------------- pieces */

/* The products between the attention of site - 1 and that of `site`. */
static rkv_status piece(cliff_cuda_graphs *g, uint32_t site)
{
    rkv_status s = site ? cliff_engine_after(g->engine, site - 1) : RKV_OK;
    if (s == RKV_OK && site < g->n_sites)
        return cliff_engine_before(g->engine, site, &g->qkv[site]);
    return s == RKV_OK ? cliff_engine_head(g->engine) : s;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static rkv_status launch(cliff_cuda_graphs *g, cudaGraphExec_t exec, int64_t *launch_host_ns)
{
    const int64_t from_ns = now_ns();
    const rkv_status s = CLIFF_CUDA(cudaGraphLaunch(exec, g->stream));
    *launch_host_ns += now_ns() - from_ns;
    return s;
}

static rkv_status step_in_pieces(cliff_cuda_graphs *g, int64_t *launch_host_ns)
{
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i <= g->n_sites && s == RKV_OK; i++) {
        if (!g->pieces[i])
            s = capture(g, piece, i, &g->pieces[i]);
        if (s == RKV_OK)
            s = launch(g, g->pieces[i], launch_host_ns);
        if (s == RKV_OK && i < g->n_sites)
            s = attend(g, i);
    }
    return s;
}

/* ---------------------------------------------------------------------- whole */

static rkv_status whole(cliff_cuda_graphs *g, uint32_t n_sites)
{
    rkv_status s = rkv_graph_capture(g->cache, 0, 0, g->stream);
    for (uint32_t i = 0; i <= n_sites && s == RKV_OK; i++) {
        s = piece(g, i);
        if (s == RKV_OK && i < n_sites)
            s = attend(g, i);
    }
    return s == RKV_OK ? rkv_graph_capture_end(g->cache, g->stream, &g->graph) : s;
}

static rkv_status step_as_graph(cliff_cuda_graphs *g, int64_t *launch_host_ns)
{
    uint64_t key = 0;
    rkv_status s = rkv_step_start(g->cache, g->stream);
    if (s == RKV_OK)
        s = rkv_step_graph_key(g->cache, &key);
    if (s == RKV_OK && (!g->whole || g->graph.key != key))
        s = capture(g, whole, g->n_sites, &g->whole);
    if (s == RKV_OK)
        s = rkv_step_replay(g->cache, &g->graph, g->stream);
    return s == RKV_OK ? launch(g, g->whole, launch_host_ns) : s;
}

rkv_status cliff_cuda_graphs_step(cliff_cuda_graphs *g, int64_t *launch_host_ns)
{
    return g->kind == CLIFF_WHOLE ? step_as_graph(g, launch_host_ns) : step_in_pieces(g, launch_host_ns);
}
