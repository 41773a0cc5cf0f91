/* SPDX-License-Identifier: MIT
 *
 * Shifts of a sequence and cells accepted of a token tree, against a plain list
 * of cells.
 */
#include "core_random.h"
#include "diag.h"
#include "seq.h"

#define ok(call) assert_int_equal(call, RKV_OK)

enum { T = 16, L = 8, CELLS_MAX = 1200, TURNED_MAX = 6 };

typedef struct cell {
    int64_t pos, turn;
    uint32_t tile, in_tile;
} cell;

static cell cells[CELLS_MAX];
static uint32_t n_cells;
static rkvi_seq seq;

static void append(uint32_t n, int64_t gap)
{
    rkvi_row rows[64];
    uint32_t tiles[64], n_tiles, n_segments;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (rkvi_row){.pos = rkvi_seq_pos_end(&seq) + gap + i};
    rkvi_seq_need(&seq, rows, n, T, &n_tiles, &n_segments);
    for (uint32_t i = 0; i < n_tiles; i++)
        tiles[i] = seq.n_tiles + i;
    ok(rkvi_seq_reserve(&seq, n_tiles, n_segments));
    rkvi_seq_append(&seq, rows, n, T, tiles);
    for (uint32_t i = 0; i < n; i++, n_cells++)
        cells[n_cells] = (cell){.pos = rows[i].pos, .tile = n_cells / T, .in_tile = n_cells % T};
}

/* Segments give the cells of the list, and no two of them could be one. */
static void check_cells(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < seq.n_segments; i++)
        for (uint32_t k = 0; k < seq.segments[i].count; k++, n++) {
            const rkvi_segment *g = &seq.segments[i];
            assert_int_equal(g->pos + k, cells[n].pos);
            assert_int_equal(g->turn, cells[n].turn);
            assert_int_equal(seq.tiles[g->tile_index], cells[n].tile);
            assert_int_equal(g->first + k, cells[n].in_tile);
        }
    assert_int_equal(n, n_cells);
    assert_int_equal(seq.n_cells, n_cells);
}

static void check_turns(void)
{
    int64_t turns[TURNED_MAX];
    uint8_t of[CELLS_MAX], tail[CELLS_MAX];
    const uint32_t n = rkvi_seq_turns(&seq, TURNED_MAX, turns);
    uint64_t leaf = 0;
    rkvi_seq_leaf_turns(&seq, L, 0, turns, n, of);
    for (uint32_t i = 0, c = 0; i < seq.n_segments; c += seq.segments[i++].count) {
        const rkvi_segment *g = &seq.segments[i];
        for (uint32_t b = g->first / L; b <= (g->first + g->count - 1) / L; b++, leaf++)
            assert_int_equal(of[leaf] ? turns[of[leaf] - 1] : 0, cells[c].turn);
    }
    assert_int_equal(leaf, rkvi_seq_n_leaves(&seq, L));
    rkvi_seq_leaf_turns(&seq, L, leaf / 3, turns, n, tail);
    assert_memory_equal(tail, of + leaf / 3, leaf - leaf / 3);
}

/* Would the shift leave positions that rise, and few enough stretches? */
static bool is_legal(int64_t from, int64_t to, int64_t delta)
{
    int64_t last = -1, turn = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_cells; i++) {
        const bool in = cells[i].pos >= from && cells[i].pos < to;
        const int64_t pos = cells[i].pos + (in ? delta : 0), t = cells[i].turn + (in ? delta : 0);
        if (pos <= last)
            return false;
        n += t != 0 && t != turn;
        last = pos;
        turn = t;
    }
    return n <= TURNED_MAX;
}

static void shift(int64_t from, int64_t to, int64_t delta)
{
    uint32_t more, before = seq.n_segments;
    const bool legal = is_legal(from, to, delta);
    const rkv_status s = rkvi_seq_shift_check(&seq, from, to, delta, TURNED_MAX, (int64_t)1 << 62, &more);
    assert_int_equal(s == RKV_OK, legal);
    if (s != RKV_OK)
        return;
    ok(rkvi_seq_reserve(&seq, 0, more));
    rkvi_seq_shift(&seq, from, to, delta);
    assert_true(seq.n_segments <= before + more);
    for (uint32_t i = 0; i < n_cells; i++)
        if (cells[i].pos >= from && cells[i].pos < to) {
            cells[i].pos += delta;
            cells[i].turn += delta;
        }
}

static void test_random(void **state)
{
    (void)state;
    start_random();
    uint32_t n_legal = 0;
    for (uint32_t round = 0; round < 300; round++) {
        rkvi_seq_free(&seq);
        n_cells = 0;
        append(1 + (uint32_t)(next_random() % 40), 0);
        for (uint32_t i = 0; i < 12; i++) {
            append(1 + (uint32_t)(next_random() % 50), (int64_t)(next_random() % 4 == 0 ? 5 : 0));
            const int64_t from = cells[next_random() % n_cells].pos - (int64_t)(next_random() % 2);
            const int64_t to = next_random() % 3 ? INT64_MAX : from + (int64_t)(next_random() % 60);
            const int64_t delta = (int64_t)(next_random() % 21) - 8;
            n_legal += from >= 0 && is_legal(from, to, delta);
            if (from >= 0)
                shift(from, to, delta);
            check_cells();
            check_turns();
        }
    }
    assert_true(n_legal > 1000);
}

/* A shift there and back leaves the segments that there were. */
static void test_back(void **state)
{
    (void)state;
    rkvi_seq_free(&seq);
    n_cells = 0;
    append(60, 0);
    const uint32_t n = seq.n_segments;
    shift(20, INT64_MAX, 100);
    assert_int_equal(seq.n_segments, n + 1);
    shift(130, INT64_MAX, 7);
    assert_int_equal(seq.n_segments, n + 2);
    shift(137, INT64_MAX, -7);
    shift(120, INT64_MAX, -100);
    assert_int_equal(seq.n_segments, n);
    check_cells();
}

/* A tree of 20 cells over tile edges, of which some stay, at gaps or not. */
static void test_accept(void **state)
{
    (void)state;
    static const uint32_t kept[] = {0, 1, 4, 5, 13, 19};
    for (uint32_t n = 0; n <= 6; n++) {
        rkvi_row rows[20];
        rkvi_seq_free(&seq);
        n_cells = 0;
        append(25, 0);
        ok(rkvi_seq_tree_reserve(&seq));
        append(20, 1); /* as stored: one behind the end */
        for (uint32_t i = 0; i < 20; i++)
            rows[i] = (rkvi_row){.pos = 25 + i / 2 + (i >= 13 ? 5 : 0)};
        rkvi_seq_tree_set(&seq, rows, 20);
        assert_int_equal(rkvi_seq_accepted_end(&seq), 25);
        assert_int_equal(rkvi_seq_before(&seq, 20).n_cells, 25);
        ok(rkvi_seq_reserve(&seq, 0, n));
        const uint32_t gone = rkvi_seq_accept(&seq, kept, n, T);
        assert_int_equal(seq.n_tiles, (25 + n + T - 1) / T);
        assert_int_equal(gone, 3 - seq.n_tiles);
        assert_int_equal(seq.n_tree, 0);
        n_cells = 25 + n;
        for (uint32_t i = 0; i < n; i++)
            cells[25 + i].pos = rows[kept[i]].pos;
        check_cells();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_back),
                                       cmocka_unit_test(test_accept)};
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    rkvi_seq_free(&seq);
    return n_failed;
}
