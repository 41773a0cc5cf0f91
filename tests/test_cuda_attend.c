/* SPDX-License-Identifier: MIT
 *
 * Attention on a GPU against f64 on the same stored values: the error is at most
 * twice that of plain code of the same precision (root mean square; three times
 * at the largest): scores in f32; weights, V and, in prefill, K rounded to the
 * type that the tensor cores multiply in; sums in f32.
 *
 * Every variant of this build with every ratio of heads, decode and prefill, the
 * other axes drawn.  ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_DRAWS how many
 * draws (1); ROLLKV_TEST_VARIANT=part of a name, ROLLKV_TEST_RATIO=N and
 * ROLLKV_TEST_REGIME=decode|prefill choose; ROLLKV_TEST_FAILURES=N (3) reports
 * so many failures of a variant before the next one begins; ROLLKV_TEST_ONE_IN=N
 * leaves out all but one case in N.
 */
#include "cuda_case.h"

static const uint32_t ratios[] = {1, 2, 3, 5, 7, 8, 16, 32, 71};
static const uint32_t tiles[] = {16, 32, 64, 128, 256, 512};
static uint64_t seed;

#define PICK(array, s) ((array)[rng(s) % (sizeof(array) / sizeof *(array))])

static rkvi_site_mask mask_of(uint64_t which, uint32_t tile)
{
    const rkvi_site_mask all[] = {{RKV_MASK_CAUSAL, 0},           {RKV_MASK_CAUSAL, 0},
                                  {RKV_MASK_SLIDING, 1},          {RKV_MASK_SLIDING, tile / 2 + 3},
                                  {RKV_MASK_SLIDING, tile},       {RKV_MASK_CHUNKED, tile + 5},
                                  {RKV_MASK_CHUNKED, 2 * tile}};
    return all[which % (sizeof all / sizeof *all)];
}

static uint32_t rows_of(uint64_t *s, const gpu_variant *v, uint32_t ratio, bool prefill)
{
    if (!prefill)
        return 1 + (uint32_t)(rng(s) % 16);
    const uint64_t draw = rng(s) % 20;
    if (draw == 18 && ratio * v->dk <= 1024)
        return 300;
    return draw == 19 ? 65 : 1 + (uint32_t)(draw % 17);
}

static ops_case case_of(const gpu_variant *v, uint32_t ratio, bool prefill, uint64_t *s)
{
    const uint32_t tile = PICK(tiles, s), rows = rows_of(s, v, ratio, prefill);
    const uint32_t lengths[] = {1, tile - 1, tile, tile + 1, 2 * tile + 1, 3 * tile + 2, 5 * tile - 1,
                                tile <= 32 ? 70 * tile + 3 : 4 * tile};
    uint32_t cells = PICK(lengths, s);
    cells = cells < rows ? rows : cells;
    ops_case c = {.geom = {.n_heads = ratio < 8 ? 2 : 1, .dk = v->dk, .dv = v->dv, .type_k = v->type_k,
                           .type_v = v->type_v, .k_scale = 0.037f, .v_scale = 1.7f, .tile_cells = tile},
                  .ratio = ratio, .mask = mask_of(rng(s), tile), .softcap = rng(s) % 3 ? 0 : 3.0f,
                  .has_sinks = rng(s) % 2, .n_entries = 1, .cells = {cells}, .rows = {rows},
                  .first = rng(s) % 2 ? (uint32_t)(rng(s) % tile) : 0, .pos0 = (int64_t)(rng(s) % 50),
                  .seed = rng(s)};
    c.scale = rng(s) % 2 ? 1.0f : 1.0f / sqrtf((float)v->dk);
    return c;
}

static ops_cut cut_of(bool prefill, uint64_t *s)
{
    static const uint32_t runs[] = {0, 1, 2, 3, 4, 10};
    const ops_cut cut = {.prefill = prefill, .rows_per_item = (uint32_t)(rng(s) % 20),
                         .run_log2 = PICK(runs, s), .leaves_per_step = (uint32_t)(rng(s) % 4),
                         .two_merges = rng(s) % 2};
    return cut;
}

/* ------------------------------------------------ plain code, same precision */

/* The rounding that a plane's values get in fragments. */
static float as_fragment(rkv_type type, float x)
{
    return rkvi_type_is_quantised(type) ? rkvi_f16_to_f32(rkvi_f32_to_f16(x)) : x;
}

typedef struct plain_out {
    float o[RKVI_HEAD_DIM_MAX], lse;
} plain_out;

static void plain_16(const ops_case *c, uint32_t row, uint32_t head, bool prefill, plain_out *out)
{
    const uint32_t n = c->cells[0], dv = c->geom.dv;
    const float *q = c->q + ((size_t)row * c->q_heads + head) * c->geom.dk;
    float *f = case_alloc(n, sizeof *f), m = -INFINITY, l = 0, k[RKVI_HEAD_DIM_MAX], v[RKVI_HEAD_DIM_MAX];
    memset(out->o, 0, sizeof out->o);
    for (uint32_t x = 0; x < n; x++) {
        f[x] = -INFINITY;
        if (!case_sees(c, &c->row[row], c->pos0 + x))
            continue;
        float dot = 0;
        case_cell(c, 0, x, head / c->ratio, k, v);
        for (uint32_t i = 0; i < c->geom.dk; i++)
            dot += q[i] * (prefill ? as_fragment(c->geom.type_k, k[i]) : k[i]);
        f[x] = dot * c->scale;
        if (c->softcap != 0)
            f[x] = c->softcap * tanhf(f[x] / c->softcap);
        m = f[x] > m ? f[x] : m;
    }
    const float sink = c->has_sinks ? c->sinks[head] : -INFINITY;
    const float top = sink > m ? sink : m;
    for (uint32_t x = 0; x < n; x++) {
        if (f[x] == -INFINITY)
            continue;
        const float p = expf(f[x] - m), p16 = round_for(c->geom.type_v, p);
        l += p;
        case_cell(c, 0, x, head / c->ratio, k, v);
        for (uint32_t i = 0; i < dv; i++)
            out->o[i] += p16 * as_fragment(c->geom.type_v, v[i]);
    }
    const float share = m == -INFINITY ? 0 : expf(m - top);
    l = l * share + (c->has_sinks ? expf(sink - top) : 0);
    for (uint32_t i = 0; i < dv && l > 0; i++)
        out->o[i] = out->o[i] * share / l;
    out->lse = l > 0 ? top + logf(l) : -INFINITY;
    free(f);
}

/* ----------------------------------------------------------------- measuring */

/* Errors of ours and of plain code, and the size of the right values. */
typedef struct tally {
    double ours2, plain2, value2, ours, plain, value, score;
    uint64_t n, bad; /* bad: not finite where it should be, or the other way round */
} tally;

static void count(tally *t, double ours, double plain, double want, double score)
{
    if (!isfinite(want) || !isfinite(ours)) {
        t->bad += !(ours == want);
        return;
    }
    const double a = fabs(ours - want), b = fabs(plain - want);
    t->ours2 += a * a;
    t->plain2 += b * b;
    t->value2 += want * want;
    t->ours = fmax(t->ours, a);
    t->plain = fmax(t->plain, b);
    t->value = fmax(t->value, fabs(want));
    t->score = fmax(t->score, score);
    t->n++;
}

/* `last`: a last place of f32 scores and what comes from them. */
static bool good(const tally *t, double last)
{
    const double n = (double)(t->n ? t->n : 1);
    return t->bad == 0 && sqrt(t->ours2 / n) <= 2 * sqrt(t->plain2 / n) + last * sqrt(t->value2 / n) &&
           t->ours <= 3 * t->plain + last * t->value * (1 + t->score);
}

typedef struct tallies {
    tally out, lse;
} tallies;

/* At most `samples` pairs of row and head, the first and the last among them. */
static uint64_t measure(const ops_case *c, const ops_cut *cut, const ops_out *o, tallies *t, uint32_t samples)
{
    const uint64_t all = (uint64_t)c->n_rows * c->q_heads, step = all > samples ? all / samples : 1;
    static ops_expect want;
    plain_out plain;
    for (uint64_t i = 0; i < all; i += step) {
        const uint64_t at = i + step >= all ? all - 1 : i;
        const uint32_t row = (uint32_t)(at / c->q_heads), head = (uint32_t)(at % c->q_heads);
        case_expect(c, 0, row, head, &want);
        plain_16(c, row, head, cut->prefill, &plain);
        count(&t->lse, (double)o->lse[row * o->lse_stride + head], (double)plain.lse, want.lse,
              want.top_score / (1 + fabs(want.lse)));
        for (uint32_t d = 0; d < c->geom.dv; d++)
            count(&t->out, (double)out_at(o, row, head, d), (double)plain.o[d], want.o[d], want.top_score);
    }
    return all < samples ? all : samples;
}

/* ----------------------------------------------------------------- diagnosis */

static void describe(const gpu_variant *v, const ops_case *c, const ops_cut *cut, const tallies *t)
{
    const double n = (double)(t->out.n ? t->out.n : 1);
    printf("FAILED %s %s: heads %u/%u tile %u leaf %u cells %u+%u pos0 %lld rows %u mask %u/%lld cap %g sinks %d scale "
           "%.3g | rows/item %u run 2^%u leaves/step %u two merges %d | seed %#llx\n"
           "  out: error %.3g rms %.3g, plain %.3g rms %.3g, value %.3g, bad %llu of %llu; lse: %.3g rms %.3g, plain "
           "%.3g rms %.3g, bad %llu\n",
           v->name, cut->prefill ? "prefill" : "decode", c->q_heads, c->geom.n_heads, c->geom.tile_cells,
           c->geom.leaf_cells, c->first, c->cells[0], (long long)c->pos0, c->rows[0], c->mask.kind,
           (long long)c->mask.width, (double)c->softcap, c->has_sinks, (double)c->scale, cut->rows_per_item,
           cut->run_log2, cut->leaves_per_step, cut->two_merges, (unsigned long long)c->seed, t->out.ours,
           sqrt(t->out.ours2 / n), t->out.plain, sqrt(t->out.plain2 / n), t->out.value,
           (unsigned long long)t->out.bad, (unsigned long long)(t->out.n + t->out.bad), t->lse.ours,
           sqrt(t->lse.ours2 / (double)(t->lse.n ? t->lse.n : 1)), t->lse.plain,
           sqrt(t->lse.plain2 / (double)(t->lse.n ? t->lse.n : 1)), (unsigned long long)t->lse.bad);
}

static bool near(double a, double b, double scale)
{
    return fabs(a - b) <= 0.02 * scale + 1e-30 || a == b;
}

/* Which of the dims are wrong, as ranges: "0-15 40 48-63". */
static void print_wrong_dims(const float *got, const float *want, uint32_t n, double scale)
{
    printf("    wrong dims:");
    for (uint32_t i = 0, shown = 0; i < n && shown < 12; i++) {
        if (near((double)got[i], (double)want[i], scale))
            continue;
        uint32_t end = i;
        while (end + 1 < n && !near((double)got[end + 1], (double)want[end + 1], scale))
            end++;
        printf(end > i ? " %u-%u" : " %u", i, end);
        shown++;
        i = end;
    }
    printf("\n");
}

/* Does got equal another head's or row's partial of the same item? */
static void print_likeness(const ops_case *c, const float *ref, const rkvi_item *it, uint64_t slot, uint32_t head,
                           const float *got)
{
    const uint32_t dv = c->geom.dv;
    const size_t slot_floats = (size_t)c->q_heads * (dv + 2);
    (void)slot;
    for (uint32_t r = 0; r < it->n_rows; r++)
        for (uint32_t h = 0; h < c->q_heads; h++) {
            const float *o = ref + (it->slot + r) * slot_floats + (size_t)h * dv;
            uint32_t same = 0;
            for (uint32_t i = 0; i < dv; i++)
                same += near((double)got[i], (double)o[i], 1e-3 + fabs((double)o[i]));
            if (same > dv * 3 / 4)
                printf("    looks like row %u head %u of the same item (wanted head %u)\n", it->row + r, h, head);
        }
}

/* The first row and head of an item whose partial differs from the reference's
 * (which takes m over the leaf, as the kernels do, but for rounding). */
static bool explain_item(const ops_case *c, const float *got, const float *ref, const rkvi_item *it)
{
    const uint32_t dv = c->geom.dv;
    const size_t slot_floats = (size_t)c->q_heads * (dv + 2);
    for (uint32_t r = 0; r < it->n_rows; r++)
        for (uint32_t h = 0; h < c->q_heads; h++) {
            const float *a = got + (it->slot + r) * slot_floats, *b = ref + (it->slot + r) * slot_floats;
            const float *ma = a + (size_t)c->q_heads * dv + h, *mb = b + (size_t)c->q_heads * dv + h;
            const float la = ma[c->q_heads], lb = mb[c->q_heads];
            const float *oa = a + (size_t)h * dv, *ob = b + (size_t)h * dv;
            double top = 1e-3;
            for (uint32_t i = 0; i < dv; i++)
                top = fmax(top, fabs((double)ob[i]));
            bool o_good = true;
            for (uint32_t i = 0; i < dv; i++)
                o_good = o_good && near((double)oa[i], (double)ob[i], top);
            if (near((double)*ma, (double)*mb, 1 + fabs((double)*mb)) && near((double)la, (double)lb, (double)lb) &&
                o_good)
                continue;
            printf("    leaves [%llu, %llu) row %u head %u: m %.6g want %.6g, l %.6g want %.6g, o[0..3] %.5g %.5g %.5g "
                   "%.5g want %.5g %.5g %.5g %.5g\n",
                   (unsigned long long)it->leaf0, (unsigned long long)it->leaf1, it->row + r, h, (double)*ma,
                   (double)*mb, (double)la, (double)lb, (double)oa[0], (double)oa[1], (double)oa[2], (double)oa[3],
                   (double)ob[0], (double)ob[1], (double)ob[2], (double)ob[3]);
            for (uint64_t leaf = it->leaf0; leaf < it->leaf1 && leaf < it->leaf0 + 2; leaf++) {
                const rkvi_span *s = &c->spans[c->entries[it->entry].span0 + leaf];
                printf("    leaf %llu: cells %u+%u of tile %u, pos %lld\n", (unsigned long long)leaf, s->first,
                       s->count, s->tile, (long long)s->pos);
            }
            if (*mb == -INFINITY || *ma == -INFINITY)
                printf("    looks like masked cells: one side is empty\n");
            else if (*ma > *mb + 1e-2f || la > lb * 1.02f)
                printf("    looks like cells seen too many, or wrong scores\n");
            else if (la < lb * 0.98f)
                printf("    looks like cells seen too few\n");
            else if (!o_good)
                printf("    scores are right: P * V is wrong\n");
            print_wrong_dims(oa, ob, dv, top);
            print_likeness(c, ref, it, it->slot + r, h, oa);
            return true;
        }
    return false;
}

/* The same case, leaf by leaf (prefill: all leaves at once), partial by partial. */
static void explain(const ops_case *c, const ops_cut *failed)
{
    const ops_cut cut = {.prefill = failed->prefill, .rows_per_item = failed->rows_per_item};
    ops_work w = work_make(c, &cut);
    float *got = gpu_partials(c, &cut, &w, RKV_TYPE_F32);
    const size_t floats = w.n_slots * c->q_heads * (c->geom.dv + 2);
    float *ref = case_alloc(floats, sizeof *ref);
    const rkvi_attend_args a = {.geom = c->geom, .entries = c->entries, .rows = c->row, .spans = c->spans,
                                .bases = c->bases, .items = w.items, .partials = ref,
                                .q = row_major(c->q, c->q_heads, c->geom.dk), .mask = c->mask,
                                .q_heads = c->q_heads, .scale = c->scale, .softcap = c->softcap};
    for (uint64_t i = 0; i < w.n_items * c->geom.n_heads; i++)
        (cut.prefill ? rkvi_ref_prefill : rkvi_ref_decode)(&a, i);
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < w.n_items && wrong < 2; i++)
        wrong += explain_item(c, got, ref, &w.items[i]);
    if (!wrong)
        printf("    each leaf alone is right within 2 %%: the tree, the cut of the state, or precision\n");
    free(got);
    free(ref);
    work_free(&w);
}

/* --------------------------------------------------------------------- cases */

static double worst_ratio;

/* Small cases are drawn again until there are enough errors to compare. */
static bool check_case(const gpu_variant *v, const ops_case *first, const ops_cut *cut)
{
    ops_case again = *first, c;
    tallies t;
    memset(&t, 0, sizeof t);
    for (uint64_t n = 0; n < 40; again.seed++) {
        c = again;
        const rkv_type q_types[] = {RKV_TYPE_F32, RKV_TYPE_F16, RKV_TYPE_BF16};
        rkvi_ops ref;
        rkvi_ops_ref(&ref);
        case_make(&c);
        const rkv_type q_type = c.geom.type_k == RKV_TYPE_BF16 ? q_types[c.seed % 2 * 2] : q_types[c.seed % 2];
        case_round_q(&c);
        case_store(&c, &ref);
        ops_out o = out_make(&c, RKV_TYPE_F32, (int)(c.seed / 7 % 3));
        gpu_attend(&c, cut, q_type, &o);
        out_check_canaries(&o);
        n += measure(&c, cut, &o, &t, 24);
        out_free(&o);
        const bool enough = n >= 40 || t.out.bad;
        if (enough && !(good(&t.out, 0x1p-20) && good(&t.lse, 0x1p-20))) {
            describe(v, &c, cut, &t);
            explain(&c, cut);
            case_free(&c);
            return false;
        }
        case_free(&c);
    }
    if (t.out.plain2 > 0)
        worst_ratio = fmax(worst_ratio, sqrt(t.out.ours2 / t.out.plain2));
    return true;
}

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 0) : otherwise;
}

static bool regime_wanted(bool prefill)
{
    const char *text = getenv("ROLLKV_TEST_REGIME");
    return !text || !strcmp(text, prefill ? "prefill" : "decode");
}

static uint32_t check_variant(const gpu_variant *v, uint32_t *cases)
{
    const long draws = number_of("ROLLKV_TEST_DRAWS", 1), only = number_of("ROLLKV_TEST_RATIO", 0);
    const long most = number_of("ROLLKV_TEST_FAILURES", 3);
    uint64_t s = seed;
    uint32_t failures[2] = {0, 0};
    for (long d = 0; d < draws; d++)
        for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++)
            for (int prefill = 0; prefill < 2; prefill++) {
                const ops_case c = case_of(v, ratios[i], prefill, &s);
                const ops_cut cut = cut_of(prefill, &s);
                if ((only && (long)ratios[i] != only) || !regime_wanted(prefill) ||
                    failures[prefill] >= (uint32_t)most || gpu_leaves_out())
                    continue;
                failures[prefill] += !check_case(v, &c, &cut);
                ++*cases;
            }
    return failures[0] + failures[1];
}

static void test_accuracy(void **state)
{
    (void)state;
    uint32_t cases = 0, failures = 0, variants = 0;
    for (size_t i = 0; i < N_GPU_VARIANTS; i++) {
        if (!variant_wanted(&gpu_variants[i]))
            continue;
        worst_ratio = 0;
        const uint32_t failed = check_variant(&gpu_variants[i], &cases);
        printf("%-20s %s, largest rms error over plain's %.2f\n", gpu_variants[i].name, failed ? "FAILED" : "good",
               worst_ratio);
        fflush(stdout);
        failures += failed;
        variants++;
        seed = seed * 0x9E3779B97F4A7C15u | 1;
    }
    printf("%u variants, %u cases, %u failed\n", variants, cases, failures);
    assert_true(variants > 0);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accuracy)};
    gpu_or_skip();
    seed = test_seed();
    heap_open();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
