/* SPDX-License-Identifier: MIT
 *
 * api_internal.h: what the exported functions share: check, copy structs in
 * and out, call, status.  No logic.
 */
#ifndef RKVI_API_INTERNAL_H
#define RKVI_API_INTERNAL_H

#include "config_copy.h"
#include "config_estimate.h"
#include "step.h"

/* A cache on an executor that the caller made: what tests use.  On success the
 * cache owns `dev`; on failure it is as before. */
rkv_status rkvi_api_create_on(const rkv_cache_params *params, rkvi_device *dev, rkv_cache **out);

/* Logs a failure, as the last thing that an exported function does. */
rkv_status rkvi_api_told(const char *call, rkv_status s);

/* api.c: an exported function begins with enter, which locks the handle where
 * it succeeds (it is there and not poisoned), and returns what leave returns. */
rkv_status rkvi_api_enter(const rkv_cache *cache);
rkv_status rkvi_api_leave(const rkv_cache *cache, const char *call, rkv_status s);
rkv_status rkvi_api_need_no_step(const rkv_cache *cache);
rkv_status rkvi_api_need_step(const rkv_cache *cache);

/* api_device.c: executors and what they grant. */
rkv_status rkvi_api_params(const rkv_cache_params *params, rkv_cache_params *out); /* copied in */
/* RKV_OK, or RKV_E_NO_DEVICE with what there is. */
rkv_status rkvi_api_device_exists(int32_t device);
rkv_status rkvi_api_machine(const rkv_cache_params *p, rkvi_machine *out);
rkv_status rkvi_api_machine_of(rkvi_device *dev, rkvi_machine *out);
/* Refuses a KV layer that the executor's kernels do not cover. */
rkv_status rkvi_api_supported(rkvi_device *dev, const rkvi_config *cfg);
rkv_status rkvi_api_device_create(const rkv_cache_params *p, rkvi_device **out);

/* api_batch.c: a public batch becomes a resolved one in `out`.
 * What a sequence ends with, where that is not what the cache holds now: after
 * the batches before (check), or after the open step (the hint of end). */
typedef struct rkvi_api_end {
    uint64_t n_cells;
    int64_t pos_begin, pos_end;
    uint32_t n_tree; /* cells that wait to be accepted: no step before that */
} rkvi_api_end;
typedef void (*rkvi_api_end_fn)(const void *from, uint32_t sequence, rkvi_api_end *out);
typedef struct rkvi_api_batch_source {
    const rkvi_config *cfg;
    rkvi_api_end_fn end_of;
    const void *from; /* of end_of */
} rkvi_api_batch_source;
rkv_status rkvi_api_batch(const rkvi_api_batch_source *source, const rkv_batch *batches, uint32_t index,
                          rkvi_batch *out);
/* The sequence's end after the entry's new cells. */
void rkvi_api_end_add(rkvi_api_end *end, const rkvi_batch *batch, const rkvi_batch_entry *entry);

/* api_sequence.c: what calls on sequences check; enter_change is for those that
 * are legal between steps alone. */
rkv_status rkvi_api_need_sequence(const rkv_cache *cache, const char *name, uint32_t sequence);
rkv_status rkvi_api_need_range(int64_t from, int64_t to);
rkv_status rkvi_api_need_room(const char *name, uint64_t room); /* of an array: 2^62 at most */
rkv_status rkvi_api_enter_change(const rkv_cache *cache, uint32_t sequence, const char *call);
rkv_status rkvi_api_need_layer(const rkv_cache *cache, uint32_t kv_layer);

/* api_tree.c: token trees. */
rkv_status rkvi_api_need_accepted(const rkv_cache *cache, uint32_t sequence);
rkv_status rkvi_api_check_tree(const rkvi_config *cfg, uint32_t i, const rkv_batch_entry *e);
rkv_status rkvi_api_fill_tree(const rkv_batch_entry *e, const rkvi_api_end *end, rkvi_batch *out);

/* api_tensor.c: strides filled in, types set, all that a kernel would touch
 * within 2^62 bytes. */
rkv_status rkvi_api_attend(const rkvi_config *cfg, const rkvi_batch *batch,
                           const rkv_attend_params *params, rkvi_attend *out);

/* api_tensor.c: one tensor alone; of what is written, rows and heads don't overlap. */
typedef struct rkvi_api_shape {
    const char *name;
    uint64_t rows, heads, dim;
} rkvi_api_shape;
rkv_status rkvi_api_tensor(const rkvi_api_shape *shape, const rkv_tensor *t, bool is_output, rkvi_tensor *out);

/* api_state.c: parameters copied in, and the run itself with read or write set,
 * which takes the handle's lock; the caller tells of a failure. */
struct rkv_state_params;
rkv_status rkvi_api_state_params(const struct rkv_state_params *params, struct rkv_state_params *out);
rkv_status rkvi_api_state_run(rkv_cache *cache, const struct rkv_state_params *p, bool is_load);

#endif
