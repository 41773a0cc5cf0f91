/* exp and tanh in vectors have the bits of the scalar ones, lane by lane; sums
 * across lanes do not depend on the place among four. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#elif defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#endif

#if defined(__x86_64__)
#define RKVI_LANES 8
#include "ops_simd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void assert_same_bits(float a, float b)
{
    if (a != a && b != b) /* the sign of a NaN is nobody's promise */
        return;
    assert_int_equal(rkvi_bits(a), rkvi_bits(b));
}

/* All floats, one in 4,099: every exponent, both signs, NaN and infinity. */
static void test_same_bits(void **state)
{
    (void)state;
    float x[8], e[8], t[8];
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += 8 * 4099) {
        for (uint32_t i = 0; i < 8; i++)
            x[i] = rkvi_from_bits((uint32_t)(u + i * 4099));
        v_store(e, v_exp(v_load(x)));
        v_store(t, v_tanh(v_load(x)));
        for (uint32_t i = 0; i < 8; i++) {
            if (!(x[i] > 88))
                assert_same_bits(e[i], rkvi_expf(x[i]));
            assert_same_bits(t[i], rkvi_tanhf(x[i]));
        }
    }
}

static void test_sum4(void **state)
{
    (void)state;
    const vf v[] = {_mm256_setr_ps(1e8f, 1, -1e8f, 3, 0.1f, 7, 1e-3f, 5),
                    _mm256_setr_ps(3, 1e9f, 5, 0.7f, -1e9f, 1, 2, 1e-7f)};
    for (int i = 0; i < 2; i++) {
        float out[4];
        for (int place = 0; place < 4; place++) {
            vf in[4] = {v[!i], v[!i], v[!i], v[!i]};
            in[place] = v[i];
            _mm_storeu_ps(out, v_sum4(in[0], in[1], in[2], in[3]));
            assert_same_bits(out[place], v_sum(v[i]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_sum4)};
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
int main(void)
{
    return 77;
}
#endif

#if defined(__clang__)
#pragma clang attribute pop
#endif
