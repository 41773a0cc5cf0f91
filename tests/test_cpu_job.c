/* SPDX-License-Identifier: MIT
 *
 * Items of the CPU's share divided among threads: the values are those of items
 * computed whole, the bits depend on the cut alone, and each part is counted.
 */
#include "ops_case.h"

#include "cpu_job.h"

#define ROWS_MOST 3u
#define NEAR 4e-6f

static uint64_t seed;

typedef struct cut_case {
    ops_case c;
    ops_work w;
    rkvi_cpu_job job;
    float *partials;
    _Atomic uint32_t *over;
    uint64_t floats, wanted;
} cut_case;

static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0};
static const uint32_t dims[] = {64, 128, 256, 512};

/* Some hundred cells in tiles of 256, of which the first lie anywhere in theirs; runs of
 * 2^k leaves, of which the last one may be short. */
static void make(cut_case *x, const rkvi_ops *ops, uint64_t n)
{
    uint64_t s = seed + n;
    const rkv_type type = types[n % 5];
    *x = (cut_case){.c = {.geom = {.n_heads = 1 + (uint32_t)(rng(&s) % 3), .dk = dims[rng(&s) % 4], .type_k = type,
                                   .type_v = types[rng(&s) % 5], .tile_cells = 256},
                          .ratio = 1 + (uint32_t)(rng(&s) % 6), .n_entries = 1, .seed = seed + n,
                          .first = (uint32_t)(rng(&s) % 256), .pos0 = (int64_t)(rng(&s) % 9999)}};
    x->c.geom.dv = rng(&s) % 2 ? x->c.geom.dk : 64;
    x->c.scale = 1 / sqrtf((float)x->c.geom.dk);
    x->c.rows[0] = 1 + (uint32_t)(rng(&s) % ROWS_MOST);
    x->c.cells[0] = 300 + (uint32_t)(rng(&s) % 900);
    if (rng(&s) % 3 == 0)
        x->c.mask = (rkvi_site_mask){RKV_MASK_SLIDING, 100 + (int64_t)(rng(&s) % 1500)};
    x->c.softcap = rng(&s) % 4 ? 0 : 20;
    case_make(&x->c);
    case_store(&x->c, ops);
    const ops_cut cut = {.run_log2 = (uint32_t)(rng(&s) % 4)};
    x->w = work_make(&x->c, &cut);
    x->floats = (uint64_t)x->c.q_heads * (x->c.geom.dv + 2) * x->c.rows[0];
    x->wanted = 1 + rng(&s) % 400;
}

static void open_job(cut_case *x, const rkvi_ops *ops, uint64_t wanted, uint64_t room)
{
    x->job = (rkvi_cpu_job){
        .args = {.geom = x->c.geom, .entries = x->c.entries, .rows = x->c.row, .spans = x->c.spans, .bases = x->c.bases,
                 .items = x->w.items, .q = row_major(x->c.q, x->c.q_heads, x->c.geom.dk), .mask = x->c.mask,
                 .q_heads = x->c.q_heads, .scale = x->c.scale, .softcap = x->c.softcap, .max_rows = x->c.rows[0]},
        .decode = ops->fn[RKVI_OP_DECODE], .merge = ops->fn[RKVI_OP_MERGE], .n_items = x->w.n_items};
    rkvi_cpu_job_divide(&x->job, wanted, room);
    x->partials = case_alloc(room / sizeof(float), sizeof *x->partials);
    memset(x->partials, 0xff, room);
    x->job.args.partials = x->partials;
    x->over = case_alloc(wanted, sizeof *x->over);
}

/* Units in any order, which `s` draws. */
static void run_units(cut_case *x, uint64_t *s)
{
    const uint64_t n = rkvi_cpu_job_units(&x->job);
    uint64_t *order = case_alloc(n, sizeof *order);
    for (uint64_t i = 0; i < n; i++)
        order[i] = i;
    for (uint64_t i = n; i > 1; i--) {
        const uint64_t k = rng(s) % i, was = order[k];
        order[k] = order[i - 1];
        order[i - 1] = was;
    }
    for (uint64_t i = 0; i < n; i++)
        rkvi_cpu_job_run(&x->job, order[i], x->over, true);
    free(order);
}

static void close_job(cut_case *x)
{
    free(x->partials);
    free((void *)x->over);
}

static void drop(cut_case *x)
{
    void *all[] = {x->w.items, x->w.merges[0], x->w.merges[1], x->w.nodes};
    for (size_t i = 0; i < 4; i++)
        free(all[i]);
    case_free(&x->c);
}

static const float *partial_of(const cut_case *x, const float *partials, uint64_t item, uint32_t row)
{
    return partials + (item * x->c.rows[0] + row) * (x->floats / x->c.rows[0]);
}

static void assert_near(const cut_case *x, const float *a, const float *b)
{
    const uint32_t heads = x->c.q_heads, dv = x->c.geom.dv;
    for (uint32_t h = 0; h < heads; h++) {
        const float ma = a[heads * dv + h], la = a[heads * dv + heads + h];
        const float mb = b[heads * dv + h], lb = b[heads * dv + heads + h];
        assert_true((ma == -INFINITY) == (mb == -INFINITY));
        if (ma == -INFINITY)
            continue;
        assert_true(fabsf(ma + logf(la) - mb - logf(lb)) < NEAR * (1 + fabsf(ma)));
        for (uint32_t i = 0; i < dv; i++)
            assert_true(fabsf(a[h * dv + i] / la - b[h * dv + i] / lb) < NEAR);
    }
}

/* Divided as wanted, in three orders, beside undivided. */
static void test_values(void **state)
{
    (void)state;
    rkvi_ops sets[KERNEL_SETS];
    const uint32_t n_sets = kernel_sets(sets);
    uint64_t n_divided = 0;
    for (uint64_t n = 0; n < 60; n++) {
        const rkvi_ops *ops = &sets[n % n_sets];
        cut_case x, whole;
        uint64_t s = (seed ^ n) | 1;
        make(&x, ops, n);
        whole = x;
        open_job(&whole, ops, 1, x.w.n_items * x.floats * sizeof(float));
        assert_int_equal(rkvi_cpu_job_units(&whole.job), x.w.n_items * x.c.geom.n_heads);
        run_units(&whole, &s);
        float *first = NULL;
        for (uint32_t order = 0; order < 3; order++) {
            open_job(&x, ops, x.wanted, (x.w.n_items + 500) * x.floats * sizeof(float));
            n_divided += order == 0 && x.job.part_leaves > 0;
            run_units(&x, &s);
            for (uint64_t i = 0; i < x.wanted; i++)
                assert_int_equal(x.over[i], 0);
            for (uint64_t i = 0; i < x.w.n_items; i++)
                for (uint32_t r = 0; r < x.c.rows[0]; r++)
                    assert_near(&x, partial_of(&x, x.partials, i, r), partial_of(&x, whole.partials, i, r));
            if (first)
                assert_memory_equal(first, x.partials, x.w.n_items * x.floats * sizeof(float));
            else
                first = memcpy(case_alloc(x.w.n_items * x.floats, sizeof(float)), x.partials,
                               x.w.n_items * x.floats * sizeof(float));
            close_job(&x);
        }
        free(first);
        close_job(&whole);
        drop(&x);
    }
    print_message("%llu of 60 divided\n", (unsigned long long)n_divided);
    assert_true(n_divided > 30);
}

/* As many as wanted, but no part of fewer than 32 cells, none without room for its
 * partial. */
static void test_divide(void **state)
{
    (void)state;
    const rkvi_item items[] = {{.leaf0 = 3, .leaf1 = 4}, {.leaf0 = 4, .leaf1 = 8}, {.leaf0 = 8, .leaf1 = 11}};
    rkvi_cpu_job j = {.args = {.geom = {.n_heads = 2, .dv = 64, .leaf_cells = 256}, .items = items, .q_heads = 2,
                               .max_rows = 1}, .n_items = 3};
    const uint64_t slot = 2 * 66 * sizeof(float), much = 1000 * slot;
    static const struct { uint64_t wanted, units, leaves, parts; } cases[] = {
        {1, 6, 0, 1}, {6, 6, 0, 1}, {7, 10, 2, 1}, {11, 18, 1, 1}, {18, 18, 1, 1}, {19, 36, 1, 2}, {37, 72, 1, 4},
        {73, 144, 1, 8}, {1000, 144, 1, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rkvi_cpu_job_divide(&j, cases[i].wanted, much);
        assert_int_equal(rkvi_cpu_job_units(&j), cases[i].units);
        assert_int_equal(j.part_leaves, cases[i].leaves);
        assert_int_equal(j.leaf_parts, cases[i].parts);
    }
    rkvi_cpu_job_divide(&j, 1000, (3 + 9) * slot); /* 9 leaves of blocks: none of them can be cut */
    assert_int_equal(rkvi_cpu_job_units(&j), 18);
    rkvi_cpu_job_divide(&j, 1000, (3 + 9) * slot - 1);
    assert_int_equal(rkvi_cpu_job_units(&j), 10);
    rkvi_cpu_job_divide(&j, 1000, 3 * slot);
    assert_int_equal(rkvi_cpu_job_units(&j), 6);
    j.args.geom.leaf_cells = 64;
    rkvi_cpu_job_divide(&j, 1000, much);
    assert_int_equal(rkvi_cpu_job_units(&j), 36);
    j.args.geom.leaf_cells = 16; /* two leaves a part */
    rkvi_cpu_job_divide(&j, 1000, much);
    assert_int_equal(rkvi_cpu_job_units(&j), 10);
    assert_int_equal(j.part_leaves, 2);
}

/* Of a job that nobody waits for, parts are counted and nothing is written. */
static void test_unwanted(void **state)
{
    (void)state;
    rkvi_ops ops;
    rkvi_ops_ref(&ops);
    cut_case x;
    make(&x, &ops, 1);
    const uint64_t room = (x.w.n_items + 500) * x.floats * sizeof(float);
    open_job(&x, &ops, 200, room);
    assert_true(x.job.part_leaves > 0);
    for (uint64_t i = rkvi_cpu_job_units(&x.job); i > 0; i--)
        rkvi_cpu_job_run(&x.job, i - 1, x.over, false);
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(x.over[i], 0);
    for (uint64_t i = 0; i < room; i++)
        assert_int_equal(((const uint8_t *)x.partials)[i], 0xff);
    close_job(&x);
    drop(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_divide),
                                       cmocka_unit_test(test_unwanted)};
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
