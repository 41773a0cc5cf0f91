/* Contracts of attention with values worked by hand: sinks, empty rows, base
 * of the logarithm, softcap; and the merge of made-up nodes. */
#include "ops_attend.h"
#include "ops_case.h"
#include "ops_half.h"

static rkvi_ops sets[KERNEL_SETS];
static uint32_t n_sets;

/* One KV head of dim 8 in f32-exact values: k and v the same in all cells. */
static ops_case flat(uint32_t cells, float q, float k, float v)
{
    ops_case c = {.geom = {.n_heads = 1, .dk = 8, .dv = 8, .type_k = RKV_TYPE_F16,
                           .type_v = RKV_TYPE_F16, .tile_cells = 16},
                  .ratio = 2, .scale = 1, .n_entries = 1, .cells = {cells}, .rows = {1}};
    case_make(&c);
    for (uint32_t i = 0; i < c.q_heads * 8; i++)
        c.q[i] = q;
    for (uint32_t i = 0; i < cells * 8; i++) {
        c.k[i] = k;
        c.v[i] = v;
    }
    case_store(&c, &sets[0]);
    return c;
}

static ops_out attend(ops_case *c, const rkvi_ops *ops, bool prefill)
{
    ops_out o = out_make(c, RKV_TYPE_F32, OUT_PADDED);
    const ops_cut cut = {.prefill = prefill};
    case_attend(c, ops, &cut, &o);
    out_check_canaries(&o);
    return o;
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 3e-7 * fmax(1, fabs(want)))) {
        printf("got %.9g, want %.9g\n", got, want);
        fail();
    }
}

/* n equal scores s: lse = s + log(n), natural; out = v. */
static void test_log_base(void **state)
{
    (void)state;
    static const uint32_t cells[] = {1, 2, 15, 16, 17, 100};
    for (uint32_t s = 0; s < n_sets; s++)
        for (uint32_t i = 0; i < 12; i++) {
            const uint32_t n = cells[i / 2];
            ops_case c = flat(n, 1, i % 2 ? 0.25f : 0, 3);
            ops_out o = attend(&c, &sets[s], i % 2);
            assert_near((double)o.lse[0], (i % 2 ? 2 : 0) + log(n));
            assert_near((double)out_at(&o, 0, 1, 7), 3);
            out_free(&o);
            case_free(&c);
        }
}

/* q.k = 0 and v = 1: n / (n + exp(sink)); once, however many leaves there are. */
static void test_sink(void **state)
{
    (void)state;
    static const float sinks[] = {0, 0.84f, -5, 12, 200, -INFINITY};
    for (uint32_t s = 0; s < n_sets; s++)
        for (uint32_t i = 0; i < 24; i++) {
            const uint32_t n = i < 12 ? 1 : 90;
            const float sink = sinks[i / 2 % 6];
            ops_case c = flat(n, 0, 1, 1);
            c.has_sinks = true;
            c.sinks[0] = sink;
            c.sinks[1] = -INFINITY;
            ops_out o = attend(&c, &sets[s], i % 2);
            const double e = exp((double)sink);
            assert_near((double)out_at(&o, 0, 0, 0), n / (n + e));
            assert_near((double)o.lse[0], log(n + e));
            assert_true(out_at(&o, 0, 1, 0) == 1);
            assert_near((double)o.lse[1], log(n));
            out_free(&o);
            case_free(&c);
        }
}

/* Softcap before the mask, sink untouched by it. */
static void test_softcap(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++)
        for (uint32_t i = 0; i < 8; i++) {
            ops_case c = flat(40, 1, i < 4 ? 2 : 0.03125f, 1); /* scores 16 and 0.25 */
            c.softcap = 10;
            c.has_sinks = i % 2;
            c.mask = (rkvi_site_mask){RKV_MASK_SLIDING, 7};
            c.sinks[0] = 11;
            ops_out o = attend(&c, &sets[s], i / 2 % 2);
            const double score = 10 * tanh((i < 4 ? 16 : 0.25) / 10);
            const double l = 7 * exp(score), e = i % 2 ? exp(11) : 0;
            assert_near((double)o.lse[0], log(l + e));
            assert_near((double)out_at(&o, 0, 0, 3), l / (l + e));
            out_free(&o);
            case_free(&c);
        }
}

/* Rows that see nothing: zeros; lse of the sink, or -inf. */
static void test_empty_rows(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++)
        for (uint32_t i = 0; i < 8; i++) {
            ops_case c = flat(50, 1, 1, 1);
            c.has_sinks = i & 1;
            c.sinks[0] = 2.5f;
            c.sinks[1] = -INFINITY;
            c.row[0].from = i & 4 ? 60 : 20;
            c.row[0].to = 20;
            ops_out o = attend(&c, &sets[s], i & 2);
            for (uint32_t d = 0; d < 8; d++)
                assert_true(out_at(&o, 0, 0, d) == 0 && out_at(&o, 0, 1, d) == 0);
            assert_true(o.lse[0] == (i & 1 ? 2.5f : -INFINITY));
            assert_true(o.lse[1] == -INFINITY);
            out_free(&o);
            case_free(&c);
        }
}

/* One score far above the rest: the output is that cell's v. */
static void test_one_hot(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++)
        for (uint32_t hot = 0; hot < 70; hot += 3) {
            ops_case c = flat(70, 100, -60000, 1);
            for (uint32_t i = 0; i < 8; i++) {
                c.k[hot * 8 + i] = 60000;
                c.v[hot * 8 + i] = (float)i - 3;
            }
            case_store(&c, &sets[0]);
            ops_out o = attend(&c, &sets[s], hot & 1);
            for (uint32_t d = 0; d < 8; d++)
                assert_true(out_at(&o, 0, 0, d) == (float)d - 3);
            assert_near((double)o.lse[0], 48000000.0 * (double)rkvi_f16_to_f32(
                                                           rkvi_f32_to_f16(60000)) / 60000);
            out_free(&o);
            case_free(&c);
        }
}

/* All scores -inf in f32: as if nothing were seen, not NaN. */
static void test_minus_infinity(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++) {
        ops_case c = flat(33, -1e38f, 60000, 1);
        ops_out o = attend(&c, &sets[s], s & 1);
        assert_true(out_at(&o, 0, 0, 0) == 0 && o.lse[0] == -INFINITY);
        out_free(&o);
        case_free(&c);
    }
}

/* A NaN in q shows in that head's output, in no other. */
static void test_nan_query(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++)
        for (uint32_t i = 0; i < 4; i++) {
            ops_case c = flat(40, 1, 1, 1);
            c.q[8] = NAN;
            c.has_sinks = i & 1;
            ops_out o = attend(&c, &sets[s], i & 2);
            assert_true(isfinite(out_at(&o, 0, 0, 0)) && isfinite(o.lse[0]));
            assert_true(isnan(out_at(&o, 0, 1, 0)) && isnan(o.lse[1]));
            out_free(&o);
            case_free(&c);
        }
}

/* Nodes of one row, head 1 of 2: o = {m-scaled}, chosen so that sums are exact. */
static void put_partial(float *partials, uint64_t slot, float m, float l, float o)
{
    const rkvi_partial p = rkvi_partial_at(partials, slot, 2, 8, 1);
    *p.m = m;
    *p.l = l;
    for (uint32_t i = 0; i < 8; i++)
        p.o[i] = o;
}

static void merge(const rkvi_ops *ops, float *partials, const rkvi_node *nodes, uint32_t n,
                  uint64_t dst, float *out, float *lse)
{
    const rkvi_entry entry = {.n_rows = 1};
    const rkvi_merge_item item = {.n_rows = 1, .n_nodes = n, .dst = dst};
    const rkvi_merge_args args = {.entries = &entry, .items = &item, .nodes = nodes,
                                  .partials = partials, .out = row_major(out, 2, 8), .lse = lse,
                                  .lse_row_stride = 2, .q_heads = 2, .dv = 8};
    ops->fn[RKVI_OP_MERGE](&args, 1);
}

static void test_nodes(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < n_sets; s++) {
        float partials[8 * 20], out[16], lse[2];
        memset(partials, 0xff, sizeof partials);
        put_partial(partials, 0, 1, 2, 6);
        put_partial(partials, 1, -INFINITY, 0, 0);
        put_partial(partials, 2, 1, 6, 2);
        put_partial(partials, 3, -200, 1, 5); /* exp(-201) is 0 */
        const rkvi_node nodes[] = {{0, 0}, {4, 1}, {9, 2}, {UINT64_MAX / 2, 3}};
        merge(&sets[s], partials, nodes, 4, RKVI_TO_OUT, out, lse);
        assert_true(out[8] == 1 && out[15] == 1);
        assert_near((double)lse[1], 1 + log(8));
        merge(&sets[s], partials, nodes, 4, 5, out, lse);
        const rkvi_partial p = rkvi_partial_at(partials, 5, 2, 8, 1);
        assert_true(*p.m == 1 && *p.l == 8 && p.o[0] == 8 && p.o[7] == 8);
        merge(&sets[s], partials, nodes + 1, 1, 6, out, lse);
        const rkvi_partial e = rkvi_partial_at(partials, 6, 2, 8, 1);
        assert_true(*e.m == -INFINITY && *e.l == 0 && e.o[0] == 0 && e.o[7] == 0);
        merge(&sets[s], partials, NULL, 0, RKVI_TO_OUT, out, lse);
        assert_true(out[8] == 0 && out[15] == 0 && lse[1] == -INFINITY);
        merge(&sets[s], partials, nodes, 3, 0, out, lse); /* into one of its own nodes */
        assert_true(*rkvi_partial_at(partials, 0, 2, 8, 1).l == 8);
    }
}

/* The order of merges, against the tree built by its definition. */
static void test_tree_order(void **state)
{
    (void)state;
    for (uint64_t mask = 1; mask < 1024; mask++) {
        uint64_t stack[12], merged[12][2];
        uint32_t n = 0, n_merged = 0, n_want = 0;
        for (uint64_t leaf = 0; leaf <= 10; leaf++) {
            if (leaf < 10 && !(mask >> leaf & 1))
                continue;
            while (n >= 2 && (leaf == 10 || rkvi_tree_merges(stack[n - 2], stack[n - 1], leaf))) {
                merged[n_merged][0] = stack[n - 2];
                merged[n_merged++][1] = stack[n - 1];
                n--;
            }
            stack[n++] = leaf;
        }
        for (uint32_t level = 1; level <= 4; level++)
            for (uint64_t i = 0; i < 16; i += 1u << level) {
                const uint64_t half = (1u << (level - 1)), bits = (1u << half) - 1;
                const uint64_t a = mask >> i & bits, b = mask >> (i + half) & bits;
                if (!a || !b)
                    continue;
                const uint64_t want[] = {i + (uint64_t)__builtin_ctzll(a),
                                         i + half + (uint64_t)__builtin_ctzll(b)};
                bool found = false;
                for (uint32_t k = 0; k < n_merged; k++)
                    found |= merged[k][0] == want[0] && merged[k][1] == want[1];
                assert_true(found);
                n_want++;
            }
        assert_int_equal(n_merged, n_want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_base),   cmocka_unit_test(test_sink),
        cmocka_unit_test(test_softcap),    cmocka_unit_test(test_empty_rows),
        cmocka_unit_test(test_one_hot),    cmocka_unit_test(test_minus_infinity),
        cmocka_unit_test(test_nan_query),
        cmocka_unit_test(test_nodes),      cmocka_unit_test(test_tree_order),
    };
    n_sets = kernel_sets(sets);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
