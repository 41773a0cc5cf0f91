/* SPDX-License-Identifier: MIT
 *
 * What the estimate says of the tail's bytes is enough to fill a cache to its
 * capacity, whatever extents the host places come in.
 */
#include "step_fixture.h"

#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define T 16u
#define SEQS 8u

static uint64_t seed;

/* Two KV layers of unlike geometry and nothing resident. */
static fx_model model(uint32_t tiles, uint64_t copy_bytes)
{
    fx_model m = fx_model_make(T, 0, (uint64_t)SEQS * tiles * T);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 2, 64, 64, RKV_RESIDENT_NONE);
    m.params.n_sequences = SEQS;
    m.params.ring_bytes = (uint64_t)1 << 20;
    m.params.copy_bytes = copy_bytes;
    m.seed = seed;
    return m;
}

static uint64_t tail_bytes(const fx_model *m)
{
    fx w;
    fx_open(&w, m);
    const uint64_t bytes = w.cache->cfg.host_tail_bytes;
    fx_close(&w);
    return bytes;
}

/* All sequences grow together, a tile a step; a step that is refused fails the test. */
static void fill(uint32_t tiles, uint64_t copy_bytes)
{
    fx w;
    fx_model m = model(tiles, copy_bytes);
    m.params.host_limit_bytes = tail_bytes(&m);
    fx_open(&w, &m);
    for (uint32_t i = 0; i < tiles; i++) {
        fx_entry e[SEQS];
        for (uint32_t s = 0; s < SEQS; s++)
            e[s] = (fx_entry){.seq = s, .rows = T, .tag = 1000 + i * T + s * 1000000, .regime = RKV_REGIME_PREFILL};
        fx_step(&w, e, SEQS);
    }
    fx_ok(fx_sync(&w), "sync");
    assert_int_equal(fx_stats(&w).used_tiles, SEQS * tiles);
    fx_close(&w);
}

static void test_filled_to_capacity(void **state)
{
    (void)state;
    static const uint32_t tiles[] = {3, 50, 131};
    for (uint32_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        for (uint32_t k = 0; k < 2; k++)
            fill(tiles[i], (uint64_t)1 << (k ? 18 : 15));
}

int main(void)
{
    seed = fx_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_filled_to_capacity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
