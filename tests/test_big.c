/* SPDX-License-Identifier: MIT
 *
 * Sizes: more than 4 GiB and more than 2^31 elements in one KV layer, in the
 * window and in the tail, and positions beyond 2^32.
 *
 * A cell's V says which cell it is and K is 0, so a row that sees one cell
 * gives that cell's V exactly, and one that sees a run gives the mean.  Prompt
 * rows see nothing, so that storing them costs no attention.
 *
 * Always: a sparse window (places below 4 GiB are taken and never touched).
 * ROLLKV_TEST_FULL=1: all of it stored; takes up to 6 GB of memory.
 */
#include "step_fixture.h"

#include "step_types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEADS 8u
#define DIM 128u
#define ROWS 4096u /* of a prompt's step */
#define CELL_BYTES (HEADS * DIM * 2u * 2u)
#define JUMP ((int64_t)1 << 33) /* positions from the last chunk on */

static uint16_t *k_rows, *v_rows, *q_rows; /* f16; k and q stay 0 */
static float *out;
static rkv_pos_range nothing[ROWS];

/* Small whole numbers, exact in f16: digits of the cell's number, base 128. */
static float digit(uint64_t cell, uint32_t head, uint32_t i)
{
    return (float)((cell >> 7 * (i % 4) & 127) + head);
}

static uint16_t whole_f16(float x)
{
    uint32_t n = (uint32_t)x, e = 0;
    while (n >> (e + 1))
        e++;
    return n ? (uint16_t)((e + 15) << 10 | (n << (10 - e) & 0x3ff)) : 0;
}

static uint16_t f16_of[512];

static void fill_v(uint64_t cell0, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t i = 0; i < 4; i++)
                v_rows[(r * HEADS + h) * DIM + i] = f16_of[(uint32_t)digit(cell0 + r, h, i)];
}

static int64_t position(uint64_t cell, uint64_t jump_at)
{
    return (int64_t)cell + (cell >= jump_at ? JUMP : 0);
}

static void attend(rkv_cache *c, bool stores)
{
    const rkv_attend_params p = {.struct_size = sizeof p,
                                 .q = {.data = q_rows},
                                 .k = {.data = stores ? k_rows : NULL},
                                 .v = {.data = stores ? v_rows : NULL},
                                 .out = {.data = out, .type = RKV_TYPE_F32}};
    fx_ok(rkv_step_attend(c, &p, NULL), "attend");
    fx_ok(rkv_step_end(c, NULL, NULL), "end");
    fx_ok(rkv_host_stream_sync(c, NULL), "sync");
}

/* Cells [from, to), in prompt steps; sequence `seq` numbers its own cells. */
static void store(rkv_cache *c, uint64_t from, uint64_t to, uint64_t jump_at)
{
    static int64_t pos[ROWS];
    for (uint64_t at = from; at < to;) {
        const uint32_t n = to - at < ROWS ? (uint32_t)(to - at) : ROWS;
        for (uint32_t r = 0; r < n; r++)
            pos[r] = position(at + r, jump_at);
        const rkv_batch_entry e = {.struct_size = sizeof e, .n_rows = n, .n_new_cells = n,
                                   .regime = RKV_REGIME_PREFILL, .positions = pos, .visible = nothing};
        const rkv_batch b = {.struct_size = sizeof b, .n_entries = 1, .entries = &e};
        fx_ok(rkv_step_begin(c, &b), "begin");
        fill_v(at, n);
        attend(c, true);
        at += n;
    }
}

/* One row at the end that sees the cells [from, to). */
static void query(rkv_cache *c, uint64_t from, uint64_t to, uint64_t n_cells, uint64_t jump_at)
{
    const int64_t pos = position(n_cells - 1, jump_at);
    const rkv_pos_range visible = {position(from, jump_at), position(to - 1, jump_at) + 1};
    const rkv_batch_entry e = {.struct_size = sizeof e, .n_rows = 1, .positions = &pos, .visible = &visible};
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = 1, .entries = &e};
    fx_ok(rkv_step_begin(c, &b), "begin");
    attend(c, false);
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < 4; i++) {
            double sum = 0;
            for (uint64_t x = from; x < to; x++)
                sum += (double)digit(x, h, i);
            const double want = sum / (double)(to - from), got = (double)out[h * DIM + i];
            if (to == from + 1 ? got != want : fabs(got - want) > 1e-4 * (1 + want))
                fail_msg("cells [%llu, %llu) head %u element %u: %g, want %g", (unsigned long long)from,
                         (unsigned long long)to, h, i, got, want);
        }
}

static rkv_cache *open_cache(uint64_t capacity, uint64_t resident, fx *w)
{
    fx_model m = fx_model_make(256, 0, capacity);
    fx_add_layer(&m, HEADS, DIM, DIM, resident);
    m.sites[0].n_q_heads = HEADS;
    m.params.max_rows = ROWS;
    m.n_workers = 2;
    fx_open(w, &m);
    return w->cache;
}

/* Every power of two and the cells around it, and the ends. */
static void query_all_over(rkv_cache *c, uint64_t first, uint64_t n, uint64_t jump_at)
{
    for (uint64_t p = 1; p < 2 * n; p *= 2)
        for (uint64_t x = p - 1; x <= p + 1; x++)
            if (x >= first && x < n)
                query(c, x, x + 1, n, jump_at);
    query(c, n - 1, n, n, jump_at);
    query(c, first, first + 1, n, jump_at);
    query(c, n - 700, n - 100, n, jump_at);
    query(c, jump_at - 1, jump_at, n, jump_at);
    query(c, jump_at, jump_at + 1, n, jump_at);
    query(c, jump_at - 300, jump_at + 300, n, jump_at);
}

/* All places below 4 GiB are gone: the cells lie beyond, and nothing else is touched. */
static void test_sparse_window(void **state)
{
    (void)state;
    fx w;
    const uint64_t capacity = 1400 * 1024, n = 3 * ROWS + 77, jump_at = 2 * ROWS + 5;
    rkv_cache *c = open_cache(capacity, RKV_RESIDENT_ALL, &w);
    rkvi_pool *places = &w.cache->cache.layers[0].device;
    const uint64_t below = ((uint64_t)1 << 32) / (256 * CELL_BYTES);
    for (uint64_t i = 0; i < below - 8; i++) /* the first tiles lie across the edge */
        assert_int_not_equal(rkvi_pool_take(places), RKVI_NO_PLACE);
    store(c, 0, n, jump_at);
    const rkvi_tile_layer *last = rkvi_tile_layer_at(&w.cache->cache.tiles, w.cache->cache.seqs[0].tiles[40], 0);
    assert_true(last->device_addr - (uint64_t)(uintptr_t)places->extents[0] > (uint64_t)1 << 32);
    query_all_over(c, 0, n, jump_at);
    query(c, 0, n, n, jump_at);
    assert_int_equal(fx_stats(&w).streamed_bytes, 0);
    fx_close(&w);
}

/* 4.6 GiB stored: in a window of that size with a tail beyond it, or all tail. */
static void run_full(uint64_t resident)
{
    fx w;
    const uint64_t n = 1200 * 1000 + 77, jump_at = n - 3000;
    rkv_cache *c = open_cache(1250 * 1000, resident, &w);
    store(c, 0, n, jump_at);
    const rkv_kv_layer_info i = fx_layer(&w, 0);
    print_message("window %llu MiB, tail %llu MiB\n",
                  (unsigned long long)(i.window_tiles * i.tile_layer_device_bytes >> 20),
                  (unsigned long long)(i.tail_tiles * i.tile_layer_host_bytes >> 20));
    assert_true((resident == RKV_RESIDENT_NONE ? i.tail_tiles : i.window_tiles) * i.tile_layer_host_bytes >
                (uint64_t)1 << 32);
    assert_true(i.tail_tiles > 100);
    query_all_over(c, 0, n, jump_at);
    const uint64_t streamed = fx_stats(&w).streamed_bytes;
    query(c, 0, n, n, jump_at);
    assert_true(fx_stats(&w).streamed_bytes - streamed >= i.tail_tiles * i.tile_layer_host_bytes);
    fx_close(&w);
}

static void test_full_window(void **state)
{
    (void)state;
    if (!fx_is_full())
        skip();
    run_full(1100 * 1000);
}

static void test_full_tail(void **state)
{
    (void)state;
    if (!fx_is_full())
        skip();
    run_full(RKV_RESIDENT_NONE);
}

int main(void)
{
    const uint64_t n = (uint64_t)ROWS * HEADS * DIM;
    for (uint32_t i = 0; i < 512; i++)
        f16_of[i] = whole_f16((float)i);
    k_rows = calloc(n, sizeof *k_rows);
    v_rows = calloc(n, sizeof *v_rows);
    q_rows = calloc(n, sizeof *q_rows);
    out = calloc(n, sizeof *out);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparse_window),
        cmocka_unit_test(test_full_window),
        cmocka_unit_test(test_full_tail),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(k_rows), free(v_rows), free(q_rows), free(out);
    return failed;
}
