/* SPDX-License-Identifier: MIT
 *
 * Sequences as lists of segments, against a naive model: a list of cells.
 */
#include "core_random.h"
#include "diag.h"
#include "seq.h"

#define ok(call) assert_int_equal(call, RKV_OK)

enum { CELLS_MAX = 6000, ROWS_MAX = 200 };

typedef struct cell {
    int64_t pos;
    uint32_t tile; /* record */
    uint32_t in_tile;
} cell;

typedef struct model {
    cell cells[CELLS_MAX];
    uint32_t n;
    uint32_t tile_cells;
    uint32_t next_tile; /* record numbers, never used twice */
    rkvi_seq seq;
} model;

static model m;
static rkvi_span spans[CELLS_MAX], before[CELLS_MAX];

static void reset(uint32_t tile_cells)
{
    rkvi_seq_free(&m.seq);
    memset(&m, 0, sizeof m);
    m.tile_cells = tile_cells;
}

/* Positions rise: mostly by one, sometimes by more. */
static void make_rows(rkvi_row *rows, uint32_t n, uint32_t gaps_one_in)
{
    int64_t pos = m.n ? m.cells[m.n - 1].pos + 1 : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (gaps_one_in && one_in(gaps_one_in))
            pos += between(1, 1000);
        rows[i] = (rkvi_row){.pos = pos++, .to = INT64_MAX};
    }
}

static void model_append(const rkvi_row *rows, uint32_t n, const uint32_t *tiles)
{
    for (uint32_t i = 0; i < n; i++) {
        const cell *last = m.n ? &m.cells[m.n - 1] : NULL;
        const bool opens = !last || last->in_tile + 1 == m.tile_cells;
        assert_true(m.n < CELLS_MAX);
        m.cells[m.n] = (cell){.pos = rows[i].pos,
                              .tile = opens ? *tiles++ : last->tile,
                              .in_tile = opens ? 0 : last->in_tile + 1};
        m.n++;
    }
}

static bool ends_leaf(uint32_t i, uint32_t leaf)
{
    const cell *a = &m.cells[i], *b = &m.cells[i + 1];
    return i + 1 == m.n || b->tile != a->tile || b->pos != a->pos + 1 ||
           b->in_tile / leaf != a->in_tile / leaf;
}

/* The spans by the definition: a leaf for each block of L cells that a run touches. */
static void assert_spans(uint32_t leaf)
{
    const uint64_t n = rkvi_seq_spans(&m.seq, leaf, 0, spans);
    uint64_t k = 0;
    assert_int_equal(n, rkvi_seq_n_leaves(&m.seq, leaf));
    for (uint32_t i = 0, first = 0; i < m.n; i++) {
        if (!ends_leaf(i, leaf))
            continue;
        assert_true(k < n);
        assert_int_equal(spans[k].pos, m.cells[first].pos);
        assert_int_equal(m.seq.tiles[spans[k].tile], m.cells[first].tile);
        assert_int_equal(spans[k].first, m.cells[first].in_tile);
        assert_int_equal(spans[k].count, i + 1 - first);
        first = i + 1;
        k++;
    }
    assert_int_equal(k, n);
}

static void assert_same(void)
{
    const cell *last = m.n ? &m.cells[m.n - 1] : NULL;
    uint32_t n_tiles = 0;
    for (uint32_t i = 0; i < m.n; i++)
        n_tiles += m.cells[i].in_tile == 0;
    assert_int_equal(m.seq.n_cells, m.n);
    assert_int_equal(m.seq.n_tiles, n_tiles);
    assert_int_equal(rkvi_seq_pos_begin(&m.seq), m.n ? m.cells[0].pos : 0);
    assert_int_equal(rkvi_seq_pos_end(&m.seq), last ? last->pos + 1 : 0);
    assert_int_equal(rkvi_seq_last_fill(&m.seq), last ? last->in_tile + 1 : 0);
    assert_spans(m.tile_cells);
    assert_spans(m.tile_cells / 2);
    assert_spans(m.tile_cells >= 64 ? 16 : 1);
}

/* need() says what append does; numbers and begins of leaves stay. */
static void append(uint32_t n, uint32_t gaps_one_in)
{
    rkvi_row rows[ROWS_MAX];
    uint32_t tiles[ROWS_MAX + 1], need_tiles, need_segments;
    const uint32_t old_tiles = m.seq.n_tiles, old_segments = m.seq.n_segments, leaf = m.tile_cells / 2;
    const uint64_t old_leaves = rkvi_seq_spans(&m.seq, leaf, 0, before);
    make_rows(rows, n, gaps_one_in);
    rkvi_seq_need(&m.seq, rows, n, m.tile_cells, &need_tiles, &need_segments);
    for (uint32_t i = 0; i < need_tiles; i++)
        tiles[i] = m.next_tile++;
    tiles[need_tiles] = 0xdead; /* must not be taken */
    ok(rkvi_seq_reserve(&m.seq, need_tiles, need_segments));
    assert_int_equal(m.seq.n_tiles, old_tiles);
    assert_int_equal(m.seq.n_segments, old_segments);
    rkvi_seq_append(&m.seq, rows, n, m.tile_cells, tiles);
    model_append(rows, n, tiles);
    assert_int_equal(m.seq.n_tiles, old_tiles + need_tiles);
    assert_int_equal(m.seq.n_segments, old_segments + need_segments);
    assert_same();
    assert_true(rkvi_seq_spans(&m.seq, leaf, 0, spans) >= old_leaves);
    for (uint64_t i = 0; i < old_leaves; i++) {
        assert_int_equal(spans[i].pos, before[i].pos);
        assert_int_equal(spans[i].tile, before[i].tile);
        assert_int_equal(spans[i].first, before[i].first);
        assert_true(i + 1 == old_leaves ? spans[i].count >= before[i].count : spans[i].count == before[i].count);
    }
}

static void truncate_at(int64_t from_pos)
{
    uint32_t old[CELLS_MAX], n_tiles = 0;
    const uint32_t old_tiles = m.seq.n_tiles;
    memcpy(old, m.seq.tiles, old_tiles * sizeof *old);
    const uint32_t gone = rkvi_seq_remove(&m.seq, from_pos, INT64_MAX);
    while (m.n && m.cells[m.n - 1].pos >= from_pos)
        m.n--;
    for (uint32_t i = 0; i < m.n; i++)
        n_tiles += m.cells[i].in_tile == 0;
    assert_int_equal(gone, old_tiles - n_tiles);
    for (uint32_t i = 0; i < gone; i++) /* left there for the caller to release */
        assert_int_equal(m.seq.tiles[m.seq.n_tiles + i], old[n_tiles + i]);
    assert_same();
}

static int64_t some_position(void)
{
    if (m.n == 0 || one_in(10))
        return one_in(2) ? INT64_MIN : INT64_MAX;
    return m.cells[below(m.n)].pos + (int64_t)below(3) - 1; /* gaps as well */
}

static void test_random(void **state)
{
    (void)state;
    start_random();
    for (uint32_t round = 0; round < rounds(40, 20); round++) {
        reset(16u << below(5));
        const uint32_t gaps = one_in(3) ? 0 : between(1, 40);
        for (uint32_t i = 0; i < 40; i++) {
            const uint32_t n = one_in(2) ? between(1, 4) : between(1, ROWS_MAX);
            if (m.n + n <= CELLS_MAX)
                append(n, gaps);
            if (one_in(6))
                truncate_at(some_position());
        }
        truncate_at(0);
        assert_int_equal(m.seq.n_segments, 0);
    }
    reset(16);
}

/* One cell at a time and all at once give the same sequence. */
static void test_chunks(void **state)
{
    (void)state;
    rkvi_row rows[150];
    uint32_t tiles[10] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, t, g;
    rkvi_seq one = {0}, all = {0};
    for (uint32_t i = 0; i < 150; i++)
        rows[i].pos = i + (i >= 70) * 5 + (i >= 71) * 9;
    rkvi_seq_need(&all, rows, 150, 32, &t, &g);
    assert_int_equal(t, 5);
    assert_int_equal(g, 7);
    ok(rkvi_seq_reserve(&all, t, g));
    ok(rkvi_seq_reserve(&one, t, g));
    rkvi_seq_append(&all, rows, 150, 32, tiles);
    for (uint32_t i = 0; i < 150; i++)
        rkvi_seq_append(&one, &rows[i], 1, 32, tiles + one.n_tiles);
    assert_int_equal(one.n_segments, all.n_segments);
    assert_memory_equal(one.segments, all.segments, all.n_segments * sizeof *all.segments);
    assert_memory_equal(one.tiles, tiles, 5 * sizeof *tiles);
    assert_memory_equal(all.tiles, tiles, 5 * sizeof *tiles);
    rkvi_seq_free(&one);
    rkvi_seq_free(&all);
}

static void test_empty(void **state)
{
    (void)state;
    rkvi_seq s = {0};
    rkvi_span none;
    uint32_t t, g;
    assert_int_equal(rkvi_seq_pos_begin(&s), 0);
    assert_int_equal(rkvi_seq_pos_end(&s), 0);
    assert_int_equal(rkvi_seq_last_fill(&s), 0);
    assert_int_equal(rkvi_seq_remove(&s, INT64_MIN, INT64_MAX), 0);
    assert_int_equal(rkvi_seq_n_leaves(&s, 16), 0);
    assert_int_equal(rkvi_seq_spans(&s, 16, 0, &none), 0);
    rkvi_seq_need(&s, NULL, 0, 16, &t, &g);
    assert_int_equal(t + g, 0);
    rkvi_seq_free(&s);
}

/* The largest tile and the last position: no field is too narrow. */
static void test_wide(void **state)
{
    (void)state;
    rkvi_seq s = {0};
    rkvi_span sp[64];
    const uint32_t tile = 3;
    const int64_t pos = ((int64_t)1 << 62) - 5000;
    ok(rkvi_seq_reserve(&s, 1, 1));
    for (int64_t i = 0; i < 4096; i++)
        rkvi_seq_append(&s, &(rkvi_row){.pos = pos + i}, 1, 4096, &tile);
    assert_int_equal(s.n_segments, 1);
    assert_int_equal(rkvi_seq_spans(&s, 4096, 0, sp), 1);
    assert_int_equal(sp[0].count, 4096);
    assert_int_equal(rkvi_seq_spans(&s, 64, 0, sp), 64);
    assert_int_equal(sp[63].first, 4032);
    assert_int_equal(sp[63].pos, pos + 4032);
    rkvi_seq_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
