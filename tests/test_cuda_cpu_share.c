/* SPDX-License-Identifier: MIT
 *
 * The CPU's share of the tail beside a GPU: near the GPU's own results, the same
 * bits when repeated; and what threads can't take the GPU reads where it lies,
 * with the bits of a step without a share.
 */
#include "step_fixture.h"

#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#define T 64u

static fx_model model(uint32_t threads, uint32_t share)
{
    fx_model m = fx_model_make(T, 0, 16384);
    fx_add_layer(&m, 2, 128, 128, 4 * T);
    const uint32_t second = fx_add_layer(&m, 1, 128, 128, RKV_RESIDENT_NONE);
    fx_add_site(&m, second, 5);
    m.params.n_sequences = 3;
    m.params.ring_bytes = 1024 * 1024;
    m.params.copy_bytes = 128 * 1024;
    m.params.cpu_threads = threads;
    m.params.cpu_share = share;
    m.executor = FX_GPU;
    return m;
}

static void text(fx *w)
{
    for (uint32_t s = 0; s < 2; s++)
        fx_append(w, s, 70 * T + 5, RKV_REGIME_PREFILL, 1000 + s * 100000);
    fx_append_from(w, 2, 0, 0, 70 * T);
}

static void decode(fx *w, uint32_t n_seqs, uint32_t rows, uint64_t tag)
{
    fx_entry e[3];
    for (uint32_t i = 0; i < n_seqs; i++)
        e[i] = (fx_entry){.seq = i, .rows = rows, .tag = tag + i * 1000000u, .regime = RKV_REGIME_DECODE};
    fx_step(w, e, n_seqs);
    fx_ok(fx_sync(w), "sync");
}

/* The largest difference over all sites' outputs, which are of the order of 1. */
static double difference(const fx *a, const fx *b)
{
    double most = 0;
    for (uint32_t site = 0; site < a->model.n_sites; site++)
        for (uint32_t row = 0; row < a->n_rows; row++)
            for (uint32_t head = 0; head < a->out[site].heads; head++)
                for (uint32_t i = 0; i < a->out[site].dim; i++)
                    most = fmax(most, fabs((double)fx_out(a, site, row, head, i) - (double)fx_out(b, site, row, head, i)));
    return most;
}

static void test_near(void **state)
{
    (void)state;
    static const uint32_t shares[] = {4, 8, 15};
    for (uint32_t k = 0; k < 3; k++) {
        fx w, again, plain;
        const fx_model m = model(4, shares[k]), without = model(0, 0);
        double most = 0;
        fx_open(&w, &m);
        fx_open(&again, &m);
        fx_open(&plain, &without);
        text(&w);
        text(&again);
        text(&plain);
        for (uint32_t i = 0; i < 12; i++) {
            const uint32_t n = i < 4 ? 1 : 3, rows = i % 3 == 2 ? 6 : 1;
            decode(&w, n, rows, 5000 + i);
            decode(&again, n, rows, 5000 + i);
            decode(&plain, n, rows, 5000 + i);
            assert_true(fx_same(&w, &again));
            most = fmax(most, difference(&w, &plain));
        }
        print_message("share of %u sixteenths: %llu bytes by the CPU, at most %.2e off\n", shares[k],
                      (unsigned long long)fx_stats(&w).cpu_bytes, most);
        assert_true(most < 2e-3); /* the GPU's products with V take p in f16 */
        assert_true(fx_stats(&w).cpu_bytes > 0);
        fx_close(&w);
        fx_close(&again);
        fx_close(&plain);
    }
}

static void test_left_to_device(void **state)
{
    (void)state;
    fx w, plain;
    const fx_model m = model(2, 8), without = model(0, 0);
    fx_open(&w, &m);
    fx_open(&plain, &without);
    w.cache->cpu.partial_bytes = 0;
    text(&w);
    text(&plain);
    for (uint32_t i = 0; i < 3; i++) {
        decode(&w, 3, 1, 5000 + i);
        decode(&plain, 3, 1, 5000 + i);
        assert_true(fx_same(&w, &plain));
    }
    assert_int_equal(fx_stats(&w).cpu_bytes, 0);
    fx_close(&w);
    fx_close(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_near), cmocka_unit_test(test_left_to_device)};
    fx_use_gpu();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
