/* Sizes and layouts of tile-layers, and what has none. */
#include "diag.h"
#include "geometry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static rkvi_geom geom(uint32_t heads, uint32_t dk, uint32_t dv, rkv_type k, rkv_type v, uint32_t t)
{
    return (rkvi_geom){.n_heads = heads, .dk = dk, .dv = dv, .type_k = k, .type_v = v,
                       .k_scale = 1, .v_scale = 1, .tile_cells = t};
}

static void test_layout(void **state)
{
    (void)state;
    rkvi_geom g = geom(3, 192, 128, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0, 256);
    assert_int_equal(rkvi_geom_init(&g), RKV_OK);
    assert_int_equal(g.k_cell_bytes, 192);
    assert_int_equal(g.k_scale_cell_bytes, 12);
    assert_int_equal(g.v_cell_bytes, 64);
    assert_int_equal(g.v_scale_cell_bytes, 8);
    assert_int_equal(g.k_off, 0);
    assert_int_equal(g.k_scale_off, 256 * 192);
    assert_int_equal(g.v_off, 256 * (192 + 12));
    assert_int_equal(g.v_scale_off, 256 * (192 + 12 + 64));
    assert_int_equal(g.head_bytes, 256 * (192 + 12 + 64 + 8));
    assert_int_equal(g.bytes, 3 * 256 * 276);
    g = geom(1, 80, 80, RKV_TYPE_F16, RKV_TYPE_FP8_E4M3, 16);
    assert_int_equal(rkvi_geom_init(&g), RKV_OK);
    assert_int_equal(g.head_bytes, 16 * 240);
    assert_int_equal(g.bytes, 16 * 240); /* 3840 = 15 x 256 */
    g = geom(1, 8, 8, RKV_TYPE_FP8_E4M3, RKV_TYPE_FP8_E4M3, 16);
    assert_int_equal(rkvi_geom_init(&g), RKV_OK);
    assert_int_equal(g.head_bytes, 256);
    g = geom(1, 8, 16, RKV_TYPE_FP8_E4M3, RKV_TYPE_FP8_E4M3, 16);
    assert_int_equal(rkvi_geom_init(&g), RKV_OK);
    assert_int_equal(g.bytes, 512); /* padded from 384 */
}

/* All planes of all heads are 16-byte aligned, for every type pair and dim. */
static void test_alignment(void **state)
{
    (void)state;
    for (uint32_t dim = 8; dim <= 1024; dim += 8)
        for (rkv_type k = RKV_TYPE_F16; k <= RKV_TYPE_Q4_0; k++)
            for (rkv_type v = RKV_TYPE_F16; v <= RKV_TYPE_Q4_0; v++) {
                rkvi_geom g = geom(2, dim, 1032 - dim, k, v, 16);
                const rkv_status s = rkvi_geom_init(&g);
                const bool blocks = (rkvi_type_is_quantised(k) && g.dk % 32 != 0) ||
                                    (rkvi_type_is_quantised(v) && g.dv % 32 != 0);
                assert_int_equal(s, blocks ? RKV_E_UNSUPPORTED : RKV_OK);
                if (blocks)
                    continue;
                assert_int_equal((g.k_scale_off | g.v_off | g.v_scale_off | g.head_bytes) % 16, 0);
                assert_int_equal(g.bytes % RKVI_PLACE_ALIGN, 0);
                assert_true(g.bytes >= 2 * g.head_bytes && g.bytes < 2 * g.head_bytes + 256);
            }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t dk, dv;
        rkv_type k, v;
        rkv_status status;
        const char *text;
    } bad[] = {
        {80, 64, RKV_TYPE_Q8_0, RKV_TYPE_F16, RKV_E_UNSUPPORTED, "80"},
        {64, 80, RKV_TYPE_F16, RKV_TYPE_Q4_0, RKV_E_UNSUPPORTED, "q4_0"},
        {64, 64, RKV_TYPE_F32, RKV_TYPE_F16, RKV_E_UNSUPPORTED, "storage"},
        {64, 64, RKV_TYPE_F16, 7, RKV_E_UNSUPPORTED, "7"},
        {64, 64, RKV_TYPE_DEFAULT, RKV_TYPE_F16, RKV_E_UNSUPPORTED, "storage"},
        {0, 64, RKV_TYPE_F16, RKV_TYPE_F16, RKV_E_ARGUMENT, "0"},
        {68, 64, RKV_TYPE_F16, RKV_TYPE_F16, RKV_E_ARGUMENT, "68"},
        {64, 1032, RKV_TYPE_F16, RKV_TYPE_F16, RKV_E_ARGUMENT, "1032"},
        {UINT32_MAX - 7, 64, RKV_TYPE_F16, RKV_TYPE_F16, RKV_E_ARGUMENT, "4294967288"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rkvi_geom g = geom(2, bad[i].dk, bad[i].dv, bad[i].k, bad[i].v, 256);
        assert_int_equal(rkvi_geom_init(&g), bad[i].status);
        assert_non_null(strstr(rkvi_error_text(), bad[i].text));
    }
}

/* The largest sizes that the types allow stay exact. */
static void test_large(void **state)
{
    (void)state;
    rkvi_geom g = geom(UINT32_MAX, 1024, 1024, RKV_TYPE_F16, RKV_TYPE_F16, 4096);
    assert_int_equal(rkvi_geom_init(&g), RKV_OK);
    assert_true(g.head_bytes == (uint64_t)4096 * 4096);
    assert_true(g.bytes == (uint64_t)UINT32_MAX * 4096 * 4096);
    uint64_t x;
    assert_true(rkvi_mul((uint64_t)1 << 31, (uint64_t)1 << 31, &x) && x == RKVI_SIZE_MAX);
    assert_false(rkvi_mul((uint64_t)1 << 31, ((uint64_t)1 << 31) + 1, &x));
    assert_false(rkvi_mul(UINT64_MAX, 2, &x));
    assert_true(rkvi_add(RKVI_SIZE_MAX - 1, 1, &x) && x == RKVI_SIZE_MAX);
    assert_false(rkvi_add(RKVI_SIZE_MAX, 1, &x));
    assert_false(rkvi_add(UINT64_MAX, 1, &x));
    assert_true(rkvi_mul(0, UINT64_MAX, &x) && x == 0);
    assert_int_equal(rkvi_div_up(0, 7), 0);
    assert_int_equal(rkvi_div_up(8, 7), 2);
    assert_true(rkvi_div_up(UINT64_MAX, 2) == (uint64_t)1 << 63);
    assert_int_equal(rkvi_align_up(1, 256), 256);
    assert_int_equal(rkvi_align_up(256, 256), 256);
}

static void test_leaf_cells(void **state)
{
    (void)state;
    static const uint32_t t[][4] = {{256, 64, 64, 256},    {4096, 128, 128, 256},
                                    {16, 128, 128, 16},    {256, 192, 128, 128},
                                    {256, 128, 256, 128},  {256, 512, 512, 64},
                                    {64, 1024, 1024, 64},  {32, 512, 64, 32}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        assert_int_equal(rkvi_leaf_cells(t[i][0], t[i][1], t[i][2]), t[i][3]);
}

static void test_types(void **state)
{
    (void)state;
    assert_string_equal(rkvi_type_name(RKV_TYPE_Q4_0), "q4_0");
    assert_string_equal(rkvi_type_name(99), "unknown");
    for (rkv_type t = 0; t < 8; t++) {
        assert_int_equal(rkvi_type_is_storage(t), t >= 2 && t <= 6);
        assert_int_equal(rkvi_type_is_tensor(t), t >= 1 && t <= 3);
        assert_int_equal(rkvi_type_is_quantised(t), t == 5 || t == 6);
    }
    assert_int_equal(rkvi_tensor_type_bytes(RKV_TYPE_F32), 4);
    assert_int_equal(rkvi_tensor_type_bytes(RKV_TYPE_BF16), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout), cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_large),
        cmocka_unit_test(test_leaf_cells), cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
