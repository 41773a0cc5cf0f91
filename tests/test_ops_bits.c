/* What must not change a bit of a row, for every kernel set: how the work is
 * cut, who shares the launch, what lies outside the row's cells. */
#include "ops_case.h"
#include "ops_half.h"

static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0,
                                 RKV_TYPE_Q4_0};

static rkvi_ops sets[KERNEL_SETS];
static uint32_t n_sets;
static uint64_t seed;

static ops_case make(uint32_t which)
{
    static const uint32_t d[][2] = {{64, 64}, {128, 128}, {96, 160}, {192, 128}, {512, 512}};
    static const uint32_t ratios[] = {5, 3, 1, 8, 7};
    ops_case c = {.geom = {.n_heads = 2, .dk = d[which % 5][0], .dv = d[which % 5][1],
                           .type_k = types[which % 5], .type_v = types[which / 2 % 5],
                           .k_scale = 0.1f, .v_scale = 2, .tile_cells = which % 2 ? 16 : 64},
                  .ratio = ratios[which / 3 % 5],
                  .mask = {which % 3, 45 + which},
                  .softcap = which % 2 ? 5.0f : 0,
                  .has_sinks = which % 4 < 2,
                  .n_entries = 3, .cells = {203, 1, 77}, .rows = {6, 1, 3},
                  .first = which % 3 ? 9 + which : 0,
                  .seed = seed + which};
    c.scale = 1 / sqrtf((float)c.geom.dk);
    return c;
}

static ops_out attend(ops_case *c, const rkvi_ops *ops, ops_cut cut)
{
    ops_out o = out_make(c, RKV_TYPE_F32, OUT_PLAIN);
    case_attend(c, ops, &cut, &o);
    return o;
}

/* Rows [row, row + n) of entry e. */
static void assert_same_rows(const ops_case *c, const ops_out *a, const ops_out *b, uint32_t row,
                             uint32_t n)
{
    const size_t width = (size_t)c->q_heads * c->geom.dv;
    const float *x = a->t.data, *y = b->t.data;
    assert_memory_equal(x + row * width, y + row * width, n * width * sizeof *x);
    assert_memory_equal(a->lse + row * c->q_heads, b->lse + row * c->q_heads,
                        n * c->q_heads * sizeof *x);
}

static void assert_same(const ops_case *c, ops_out *a, ops_out b)
{
    assert_same_rows(c, a, &b, 0, c->n_rows);
    out_free(&b);
}

/* The reference, slow, and each row and head for itself anyway: a few cases. */
#define FOR_EACH_CASE(c, ops)                                                                      \
    for (uint32_t which = 0; which < 15; which++)                                                  \
        for (const rkvi_ops *ops = sets + (which % 5 != 1); ops < sets + n_sets; ops++)            \
            for (ops_case c = begin(make(which), ops); c.tiles; end(&c))

static ops_case begin(ops_case c, const rkvi_ops *ops)
{
    case_make(&c);
    case_store(&c, ops);
    return c;
}

static void end(ops_case *c)
{
    case_free(c);
    c->tiles = NULL;
}

static void test_decode_cuts(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        ops_out whole = attend(&c, ops, (ops_cut){.run_log2 = 10});
        for (uint32_t k = 0; k < 5; k++)
            assert_same(&c, &whole, attend(&c, ops, (ops_cut){.run_log2 = k, .rows_per_item = k}));
        for (uint32_t k = 0; k < 3; k++)
            assert_same(&c, &whole, attend(&c, ops, (ops_cut){.run_log2 = k, .two_merges = true,
                                                              .backwards = true}));
        out_free(&whole);
    }
}

static void test_prefill_cuts(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        ops_out whole = attend(&c, ops, (ops_cut){.prefill = true});
        for (uint32_t k = 1; k < 4; k++)
            assert_same(&c, &whole, attend(&c, ops, (ops_cut){.prefill = true,
                                                              .rows_per_item = 4 - k,
                                                              .leaves_per_step = k,
                                                              .backwards = k & 1}));
        for (uint32_t k = 0; k < 3; k++) /* no merge: the last items write the output */
            assert_same(&c, &whole, attend(&c, ops, (ops_cut){.prefill = true, .puts_out = true,
                                                              .rows_per_item = k, .leaves_per_step = k}));
        out_free(&whole);
    }
}

/* A row alone in its entry, alone in the launch. */
static void test_rows_alone(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        for (int prefill = 0; prefill < 2; prefill++) {
            const ops_cut cut = {.prefill = prefill};
            ops_out whole = attend(&c, ops, cut);
            for (uint32_t r = 0; r < c.rows[0]; r++) {
                ops_case one = c;
                one.n_entries = 1;
                one.entries[0].row0 = r;
                one.entries[0].n_rows = one.rows[0] = 1;
                ops_out alone = attend(&one, ops, cut);
                assert_same_rows(&c, &whole, &alone, r, 1);
                out_free(&alone);
            }
            out_free(&whole);
        }
    }
}

/* Each head of a group as the only one of its KV head. */
static void test_heads_alone(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        ops_out whole = attend(&c, ops, (ops_cut){0});
        for (uint32_t g = 0; g < c.ratio; g++) {
            ops_case one = c;
            one.ratio = 1;
            one.q_heads = c.geom.n_heads;
            one.has_sinks = c.has_sinks;
            one.q = case_alloc((size_t)c.n_rows * one.q_heads * c.geom.dk, sizeof(float));
            one.sinks = case_alloc(one.q_heads, sizeof(float));
            for (uint32_t kv = 0; kv < one.q_heads; kv++) {
                one.sinks[kv] = c.sinks[kv * c.ratio + g];
                for (uint32_t r = 0; r < c.n_rows; r++)
                    memcpy(one.q + ((size_t)r * one.q_heads + kv) * c.geom.dk,
                           c.q + ((size_t)r * c.q_heads + kv * c.ratio + g) * c.geom.dk,
                           c.geom.dk * sizeof(float));
            }
            ops_out alone = attend(&one, ops, (ops_cut){.rows_per_item = 2});
            for (uint32_t r = 0; r < c.n_rows; r++)
                for (uint32_t kv = 0; kv < one.q_heads; kv++)
                    assert_memory_equal(
                        (float *)alone.t.data + ((size_t)r * one.q_heads + kv) * c.geom.dv,
                        (float *)whole.t.data +
                            ((size_t)r * c.q_heads + kv * c.ratio + g) * c.geom.dv,
                        c.geom.dv * sizeof(float));
            out_free(&alone);
            free(one.q);
            free(one.sinks);
        }
        out_free(&whole);
    }
}

/* Bytes of one cell of entry 0, all heads. */
static void poison_cell(ops_case *c, uint32_t cell)
{
    const rkvi_new_cell *n = &c->new_cells[cell];
    for (uint32_t h = 0; h < c->geom.n_heads; h++) {
        const rkvi_plane p[] = {rkvi_plane_k(&c->geom, c->bases[n->base], h),
                                rkvi_plane_v(&c->geom, c->bases[n->base], h)};
        for (int i = 0; i < 2; i++) {
            memset(p[i].quants + (size_t)n->cell * p[i].cell_bytes, 0xff, p[i].cell_bytes);
            memset(p[i].scales + (size_t)n->cell * p[i].scale_cell_bytes, 0xff,
                   p[i].scale_cell_bytes);
        }
    }
}

/* Row 2 of entry 0: all cells that it does not see become NaN, though other
 * rows of the item see some of them. */
static void test_unseen_cells(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        for (uint32_t r = 0; r < c.rows[0]; r++) {
            c.row[r].from = 3 * r;
            c.row[r].to = 180 + 4 * r;
        }
        ops_out decode = attend(&c, ops, (ops_cut){0});
        ops_out prefill = attend(&c, ops, (ops_cut){.prefill = true});
        for (uint32_t x = 0; x < c.cells[0]; x++)
            if (!case_sees(&c, &c.row[2], x))
                poison_cell(&c, x);
        ops_out a = attend(&c, ops, (ops_cut){0});
        ops_out b = attend(&c, ops, (ops_cut){.prefill = true});
        assert_same_rows(&c, &decode, &a, 2, 1);
        assert_same_rows(&c, &prefill, &b, 2, 1);
        ops_out *all[] = {&decode, &prefill, &a, &b};
        for (int i = 0; i < 4; i++)
            out_free(all[i]);
    }
}

/* Tiles that no row sees have no address; spans may be cut to what is seen. */
static void test_unseen_tiles(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        for (uint32_t r = 0; r < c.rows[0]; r++) {
            c.row[r].from = 70;
            c.row[r].to = 101;
        }
        ops_out whole = attend(&c, ops, (ops_cut){0});
        const rkvi_entry *e = &c.entries[0];
        bool seen[512] = {false};
        for (uint64_t i = 0; i < e->n_spans; i++) {
            rkvi_span *s = &c.spans[e->span0 + i];
            int64_t lo = s->pos > 70 ? s->pos : 70, hi = s->pos + s->count;
            hi = hi < 101 ? hi : 101;
            if (lo >= hi)
                continue;
            seen[s->tile] = true;
            s->first = (uint16_t)(s->first + (lo - s->pos));
            s->count = (uint16_t)(hi - lo);
            s->pos = lo;
        }
        for (uint64_t i = 0; i < e->n_spans; i++)
            if (!seen[c.spans[e->span0 + i].tile])
                c.bases[e->base0 + c.spans[e->span0 + i].tile] = 0;
        assert_same(&c, &whole, attend(&c, ops, (ops_cut){.run_log2 = 2}));
        out_free(&whole);
    }
}

/* A row whose own k, v and q overflow or are NaN does not spoil the one before. */
static void test_overflowing_row(void **state)
{
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN, 1e30f};
    FOR_EACH_CASE (c, ops) {
        const uint32_t last = c.rows[0] - 1, cell = c.cells[0] - 1;
        const size_t k = (size_t)c.geom.n_heads * c.geom.dk, v = (size_t)c.geom.n_heads * c.geom.dv;
        ops_out before = attend(&c, ops, (ops_cut){0});
        ops_out prefill = attend(&c, ops, (ops_cut){.prefill = true});
        for (size_t i = 0; i < k; i++)
            c.k[cell * k + i] = bad[i % 4];
        for (size_t i = 0; i < v; i++)
            c.v[cell * v + i] = bad[(i + 1) % 4];
        case_store(&c, ops);
        ops_out a = attend(&c, ops, (ops_cut){.run_log2 = 1});
        for (size_t i = 0; i < (size_t)c.q_heads * c.geom.dk; i++)
            c.q[last * (size_t)c.q_heads * c.geom.dk + i] = bad[i % 3];
        ops_out b = attend(&c, ops, (ops_cut){.prefill = true});
        assert_same_rows(&c, &before, &a, 0, last);
        assert_same_rows(&c, &prefill, &b, 0, last);
        /* Stored saturated: finite, but for bf16, whose largest values overflow f32 sums. */
        const bool bf16 = c.geom.type_k == RKV_TYPE_BF16 || c.geom.type_v == RKV_TYPE_BF16;
        for (size_t i = 0; !bf16 && i < (size_t)c.q_heads * c.geom.dv; i++)
            assert_true(isfinite(((float *)a.t.data)[last * (size_t)c.q_heads * c.geom.dv + i]));
        ops_out *all[] = {&before, &prefill, &a, &b};
        for (int i = 0; i < 4; i++)
            out_free(all[i]);
    }
}

/* A leaf's partial once more cells follow in the leaf, stored or NaN. */
static void test_growing_leaf(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        const uint32_t n = 37; /* cells at the time of row 0 */
        c.row[0].pos = n - 1;
        ops_out later = attend(&c, ops, (ops_cut){0});
        ops_case early = c;
        uint64_t spans = 0;
        for (uint32_t seen = 0; seen < n; spans++) {
            rkvi_span *s = &early.spans[early.entries[0].span0 + spans];
            if (s->count > n - seen)
                s->count = (uint16_t)(n - seen);
            seen += s->count;
        }
        early.entries[0].n_spans = spans;
        for (uint32_t x = n; x < c.cells[0]; x++)
            poison_cell(&c, x);
        ops_out now = attend(&early, ops, (ops_cut){.rows_per_item = 1});
        assert_same_rows(&c, &later, &now, 0, 1);
        out_free(&later);
        out_free(&now);
    }
}

/* out in f16 and bf16 is the f32 one rounded; q in f16 is the f32 of its values. */
static void test_tensor_types(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        const size_t n = (size_t)c.n_rows * c.q_heads * c.geom.dv;
        ops_out f = attend(&c, ops, (ops_cut){0});
        ops_out h = out_make(&c, RKV_TYPE_F16, OUT_PLAIN);
        ops_out b = out_make(&c, RKV_TYPE_BF16, OUT_PLAIN);
        const ops_cut cut = {0};
        case_attend(&c, ops, &cut, &h);
        case_attend(&c, ops, &cut, &b);
        for (size_t i = 0; i < n; i++) {
            const float x = ((float *)f.t.data)[i];
            assert_int_equal(((uint16_t *)h.t.data)[i], rkvi_f32_to_f16(x));
            assert_int_equal(((uint16_t *)b.t.data)[i], rkvi_f32_to_bf16(x));
        }
        out_check_canaries(&h);
        out_check_canaries(&b);
        out_free(&f);
        out_free(&h);
        out_free(&b);
    }
}

/* One work item of one KV head writes its own partials and nothing else. */
static void test_writes_its_own(void **state)
{
    (void)state;
    FOR_EACH_CASE (c, ops) {
        const size_t slot = (size_t)c.q_heads * (c.geom.dv + 2), n = 5 * slot;
        const rkvi_item item = {.row = 1, .n_rows = 2, .leaf1 = 3, .slot = 1,
                                .flags = RKVI_ITEM_FIRST};
        float *partials = case_alloc(n, sizeof *partials);
        uint8_t *own = case_alloc(n, 1);
        const rkvi_attend_args args = {.geom = c.geom, .entries = c.entries, .rows = c.row,
                                       .spans = c.spans, .bases = c.bases, .items = &item,
                                       .partials = partials,
                                       .q = row_major(c.q, c.q_heads, c.geom.dk), .mask = c.mask,
                                       .q_heads = c.q_heads, .scale = c.scale};
        for (uint32_t h = c.ratio; h < c.q_heads; h++)
            for (size_t s = 1; s < 3; s++) {
                memset(own + s * slot + (size_t)h * c.geom.dv, 1, c.geom.dv);
                own[s * slot + (size_t)c.q_heads * c.geom.dv + h] = 1;
                own[s * slot + (size_t)c.q_heads * (c.geom.dv + 1) + h] = 1;
            }
        for (int op = RKVI_OP_DECODE; op <= RKVI_OP_PREFILL; op++) {
            memset(partials, 0xff, n * sizeof *partials);
            ops->fn[op](&args, 1);
            for (size_t i = 0; i < n; i++)
                assert_true((rkvi_bits(partials[i]) != 0xffffffff) == own[i]);
        }
        free(partials);
        free(own);
    }
}

/* Rows in one pass by a row map, as those that share tiles have it, in any order:
 * the partials are those without one. */
static void test_row_map(void **state)
{
    (void)state;
    static const uint32_t map[] = {9, 9, 9, 4, 0, 5, 2, 1, 3}; /* of the step's rows, from item.row on */
    FOR_EACH_CASE (c, ops) {
        const size_t slot = (size_t)c.q_heads * (c.geom.dv + 2);
        const uint64_t leaves = c.entries[0].n_spans;
        float *own = case_alloc(6 * slot, sizeof *own), *shared = case_alloc(6 * slot, sizeof *own);
        rkvi_item item = {.n_rows = 6, .leaf1 = leaves, .flags = RKVI_ITEM_FIRST};
        rkvi_attend_args args = {.geom = c.geom, .entries = c.entries, .rows = c.row, .spans = c.spans,
                                 .bases = c.bases, .items = &item, .partials = own,
                                 .q = row_major(c.q, c.q_heads, c.geom.dk), .mask = c.mask,
                                 .q_heads = c.q_heads, .scale = c.scale, .softcap = c.softcap};
        for (int op = RKVI_OP_DECODE; op <= RKVI_OP_PREFILL; op++) {
            item.row = 0;
            args.partials = own;
            args.row_map = NULL;
            for (uint64_t h = 0; h < c.geom.n_heads; h++)
                ops->fn[op](&args, h);
            item.row = 3;
            args.partials = shared;
            args.row_map = map;
            for (uint64_t h = 0; h < c.geom.n_heads; h++)
                ops->fn[op](&args, h);
            for (uint32_t r = 0; r < 6; r++)
                assert_memory_equal(shared + r * slot, own + map[3 + r] * slot, slot * sizeof *own);
        }
        free(own);
        free(shared);
    }
}

/* What the CPU lacks is not taken, what is asked for is not exceeded. */
static void test_limits(void **state)
{
    (void)state;
    static const char *const names[] = {"ref", "avx2", "avx512", "avx512vnni"};
    rkvi_ops ops;
    uint32_t most = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t is = 4;
        rkvi_ops_best(&ops, names[i]);
        for (uint32_t j = 0; j < 4; j++)
            if (strcmp(ops.name, names[j]) == 0)
                is = j;
        assert_true(is <= i);
        assert_true(is >= most);
        most = is;
        if (is < i) /* not on this CPU, or not in this build */
            for (uint32_t j = 0; j < n_sets; j++)
                assert_string_not_equal(sets[j].name, names[i]);
    }
    rkvi_ops_best(&ops, NULL);
    assert_string_equal(ops.name, names[most]);
    assert_string_equal(ops.name, sets[n_sets - 1].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_cuts),   cmocka_unit_test(test_prefill_cuts),
        cmocka_unit_test(test_rows_alone),    cmocka_unit_test(test_heads_alone),
        cmocka_unit_test(test_unseen_cells),  cmocka_unit_test(test_unseen_tiles),
        cmocka_unit_test(test_overflowing_row), cmocka_unit_test(test_growing_leaf),
        cmocka_unit_test(test_tensor_types),  cmocka_unit_test(test_writes_its_own),
        cmocka_unit_test(test_row_map),       cmocka_unit_test(test_limits),
    };
    n_sets = kernel_sets(sets);
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
