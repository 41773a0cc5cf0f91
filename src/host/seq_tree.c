/* SPDX-License-Identifier: MIT
 *
 * seq_tree.c: a token tree's cells at the end of a sequence: stored one after
 * another, with positions of their own only once they are accepted.
 */
#include "seq.h"

#include "diag.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

rkv_status rkvi_seq_tree_reserve(rkvi_seq *s)
{
    if (!s->tree_pos)
        s->tree_pos = calloc(RKVI_TREE_CELLS_MAX, sizeof *s->tree_pos);
    return s->tree_pos ? RKV_OK : rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a token tree's positions");
}

void rkvi_seq_tree_set(rkvi_seq *s, const rkvi_row *rows, uint32_t n)
{
    assert(s->tree_pos && n <= RKVI_TREE_CELLS_MAX);
    s->n_tree = n;
    for (uint32_t i = 0; i < n; i++)
        s->tree_pos[i] = rows[i].pos;
}

rkvi_seq rkvi_seq_before(const rkvi_seq *s, uint32_t n)
{
    rkvi_seq before = *s;
    before.n_cells -= n;
    while (n > 0) {
        const rkvi_segment *last = &before.segments[--before.n_segments];
        assert(last->count <= n); /* a tree begins with a segment of its own */
        n -= last->count;
    }
    return before;
}

int64_t rkvi_seq_accepted_end(const rkvi_seq *s)
{
    const rkvi_seq before = rkvi_seq_before(s, s->n_tree);
    return rkvi_seq_pos_end(&before);
}

rkvi_segment rkvi_seq_tree_begin(const rkvi_seq *s)
{
    return s->segments[rkvi_seq_before(s, s->n_tree).n_segments];
}

uint32_t rkvi_seq_accept(rkvi_seq *s, const uint32_t *cells, uint32_t n, uint32_t tile_cells)
{
    const rkvi_segment begin = rkvi_seq_tree_begin(s);
    const uint32_t n_tiles = s->n_tiles;
    *s = rkvi_seq_before(s, s->n_tree);
    s->n_tree = 0;
    const uint32_t kept = s->n_segments ? s->segments[s->n_segments - 1].tile_index + 1 : 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t cell = begin.first + i, tile = begin.tile_index + cell / tile_cells;
        rkvi_segment *last = s->n_segments ? &s->segments[s->n_segments - 1] : NULL;
        if (last && last->tile_index == tile && s->tree_pos[cells[i]] == rkvi_seq_next_pos(s)) {
            last->count++;
            continue;
        }
        assert(s->n_segments + 1 < s->segments_room);
        s->segments[s->n_segments++] = (rkvi_segment){
            .pos = s->tree_pos[cells[i]], .tile_index = tile, .first = cell % tile_cells, .count = 1};
    }
    s->n_cells += n;
    const uint32_t last = n ? s->segments[s->n_segments - 1].tile_index + 1 : 0;
    s->n_tiles = last > kept ? last : kept;
    s->first_open = s->first_open < s->n_tiles ? s->first_open : s->n_tiles;
    return n_tiles - s->n_tiles;
}
