/* SPDX-License-Identifier: MIT
 *
 * Open and store on a GPU: whole tile-layers, byte by byte, against the plain C
 * reference, on random values, random bit patterns and the edges of each type.
 */
#include "cuda_fixture.h"

#include "ops_half.h"

#include <math.h>

#define TILES 4u
#define CELLS 40u /* new ones of a launch */
#define HEADS 3u
#define CANARY 0xA5

static rkvi_device *gpu;
static rkvi_ops ref;
static uint64_t seed;

typedef enum { NORMAL, PATTERNS, EDGES, VALUES_COUNT } values_kind;

static float value(values_kind kind, uint64_t *r)
{
    static const float edges[] = {0.0f,
                                  -0.0f,
                                  INFINITY,
                                  -INFINITY,
                                  NAN,
                                  1e-45f,
                                  -1e-45f,
                                  1.17e-38f,
                                  65504,
                                  65519.99f,
                                  65520,
                                  -65520,
                                  448,
                                  464,
                                  465,
                                  -448,
                                  0x1.fep127f,
                                  0x1.ffp127f,
                                  0x1.fffffep127f,
                                  0.5f,
                                  -0.5f,
                                  1.5f,
                                  2.5f,
                                  127,
                                  126.5f,
                                  -126.5f,
                                  0x1p-24f,
                                  0x1p-25f,
                                  0x1.8p-25f,
                                  0x1p-9f,
                                  0x1p-10f,
                                  0x1.8p-10f,
                                  1,
                                  -1,
                                  8,
                                  -8,
                                  7.5f,
                                  1e10f,
                                  -1e30f,
                                  1e-20f};
    const uint64_t x = gpu_random(r);
    if (kind == EDGES)
        return edges[x % (sizeof edges / sizeof *edges)];
    if (kind == PATTERNS)
        return rkvi_from_bits((uint32_t)x);
    /* normal values, of one size in a block of 32 or of very unlike ones */
    return (float)((int64_t)(x >> 40) - (1 << 23)) / (float)(1 << 22) * (x % 7 ? 1.0f : 1000.0f);
}

/* Rows of all three tensor types, with room between rows and heads. */
static size_t make_tensor(rkv_type type, uint32_t dim, values_kind kind, uint64_t *r, rkvi_tensor *t,
                          uint8_t **raw)
{
    const int64_t head_stride = dim + 5, row_stride = HEADS * head_stride + 3;
    const size_t n = (size_t)(row_stride * CELLS), size = rkvi_tensor_type_bytes(type);
    *raw = malloc(n * size);
    for (size_t i = 0; i < n; i++) {
        const float x = value(kind, r);
        const uint16_t h = type == RKV_TYPE_F16 ? rkvi_f32_to_f16(x) : rkvi_f32_to_bf16(x);
        memcpy(*raw + i * size, type == RKV_TYPE_F32 ? (const void *)&x : (const void *)&h, size);
    }
    *t =
        (rkvi_tensor){.data = *raw, .row_stride = row_stride, .head_stride = head_stride, .type = type};
    return n * size;
}

/* Each cell of the tiles at most once: items run in any order. */
static void choose_cells(rkvi_new_cell *cells, uint32_t tile_cells, uint64_t *r)
{
    const uint32_t n = TILES * tile_cells;
    uint32_t *order = malloc(n * sizeof *order);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = 0; i < CELLS; i++) {
        const uint32_t k = i + (uint32_t)(gpu_random(r) % (n - i)), x = order[k];
        order[k] = order[i];
        cells[i] =
            (rkvi_new_cell){.base = x / tile_cells, .cell = x % tile_cells, .row = CELLS - 1 - i};
    }
    free(order);
}

static void check_store(rkvi_geom g, rkv_type tensor, values_kind kind, uint64_t *r)
{
    uint8_t *raw_k, *raw_v;
    rkvi_new_cell cells[CELLS];
    uint64_t bases[TILES], gpu_bases[TILES];
    g.n_heads = HEADS;
    g.tile_cells = 16;
    g.k_scale = 0.37f;
    g.v_scale = 3;
    ok(rkvi_geom_init(&g));
    uint8_t *want = malloc(TILES * g.bytes), *got = malloc(TILES * g.bytes);
    memset(want, CANARY, TILES * g.bytes);
    rkvi_store_args a = {.geom = g, .bases = bases, .cells = cells};
    const size_t k_bytes = make_tensor(tensor, g.dk, kind, r, &a.k, &raw_k);
    const size_t v_bytes = make_tensor(tensor, g.dv, kind, r, &a.v, &raw_v);
    choose_cells(cells, g.tile_cells, r);
    uint8_t *tiles = gpu_put(gpu, want, TILES * g.bytes);
    for (uint32_t i = 0; i < TILES; i++) {
        bases[i] = (uintptr_t)(want + i * g.bytes);
        gpu_bases[i] = (uintptr_t)(tiles + i * g.bytes);
    }
    for (uint64_t i = 0; i < CELLS * HEADS; i++)
        ref.fn[RKVI_OP_STORE](&a, i);
    rkvi_store_args b = a;
    b.bases = gpu_put(gpu, gpu_bases, sizeof gpu_bases);
    b.cells = gpu_put(gpu, cells, sizeof cells);
    b.k.data = gpu_put(gpu, raw_k, k_bytes);
    b.v.data = gpu_put(gpu, raw_v, v_bytes);
    gpu_launch(gpu, RKVI_OP_STORE, &b, sizeof b, CELLS * HEADS);
    gpu_get(gpu, got, tiles, TILES * g.bytes);
    if (memcmp(want, got, TILES * g.bytes)) {
        uint64_t at = 0;
        while (want[at] == got[at])
            at++;
        print_error(
            "K %s %u, V %s %u from %s, values %d: byte %llu (of %llu a tile-layer) is %02x, not %02x\n",
            rkvi_type_name(g.type_k), g.dk, rkvi_type_name(g.type_v), g.dv, rkvi_type_name(tensor),
            kind, (unsigned long long)at, (unsigned long long)g.bytes, got[at], want[at]);
        fail();
    }
    void *all[] = {tiles, (void *)b.bases, (void *)b.cells, b.k.data, b.v.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_free(gpu, all[i]);
    free(want);
    free(got);
    free(raw_k);
    free(raw_v);
}

static void test_store(void **state)
{
    (void)state;
    static const uint32_t dims[][2] = {{8, 8},    {64, 64},   {80, 80},   {96, 96},
                                       {112, 40}, {128, 128}, {192, 128}, {512, 512}};
    uint64_t r = seed;
    uint32_t n = 0;
    for (rkv_type k = RKV_TYPE_F16; k <= RKV_TYPE_Q4_0; k++)
        for (rkv_type v = RKV_TYPE_F16; v <= RKV_TYPE_Q4_0; v++)
            for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
                const rkvi_geom g = {.dk = dims[i][0], .dv = dims[i][1], .type_k = k, .type_v = v};
                if ((rkvi_type_is_quantised(k) && g.dk % 32) ||
                    (rkvi_type_is_quantised(v) && g.dv % 32))
                    continue;
                for (rkv_type tensor = RKV_TYPE_F32; tensor <= RKV_TYPE_BF16; tensor++, n++)
                    if (!gpu_leaves_out())
                        check_store(g, tensor, (values_kind)(n % VALUES_COUNT), &r);
            }
    assert_true(n > 400);
}

/* Every kind of value with every type, in one geometry. */
static void test_values(void **state)
{
    (void)state;
    uint64_t r = seed + 1;
    for (rkv_type type = RKV_TYPE_F16; type <= RKV_TYPE_Q4_0; type++)
        for (rkv_type tensor = RKV_TYPE_F32; tensor <= RKV_TYPE_BF16; tensor++)
            for (int kind = 0; kind < VALUES_COUNT; kind++)
                for (int times = 0; times < 3; times++) {
                    const rkvi_geom g = {.dk = 256, .dv = 256, .type_k = type, .type_v = type};
                    if (!gpu_leaves_out())
                        check_store(g, tensor, (values_kind)kind, &r);
                }
}

/* Zeroes these tile-layers and nothing else, of any number of bytes. */
static void test_open(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {256, 1000, 16384, 16384 + 256, 3 * 16384 + 1, 100000};
    enum { ROOM = 1 << 20 };
    uint8_t *host = malloc(ROOM), *want = malloc(ROOM);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(want, CANARY, ROOM);
        uint8_t *dev = gpu_put(gpu, want, ROOM);
        const uint64_t bases[] = {1, (uintptr_t)dev + 512, 2, (uintptr_t)dev + ROOM / 2};
        const uint64_t index[] = {3, 1};
        const rkvi_open_args a = {.bases = gpu_put(gpu, bases, sizeof bases),
                                  .base_index = gpu_put(gpu, index, sizeof index),
                                  .bytes = sizes[i]};
        gpu_launch(gpu, RKVI_OP_OPEN, &a, sizeof a, 2);
        gpu_get(gpu, host, dev, ROOM);
        memset(want + 512, 0, sizes[i]);
        memset(want + ROOM / 2, 0, sizes[i]);
        assert_memory_equal(host, want, ROOM);
        gpu_free(gpu, dev);
        gpu_free(gpu, (void *)a.bases);
        gpu_free(gpu, (void *)a.base_index);
    }
    free(host);
    free(want);
}

int main(void)
{
    gpu_or_skip();
    seed = gpu_seed();
    gpu = gpu_open();
    rkvi_ops_ref(&ref);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_store), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_open)};
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    rkvi_dev_destroy(gpu);
    return n_failed;
}
