/* SPDX-License-Identifier: MIT
 *
 * Shifting's and token trees' ops on a GPU against the plain C reference:
 * rotated rows and moved cells bit by bit, a tree's partials within rounding.
 */
#include "cuda_fixture.h"

#include "turn_case.h"

static rkvi_device *gpu;
static rkvi_ops ref;
static uint64_t seed;

static void check_rotate(rotate_case *c)
{
    rkvi_rotate_args b = c->args;
    float *got = malloc(c->turned_bytes);
    b.q.data = gpu_put(gpu, c->args.q.data, c->q_bytes);
    b.rows = gpu_put(gpu, c->rows, sizeof c->rows);
    b.angles = gpu_put(gpu, c->args.angles, c->angles_bytes);
    b.turned = gpu_put(gpu, c->args.turned, c->turned_bytes);
    const uint64_t grid = (uint64_t)c->n_rows * c->args.q_heads;
    for (uint64_t i = 0; i < grid; i++)
        ref.fn[RKVI_OP_ROTATE](&c->args, i);
    gpu_launch(gpu, RKVI_OP_ROTATE, &b, sizeof b, grid);
    gpu_get(gpu, got, b.turned, c->turned_bytes);
    assert_memory_equal(got, c->args.turned, c->turned_bytes);
    gpu_free(gpu, b.q.data);
    gpu_free(gpu, (void *)(uintptr_t)b.rows);
    gpu_free(gpu, (void *)(uintptr_t)b.angles);
    gpu_free(gpu, b.turned);
    free(got);
}

static void test_rotate(void **state)
{
    (void)state;
    uint64_t r = seed;
    static const uint32_t dims[] = {8, 64, 80, 96, 128, 192, 256, 512};
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t k = 0; k < 6; k++) {
            const uint32_t most = dims[i] / 2, pairs = k < 3 ? most : (uint32_t)(gpu_random(&r) % (most + 1));
            rotate_case c;
            rotate_make(&c, 1 + k, dims[i], pairs, k % 2, RKV_TYPE_F32 + k % 3, &r);
            check_rotate(&c);
            rotate_free(&c);
        }
}

/* The same args, with everything on the GPU. */
static rkvi_tree_args tree_on_gpu(const tree_case *c, uint64_t *bases, uint8_t **out_tiles)
{
    rkvi_tree_args b = c->args;
    *out_tiles = gpu_put(gpu, c->tiles, c->tiles_bytes);
    for (uint32_t t = 0; t < 2 * RKVI_MOVE_TILES_MAX; t++)
        bases[t] = (uintptr_t)(*out_tiles + t * b.geom.bytes);
    b.rows = gpu_put(gpu, c->rows, sizeof c->rows);
    b.bases = gpu_put(gpu, bases, sizeof c->bases);
    b.cells = gpu_put(gpu, c->cells, sizeof c->cells);
    b.items = gpu_put(gpu, c->items, sizeof c->items);
    b.partials = gpu_put(gpu, c->args.partials, c->partials_bytes);
    b.q.data = gpu_put(gpu, c->args.q.data, c->q_bytes);
    return b;
}

static void tree_off_gpu(rkvi_tree_args *b, uint8_t *tiles)
{
    void *all[] = {(void *)(uintptr_t)b->rows, (void *)(uintptr_t)b->bases, (void *)(uintptr_t)b->cells,
                   (void *)(uintptr_t)b->items, b->partials, b->q.data, tiles};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_free(gpu, all[i]);
}

static void check_tree(tree_case *c)
{
    uint64_t bases[2 * RKVI_MOVE_TILES_MAX];
    uint8_t *tiles;
    rkvi_tree_args b = tree_on_gpu(c, bases, &tiles);
    float *got = malloc(c->partials_bytes);
    const float *want = c->args.partials;
    const uint64_t grid = (uint64_t)c->n_rows * b.q_heads;
    for (uint64_t i = 0; i < grid; i++)
        ref.fn[RKVI_OP_TREE](&c->args, i);
    gpu_launch(gpu, RKVI_OP_TREE, &b, sizeof b, grid);
    gpu_get(gpu, got, b.partials, c->partials_bytes);
    for (uint64_t i = 0; i < c->partials_bytes / sizeof *got; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            assert_true(fabs((double)got[i] - (double)want[i]) <= 1e-5 + 1e-5 * fabs((double)want[i]));
    tree_off_gpu(&b, tiles);
    free(got);
}

static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0};

static void test_tree(void **state)
{
    (void)state;
    uint64_t r = seed;
    static const uint32_t sizes[] = {1, 2, 7, 33, 64}, dims[] = {64, 96, 128, 256};
    for (uint32_t t = 0; t < 5; t++)
        for (uint32_t n = 0; n < 5; n++) {
            const rkvi_site_mask mask = {.kind = n % 3, .width = 3};
            const rkvi_geom g = {
                .dk = dims[(t + n) % 4], .dv = dims[n % 4], .type_k = types[t], .type_v = types[4 - t]};
            tree_case *c = tree_make(sizes[n], 2, 1 + n % 3, g, mask, &r);
            check_tree(c);
            tree_free(c);
        }
}

static void test_move(void **state)
{
    (void)state;
    uint64_t r = seed;
    for (uint32_t t = 0; t < 5; t++) {
        const rkvi_geom g = {.dk = 96, .dv = 64, .type_k = types[t], .type_v = types[4 - t]};
        tree_case *c = tree_make(64, 3, 1, g, (rkvi_site_mask){0}, &r);
        uint8_t *tiles, *got = malloc(c->tiles_bytes);
        uint64_t bases[2 * RKVI_MOVE_TILES_MAX];
        rkvi_tree_args on_gpu = tree_on_gpu(c, bases, &tiles);
        rkvi_move_args a = {.geom = c->args.geom, .first = 7}, b;
        for (uint32_t i = 0; i < 64; i++)
            if (gpu_random(&r) % 3 == 0)
                a.from[a.n++] = (uint8_t)i;
        b = a;
        memcpy(a.tiles, c->bases, sizeof a.tiles);
        memcpy(b.tiles, bases, sizeof b.tiles);
        for (uint32_t h = 0; h < a.geom.n_heads; h++)
            ref.fn[RKVI_OP_MOVE](&a, h);
        gpu_launch(gpu, RKVI_OP_MOVE, &b, sizeof b, a.geom.n_heads);
        gpu_get(gpu, got, tiles, c->tiles_bytes);
        assert_memory_equal(got, c->tiles, c->tiles_bytes);
        tree_off_gpu(&on_gpu, tiles);
        tree_free(c);
        free(got);
    }
}

int main(void)
{
    gpu_or_skip();
    seed = gpu_seed();
    gpu = gpu_open();
    rkvi_ops_ref(&ref);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rotate), cmocka_unit_test(test_tree),
                                       cmocka_unit_test(test_move)};
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    rkvi_dev_destroy(gpu);
    return n_failed;
}
