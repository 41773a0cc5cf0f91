#include "seq.h"

#include "diag.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void rkvi_seq_free(rkvi_seq *s)
{
    free(s->segments);
    free(s->tiles);
    free(s->tree_pos);
    *s = (rkvi_seq){0};
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
    int64_t pos = rkvi_seq_next_pos(s);
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
        st = grow((void **)&s->segments, &s->segments_room, s->n_segments + more_segments + RKVI_SEGMENTS_AHEAD,
                  sizeof *s->segments);
    return st;
}

rkv_status rkvi_seq_take_ahead(rkvi_seq *s, uint32_t more_segments)
{
    return s->n_segments + more_segments <= s->segments_room ? RKV_OK : rkvi_seq_reserve(s, 0, more_segments);
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
        if (opens || rows[i].pos != rkvi_seq_next_pos(s)) {
            assert(s->n_segments + 1 < s->segments_room);
            s->segments[s->n_segments++] = (rkvi_segment){
                .pos = rows[i].pos, .tile_index = s->n_tiles - 1, .first = opens ? 0 : fill};
        }
        s->segments[s->n_segments - 1].count++;
    }
    s->n_cells += n_rows;
}

/* ------------------------------------------------------------ cutting, sharing */

/* First segment that ends after position `pos`. */
static uint32_t segment_after(const rkvi_seq *s, int64_t pos)
{
    uint32_t a = 0, z = s->n_segments;
    while (a < z) {
        const uint32_t mid = a + (z - a) / 2;
        if (rkvi_segment_end(&s->segments[mid]) > pos)
            z = mid;
        else
            a = mid + 1;
    }
    return a;
}

/* The part of a segment at positions [from, to), which it has cells of. */
static rkvi_segment part_of(const rkvi_segment *g, int64_t from, int64_t to)
{
    const int64_t end = rkvi_segment_end(g);
    const int64_t a = from > g->pos ? from : g->pos, z = to < end ? to : end;
    rkvi_segment part = *g;
    part.pos = a;
    part.first = g->first + (uint32_t)(a - g->pos);
    part.count = (uint32_t)(z - a);
    return part;
}

static void reverse(uint32_t *t, uint32_t a, uint32_t z)
{
    while (z - a > 1) {
        const uint32_t x = t[a];
        t[a++] = t[--z];
        t[z] = x;
    }
}

/* Tiles [a, z) move behind the others. */
static void drop_tiles(rkvi_seq *s, uint32_t a, uint32_t z)
{
    if (z < s->n_tiles) {
        reverse(s->tiles, a, z);
        reverse(s->tiles, z, s->n_tiles);
        reverse(s->tiles, a, s->n_tiles);
    }
    s->n_tiles -= z - a;
    if (s->first_open > a)
        s->first_open = a;
}

uint32_t rkvi_seq_remove(rkvi_seq *s, int64_t from, int64_t to)
{
    const uint32_t a = segment_after(s, from);
    uint32_t z = a, n_left = 0;
    rkvi_segment left[2];
    while (z < s->n_segments && s->segments[z].pos < to)
        z++;
    if (a == z || from >= to)
        return 0;
    const rkvi_segment first = s->segments[a], last = s->segments[z - 1];
    const uint32_t tile_a = first.tile_index, tile_z = last.tile_index + 1;
    for (uint32_t i = a; i < z; i++)
        s->n_cells -= part_of(&s->segments[i], from, to).count;
    if (first.pos < from)
        left[n_left++] = part_of(&first, first.pos, from);
    if (rkvi_segment_end(&last) > to)
        left[n_left++] = part_of(&last, to, rkvi_segment_end(&last));
    assert(s->n_segments - (z - a) + n_left <= s->segments_room);
    memmove(s->segments + a + n_left, s->segments + z, (s->n_segments - z) * sizeof *s->segments);
    memcpy(s->segments + a, left, n_left * sizeof *left);
    s->n_segments = s->n_segments - (z - a) + n_left;
    /* Of the tiles touched, the first and the last one may hold others. */
    const bool keeps_first = (a > 0 && s->segments[a - 1].tile_index == tile_a) ||
                             (n_left && left[0].tile_index == tile_a) ||
                             (a < s->n_segments && s->segments[a].tile_index == tile_a);
    const uint32_t after = a + n_left;
    const bool keeps_last = (n_left && left[n_left - 1].tile_index + 1 == tile_z) ||
                            (after < s->n_segments && s->segments[after].tile_index + 1 == tile_z) ||
                            (keeps_first && tile_a + 1 == tile_z);
    const uint32_t drop_a = tile_a + keeps_first, drop_z = tile_z - keeps_last;
    if (drop_a >= drop_z)
        return 0;
    const uint32_t gone = drop_z - drop_a;
    for (uint32_t i = 0; i < s->n_segments; i++)
        if (s->segments[i].tile_index >= drop_z)
            s->segments[i].tile_index -= gone;
    drop_tiles(s, drop_a, drop_z);
    return gone;
}

uint32_t rkvi_seq_count(const rkvi_seq *s, int64_t from, int64_t to)
{
    uint32_t n = 0;
    for (uint32_t i = segment_after(s, from); from < to && i < s->n_segments && s->segments[i].pos < to; i++)
        n++;
    return n;
}

uint32_t rkvi_seq_share(rkvi_seq *s, const rkvi_seq *src, int64_t from, int64_t to)
{
    const uint32_t old_tiles = s->n_tiles;
    assert(s != src);
    for (uint32_t i = segment_after(src, from); from < to && i < src->n_segments && src->segments[i].pos < to; i++) {
        rkvi_segment part = part_of(&src->segments[i], from, to);
        rkvi_segment *last = s->n_segments ? &s->segments[s->n_segments - 1] : NULL;
        const uint32_t tile = src->tiles[part.tile_index];
        assert(part.pos >= rkvi_seq_pos_end(s));
        const bool joins = last && s->tiles[last->tile_index] == tile && rkvi_segment_fill(last) <= part.first;
        s->n_cells += part.count;
        if (joins && rkvi_segment_goes_on(last, &part)) {
            last->count += part.count;
            continue;
        }
        if (!joins) {
            assert(s->n_tiles < s->tiles_room);
            s->tiles[s->n_tiles++] = tile;
        }
        assert(s->n_segments + 1 < s->segments_room);
        part.tile_index = s->n_tiles - 1;
        s->segments[s->n_segments++] = part;
    }
    return s->n_tiles - old_tiles;
}

bool rkvi_seq_range(const rkvi_seq *s, uint32_t *at, int64_t *out_from, int64_t *out_to)
{
    if (*at >= s->n_segments)
        return false;
    *out_from = s->segments[*at].pos;
    do
        *out_to = rkvi_segment_end(&s->segments[*at]);
    while (++*at < s->n_segments && s->segments[*at].pos == *out_to);
    return true;
}

/* ---------------------------------------------------------------------- leaves */

uint64_t rkvi_seq_n_leaves(const rkvi_seq *s, uint32_t leaf_cells)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_segments; i++)
        n += rkvi_segment_n_leaves(&s->segments[i], leaf_cells);
    return n;
}

uint64_t rkvi_seq_spans(const rkvi_seq *s, uint32_t leaf_cells, uint64_t skip, rkvi_span *out)
{
    rkvi_span *o = out;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i];
        const uint32_t end = rkvi_segment_fill(g);
        const uint64_t blocks = rkvi_segment_n_leaves(g, leaf_cells), passed = skip < blocks ? skip : blocks;
        uint32_t c = g->first;
        if (passed == blocks && skip) {
            skip -= blocks;
            continue;
        }
        if (passed) /* to the beginning of a block */
            c = (uint32_t)(g->first / leaf_cells + passed) * leaf_cells;
        skip -= passed;
        while (c < end) {
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
