/* SPDX-License-Identifier: MIT
 *
 * The CUDA executor under an unprivileged user's limit of locked memory, over
 * the fake runtime, which refuses to pin beyond it (a GPU's driver pins on
 * other accounts, so this shows nowhere else).  Whatever the limit: the cache
 * is refused with nothing left behind, or it gives the bits of a cache without
 * a limit, with what could not be pinned copied through the bounce buffer.
 */
#include "fake_cuda.h"
#include "step_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define T 64u
#define CELLS 1536u
#define ROWS 128u

static struct rlimit before;

/* Three sizes of tiles, so that the tail lies in several slabs. */
static fx_model model(uint64_t resident)
{
    fx_model m = fx_model_make(T, 0, CELLS);
    m.executor = FX_GPU;
    m.params.max_rows = ROWS;
    for (uint32_t heads = 1; heads <= 4; heads *= 2)
        fx_add_layer(&m, heads, 64, 64, resident);
    return m;
}

static void limit(uint64_t bytes)
{
    const struct rlimit r = {bytes, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &r), 0);
}

/* A prompt that spills, a few rows after it, and the same text in both caches. */
static void run(fx *w)
{
    for (uint32_t done = 0; done + ROWS <= CELLS - ROWS; done += ROWS)
        fx_append(w, 0, ROWS, 0, 1 + done);
    for (uint32_t n = 0; n < 2; n++)
        fx_append(w, 0, 1, 0, 900000 + n);
}

/* Both under no limit: what the cache pins besides its tail, and the tail. */
static void measure(const fx *free_one, uint64_t pinned_before, uint64_t *tables, uint64_t *tail)
{
    const rkv_cache_stats s = fx_stats(free_one);
    assert_true(s.streamed_bytes > 0);
    assert_int_equal(s.unpinned_bytes, 0);
    *tail = s.pinned_bytes;
    *tables = fake_cuda_holds().pinned_bytes - pinned_before - *tail;
}

/* True: a cache came to be under this limit. */
static bool under(uint64_t limit_bytes, const fx *whole, uint64_t tail, rkv_cache_stats *out)
{
    fx w;
    const fx_model m = model(4 * T);
    const fake_cuda_held held = fake_cuda_holds();
    fake_cuda_obey_memlock(true);
    limit(limit_bytes);
    const rkv_status s = fx_try_open(&w, &m);
    if (s == RKV_OK) {
        run(&w);
        assert_true(fx_same(&w, whole));
        *out = fx_stats(&w);
        assert_int_equal(out->pinned_bytes + out->unpinned_bytes, tail);
        assert_true(fake_cuda_holds().pinned_bytes - held.pinned_bytes <= limit_bytes);
        fx_close(&w);
    } else {
        assert_int_equal(s, RKV_E_HOST_MEMORY);
        assert_true(strlen(rkv_error_message()) > 20);
    }
    limit(before.rlim_cur);
    fake_cuda_obey_memlock(false);
    const fake_cuda_held left = fake_cuda_holds();
    assert_int_equal(left.pinned_bytes, held.pinned_bytes);
    assert_int_equal(left.device_blocks, held.device_blocks);
    assert_int_equal(left.streams, held.streams);
    assert_int_equal(left.events, held.events);
    return s == RKV_OK;
}

static void test_memlock(void **state)
{
    (void)state;
    fx whole, w;
    rkv_cache_stats s;
    uint64_t tables, tail, n_opened = 0, n_partly = 0;
    const fx_model all = model(RKV_RESIDENT_ALL), m = model(4 * T);
    fx_open(&whole, &all);
    run(&whole);
    const uint64_t pinned_before = fake_cuda_holds().pinned_bytes;
    fx_open(&w, &m);
    run(&w);
    assert_true(fx_same(&w, &whole));
    measure(&w, pinned_before, &tables, &tail);
    fx_close(&w);
    print_message("%llu bytes of tables, %llu of the tail\n", (unsigned long long)tables, (unsigned long long)tail);
    if (before.rlim_max != RLIM_INFINITY && before.rlim_max < tables + tail + (256u << 10)) {
        print_message("RLIMIT_MEMLOCK's hard limit of %llu bytes leaves no room for this test\n",
                      (unsigned long long)before.rlim_max);
        fx_close(&whole);
        skip();
    }
    assert_false(under(0, &whole, tail, &s));
    for (uint32_t eighth = 0; eighth <= 8; eighth++) {
        const bool is_open = under(tables + tail * eighth / 8, &whole, tail, &s);
        print_message("%u/8 of the tail: %llu bytes pinned, %llu not\n", eighth,
                      (unsigned long long)(is_open ? s.pinned_bytes : 0),
                      (unsigned long long)(is_open ? s.unpinned_bytes : 0));
        n_opened += is_open;
        n_partly += is_open && s.pinned_bytes && s.unpinned_bytes;
    }
    assert_true(n_opened >= 7 && n_partly >= 3);
    /* The tail alone decides from here on; a bounce buffer is no longer needed. */
    assert_true(under(tables + tail + (256u << 10), &whole, tail, &s));
    assert_int_equal(s.unpinned_bytes, 0);
    fx_close(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memlock)};
    if (getrlimit(RLIMIT_MEMLOCK, &before))
        return 1;
    fx_use_gpu();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
