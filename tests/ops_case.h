/* ops_case.h: a made-up site for the kernel tests: tiles in memory, spans,
 * entries and rows; the launches of a step as an executor would run them; and
 * the same attention in f64 and in plain f32 C.
 *
 * Tiles are filled with 0xFF (NaN in f16, bf16 and fp8) before cells are
 * stored, and lie shuffled in memory. */
#ifndef OPS_CASE_H
#define OPS_CASE_H

#include "ops_rows.h"
#include "rkvi_config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

#define CASE_ENTRIES 3
#define CANARY 0xA5

typedef struct ops_case {
    /* what the test sets */
    rkvi_geom geom; /* n_heads .. tile_cells */
    uint32_t ratio;
    rkvi_site_mask mask;
    float scale, softcap;
    bool has_sinks;
    float amplitude; /* of q and k; 0 means 1 */
    uint32_t n_entries;
    uint32_t cells[CASE_ENTRIES], rows[CASE_ENTRIES];
    uint32_t first; /* tile cell of each entry's first cell */
    int64_t pos0;   /* its position */
    uint64_t seed;
    /* what case_make fills */
    uint32_t q_heads, n_rows, n_cells, n_tiles;
    uint64_t n_spans;
    rkvi_entry entries[CASE_ENTRIES];
    rkvi_row *row;
    rkvi_span *spans;
    uint64_t *bases;
    uint8_t *tiles;
    float *q, *k, *v; /* row-major sources, f32 */
    float *sinks;
    rkvi_new_cell *new_cells;
} ops_case;

static inline uint64_t rng(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s * 0x2545F4914F6CDD1Du >> 11;
}

/* About normal, variance 1. */
static inline float rng_normal(uint64_t *s)
{
    double x = -6;
    for (int i = 0; i < 12; i++)
        x += (double)(rng(s) & 0xffffff) / 0x1p24;
    return (float)x;
}

static inline uint64_t test_seed(void)
{
    const char *text = getenv("ROLLKV_TEST_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : 20260;
    printf("seed %llu (ROLLKV_TEST_SEED)\n", (unsigned long long)seed);
    return seed * 0x9E3779B97F4A7C15u | 1;
}

static inline void *case_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    assert_non_null(p);
    return p;
}

/* The kernel sets that this build and CPU have; returns how many. */
#define KERNEL_SETS 4
static inline uint32_t kernel_sets(rkvi_ops sets[KERNEL_SETS])
{
    uint32_t n = 1;
    for (int i = 0; i < KERNEL_SETS; i++)
        rkvi_ops_ref(&sets[i]);
#if RKVI_HAVE_AVX2
    n += rkvi_ops_avx2(&sets[n]);
#endif
#if RKVI_HAVE_AVX512
    n += rkvi_ops_avx512(&sets[n]);
#endif
#if RKVI_HAVE_AVX512VNNI
    n += rkvi_ops_avx512vnni(&sets[n]);
#endif
    return n;
}

/* Runs of at most L cells of tiles of T, the first one at tile cell `first`. */
static inline void case_spans(ops_case *c, uint32_t e, uint32_t *tile)
{
    const uint32_t t_cells = c->geom.tile_cells, l_cells = c->geom.leaf_cells;
    rkvi_entry *entry = &c->entries[e];
    entry->span0 = c->n_spans;
    entry->base0 = *tile;
    for (uint32_t i = 0; i < c->cells[e];) {
        const uint32_t at = c->first + i, in_tile = at % t_cells;
        uint32_t n = l_cells - in_tile % l_cells;
        n = n < c->cells[e] - i ? n : c->cells[e] - i;
        c->spans[c->n_spans++] = (rkvi_span){.pos = c->pos0 + i,
                                             .tile = at / t_cells,
                                             .first = (uint16_t)in_tile,
                                             .count = (uint16_t)n};
        for (uint32_t x = 0; x < n; x++, i++)
            c->new_cells[c->n_cells + i] = (rkvi_new_cell){
                .base = *tile + at / t_cells, .cell = in_tile + x, .row = c->n_cells + i};
    }
    entry->n_spans = c->n_spans - entry->span0;
    c->n_cells += c->cells[e];
    *tile += (c->first + c->cells[e] + t_cells - 1) / t_cells;
}

static inline void case_sizes(const ops_case *c, size_t *cells, size_t *rows, size_t *tiles)
{
    *cells = *rows = *tiles = 0;
    for (uint32_t e = 0; e < c->n_entries; e++) {
        *cells += c->cells[e];
        *rows += c->rows[e];
        *tiles += (c->first + c->cells[e] + c->geom.tile_cells - 1) / c->geom.tile_cells;
    }
}

static inline void case_values(ops_case *c)
{
    uint64_t s = c->seed | 1;
    const float a = c->amplitude != 0 ? c->amplitude : 1;
    const size_t heads = c->geom.n_heads;
    for (size_t i = 0; i < c->n_rows * (size_t)c->q_heads * c->geom.dk; i++)
        c->q[i] = a * rng_normal(&s);
    for (size_t i = 0; i < c->n_cells * heads * c->geom.dk; i++)
        c->k[i] = a * rng_normal(&s);
    for (size_t i = 0; i < c->n_cells * heads * c->geom.dv; i++)
        c->v[i] = rng_normal(&s);
    for (uint32_t h = 0; h < c->q_heads; h++)
        c->sinks[h] = rng_normal(&s);
}

static inline rkvi_tensor row_major(float *data, uint32_t heads, uint32_t dim)
{
    return (rkvi_tensor){.data = data,
                         .row_stride = (int64_t)heads * dim,
                         .head_stride = dim,
                         .type = RKV_TYPE_F32};
}

static inline void case_store(ops_case *c, const rkvi_ops *ops)
{
    const rkvi_store_args args = {.geom = c->geom,
                                  .bases = c->bases,
                                  .cells = c->new_cells,
                                  .k = row_major(c->k, c->geom.n_heads, c->geom.dk),
                                  .v = row_major(c->v, c->geom.n_heads, c->geom.dv)};
    memset(c->tiles, 0xff, c->n_tiles * c->geom.bytes);
    for (uint64_t i = 0; i < (uint64_t)c->n_cells * c->geom.n_heads; i++)
        ops->fn[RKVI_OP_STORE](&args, i);
}

/* Rows are the last positions of their entry, causal, all visible. */
static inline void case_make(ops_case *c)
{
    size_t cells, rows, tiles;
    uint32_t tile = 0;
    if (c->geom.k_scale == 0)
        c->geom.k_scale = c->geom.v_scale = 1;
    assert_int_equal(rkvi_geom_init(&c->geom), RKV_OK);
    case_sizes(c, &cells, &rows, &tiles);
    c->q_heads = c->ratio * c->geom.n_heads;
    c->n_tiles = (uint32_t)tiles;
    c->row = case_alloc(rows, sizeof *c->row);
    c->spans = case_alloc(cells, sizeof *c->spans);
    c->new_cells = case_alloc(cells, sizeof *c->new_cells);
    c->bases = case_alloc(tiles, sizeof *c->bases);
    c->q = case_alloc(rows * c->q_heads * c->geom.dk, sizeof(float));
    c->k = case_alloc(cells * c->geom.n_heads * c->geom.dk, sizeof(float));
    c->v = case_alloc(cells * c->geom.n_heads * c->geom.dv, sizeof(float));
    c->sinks = case_alloc(c->q_heads, sizeof(float));
    c->tiles = aligned_alloc(256, tiles ? tiles * c->geom.bytes : 256);
    assert_non_null(c->tiles);
    for (size_t i = 0; i < tiles; i++) /* shuffled: 5 or 7 shares no factor with most counts */
        c->bases[i] = (uintptr_t)(c->tiles + (tiles - 1 - i) * c->geom.bytes);
    for (uint32_t e = 0; e < c->n_entries; e++) {
        case_spans(c, e, &tile);
        c->entries[e].row0 = c->n_rows;
        c->entries[e].n_rows = c->rows[e];
        for (uint32_t r = 0; r < c->rows[e]; r++)
            c->row[c->n_rows++] = (rkvi_row){
                .pos = c->pos0 + c->cells[e] - c->rows[e] + r, .from = 0, .to = INT64_MAX};
    }
    case_values(c);
}

static inline void case_free(ops_case *c)
{
    void *all[] = {c->row, c->spans, c->new_cells, c->bases, c->q, c->k, c->v, c->sinks, c->tiles};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* How the work of a launch is cut: nothing of it may change a bit. */
typedef struct ops_cut {
    bool prefill;
    uint32_t rows_per_item;   /* 0: all */
    uint32_t run_log2;        /* decode: leaves an item, as a power of two */
    uint32_t leaves_per_step; /* prefill: leaves a launch; 0: all */
    bool puts_out;            /* prefill: the last items write the output, no merge */
    bool two_merges;          /* decode: pairs of runs first, then the output */
    bool backwards;           /* items run from the last one to the first */
} ops_cut;

/* Output with strides and canaries. */
typedef struct ops_out {
    rkvi_tensor t;
    float *lse;
    int64_t lse_stride;
    size_t bytes;
    uint32_t rows, heads, dv;
} ops_out;

enum { OUT_PLAIN, OUT_PADDED, OUT_HEAD_MAJOR };

static inline ops_out out_make(const ops_case *c, rkv_type type, int layout)
{
    const uint32_t dv = c->geom.dv, heads = c->q_heads, rows = c->n_rows;
    ops_out o = {.t = {.type = type, .row_stride = (int64_t)heads * dv, .head_stride = dv},
                 .rows = rows, .heads = heads, .dv = dv, .lse_stride = heads};
    if (layout == OUT_PADDED) {
        o.t.head_stride = dv + 3;
        o.t.row_stride = (int64_t)heads * (dv + 3) + 17;
        o.lse_stride = heads + 2;
    } else if (layout == OUT_HEAD_MAJOR) {
        o.t.row_stride = dv;
        o.t.head_stride = (int64_t)(rows + 1) * dv;
    }
    const int64_t last = (rows - 1) * o.t.row_stride + (heads - 1) * o.t.head_stride + dv;
    o.bytes = ((size_t)last + 32) * rkvi_tensor_type_bytes(type);
    uint8_t *data = case_alloc(o.bytes, 1);
    memset(data, CANARY, o.bytes);
    o.t.data = data + 16 * rkvi_tensor_type_bytes(type);
    o.lse = case_alloc((size_t)o.lse_stride * rows, sizeof(float));
    memset(o.lse, CANARY, (size_t)o.lse_stride * rows * sizeof(float));
    return o;
}

static inline uint8_t *out_base(const ops_out *o)
{
    return (uint8_t *)o->t.data - 16 * rkvi_tensor_type_bytes(o->t.type);
}

static inline void out_free(ops_out *o)
{
    free(out_base(o));
    free(o->lse);
}

/* What no row and head owns still holds the canary. */
static inline void out_check_canaries(const ops_out *o)
{
    const size_t size = rkvi_tensor_type_bytes(o->t.type);
    uint8_t *owned = case_alloc(o->bytes, 1), *base = out_base(o);
    for (uint32_t r = 0; r < o->rows; r++)
        for (uint32_t h = 0; h < o->heads; h++) {
            const int64_t at = r * o->t.row_stride + h * o->t.head_stride + 16;
            memset(owned + (size_t)at * size, 1, o->dv * size);
        }
    for (size_t i = 0; i < o->bytes; i++)
        if (!owned[i])
            assert_int_equal(base[i], CANARY);
    for (uint32_t r = 0; r < o->rows; r++)
        for (int64_t h = o->heads; h < o->lse_stride; h++)
            assert_int_equal(*(uint8_t *)&o->lse[r * o->lse_stride + h], CANARY);
    free(owned);
}

static inline float out_at(const ops_out *o, uint32_t row, uint32_t head, uint32_t i)
{
    const int64_t at = row * o->t.row_stride + head * o->t.head_stride + i;
    return ((const float *)o->t.data)[at];
}

static inline void run_op(const rkvi_ops *ops, rkvi_op op, const void *args, uint64_t grid,
                          bool back)
{
    for (uint64_t i = 0; i < grid; i++)
        ops->fn[op](args, back ? grid - 1 - i : i);
}

/* Work lists of a case. */
typedef struct ops_work {
    rkvi_item *items;
    rkvi_merge_item *merges[2];
    rkvi_node *nodes;
    uint64_t n_items, n_nodes, n_merges[2], n_slots;
} ops_work;

static inline void work_add_runs(const ops_case *c, const ops_cut *cut, ops_work *w, rkvi_item row)
{
    const uint64_t n = c->entries[row.entry].n_spans, run = (uint64_t)1 << cut->run_log2;
    const uint64_t node0 = w->n_nodes;
    for (uint64_t leaf = 0; leaf < n; leaf += run) {
        row.leaf0 = leaf;
        row.leaf1 = leaf + run < n ? leaf + run : n;
        row.slot = w->n_slots;
        w->n_slots += row.n_rows;
        w->items[w->n_items++] = row;
        w->nodes[w->n_nodes++] = (rkvi_node){.leaf0 = leaf, .slot = row.slot};
    }
    uint64_t first = node0, count = w->n_nodes - node0;
    if (cut->two_merges) {
        first = w->n_nodes;
        for (uint64_t i = 0; i < count; i += 2) {
            const uint32_t two = i + 1 < count ? 2 : 1;
            w->merges[0][w->n_merges[0]++] = (rkvi_merge_item){row.entry, row.row, row.n_rows, two,
                                                              node0 + i, w->n_slots};
            w->nodes[w->n_nodes++] =
                (rkvi_node){.leaf0 = w->nodes[node0 + i].leaf0, .slot = w->n_slots};
            w->n_slots += row.n_rows;
        }
        count = w->n_nodes - first;
    }
    w->merges[1][w->n_merges[1]++] = (rkvi_merge_item){
        row.entry, row.row, row.n_rows, (uint32_t)count, first, RKVI_TO_OUT};
}

static inline void work_add_prefill(ops_work *w, rkvi_item row)
{
    row.slot = w->n_slots;
    w->n_slots += row.n_rows;
    w->items[w->n_items++] = row;
    w->merges[1][w->n_merges[1]++] = (rkvi_merge_item){row.entry, row.row, row.n_rows, 1,
                                                      w->n_nodes, RKVI_TO_OUT};
    w->nodes[w->n_nodes++] = (rkvi_node){.leaf0 = 0, .slot = row.slot};
}

static inline ops_work work_make(const ops_case *c, const ops_cut *cut)
{
    ops_work w = {0};
    const size_t room = (size_t)(c->n_rows + 1) * (c->n_spans + 2);
    w.items = case_alloc(room, sizeof *w.items);
    w.nodes = case_alloc(2 * room, sizeof *w.nodes);
    w.merges[0] = case_alloc(room, sizeof **w.merges);
    w.merges[1] = case_alloc(room, sizeof **w.merges);
    for (uint32_t e = 0; e < c->n_entries; e++)
        for (uint32_t r = 0; r < c->rows[e];) {
            uint32_t n = cut->rows_per_item ? cut->rows_per_item : c->rows[e];
            n = n < c->rows[e] - r ? n : c->rows[e] - r;
            const rkvi_item row = {.entry = e, .row = r, .n_rows = n};
            if (cut->prefill)
                work_add_prefill(&w, row);
            else
                work_add_runs(c, cut, &w, row);
            r += n;
        }
    return w;
}

/* Items put out themselves what they have, where the cut says so: the last one
 * of a block then, and that of one without leaves at its beginning. */
static inline uint32_t prefill_flags(const ops_cut *cut, uint64_t leaf, uint64_t step, uint64_t n_leaves)
{
    const bool is_last = leaf + step >= n_leaves && (leaf < n_leaves || leaf == 0);
    return (leaf == 0 ? RKVI_ITEM_FIRST : 0u) | (cut->puts_out && is_last ? RKVI_ITEM_LAST : 0u);
}

static inline void run_prefill(const ops_case *c, const rkvi_ops *ops, const ops_cut *cut,
                               const ops_work *w, rkvi_attend_args *args)
{
    uint64_t most = 0;
    for (uint32_t e = 0; e < c->n_entries; e++)
        most = c->entries[e].n_spans > most ? c->entries[e].n_spans : most;
    const uint64_t step = cut->leaves_per_step ? cut->leaves_per_step : most;
    for (uint64_t leaf = 0; leaf < most; leaf += step) {
        for (uint64_t i = 0; i < w->n_items; i++) {
            const uint64_t n = c->entries[w->items[i].entry].n_spans;
            w->items[i].leaf0 = leaf < n ? leaf : n;
            w->items[i].leaf1 = leaf + step < n ? leaf + step : n;
            w->items[i].flags = prefill_flags(cut, leaf, step, n);
        }
        run_op(ops, RKVI_OP_PREFILL, args, w->n_items * c->geom.n_heads, cut->backwards);
    }
}

/* Attention of all rows into `o`. */
static inline void case_attend(ops_case *c, const rkvi_ops *ops, const ops_cut *cut, ops_out *o)
{
    ops_work w = work_make(c, cut);
    const size_t floats = w.n_slots * c->q_heads * (c->geom.dv + 2);
    float *partials = case_alloc(floats + 16, sizeof *partials);
    memset(partials, 0xff, (floats + 16) * sizeof *partials);
    rkvi_attend_args args = {.geom = c->geom, .entries = c->entries, .rows = c->row,
                             .spans = c->spans, .bases = c->bases, .items = w.items,
                             .partials = partials, .q = row_major(c->q, c->q_heads, c->geom.dk),
                             .mask = c->mask, .q_heads = c->q_heads, .scale = c->scale,
                             .softcap = c->softcap,
                             .merge = {.out = o->t, .lse = o->lse, .lse_row_stride = o->lse_stride,
                                       .sinks = c->has_sinks ? c->sinks : NULL,
                                       .q_heads = c->q_heads, .dv = c->geom.dv}};
    if (cut->prefill)
        run_prefill(c, ops, cut, &w, &args);
    else
        run_op(ops, RKVI_OP_DECODE, &args, w.n_items * c->geom.n_heads, cut->backwards);
    for (int i = 0; i < 2 && !cut->puts_out; i++) {
        const rkvi_merge_args merge = {.entries = c->entries, .items = w.merges[i],
                                       .nodes = w.nodes, .partials = partials, .out = o->t,
                                       .lse = o->lse, .lse_row_stride = o->lse_stride,
                                       .sinks = c->has_sinks ? c->sinks : NULL,
                                       .q_heads = c->q_heads, .dv = c->geom.dv};
        run_op(ops, RKVI_OP_MERGE, &merge, w.n_merges[i] * c->q_heads, cut->backwards);
    }
    for (size_t i = floats; i < floats + 16; i++) {
        uint32_t u;
        memcpy(&u, &partials[i], sizeof u);
        assert_int_equal(u, 0xffffffff);
    }
    void *all[] = {partials, w.items, w.nodes, w.merges[0], w.merges[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The mask by its definition (types.h), cell by cell. */
static inline bool case_sees(const ops_case *c, const rkvi_row *row, int64_t x)
{
    if (x > row->pos || x < row->from || x >= row->to)
        return false;
    if (c->mask.kind == RKV_MASK_SLIDING)
        return row->pos - x < c->mask.width;
    if (c->mask.kind == RKV_MASK_CHUNKED)
        return row->pos / c->mask.width == x / c->mask.width;
    return true;
}

/* Stored values of an entry's cell. */
static inline void case_cell(const ops_case *c, uint32_t e, uint32_t cell, uint32_t head, float *k,
                             float *v)
{
    uint32_t at = cell;
    for (uint32_t i = 0; i < e; i++)
        at += c->cells[i];
    const rkvi_new_cell *n = &c->new_cells[at];
    const rkvi_plane pk = rkvi_plane_k(&c->geom, c->bases[n->base], head);
    const rkvi_plane pv = rkvi_plane_v(&c->geom, c->bases[n->base], head);
    rkvi_plane_get(&pk, n->cell, k);
    rkvi_plane_get(&pv, n->cell, v);
}

/* One row and head in f64, and in plain f32: two passes over all cells, sums in
 * order, up and down, since one of them alone may be lucky. */
typedef struct ops_expect {
    double o[RKVI_HEAD_DIM_MAX], lse;
    double top_score; /* largest magnitude, before softcap */
    float plain[2][RKVI_HEAD_DIM_MAX], plain_lse[2];
} ops_expect;

static inline const float *case_query(const ops_case *c, uint32_t e, uint32_t row, uint32_t head)
{
    return c->q + ((size_t)(c->entries[e].row0 + row) * c->q_heads + head) * c->geom.dk;
}

static inline void expect_exact(const ops_case *c, uint32_t e, uint32_t row, uint32_t head,
                                ops_expect *out)
{
    const float *q = case_query(c, e, row, head);
    const uint32_t n = c->cells[e];
    const double cap = (double)c->softcap, sink = c->has_sinks ? (double)c->sinks[head] : -INFINITY;
    double *s = case_alloc(n, sizeof *s), m = sink, l;
    float k[RKVI_HEAD_DIM_MAX], v[RKVI_HEAD_DIM_MAX];
    for (uint32_t x = 0; x < n; x++) {
        s[x] = -INFINITY;
        if (!case_sees(c, &c->row[c->entries[e].row0 + row], c->pos0 + x))
            continue;
        double dot = 0;
        case_cell(c, e, x, head / c->ratio, k, v);
        for (uint32_t i = 0; i < c->geom.dk; i++)
            dot += (double)q[i] * (double)k[i];
        dot *= (double)c->scale;
        out->top_score = fmax(out->top_score, fabs(dot));
        s[x] = cap != 0 ? cap * tanh(dot / cap) : dot;
        m = s[x] > m ? s[x] : m;
    }
    l = c->has_sinks ? exp(sink - m) : 0;
    for (uint32_t x = 0; x < n; x++) {
        if (s[x] == -INFINITY)
            continue;
        const double p = exp(s[x] - m);
        l += p;
        case_cell(c, e, x, head / c->ratio, k, v);
        for (uint32_t i = 0; i < c->geom.dv; i++)
            out->o[i] += p * (double)v[i];
    }
    for (uint32_t i = 0; i < c->geom.dv && l > 0; i++)
        out->o[i] /= l;
    out->lse = l > 0 ? m + log(l) : -INFINITY;
    free(s);
}

static inline void expect_plain(const ops_case *c, uint32_t e, uint32_t row, uint32_t head,
                                int down, ops_expect *out)
{
    const float *q = case_query(c, e, row, head);
    const uint32_t n = c->cells[e], dk = c->geom.dk;
    float *s = case_alloc(n, sizeof *s), *o = out->plain[down], l;
    float m = c->has_sinks ? c->sinks[head] : -INFINITY;
    float k[RKVI_HEAD_DIM_MAX], v[RKVI_HEAD_DIM_MAX];
    for (uint32_t x = 0; x < n; x++) {
        s[x] = -INFINITY;
        if (!case_sees(c, &c->row[c->entries[e].row0 + row], c->pos0 + x))
            continue;
        float dot = 0;
        case_cell(c, e, x, head / c->ratio, k, v);
        for (uint32_t i = 0; i < dk; i++)
            dot += q[down ? dk - 1 - i : i] * k[down ? dk - 1 - i : i];
        dot *= c->scale;
        s[x] = c->softcap != 0 ? c->softcap * tanhf(dot / c->softcap) : dot;
        m = s[x] > m ? s[x] : m;
    }
    l = c->has_sinks ? expf(c->sinks[head] - m) : 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t x = down ? n - 1 - i : i;
        if (s[x] == -INFINITY)
            continue;
        const float p = expf(s[x] - m);
        l += p;
        case_cell(c, e, x, head / c->ratio, k, v);
        for (uint32_t d = 0; d < c->geom.dv; d++)
            o[d] += p * v[d];
    }
    for (uint32_t d = 0; d < c->geom.dv && l > 0; d++)
        o[d] /= l;
    out->plain_lse[down] = l > 0 ? m + logf(l) : -INFINITY;
    free(s);
}

static inline void case_expect(const ops_case *c, uint32_t e, uint32_t row, uint32_t head,
                               ops_expect *out)
{
    memset(out, 0, sizeof *out);
    expect_exact(c, e, row, head, out);
    expect_plain(c, e, row, head, 0, out);
    expect_plain(c, e, row, head, 1, out);
}

#endif
