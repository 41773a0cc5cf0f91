/* SPDX-License-Identifier: MIT
 *
 * The example engine's dequantisation, against values worked out by hand.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "quants.h"

static void put_f16(uint8_t *at, uint16_t bits)
{
    memcpy(at, &bits, sizeof bits);
}

enum { HALF_1 = 0x3c00, HALF_0_5 = 0x3800, HALF_MINUS_2 = 0xc000, HALF_0_25 = 0x3400 };

static void test_f16(void **state)
{
    (void)state;
    static const struct {
        uint16_t bits;
        float value;
    } cases[] = {{0x0000, 0.0f},
                 {0x3c00, 1.0f},
                 {0xc000, -2.0f},
                 {0x7bff, 65504.0f},
                 {0x0400, 0x1p-14f},
                 {0x0001, 0x1p-24f},
                 {0x83ff, -1023 * 0x1p-24f},
                 {0x3555, 0x1.554p-2f}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_true(quant_f16_to_f32(cases[i].bits) == cases[i].value);
    assert_true(signbit(quant_f16_to_f32(0x8000)));
    assert_true(isinf(quant_f16_to_f32(0x7c00)));
    assert_true(isnan(quant_f16_to_f32(0x7e01)));
}

static void expect_values(uint32_t type, const uint8_t *data, size_t count, const float *expected)
{
    float out[512];
    const struct quant_info *info = quant_find(type);
    assert_non_null(info);
    out[count] = 12345.0f; /* nothing is written behind the end */
    quant_to_f32(info, data, count, out);
    for (size_t i = 0; i < count; i++)
        if (out[i] != expected[i])
            fail_msg("%s value %zu: %g instead of %g", info->name, i, (double)out[i],
                     (double)expected[i]);
    assert_true(out[count] == 12345.0f);
}

static void test_plain(void **state)
{
    (void)state;
    const float f32[] = {1.5f, -3.0f};
    const uint16_t bf16[] = {0x3fc0, 0xc040}, f16[] = {0x3e00, 0xc200};
    expect_values(0, (const uint8_t *)f32, 2, f32);
    expect_values(30, (const uint8_t *)bf16, 2, f32);
    expect_values(1, (const uint8_t *)f16, 2, f32);
}

static void test_q8_0(void **state)
{
    (void)state;
    uint8_t data[2 * 34];
    float expected[64];
    put_f16(data, HALF_0_5);
    put_f16(data + 34, HALF_MINUS_2);
    for (int i = 0; i < 32; i++) {
        const int q = i == 31 ? -128 : 4 * i;
        data[2 + i] = data[34 + 2 + i] = (uint8_t)(int8_t)q;
        expected[i] = 0.5f * (float)q;
        expected[32 + i] = -2.0f * (float)q;
    }
    expect_values(8, data, 64, expected);
}

/* Byte i = low half i, high half 15 - i: values i - 8 and, from 16 on, 7 - i. */
static void test_q4(void **state)
{
    (void)state;
    uint8_t q4_0[18], q4_1[20];
    float expected_0[32], expected_1[32];
    put_f16(q4_0, HALF_0_5);
    put_f16(q4_1, HALF_0_25);
    put_f16(q4_1 + 2, HALF_MINUS_2);
    for (int i = 0; i < 16; i++) {
        q4_0[2 + i] = q4_1[4 + i] = (uint8_t)(i | ((15 - i) << 4));
        expected_0[i] = 0.5f * (float)(i - 8);
        expected_0[16 + i] = 0.5f * (float)(7 - i);
        expected_1[i] = 0.25f * (float)i - 2.0f;
        expected_1[16 + i] = 0.25f * (float)(15 - i) - 2.0f;
    }
    expect_values(2, q4_0, 32, expected_0);
    expect_values(3, q4_1, 32, expected_1);
}

/* Quant 0 everywhere but for four values, one in each place of its bytes. */
static void test_q6_k(void **state)
{
    (void)state;
    uint8_t data[210] = {0};
    float expected[256];
    for (int i = 0; i < 16; i++)
        data[192 + i] = (uint8_t)(i + 1); /* scale of values 16 i to 16 i + 15 */
    put_f16(data + 208, HALF_0_5);
    for (int i = 0; i < 256; i++)
        expected[i] = 0.5f * (float)(i / 16 + 1) * -32.0f;
    data[3] = 0x0f;       /* value 3: low bits 15 */
    data[128 + 3] = 0x03; /* and its high bits 3: 63 - 32 */
    expected[3] = 0.5f * 1 * 31;
    data[40] = 0x50;      /* value 104 = 40 + 64, low bits 5 */
    data[128 + 8] = 0x40; /* 104 = 96 + 8: bits 6 and 7 of high byte 8, 1: 21 - 32 */
    expected[104] = 0.5f * 7 * -11;
    data[64 + 33] = 0x02;      /* value 128 + 33 */
    data[128 + 32 + 1] = 0x08; /* 33 = 32 + 1: bits 2 and 3 of byte 1, 2: 34 - 32 */
    expected[161] = 0.5f * 11 * 2;
    data[64 + 1] |= 0x10; /* value 128 + 65 */
    expected[193] = 0.5f * 13 * (1 - 32);
    expect_values(14, data, 256, expected);
}

static void test_unknown(void **state)
{
    (void)state;
    assert_null(quant_find(99));
    assert_null(quant_find(7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16), cmocka_unit_test(test_plain), cmocka_unit_test(test_q8_0),
        cmocka_unit_test(test_q4),  cmocka_unit_test(test_q6_k),  cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
