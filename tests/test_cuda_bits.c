/* SPDX-License-Identifier: MIT
 *
 * Bit identity on a GPU: as test_bits, with the CUDA executor everywhere, and
 * q, k, v, out in device memory on the engine's own stream or the legacy one.
 * The reference run, all of it on the device, is close to the host executor's.
 *
 * ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_FULL=1 runs the full product. */
#include "bits_setups.h"
#include "cuda_fixture.h"
#include "ops_cuda.h"

#include <math.h>

static uint64_t seed;

static bool is_built(rkv_type k, rkv_type v, uint32_t dk, uint32_t dv)
{
    const rkvi_geom g = {.type_k = k, .type_v = v, .dk = dk, .dv = dv};
    return rkvk_find(&g) != NULL;
}

/* Head dims that this build has for the pair; false: it has not enough. */
static bool choose_dims(bits_text *t, uint64_t *r)
{
    static const uint32_t wide[] = {128, 64, 96, 80, 112};
    static const uint32_t other[][2] = {{192, 128}, {96, 96}, {80, 80}, {128, 128}, {64, 64}};
    uint32_t n = 0;
    if (!is_built(t->type_k, t->type_v, 64, 64))
        return false;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (is_built(t->type_k, t->type_v, wide[i], wide[i]) && bits_random(r) % ++n == 0)
            t->head_dim = wide[i];
    n = 0;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (is_built(t->type_k, t->type_v, other[i][0], other[i][1]) && bits_random(r) % ++n == 0) {
            t->other_dk = other[i][0];
            t->other_dv = other[i][1];
        }
    return true;
}

/* Largest difference, and of lse.  Values of v are in [-2, 2]; the GPU rounds q
 * and the softmax's weights to the 16-bit type that it multiplies in. */
static void compare_with_host(const bits_text *t, const bits_result *gpu)
{
    bits_result host;
    double most = 0;
    reference(t, BITS_HOST, &host);
    for (uint32_t s = 0; s < BITS_SEQS; s++)
        for (size_t i = 0; i < (size_t)t->n_rows[s] * BITS_SITES * (BITS_OUT_MAX + 8); i++) {
            const double d = fabs((double)gpu->out[s][i] - (double)host.out[s][i]);
            most = d > most || d != d ? d : most;
        }
    const double limit = t->type_k == RKV_TYPE_BF16 ? 0.1 : 0.02;
    print_message("%s/%s, dims %u, %u/%u: at most %.2g from the host's, limit %g\n",
                  rkvi_type_name(t->type_k), rkvi_type_name(t->type_v), t->head_dim, t->other_dk,
                  t->other_dv, most, limit);
    bits_result_free(&host);
    assert_true(most <= limit);
}

static void test_pairs(void **state)
{
    (void)state;
    const uint32_t n = getenv("ROLLKV_TEST_FULL") ? 200 : 14;
    uint32_t n_pairs = 0;
    for (uint32_t i = 0; i < N_PAIRS; i++) {
        uint64_t r = seed + i;
        bits_text t;
        bits_result want;
        bits_text_make(&t, seed * 31 + i, pairs[i][0], pairs[i][1], i % 3 == 2 ? 32 : 16);
        if (!choose_dims(&t, &r)) {
            print_message("%s/%s: not in this build\n", rkvi_type_name(pairs[i][0]),
                          rkvi_type_name(pairs[i][1]));
            continue;
        }
        n_pairs++;
        const uint64_t largest = largest_tile_layer(&t, BITS_CUDA);
        reference(&t, BITS_CUDA, &want);
        compare_with_host(&t, &want);
        for (uint32_t k = 0; k < n; k++) {
            const bits_setup s = random_setup(&t, BITS_CUDA, largest, &r);
            compare(&t, &want, &s);
        }
        bits_result_free(&want);
    }
    assert_true(n_pairs > 0);
    assert_true(brought_back_bytes > 0);
    assert_true(promoted_bytes > 0);
    assert_true(merged_early > 0);
}

int main(void)
{
    gpu_or_skip();
    seed = gpu_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
