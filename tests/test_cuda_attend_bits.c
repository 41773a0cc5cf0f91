/* SPDX-License-Identifier: MIT
 *
 * What must not change a bit of a row on a GPU: how the work is cut, who shares
 * the launch, what lies outside the row's cells, the run.  As test_ops_bits, for
 * every variant of this build.
 *
 * ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_VARIANT=part of a name chooses,
 * ROLLKV_TEST_ONE_IN=N leaves out all but one case in N. */
#include "cuda_case.h"

static uint64_t seed;
static const char *current;

static ops_case make(const gpu_variant *v, uint32_t which)
{
    static const uint32_t ratios[] = {5, 3, 1, 8, 16};
    ops_case c = {.geom = {.n_heads = 2, .dk = v->dk, .dv = v->dv, .type_k = v->type_k, .type_v = v->type_v,
                           .k_scale = 0.1f, .v_scale = 1.7f, .tile_cells = which % 2 ? 16 : 128},
                  .ratio = ratios[which % 5],
                  .mask = {which % 3, 45 + which},
                  .softcap = which % 4 == 3 ? 5.0f : 0,
                  .has_sinks = which % 4 < 2,
                  .n_entries = 3, .cells = {403, 1, 77}, .rows = {6, 1, 3},
                  .first = which % 3 ? 9 + which : 0,
                  .seed = seed + which};
    c.scale = 1 / sqrtf((float)c.geom.dk);
    return c;
}

static void store(ops_case *c)
{
    rkvi_ops ref;
    rkvi_ops_ref(&ref);
    case_store(c, &ref);
}

static ops_out attend(const ops_case *c, ops_cut cut)
{
    ops_out o = out_make(c, RKV_TYPE_F32, OUT_PLAIN);
    gpu_attend(c, &cut, RKV_TYPE_F32, &o);
    return o;
}

static uint32_t differ(const char *what, const float *a, const float *b, uint32_t row, uint32_t head, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            printf("%s: %s of row %u head %u differs first at %u: %.9g and %.9g\n", current, what, row, head, i,
                   (double)a[i], (double)b[i]);
            return 1;
        }
    return 0;
}

/* Rows [row, row + n) of all entries, heads' rows one after another. */
static void assert_same_rows(const ops_case *c, const ops_out *a, const ops_out *b, uint32_t row, uint32_t n)
{
    const uint32_t dv = c->geom.dv;
    uint32_t wrong = 0;
    for (uint32_t r = row; r < row + n && wrong < 3; r++)
        for (uint32_t h = 0; h < c->q_heads && wrong < 3; h++) {
            const size_t at = (size_t)r * c->q_heads + h;
            wrong += differ("out", (float *)a->t.data + at * dv, (float *)b->t.data + at * dv, r, h, dv);
            wrong += differ("lse", a->lse + at, b->lse + at, r, h, 1);
        }
    assert_int_equal(wrong, 0);
}

static void assert_same(const ops_case *c, const ops_out *a, ops_out b)
{
    assert_same_rows(c, a, &b, 0, c->n_rows);
    out_free(&b);
}

typedef void (*case_fn)(ops_case *c);

/* Three cases of each variant. */
static void each_case(case_fn fn)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_GPU_VARIANTS; i++)
        for (uint32_t k = 0; k < 3; k++) {
            if (!variant_wanted(&gpu_variants[i]))
                continue;
            n++;
            if (gpu_leaves_out())
                continue;
            current = gpu_variants[i].name;
            ops_case c = make(&gpu_variants[i], i + 7 * k);
            case_make(&c);
            store(&c);
            fn(&c);
            case_free(&c);
        }
    assert_true(n > 0);
}

static void runs(ops_case *c)
{
    const ops_cut cuts[] = {{.run_log2 = 2}, {.prefill = true}};
    for (int k = 0; k < 2; k++) {
        ops_out whole = attend(c, cuts[k]);
        for (int i = 0; i < 5; i++)
            assert_same(c, &whole, attend(c, cuts[k]));
        out_free(&whole);
    }
}

static void decode_cuts(ops_case *c)
{
    ops_out whole = attend(c, (ops_cut){.run_log2 = 10});
    for (uint32_t k = 0; k < 6; k++)
        assert_same(c, &whole, attend(c, (ops_cut){.run_log2 = k, .rows_per_item = k}));
    for (uint32_t k = 0; k < 3; k++)
        assert_same(c, &whole, attend(c, (ops_cut){.run_log2 = k, .two_merges = true}));
    out_free(&whole);
}

/* Runs of many whole leaves, which some kernels take otherwise than few: seen by all rows, by some in part,
 * and by none.  Of many columns, and row by row. */
static void long_runs(ops_case *c)
{
    ops_out whole = attend(c, (ops_cut){.run_log2 = 10});
    assert_same(c, &whole, attend(c, (ops_cut){.run_log2 = 3, .rows_per_item = 1}));
    assert_same(c, &whole, attend(c, (ops_cut){.run_log2 = c->rows[0] == 1 ? 2 : 3}));
    out_free(&whole);
}

/* A state that goes straight to the output is what a merge of it gives. */
static void put_out(ops_case *c)
{
    const rkv_type types[] = {RKV_TYPE_F32, RKV_TYPE_F16, RKV_TYPE_BF16};
    const ops_cut apart = {.prefill = true};
    for (uint32_t k = 0; k < 3; k++) {
        const ops_cut cut = {.prefill = true, .puts_out = true, .leaves_per_step = 2 * k, .rows_per_item = 5 * k};
        for (int layout = OUT_PLAIN; layout <= OUT_HEAD_MAJOR; layout++) {
            ops_out a = out_make(c, types[k], layout), b = out_make(c, types[k], layout);
            gpu_attend(c, &apart, RKV_TYPE_F32, &a);
            gpu_put_out(c, &cut, RKV_TYPE_F32, &b);
            assert_memory_equal(out_base(&a), out_base(&b), a.bytes);
            assert_memory_equal(a.lse, b.lse, (size_t)a.lse_stride * a.rows * sizeof *a.lse);
            out_check_canaries(&b);
            out_free(&a);
            out_free(&b);
        }
    }
}

static void test_long_runs(void **s)
{
    (void)s;
    static const uint32_t rows[] = {1, 3, 6}, leaves[] = {20, 9, 20};
    for (uint32_t i = 0; i < N_GPU_VARIANTS; i++) {
        if (!variant_wanted(&gpu_variants[i]) || gpu_leaves_out())
            continue;
        current = gpu_variants[i].name;
        for (uint32_t k = 0; k < 3; k++) {
            ops_case c = make(&gpu_variants[i], 0);
            c.geom.n_heads = 1;
            c.geom.tile_cells = 256;
            c.n_entries = 1;
            c.cells[0] = leaves[k] * 256 + 70;
            c.rows[0] = rows[k];
            c.mask = i % 3 == 1 ? (rkvi_site_mask){RKV_MASK_SLIDING, 4500} : (rkvi_site_mask){RKV_MASK_CAUSAL, 0};
            case_make(&c);
            store(&c);
            long_runs(&c);
            case_free(&c);
        }
    }
}

static void prefill_cuts(ops_case *c)
{
    ops_out whole = attend(c, (ops_cut){.prefill = true});
    for (uint32_t k = 1; k < 4; k++)
        assert_same(c, &whole,
                    attend(c, (ops_cut){.prefill = true, .rows_per_item = 4 - k, .leaves_per_step = k}));
    out_free(&whole);
}

/* As many items over and over as that many works (an item's query head) take, each copy with slots of its own. */
static ops_work crowd_of(const ops_case *c, const ops_work *one, uint64_t works)
{
    const uint64_t n = rkvi_div_up(works, one->n_items * c->q_heads);
    ops_work w = {.n_items = n * one->n_items, .n_slots = n * one->n_slots};
    w.items = case_alloc(w.n_items, sizeof *w.items);
    for (uint64_t i = 0; i < w.n_items; i++) {
        w.items[i] = one->items[i % one->n_items];
        w.items[i].slot += i / one->n_items * one->n_slots;
    }
    return w;
}

/* The fewer items there are for the multiprocessors, the fewer rows a block may take. */
static void crowd(const ops_case *c, uint64_t n_workers)
{
    for (uint32_t k = 0; k < 2; k++) {
        const ops_cut cut = {.prefill = true, .leaves_per_step = 2 * k};
        ops_work one = work_make(c, &cut);
        const size_t bytes = one.n_slots * c->q_heads * (c->geom.dv + 2) * sizeof(float);
        float *want = gpu_partials(c, &cut, &one, RKV_TYPE_F32);
        const uint64_t works[] = {n_workers * 6 / 10 + 1, n_workers + n_workers / 20 + 1};
        for (uint32_t i = 0; i < 2; i++) {
            ops_work many = crowd_of(c, &one, works[i]);
            float *got = gpu_partials(c, &cut, &many, RKV_TYPE_F32);
            for (uint64_t at = 0; at < many.n_slots / one.n_slots; at++)
                assert_memory_equal((uint8_t *)got + at * bytes, want, bytes);
            free(got);
            work_free(&many);
        }
        free(want);
        work_free(&one);
    }
}

static void test_crowds(void **s)
{
    (void)s;
    rkvi_device_info info;
    ok(rkvi_dev(info, heap.gpu, &info));
    for (uint32_t i = 0; i < N_GPU_VARIANTS; i++)
        for (uint32_t k = 0; k < 3; k++) {
            if (!variant_wanted(&gpu_variants[i]) || gpu_leaves_out())
                continue;
            current = gpu_variants[i].name;
            ops_case c = make(&gpu_variants[i], i + 7 * k);
            c.geom.n_heads = 1;
            c.rows[0] = 128 - 31 * k;
            c.rows[2] = 64 + k;
            case_make(&c);
            store(&c);
            crowd(&c, info.n_workers);
            if (k == 1)
                put_out(&c);
            case_free(&c);
        }
}

/* A row alone in its entry, alone in the launch. */
static void rows_alone(ops_case *c)
{
    for (int prefill = 0; prefill < 2; prefill++) {
        const ops_cut cut = {.prefill = prefill, .run_log2 = 1};
        ops_out whole = attend(c, cut);
        for (uint32_t r = 0; r < c->rows[0]; r++) {
            ops_case one = *c;
            one.n_entries = 1;
            one.entries[0].row0 = r;
            one.entries[0].n_rows = one.rows[0] = 1;
            ops_out alone = attend(&one, cut);
            assert_same_rows(c, &whole, &alone, r, 1);
            out_free(&alone);
        }
        out_free(&whole);
    }
}

/* One head of each group as the only one of its KV head. */
static void heads_alone(ops_case *c)
{
    const ops_cut cuts[] = {{.run_log2 = 1, .rows_per_item = 2}, {.prefill = true}};
    for (int k = 0; k < 2; k++)
        for (uint32_t g = 0; g < c->ratio; g += 1 + c->ratio / 3) {
            const size_t dk = c->geom.dk, dv = c->geom.dv, heads = c->geom.n_heads;
            ops_case one = *c;
            one.ratio = 1;
            one.q_heads = c->geom.n_heads;
            one.has_sinks = false;
            one.q = case_alloc(c->n_rows * heads * dk, sizeof(float));
            ops_case other = *c;
            other.has_sinks = false;
            ops_out want = attend(&other, cuts[k]);
            for (uint32_t r = 0; r < c->n_rows; r++)
                for (uint32_t kv = 0; kv < heads; kv++)
                    memcpy(one.q + (r * heads + kv) * dk, c->q + ((size_t)r * c->q_heads + kv * c->ratio + g) * dk,
                           dk * sizeof(float));
            ops_out alone = attend(&one, cuts[k]);
            uint32_t wrong = 0;
            for (uint32_t r = 0; r < c->n_rows; r++)
                for (uint32_t kv = 0; kv < heads; kv++)
                    wrong += differ("out alone", (float *)alone.t.data + (r * heads + kv) * dv,
                                    (float *)want.t.data + ((size_t)r * c->q_heads + kv * c->ratio + g) * dv, r,
                                    kv * c->ratio + g, c->geom.dv);
            assert_int_equal(wrong, 0);
            out_free(&alone);
            out_free(&want);
            free(one.q);
        }
}

/* Bytes of a tile's cell, all heads. */
static void poison_cell(const ops_case *c, uint64_t base, uint32_t cell)
{
    for (uint32_t h = 0; h < c->geom.n_heads; h++) {
        const rkvi_plane p[] = {rkvi_plane_k(&c->geom, base, h), rkvi_plane_v(&c->geom, base, h)};
        for (int i = 0; i < 2; i++) {
            memset(p[i].quants + (size_t)cell * p[i].cell_bytes, 0xff, p[i].cell_bytes);
            memset(p[i].scales + (size_t)cell * p[i].scale_cell_bytes, 0xff, p[i].scale_cell_bytes);
        }
    }
}

/* Cells that no row of the entry sees, and what lies beyond the spans (0xff from
 * the start), become NaN; tiles that no row sees have no address. */
static void unseen_cells(ops_case *c)
{
    for (uint32_t r = 0; r < c->rows[0]; r++) {
        c->row[r].from = 70 + 3 * r;
        c->row[r].to = 281 + 4 * r;
    }
    ops_out decode = attend(c, (ops_cut){.run_log2 = 2});
    ops_out prefill = attend(c, (ops_cut){.prefill = true});
    const rkvi_entry *e = &c->entries[0];
    bool used[64] = {false};
    for (uint32_t x = 0; x < c->cells[0]; x++) {
        bool seen = false;
        for (uint32_t r = 0; r < c->rows[0]; r++)
            seen = seen || case_sees(c, &c->row[r], c->pos0 + x);
        if (seen)
            used[c->new_cells[x].base - e->base0] = true;
        else
            poison_cell(c, c->bases[c->new_cells[x].base], c->new_cells[x].cell);
    }
    for (uint32_t x = 0; x < c->cells[0]; x++)
        if (!used[c->new_cells[x].base - e->base0])
            c->bases[c->new_cells[x].base] = 0;
    assert_same(c, &decode, attend(c, (ops_cut){.run_log2 = 2}));
    assert_same(c, &decode, attend(c, (ops_cut){.run_log2 = 0}));
    assert_same(c, &prefill, attend(c, (ops_cut){.prefill = true}));
    out_free(&decode);
    out_free(&prefill);
}

/* Row 2 of entry 0: cells that it does not see, though others do, change. */
static void unseen_values(ops_case *c)
{
    for (uint32_t r = 0; r < c->rows[0]; r++) {
        c->row[r].from = 30 * r;
        c->row[r].to = 380 + 4 * r;
    }
    ops_out decode = attend(c, (ops_cut){.run_log2 = 2});
    ops_out prefill = attend(c, (ops_cut){.prefill = true});
    const size_t nk = (size_t)c->geom.n_heads * c->geom.dk, nv = (size_t)c->geom.n_heads * c->geom.dv;
    for (uint32_t x = 0; x < c->cells[0]; x++)
        if (!case_sees(c, &c->row[2], c->pos0 + x)) {
            for (size_t i = 0; i < nk; i++)
                c->k[x * nk + i] *= x % 2 ? 50.0f : -0.01f;
            for (size_t i = 0; i < nv; i++)
                c->v[x * nv + i] *= x % 3 ? 1000.0f : 1e-3f;
        }
    store(c);
    ops_out a = attend(c, (ops_cut){.run_log2 = 2});
    ops_out b = attend(c, (ops_cut){.prefill = true});
    assert_same_rows(c, &decode, &a, 2, 1);
    assert_same_rows(c, &prefill, &b, 2, 1);
    ops_out *all[] = {&decode, &prefill, &a, &b};
    for (int i = 0; i < 4; i++)
        out_free(all[i]);
}

/* A row whose own k, v and q overflow or are NaN does not spoil those before. */
static void overflowing_row(ops_case *c)
{
    const float bad[] = {INFINITY, -INFINITY, NAN, 1e30f};
    const uint32_t last = c->rows[0] - 1, cell = c->cells[0] - 1;
    const size_t k = (size_t)c->geom.n_heads * c->geom.dk, v = (size_t)c->geom.n_heads * c->geom.dv;
    ops_out before = attend(c, (ops_cut){0});
    ops_out prefill = attend(c, (ops_cut){.prefill = true});
    for (size_t i = 0; i < k; i++)
        c->k[cell * k + i] = bad[i % 4];
    for (size_t i = 0; i < v; i++)
        c->v[cell * v + i] = bad[(i + 1) % 4];
    store(c);
    ops_out a = attend(c, (ops_cut){.run_log2 = 1});
    for (size_t i = 0; i < (size_t)c->q_heads * c->geom.dk; i++)
        c->q[last * (size_t)c->q_heads * c->geom.dk + i] = bad[i % 3];
    ops_out b = attend(c, (ops_cut){.prefill = true});
    assert_same_rows(c, &before, &a, 0, last);
    assert_same_rows(c, &prefill, &b, 0, last);
    ops_out *all[] = {&before, &prefill, &a, &b};
    for (int i = 0; i < 4; i++)
        out_free(all[i]);
}

/* A row once more cells follow in its leaf, stored or NaN. */
static void growing_leaf(ops_case *c)
{
    const uint32_t n = 137; /* cells at the time of row 0 */
    c->row[0].pos = n - 1;
    const ops_cut cuts[] = {{.run_log2 = 1}, {.prefill = true}};
    ops_out later[] = {attend(c, cuts[0]), attend(c, cuts[1])};
    ops_case early = *c;
    uint64_t spans = 0;
    for (uint32_t seen = 0; seen < n; spans++) {
        rkvi_span *s = &early.spans[early.entries[0].span0 + spans];
        if (s->count > n - seen)
            s->count = (uint16_t)(n - seen);
        seen += s->count;
    }
    early.entries[0].n_spans = spans;
    for (uint32_t x = n; x < c->cells[0]; x++)
        poison_cell(c, c->bases[c->new_cells[x].base], c->new_cells[x].cell);
    for (int k = 0; k < 2; k++) {
        ops_cut alone = cuts[k];
        alone.rows_per_item = 1;
        ops_out now = attend(&early, alone);
        assert_same_rows(c, &later[k], &now, 0, 1);
        out_free(&now);
        out_free(&later[k]);
    }
}

/* q in f16 and bf16 is the f32 of its values. */
static void tensor_types(ops_case *c)
{
    const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16};
    const ops_cut cuts[] = {{.run_log2 = 1}, {.prefill = true}};
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < (size_t)c->n_rows * c->q_heads * c->geom.dk; i++)
            c->q[i] = round_for(types[k / 2], c->q[i]);
        ops_out f = attend(c, cuts[k % 2]), h = out_make(c, RKV_TYPE_F32, OUT_PLAIN);
        gpu_attend(c, &cuts[k % 2], types[k / 2], &h);
        assert_same(c, &f, h);
        out_free(&f);
    }
}

#define EACH(name)                                                                                             \
    static void test_##name(void **state)                                                                      \
    {                                                                                                          \
        (void)state;                                                                                           \
        each_case(name);                                                                                       \
    }
EACH(runs)
EACH(decode_cuts)
EACH(prefill_cuts)
EACH(put_out)
EACH(rows_alone)
EACH(heads_alone)
EACH(unseen_cells)
EACH(unseen_values)
EACH(overflowing_row)
EACH(growing_leaf)
EACH(tensor_types)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),          cmocka_unit_test(test_decode_cuts), cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_put_out),       cmocka_unit_test(test_prefill_cuts),  cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_crowds),
        cmocka_unit_test(test_heads_alone),   cmocka_unit_test(test_unseen_cells),
        cmocka_unit_test(test_unseen_values), cmocka_unit_test(test_overflowing_row),
        cmocka_unit_test(test_growing_leaf),  cmocka_unit_test(test_tensor_types),
    };
    gpu_or_skip();
    seed = test_seed();
    heap_open();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
