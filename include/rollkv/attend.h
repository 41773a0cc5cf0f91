/* SPDX-License-Identifier: MIT
 *
 * rollkv/attend.h: a step: batch, attention, token trees.
 * A part of rollkv.h, which has the conventions.
 */
#ifndef ROLLKV_ATTEND_H
#define ROLLKV_ATTEND_H

#include "sequence.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    uint32_t n_entries; /* at most active_sequences, each sequence once */
    const rkv_batch_entry *entries;
} rkv_batch;
#define RKV_BATCH_INIT {.struct_size = sizeof(rkv_batch)}

/* Would these begins succeed, one after another?  Changes nothing.  RKV_OK, or
 * the error that the first failing begin would give, with what is lacking:
 * RKV_E_CAPACITY (it counts tiles, and runs of positions that follow by one),
 * RKV_E_BATCH, RKV_E_SEQUENCE, RKV_E_UNSUPPORTED, RKV_E_ARGUMENT.  Memory of
 * the host and device calls are not tried, nor the room for partials where
 * sequences share tiles (many rows each, over a long shared tail).
 * A token tree counts as if all of it had been accepted.  Nor are device places,
 * which can lack where more than active_sequences are not parked.
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
 * heads * head_stride).  Rows and heads of `out` must not overlap, nor it q, k or v:
 * parts of it are written while others are still read.  Aligned to
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

#ifdef __cplusplus
}
#endif
#endif
