/* step.h: runs a plan and the cache's moves: the only part that enqueues.
 *
 *             begin            start            last site, end
 *   [ IDLE ] -------> [ BEGUN ] -----> [ RUNNING ] -----------> [ IDLE ]
 *       ^                |                 |
 *       +---- abort -----+-----------------+     device fault: poisoned, in rkv_cache
 *
 * Owner of the state: the thread that calls; api holds the handle's mutex. */
#ifndef RKVI_STEP_H
#define RKVI_STEP_H

#include "batch.h"
#include "config.h"
#include "device.h"

/* The public handle.  Its insides are in cache.h and step_types.h; api sees
 * it through these calls alone.  All but create and destroy are called with
 * the handle's lock held. */

/* Takes over cfg's arrays and the device on success (destroy frees both). */
rkv_status rkvi_handle_create(const rkvi_config *cfg, rkvi_device *dev, rkv_cache **out);
void rkvi_handle_destroy(rkv_cache *h);

const rkvi_config *rkvi_handle_config(const rkv_cache *h);
rkvi_device *rkvi_handle_device(const rkv_cache *h);
/* A batch with room for n_sequences entries and max_rows rows, for api to fill. */
rkvi_batch *rkvi_handle_batch(rkv_cache *h);

void rkvi_handle_lock(const rkv_cache *h);
void rkvi_handle_unlock(const rkv_cache *h);

/* RKV_OK, or RKV_E_POISONED with the first fault's text. */
rkv_status rkvi_handle_alive(const rkv_cache *h);
bool rkvi_step_is_open(const rkv_cache *h);

void rkvi_handle_info(const rkv_cache *h, rkv_cache_info *out);
void rkvi_handle_layer_info(const rkv_cache *h, uint32_t layer, rkv_kv_layer_info *out);
void rkvi_handle_site_info(const rkv_cache *h, uint32_t site, rkv_site_info *out);
void rkvi_handle_stats(const rkv_cache *h, rkv_cache_stats *out);
void rkvi_handle_sequence(const rkv_cache *h, uint32_t sequence, rkv_sequence_state *out);
/* The first position that it has in [from, to); `to`: none. */
int64_t rkvi_handle_first_pos(const rkv_cache *h, uint32_t sequence, int64_t from, int64_t to);
/* Writes at most `room` ranges; returns how many there are. */
uint64_t rkvi_handle_ranges(const rkv_cache *h, uint32_t sequence, rkv_pos_range *out, uint64_t room);

/* Cells of the sequence's token tree that wait to be accepted, 0: none; their
 * positions, and the end before them (either may be NULL). */
uint32_t rkvi_handle_sequence_tree(const rkv_cache *h, uint32_t sequence, const int64_t **out_pos, int64_t *out_end);
/* Between steps.  Moves the accepted cells' K and V on `stream`; the rest is cut. */
rkv_status rkvi_step_accept(rkv_cache *h, uint32_t sequence, const uint32_t *cells, uint32_t n, void *stream);

/* RKV_E_SEQUENCE where rows that go on from the end that is left would see what a
 * sliding mask has let go. */
rkv_status rkvi_handle_can_remove(const rkv_cache *h, uint32_t sequence, int64_t from, int64_t to);

/* Between steps only. */
void rkvi_handle_clear(rkv_cache *h);
rkv_status rkvi_handle_sequence_remove(rkv_cache *h, uint32_t sequence, int64_t from, int64_t to);
/* can_remove of the end that dst comes to have; RKV_E_HOST_MEMORY. */
rkv_status rkvi_handle_sequence_share(rkv_cache *h, uint32_t dst, uint32_t src, int64_t from, int64_t to);

/* Positions: api has checked the range, and that the cache can shift at all. */
rkv_status rkvi_handle_sequence_can_shift(const rkv_cache *h, uint32_t sequence, int64_t from, int64_t to,
                                          int64_t delta);
rkv_status rkvi_handle_sequence_shift(rkv_cache *h, uint32_t sequence, int64_t from, int64_t to, int64_t delta);
rkv_status rkvi_handle_park(rkv_cache *h, uint32_t sequence);
rkv_status rkvi_handle_fetch(rkv_cache *h, uint32_t sequence);
rkv_status rkvi_handle_compact(rkv_cache *h, uint32_t sequence);
/* The CPU's share from the next begin on, of a cache that has threads. */
typedef struct rkvi_cpu_wish {
    bool is_chosen;              /* by the rates, those that are 0 measured; else: */
    bool has_share;              /* any */
    uint32_t share;
    const uint32_t *site_shares; /* NULL: `share` for all */
    uint64_t free_bytes;
    rkvi_cpu_rates rates;
} rkvi_cpu_wish;
rkv_status rkvi_handle_set_cpu_share(rkv_cache *h, const rkvi_cpu_wish *wish);
/* At most most_tiles; the KV layer has a tail. */
rkv_status rkvi_handle_set_window(rkv_cache *h, uint32_t layer, uint64_t window_tiles);

/* Counts tiles over several batches (api has resolved each of them, positions
 * going on from batch to batch): call reset, then add for each. */
void rkvi_check_reset(rkv_cache *h);
rkv_status rkvi_check_add(rkv_cache *h, const rkvi_batch *batch);

rkv_status rkvi_step_begin(rkv_cache *h, const rkvi_batch *batch);
rkv_status rkvi_step_start(rkv_cache *h, void *stream);

/* Tensors resolved: strides filled, types set.  The site is the next one. */
typedef struct rkvi_attend {
    uint32_t site;
    rkvi_tensor q, k, v, out;
    float *lse;
    int64_t lse_row_stride;
    const float *sinks;
} rkvi_attend;
uint32_t rkvi_step_next_site(const rkv_cache *h); /* n_sites when all are done */
const rkvi_batch *rkvi_step_batch(const rkv_cache *h);
rkv_status rkvi_step_attend(rkv_cache *h, const rkvi_attend *a, void *stream);

/* Graphs: see rollkv/graph.h.  The caller checked that the cache was made for them. */
typedef struct rkvi_step_graph {
    uint32_t first_site, n_sites, n_ahead;
    uint64_t key;
} rkvi_step_graph;
uint64_t rkvi_step_key(const rkv_cache *h);
bool rkvi_step_captures(const rkv_cache *h);
uint32_t rkvi_step_capture_site(const rkv_cache *h); /* the next one */
rkv_status rkvi_step_capture_begin(rkv_cache *h, uint32_t first_site, uint32_t n_sites, void *stream);
rkv_status rkvi_step_capture_end(rkv_cache *h, void *stream, rkvi_step_graph *out);
rkv_status rkvi_step_replay(rkv_cache *h, const rkvi_step_graph *graph, void *stream);

/* `next` resolved, or NULL. */
rkv_status rkvi_step_end(rkv_cache *h, const rkvi_batch *next, void *stream);
void rkvi_step_abort(rkv_cache *h);

#endif
