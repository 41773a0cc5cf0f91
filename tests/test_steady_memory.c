/* SPDX-License-Identifier: MIT
 *
 * What steps ask of the host's memory once they have run for a while: nothing
 * from begin to end where they only lengthen their sequences, and nothing after
 * begin at all.
 *
 * The linker wraps malloc and its kin, and the calls of a step: what the calling
 * thread asks for within them is counted.  The simulating executor has no other
 * thread; what it takes for its operations, which carry their ranges, is not the
 * library's.
 */
#include "rollkv/profile.h"
#include "step_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { T = 16, WARM = 6 * T, STEPS = 4 * T };

static uint32_t depth; /* of a step's calls */
static uint64_t n_asked;

static void count(void)
{
    n_asked += depth > 0;
}

#define WRAP_MEMORY(name, params, args) \
    void *__real_##name params;         \
    void *__wrap_##name params;         \
    void *__wrap_##name params          \
    {                                   \
        count();                        \
        return __real_##name args;      \
    }
WRAP_MEMORY(malloc, (size_t n), (n))
WRAP_MEMORY(calloc, (size_t n, size_t m), (n, m))
WRAP_MEMORY(realloc, (void *p, size_t n), (p, n))

#define WRAP_CALL(name, params, args)              \
    rkv_status __real_##name params;               \
    rkv_status __wrap_##name params;               \
    rkv_status __wrap_##name params                \
    {                                              \
        depth++;                                   \
        const rkv_status status = __real_##name args; \
        depth--;                                   \
        return status;                             \
    }
WRAP_CALL(rkv_step_begin, (rkv_cache *c, const rkv_batch *b), (c, b))
WRAP_CALL(rkv_step_start, (rkv_cache *c, void *s), (c, s))
WRAP_CALL(rkv_step_attend, (rkv_cache *c, const rkv_attend_params *p, void *s), (c, p, s))
WRAP_CALL(rkv_step_end, (rkv_cache *c, const rkv_batch *b, void *s), (c, b, s))

static fx_model model(uint64_t resident_cells, uint32_t flags)
{
    fx_model m = fx_model_make(T, 0, 40 * T);
    m.executor = FX_SIM;
    m.seed = 5;
    fx_add_layer(&m, 1, 64, 64, resident_cells);
    fx_add_layer(&m, 2, 64, 64, resident_cells);
    fx_add_site(&m, 0, 4);
    m.params.n_sequences = 2;
    m.params.max_rows = 64;
    m.params.draft_rows = 2;
    m.params.flags = flags;
    return m;
}

/* Since the last call, by the library itself. */
static uint64_t asked(const fx *w)
{
    static uint64_t operations;
    rkvi_device_usage usage;
    rkvi_device_usage_get(w->core, &usage);
    const uint64_t n = n_asked - (usage.op_allocations - operations);
    operations = usage.op_allocations;
    n_asked = 0;
    return n;
}

/* One cell more of each sequence; what begin asked for, and what came after. */
static uint64_t step(fx *w, uint64_t tag, uint64_t *out_after)
{
    const fx_entry e[2] = {{.seq = 0, .rows = 1, .tag = tag}, {.seq = 1, .rows = 1, .tag = tag + 500}};
    asked(w);
    fx_ok(fx_begin(w, e, 2), "begin");
    const uint64_t n = asked(w);
    for (uint32_t site = 0; site < w->model.n_sites; site++)
        fx_ok(fx_attend(w, site), "attend");
    fx_ok(fx_end(w, NULL, 0), "end");
    *out_after = asked(w);
    fx_ok(fx_sync(w), "sync");
    return n;
}

static void run(const fx_model *m, bool is_profiled)
{
    fx w;
    uint64_t after;
    fx_open(&w, m);
    fx_append(&w, 0, 3 * T, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 1, 2 * T, RKV_REGIME_PREFILL, 200);
    if (is_profiled)
        fx_ok(rkv_profile_start(w.cache, 1), "profile");
    for (uint64_t i = 0; i < WARM; i++)
        step(&w, 1000 + i, &after);
    for (uint64_t i = 0; i < STEPS; i++) {
        const uint64_t in_begin = step(&w, 2000 + i, &after);
        assert_int_equal(after, 0);
        if (i % T != 0 && i % T != 1) /* a tile opens, and one may leave: plans and lists may grow */
            assert_int_equal(in_begin, 0);
    }
    fx_close(&w);
}

static void test_resident(void **state)
{
    (void)state;
    const fx_model m = model(RKV_RESIDENT_ALL, 0);
    run(&m, false);
}

static void test_tail(void **state)
{
    (void)state;
    const fx_model m = model(2 * T, 0);
    run(&m, false);
}

static void test_graphs(void **state)
{
    (void)state;
    const fx_model m = model(2 * T, RKV_FLAG_GRAPHS);
    run(&m, false);
}

static void test_profiled(void **state)
{
    (void)state;
    const fx_model m = model(2 * T, 0);
    run(&m, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resident),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_profiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
