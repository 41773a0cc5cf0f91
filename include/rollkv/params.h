/* SPDX-License-Identifier: MIT
 *
 * rollkv/params.h: what a cache is made of, and what it would take.
 * A part of rollkv.h, which has the conventions.
 */
#ifndef ROLLKV_PARAMS_H
#define ROLLKV_PARAMS_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* resident_cells of a KV layer, besides a number of cells. */
#define RKV_RESIDENT_AUTO ((uint64_t)0)              /* what the device memory granted allows */
#define RKV_RESIDENT_ALL ((uint64_t)1 << 61)         /* never a tail */
#define RKV_RESIDENT_NONE (((uint64_t)1 << 61) - 1)  /* no window: all but the active tiles is tail */

/* Where V comes from.  Only the first is built; the others are refused. */
enum { RKV_V_OWN = 0, RKV_V_K_PREFIX = 1, RKV_V_NONE = 2 };

/* A rotary embedding: element x of pair p at position n is turned by the angle
 * n * frequencies[p] (scaled frequencies come in as they are; a scaling's
 * magnitude is the engine's, in q and k).  Elements of no pair are left alone. */
typedef struct rkv_rope_params {
    const float *frequencies; /* radians per position, one per pair; NULL: not given */
    uint32_t n_frequencies;   /* rotary dims / 2; at most head_dim_k / 2 */
    uint32_t pairing;         /* 0: element i with i + n (halves), 1: 2i with 2i + 1 */
} rkv_rope_params;

/* What K went through before it is stored: whether positions can be shifted. */
enum {
    RKV_K_ROTATED = 0, /* rotated by the frequencies, last of all */
    RKV_K_PLAIN = 1,   /* holds no position (a layer without an embedding): any shift is right */
    RKV_K_OTHER = 2    /* transformed after it was rotated, or another embedding: no shift */
};

/* One stored K and V. */
typedef struct rkv_kv_layer_params {
    uint32_t struct_size;
    uint32_t n_kv_heads;
    uint32_t head_dim_k;     /* elements, a multiple of 8 (of 32 for q8_0, q4_0), at most 1024 */
    uint32_t head_dim_v;     /* 0: as head_dim_k */
    rkv_type type_k, type_v; /* storage; 0: f16 */
    uint32_t v_source;       /* RKV_V_OWN */
    float k_scale, v_scale;  /* fp8: value = stored * scale; 0: 1 */
    uint64_t resident_cells; /* the window's budget, over all sequences, rounded up to whole tiles */
    uint32_t k_form;         /* RKV_K_ */
    uint32_t keep_all;       /* 1: keep cells that no later row can see (below) */
    rkv_rope_params rope;    /* where it is not the cache's (a sliding layer with a base of its own) */
} rkv_kv_layer_params;
/* A KV layer whose sites all have sliding or chunked masks keeps what the
 * widest one can see, and draft_rows cells more: what lies further back is
 * freed tile by tile when a step ends, unless keep_all is set.  Such a layer
 * carries a tail only where resident_cells asks for one, or AUTO finds too
 * little memory for the other layers' active tiles.  What is freed can't be
 * seen again: rkv_sequence_remove refuses to cut back so far, begin refuses
 * rows that would look at it (RKV_E_SEQUENCE, with the lowest position that is
 * possible).  A tile that several sequences share stays until none sees it. */
#define RKV_KV_LAYER_PARAMS_INIT {.struct_size = sizeof(rkv_kv_layer_params)}

/* One attention call of a step.  The first site of a KV layer stores its new
 * cells; later sites of the same KV layer only read. */
typedef struct rkv_site_params {
    uint32_t struct_size;
    uint32_t kv_layer;   /* index into kv_layers[] */
    uint32_t n_q_heads;  /* a whole multiple of the KV layer's n_kv_heads */
    float scale;         /* of q . k; 0: 1 / sqrt(head_dim_k) */
    float softcap;       /* score = softcap * tanh(score / softcap); 0: none */
    rkv_mask mask;
    uint64_t mask_width; /* cells, of sliding and chunked masks */
    uint64_t gap_ns;     /* hint: compute from the end of this attention to the start of the next */
} rkv_site_params;
#define RKV_SITE_PARAMS_INIT {.struct_size = sizeof(rkv_site_params)}

/* Device memory from the engine's allocator.  alloc returns 256-byte aligned
 * device memory or NULL; both are called inside rkv_cache_create, _destroy,
 * _set_residency and _set_cpu_share only, on the calling thread.  All NULL: the
 * executor's. */
typedef struct rkv_allocator {
    void *(*alloc)(void *user, uint64_t size_bytes);
    void (*free)(void *user, void *ptr, uint64_t size_bytes);
    void *user;
} rkv_allocator;

/* Progress of long work (touching and registering host memory): called on the
 * working thread with done <= total, the last time with done == total. */
typedef void (*rkv_progress_fn)(void *user, const char *what, uint64_t done_bytes, uint64_t total_bytes);

/* The host executor: what runs where there is no GPU.  Its device memory is
 * ordinary memory, its link a copy with a settable speed. */
typedef struct rkv_host_params {
    uint64_t link_bytes_per_s; /* each direction; 0: as fast as the machine copies */
    uint64_t copy_cost_ns;     /* the link is busy that much longer with every copy */
    uint64_t copy_latency_ns;  /* until a copy arrives, without keeping the link busy */
    uint32_t n_threads;        /* for kernels; 0: one per core */
    uint32_t reserved;
    uint64_t memory_bytes;     /* of its 'device'; 0: the machine's */
} rkv_host_params;

enum {
    RKV_MODE_RING = 0,    /* copies run ahead over the whole step and into the next */
    RKV_MODE_OP_LEVEL = 1 /* for comparison alone: one tile ahead, a barrier at each attend */
};
enum {
    RKV_FLAG_NO_JOIN = 1,      /* every tile-layer crosses in a copy of its own */
    RKV_FLAG_NO_PREDICT = 2,   /* the ring does not run on into the next step */
    RKV_FLAG_NO_PROMOTE = 4,   /* freed window room stays free until new tiles are due */
    RKV_FLAG_NO_HUGE_PAGES = 8,/* the tail is not advised to use huge pages */
    RKV_FLAG_GRAPHS = 64       /* attends can be captured and replayed: see graph.h */
};
enum { RKV_NUMA_DEVICE = 0, RKV_NUMA_OFF = -1 }; /* else: node + 1 */
#define RKV_DRAFT_NONE 0xffffffffu               /* draft_rows: no lag */
#define RKV_TURNS_NONE 0xffffffffu               /* max_turns: positions are never shifted */
#define RKV_LINK_UNKNOWN UINT64_MAX              /* link_bytes_per_s: not measured, the ring has room for four copies */

typedef struct rkv_cache_params {
    uint32_t struct_size;
    int32_t device;                      /* a GPU, or RKV_DEVICE_HOST */
    const rkv_kv_layer_params *kv_layers;
    const rkv_site_params *sites;        /* in the order of a step */
    uint32_t n_kv_layers, n_sites;
    uint64_t capacity_cells;             /* over all sequences; must be given.  Kept as whole tiles, and
                                          * n_sequences - 1 tiles more, as each sequence's last tile may
                                          * be partly filled; one sequence may use all of them */
    uint32_t n_sequences;                /* 0: 1 */
    uint32_t max_rows;                   /* most rows of a step, over its batch; 0: 512 */
    uint32_t tile_cells;                 /* T: a power of two from 16 to 4096; 0: 256 */
    uint32_t draft_rows;                 /* cells that may be rolled back for free; 0: 16; RKV_DRAFT_NONE */
    uint32_t steps_ahead;                /* begins before the first must have ended on the device, up to 16; 0: 2 */
    uint32_t mode;                       /* RKV_MODE_ */
    uint32_t flags;                      /* RKV_FLAG_ */
    int32_t numa;                        /* RKV_NUMA_DEVICE, RKV_NUMA_OFF, or node + 1 */
    uint64_t ring_bytes;                 /* 0: from the hints and the memory granted */
    uint64_t copy_bytes;                 /* most bytes joined into one copy, at least one tile-layer; 0: 16 MiB,
                                          * or what a slow link or the ring allows */
    uint64_t device_limit_bytes;         /* everything on the device, at most what is free (an engine's
                                          * device_allocator: at most what it gives); 0: nine tenths of that */
    uint64_t host_limit_bytes;           /* the tail; 0: nine tenths of the machine's memory */
    uint64_t step_ns;                    /* hint: compute of a step without the tail's copies */
    uint64_t link_bytes_per_s;           /* hint: H2D bandwidth; 0: the host executor's; of a GPU it is measured at
                                          * creation (below), where there is a tail; RKV_LINK_UNKNOWN */
    rkv_allocator device_allocator;
    rkv_rope_params rope;                /* for shifting alone: q and k come rotated */
    rkv_host_params host;                /* RKV_DEVICE_HOST only */
    rkv_progress_fn progress;
    void *progress_user;
    uint32_t max_turns;                  /* most stretches of a sequence that were shifted, each by a delta of its
                                          * own; 0: 8; at most 255; RKV_TURNS_NONE.  The device holds q so often:
                                          * max_turns * max_rows * n_q_heads * head_dim_k * 4 bytes */
    uint32_t extra_segments;             /* runs of positions beyond one a tile, over the sequences of a step (cuts,
                                          * gaps, shifts and sharing make them); 0: 4096; at most 2^20.  The step's
                                          * tables have room for so many.  Where no tile is shared, shift, load and
                                          * import refuse to make more of them over all sequences */
    uint32_t cpu_threads;                /* threads of the cache's own that compute attention over a
                                          * part of the tail where it lies, while the link brings the rest: for
                                          * tails far beyond what crosses in a step.  Leave two CPUs to others.
                                          * Steps of decode rows alone, with all of the tail pinned; others have no
                                          * share (stats tell cpu_bytes).  Results then depend on the share and
                                          * the windows, by rounding.  0: none.
                                          * How the share is chosen: rkv_cache_set_cpu_share */
    uint32_t cpu_share;                  /* that part, in sixteenths of each site's tail, at most 15; 0: chosen at
                                          * creation by the numbers below and step_ns (or the sites' gap_ns),
                                          * those that are 0 measured: 0.1 to 0.3 s.  Without a step_ns there is
                                          * no share until rkv_cache_set_cpu_share */
    uint64_t cpu_bytes_per_s;            /* hint: K and V that these threads get through, beside the link */
    uint64_t cpu_beside_bytes_per_s;     /* hint: what the link brings meanwhile (link_bytes_per_s: without them) */
    uint64_t cpu_handover_ns;            /* hint: what a site's step is longer for handing over */
    uint64_t cpu_free_bytes;             /* with cpu_share: so much of a step's tail is the link's, the share is of
                                          * what lies beyond */
    uint64_t cpu_wait_ns;                /* most that the device waits for them at a site; what they are late with
                                          * it computes itself, from the tail where it lies, and so on until they
                                          * are back.  Results then are its own (stats tell cpu_late_bytes).  0: a
                                          * quarter of a second */
    uint32_t active_sequences;           /* of a step at most, and that the device has room for beside the windows:
                                          * so many sequences with cells that are not parked go on.  More of
                                          * them do while there are places left (see rkv_sequence_park, also
                                          * for the tiles that a parked one shares).
                                          * 0: n_sequences */
    uint32_t reserved;
} rkv_cache_params;
#define RKV_CACHE_PARAMS_INIT {.struct_size = sizeof(rkv_cache_params)}
/* Measuring a GPU's link: rkv_cache_create, once its parameters are known to fit, copies
 * 16 MiB of pinned memory to the device, then as much four times more (a few ms; less
 * from a smaller tail or over a slow link), from memory that it has given back before
 * the cache takes any: at most 16 MiB of each kind, and no more than the cache will
 * take; the device's from device_allocator, where that is given.  Giving it back may
 * wait for whatever the GPU is at, as cudaFree does.  Other copies should rest
 * meanwhile.  Where memory for it is refused, the rate stays unknown, and
 * creation goes on.  rkv_cache_info tells the rate and that it was measured.  Sizes that
 * follow from it (ring_bytes, copy_bytes, a window that is AUTO; docs/sizing.md) may
 * differ a little from run to run, results don't, but with a share of the CPU's that
 * is chosen by it, or whose tail is what an AUTO window leaves; device_limit_bytes holds
 * as ever.
 * Where the sizes are to be the same each time, give the rate, or RKV_LINK_UNKNOWN. */

/* ----------------------------------------------------------------- estimate */

/* What a cache with these parameters takes, without allocating.  Succeeds for
 * parameters that are valid but do not fit: then fits is 0, `advice` says what
 * does not fit and what would, and largest_* hold it.  Measures nothing: a GPU's
 * link is unknown unless link_bytes_per_s gives its rate (rkv_cache_info of an
 * earlier cache has it), and so are free_zone_cells and ring_rule_bytes. */
typedef struct rkv_estimate {
    uint32_t struct_size;
    uint32_t fits;                    /* 1 or 0 */
    uint64_t device_window_bytes;     /* the budgets */
    uint64_t device_ring_bytes;
    uint64_t device_active_bytes;     /* active, lagging and brought-back tile-layers */
    uint64_t device_transit_bytes;    /* tiles that pass through a prefill step */
    uint64_t device_workspace_bytes;  /* partials and step tables */
    uint64_t device_bytes;            /* the sum */
    uint64_t device_limit_bytes;      /* what it was held against: the limit, or what is free if less */
    uint64_t host_tail_bytes;         /* at full capacity */
    uint64_t host_mirror_bytes;
    uint64_t host_limit_bytes;
    uint64_t capacity_cells;
    uint64_t largest_capacity_cells;  /* that would fit with these budgets; 0: none */
    uint64_t largest_resident_cells;  /* per KV layer with a tail, that would fit at this capacity; 0: no window
                                       * (RKV_RESIDENT_NONE), if the advice names it, or nothing */
    uint64_t smallest_device_bytes;   /* with no window at all, and the smallest ring or the one asked for (with a
                                       * ring in between, partials may take less by more than it is larger); or
                                       * with all resident, or as asked for, where that takes less */
    uint64_t free_zone_cells;         /* up to this context the tail hides behind step_ns; 0: no hints, or no
                                       * rate of the link */
    uint64_t ring_rule_bytes;         /* link * longest gap + two copy groups; 0: likewise */
    char advice[256];
    uint64_t host_cpu_bytes;          /* pinned, beside the tail: q and partials of the CPU's share */
} rkv_estimate;
/* Errors: RKV_E_ARGUMENT, RKV_E_UNSUPPORTED, RKV_E_OVERFLOW (the parameters),
 * RKV_E_NO_DEVICE, RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_cache_estimate(const rkv_cache_params *params, rkv_estimate *out_estimate);

#ifdef __cplusplus
}
#endif
#endif
