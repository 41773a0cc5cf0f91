/* SPDX-License-Identifier: MIT
 *
 * Host memory, mappings and threads that the system refuses, within each call of
 * the API: an error with a sentence or a way around, nothing left, the cache as
 * before, and the same call then succeeds.
 *
 * The linker wraps malloc and its kin, and the API's own entry points: what is
 * asked for between a call's begin and end, on the calling thread, is counted.
 * Refused: the nth of it alone, or all from the nth on until the call ends.
 */
#include "rollkv/cells.h"
#include "rollkv/profile.h"
#include "state_fixture.h"
#include "state_hash.h"

#include "api_internal.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

/* ------------------------------------------------------------------- refusal */

static _Thread_local uint32_t depth; /* of API calls */
static _Thread_local uint64_t countdown; /* 0: nothing is refused */
static _Thread_local bool goes_on, was_hit;
static _Thread_local uint64_t n_asked;

static bool refused(void)
{
    if (depth == 0)
        return false;
    n_asked++;
    if (countdown == 0 || --countdown > 0)
        return false;
    was_hit = true;
    countdown = goes_on ? 1 : 0;
    errno = ENOMEM;
    return true;
}

static void arm(uint64_t nth, bool all)
{
    countdown = nth;
    goes_on = all;
    was_hit = false;
}

#define WRAP_MEMORY(type, name, params, args, none) \
    type __real_##name params;                      \
    type __wrap_##name params;                      \
    type __wrap_##name params                       \
    {                                               \
        return refused() ? none : __real_##name args; \
    }
WRAP_MEMORY(void *, malloc, (size_t n), (n), NULL)
WRAP_MEMORY(void *, calloc, (size_t n, size_t m), (n, m), NULL)
WRAP_MEMORY(void *, realloc, (void *p, size_t n), (p, n), NULL)
WRAP_MEMORY(char *, strdup, (const char *s), (s), NULL)
WRAP_MEMORY(char *, strndup, (const char *s, size_t n), (s, n), NULL)
WRAP_MEMORY(void *, mmap, (void *p, size_t n, int a, int b, int fd, off_t at), (p, n, a, b, fd, at), MAP_FAILED)
WRAP_MEMORY(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg),
            (t, a, fn, arg), EAGAIN)

/* A refusal that goes on ends with the call. */
static rkv_status leave(rkv_status s)
{
    if (--depth == 0 && was_hit)
        countdown = 0;
    return s;
}
#define WRAP_CALL(name, params, args)       \
    rkv_status __real_##name params;        \
    rkv_status __wrap_##name params;        \
    rkv_status __wrap_##name params         \
    {                                       \
        depth++;                            \
        return leave(__real_##name args);   \
    }
WRAP_CALL(rkvi_api_create_on, (const rkv_cache_params *p, rkvi_device *d, rkv_cache **out), (p, d, out))
WRAP_CALL(rkv_cache_create, (const rkv_cache_params *p, rkv_cache **out), (p, out))
WRAP_CALL(rkv_cache_estimate, (const rkv_cache_params *p, rkv_estimate *out), (p, out))
WRAP_CALL(rkv_cache_check, (const rkv_cache *c, const rkv_batch *b, uint32_t n), (c, b, n))
WRAP_CALL(rkv_cache_set_residency, (rkv_cache *c, uint32_t layer, uint64_t cells), (c, layer, cells))
WRAP_CALL(rkv_step_begin, (rkv_cache *c, const rkv_batch *b), (c, b))
WRAP_CALL(rkv_step_attend, (rkv_cache *c, const rkv_attend_params *p, void *s), (c, p, s))
WRAP_CALL(rkv_step_end, (rkv_cache *c, const rkv_batch *b, void *s), (c, b, s))
WRAP_CALL(rkv_step_abort, (rkv_cache *c), (c))
WRAP_CALL(rkv_sequence_remove, (rkv_cache *c, uint32_t q, int64_t from, int64_t to), (c, q, from, to))
WRAP_CALL(rkv_sequence_clear, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_append_from, (rkv_cache *c, uint32_t dst, uint32_t src, int64_t from, int64_t to),
          (c, dst, src, from, to))
WRAP_CALL(rkv_sequence_shift, (rkv_cache *c, uint32_t q, int64_t from, int64_t to, int64_t d), (c, q, from, to, d))
WRAP_CALL(rkv_sequence_park, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_fetch, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_compact, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_accept, (rkv_cache *c, uint32_t q, const uint32_t *at, uint32_t n, void *s), (c, q, at, n, s))
WRAP_CALL(rkv_state_save, (rkv_cache *c, const rkv_state_params *p), (c, p))
WRAP_CALL(rkv_state_load, (rkv_cache *c, const rkv_state_params *p), (c, p))
WRAP_CALL(rkv_state_save_file, (rkv_cache *c, const rkv_state_params *p, const char *path), (c, p, path))
WRAP_CALL(rkv_state_load_file, (rkv_cache *c, const rkv_state_params *p, const char *path), (c, p, path))
WRAP_CALL(rkv_export_cells, (rkv_cache *c, uint32_t q, const rkv_pos_range *r, const rkv_cells *k, void *s),
          (c, q, r, k, s))
WRAP_CALL(rkv_import_begin, (rkv_cache *c, uint32_t q, uint64_t n, const int64_t *pos), (c, q, n, pos))
WRAP_CALL(rkv_import_cells, (rkv_cache *c, const rkv_cells *k, void *s), (c, k, s))

/* ---------------------------------------------------------------- the script */

enum { T = 16, LAYERS = 2 };
static uint32_t n_failed, n_ended;
static bool failing_calls; /* device calls fail, not requests for memory */
static jmp_buf ended; /* moves of accept that stop halfway, or a refusal while another one is taken back */

static fx_model model(void)
{
    static const float frequencies[4] = {1, 0.5f, 0.25f, 0.125f};
    fx_model m = fx_model_make(T, 0, 40 * T);
    fx_add_layer(&m, 2, 64, 64, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 1, 64, 64, 3 * T);
    m.layers[1].type_k = RKV_TYPE_Q8_0;
    m.layers[1].type_v = RKV_TYPE_Q4_0;
    m.params.n_sequences = 4;
    m.params.max_rows = 48;
    m.params.draft_rows = 4;
    m.params.rope = (rkv_rope_params){.frequencies = frequencies, .n_frequencies = 4};
    return m;
}

/* True: it failed as it may, and is to be called again. */
static bool again(rkv_status s)
{
    if (s == RKV_OK)
        return false;
    if (s == RKV_E_POISONED)
        longjmp(ended, 1);
    if (s != (failing_calls ? RKV_E_DEVICE_CALL : RKV_E_HOST_MEMORY) && s != RKV_E_SYSTEM && s != RKV_E_IO)
        fail_msg("status %d: %s", s, rkv_error_message());
    assert_true(was_hit || failing_calls);
    assert_true(strlen(rkv_error_message()) > 10);
    n_failed++;
    return true;
}

#define RETRY(call)       \
    do {                  \
    } while (again(call))

static void step(fx *w, const fx_entry *e, uint32_t n)
{
    for (bool repeat = true; repeat;) {
        RETRY(fx_begin(w, e, n));
        repeat = false;
        for (uint32_t s = 0; s < LAYERS && !repeat; s++)
            repeat = again(fx_attend(w, s));
        repeat = repeat || again(fx_end(w, NULL, 0));
        if (repeat)
            RETRY(fx_abort(w));
    }
    RETRY(fx_sync(w));
}

static void append(fx *w, uint32_t q, uint32_t rows, uint32_t regime, uint64_t tag)
{
    const fx_entry e = {.seq = q, .rows = rows, .regime = regime, .tag = tag};
    step(w, &e, 1);
}

static void decode(fx *w, uint32_t steps, uint64_t tag)
{
    for (uint32_t i = 0; i < steps; i++) {
        const fx_entry e[2] = {{.seq = 0, .rows = 1 + i % 3, .tag = tag + 10 * i},
                               {.seq = 1, .rows = 1, .tag = tag + 5000 + i}};
        step(w, e, 2);
    }
}

/* In steps. */
static void grow(fx *w)
{
    append(w, 0, 48, RKV_REGIME_PREFILL, 100);
    append(w, 1, 37, RKV_REGIME_PREFILL, 200);
    decode(w, 10, 1000);
    const int64_t from = w->cells[0][40].pos;
    RETRY(rkv_sequence_remove(w->cache, 0, from, RKV_POS_END));
    fx_truncate(w, 0, 40);
    decode(w, 6, 2000); /* brings a tile back */
}

/* Sequences that share, are cut, shifted, parked. */
static void share(fx *w)
{
    append(w, 0, 45, RKV_REGIME_PREFILL, 100);
    RETRY(rkv_sequence_append_from(w->cache, 1, 0, 0, 29));
    fx_note_append_from(w, 1, 0, 0, 29);
    append(w, 1, 3, RKV_REGIME_DECODE, 3000); /* copies the shared tile */
    RETRY(rkv_sequence_shift(w->cache, 0, 20, RKV_POS_END, 7));
    RETRY(rkv_sequence_shift(w->cache, 0, 27, RKV_POS_END, -7));
    RETRY(rkv_sequence_park(w->cache, 0));
    RETRY(rkv_sequence_fetch(w->cache, 0));
    append(w, 0, 2, RKV_REGIME_DECODE, 4000);
    RETRY(rkv_sequence_append_from(w->cache, 2, 0, 0, 40));
    for (int64_t at = 3; at < 36; at += 6)
        RETRY(rkv_sequence_remove(w->cache, 2, at, at + 4));
    RETRY(rkv_sequence_compact(w->cache, 2));
    RETRY(rkv_cache_set_residency(w->cache, 1, T));
    RETRY(rkv_cache_set_residency(w->cache, 1, 20 * T));
    decode(w, 3, 5000);
    RETRY(rkv_sequence_clear(w->cache, 2));
}

static void drafts(fx *w)
{
    static const int64_t pos[3] = {30, 31, 31};
    static const uint64_t tree[3] = {1, 3, 5};
    static const uint32_t taken[2] = {0, 2};
    const fx_entry e = {.rows = 3, .tag = 700, .positions = pos, .tree_mask = tree};
    append(w, 0, 30, RKV_REGIME_PREFILL, 100);
    step(w, &e, 1);
    RETRY(rkv_sequence_accept(w->cache, 0, taken, 2, w->stream));
    w->cells[0][30] = (fx_cell){700, 30};
    w->cells[0][31] = (fx_cell){702, 31};
    w->n_cells[0] = 32;
    decode(w, 2, 800);
}

typedef struct text {
    uint8_t at[1 << 17];
    uint64_t n, read;
} text;

static int32_t write_text(void *user, const void *data, uint64_t bytes)
{
    text *t = user;
    if (t->n + bytes > sizeof t->at)
        return 1;
    memcpy(t->at + t->n, data, bytes);
    t->n += bytes;
    return 0;
}

static int32_t read_text(void *user, void *data, uint64_t bytes)
{
    text *t = user;
    if (t->read + bytes > t->n)
        return 1;
    memcpy(data, t->at + t->read, bytes);
    t->read += bytes;
    return 0;
}

static rkv_status save(fx *w, text *t)
{
    const rkv_state_params p = {.struct_size = sizeof p, .write = write_text, .user = t};
    t->n = 0;
    return rkv_state_save(w->cache, &p);
}

static rkv_status load(fx *w, text *t, uint32_t q)
{
    const rkv_state_params p = {.struct_size = sizeof p, .sequence = q, .read = read_text, .user = t,
                                .size_bytes = t->n};
    t->read = 0;
    return rkv_state_load(w->cache, &p);
}

static void states(fx *w)
{
    static text t;
    append(w, 0, 40, RKV_REGIME_PREFILL, 100);
    append(w, 0, 9, RKV_REGIME_DECODE, 300);
    append(w, 1, 5, RKV_REGIME_DECODE, 400);
    if (rkvi_state_hash_built() != RKV_OK)
        return;
    RETRY(save(w, &t));
    RETRY(load(w, &t, 1));
    fx_copy_record(w, 1, w, 0);
    decode(w, 2, 600);
}

static void cells(fx *w)
{
    static uint8_t k[LAYERS][32 * 512], v[LAYERS][32 * 512];
    const rkv_pos_range all = {0, RKV_POS_END};
    rkv_cells c[LAYERS];
    append(w, 0, 30, RKV_REGIME_PREFILL, 100);
    for (uint32_t l = 0; l < LAYERS; l++) {
        c[l] = (rkv_cells){.struct_size = sizeof *c, .kv_layer = l, .form = RKV_CELLS_STORED, .n_cells = 30};
        c[l].k.data = k[l];
        c[l].v.data = v[l];
        RETRY(rkv_export_cells(w->cache, 0, &all, &c[l], w->stream));
    }
    for (bool repeat = true; repeat;) {
        RETRY(rkv_import_begin(w->cache, 1, 30, NULL));
        repeat = false;
        for (uint32_t l = 0; l < LAYERS && !repeat; l++)
            repeat = again(rkv_import_cells(w->cache, &c[l], w->stream));
        if (repeat)
            fx_ok(rkv_import_abort(w->cache), "import_abort");
    }
    fx_ok(rkv_import_end(w->cache), "import_end");
    fx_copy_record(w, 1, w, 0);
    decode(w, 2, 600);
}

typedef void (*script_fn)(fx *w);
static const script_fn scripts[] = {grow, share, drafts, states, cells};
enum { N_SCRIPTS = sizeof scripts / sizeof *scripts };

/* Each request in turn; true: it was reached. */
static bool run(script_fn script, uint64_t nth, bool all)
{
    static fx w;
    const fx_model m = model();
    fx_open(&w, &m);
    arm(nth, all);
    if (setjmp(ended)) {
        arm(0, false);
        depth = 0;
        n_ended++;
        assert_int_equal(rkv_cache_clear(w.cache), RKV_E_POISONED);
        fx_close(&w);
        return true;
    }
    script(&w);
    const bool hit = was_hit;
    arm(0, false);
    fx_compare_fresh(&w, 0, 4);
    fx_compare_fresh(&w, 1, 4);
    fx_check_empty(&w);
    fx_close(&w);
    return hit;
}

static void test_calls(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_SCRIPTS; i++)
        for (int all = 0; all < 2; all++) {
            uint64_t nth = 1, runs = 0;
            n_failed = n_ended = 0;
            for (; run(scripts[i], nth, all); runs++)
                nth += fx_is_full() || nth < 60 ? 1 : 1 + nth / 8;
            print_message("script %u: %llu requests refused in turn%s, %u calls failed, %u caches ended\n", i,
                          (unsigned long long)runs, all ? " and all after it" : "", n_failed, n_ended);
            assert_true(runs > 0);
        }
}

/* The nth device call of a kind fails. */
static bool run_call(script_fn script, rkvi_device_call kind, uint64_t nth)
{
    static fx w;
    fx_model m = model();
    m.executor = FX_CHECK;
    m.seed = nth;
    fx_open(&w, &m);
    const uint64_t before = rkvi_device_calls(w.core, kind);
    rkvi_device_fail_call(w.core, kind, nth, RKV_E_DEVICE_CALL);
    if (setjmp(ended)) {
        n_ended++;
        assert_int_equal(rkv_cache_clear(w.cache), RKV_E_POISONED);
        fx_close(&w);
        return true;
    }
    script(&w);
    const bool hit = rkvi_device_calls(w.core, kind) - before >= nth;
    rkvi_device_fail_call(w.core, kind, 0, RKV_OK);
    fx_compare_fresh(&w, 0, 4);
    fx_compare_fresh(&w, 1, 4);
    fx_check_empty(&w);
    fx_close(&w);
    return hit;
}

static void test_device_calls(void **state)
{
    (void)state;
    static const rkvi_device_call kinds[] = {
        RKVI_CALL_COPY,      RKVI_CALL_LAUNCH,       RKVI_CALL_EVENT_RECORD,  RKVI_CALL_STREAM_WAIT, RKVI_CALL_EVENT_SYNC,
        RKVI_CALL_MEM_ALLOC, RKVI_CALL_HOST_REGISTER, RKVI_CALL_STREAM_SYNC, RKVI_CALL_HOST_ALLOC};
    failing_calls = true;
    for (uint32_t i = 0; i < N_SCRIPTS; i++) {
        uint64_t runs = 0;
        n_failed = n_ended = 0;
        for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (uint64_t nth = 1; run_call(scripts[i], kinds[k], nth); runs++)
                nth += fx_is_full() ? 1 : 1 + nth / 4;
        print_message("script %u: %llu device calls failed in turn, %u calls failed, %u caches ended\n", i,
                      (unsigned long long)runs, n_failed, n_ended);
        assert_true(n_failed > 0);
    }
    failing_calls = false;
}

/* Creation leaves nothing: the executor, threads and all (LeakSanitizer sees the rest). */
static void test_create(void **state)
{
    (void)state;
    fx_model m = model();
    m.params.kv_layers = m.layers;
    m.params.sites = m.sites;
    m.params.n_kv_layers = m.n_layers;
    m.params.n_sites = m.n_sites;
    m.params.device = RKV_DEVICE_HOST;
    m.params.host.n_threads = 2;
    for (int all = 0; all < 2; all++) {
        uint64_t nth = 1;
        n_failed = 0;
        for (bool hit = true; hit; nth += fx_is_full() || nth < 200 ? 1 : 1 + nth / 16) {
            rkv_cache *cache = NULL;
            arm(nth, all);
            const rkv_status s = rkv_cache_create(&m.params, &cache);
            hit = was_hit;
            if (again(s))
                assert_null(cache);
            else
                rkv_cache_destroy(cache);
        }
        print_message("create: %llu requests refused in turn, %u failed\n", (unsigned long long)nth, n_failed);
        assert_true(n_failed > 50);
    }
    rkv_estimate e = {.struct_size = sizeof e};
    for (uint64_t nth = 1; arm(nth, false), again(rkv_cache_estimate(&m.params, &e)) || was_hit; nth++) {
    }
    arm(0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_device_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
