#include "seq.h"

#include "diag.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void rkvi_seq_free(rkvi_seq *s)
{
    free(s->segments);
    free(s->tiles);
    *s = (rkvi_seq){0};
}

static const rkvi_segment *last_of(const rkvi_seq *s)
{
    return s->n_segments ? &s->segments[s->n_segments - 1] : NULL;
}

int64_t rkvi_seq_pos_begin(const rkvi_seq *s)
{
    return s->n_segments ? s->segments[0].pos : 0;
}

int64_t rkvi_seq_pos_end(const rkvi_seq *s)
{
    const rkvi_segment *last = last_of(s);
    return last ? last->pos + last->count : 0;
}

uint32_t rkvi_seq_last_fill(const rkvi_seq *s)
{
    const rkvi_segment *last = last_of(s);
    return last ? last->first + last->count : 0;
}

void rkvi_rows_need(uint32_t *fill, int64_t *pos, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                    uint32_t *out_tiles, uint32_t *out_segments)
{
    *out_tiles = *out_segments = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        const bool opens = *fill == tile_cells;
        *out_tiles += opens;
        *out_segments += opens || rows[i].pos != *pos;
        *fill = opens ? 1 : *fill + 1;
        *pos = rows[i].pos + 1;
    }
}

void rkvi_seq_need(const rkvi_seq *s, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                   uint32_t *out_tiles, uint32_t *out_segments)
{
    uint32_t fill = s->n_tiles ? rkvi_seq_last_fill(s) : tile_cells;
    int64_t pos = rkvi_seq_pos_end(s);
    rkvi_rows_need(&fill, &pos, rows, n_rows, tile_cells, out_tiles, out_segments);
}

static rkv_status grow(void **list, uint32_t *room, uint32_t need, size_t item_bytes)
{
    if (need <= *room)
        return RKV_OK;
    const uint32_t more = need + need / 2 + 16;
    void *p = realloc(*list, more * item_bytes);
    if (!p)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a sequence of %u parts", more);
    *list = p;
    *room = more;
    return RKV_OK;
}

rkv_status rkvi_seq_reserve(rkvi_seq *s, uint32_t more_tiles, uint32_t more_segments)
{
    rkv_status st = grow((void **)&s->tiles, &s->tiles_room, s->n_tiles + more_tiles, sizeof *s->tiles);
    if (st == RKV_OK)
        st = grow((void **)&s->segments, &s->segments_room, s->n_segments + more_segments,
                  sizeof *s->segments);
    return st;
}

void rkvi_seq_append(rkvi_seq *s, const rkvi_row *rows, uint32_t n_rows, uint32_t tile_cells,
                     const uint32_t *new_tiles)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t fill = s->n_tiles ? rkvi_seq_last_fill(s) : tile_cells;
        const bool opens = fill == tile_cells;
        if (opens) {
            assert(s->n_tiles < s->tiles_room);
            s->tiles[s->n_tiles++] = *new_tiles++;
        }
        if (opens || rows[i].pos != rkvi_seq_pos_end(s)) {
            assert(s->n_segments < s->segments_room);
            s->segments[s->n_segments++] = (rkvi_segment){
                .pos = rows[i].pos, .tile_index = s->n_tiles - 1, .first = opens ? 0 : fill};
        }
        s->segments[s->n_segments - 1].count++;
    }
    s->n_cells += n_rows;
}

uint32_t rkvi_seq_truncate(rkvi_seq *s, int64_t from_pos)
{
    while (s->n_segments) {
        rkvi_segment *last = &s->segments[s->n_segments - 1];
        if (last->pos + last->count <= from_pos)
            break;
        const uint32_t keep = last->pos < from_pos ? (uint32_t)(from_pos - last->pos) : 0;
        s->n_cells -= last->count - keep;
        last->count = keep;
        if (keep)
            break;
        s->n_segments--;
    }
    const uint32_t left = s->n_segments ? s->segments[s->n_segments - 1].tile_index + 1 : 0;
    const uint32_t gone = s->n_tiles - left;
    s->n_tiles = left;
    return gone;
}

static uint64_t blocks_of(const rkvi_segment *g, uint32_t leaf_cells)
{
    return (g->first + g->count - 1) / leaf_cells - g->first / leaf_cells + 1;
}

uint64_t rkvi_seq_n_leaves(const rkvi_seq *s, uint32_t leaf_cells)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_segments; i++)
        n += blocks_of(&s->segments[i], leaf_cells);
    return n;
}

uint64_t rkvi_seq_spans(const rkvi_seq *s, uint32_t leaf_cells, rkvi_span *out)
{
    rkvi_span *o = out;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i];
        const uint32_t end = g->first + g->count;
        for (uint32_t c = g->first; c < end;) {
            const uint32_t block_end = (c / leaf_cells + 1) * leaf_cells;
            const uint32_t stop = block_end < end ? block_end : end;
            *o++ = (rkvi_span){.pos = g->pos + (c - g->first),
                               .tile = g->tile_index,
                               .first = (uint16_t)c,
                               .count = (uint16_t)(stop - c)};
            c = stop;
        }
    }
    return (uint64_t)(o - out);
}

rkv_status rkvi_seq_copy(rkvi_seq *to, const rkvi_seq *from)
{
    const rkv_status s = rkvi_seq_reserve(to, from->n_tiles, from->n_segments);
    if (s != RKV_OK)
        return s;
    to->n_tiles = from->n_tiles;
    to->n_segments = from->n_segments;
    to->n_cells = from->n_cells;
    if (from->n_segments)
        memcpy(to->segments, from->segments, from->n_segments * sizeof *to->segments);
    if (from->n_tiles)
        memcpy(to->tiles, from->tiles, from->n_tiles * sizeof *to->tiles);
    return RKV_OK;
}
