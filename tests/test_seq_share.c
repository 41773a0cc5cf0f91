/* SPDX-License-Identifier: MIT
 *
 * Sequences that take cells from each other and have any range cut out, against
 * a naive model: lists of cells.
 */
#include "core_random.h"
#include "diag.h"
#include "seq.h"

#define ok(call) assert_int_equal(call, RKV_OK)

enum { SEQS = 4, CELLS_MAX = 3000, T = 32 };

typedef struct cell {
    int64_t pos;
    uint32_t tile, in_tile;
} cell;

typedef struct model {
    cell cells[CELLS_MAX];
    uint32_t n;
    rkvi_seq seq;
} model;

static model m[SEQS];
static uint32_t next_tile;

static int64_t end_of(const model *x)
{
    return x->n ? x->cells[x->n - 1].pos + 1 : 0;
}

/* Cells in order, canonical segments, items of tiles[] in the segments' order. */
static void assert_same(const model *x)
{
    const rkvi_seq *s = &x->seq;
    uint32_t n = 0, item = 0;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i], *before = i ? g - 1 : NULL;
        assert_true(g->count > 0);
        assert_true(i == 0 ? g->tile_index == 0 : g->tile_index == item || g->tile_index == item + 1);
        if (before && g->tile_index == item)
            assert_true(before->first + before->count <= g->first);
        if (before && s->tiles[before->tile_index] == s->tiles[g->tile_index])
            assert_false(before->first + before->count == g->first && before->pos + before->count == g->pos);
        item = g->tile_index;
        for (uint32_t k = 0; k < g->count; k++, n++) {
            assert_true(n < x->n);
            assert_int_equal(x->cells[n].pos, g->pos + k);
            assert_int_equal(x->cells[n].tile, s->tiles[item]);
            assert_int_equal(x->cells[n].in_tile, g->first + k);
        }
    }
    assert_int_equal(n, x->n);
    assert_int_equal(s->n_cells, n);
    assert_int_equal(s->n_tiles, s->n_segments ? item + 1 : 0);
    assert_int_equal(rkvi_seq_pos_begin(s), n ? x->cells[0].pos : 0);
    assert_int_equal(rkvi_seq_pos_end(s), end_of(x));
}

/* Ranges are maximal; spans from any leaf on are the end of all spans. */
static void assert_views(const model *x)
{
    static rkvi_span all[CELLS_MAX], some[CELLS_MAX];
    int64_t from, to, last = -1;
    uint32_t at = 0, n = 0;
    while (rkvi_seq_range(&x->seq, &at, &from, &to)) {
        assert_true(from > last && from < to);
        for (; from < to; from++, n++)
            assert_int_equal(x->cells[n].pos, from);
        last = to;
    }
    assert_int_equal(n, x->n);
    for (uint32_t leaf = 8; leaf <= T; leaf *= 2) {
        const uint64_t k = rkvi_seq_spans(&x->seq, leaf, 0, all), skip = below(k + 1);
        assert_int_equal(k, rkvi_seq_n_leaves(&x->seq, leaf));
        assert_int_equal(rkvi_seq_spans(&x->seq, leaf, skip, some), k - skip);
        assert_memory_equal(some, all + skip, (k - skip) * sizeof *all);
    }
}

static void append(model *x, uint32_t n)
{
    uint32_t tiles[40], need_tiles, need_segments;
    rkvi_row rows[200];
    int64_t pos = end_of(x) + (one_in(4) ? below(20) : 0);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (rkvi_row){.pos = pos++};
    rkvi_seq_need(&x->seq, rows, n, T, &need_tiles, &need_segments);
    for (uint32_t i = 0; i < need_tiles; i++)
        tiles[i] = next_tile++;
    ok(rkvi_seq_reserve(&x->seq, need_tiles, need_segments));
    uint32_t fill = rkvi_seq_last_fill(&x->seq), tile = x->n ? x->cells[x->n - 1].tile : 0, k = 0;
    rkvi_seq_append(&x->seq, rows, n, T, tiles);
    for (uint32_t i = 0; i < n; i++, fill++) {
        if ((x->n == 0 && i == 0) || fill == T) {
            tile = tiles[k++];
            fill = 0;
        }
        x->cells[x->n++] = (cell){rows[i].pos, tile, fill};
    }
    assert_int_equal(k, need_tiles);
}

/* Tiles that lost their last cell stand behind the others. */
static void cut(model *x, int64_t from, int64_t to)
{
    uint32_t n = 0, before[CELLS_MAX], n_before = x->seq.n_tiles;
    if (n_before)
        memcpy(before, x->seq.tiles, n_before * sizeof *before);
    ok(rkvi_seq_reserve(&x->seq, 0, 0));
    x->seq.first_open = n_before;
    const uint32_t gone = rkvi_seq_remove(&x->seq, from, to);
    for (uint32_t i = 0; i < x->n; i++)
        if (x->cells[i].pos < from || x->cells[i].pos >= to)
            x->cells[n++] = x->cells[i];
    x->n = n;
    assert_int_equal(x->seq.n_tiles + gone, n_before);
    uint32_t kept = 0;
    while (kept < x->seq.n_tiles && x->seq.tiles[kept] == before[kept])
        kept++;
    for (uint32_t i = 0; i < gone; i++) /* they were one run, from there on */
        assert_int_equal(x->seq.tiles[x->seq.n_tiles + i], before[kept + i]);
    assert_true(x->seq.first_open == n_before - (gone ? n_before - kept : 0));
}

static void share(model *x, const model *src)
{
    int64_t from = (int64_t)below((uint64_t)end_of(src) + 2), to = from + (int64_t)below((uint64_t)end_of(src) + 2);
    /* The cells come at or after the end; the range may begin before it. */
    for (uint32_t i = 0; i < src->n; i++)
        if (src->cells[i].pos >= from && src->cells[i].pos < end_of(x))
            from = end_of(x);
    const uint32_t most = rkvi_seq_count(&src->seq, from, to), before = x->seq.n_tiles;
    if (x == src || x->n + src->n > CELLS_MAX)
        return;
    ok(rkvi_seq_reserve(&x->seq, most, most));
    const uint32_t added = rkvi_seq_share(&x->seq, &src->seq, from, to);
    assert_true(added <= most && x->seq.n_tiles == before + added);
    for (uint32_t i = 0; i < src->n; i++)
        if (src->cells[i].pos >= from && src->cells[i].pos < to)
            x->cells[x->n++] = src->cells[i];
}

static void test_random(void **state)
{
    (void)state;
    start_random();
    for (uint32_t round = 0; round < rounds(30, 20); round++) {
        for (uint32_t i = 0; i < 100; i++) {
            model *x = &m[below(SEQS)];
            const int64_t a = (int64_t)below((uint64_t)end_of(x) + 3), b = (int64_t)below((uint64_t)end_of(x) + 3);
            if (one_in(3))
                cut(x, a < b ? a : b, one_in(3) ? INT64_MAX : a < b ? b : a);
            else if (one_in(2))
                share(x, &m[below(SEQS)]);
            else if (x->n + 100 < CELLS_MAX)
                append(x, between(1, 100));
            assert_same(x);
            assert_views(x);
        }
        for (uint32_t i = 0; i < SEQS; i++) {
            rkvi_seq_free(&m[i].seq);
            m[i].n = 0;
        }
    }
}

/* A fork goes on with the segment that it was cut from. */
static void test_fork_joins(void **state)
{
    (void)state;
    append(&m[0], 100);
    memset(&m[1].seq, 0, sizeof m[1].seq);
    ok(rkvi_seq_reserve(&m[1].seq, 8, 8));
    assert_int_equal(rkvi_seq_share(&m[1].seq, &m[0].seq, 0, 40), 2);
    assert_int_equal(m[1].seq.n_segments, 2);
    assert_int_equal(rkvi_seq_share(&m[1].seq, &m[0].seq, 40, 70), 1);
    assert_int_equal(m[1].seq.n_segments, 3);
    assert_int_equal(m[1].seq.segments[1].count, T);
    assert_int_equal(rkvi_seq_last_fill(&m[1].seq), 70 % T);
    assert_int_equal(rkvi_seq_share(&m[1].seq, &m[0].seq, 75, 76), 0); /* the same tile, behind a gap */
    assert_int_equal(m[1].seq.n_segments, 4);
    rkvi_seq_free(&m[0].seq);
    rkvi_seq_free(&m[1].seq);
    m[0].n = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_joins),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
