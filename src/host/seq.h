/* seq.h: a sequence as a list of segments.
 *
 *   tiles      [ tile 7              ][ tile 9              ][ tile 12   ...
 *   segments    [pos 0, 256 cells    ] [pos 256, 100][pos 400, 156] ...
 *   leaves      one for each block of L cells of a tile that a segment touches,
 *               numbered in this order; a leaf's number never changes while
 *               cells are appended
 *
 * Positions within a segment follow by one.  turn (position now minus position
 * when K was stored) is 0 until sequences can be shifted. */
#ifndef RKVI_SEQ_H
#define RKVI_SEQ_H

#include "ops.h"

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
} rkvi_seq;

void rkvi_seq_free(rkvi_seq *s);
int64_t rkvi_seq_pos_begin(const rkvi_seq *s);
int64_t rkvi_seq_pos_end(const rkvi_seq *s); /* last position + 1; 0 when empty */
/* Cells used in the last tile; 0 when empty. */
uint32_t rkvi_seq_last_fill(const rkvi_seq *s);

/* What appending these rows takes: tiles and segments beyond the present ones. */
void rkvi_seq_need(const rkvi_seq *s, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                   uint32_t *out_tiles, uint32_t *out_segments);
/* The same from the end that a sequence will have: cells used in its last tile
 * (tile_cells: none is open) and the position that would go on with its last
 * segment (-1: none); both move on. */
void rkvi_rows_need(uint32_t *fill, int64_t *pos, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                    uint32_t *out_tiles, uint32_t *out_segments);
/* Room for so many more; the list itself is unchanged. */
rkv_status rkvi_seq_reserve(rkvi_seq *s, uint32_t more_tiles, uint32_t more_segments);
/* `to`, empty, gets the same segments and tiles. */
rkv_status rkvi_seq_copy(rkvi_seq *to, const rkvi_seq *from);
/* Appends the rows' cells; new tiles are taken from new_tiles[] in order.  Room
 * was reserved: can't fail. */
void rkvi_seq_append(rkvi_seq *s, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                     const uint32_t *new_tiles);
/* Cuts the cells from position `from_pos` on; tiles beyond the new end are left
 * in tiles[n_tiles ..) for the caller to release; returns how many. */
uint32_t rkvi_seq_truncate(rkvi_seq *s, int64_t from_pos);

uint64_t rkvi_seq_n_leaves(const rkvi_seq *s, uint32_t leaf_cells);
/* Writes the leaves' spans; returns how many. */
uint64_t rkvi_seq_spans(const rkvi_seq *s, uint32_t leaf_cells, rkvi_span *out);

#endif
