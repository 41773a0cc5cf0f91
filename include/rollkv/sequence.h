/* SPDX-License-Identifier: MIT
 *
 * rollkv/sequence.h: sequences of a cache.
 * A part of rollkv.h, which has the conventions.
 */
#ifndef ROLLKV_SEQUENCE_H
#define ROLLKV_SEQUENCE_H

#include "kvcache.h"

#ifdef __cplusplus
extern "C" {
#endif

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
 * which is there ahead of need, three times over.  Where KV layers freed what their masks hide,
 * the sequence can't end below the lowest position from which rows find all that
 * they see; the message names it (an empty sequence is always possible).
 * Errors: RKV_E_SEQUENCE (no such sequence; that lowest end), RKV_E_STATE,
 * RKV_E_ARGUMENT (from < 0, from > to, to > RKV_POS_END), RKV_E_HOST_MEMORY (a
 * cut in the middle alone, and only after the machine refused a few bytes at each
 * of three removals and shifts before it; nothing changed). */
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
 * Errors: RKV_E_SEQUENCE (either; dst would end below the lowest position that
 * remove allows src), RKV_E_STATE, RKV_E_ARGUMENT (the range; positions before
 * dst's end; dst is src), RKV_E_HOST_MEMORY, RKV_E_CAPACITY (dst would have more
 * stretches of shifted cells than max_turns). */
RKV_API rkv_status rkv_sequence_append_from(rkv_cache *cache, uint32_t dst, uint32_t src, int64_t from, int64_t to);

/* append_from of all of src.  dst must be empty: RKV_E_ARGUMENT. */
RKV_API rkv_status rkv_sequence_fork(rkv_cache *cache, uint32_t dst, uint32_t src);

/* Gives the device places of an idle sequence back: all that it has there (its
 * window tiles, the partly filled last one, those that lag) is copied out, once,
 * where no good host copy is left, and is read from the tail afterwards.  Tiles
 * that a sequence which is not parked shares stay, and so do the tile-layers of
 * KV layers without a tail.  May be called again: then what has come to be its
 * own goes too.  Any call takes a parked sequence; a step with it in its batch
 * ends the parking, unless it is aborted.
 * So a cache for many chats of which few are at work has an n_sequences for all
 * of them and active_sequences for those, and parks a chat when it pauses.
 * Without a place for it begin and fetch say RKV_E_DEVICE_LIMIT: park another one
 * (or again one that has shared tiles).
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
 * Cells that are appended afterwards are stored as they come, at turn 0.  So
 * with each round another stretch of cells has a delta of its own, until its
 * cells are dropped: a context of c cells that does this whenever it is full
 * needs max_turns of (c - n) / d, rounded up, less 1; the default, 8, is enough
 * where d is a ninth of c - n or more.  Where max_turns is used up, shift refuses.
 * Dividing positions (self-extend) is not offered: it is no shift.
 *
 * can_shift answers whether the shift would succeed, changing nothing.  A range
 * that holds no cell and a delta of 0 are legal, and change nothing.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE (a step is open), RKV_E_ARGUMENT (the range;
 * a position would be negative, 2^62 or more, or not between those of the cells
 * around it), RKV_E_UNSUPPORTED (frequencies not given, K of another form,
 * RKV_TURNS_NONE), RKV_E_CAPACITY (more stretches of shifted cells than
 * max_turns; too many separate runs of positions), RKV_E_HOST_MEMORY (a range cut
 * out of others alone, and only after such refusals as remove names; nothing
 * changed). */
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

#ifdef __cplusplus
}
#endif
#endif
