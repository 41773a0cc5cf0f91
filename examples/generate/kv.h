/* SPDX-License-Identifier: MIT
 *
 * Attention through librollkv: one KV layer and one site per model layer. A step is the next rows of
 * sequence 0, unless it is given a batch. The only file pair that calls the library for a step.
 */
#ifndef KV_H
#define KV_H

#include <rollkv/rollkv.h>
#include <stdbool.h>

#include "attention.h"
#include "model.h"

struct kv_settings {
    int32_t device;          /* as rkv_cache_params has it */
    void *stream;            /* of that device; NULL: the cache's default stream */
    rkv_type out_type;       /* of what attention writes; q, k and v are f32 */
    uint64_t positions;      /* capacity in cells */
    uint32_t sequences;      /* 0: one */
    bool shifts;             /* positions can be shifted */
    size_t max_rows;         /* of a step */
    rkv_type type_k, type_v; /* storage */
    uint32_t mode;           /* RKV_MODE_ */
    uint32_t tile_cells;     /* 0: the library's choice, as for all sizes below */
    uint64_t resident_cells;
    uint64_t device_limit_bytes;
    uint64_t ring_bytes;
    uint64_t link_bytes_per_s; /* of the host executor; 0: as fast as the machine copies */
    uint32_t threads;
    uint64_t step_ns;       /* hint: a step's compute; 0: not known */
    double output_fraction; /* hint: the part of it that lies behind the last attention */
};

struct kv;

struct kv *kv_create(const struct model_shape *shape, const struct kv_settings *settings,
                     struct gen_error *err);
void kv_destroy(struct kv *kv);
struct attention kv_attention(struct kv *kv);
/* What the next step is of; the entries, and what they point to, must live until it begins. */
void kv_set_batch(struct kv *kv, const rkv_batch_entry *entries, uint32_t n_entries);
rkv_cache *kv_cache(struct kv *kv);
/* Time in the library's calls for steps so far; on the host with waiting for their results, which a
 * GPU runs later. */
uint64_t kv_spent_ns(const struct kv *kv);

/* What kv_create would take with these settings. */
int kv_estimate(const struct model_shape *shape, const struct kv_settings *settings,
                rkv_estimate *out_estimate, struct gen_error *err);
int kv_stats(const struct kv *kv, rkv_cache_stats *out_stats, struct gen_error *err);
int kv_info(const struct kv *kv, rkv_cache_info *out_info, struct gen_error *err);

#endif
