/* SPDX-License-Identifier: MIT
 *
 * rollkv/rollkv.h: decode with a KV cache larger than the device's memory.
 *
 * What it models
 * --------------
 * The KV cache of a transformer is cut into tiles of T cells (token positions)
 * of one sequence; a tile's part in one KV layer is a tile-layer.  Per KV
 * layer a budget of cells stays on the device (the window); the rest lies in
 * pinned host memory (the tail) and crosses the link once per step, through a
 * small device buffer (the ring), while the whole step computes:
 *
 *      host memory (tail)                  device memory
 *   +-----------------------+        +------------------------+
 *   | t3 t4 t5 t6 t7 t8 ... | -----> |  ring  [t7][t8][t3]    |--+
 *   +-----------------------+  link  +------------------------+  |  attend
 *              ^                     |  window [t0][t1][t2]   |--+----------> out
 *              |                     +------------------------+  |
 *              +---- demotion ------ |  active [t9]           |--+
 *                   (full tiles)     +------------------------+
 *
 * Attention over all of it is exact: the output has the same bits wherever a
 * tile lies, whatever the ring's size, the copies and the batch around it.
 *
 * Life cycle
 * ----------
 *   rkv_cache_create
 *      per step:  rkv_step_begin    plan, reserve; the copies start
 *                 rkv_step_start    (or the first attend does it)
 *                 rkv_step_attend   once per site, in the order of sites[]
 *                 rkv_step_end      or rkv_step_abort
 *      between steps: sequences are cleared, cut, forked, asked about
 *   rkv_cache_destroy
 *
 *             begin              start            last site attended, end
 *   [ idle ] -------> [ begun ] -------> [ running ] -------------------> [ idle ]
 *       ^                |                   |
 *       +----------------+------ abort ------+       a device fault: [ poisoned ]
 *
 * Conventions
 * -----------
 *  - Input structs begin with struct_size: set it with the initialiser macros
 *    (RKV_CACHE_PARAMS_INIT and so on).  Zero means 'default' in every field.
 *    An array of structs has the stride array[0].struct_size (the others have
 *    the same one, or 0).  Nothing that is passed in is kept: arrays may be
 *    freed once the call has returned.
 *  - Output structs: set struct_size to the size you know; that much is filled.
 *  - Sizes are in bytes, cells, rows as the name says; times in nanoseconds.
 *    All 64-bit.  A value above 2^62 is always an error (a wrapped negative).
 *  - Ranges of positions are [from, to).
 *  - A stream is `void *`: a cudaStream_t on a GPU, a stream of rollkv/host.h
 *    on the host executor.  NULL is the legacy default stream, or the cache's
 *    own default stream on the host executor.
 *  - A call that fails changes nothing, and rkv_error_message() says on the
 *    calling thread what was wrong, with values and limits.  (Tiles whose time
 *    has come may enter the tail in a begin that fails for memory or a device
 *    call: that changes where they are read from, and no result.)
 *  - Where a device call fails within begin, attend or end, that call may block
 *    until the library's own streams have run dry, so that what it had queued
 *    there is known to be over.
 *  - After a device fault every call but rkv_cache_destroy gives
 *    RKV_E_POISONED, with the first fault in the message.
 *
 * Threads
 * -------
 *   call                                        may run beside
 *   rkv_version .. rkv_device_*                 everything
 *   rkv_error_message                           everything (per thread)
 *   rkv_cache_create, _estimate                 everything
 *   rkv_cache_info, _stats, rkv_kv_layer_info,  each other, and any one call on the
 *     rkv_site_info, rkv_sequence_info, _ranges   same cache from another thread
 *   all other calls on one cache                nothing else on that cache
 *   calls on different caches                   each other
 *
 * Since 0.1 unless a declaration says otherwise.
 */
#ifndef ROLLKV_ROLLKV_H
#define ROLLKV_ROLLKV_H

#include "types.h"
#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ library */

/* Version of the library that runs: major * 10000 + minor * 100 + patch. */
RKV_API uint32_t rkv_version(void);
RKV_API const char *rkv_version_string(void);

/* How it was built: compiler, executors, instruction sets. */
RKV_API const char *rkv_build_info(void);

/* "RKV_E_ARGUMENT" and the like; "unknown status" for other values. */
RKV_API const char *rkv_status_name(rkv_status status);

/* The sentence that the last failed call on this thread recorded; "" if none.
 * Valid until the thread's next failing call. */
RKV_API const char *rkv_error_message(void);

/* The library prints nothing.  With a callback set, it tells what it decided
 * (level 2), what to know (1), and errors (0) as they happen, from any thread
 * that works for it.  NULL turns it off.  Process-wide. */
typedef void (*rkv_log_fn)(void *user, int32_t level, const char *message);
RKV_API void rkv_log_set(rkv_log_fn fn, void *user);

/* The environment variables that the library reads, and their values now.
 * RKV_E_ARGUMENT past the last one. */
typedef struct rkv_setting {
    uint32_t struct_size;
    const char *name;          /* ROLLKV_... */
    const char *type;          /* "string", "integer" */
    const char *default_value; /* as text */
    const char *value;         /* from the environment, or NULL */
    const char *help;
} rkv_setting;
RKV_API rkv_status rkv_setting_at(uint32_t index, rkv_setting *out_setting);

/* Devices.  0 .. n-1 are GPUs; the host executor is asked for by its constant
 * and is always there. */
enum { RKV_DEVICE_HOST = -1 };
typedef struct rkv_device_info {
    uint32_t struct_size;
    int32_t device;
    char name[64];
    uint64_t memory_bytes, memory_free_bytes;
    uint32_t n_workers; /* multiprocessors, or threads */
    int32_t numa_node;  /* -1: unknown */
} rkv_device_info;
RKV_API uint32_t rkv_device_count(void); /* GPUs; 0 without a driver */
/* Errors: RKV_E_NO_DEVICE, RKV_E_ARGUMENT, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_device_info_get(int32_t device, rkv_device_info *out_info);

/* --------------------------------------------------------------- parameters */

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
    RKV_FLAG_GRAPHS = 64       /* attends can be captured and replayed: see Graphs below */
};
enum { RKV_NUMA_DEVICE = 0, RKV_NUMA_OFF = -1 }; /* else: node + 1 */
#define RKV_DRAFT_NONE 0xffffffffu               /* draft_rows: no lag */
#define RKV_TURNS_NONE 0xffffffffu               /* max_turns: positions are never shifted */

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
    uint64_t link_bytes_per_s;           /* hint: H2D bandwidth; 0: the executor's */
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
                                          * tables have room for so many */
    uint32_t cpu_threads;                /* threads of the cache's own that compute attention over a
                                          * part of the tail where it lies, while the link brings the rest: for
                                          * tails far beyond what crosses in a step.  Leave two CPUs to others.
                                          * Steps of decode rows alone, with all of the tail pinned; others have no
                                          * share (stats tell cpu_bytes).  Results then depend on the share, by
                                          * rounding.  0: none.
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
} rkv_cache_params;
#define RKV_CACHE_PARAMS_INIT {.struct_size = sizeof(rkv_cache_params)}

/* ----------------------------------------------------------------- estimate */

/* What a cache with these parameters takes, without allocating.  Succeeds for
 * parameters that are valid but do not fit: then fits is 0, `advice` says what
 * does not fit and what would, and largest_* hold it. */
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
    uint64_t largest_resident_cells;  /* per KV layer with a tail, that would fit at this capacity */
    uint64_t smallest_device_bytes;   /* with no window at all: with the smallest ring, or with this one */
    uint64_t free_zone_cells;         /* up to this context the tail hides behind step_ns; 0: no hints */
    uint64_t ring_rule_bytes;         /* link * longest gap + two copy groups; 0: no hints */
    char advice[256];
    uint64_t host_cpu_bytes;          /* pinned, beside the tail: q and partials of the CPU's share */
} rkv_estimate;
/* Errors: RKV_E_ARGUMENT, RKV_E_UNSUPPORTED, RKV_E_OVERFLOW (the parameters),
 * RKV_E_NO_DEVICE, RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_cache_estimate(const rkv_cache_params *params, rkv_estimate *out_estimate);

/* -------------------------------------------------------------------- cache */

typedef struct rkv_cache rkv_cache;

/* Blocks; allocates all device memory and the first host slab.  On failure
 * *out_cache is untouched and nothing is left allocated.
 * Errors: RKV_E_ARGUMENT, RKV_E_UNSUPPORTED, RKV_E_OVERFLOW (the parameters),
 * RKV_E_NO_DEVICE, RKV_E_DEVICE_LIMIT, RKV_E_HOST_LIMIT, RKV_E_RING (what does
 * not fit: the message says what would), RKV_E_DEVICE_MEMORY,
 * RKV_E_HOST_MEMORY, RKV_E_SYSTEM, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_cache_create(const rkv_cache_params *params, rkv_cache **out_cache);

/* Blocks until all its work has ended, then frees everything.  NULL is legal.
 * With a step open, the step is dropped. */
RKV_API void rkv_cache_destroy(rkv_cache *cache);

/* Clears all sequences.  Does not block; work in flight goes on safely.
 * Errors: RKV_E_STATE with a step open. */
RKV_API rkv_status rkv_cache_clear(rkv_cache *cache);

/* A KV layer's window on a live cache: resident_cells as in its parameters
 * (RKV_RESIDENT_AUTO: the budget at creation).  Bits don't depend on it.
 *   smaller   Window tile-layers beyond the budget go to the tail, those of the
 *             highest serials (the youngest) first; then whole extents of device
 *             memory, up to a sixteenth of the KV layer's each and 32 MiB at
 *             least, are given back to the allocator, after what is left in them
 *             was moved.  Blocks until all work so far has ended.
 *   larger    Takes device memory in such extents; promotion fills it from the
 *             ring as the tail is read.  Does not wait for work in flight.
 * rkv_kv_layer_info tells the budget, rkv_cache_info device_bytes.
 * Errors: RKV_E_ARGUMENT (no such KV layer), RKV_E_OVERFLOW, RKV_E_STATE (a step
 * is open, a token tree waits to be accepted), RKV_E_UNSUPPORTED (the KV layer
 * was created without a tail),
 * RKV_E_DEVICE_LIMIT, RKV_E_DEVICE_MEMORY, RKV_E_HOST_LIMIT (the tail becomes
 * larger than was counted at creation), RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL,
 * RKV_E_POISONED.  The budget is as before then; tile-layers may have gone to the
 * tail, and come back like others. */
RKV_API rkv_status rkv_cache_set_residency(rkv_cache *cache, uint32_t kv_layer, uint64_t resident_cells);

/* The CPU's share of the tail, of a cache that was made with cpu_threads.
 *
 *   tail of a step | free_bytes, hidden: the link's | beyond: share / 16 the CPU's, the rest the link's |
 *
 * A step whose tail L takes C without copies is least where link and CPU end
 * alike: with B the link's rate, B' what is left of it while R is computed, and
 * h the time of a site's hand-over,
 *
 *   free_bytes = B x (C + h x sites with a tail),  share / 16 = R / (R + B').
 *
 * Shares that are chosen differ by one from site to site, so that the mean over n
 * sites alike (geometry, types, query heads) is within 1 / 16 n of that.  Sites alike
 * whose shares, chosen or given, are at most one apart (0 aside) are evened out: of
 * each one's tail the CPU has their mean.
 *
 * docs/cpu-share.md has the rule and figures.  What is chosen stays as it is,
 * whatever steps take, until the next such call: a run with the same shares,
 * free_bytes and steps repeats its bits.  rkv_cache_info and rkv_site_info tell
 * them, and the numbers that they follow from. */
#define RKV_CPU_SHARE_NONE UINT32_MAX
typedef struct rkv_cpu_share_params {
    uint32_t struct_size;
    uint32_t share;              /* sixteenths, 1 to 15, of each site's tail; RKV_CPU_SHARE_NONE: no share, until
                                  * this call comes again; 0: of each site its own below, or chosen */
    const uint32_t *site_shares; /* n_sites of them, 0 to 15; NULL: chosen, by: */
    uint64_t free_bytes;         /* with share or site_shares */
    uint64_t step_ns;            /* C; 0: the median of the last 16 decode steps without a share whose tail was
                                  * hidden, from begin to begin, if there were 8; else as at creation */
    uint64_t link_bytes_per_s;   /* B; this and the next ones 0: measured */
    uint64_t beside_bytes_per_s; /* B' */
    uint64_t cpu_bytes_per_s;    /* R, of all KV layers */
    uint64_t handover_ns;        /* h */
} rkv_cpu_share_params;
#define RKV_CPU_SHARE_PARAMS_INIT {.struct_size = sizeof(rkv_cpu_share_params)}

/* Chooses the share anew, or takes it, from the next step on.  params NULL: all
 * measured.  Legal between steps; what is given is taken at once.  Measuring
 * waits until nothing is in flight, then computes on the cache's threads over
 * its tail memory (up to 1 GiB of it) beside copies into the ring: 0.1 to 0.3 s a
 * geometry, in which no other work should run on device or CPU.  The first share of a cache
 * takes its threads and their memory: a little of the device's (estimate counts
 * it), and host_cpu_bytes.
 * Errors: RKV_E_ARGUMENT (a share above 15; share and site_shares, or either
 * and a rate, together), RKV_E_OVERFLOW, RKV_E_STATE (a step is open; no step_ns is
 * known: give it, or run 9 steps with a short tail first), RKV_E_UNSUPPORTED (the
 * cache was made without cpu_threads), RKV_E_DEVICE_MEMORY, RKV_E_HOST_MEMORY,
 * RKV_E_HOST_LIMIT, RKV_E_SYSTEM (a thread was refused), RKV_E_DEVICE_CALL,
 * RKV_E_POISONED.  The share is as before then. */
RKV_API rkv_status rkv_cache_set_cpu_share(rkv_cache *cache, const rkv_cpu_share_params *params);

/* Effective values of all parameters.  This call and the three after it wait for a
 * call in progress on another thread, and for nothing else.
 * Errors: RKV_E_ARGUMENT (no such KV layer or site; the struct's size),
 * RKV_E_POISONED. */
typedef struct rkv_cache_info {
    uint32_t struct_size;
    int32_t device;
    char device_name[64];
    char kernels[16];              /* "ref", "avx2", "avx512", "avx512vnni" */
    uint32_t n_kv_layers, n_sites, n_sequences, max_rows;
    uint32_t tile_cells, draft_rows, steps_ahead, mode, flags;
    int32_t numa_node;             /* that the tail is bound to; -1: not bound */
    uint64_t capacity_cells;       /* as given */
    uint64_t capacity_tiles;       /* ceil(capacity_cells / tile_cells) + n_sequences - 1 */
    uint64_t ring_bytes, copy_bytes;
    uint64_t device_limit_bytes, host_limit_bytes;
    uint64_t device_bytes;         /* allocated */
    uint64_t device_window_bytes, device_ring_bytes, device_active_bytes, device_transit_bytes,
        device_workspace_bytes;
    uint64_t link_bytes_per_s;     /* assumed by the ring's rule; 0: unknown */
    uint64_t ring_rule_bytes;
    uint64_t step_ns;              /* the hint; 0: none */
    uint32_t n_workers;            /* multiprocessors, or the host executor's threads */
    uint32_t n_rope_frequencies, rope_pairing;
    uint32_t max_turns;            /* 0: positions can't be shifted */
    uint64_t host_link_bytes_per_s, host_copy_cost_ns, host_copy_latency_ns; /* host executor */
    uint32_t extra_segments;
    uint32_t reserved;
    uint32_t cpu_threads, cpu_share; /* effective; sixteenths of the tail beyond cpu_free_bytes, the mean of
                                      * the sites that have one (rkv_site_info), at least 1; 0: no share */
    uint64_t cpu_free_bytes;         /* of a step's tail: the link's */
    uint64_t cpu_step_ns, cpu_link_bytes_per_s, cpu_beside_bytes_per_s, cpu_bytes_per_s,
        cpu_handover_ns;             /* by which the share was chosen, given or measured; 0: not known */
    uint64_t cpu_wait_ns;
    uint32_t cpu_is_chosen;          /* 1: by these; 0: given, or none */
    uint32_t reserved2;
} rkv_cache_info;
RKV_API rkv_status rkv_cache_info_get(const rkv_cache *cache, rkv_cache_info *out_info);

typedef struct rkv_kv_layer_info {
    uint32_t struct_size;
    uint32_t n_kv_heads, head_dim_k, head_dim_v;
    rkv_type type_k, type_v;
    float k_scale, v_scale;
    uint32_t leaf_cells;             /* L: partials are per block of L cells of a tile */
    uint64_t resident_cells;         /* effective, whole tiles; without a tail where has_tail is 0 */
    uint64_t tile_layer_device_bytes, tile_layer_host_bytes;
    uint64_t window_tiles;           /* in the window now */
    uint64_t tail_tiles;             /* read from the tail now */
    uint64_t most_tiles;             /* that it holds at once: all, or what its masks can see */
    uint64_t freed_tiles;            /* given up, as no later row sees them */
    uint32_t has_tail;               /* 1: the budget is below most_tiles */
    uint32_t keep_all;               /* 1: asked for, or a site's mask is causal */
} rkv_kv_layer_info;
RKV_API rkv_status rkv_kv_layer_info_get(const rkv_cache *cache, uint32_t kv_layer,
                                         rkv_kv_layer_info *out_info);

typedef struct rkv_site_info {
    uint32_t struct_size;
    uint32_t kv_layer, n_q_heads;
    uint32_t is_storing;           /* 1: the first site of its KV layer, which takes k and v */
    float scale, softcap;
    rkv_mask mask;
    uint32_t reserved;
    uint64_t mask_width, gap_ns;
    uint32_t cpu_share;            /* sixteenths of its tail, beyond the free bytes, that are the CPU's */
    uint32_t reserved2;
    uint64_t cpu_bytes_per_s;      /* measured for its geometry; 0: not */
} rkv_site_info;
RKV_API rkv_status rkv_site_info_get(const rkv_cache *cache, uint32_t site, rkv_site_info *out_info);

/* Counters since creation; free, used, shared, stored and dead ones, and parked
 * sequences, are as things stand now. */
typedef struct rkv_cache_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t steps, aborted_steps;
    uint64_t streamed_bytes;          /* H2D, tail tile-layers into the ring */
    uint64_t streamed_tile_layers;
    uint64_t last_step_list_bytes;    /* sum of the list of the last step begun */
    uint64_t brought_back_bytes;      /* H2D, into device places */
    uint64_t demoted_bytes;           /* D2H */
    uint64_t demoted_tile_layers;
    uint64_t demoted_free_tile_layers;/* demoted without a copy: the host copy was still good */
    uint64_t promoted_bytes;          /* D2D, from the ring into the window */
    uint64_t promoted_tile_layers;
    uint64_t table_bytes;             /* H2D, step tables */
    uint64_t copies_in, copies_out;   /* copies enqueued */
    uint64_t largest_copy_in_bytes;
    uint64_t launches;                /* kernels enqueued, the upload of a step's tables among them */
    uint64_t extra_launches;          /* those beyond that, and one store, attend and merge per site */
    uint64_t waits;                   /* waits of streams for events, enqueued */
    uint64_t host_waits;              /* times that begin blocked: the step that last used its tables was
                                       * still running, or a host slab was not ready (either counts) */
    uint64_t run_ahead_bytes;         /* most bytes that the ring was ahead of its readers */
    uint64_t predicted_right;         /* tile-layers copied ahead of a begin whose list had them */
    uint64_t predicted_wrong;         /* and those whose list had not: they cost a copy */
    uint64_t discarded_bytes;         /* copied in and not used */
    uint64_t own_entries;             /* list entries that repeated a tile-layer of their step, for a sequence
                                       * that has shared tiles in another order than others */
    uint64_t pinned_bytes, unpinned_bytes; /* host memory of the tail */
    uint64_t free_tail_places, used_tail_places;
    uint64_t shared_tiles;            /* in several sequences */
    uint64_t used_tiles;
    uint64_t stored_cells;            /* in used tiles */
    uint64_t dead_cells;              /* of those, cells that no sequence has */
    uint64_t shared_copy_bytes;       /* D2D, copies of partly filled shared tiles */
    uint64_t free_device_places, used_device_places; /* of tile-layers, transit not counted */
    uint64_t used_device_place_bytes;
    uint64_t parked_sequences;
    uint64_t cpu_bytes;               /* of the tail, computed by the CPU where they lie; enqueued so far */
    uint64_t cpu_ns;                  /* that its threads took for what they have done of them */
    uint64_t cpu_late_bytes;          /* of cpu_bytes, those computed by the device after all, as threads were late;
                                       * what has run so far */
    uint64_t cpu_late_jobs;           /* so often, a site of a step each */
} rkv_cache_stats;
RKV_API rkv_status rkv_cache_stats_get(const rkv_cache *cache, rkv_cache_stats *out_stats);

/* ---------------------------------------------------------------- sequences */

/* A sequence is an index in [0, n_sequences), empty at first.  Its cells have
 * strictly increasing positions.  The calls below are legal between steps
 * while work is in flight; they enqueue nothing and do not block, but where they
 * say so (park, fetch, compact, accept). */

#define RKV_POS_END ((int64_t)1 << 62)
typedef struct rkv_pos_range {
    int64_t from, to;
} rkv_pos_range;

typedef struct rkv_sequence_state {
    uint32_t struct_size;
    uint32_t n_tiles;           /* whole or in part, shared ones included */
    uint64_t n_cells;
    int64_t pos_begin, pos_end; /* [first position, last position + 1); 0, 0 when empty */
    uint64_t n_segments;        /* runs of cells: more than tiles where cells were cut out */
    uint32_t n_tree_cells;      /* of a token tree that waits for rkv_sequence_accept; they count
                                 * nowhere else but in n_tiles */
    uint32_t reserved;
} rkv_sequence_state;
/* With a step open, that step's cells count (abort takes them back).
 * Errors: RKV_E_SEQUENCE, RKV_E_ARGUMENT. */
RKV_API rkv_status rkv_sequence_info(const rkv_cache *cache, uint32_t sequence,
                                     rkv_sequence_state *out_state);

/* The positions that a sequence holds, as ranges without gaps, in order: writes
 * the first `room` of them to out_ranges (may be NULL when room is 0), and how
 * many there are to *out_n.  Errors: RKV_E_SEQUENCE, RKV_E_ARGUMENT. */
RKV_API rkv_status rkv_sequence_ranges(const rkv_cache *cache, uint32_t sequence, rkv_pos_range *out_ranges,
                                       uint64_t room, uint64_t *out_n);

/* Errors: RKV_E_SEQUENCE, RKV_E_STATE (a step is open). */
RKV_API rkv_status rkv_sequence_clear(rkv_cache *cache, uint32_t sequence);

/* Clears all sequences but this one.  Errors: RKV_E_SEQUENCE, RKV_E_STATE. */
RKV_API rkv_status rkv_sequence_keep(rkv_cache *cache, uint32_t sequence);

/* Removes the cells at positions [from, to); the others keep their positions.
 * To the end of the sequence it is a roll-back: the tile that is cut is
 * continued by the next append, wherever it lies.  Cells cut out of the middle
 * stay in their tile, as dead cells (see the stats), until the tile goes with
 * the last cell that a sequence has of it.  A range that holds no cell is
 * legal, and removes nothing.  Takes no memory but room for one more segment,
 * which is there ahead of need.  Where KV layers freed what their masks hide,
 * the sequence can't end below the lowest position from which rows find all that
 * they see; the message names it (an empty sequence is always possible).
 * Errors: RKV_E_SEQUENCE (no such sequence; that lowest end), RKV_E_STATE,
 * RKV_E_ARGUMENT (from < 0, from > to, to > RKV_POS_END), RKV_E_HOST_MEMORY (a
 * cut in the middle alone, and only after the machine refused a few bytes twice;
 * nothing changed). */
RKV_API rkv_status rkv_sequence_remove(rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to);

/* dst goes on with the cells that src has at positions [from, to), which keep
 * their positions: all must lie at or after dst's pos_end.  Copies nothing: the
 * tiles are shared, and each sequence may be cut, cleared and continued without
 * the other one seeing it.  They are stored once, and read from the tail once a
 * step for all sequences of the batch.  Where dst or src goes on in a partly
 * filled tile that the other one has more cells of, begin of that step copies
 * the tile (a device copy, or a read of its host copy), and takes a tile for it.
 * The bits of a row depend on how its sequence was put together: a fork has
 * those of its source.  A range that holds no cell is legal, and adds nothing.
 * Errors: RKV_E_SEQUENCE (either), RKV_E_STATE, RKV_E_ARGUMENT (the range;
 * positions before dst's end; dst is src), RKV_E_HOST_MEMORY, RKV_E_CAPACITY
 * (dst would have more stretches of shifted cells than max_turns). */
RKV_API rkv_status rkv_sequence_append_from(rkv_cache *cache, uint32_t dst, uint32_t src, int64_t from, int64_t to);

/* append_from of all of src.  dst must be empty: RKV_E_ARGUMENT. */
RKV_API rkv_status rkv_sequence_fork(rkv_cache *cache, uint32_t dst, uint32_t src);

/* Gives the device places of an idle sequence back: all that it has there (its
 * window tiles, the partly filled last one, those that lag) is copied out, once,
 * where no good host copy is left, and is read from the tail afterwards.  Tiles
 * that a sequence which is not parked shares stay, and so do the tile-layers of
 * KV layers without a tail.  May be called again: then what has come to be its
 * own goes too.  Any call takes a parked sequence; a step with it in its batch
 * ends the parking.
 * Queued: the copies go to the library's own stream, after all work so far; the
 * places are other tiles' at once, and the memory when its copy is over.  Blocks
 * only while host memory is added.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE, RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY,
 * RKV_E_DEVICE_CALL, RKV_E_POISONED. */
RKV_API rkv_status rkv_sequence_park(rkv_cache *cache, uint32_t sequence);

/* Brings the last tile of a sequence back to the device, where cells will be
 * appended to it, so that the next begin with it need not; and ends the parking.
 * Never needed for a correct result.  Queued on the library's own stream.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE, RKV_E_DEVICE_LIMIT, RKV_E_HOST_MEMORY,
 * RKV_E_DEVICE_CALL, RKV_E_POISONED. */
RKV_API rkv_status rkv_sequence_fetch(rkv_cache *cache, uint32_t sequence);

/* Shifts the cells at positions [from, to) by delta (either sign), in place: no
 * K is touched and nothing is copied, wherever the cells lie.  A rotary embedding
 * depends on differences of positions, so a step rotates the query back by the
 * delta instead, once for each delta among the cells of a sequence.  So the
 * frequencies must be known (rkv_cache_params.rope, or the KV layer's).  The
 * classic context shift, which keeps n cells and drops the next d:
 *
 *   rkv_sequence_remove(cache, s, n, n + d);
 *   rkv_sequence_shift(cache, s, n + d, RKV_POS_END, -d);
 *
 * Cells that are appended afterwards are stored as they come, at turn 0.
 * Dividing positions (self-extend) is not offered: it is no shift.
 *
 * can_shift answers whether the shift would succeed, changing nothing.  A range
 * that holds no cell and a delta of 0 are legal, and change nothing.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE (a step is open), RKV_E_ARGUMENT (the range;
 * a position would be negative, 2^62 or more, or not between those of the cells
 * around it), RKV_E_UNSUPPORTED (frequencies not given, K of another form,
 * RKV_TURNS_NONE), RKV_E_CAPACITY (more stretches of shifted cells than
 * max_turns; too many separate runs of positions), RKV_E_HOST_MEMORY. */
RKV_API rkv_status rkv_sequence_shift(rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to, int64_t delta);
RKV_API rkv_status rkv_sequence_can_shift(const rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to,
                                          int64_t delta);

/* Rewrites a sequence's tiles with dead cells (after ranges were removed) into
 * fewer, dense ones.  Tiles that other sequences share stay as they are, and so
 * do runs of tiles where it would save none.  A cell keeps its position and its
 * stored bytes; which cells come together in a leaf changes, so the last bits of
 * later outputs may, as with any other way of putting a sequence together.
 * Blocks until all work so far has ended; cells go by way of the host.  Takes
 * room for the new tiles before it gives the old ones back.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE, RKV_E_CAPACITY, RKV_E_DEVICE_LIMIT,
 * RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL, RKV_E_POISONED. */
RKV_API rkv_status rkv_sequence_compact(rkv_cache *cache, uint32_t sequence);

/* --------------------------------------------------------------------- step */

enum { RKV_REGIME_AUTO = 0, RKV_REGIME_DECODE = 1, RKV_REGIME_PREFILL = 2 };
#define RKV_DECODE_ROWS_MAX 16u

/* A sequence's part in a step.  Rows of the batch lie one entry after another
 * in q and out; rows of k and v are those of the entries with new cells.
 * Regimes differ in the order of arithmetic, so in the last bits: decode (auto
 * up to 16 rows) gives every row the bits of a one-row step; prefill gives
 * bits that do not depend on how a prompt is cut into chunks. */
typedef struct rkv_batch_entry {
    uint32_t struct_size;
    uint32_t sequence;
    uint32_t n_rows;
    uint32_t n_new_cells;         /* 0 (query only) or n_rows: row i is new cell i */
    uint32_t regime;
    uint32_t reserved;
    const int64_t *positions;     /* one per row, strictly increasing (but in a token tree);
                                   * NULL: the next ones
                                   * (query only: those of its last n_rows cells; to
                                   * be given where the positions have gaps) */
    const rkv_pos_range *visible; /* one per row, cuts the mask; NULL: all */
    const uint64_t *tree_mask;    /* NULL, or one per row: the new cells are a token tree, below */
} rkv_batch_entry;
#define RKV_BATCH_ENTRY_INIT {.struct_size = sizeof(rkv_batch_entry)}

/* Token trees.  An entry with a tree_mask verifies several continuations at
 * once.  Row i is new cell i; it sees the sequence as any row does, and of the
 * step's own new cells exactly those whose bit j is set in tree_mask[i], as far
 * as the site's mask and the row's visible range hold them (its own bit as well:
 * mostly a row sees itself and its ancestors):
 *
 *        0: "the"           tree_mask  0: 0b00001   positions  n
 *       /        \                     1: 0b00011              n + 1
 *    1: "cat"   2: "dog"               2: 0b00101              n + 1
 *      |           |                   3: 0b01011              n + 2
 *    3: "sat"   4: "ran"               4: 0b10101              n + 2
 *
 * At most draft_rows and 64 rows; positions must be given, at or after the
 * sequence's end, and may repeat.  The bits are those of such a step alone: they
 * differ in rounding from decoding a path by itself.  After the step the
 * sequence takes no other call but info, clear and rkv_sequence_accept. */

typedef struct rkv_batch {
    uint32_t struct_size;
    uint32_t n_entries; /* at most n_sequences, each sequence once */
    const rkv_batch_entry *entries;
} rkv_batch;
#define RKV_BATCH_INIT {.struct_size = sizeof(rkv_batch)}

/* Would these begins succeed, one after another?  Changes nothing.  RKV_OK, or
 * the error that the first failing begin would give, with what is lacking:
 * RKV_E_CAPACITY (it counts tiles, and runs of positions that follow by one),
 * RKV_E_BATCH, RKV_E_SEQUENCE, RKV_E_UNSUPPORTED, RKV_E_ARGUMENT.  Memory of
 * the host and device calls are not tried, nor the room for partials where
 * sequences share tiles (many rows each, over a long shared tail).
 * A token tree counts as if all of it had been accepted.
 * Errors besides: RKV_E_STATE (a step is open), RKV_E_HOST_MEMORY. */
RKV_API rkv_status rkv_cache_check(const rkv_cache *cache, const rkv_batch *batches, uint32_t n_batches);

/* Plans the step, reserves all that it needs, and starts its copies.  Takes no
 * stream; blocks only when steps_ahead steps are still running, or host memory
 * is being added.  Fails whole.
 * Errors: RKV_E_STATE (a step is open), RKV_E_ARGUMENT (batch is NULL),
 * RKV_E_BATCH, RKV_E_SEQUENCE, RKV_E_CAPACITY, RKV_E_DEVICE_LIMIT,
 * RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL, RKV_E_UNSUPPORTED,
 * RKV_E_POISONED. */
RKV_API rkv_status rkv_step_begin(rkv_cache *cache, const rkv_batch *batch);

/* Orders the step's tables before what follows on `stream`.  Queued.  Optional:
 * the first attend does it, also after a start that failed.  Errors:
 * RKV_E_STATE, RKV_E_DEVICE_CALL, RKV_E_HOST_MEMORY (host executor). */
RKV_API rkv_status rkv_step_start(rkv_cache *cache, void *stream);

/* Element (row, head, i) at data + row * row_stride + head * head_stride + i;
 * strides in elements, not negative; 0: dense (head_stride = dim, row_stride =
 * heads * head_stride).  Rows and heads of `out` must not overlap.  Aligned to
 * its elements.  Device memory (the host executor: any memory). */
typedef struct rkv_tensor {
    void *data;
    rkv_type type; /* f32, f16, bf16; 0: f16 */
    uint32_t reserved;
    int64_t row_stride, head_stride;
} rkv_tensor;

typedef struct rkv_attend_params {
    uint32_t struct_size;
    uint32_t site;
    rkv_tensor q;           /* (rows, n_q_heads, head_dim_k), rotated already */
    rkv_tensor k, v;        /* (new cells, n_kv_heads, head_dim); data NULL at later sites of a KV
                             * layer, and in steps without new cells */
    rkv_tensor out;         /* (rows, n_q_heads, head_dim_v) */
    float *lse;             /* NULL, or (rows, n_q_heads): natural log of the sum of exp(score) */
    int64_t lse_row_stride; /* elements; 0: n_q_heads */
    const float *sinks;     /* NULL, or n_q_heads logits that join each softmax's sum once; like lse it lies
                             * where tensors do, and is read when the work runs */
} rkv_attend_params;
#define RKV_ATTEND_PARAMS_INIT {.struct_size = sizeof(rkv_attend_params)}

/* Stores the new cells of the site's KV layer (first site of it), and attends.
 * Queued on `stream`: reads of q, k, v and writes of out, lse are ordered on
 * it.  Sites come in the order of sites[], each once.  A row that sees nothing
 * gives zeros and the sink's lse, or -inf.
 * Errors: RKV_E_STATE (order), RKV_E_ARGUMENT (tensors): the step goes on.
 * RKV_E_DEVICE_CALL, RKV_E_HOST_MEMORY (host executor, with more in flight than
 * ever before): the step can only be aborted. */
RKV_API rkv_status rkv_step_attend(rkv_cache *cache, const rkv_attend_params *params, void *stream);

/* Ends the step; its cells now belong to the sequences.  `next` is an optional
 * hint of the next batch, for prediction (NULL: the same sequences again).
 * Queued.  Errors: RKV_E_STATE (sites are missing), RKV_E_BATCH,
 * RKV_E_SEQUENCE, RKV_E_ARGUMENT, RKV_E_UNSUPPORTED (`next`): the step stays
 * open.  RKV_E_DEVICE_CALL, RKV_E_HOST_MEMORY: it can only be aborted. */
RKV_API rkv_status rkv_step_end(rkv_cache *cache, const rkv_batch *next, void *stream);

/* Takes back what the step appended.  Work already queued runs on, harmlessly.
 * Errors: RKV_E_STATE (no step is open). */
RKV_API rkv_status rkv_step_abort(rkv_cache *cache);

/* Keeps the cells cells[0] < cells[1] < .. of the token tree that the sequence's
 * last step stored, at the positions that they had there, which must rise
 * strictly; the others are gone.  n_cells 0 gives the whole tree up.  K and V of
 * cells that are not at their place yet are moved on the device, queued on
 * `stream` (not used where none is moved); what reads them later is ordered
 * after that.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE (a step is open; there is no tree),
 * RKV_E_ARGUMENT (cells), RKV_E_DEVICE_CALL, RKV_E_HOST_MEMORY (host executor).
 * A device call that fails halfway ends the cache: RKV_E_POISONED. */
RKV_API rkv_status rkv_sequence_accept(rkv_cache *cache, uint32_t sequence, const uint32_t *cells, uint32_t n_cells,
                                       void *stream);

/* ------------------------------------------------------------------- graphs */

/* With RKV_FLAG_GRAPHS the attends of a step can be captured into the engine's
 * CUDA graph, together with the engine's own kernels, and replayed in later
 * steps while the sequences grow.  begin, start and end always run eagerly:
 *
 *   capture   rkv_step_begin, _start, _graph_key -> k
 *             cudaStreamBeginCapture(stream)
 *               rkv_graph_capture(cache, first site, 0, stream)
 *               engine kernels, rkv_step_attend of each site
 *               rkv_graph_capture_end(cache, stream, &g)
 *               engine kernels
 *             cudaStreamEndCapture             keep its exec and g under k
 *             rkv_step_replay, cudaGraphLaunch, rkv_step_end
 *   replay    rkv_step_begin, _start, _graph_key -> k, known
 *             rkv_step_replay(cache, &g, stream), cudaGraphLaunch, rkv_step_end
 *
 * Nothing of a capture runs, and the step stands where it stood before it: the
 * graph is then replayed in the same step, or the sites are attended eagerly.  A
 * capture holds any run of sites, so a step may be several graphs, one after
 * another, with eager attends between them; and a step may be captured twice.
 * q, k, v, out, lse and sinks are held by the graph as the capture saw them.
 *
 * The key tells whether a graph fits a step: it depends on
 *   - the batch's entries in their order: rows, new cells or none, regime;
 *   - the list of tail tile-layers that the step reads: which ones, in which order.
 *     Tiles enter the tail in batches, once in T/2 steps (T: tile_cells);
 *     Tail tile-layers of a sliding or chunked mask also leave the list as the
 *     mask moves on;
 *   - what sequences of the batch share, token trees, and turns of shifted cells;
 *   - twofold growth of a launch's work beyond the device's multiprocessors, as
 *     many short sequences may cause.
 * It does not depend on which sequences the entries are of, on their lengths and
 * positions, or on which tiles are on the device: without a tail, a graph
 * captured over dummy sequences fits all others.  Keys are of one cache.
 *
 * The last part of the ring's copies for a step is made by the graph of the step
 * before, as far as there is time: the hints gap_ns or step_ns, and
 * link_bytes_per_s, tell how much.  The link rests less where they are given.
 *
 * A graph is the caller's: drop it with the exec.  It may run while the next
 * steps are begun.  Outputs have the bits of an eager step.  The flag costs one
 * small kernel a step, room for a further step's tables, and promotion: freed
 * window room is filled by tiles that are due.  A decode step that only lengthens
 * its sequences is not planned, in other caches either; where the last one was
 * replayed, begin does not go through the tail's list as well.  Profiles
 * (profile.h) are refused. */
typedef struct rkv_graph {
    uint32_t struct_size;
    uint32_t first_site, n_sites;
    uint32_t n_ahead; /* tail tile-layers that it copies ahead, for its next replay */
    uint64_t key;
} rkv_graph;
#define RKV_GRAPH_INIT {.struct_size = sizeof(rkv_graph)}

/* Of the open step.  Errors: RKV_E_STATE (no step is open), RKV_E_UNSUPPORTED
 * (the cache was created without RKV_FLAG_GRAPHS), RKV_E_ARGUMENT. */
RKV_API rkv_status rkv_step_graph_key(const rkv_cache *cache, uint64_t *out_key);

/* Attends from here on are recorded on `stream`, which is being captured: those
 * of n_sites sites (0: all that are left) from `first_site` on.  The step must
 * have been started.  Errors: RKV_E_STATE,
 * RKV_E_ARGUMENT, RKV_E_UNSUPPORTED (without the flag; a prefill step whose tiles
 * leave the device within it; a tail in memory that could not be pinned),
 * RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_graph_capture(rkv_cache *cache, uint32_t first_site, uint32_t n_sites, void *stream);

/* The last call on the cache before the stream's capture ends: its own copies
 * join the stream.  Where this or a captured attend failed, the stream's capture
 * is of no use; the step goes on as if none had been begun.
 * Errors: RKV_E_STATE (no capture, or sites are missing: it is dropped), RKV_E_ARGUMENT,
 * RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_graph_capture_end(rkv_cache *cache, void *stream, rkv_graph *out_graph);

/* The graph's sites are attended by the launch of the engine's graph, which must
 * come next on `stream`.  Queued.  Starts the step where it was not started.
 * Errors: RKV_E_STATE (another key, or its first site is not the next one),
 * RKV_E_ARGUMENT, RKV_E_UNSUPPORTED: the step goes on, and can be attended
 * eagerly.  RKV_E_DEVICE_CALL, RKV_E_HOST_MEMORY: it can only be aborted, as also
 * where the graph's launch itself fails. */
RKV_API rkv_status rkv_step_replay(rkv_cache *cache, const rkv_graph *graph, void *stream);

#ifdef __cplusplus
}
#endif
#endif
