/* SPDX-License-Identifier: MIT
 *
 * rollkv/cells.h: K and V of cells, in and out.
 *
 * For engines that get a prefix from another process or cache, or hand one on.
 * Export reads cells of a sequence, import appends cells to one; both work on
 * one KV layer at a time.
 *
 *   rkv_import_begin    reserves tiles for n cells with their positions
 *   rkv_import_cells    K and V of one KV layer, its cells in order, in as many
 *                       calls as it takes; KV layers in any order
 *   rkv_import_end      the cells belong to the sequence; or rkv_import_abort
 *
 *             begin                       end, with all cells of all KV layers
 *   [ idle ] -------> [ importing ] ------------------------> [ idle ]
 *       ^                  |
 *       +----- abort ------+
 *
 * Imported cells go into fresh tiles: into the window while its budget has
 * room, else straight into host memory, without crossing the link.  A last tile
 * that is partly filled is copied first, and continued in the copy.  Until end,
 * the sequence is as before; a call that fails changes nothing.
 *
 * Cells that a KV layer would have freed (rkv_kv_layer_params.keep_all) are taken
 * and dropped; those that it has freed can't be exported (RKV_E_SEQUENCE).
 *
 * All calls block: they wait for the cache's enqueued work.  They are legal
 * between steps only, and with an import open no step, no change of a sequence,
 * no export, save or load and no other import can begin (RKV_E_STATE).
 *
 * Since 0.1 unless a declaration says otherwise.
 */
#ifndef ROLLKV_CELLS_H
#define ROLLKV_CELLS_H

#include "rollkv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How K and V lie outside the cache.
 *   TENSOR  f32, f16 or bf16 elements, with strides, as in rkv_attend_params.
 *   BLOCKS  ggml's blocks, dense, (cells, heads, dim / 32): q8_0 is one f16
 *           scale and 32 int8, 34 bytes; q4_0 one f16 scale and 16 bytes, of
 *           which byte i holds element i in its low and 16 + i in its high
 *           half, 18 bytes.  Head dims that are multiples of 32 only.
 *   STORED  as the KV layer stores them, dense, (cells, heads, bytes): a head's
 *           elements (f16, bf16 2 bytes each, fp8 and q8_0 1, q4_0 a half), then
 *           its f16 scales (q8_0, q4_0: one for each 32 elements).
 * STORED, and BLOCKS of the stored type, are copied bit by bit; other forms are
 * converted on the host, and rounded and saturated as rkv_step_attend stores.
 * In any form, NaN comes in as 0 and infinity as the largest value. */
enum { RKV_CELLS_TENSOR = 0, RKV_CELLS_BLOCKS = 1, RKV_CELLS_STORED = 2 };

/* Device memory is read and written through pinned host memory, and converted on
 * the host.  (The host executor has one memory: either word means it.) */
enum { RKV_MEMORY_HOST = 0, RKV_MEMORY_DEVICE = 1 };

/* K and V of the cells [first_cell, first_cell + n_cells) of an import, or of an
 * export's range, counted from 0. */
typedef struct rkv_cells {
    uint32_t struct_size;
    uint32_t kv_layer;
    uint32_t form;   /* RKV_CELLS_ */
    uint32_t memory; /* RKV_MEMORY_ */
    uint64_t first_cell, n_cells;
    rkv_tensor k, v; /* (n_cells, n_kv_heads, head_dim).  BLOCKS: type q8_0 or q4_0, strides 0.
                      * STORED: type 0, strides 0 */
} rkv_cells;
#define RKV_CELLS_INIT {.struct_size = sizeof(rkv_cells)}

/* The number of cells at positions [from, to), and (out_positions not NULL) their
 * positions, which must be at most room_cells.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE, RKV_E_ARGUMENT. */
RKV_API rkv_status rkv_export_positions(rkv_cache *cache, uint32_t sequence, const rkv_pos_range *range,
                                        uint64_t room_cells, int64_t *out_positions,
                                        uint64_t *out_n_cells);

/* Writes cells of the range to k and v.  K is as it was stored; shifted cells,
 * whose K is that of another position, are refused.  Device memory: what was
 * queued on `stream` before comes first; host memory: stream is not used.
 * Errors: RKV_E_SEQUENCE (fewer cells in the range), RKV_E_STATE,
 * RKV_E_ARGUMENT, RKV_E_UNSUPPORTED, RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_export_cells(rkv_cache *cache, uint32_t sequence, const rkv_pos_range *range,
                                    const rkv_cells *cells, void *stream);

/* Positions strictly increase, and lie behind the sequence's; NULL: the next
 * ones.  They are copied.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE, RKV_E_ARGUMENT, RKV_E_CAPACITY,
 * RKV_E_DEVICE_LIMIT, RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_import_begin(rkv_cache *cache, uint32_t sequence, uint64_t n_cells,
                                    const int64_t *positions);

/* first_cell is the number of cells that the KV layer has got so far.  Device
 * memory: what was queued on `stream` before comes first; the memory may be
 * used again when the call returns.
 * Errors: RKV_E_STATE (no import is open, or the cells are out of order),
 * RKV_E_ARGUMENT, RKV_E_UNSUPPORTED: the import stays open.  RKV_E_DEVICE_CALL:
 * it can only be aborted. */
RKV_API rkv_status rkv_import_cells(rkv_cache *cache, const rkv_cells *cells, void *stream);

/* Errors: RKV_E_STATE (cells are missing): the import stays open. */
RKV_API rkv_status rkv_import_end(rkv_cache *cache);
/* Errors: RKV_E_STATE (no import is open). */
RKV_API rkv_status rkv_import_abort(rkv_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
