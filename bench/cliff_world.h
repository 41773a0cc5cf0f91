/* SPDX-License-Identifier: MIT
 *
 * cliff_world.h: a cache with a synthetic step around it, whose time can be
 * measured against the bytes of its tail.
 *
 * The step has no mathematics: kernels are empty functions, the engine's own
 * work is a delay before each attention and one at the step's end.  What is
 * real is all that the library does: plan, copies, waits, launches.
 *
 *   begin | delay, attend | delay, attend | ... | head's delay | end | begin ...
 *
 * Every byte count of a tile-layer, and every bandwidth, is divided by
 * CLIFF_SCALE: times are those of the full size, memory is not.  The step's
 * tables are not divided, so their upload is cut to a part of its bytes; no
 * kernel reads them.  Settings and results are in full size.
 */
#ifndef CLIFF_WORLD_H
#define CLIFF_WORLD_H

#include "device_core.h"
#include "rollkv/rollkv.h"

#define CLIFF_SCALE 64u
#define CLIFF_SITES_MAX 128u
#define CLIFF_TILE_CELLS 256u /* unless a shape has others */

typedef struct cliff_site {
    uint32_t n_kv_heads, head_dim;
    uint64_t sliding_cells; /* 0: causal */
    bool streams;           /* its KV layer has a tail */
    uint32_t n_q_heads;     /* cuda */
} cliff_site;

typedef struct cliff_shape {
    char name[32];
    uint32_t n_sites;
    cliff_site sites[CLIFF_SITES_MAX]; /* each with a KV layer of its own */
    int64_t compute_ns;                /* of a step with all resident, but for the attention's reads */
    double head_share;                 /* the part of it that follows the last attention */
    double jitter;                     /* a site's compute is off its share by up to this part of it */
    uint64_t seed;                     /* of the jitter: the same in all modes and steps */
    uint32_t hidden, feed_forward, vocabulary; /* cuda: the weights; 0: it has none */
    rkv_type kv_type;                          /* cuda: of K and V; 0: f16 */
    uint32_t tile_cells;                       /* 0: CLIFF_TILE_CELLS */
} cliff_shape;

typedef enum { CLIFF_RESIDENT, CLIFF_OP_LEVEL, CLIFF_RING, CLIFF_MODES } cliff_mode;
/* cuda: the ring's steps with what is captured as CUDA graphs. */
typedef enum { CLIFF_EAGER, CLIFF_PIECES, CLIFF_WHOLE, CLIFF_GRAPHS } cliff_graphs;
typedef enum { CLIFF_SIM, CLIFF_HOST, CLIFF_CUDA } cliff_executor; /* the last one: cliff_cuda.h */

typedef struct cliff_machine {
    cliff_executor executor;
    uint64_t link_bytes_per_s; /* between copies */
    int64_t copy_cost_ns, row_cost_ns;
    uint64_t device_bytes_per_s; /* sim */
    int64_t launch_ns;           /* sim */
} cliff_machine;

typedef struct cliff_setup {
    const cliff_shape *shape;
    cliff_machine machine;
    cliff_mode mode;
    uint64_t ring_bytes, copy_bytes; /* 0: as the library chooses for the full size */
    uint64_t most_tail_tiles; /* per streaming site */
    uint32_t window_tiles;    /* of a streaming KV layer */
    bool graphs;              /* a decode step's attends and its own work are one graph */
    bool waits;               /* the host waits for each step before it begins the next, as to sample */
} cliff_setup;

typedef struct cliff_result {
    double step_ns;           /* sim: mean; else median */
    double least_ns, most_ns; /* of a step */
    double p10_ns, p90_ns;
    double copies, launches, extra_launches; /* per step */
    double link_busy_ns;      /* per step, tail copies */
    uint64_t tail_bytes;      /* per step, as streamed */
    uint64_t list_bytes;      /* per step, as listed */
    uint64_t run_ahead_bytes, ring_bytes;
    uint64_t context_cells;
    /* cuda alone */
    double wall_ns;                 /* per step, by the host's clock over all of them */
    double issue_ns, products_issue_ns; /* the host's time for a step, with the GPU idle; the products' part of it */
    double store_ns, attend_ns, merge_ns; /* kernels, per step */
    double copy_in_ns, copy_in_bytes_per_s, tables_ns; /* the link at work, per step */
    double host_waits;              /* per step: begins that had to wait */
    double cpu_bytes, cpu_ns;       /* per step: the CPU's share, and what its threads took */
    uint64_t kv_bytes;              /* K and V that a step reads */
} cliff_result;

typedef struct cliff_world cliff_world;

/* The machine of the measured figures: an H200 on PCIe 5 x16. */
cliff_machine cliff_machine_h200(cliff_executor executor);

rkv_status cliff_world_create(const cliff_setup *setup, cliff_world **out);
void cliff_world_destroy(cliff_world *w);
/* Lengthens the context until each streaming site has that many tail tiles (in
 * a resident world: as many tiles in its window instead). */
rkv_status cliff_world_grow(cliff_world *w, uint64_t tail_tiles);
/* Decode steps: `warm` without, then `steps` with a clock. */
rkv_status cliff_world_measure(cliff_world *w, uint32_t warm, uint32_t steps, cliff_result *out);

/* Cells of a tile; of the active one, when the context has grown; how many steps a
 * point may have in all before another tile enters the tail (and, with tiles of 64
 * cells or more, before another one is opened). */
uint32_t cliff_tile_cells(const cliff_shape *shape);
uint32_t cliff_extra_cells(const cliff_shape *shape);
uint32_t cliff_most_steps(const cliff_shape *shape);
/* Bytes of one tile-layer of the shape's first streaming site; how many stream. */
uint64_t cliff_tile_bytes(const cliff_shape *shape);
uint32_t cliff_streaming_sites(const cliff_shape *shape);
/* What the library chooses, at full size, for a cache in ring mode. */
typedef struct cliff_sizes {
    uint64_t rule_bytes, ring_bytes, copy_bytes;
    uint64_t free_zone_cells; /* as estimate has it */
} cliff_sizes;
rkv_status cliff_sizes_get(const cliff_setup *setup, cliff_sizes *out);
/* Bandwidth of the best of a few plain copies of 64 MiB. */
rkv_status cliff_link_measure(const cliff_machine *machine, double *out_bytes_per_s);

#endif
