/* SPDX-License-Identifier: MIT
 *
 * rollkv/profile.h: where attention looks, and what to keep on the device.
 *
 * With a profile started, steps also sum up how much of each decode row's
 * attention (the softmax's mass) falls on which cells, per KV layer and KV head.
 * Outputs keep their bits.  It is for measuring: a profiled step has shorter
 * work items, and copies their sums to the host.
 *
 * Advice turns it, with memory and link bandwidth, into budgets
 * (resident_cells).  Nothing is ever dropped: what has no room on the device is
 * streamed, exactly.
 *
 * Since 0.1 unless a declaration says otherwise.
 */
#ifndef ROLLKV_PROFILE_H
#define ROLLKV_PROFILE_H

#include "rollkv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begins a profile, with all sums at 0; one step in `every` is profiled (0: all).
 * Takes pinned host memory until stop.
 * Errors: RKV_E_STATE (a step is open, a profile runs), RKV_E_UNSUPPORTED (a cache
 * with RKV_FLAG_GRAPHS), RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_profile_start(rkv_cache *cache, uint32_t every);
/* Blocks until profiled steps are over.  The sums stay until the next start.
 * Errors: RKV_E_STATE (a step is open, none runs), RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_profile_stop(rkv_cache *cache);

#define RKV_PROFILE_EDGES 48
#define RKV_PROFILE_ALL_HEADS 0xffffffffu

/* Mean shares of the mass over rows and query heads (all sites of the KV layer,
 * attention sinks and the cells of token trees left out).  Cells of a work item
 * count alike, so edges finer than a leaf (rkv_kv_layer_info.leaf_cells, more in
 * long contexts) are interpolated. */
typedef struct rkv_profile_mass {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t n_rows;                  /* rows times query heads; 0: nothing was profiled */
    double recent[RKV_PROFILE_EDGES]; /* [b]: cells less than 2^b positions before the row */
    double
        first[RKV_PROFILE_EDGES]; /* [b]: cells less than 2^b positions behind the sequence's first */
} rkv_profile_mass;
/* Blocks until profiled steps are over.  Errors: RKV_E_ARGUMENT, RKV_E_STATE (a step is open),
 * RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_profile_mass_get(rkv_cache *cache, uint32_t kv_layer, uint32_t kv_head,
                                        rkv_profile_mass *out_mass);

/* What is to be served. */
typedef struct rkv_advise_params {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t context_cells;    /* of all sequences of a step together; must be given */
    uint64_t device_bytes;     /* for windows */
    uint64_t link_bytes_per_s; /* 0: the cache's; RKV_LINK_UNKNOWN */
    uint64_t step_ns;          /* compute of a step; 0: the cache's */
} rkv_advise_params;
#define RKV_ADVISE_PARAMS_INIT \
    { \
        .struct_size = sizeof(rkv_advise_params) \
    }

typedef struct rkv_advice {
    uint32_t struct_size;
    uint32_t rank;           /* 0: the KV layer to make resident first */
    uint64_t resident_cells; /* whole tiles, as rkv_kv_layer_params and rkv_cache_set_residency take
                              * them: RKV_RESIDENT_NONE where there is room for none */
    uint64_t streamed_bytes; /* a step, over the KV layer's sites */
    double tail_mass;        /* share of the profiled mass beyond resident_cells; 0 without a profile */
} rkv_advice;

typedef struct rkv_advice_sum {
    uint32_t struct_size;
    uint32_t is_hidden; /* 1: the link is done within step_ns */
    uint64_t window_bytes, streamed_bytes;
    uint64_t link_ns; /* that the streamed bytes take; 0: bandwidth unknown */
} rkv_advice_sum;

/* Budgets for each KV layer; out_advice has room for all of them, with the
 * stride out_advice[0].struct_size.  First come KV layers whose byte is read
 * by the most sites a step; among equals, those whose attention lies furthest
 * from the cells that a window keeps (a sequence's first ones).
 * Errors: RKV_E_ARGUMENT, RKV_E_OVERFLOW (a size, rate or time above 2^62), RKV_E_STATE (a step
 * is open), RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_profile_advise(rkv_cache *cache, const rkv_advise_params *params,
                                      rkv_advice *out_advice, rkv_advice_sum *out_sum);

#ifdef __cplusplus
}
#endif
#endif
