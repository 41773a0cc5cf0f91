/* SPDX-License-Identifier: MIT
 *
 * The reference of shifting's and token trees' ops, against f64.
 */
#include "turn_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static rkvi_ops ref;
static uint64_t seed;

/* Element i of a turned head, in f64. */
static double turned_at(const rotate_case *c, const float *q, uint32_t which, uint32_t i)
{
    const uint32_t n = c->args.n_pairs;
    if (i >= 2 * n)
        return (double)q[i];
    const uint32_t p = c->args.pairing ? i / 2 : i % n;
    const bool second = c->args.pairing ? i % 2 : i >= n;
    const uint32_t x = c->args.pairing ? 2 * p : p, y = c->args.pairing ? 2 * p + 1 : p + n;
    const double a = c->angle[which * n + p];
    return second ? (double)q[x] * sin(a) + (double)q[y] * cos(a) : (double)q[x] * cos(a) - (double)q[y] * sin(a);
}

static void check_rotate(const rotate_case *c)
{
    const uint32_t heads = c->args.q_heads, dk = c->args.dk;
    float q[1024];
    for (uint32_t r = 0; r < c->n_rows; r++)
        for (uint32_t h = 0; h < heads; h++) {
            const rkvi_turned_row *row = &c->rows[r];
            const float *got =
                c->args.turned + row->turn * c->args.turned_stride + ((uint64_t)row->row * heads + h) * dk;
            rkvi_tensor_get(&c->args.q, row->row, h, dk, q);
            for (uint32_t i = 0; i < dk; i++)
                assert_true(fabs((double)got[i] - turned_at(c, q, row->angles, i)) <= 8 * 0x1p-24);
        }
}

static void test_rotate(void **state)
{
    (void)state;
    uint64_t r = seed;
    static const struct {
        uint32_t heads, dk, pairs, pairing;
    } cases[] = {{1, 8, 4, 0},   {3, 64, 32, 0}, {2, 128, 64, 1}, {5, 80, 16, 1},
                 {2, 96, 32, 0}, {1, 256, 1, 0}, {2, 64, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t type = RKV_TYPE_F32; type <= RKV_TYPE_BF16; type++) {
            rotate_case c;
            rotate_make(&c, cases[i].heads, cases[i].dk, cases[i].pairs, cases[i].pairing, type, &r);
            for (uint64_t x = (uint64_t)c.n_rows * cases[i].heads; x-- > 0;)
                ref.fn[RKVI_OP_ROTATE](&c.args, x);
            check_rotate(&c);
            rotate_free(&c);
        }
}

/* One head of one row, in f64, against what the op left. */
static void check_tree_head(const tree_case *c, const rkvi_tree_item *it, uint32_t head)
{
    const rkvi_tree_args *a = &c->args;
    const rkvi_geom *g = &a->geom;
    const float *part = a->partials + it->slot * a->q_heads * (g->dv + 2);
    const float m = part[a->q_heads * g->dv + head], l = part[a->q_heads * (g->dv + 1) + head];
    const float *q = (const float *)a->q.data + ((uint64_t)(it->row0 + it->row) * a->q_heads + head) * g->dk;
    double sum = 0, o[1024] = {0}, largest = -INFINITY;
    int64_t lo, hi;
    float x[1024];
    rkvi_visible(&a->rows[it->row0 + it->row], a->mask, &lo, &hi);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t j = 0; j < it->n_cells; j++) {
            const rkvi_new_cell *cell = &a->cells[it->cell0 + j];
            const rkvi_plane k = rkvi_plane_k(g, a->bases[cell->base], head / (a->q_heads / g->n_heads));
            const rkvi_plane v = rkvi_plane_v(g, a->bases[cell->base], head / (a->q_heads / g->n_heads));
            const int64_t pos = a->rows[it->row0 + j].pos;
            double s = 0;
            if (!(it->mask >> j & 1) || pos < lo || pos >= hi)
                continue;
            rkvi_plane_get(&k, cell->cell, x);
            for (uint32_t d = 0; d < g->dk; d++)
                s += (double)q[d] * (double)x[d];
            s *= (double)a->scale;
            s = a->softcap != 0 ? (double)a->softcap * tanh(s / (double)a->softcap) : s;
            largest = s > largest ? s : largest;
            if (pass == 0)
                continue;
            rkvi_plane_get(&v, cell->cell, x);
            sum += exp(s - largest);
            for (uint32_t d = 0; d < g->dv; d++)
                o[d] += exp(s - largest) * (double)x[d];
        }
    if (largest == (double)-INFINITY) {
        assert_true(m == -INFINITY && l == 0);
        for (uint32_t d = 0; d < g->dv; d++)
            assert_true(part[head * g->dv + d] == 0);
        return;
    }
    assert_true(fabs((double)m - largest) < 1e-5 && fabs((double)l - sum) < 1e-4);
    for (uint32_t d = 0; d < g->dv; d++)
        assert_true(fabs((double)part[head * g->dv + d] - o[d]) < 1e-4);
}

static void test_tree(void **state)
{
    (void)state;
    uint64_t r = seed;
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0, RKV_TYPE_FP8_E4M3};
    static const uint32_t sizes[] = {1, 2, 7, 33, 64};
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t n = 0; n < 5; n++) {
            const rkvi_site_mask mask = {.kind = n % 3, .width = 3};
            const rkvi_geom g = {.dk = 64, .dv = 32, .type_k = types[t], .type_v = types[3 - t]};
            tree_case *c = tree_make(sizes[n], 2, 1 + n % 3, g, mask, &r);
            for (uint64_t x = 0; x < (uint64_t)c->n_rows * c->args.q_heads; x++) {
                ref.fn[RKVI_OP_TREE](&c->args, x);
                check_tree_head(c, &c->items[x / c->args.q_heads], (uint32_t)(x % c->args.q_heads));
            }
            tree_free(c);
        }
}

/* Every plane of cell i is that of cell from[i] before. */
static void test_move(void **state)
{
    (void)state;
    static const uint8_t from[] = {0, 2, 3, 9, 10, 26, 40, 63};
    uint64_t r = seed;
    const rkvi_geom geom = {.dk = 32, .dv = 64, .type_k = RKV_TYPE_Q8_0, .type_v = RKV_TYPE_F16};
    tree_case *c = tree_make(64, 2, 1, geom, (rkvi_site_mask){0}, &r);
    const rkvi_geom *g = &c->args.geom;
    uint8_t *before = malloc(c->tiles_bytes);
    memcpy(before, c->tiles, c->tiles_bytes);
    rkvi_move_args a = {.geom = *g, .first = 7, .n = sizeof from};
    memcpy(a.from, from, sizeof from);
    memcpy(a.tiles, c->bases, sizeof a.tiles);
    for (uint32_t h = 0; h < g->n_heads; h++)
        ref.fn[RKVI_OP_MOVE](&a, h);
    for (uint32_t i = 0; i < 64; i++)
        for (uint32_t h = 0; h < g->n_heads; h++) {
            const uint32_t to = 7 + i, src = 7 + (i < sizeof from ? from[i] : i);
            float x[64], y[64];
            const rkvi_plane k0 = rkvi_plane_k(g, (uintptr_t)before + src / 16 * g->bytes, h);
            const rkvi_plane k1 = rkvi_plane_k(g, c->bases[to / 16], h);
            const rkvi_plane v0 = rkvi_plane_v(g, (uintptr_t)before + src / 16 * g->bytes, h);
            const rkvi_plane v1 = rkvi_plane_v(g, c->bases[to / 16], h);
            rkvi_plane_get(&k0, src % 16, x);
            rkvi_plane_get(&k1, to % 16, y);
            assert_memory_equal(x, y, 32 * sizeof *x);
            rkvi_plane_get(&v0, src % 16, x);
            rkvi_plane_get(&v1, to % 16, y);
            assert_memory_equal(x, y, 64 * sizeof *x);
        }
    free(before);
    tree_free(c);
}

int main(void)
{
    const char *text = getenv("ROLLKV_TEST_SEED");
    seed = text ? strtoull(text, NULL, 0) : 20261130;
    printf("seed %llu (ROLLKV_TEST_SEED)\n", (unsigned long long)seed);
    rkvi_ops_ref(&ref);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rotate), cmocka_unit_test(test_tree),
                                       cmocka_unit_test(test_move)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
