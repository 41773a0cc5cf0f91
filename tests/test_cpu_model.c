/* SPDX-License-Identifier: MIT
 *
 * The rule for the CPU's share: as its formula says, and near the best of a sweep
 * in virtual time.
 */
#include "cpu_model.h"
#include "diag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static void ok(rkv_status s)
{
    if (s != RKV_OK)
        fail_msg("%s: %s", rkvi_status_name(s), rkvi_error_text());
}

/* Within 2 % of the best of a sweep, in virtual time. */
static void test_sweep(void **state)
{
    (void)state;
    static const char *const shapes[] = {"qwen14b", "gemma-a4b"};
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_Q8_0};
    static const double links[] = {6.4e9, 25e9, 50e9};
    static const uint64_t tails[] = {1536 * MIB, 3072 * MIB, 8192 * MIB};
    for (uint32_t i = 0; i < 36; i++) {
        const double link = links[i % 3];
        const cpu_model_machine m = {.type = types[i / 3 % 2],
                                     .rates = {.link_bytes_per_s = (uint64_t)link,
                                               .beside_bytes_per_s = (uint64_t)(link > 45e9 ? 44e9 : link),
                                               .cpu_bytes_per_s = i / 3 % 2 ? 40000000000u : 52000000000u,
                                               .handover_ns = 50000}};
        const uint64_t tail = tails[i / 6 % 3];
        cliff_shape shape;
        rkvi_config cfg;
        assert_true(cliff_shape_named(shapes[i / 18], &shape));
        ok(cpu_model_config(&shape, &m, tail, &cfg));
        assert_true(cfg.cpu_is_chosen);
        const double chosen = cpu_model_step_s(&cfg, tail);
        double best_share = 0;
        const double best = cpu_model_best_s(&cfg, tail, &best_share);
        if (chosen > 1.02 * best)
            fail_msg("%s, link %.1f GB/s, %.1f GiB: %.3f ms, the best is %.3f", shape.name, link * 1e-9,
                     (double)tail / (double)(1024 * MIB), chosen * 1e3, best * 1e3);
        rkvi_config_free(&cfg);
    }
}

static const cpu_model_machine fast = {.type = RKV_TYPE_F16,
                                       .rates = {.link_bytes_per_s = 50000000000u, .beside_bytes_per_s = 44000000000u,
                                                 .cpu_bytes_per_s = 52000000000u, .handover_ns = 50000}};

/* L - x L = B (C + n h) + B' x L / R */
static void test_formula(void **state)
{
    (void)state;
    const cpu_model_machine m = {.type = RKV_TYPE_F16,
                                 .rates = {.link_bytes_per_s = 48000000000u, .beside_bytes_per_s = 40000000000u,
                                           .cpu_bytes_per_s = 40000000000u, .handover_ns = 1000000}};
    cliff_shape shape;
    rkvi_config cfg;
    assert_true(cliff_shape_named("gemma-a4b", &shape));
    ok(cpu_model_config(&shape, &m, 4096 * MIB, &cfg));
    assert_int_equal(cfg.cpu_share, 8);
    assert_int_equal(cfg.cpu_free_bytes, (uint64_t)(48e9 * (14e-3 + 5 * 1e-3)) / MIB * MIB);
    for (uint32_t i = 0; i < cfg.n_sites; i++)
        assert_int_equal(cfg.sites[i].cpu_share, i % 6 == 5 ? 8 : 0);
    assert_int_equal(cfg.cpu_least_bytes, 4 * MIB);
    rkvi_config_free(&cfg);
}

/* Sites alike differ by one at most, and their mean is what was wanted. */
static void test_mixed(void **state)
{
    (void)state;
    cliff_shape shape;
    rkvi_config cfg;
    assert_true(cliff_shape_named("qwen14b", &shape));
    ok(cpu_model_config(&shape, &fast, 4096 * MIB, &cfg));
    assert_int_equal(cfg.cpu_share, 9); /* 8 2/3 */
    for (uint32_t i = 0; i < cfg.n_sites; i++)
        assert_int_equal(cfg.sites[i].cpu_share, i % 3 == 1 ? 8 : 9);
    for (uint32_t x = 0; x <= 1024; x++) {
        const double share = x / 1024.0, wanted = fmin(16 * share, 15);
        double sum = 0;
        for (uint32_t i = 0; i < cfg.n_sites; i++) {
            const uint32_t n = rkvi_config_cpu_parts(&cfg, i, share);
            assert_true(fabs(n - wanted) <= 1 && n < RKVI_CPU_PARTS);
            sum += n;
        }
        assert_true(fabs(sum / cfg.n_sites - wanted) <= 1.0 / cfg.n_sites);
    }
    rkvi_config_free(&cfg);
}

/* Steps have the mean of sites alike, where these are a sixteenth apart at most. */
static void test_evened(void **state)
{
    (void)state;
    static const struct {
        uint32_t shares[5];
        double parts[5]; /* sixteenths */
    } cases[] = {
        {{8, 9, 8, 9, 9}, {8.6, 8.6, 8.6, 8.6, 8.6}},
        {{0, 9, 8, 0, 0}, {0, 8.5, 8.5, 0, 0}},
        {{7, 9, 8, 8, 8}, {7, 9, 8, 8, 8}},
        {{15, 1, 0, 15, 2}, {15, 1, 0, 15, 2}},
        {{0, 1, 0, 0, 0}, {0, 1, 0, 0, 0}},
    };
    cliff_shape shape;
    rkvi_config cfg;
    assert_true(cliff_shape_named("gemma-a4b", &shape));
    ok(cpu_model_config(&shape, &fast, 4096 * MIB, &cfg));
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint32_t shares[CLIFF_SITES_MAX] = {0};
        for (uint32_t i = 0; i < 5; i++)
            shares[6 * i + 5] = cases[c].shares[i];
        rkvi_config_cpu_set(&cfg, 0, shares, 0);
        for (uint32_t i = 0; i < cfg.n_sites; i++) {
            assert_int_equal(cfg.sites[i].cpu_share, shares[i]);
            assert_true(fabs(16 * cfg.sites[i].cpu_part - (i % 6 == 5 ? cases[c].parts[i / 6] : 0)) < 1e-9);
        }
    }
    rkvi_config_free(&cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sweep), cmocka_unit_test(test_formula),
                                       cmocka_unit_test(test_mixed), cmocka_unit_test(test_evened)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
