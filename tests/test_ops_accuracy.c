/* Attention of every kernel set against f64 on the same stored values: the
 * error is at most twice that of plain f32 code (the worse of two orders), root
 * mean square and maximum, plus what one rounding of the largest score makes:
 * where few cells are seen, plain code may be lucky in all of them.
 * Pairwise combinations of the axes; the full product with ROLLKV_TEST_FULL.
 */
#include "ops_case.h"

enum { AX_DIM, AX_RATIO, AX_K, AX_V, AX_MASK, AX_CAP, AX_SINK, AX_ROWS, AX_LENGTH, AX_TILE,
       AX_REGIME, AX_PEAK, AX_COUNT };

static const uint32_t dims[][2] = {{64, 64},   {80, 80},   {96, 96},   {112, 112}, {128, 128},
                                   {192, 128}, {256, 256}, {512, 512}, {8, 24}};
static const uint32_t ratios[] = {1, 2, 3, 5, 7, 8, 16, 32, 71};
static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0,
                                 RKV_TYPE_Q4_0};
static const uint32_t tiles[] = {16, 32, 256};
static const uint32_t sizes[AX_COUNT] = {9, 9, 5, 5, 6, 2, 2, 18, 9, 3, 2, 2};

/* Lengths around tile edges, as tiles and a rest. */
static uint32_t length_of(uint32_t which, uint32_t tile)
{
    const uint32_t all[] = {
        1,            tile - 1,     tile,         tile + 1,           2 * tile - 1,
        2 * tile + 1, 3 * tile + 2, 5 * tile - 1, 4 * tile + tile / 2};
    return all[which];
}

static rkvi_site_mask mask_of(uint32_t which, uint32_t tile)
{
    const rkvi_site_mask all[] = {{RKV_MASK_CAUSAL, 0},           {RKV_MASK_SLIDING, 1},
                                  {RKV_MASK_SLIDING, tile / 2 + 3}, {RKV_MASK_SLIDING, tile},
                                  {RKV_MASK_CHUNKED, tile + 5},   {RKV_MASK_CHUNKED, 2 * tile}};
    return all[which];
}

static rkv_type type_of(uint32_t which, uint32_t dim)
{
    return rkvi_type_is_quantised(types[which]) && dim % RKVI_BLOCK != 0 ? RKV_TYPE_F16
                                                                         : types[which];
}

static ops_case case_of(const uint32_t *x, uint64_t seed)
{
    uint32_t tile = tiles[x[AX_TILE]];
    const uint32_t rows = x[AX_ROWS] == 17 ? 300 : x[AX_ROWS] + 1;
    if (rows * ratios[x[AX_RATIO]] * dims[x[AX_DIM]][0] > 20000 && tile > 32)
        tile = 32; /* keeps the time of one case down */
    uint32_t cells = length_of(x[AX_LENGTH], tile);
    cells = cells < rows ? rows : cells;
    ops_case c = {.geom = {.n_heads = ratios[x[AX_RATIO]] < 8 ? 2 : 1,
                           .dk = dims[x[AX_DIM]][0],
                           .dv = dims[x[AX_DIM]][1],
                           .type_k = type_of(x[AX_K], dims[x[AX_DIM]][0]),
                           .type_v = type_of(x[AX_V], dims[x[AX_DIM]][1]),
                           .k_scale = 0.037f,
                           .v_scale = 1.7f,
                           .tile_cells = tile},
                  .ratio = ratios[x[AX_RATIO]],
                  .mask = mask_of(x[AX_MASK], tile),
                  .softcap = x[AX_CAP] ? 3.0f : 0,
                  .has_sinks = x[AX_SINK],
                  .n_entries = 1,
                  .cells = {cells},
                  .rows = {rows},
                  .first = (uint32_t)(seed % 2 ? seed / 2 % tile : 0),
                  .pos0 = (int64_t)(seed / 64 % 50),
                  .seed = seed};
    c.scale = x[AX_PEAK] ? 1.0f : 1.0f / sqrtf((float)c.geom.dk);
    return c;
}

/* Errors of ours and of plain code, and the size of the right values. */
typedef struct tally {
    double ours2, plain2, value2; /* sums of squares */
    double ours, plain, value;    /* maxima */
    double score;                 /* largest */
    uint64_t n;
} tally;

static void count(tally *t, double ours, const float plain[2], double want, double score)
{
    if (!isfinite(want)) { /* the lse of a row that sees nothing */
        assert_true(ours == want);
        return;
    }
    const double a = fabs(ours - want);
    const double b = fmax(fabs((double)plain[0] - want), fabs((double)plain[1] - want));
    assert_true(isfinite(a));
    t->ours2 += a * a;
    t->plain2 += b * b;
    t->value2 += want * want;
    t->ours = fmax(t->ours, a);
    t->plain = fmax(t->plain, b);
    t->value = fmax(t->value, fabs(want));
    t->score = fmax(t->score, score);
    t->n++;
}

static bool good(const tally *t)
{
    const double n = (double)(t->n ? t->n : 1);
    const double rounding = 0x1p-24 * (1 + t->score);
    return sqrt(t->ours2 / n) <= 2 * sqrt(t->plain2 / n) + rounding / 2 * sqrt(t->value2 / n) &&
           t->ours <= 2 * t->plain + rounding * t->value;
}

typedef struct tallies {
    tally out, lse;
} tallies;

/* At most `samples` pairs of row and head, the first and the last among them. */
static uint64_t measure(const ops_case *c, const ops_out *outs, uint32_t n_sets, tallies *t,
                        uint32_t samples)
{
    const uint64_t all = (uint64_t)c->n_rows * c->q_heads;
    const uint64_t step = all > samples ? all / samples : 1;
    static ops_expect want;
    for (uint64_t i = 0; i < all; i += step) {
        const uint64_t at = i + step >= all ? all - 1 : i;
        const uint32_t row = (uint32_t)(at / c->q_heads), head = (uint32_t)(at % c->q_heads);
        case_expect(c, 0, row, head, &want);
        for (uint32_t s = 0; s < n_sets; s++) {
            count(&t[s].lse, (double)outs[s].lse[row * outs[s].lse_stride + head],
                  want.plain_lse, want.lse, want.top_score / (1 + fabs(want.lse)));
            for (uint32_t d = 0; d < c->geom.dv; d++)
                count(&t[s].out, (double)out_at(&outs[s], row, head, d),
                      (float[]){want.plain[0][d], want.plain[1][d]}, want.o[d], want.top_score);
        }
    }
    return all < samples ? all : samples;
}

static void describe(const ops_case *c, const ops_cut *cut, const char *set, const tallies *t)
{
    const double n = (double)t->out.n;
    printf("%s: dk %u dv %u heads %u/%u k %s v %s tile %u cells %u+%u rows %u mask %u/%lld cap %g "
           "sinks %d %s: error %.3g rms %.3g, plain %.3g rms %.3g; lse %.3g, plain %.3g\n",
           set, c->geom.dk, c->geom.dv, c->q_heads, c->geom.n_heads, rkvi_type_name(c->geom.type_k),
           rkvi_type_name(c->geom.type_v), c->geom.tile_cells, c->first, c->cells[0], c->rows[0],
           c->mask.kind, (long long)c->mask.width, (double)c->softcap, c->has_sinks,
           cut->prefill ? "prefill" : "decode", t->out.ours, sqrt(t->out.ours2 / n), t->out.plain,
           sqrt(t->out.plain2 / n), t->lse.ours, t->lse.plain);
}

static double worst_ratio[KERNEL_SETS];

/* One draw of the case's values. */
static uint64_t run_case(ops_case c, const ops_cut *cut, const rkvi_ops *sets, uint32_t n_sets,
                         tallies *t)
{
    ops_out outs[KERNEL_SETS];
    case_make(&c);
    case_store(&c, &sets[0]);
    for (uint32_t s = 0; s < n_sets; s++) {
        outs[s] = out_make(&c, RKV_TYPE_F32, (int)(c.seed / 7 % 3));
        case_attend(&c, &sets[s], cut, &outs[s]);
        out_check_canaries(&outs[s]);
    }
    const uint64_t n = measure(&c, outs, n_sets, t, 40);
    for (uint32_t s = 0; s < n_sets; s++)
        out_free(&outs[s]);
    case_free(&c);
    return n;
}

/* Small cases are drawn again until there are enough errors to compare. */
static void check_case(const ops_case *c, const ops_cut *cut)
{
    rkvi_ops sets[KERNEL_SETS];
    tallies t[KERNEL_SETS];
    const uint32_t n_sets = kernel_sets(sets);
    ops_case again = *c;
    memset(t, 0, sizeof t);
    for (uint64_t n = 0; n < 40; again.seed++)
        n += run_case(again, cut, sets, n_sets, t);
    for (uint32_t s = 0; s < n_sets; s++) {
        if (!good(&t[s].out) || !good(&t[s].lse)) {
            describe(c, cut, sets[s].name, &t[s]);
            fail();
        }
        if (t[s].out.plain2 > 0)
            worst_ratio[s] = fmax(worst_ratio[s], sqrt(t[s].out.ours2 / t[s].out.plain2));
    }
}

/* Pairs of values of two axes that were seen together. */
#define MOST 18
static bool seen[AX_COUNT][MOST][AX_COUNT][MOST];

static uint32_t new_pairs(const uint32_t *x, bool mark)
{
    uint32_t n = 0;
    for (int a = 0; a < AX_COUNT; a++)
        for (int b = a + 1; b < AX_COUNT; b++) {
            n += !seen[a][x[a]][b][x[b]];
            if (mark)
                seen[a][x[a]][b][x[b]] = true;
        }
    return n;
}

static bool unseen_pair(uint32_t *x)
{
    for (int a = 0; a < AX_COUNT; a++)
        for (uint32_t i = 0; i < sizes[a]; i++)
            for (int b = a + 1; b < AX_COUNT; b++)
                for (uint32_t j = 0; j < sizes[b]; j++)
                    if (!seen[a][i][b][j]) {
                        x[a] = i;
                        x[b] = j;
                        return true;
                    }
    return false;
}

/* The next case: an unseen pair, the rest drawn to cover the most other pairs. */
static bool draw(uint32_t *x, uint64_t *s)
{
    uint32_t best = 0, trial[AX_COUNT];
    for (int t = 0; t < 40; t++) {
        for (int a = 0; a < AX_COUNT; a++)
            trial[a] = (uint32_t)(rng(s) % sizes[a]);
        if (!unseen_pair(trial))
            return false;
        const uint32_t n = new_pairs(trial, false);
        if (n > best) {
            best = n;
            memcpy(x, trial, sizeof trial);
        }
    }
    return true;
}

static ops_cut cut_of(const uint32_t *x, uint64_t seed)
{
    const ops_cut cut = {.prefill = x[AX_REGIME] || x[AX_ROWS] >= 16,
                         .rows_per_item = (uint32_t)(seed / 3 % 20),
                         .run_log2 = (uint32_t)(seed / 5 % 4),
                         .leaves_per_step = (uint32_t)(seed / 11 % 3),
                         .two_merges = seed & 1};
    return cut;
}

static void test_pairwise(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    uint32_t x[AX_COUNT], n = 0;
    while (draw(x, &s)) {
        const uint64_t seed = rng(&s);
        ops_case c = case_of(x, seed);
        const ops_cut cut = cut_of(x, seed);
        new_pairs(x, true);
        check_case(&c, &cut);
        n++;
    }
    printf("%u cases; largest rms error over plain's: ref %.2f, then %.2f %.2f %.2f\n", n, worst_ratio[0],
           worst_ratio[1], worst_ratio[2], worst_ratio[3]);
    assert_true(n >= 162); /* rows x ratios alone */
}

/* Every combination of dims, ratios, types, masks and rows, some 200,000, the
 * other axes drawn: an hour or two.  ROLLKV_TEST_FULL=N takes every Nth one. */
static void test_full(void **state)
{
    (void)state;
    static const int product[] = {AX_DIM, AX_RATIO, AX_K, AX_V, AX_MASK, AX_ROWS};
    const char *text = getenv("ROLLKV_TEST_FULL");
    if (!text || atoi(text) <= 0)
        skip();
    uint64_t s = test_seed(), all = 1;
    for (int a = 0; a < 6; a++)
        all *= sizes[product[a]];
    for (uint64_t i = 0; i < all; i += (uint64_t)atoi(text)) {
        uint32_t x[AX_COUNT];
        uint64_t rest = i;
        for (int a = 0; a < AX_COUNT; a++)
            x[a] = (uint32_t)(rng(&s) % sizes[a]);
        for (int a = 0; a < 6; a++) {
            x[product[a]] = (uint32_t)(rest % sizes[product[a]]);
            rest /= sizes[product[a]];
        }
        const uint64_t seed = rng(&s);
        ops_case c = case_of(x, seed);
        const ops_cut cut = cut_of(x, seed);
        check_case(&c, &cut);
    }
}

/* Scores of some 80, nearly all weight on few cells. */
static void test_large_scores(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 5; k++) {
        ops_case c = {.geom = {.n_heads = 1, .dk = 128, .dv = 128, .type_k = types[k],
                               .type_v = types[4 - k], .tile_cells = 64},
                      .ratio = 5, .scale = 0.5f, .amplitude = 4, .n_entries = 1, .cells = {333},
                      .rows = {3}, .seed = 77 + k};
        const ops_cut cut = {.run_log2 = 1};
        check_case(&c, &cut);
    }
}

/* Quantised types with every number of blocks of a row that kernels treat apart,
 * and few or many columns. */
static void test_quantised_dims(void **state)
{
    (void)state;
    static const uint32_t all[] = {32, 64, 96, 128, 160, 256, 288, 512, 544, 1024};
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t d = all[i % 10], e = all[(i * 3 + i / 10) % 10];
        ops_case c = {.geom = {.n_heads = 1, .dk = d, .dv = e, .type_k = types[3 + i / 10 % 2],
                               .type_v = types[3 + i / 20], .tile_cells = i % 3 ? 64 : 256},
                      .ratio = 1 + i % 9, .scale = 1 / sqrtf((float)d), .n_entries = 1, .cells = {270 + i},
                      .rows = {1 + i % 4}, .first = i % 5, .seed = 900 + i};
        const ops_cut cut = {.prefill = i % 7 == 6, .run_log2 = i % 3};
        check_case(&c, &cut);
    }
}

/* Each mask with its edges at every cell of a tile, and every length. */
static void test_every_phase(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 7, 16, 19};
    for (uint32_t i = 0; i < 9; i++)
        for (uint32_t cells = 3; cells <= 36; cells++) {
            ops_case c = {.geom = {.n_heads = 1, .dk = 40, .dv = 24, .type_k = RKV_TYPE_F16,
                                   .type_v = RKV_TYPE_BF16, .tile_cells = 16},
                          .ratio = 3, .scale = 0.16f, .n_entries = 1, .cells = {cells},
                          .rows = {3}, .first = i == 3 ? 5 : 0, .pos0 = i == 5 ? 11 : 0,
                          .seed = cells};
            if (i > 0)
                c.mask = (rkvi_site_mask){i % 2 ? RKV_MASK_SLIDING : RKV_MASK_CHUNKED,
                                          widths[(i - 1) / 2]};
            const ops_cut cut = {.prefill = cells % 2};
            check_case(&c, &cut);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairwise),
        cmocka_unit_test(test_every_phase),
        cmocka_unit_test(test_quantised_dims),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_large_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
