/* seq.h: a sequence as a list of segments.
 *
 *   tiles      [ tile 7              ][ tile 9              ][ tile 12   ...
 *   segments    [pos 0, 256 cells    ] [pos 256, 100][pos 400, 156] ...
 *   leaves      one for each block of L cells of a tile that a segment touches,
 *               numbered in this order; a leaf's number never changes while
 *               cells are appended
 *
 * Positions rise strictly along the segments, by one within each.  turn
 * (position now minus position when K was stored) is 0 until a sequence is
 * shifted.  A segment covers cells [first, first + count) of its tile.
 *
 * tiles[] holds one reference for each of its items.  A tile comes more than
 * once only where cells of it come again after others; within an item the
 * segments' cells rise, so that the last segment ends where appending goes on.
 * RKVI_SEGMENTS_AHEAD more segments than there are have room ahead of need: a
 * removal may make one more, a shift as well, and neither may fail for want of
 * memory. */
#ifndef RKVI_SEQ_H
#define RKVI_SEQ_H

#include "ops.h"

#define RKVI_SEGMENTS_AHEAD 3u

typedef struct rkvi_segment {
    int64_t pos;
    int64_t turn;
    uint32_t tile_index; /* into tiles[] of the sequence */
    uint32_t first, count;
} rkvi_segment;

typedef struct rkvi_seq {
    rkvi_segment *segments;
    uint32_t *tiles; /* records of the tile table */
    uint32_t n_segments, segments_room;
    uint32_t n_tiles, tiles_room;
    uint64_t n_cells;
    uint32_t first_open; /* cache's: tiles before it are in window or tail, or on their way, in every KV layer */
    uint32_t n_tree;   /* cells of a token tree at the end, whose positions are made up until some are accepted */
    int64_t *tree_pos; /* theirs; NULL until the first tree */
} rkvi_seq;

/* Its last position + 1. */
static inline int64_t rkvi_segment_end(const rkvi_segment *g)
{
    return g->pos + g->count;
}
/* Its last cell + 1, within the tile. */
static inline uint32_t rkvi_segment_fill(const rkvi_segment *g)
{
    return g->first + g->count;
}
/* Does `next` go on where g ends, in positions, cells and turn?  Of one tile. */
static inline bool rkvi_segment_goes_on(const rkvi_segment *g, const rkvi_segment *next)
{
    return rkvi_segment_fill(g) == next->first && rkvi_segment_end(g) == next->pos && g->turn == next->turn;
}
/* How many leaves it touches. */
static inline uint32_t rkvi_segment_n_leaves(const rkvi_segment *g, uint32_t leaf_cells)
{
    return (rkvi_segment_fill(g) - 1) / leaf_cells - g->first / leaf_cells + 1;
}

void rkvi_seq_free(rkvi_seq *s);
static inline const rkvi_segment *rkvi_seq_last(const rkvi_seq *s) /* NULL: empty */
{
    return s->n_segments ? &s->segments[s->n_segments - 1] : NULL;
}
static inline int64_t rkvi_seq_pos_begin(const rkvi_seq *s) /* 0 when empty */
{
    return s->n_segments ? s->segments[0].pos : 0;
}
static inline int64_t rkvi_seq_pos_end(const rkvi_seq *s) /* last position + 1; 0 when empty */
{
    const rkvi_segment *last = rkvi_seq_last(s);
    return last ? rkvi_segment_end(last) : 0;
}
/* Cells used in the last tile; 0 when empty. */
static inline uint32_t rkvi_seq_last_fill(const rkvi_seq *s)
{
    const rkvi_segment *last = rkvi_seq_last(s);
    return last ? rkvi_segment_fill(last) : 0;
}
/* The position that would go on with the last segment; -1: none. */
static inline int64_t rkvi_seq_next_pos(const rkvi_seq *s)
{
    const rkvi_segment *last = rkvi_seq_last(s);
    return last && last->turn == 0 ? rkvi_segment_end(last) : -1;
}

/* What appending these rows takes: tiles and segments beyond the present ones. */
void rkvi_seq_need(const rkvi_seq *s, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                   uint32_t *out_tiles, uint32_t *out_segments);
/* The same from the end that a sequence will have: cells used in its last tile
 * (tile_cells: none is open) and the position that would go on with its last
 * segment (-1: none); both move on. */
void rkvi_rows_need(uint32_t *fill, int64_t *pos, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                    uint32_t *out_tiles, uint32_t *out_segments);
/* Room for so many more, and RKVI_SEGMENTS_AHEAD segments; the list itself is unchanged. */
rkv_status rkvi_seq_reserve(rkvi_seq *s, uint32_t more_tiles, uint32_t more_segments);
/* Room for so many more segments, out of what is ahead if it is there; who takes
 * it reserves again afterwards. */
rkv_status rkvi_seq_take_ahead(rkvi_seq *s, uint32_t more_segments);
/* `to`, empty, gets the same segments and tiles. */
rkv_status rkvi_seq_copy(rkvi_seq *to, const rkvi_seq *from);
/* Appends the rows' cells; new tiles are taken from new_tiles[] in order.  Room
 * was reserved: can't fail. */
void rkvi_seq_append(rkvi_seq *s, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                     const uint32_t *new_tiles);
/* Cuts the cells at positions [from, to); room for a segment was reserved, or
 * none is left behind the range.  Tiles without a segment left stand
 * in tiles[n_tiles ..) for the caller to release; returns how many. */
uint32_t rkvi_seq_remove(rkvi_seq *s, int64_t from, int64_t to);

/* Most segments, and so tiles, that the cells of s at positions [from, to) are. */
uint32_t rkvi_seq_count(const rkvi_seq *s, int64_t from, int64_t to);
/* Goes on with the cells of src at positions [from, to), all at or after s's
 * end (the range itself may begin before it); s is another sequence, with room
 * for rkvi_seq_count more of both.  The caller takes a reference on each tile
 * that was added; returns how many. */
uint32_t rkvi_seq_share(rkvi_seq *s, const rkvi_seq *src, int64_t from, int64_t to);
/* The i-th maximal run of positions that follow by one, from segment *at on
 * (0 at first; moves on); false: there is none left. */
bool rkvi_seq_range(const rkvi_seq *s, uint32_t *at, int64_t *out_from, int64_t *out_to);

uint64_t rkvi_seq_n_leaves(const rkvi_seq *s, uint32_t leaf_cells);
/* Writes the leaves' spans from leaf `skip` on, with items of tiles[]; returns how many. */
uint64_t rkvi_seq_spans(const rkvi_seq *s, uint32_t leaf_cells, uint64_t skip, rkvi_span *out);

/* ---- seq_tree.c
 * A token tree's cells were appended as usual, from one position behind the
 * end on.  Set tells what they are; from reserve on it can't fail. */
rkv_status rkvi_seq_tree_reserve(rkvi_seq *s);
void rkvi_seq_tree_set(rkvi_seq *s, const rkvi_row *rows, uint32_t n);
/* The sequence without its last n cells, which are a token tree: shares s's lists. */
rkvi_seq rkvi_seq_before(const rkvi_seq *s, uint32_t n);
int64_t rkvi_seq_accepted_end(const rkvi_seq *s);       /* last position + 1 before the tree */
rkvi_segment rkvi_seq_tree_begin(const rkvi_seq *s);    /* the tree's first segment */
/* The tree's first n places now hold its cells cells[0] .., with their positions;
 * the others are cut.  Room for n segments more was reserved.  Returns how many
 * tiles stand behind tiles[n_tiles) for the caller to release. */
uint32_t rkvi_seq_accept(rkvi_seq *s, const uint32_t *cells, uint32_t n, uint32_t tile_cells);

/* ---- seq_shift.c
 * Adds delta to pos and turn of the cells at positions [from, to), cutting
 * segments at its edges, or joining them where they go on with each other again.
 * The check tells whether positions would stay below pos_end and rise strictly,
 * with at most max_turned stretches of one turn other than 0, and how many more
 * segments there would be, which the shift needs room for.  A range that holds no cell, or a delta of 0, changes nothing. */
rkv_status rkvi_seq_shift_check(const rkvi_seq *s, int64_t from, int64_t to, int64_t delta, uint32_t max_turned,
                                int64_t pos_end, uint32_t *out_more);
void rkvi_seq_shift(rkvi_seq *s, int64_t from, int64_t to, int64_t delta);
/* The turns other than 0, in order of first appearance; returns how many. */
uint32_t rkvi_seq_turns(const rkvi_seq *s, uint32_t room, int64_t *out);
/* Stretches of one turn other than 0 among the cells at positions [from, to). */
uint32_t rkvi_seq_n_turned(const rkvi_seq *s, int64_t from, int64_t to);
/* Runs of segments of one turn, 0 or not. */
uint32_t rkvi_seq_n_stretches(const rkvi_seq *s);
/* Of each leaf from number `skip` on: 0, or 1 + the index of its turn in turns[]. */
void rkvi_seq_leaf_turns(const rkvi_seq *s, uint32_t leaf_cells, uint64_t skip, const int64_t *turns, uint32_t n_turns,
                         uint8_t *out);

#endif
