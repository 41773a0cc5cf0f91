/* SPDX-License-Identifier: MIT
 *
 * Long use on a GPU under random delays: spinning kernels and host functions
 * that sleep, put among the library's own work on its streams.  Sequences are
 * appended to, cut, cleared, forked, parked and fetched at random, windows
 * change, steps are aborted, several are in flight; every output row has the
 * checksum of the same row of a resident cache without delays in the same run.
 *
 * 10,000 steps on a GPU, 1,000 over the fake runtime (ROLLKV_TEST_FULL=1: 10,000
 * too); ROLLKV_TEST_SEED sets the seed.
 */
#include "step_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define T 16u
#define SEQS 4u
#define CELLS_MOST 400u
#define IN_FLIGHT 6u

static uint64_t seed;

/* -------------------------------------------------------------------- delays */

static const rkvi_device_vt *plain_vt;
static rkvi_device_vt delaying_vt;
static uint64_t delay_random, n_delays;
static uint32_t nap_us; /* at most */

static void nap(void *arg)
{
    usleep((unsigned)(uintptr_t)arg);
}

static void hold_up(rkvi_device *d, void *stream)
{
    const uint64_t r = fx_random(&delay_random);
    if (r % 8)
        return;
    n_delays++;
    if (r >> 8 & 7)
        fx_ok(plain_vt->delay(d, (int64_t)(r >> 16) % 30000, stream), "delay");
    else
        fx_ok(plain_vt->host_call(d, nap, (void *)(uintptr_t)(nap_us ? (r >> 16) % nap_us : 0), NULL, 0, stream),
              "nap");
}

static rkv_status delayed_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    hold_up(d, stream);
    return plain_vt->copy(d, copy, stream);
}

static rkv_status delayed_launch(rkvi_device *d, const rkvi_launch *launch, void *stream)
{
    hold_up(d, stream);
    return plain_vt->launch(d, launch, stream);
}

static rkv_status delayed_record(rkvi_device *d, rkvi_event *event, void *stream)
{
    hold_up(d, stream);
    return plain_vt->event_record(d, event, stream);
}

static void delay(rkvi_device *d)
{
    plain_vt = d->vt;
    delaying_vt = *d->vt;
    delaying_vt.copy = delayed_copy;
    delaying_vt.launch = delayed_launch;
    delaying_vt.event_record = delayed_record;
    d->vt = &delaying_vt;
}

/* ---------------------------------------------------------------- two caches */

typedef struct walk {
    fx w, resident;
    uint64_t random, tag, n_steps, checksum;
    uint64_t n_rows, n_forks, n_parks, n_cuts, n_aborts, n_windows;
    uint32_t in_flight;
    struct {
        fx_tensor out[2][FX_SITES];
    } kept[IN_FLIGHT];
} walk;

static fx_model model(void)
{
    fx_model m = fx_model_make(T, 0, (SEQS + 2) * CELLS_MOST);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 2, 64, 64, 6 * T);
    fx_add_site(&m, 0, 4);
    m.params.n_sequences = SEQS;
    m.params.max_rows = SEQS * 40;
    m.params.draft_rows = 4;
    m.params.steps_ahead = 2;
    m.params.ring_bytes = 40960;
    return m;
}

static void open_walk(walk *k)
{
    fx_model m = model();
    fx_open(&k->w, &m);
    delay(k->w.dev);
    m.params.ring_bytes = 0;
    for (uint32_t l = 0; l < m.n_layers; l++) {
        m.layers[l].resident_cells = RKV_RESIDENT_ALL;
        m.layers[l].keep_all = 1;
    }
    fx_open(&k->resident, &m);
}

static uint32_t below(walk *k, uint64_t n)
{
    return (uint32_t)(fx_random(&k->random) % n);
}

static uint64_t checksum_of(const fx_tensor *x, uint32_t row)
{
    uint64_t sum = 0xcbf29ce484222325u;
    const uint64_t bytes = x->size_bytes / x->rows;
    for (uint64_t i = 0; i < bytes; i += 4) {
        uint32_t u;
        memcpy(&u, x->bytes + row * bytes + i, sizeof u);
        sum = (sum ^ u) * 0x100000001b3u;
    }
    return sum;
}

static void release_old(fx *w)
{
    for (uint32_t i = 0; i < w->n_old; i++)
        fx_gpu->release(w->old[i]);
    w->n_old = 0;
}

/* All in flight has ended: rows are compared, and buffers go. */
static void drain(walk *k)
{
    fx_ok(fx_sync(&k->w), "sync");
    fx_ok(fx_sync(&k->resident), "sync");
    for (uint32_t i = 0; i < k->in_flight; i++)
        for (uint32_t s = 0; s < k->w.model.n_sites; s++) {
            const fx_tensor *a = &k->kept[i].out[0][s], *b = &k->kept[i].out[1][s];
            assert_int_equal(a->rows, b->rows);
            for (uint32_t r = 0; r < a->rows; r++) {
                const uint64_t sum = checksum_of(a, r);
                if (sum != checksum_of(b, r))
                    fail_msg("step %llu, site %u, row %u of %u has other bits than in the resident cache",
                             (unsigned long long)(k->n_steps - k->in_flight + i), s, r, a->rows);
                k->checksum = (k->checksum ^ sum) * 0x9E3779B97F4A7C15u;
                k->n_rows++;
            }
        }
    release_old(&k->w);
    release_old(&k->resident);
    k->in_flight = 0;
}

/* --------------------------------------------------------- between the steps */

static void cut(walk *k, uint32_t seq)
{
    const uint64_t n = k->w.n_cells[seq], left = below(k, 3) ? n - below(k, n + 1) : 0;
    fx_truncate(&k->w, seq, left);
    fx_truncate(&k->resident, seq, left);
    k->n_cuts++;
}

static void fork_to(walk *k, uint32_t dst, uint32_t src)
{
    const uint64_t n = k->w.n_cells[src];
    if (dst == src || n == 0)
        return;
    const int64_t to = below(k, 2) ? RKV_POS_END : k->w.cells[src][below(k, n)].pos + 1;
    fx *const both[] = {&k->w, &k->resident};
    for (uint32_t i = 0; i < 2; i++) {
        fx_clear(both[i], dst);
        fx_append_from(both[i], dst, src, 0, to);
    }
    k->n_forks++;
}

/* What changes no value; steps may be in flight. */
static void move_about(walk *k)
{
    const uint32_t seq = below(k, SEQS);
    if (below(k, 4) == 0) {
        fx_ok(rkv_cache_set_residency(k->w.cache, 1, below(k, 12) * T), "set_residency");
        k->n_windows++;
    } else if (below(k, 2)) {
        fx_park(&k->w, seq);
        k->n_parks++;
    } else {
        fx_fetch(&k->w, seq);
    }
}

static void abort_one(walk *k, const fx_entry *e, uint32_t n)
{
    fx_ok(fx_begin(&k->w, e, n), "begin");
    const uint32_t n_sites = below(k, k->w.model.n_sites + 1);
    for (uint32_t s = 0; s < n_sites; s++)
        fx_ok(fx_attend(&k->w, s), "attend");
    fx_ok(fx_abort(&k->w), "abort");
    k->n_aborts++;
}

/* ------------------------------------------------------------------- a step */

static uint32_t choose(walk *k, fx_entry *e)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        const uint32_t rows = below(k, 7) ? 1 + below(k, 3) : 1 + below(k, 33);
        if (k->w.n_cells[s] + rows > CELLS_MOST)
            cut(k, s);
        if (below(k, 4) == 0 || k->w.n_cells[s] + rows > CELLS_MOST)
            continue;
        e[n++] = (fx_entry){.seq = s, .rows = rows, .tag = k->tag};
        k->tag += 64;
    }
    return n;
}

static void run_step(fx *w, const fx_entry *e, uint32_t n)
{
    fx_ok(fx_begin(w, e, n), "begin");
    for (uint32_t s = 0; s < w->model.n_sites; s++)
        fx_ok(fx_attend(w, s), "attend");
    fx_ok(fx_end(w, NULL, 0), "end");
}

static void walk_step(walk *k)
{
    fx_entry e[SEQS];
    if (below(k, 20) == 0)
        fork_to(k, below(k, SEQS), below(k, SEQS));
    if (below(k, 25) == 0)
        cut(k, below(k, SEQS));
    if (below(k, 12) == 0)
        move_about(k);
    const uint32_t n = choose(k, e);
    if (n == 0)
        return;
    if (below(k, 15) == 0)
        abort_one(k, e, n);
    run_step(&k->w, e, n);
    run_step(&k->resident, e, n);
    memcpy(k->kept[k->in_flight].out[0], k->w.out, sizeof k->w.out);
    memcpy(k->kept[k->in_flight].out[1], k->resident.out, sizeof k->resident.out);
    k->n_steps++;
    if (++k->in_flight == IN_FLIGHT || below(k, 8) == 0)
        drain(k);
}

static void test_soak(void **state)
{
    (void)state;
    static walk k;
    const uint64_t steps = fx_gpu->is_fake && !fx_is_full() ? 1000 : 10000;
    k.random = seed;
    delay_random = seed + 1;
    nap_us = fx_gpu->is_fake ? 0 : 60;
    open_walk(&k);
    while (k.n_steps < steps)
        walk_step(&k);
    drain(&k);
    const rkv_cache_stats s = fx_stats(&k.w);
    print_message("%llu steps, %llu rows, %llu delays, %llu cuts, %llu forks, %llu parks, %llu windows, %llu aborts; "
                  "%llu MB streamed, %llu KB brought back; checksum %016llx\n",
                  (unsigned long long)k.n_steps, (unsigned long long)k.n_rows, (unsigned long long)n_delays,
                  (unsigned long long)k.n_cuts, (unsigned long long)k.n_forks, (unsigned long long)k.n_parks,
                  (unsigned long long)k.n_windows, (unsigned long long)k.n_aborts,
                  (unsigned long long)(s.streamed_bytes >> 20), (unsigned long long)(s.brought_back_bytes >> 10),
                  (unsigned long long)k.checksum);
    assert_true(s.streamed_bytes > 0 && s.brought_back_bytes > 0 && k.n_forks > 0 && k.n_parks > 0 && k.n_aborts > 0);
    fx_check_empty(&k.w);
    fx_close(&k.w);
    fx_close(&k.resident);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    fx_use_gpu();
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
