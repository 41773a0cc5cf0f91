/* SPDX-License-Identifier: MIT
 *
 * cpu_share_case.h: a cache with a share for the CPU, and steps of it, for the tests
 * of hosts and GPUs alike.
 */
#ifndef CPU_SHARE_CASE_H
#define CPU_SHARE_CASE_H

#include "step_near.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>

#include <cmocka.h>

#ifndef CASE_DIM
#define CASE_DIM 64u /* of heads, but for a GPU */
#endif
#define T 16u
#define EVER_NS ((uint64_t)1000000000000) /* what threads do in time does not depend on the machine's load */

static uint64_t seed;

/* Two KV layers of unlike geometry, of which one is read twice and one by a
 * sliding mask as well. */
static fx_model share_model(fx_executor executor, uint32_t threads, uint32_t share)
{
    const uint32_t dim = fx_gpu ? 128 : CASE_DIM;
    fx_model m = fx_model_make(T, 0, 4096);
    const uint32_t first = fx_add_layer(&m, 2, dim, dim, 4 * T);
    if (fx_gpu)
        fx_add_layer(&m, 1, dim, dim, RKV_RESIDENT_NONE);
    else
        fx_add_unequal(&m, RKV_RESIDENT_NONE);
    fx_add_site(&m, first, 10);
    fx_add_layer(&m, 1, dim, dim, RKV_RESIDENT_NONE);
    m.sites[m.n_sites - 1].mask = RKV_MASK_SLIDING;
    m.sites[m.n_sites - 1].mask_width = 20 * T;
    m.params.n_sequences = 3;
    m.params.ring_bytes = 2048 * dim;
    m.params.copy_bytes = 256 * dim;
    m.params.draft_rows = 4;
    m.params.cpu_threads = threads;
    m.params.cpu_share = share;
    m.params.cpu_wait_ns = threads ? EVER_NS : 0;
    m.executor = executor;
    m.seed = seed;
    return m;
}

static void share_text(fx *w, uint32_t n_tiles)
{
    for (uint32_t s = 0; s < 2; s++)
        fx_append(w, s, n_tiles * T + 5, RKV_REGIME_PREFILL, 1000 + s * 100000);
    fx_append_from(w, 2, 0, 0, n_tiles * T);
}

static void share_decode(fx *w, uint32_t n_seqs, uint32_t rows, uint64_t tag)
{
    fx_entry e[3];
    for (uint32_t i = 0; i < n_seqs; i++)
        e[i] = (fx_entry){.seq = i, .rows = rows, .tag = tag + i * 1000000u, .regime = RKV_REGIME_DECODE};
    fx_step(w, e, n_seqs);
}

/* GPUs take p in f16 for the products with V. */
static void assert_near(const fx *a, const fx *b)
{
    const float least = fx_gpu ? 2e-3f : 2e-6f;
    assert_true(fx_near(a, b, least));
}

#endif
