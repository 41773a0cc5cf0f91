/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_world.h: a cache of one mode on a GPU, with the engine's products
 * around its attention: what cliff_world.h is without mathematics.
 */
#ifndef CLIFF_CUDA_WORLD_H
#define CLIFF_CUDA_WORLD_H

#include "cliff_engine.h"
#include "config.h"

typedef struct cliff_cuda_setup {
    cliff_engine *engine;
    const cliff_shape *shape; /* compute_ns: measured, or 0 */
    cliff_mode mode;
    bool for_graphs;          /* RKV_FLAG_GRAPHS */
    cliff_graphs graphs;
    double repeat;            /* of H2D copies */
    uint64_t link_bytes_per_s;
    uint64_t ring_bytes;      /* 0: as the library chooses */
    uint64_t most_tail_tiles; /* per streaming site */
    uint32_t window_tiles;
    uint32_t cpu_threads;     /* 0: no share for the CPU */
    bool waits;
} cliff_cuda_setup;

typedef struct cliff_cuda_world cliff_cuda_world;

rkv_status cliff_cuda_world_create(const cliff_cuda_setup *setup, cliff_cuda_world **out);
void cliff_cuda_world_destroy(cliff_cuda_world *w);
rkv_status cliff_cuda_world_sizes(const cliff_cuda_world *w, cliff_sizes *out);
/* As cliff_world_grow: random cells until the tail has that many tiles. */
rkv_status cliff_cuda_world_grow(cliff_cuda_world *w, uint64_t tail_tiles);
/* Steps without a clock, then with one, then a few for the host's time, and a
 * few with probes. */
rkv_status cliff_cuda_world_measure(cliff_cuda_world *w, uint32_t warm, uint32_t steps, cliff_result *out);

/* By step_ns and the rates given, those that are 0 measured, with the cache's
 * threads; what they came to be. */
rkv_status cliff_cuda_world_choose_cpu_share(cliff_cuda_world *w, rkvi_cpu_rates *rates, uint32_t *out_share,
                                              uint64_t *out_free_bytes);

/* What a cell takes in all KV layers; in those that stream. */
uint64_t cliff_cuda_cell_bytes(const cliff_shape *shape, bool streaming_alone);

#endif
