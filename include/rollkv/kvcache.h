/* SPDX-License-Identifier: MIT
 *
 * rollkv/kvcache.h: a cache: made, changed, asked about.
 * A part of rollkv.h, which has the conventions.
 */
#ifndef ROLLKV_KVCACHE_H
#define ROLLKV_KVCACHE_H

#include "params.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rkv_cache rkv_cache;

/* Blocks; allocates all device memory and the first host slab.  Before that, a GPU's
 * link is measured, where its rate is wanted and not given (params.h).  On failure
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
 * free_bytes, windows and steps repeats its bits.  rkv_cache_info and rkv_site_info
 * tell them, and the numbers that they follow from. */
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
    char kernels[16];              /* "ref", "avx2", "avx512", "avx512vnni"; "cuda" */
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
    uint32_t active_sequences;
    uint32_t reserved3;
    uint32_t link_is_measured;       /* 1: link_bytes_per_s was, at creation; 0: given, the executor's, or unknown */
    uint32_t reserved4;
    char cpu_kernels[16];            /* of the CPU's share, likewise (ROLLKV_KERNELS); "": no threads yet */
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
    uint64_t cpu_ns; /* by the clock of the thread that ends each job: at most what threads took for them */
    uint64_t cpu_late_bytes;          /* of cpu_bytes, those computed by the device after all, as threads were late;
                                       * what has run so far */
    uint64_t cpu_late_jobs;           /* so often, a site of a step each */
} rkv_cache_stats;
RKV_API rkv_status rkv_cache_stats_get(const rkv_cache *cache, rkv_cache_stats *out_stats);

#ifdef __cplusplus
}
#endif
#endif
