/* Scalar conversions over all values, and exp, tanh and log of the kernels. */
#include "ops_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* Value of a narrow float by the definition of its fields. */
static double by_fields(uint32_t mag, uint32_t mantissa_bits, int bias)
{
    const uint32_t e = mag >> mantissa_bits, m = mag & ((1u << mantissa_bits) - 1);
    const double f = (double)m / (double)(1u << mantissa_bits);
    return e == 0 ? ldexp(f, 1 - bias) : ldexp(1 + f, (int)e - bias);
}

static void test_f16_exact(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = rkvi_f16_to_f32((uint16_t)h);
        const uint32_t mag = h & 0x7fff;
        if (mag > 0x7c00) {
            assert_true(isnan(x));
            assert_true(isnan(rkvi_f16_to_f32(rkvi_f32_to_f16(x))));
            continue;
        }
        const double want = mag == 0x7c00 ? INFINITY : by_fields(mag, 10, 15);
        assert_true((double)fabsf(x) == want && !signbit(x) == !(h >> 15));
        assert_int_equal(rkvi_f32_to_f16(x), h);
    }
}

/* Halfway between neighbours goes to the even one, one step beside it to the nearer. */
static void test_f16_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float a = rkvi_f16_to_f32((uint16_t)h), b = rkvi_f16_to_f32((uint16_t)(h + 1));
        const float half = a + (b - a) / 2;
        assert_int_equal(rkvi_f32_to_f16(half), h & 1 ? h + 1 : h);
        assert_int_equal(rkvi_f32_to_f16(-half), 0x8000 | (h & 1 ? h + 1 : h));
        assert_int_equal(rkvi_f32_to_f16(nextafterf(half, 0)), h);
        assert_int_equal(rkvi_f32_to_f16(nextafterf(half, INFINITY)), h + 1);
    }
    assert_int_equal(rkvi_f32_to_f16(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(rkvi_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(rkvi_f32_to_f16(0x1p-149f), 0);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x10000; b++) {
        const float x = rkvi_bf16_to_f32((uint16_t)b);
        if (isnan(x)) {
            assert_true(isnan(rkvi_bf16_to_f32(rkvi_f32_to_bf16(x))));
            continue;
        }
        assert_int_equal(rkvi_f32_to_bf16(x), b);
        if ((b & 0x7fff) >= 0x7f7f)
            continue;
        const float half = rkvi_from_bits(b << 16 | 0x8000);
        assert_int_equal(rkvi_f32_to_bf16(half), b & 1 ? b + 1 : b);
        assert_int_equal(rkvi_f32_to_bf16(rkvi_from_bits(b << 16 | 0x7fff)), b);
        assert_int_equal(rkvi_f32_to_bf16(rkvi_from_bits(b << 16 | 0x8001)), b + 1);
    }
}

static void test_e4m3(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x100; b++) {
        const float x = rkvi_e4m3_to_f32((uint8_t)b);
        if ((b & 0x7f) == 0x7f) {
            assert_true(isnan(x));
            continue;
        }
        assert_true((double)fabsf(x) == by_fields(b & 0x7f, 3, 7));
        assert_int_equal(rkvi_f32_to_e4m3_sat(x), b);
        if ((b & 0x7f) >= 0x7e)
            continue;
        const float next = rkvi_e4m3_to_f32((uint8_t)(b + 1)), half = x + (next - x) / 2;
        assert_int_equal(rkvi_f32_to_e4m3_sat(half), b & 1 ? b + 1 : b);
        assert_int_equal(rkvi_f32_to_e4m3_sat(nextafterf(half, 0)), b);
        assert_int_equal(rkvi_f32_to_e4m3_sat(nextafterf(half, half * 2)), b + 1);
    }
    assert_true(rkvi_e4m3_to_f32(0x7e) == 448.0f);
}

static void test_saturation(void **state)
{
    (void)state;
    const float large[] = {1e30f, INFINITY, 0x1.fffffep127f};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rkvi_f32_to_f16_sat(large[i]), 0x7bff);
        assert_int_equal(rkvi_f32_to_f16_sat(-large[i]), 0xfbff);
        assert_int_equal(rkvi_f32_to_e4m3_sat(large[i]), 0x7e);
        assert_int_equal(rkvi_f32_to_e4m3_sat(-large[i]), 0xfe);
    }
    assert_int_equal(rkvi_f32_to_f16_sat(65519.0f), 0x7bff);
    assert_int_equal(rkvi_f32_to_f16_sat(65521.0f), 0x7bff);
    assert_int_equal(rkvi_f32_to_bf16_sat(INFINITY), 0x7f7f);
    assert_int_equal(rkvi_f32_to_bf16_sat(-0x1.fffffep127f), 0xff7f);
    assert_int_equal(rkvi_f32_to_e4m3_sat(449.0f), 0x7e);
    assert_int_equal(rkvi_f32_to_f16_sat(NAN), 0);
    assert_int_equal(rkvi_f32_to_bf16_sat(-NAN), 0);
    assert_int_equal(rkvi_f32_to_e4m3_sat(NAN), 0);
}

static double ulps(float got, double want)
{
    int e;
    (void)frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, e - 24);
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = 0; x > RKVI_EXP_MIN; x -= 1.7e-5f + fabsf(x) * 3e-6f)
        worst = fmax(worst, ulps(rkvi_expf(x), exp((double)x)));
    for (float x = 1e-6f; x < 88; x *= 1.00003f)
        worst = fmax(worst, ulps(rkvi_expf(x), exp((double)x)));
    printf("exp: at most %.3f ulp\n", worst);
    assert_true(worst <= 1.1);
    assert_true(rkvi_expf(0) == 1.0f && rkvi_expf(-0.0f) == 1.0f);
    assert_true(rkvi_expf(-INFINITY) == 0 && rkvi_expf(-88) == 0 && rkvi_expf(-1e30f) == 0);
    assert_true(rkvi_expf(RKVI_EXP_MIN) > 0x1p-126f * 0.999f);
    assert_true(isnan(rkvi_expf(NAN)));
}

static void test_tanh(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = 1e-20f; x < 20; x *= 1.00003f)
        worst = fmax(worst, ulps(rkvi_tanhf(x), tanh((double)x)));
    printf("tanh: at most %.3f ulp\n", worst);
    assert_true(worst <= 2.0);
    for (float x = 1e-20f; x < 20; x *= 1.1f)
        assert_true(rkvi_tanhf(-x) == -rkvi_tanhf(x));
    assert_true(rkvi_tanhf(0) == 0 && rkvi_tanhf(INFINITY) == 1 && rkvi_tanhf(-INFINITY) == -1);
    assert_true(isnan(rkvi_tanhf(NAN)));
}

static void test_log(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = 1e-37; x < 1e38; x *= 1.0003)
        worst = fmax(worst, fabs(rkvi_log(x) - log(x)) / fmax(1e-3, fabs(log(x))));
    printf("log: at most %.3g\n", worst);
    assert_true(worst < 1e-14);
    assert_true(rkvi_log(1) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_exact), cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16),      cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_saturation), cmocka_unit_test(test_exp),
        cmocka_unit_test(test_tanh),      cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
