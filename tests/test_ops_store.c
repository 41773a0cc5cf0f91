/* Store and open: arithmetic against blocks worked by hand, layout, saturation,
 * and that nothing else in a tile-layer is touched. */
#include "ops_case.h"
#include "ops_half.h"

static rkvi_ops sets[KERNEL_SETS];
static uint32_t n_sets;

#define CELLS 16u

/* One head of one tile; K and V of one type. */
typedef struct tile {
    rkvi_geom geom;
    uint8_t *bytes;
    uint64_t base;
} tile;

static tile tile_make(rkv_type type, uint32_t dim, uint32_t heads)
{
    tile t = {.geom = {.n_heads = heads, .dk = dim, .dv = dim, .type_k = type, .type_v = type,
                       .k_scale = 0.5f, .v_scale = 2, .tile_cells = CELLS}};
    assert_int_equal(rkvi_geom_init(&t.geom), RKV_OK);
    t.bytes = aligned_alloc(256, t.geom.bytes);
    memset(t.bytes, CANARY, t.geom.bytes);
    t.base = (uintptr_t)t.bytes;
    return t;
}

static void store(const tile *t, const rkvi_ops *ops, uint32_t cell, const rkvi_tensor *k,
                  const rkvi_tensor *v, uint32_t row)
{
    const rkvi_new_cell c = {.base = 0, .cell = cell, .row = row};
    const rkvi_store_args a = {
        .geom = t->geom, .bases = &t->base, .cells = &c, .k = *k, .v = *v};
    for (uint32_t h = 0; h < t->geom.n_heads; h++)
        ops->fn[RKVI_OP_STORE](&a, h);
}

/* Stores x as both K and V of one cell, one head. */
static tile store_row(const rkvi_ops *ops, rkv_type type, float *x, uint32_t dim, uint32_t cell)
{
    const tile t = tile_make(type, dim, 1);
    const rkvi_tensor in = row_major(x, 1, dim);
    store(&t, ops, cell, &in, &in, 0);
    return t;
}

static uint16_t u16_at(const tile *t, uint64_t at)
{
    uint16_t x;
    memcpy(&x, t->bytes + at, sizeof x);
    return x;
}

static void test_q8_0(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++) {
        float x[64] = {127, 2.5f, -2.5f, 0.5f, -0.5f, 0.49f, -126.5f, 1.49f};
        for (int i = 0; i < 32; i++)
            x[32 + i] = (float)(i - 16); /* d = 16/127 = 0.12598: f16 0x3008; 1/d = 7.9375 */
        tile t = store_row(&sets[s], RKV_TYPE_Q8_0, x, 64, 3);
        const int8_t *q = (const int8_t *)t.bytes + 3 * 64;
        const int8_t want[] = {127, 3, -3, 1, -1, 0, -127, 1, 0};
        assert_memory_equal(q, want, sizeof want);
        assert_int_equal(u16_at(&t, CELLS * 64 + 3 * 4), 0x3c00);
        assert_int_equal(u16_at(&t, CELLS * 64 + 3 * 4 + 2), 0x3008);
        assert_int_equal(q[32], -127);
        assert_int_equal(q[32 + 16], 0);
        assert_int_equal(q[32 + 17], 8);
        assert_int_equal(q[32 + 20], 32);
        assert_int_equal(q[32 + 31], 119);
        assert_memory_equal(t.bytes + t.geom.v_off + 3 * 64, q, 64);
        free(t.bytes);
    }
}

static void test_q4_0(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++) {
        /* largest -8: d = 1; then largest +8: d = -1 */
        float x[64] = {-8, 0, 7, 7.6f, 0.5f, 0.49f, -0.5f, -0.51f, [16] = 1, [17] = -8,
                       [32] = 8, [33] = -7, [34] = 3, [48] = 0.5f};
        tile t = store_row(&sets[s], RKV_TYPE_Q4_0, x, 64, 1);
        const uint8_t *q = t.bytes + 32;
        const uint8_t low[] = {0, 8, 15, 15, 9, 8, 8, 7, 8};
        for (int i = 0; i < 9; i++)
            assert_int_equal(q[i] & 15, low[i]);
        assert_int_equal(q[0] >> 4, 9);
        assert_int_equal(q[1] >> 4, 0);
        assert_int_equal(q[2] >> 4, 8);
        assert_int_equal(q[16] & 15, 0);
        assert_int_equal(q[17] & 15, 15);
        assert_int_equal(q[18] & 15, 5);
        assert_int_equal(q[16] >> 4, 8);
        assert_int_equal(u16_at(&t, CELLS * 32 + 4), 0x3c00);
        assert_int_equal(u16_at(&t, CELLS * 32 + 6), 0xbc00);
        float back[64];
        const rkvi_plane k = rkvi_plane_k(&t.geom, t.base, 0);
        rkvi_plane_get(&k, 1, back);
        assert_true(back[0] == -8 && back[2] == 7 && back[16] == 1 && back[32] == 8 &&
                    back[33] == -7 && back[34] == 3);
        free(t.bytes);
    }
}

static void test_saturation(void **state)
{
    (void)state;
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0,
                                     RKV_TYPE_Q4_0};
    for (uint32_t s = 0; s < n_sets; s++)
        for (int i = 0; i < 5; i++) {
            float x[32] = {INFINITY, -INFINITY, NAN, 1e38f, -1e38f, 1, 0}, k[32], v[32];
            tile t = store_row(&sets[s], types[i], x, 32, 0);
            const rkvi_plane pk = rkvi_plane_k(&t.geom, t.base, 0);
            const rkvi_plane pv = rkvi_plane_v(&t.geom, t.base, 0);
            rkvi_plane_get(&pk, 0, k);
            rkvi_plane_get(&pv, 0, v);
            const float top[] = {65504, 0x1.fep127f, 448 * 0.5f, 127 * 65504.0f, 8 * 65504.0f};
            assert_true(k[0] == top[i] || (i == 4 && k[0] == top[4]));
            assert_true(k[1] == (i == 4 ? -7 * 65504.0f : -top[i]));
            assert_true(k[2] == 0 && v[2] == 0 && k[6] == 0);
            assert_true(i == 2 ? v[0] == 896 : v[0] == k[0]);
            for (int d = 0; d < 32; d++)
                assert_true(isfinite(k[d]) && isfinite(v[d]));
            free(t.bytes);
        }
}

/* Scales that f16 can't hold stand for zeros; all zeros stay zeros. */
static void test_tiny_blocks(void **state)
{
    (void)state;
    static const float tiny[] = {0, 1e-45f, 1e-38f, 1e-12f, 1e-6f};
    for (uint32_t s = 0; s < n_sets; s++)
        for (int i = 0; i < 10; i++) {
            float x[32] = {tiny[i / 2], -tiny[i / 2], [9] = tiny[i / 2]}, k[32];
            tile t = store_row(&sets[s], i % 2 ? RKV_TYPE_Q8_0 : RKV_TYPE_Q4_0, x, 32, 0);
            const rkvi_plane p = rkvi_plane_k(&t.geom, t.base, 0);
            rkvi_plane_get(&p, 0, k);
            for (int d = 0; d < 32; d++)
                assert_true(fabsf(k[d] - x[d]) <= 3.1e-6f && (tiny[i / 2] > 0 || k[d] == 0));
            free(t.bytes);
        }
}

/* Several heads, tensor types and strides; the bytes of other cells stay. */
static void check_layout(const rkvi_ops *ops, rkv_type type, rkv_type tensor)
{
    const uint32_t heads = 3, dim = 64, rows = 4;
    const tile t = tile_make(type, dim, heads), want = tile_make(type, dim, heads);
    const size_t n = 4096, size = rkvi_tensor_type_bytes(tensor);
    float *x = case_alloc(n, sizeof *x);
    uint8_t *raw = case_alloc(n, size);
    uint64_t s = 99;
    rkvi_tensor in = {.data = raw, .row_stride = 70, .head_stride = 70 * rows, .type = tensor};
    for (size_t i = 0; i < n; i++) {
        x[i] = rng_normal(&s);
        const uint16_t h = tensor == RKV_TYPE_F16 ? rkvi_f32_to_f16(x[i]) : rkvi_f32_to_bf16(x[i]);
        memcpy(raw + i * size, tensor == RKV_TYPE_F32 ? (void *)&x[i] : (void *)&h, size);
        if (tensor != RKV_TYPE_F32)
            x[i] = tensor == RKV_TYPE_F16 ? rkvi_f16_to_f32(h) : rkvi_bf16_to_f32(h);
    }
    rkvi_tensor v = in;
    v.data = raw + 7 * size;
    store(&t, ops, 5, &in, &v, 2);
    store(&t, ops, CELLS - 1, &in, &v, 3);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t r = 2; r < 4; r++) {
            const rkvi_plane pk = rkvi_plane_k(&want.geom, want.base, h);
            const rkvi_plane pv = rkvi_plane_v(&want.geom, want.base, h);
            rkvi_plane_put(&pk, r == 2 ? 5 : CELLS - 1, x + r * 70 + h * 70 * rows);
            rkvi_plane_put(&pv, r == 2 ? 5 : CELLS - 1, x + r * 70 + h * 70 * rows + 7);
        }
    assert_memory_equal(t.bytes, want.bytes, t.geom.bytes);
    uint64_t changed = 0;
    for (uint64_t i = 0; i < t.geom.bytes; i++)
        changed += t.bytes[i] != CANARY;
    const uint64_t cell = t.geom.head_bytes / CELLS;
    assert_true(changed <= 2 * heads * cell && changed >= 2 * heads * cell * 9 / 10);
    free(x);
    free(raw);
    free(t.bytes);
    free(want.bytes);
}

static void test_layout(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++)
        for (rkv_type type = RKV_TYPE_F16; type <= RKV_TYPE_Q4_0; type++)
            for (rkv_type tensor = RKV_TYPE_F32; tensor <= RKV_TYPE_BF16; tensor++)
                check_layout(&sets[s], type, tensor);
}

/* Where head 1's cell 2 lies, by geometry.h's drawing. */
static void test_place_of_cell(void **state)
{
    (void)state;
    float x[96];
    for (int i = 0; i < 96; i++)
        x[i] = (float)i;
    const rkvi_tensor in = row_major(x, 2, 32);
    for (uint32_t s = 0; s < n_sets; s++) {
        tile t = tile_make(RKV_TYPE_F16, 32, 2);
        store(&t, &sets[s], 2, &in, &in, 0);
        const uint64_t head1 = CELLS * 32 * 2 * 2;
        assert_int_equal(u16_at(&t, 2 * 64), rkvi_f32_to_f16(0));
        assert_int_equal(u16_at(&t, head1 + 2 * 64), rkvi_f32_to_f16(32));
        assert_int_equal(u16_at(&t, head1 + CELLS * 64 + 2 * 64 + 62), rkvi_f32_to_f16(63));
        free(t.bytes);
    }
}

static void test_open(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++) {
        uint8_t bytes[4096];
        memset(bytes, CANARY, sizeof bytes);
        const uint64_t bases[] = {1, (uintptr_t)bytes + 512, 2, (uintptr_t)bytes + 2048};
        const uint64_t index[] = {3, 1};
        const rkvi_open_args a = {.bases = bases, .base_index = index, .bytes = 1000};
        sets[s].fn[RKVI_OP_OPEN](&a, 0);
        sets[s].fn[RKVI_OP_OPEN](&a, 1);
        for (uint32_t i = 0; i < sizeof bytes; i++) {
            const bool in = (i >= 512 && i < 1512) || (i >= 2048 && i < 3048);
            assert_int_equal(bytes[i], in ? 0 : CANARY);
        }
    }
}

/* All bytes, and no more, whatever the last piece's length. */
static void test_upload(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {16, RKVI_UPLOAD_BYTES, RKVI_UPLOAD_BYTES + 16, 3 * RKVI_UPLOAD_BYTES - 48};
    unsigned char from[3 * RKVI_UPLOAD_BYTES], to[sizeof from];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + i / 256);
    for (uint32_t s = 0; s < n_sets; s++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const rkvi_upload_args a = {.dst = to, .src = from, .bytes = sizes[i]};
            memset(to, 0xA5, sizeof to);
            for (uint64_t k = 0; k * RKVI_UPLOAD_BYTES < sizes[i]; k++)
                sets[s].fn[RKVI_OP_UPLOAD](&a, k);
            assert_memory_equal(to, from, sizes[i]);
            for (size_t k = sizes[i]; k < sizeof to; k++)
                assert_int_equal(to[k], 0xA5);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_upload),
        cmocka_unit_test(test_q8_0),        cmocka_unit_test(test_q4_0),
        cmocka_unit_test(test_saturation),  cmocka_unit_test(test_tiny_blocks),
        cmocka_unit_test(test_layout),      cmocka_unit_test(test_place_of_cell),
        cmocka_unit_test(test_open),
    };
    n_sets = kernel_sets(sets);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
