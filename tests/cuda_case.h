/* SPDX-License-Identifier: MIT
 *
 * cuda_case.h: a case of ops_case.h on a GPU: attention by the kernels, tiles,
 * tables and q copied there, partials copied back and merged by the plain C
 * reference.
 */
#ifndef CUDA_CASE_H
#define CUDA_CASE_H

#include "cuda_fixture.h"
#include "ops_case.h"
#include "ops_cuda.h"
#include "ops_half.h"
#include "rkvk_table.h"

typedef struct gpu_variant {
    const char *name;
    rkv_type type_k, type_v;
    uint32_t dk, dv;
} gpu_variant;

#define GPU_VARIANT(name, type_k, type_v, dk, dv) {#name, type_k, type_v, dk, dv},
static const gpu_variant gpu_variants[] = {RKVK_VARIANTS(GPU_VARIANT)};
#define N_GPU_VARIANTS (sizeof gpu_variants / sizeof *gpu_variants)

/* Of emulated kernels, ASan knows which device memory is in use. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#endif

/* Device memory, taken in pieces with gaps between, given back all at once. */
typedef struct gpu_heap {
    rkvi_device *gpu;
    uint8_t *base;
    size_t bytes, used;
} gpu_heap;

static gpu_heap heap;

static inline void heap_open(void)
{
    heap.gpu = gpu_open();
    heap.bytes = (size_t)1 << 30;
    heap.base = gpu_put(heap.gpu, NULL, heap.bytes);
    ASAN_POISON_MEMORY_REGION(heap.base, heap.bytes);
}

static inline void heap_empty(void)
{
    ASAN_POISON_MEMORY_REGION(heap.base, heap.used);
    heap.used = 0;
}

static inline void *heap_put(const void *bytes, size_t n)
{
    void *p = heap.base + heap.used;
    heap.used += (n + 255) / 256 * 256 + 256;
    assert_true(heap.used <= heap.bytes);
    ASAN_UNPOISON_MEMORY_REGION(p, n);
    if (bytes && n)
        ok(gpu_copy(heap.gpu, RKVI_H2D, p, bytes, n, NULL));
    return p;
}

/* q as the caller's tensor, of this type. */
static inline void *heap_put_q(const ops_case *c, rkv_type type)
{
    const size_t n = (size_t)c->n_rows * c->q_heads * c->geom.dk;
    if (type == RKV_TYPE_F32)
        return heap_put(c->q, n * sizeof *c->q);
    uint16_t *x = case_alloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = type == RKV_TYPE_F16 ? rkvi_f32_to_f16(c->q[i]) : rkvi_f32_to_bf16(c->q[i]);
    void *p = heap_put(x, n * sizeof *x);
    ok(rkvi_dev(stream_sync, heap.gpu, NULL));
    free(x);
    return p;
}

/* The tensor cores' 16-bit type: q is rounded to it. */
static inline float round_for(rkv_type type, float x)
{
    return type == RKV_TYPE_BF16 ? rkvi_bf16_to_f32(rkvi_f32_to_bf16(x)) : rkvi_f16_to_f32(rkvi_f32_to_f16(x));
}

static inline void case_round_q(ops_case *c)
{
    for (size_t i = 0; i < (size_t)c->n_rows * c->q_heads * c->geom.dk; i++)
        c->q[i] = round_for(c->geom.type_k, c->q[i]);
}

/* Device copies of a case's tables; `host` keeps the tiles' host addresses. */
static inline rkvi_attend_args gpu_tables(const ops_case *c, rkv_type q_type)
{
    uint8_t *tiles = heap_put(c->tiles, c->n_tiles * c->geom.bytes);
    uint64_t *bases = case_alloc(c->n_tiles, sizeof *bases);
    for (uint32_t i = 0; i < c->n_tiles; i++)
        bases[i] = c->bases[i] ? (uintptr_t)(tiles + (c->bases[i] - (uintptr_t)c->tiles)) : 0;
    const rkvi_attend_args a = {
        .geom = c->geom,
        .entries = heap_put(c->entries, sizeof c->entries),
        .rows = heap_put(c->row, c->n_rows * sizeof *c->row),
        .spans = heap_put(c->spans, c->n_spans * sizeof *c->spans),
        .bases = heap_put(bases, c->n_tiles * sizeof *bases),
        .q = {heap_put_q(c, q_type), (int64_t)c->q_heads * c->geom.dk, c->geom.dk, q_type},
        .mask = c->mask, .q_heads = c->q_heads, .scale = c->scale, .softcap = c->softcap};
    ok(rkvi_dev(stream_sync, heap.gpu, NULL));
    free(bases);
    return a;
}

static inline void gpu_run(rkvi_attend_args *a, rkvi_op op, const ops_work *w)
{
    a->items = heap_put(w->items, w->n_items * sizeof *w->items);
    a->max_rows = 0;
    uint64_t leaves = 0;
    for (uint64_t i = 0; i < w->n_items; i++) {
        a->max_rows = w->items[i].n_rows > a->max_rows ? w->items[i].n_rows : a->max_rows;
        leaves += w->items[i].leaf1 - w->items[i].leaf0;
    }
    a->mean_leaves = w->n_items % 3 ? (uint32_t)rkvi_div_up(leaves, w->n_items) : 0; /* or it is not said */
    gpu_launch(heap.gpu, op, a, sizeof *a, w->n_items * a->geom.n_heads);
}

static inline void gpu_run_prefill(const ops_case *c, const ops_cut *cut, const ops_work *w, rkvi_attend_args *a)
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
        gpu_run(a, RKVI_OP_PREFILL, w);
    }
}

/* All partials of a case, on the host; free() them. */
static inline float *gpu_partials(const ops_case *c, const ops_cut *cut, const ops_work *w, rkv_type q_type)
{
    const size_t floats = w->n_slots * c->q_heads * (c->geom.dv + 2);
    heap_empty();
    rkvi_attend_args a = gpu_tables(c, q_type);
    float *partials = case_alloc(floats + 16, sizeof *partials);
    memset(partials, 0xff, (floats + 16) * sizeof *partials);
    a.partials = heap_put(partials, (floats + 16) * sizeof *partials);
    assert_int_equal(rkvk_prepare_geom(&c->geom), 0);
    if (cut->prefill)
        gpu_run_prefill(c, cut, w, &a);
    else
        gpu_run(&a, RKVI_OP_DECODE, w);
    gpu_get(heap.gpu, partials, a.partials, (floats + 16) * sizeof *partials);
    for (size_t i = floats; i < floats + 16; i++) {
        uint32_t u;
        memcpy(&u, &partials[i], sizeof u);
        assert_int_equal(u, 0xffffffff);
    }
    return partials;
}

static inline void work_free(ops_work *w)
{
    void *all[] = {w->items, w->nodes, w->merges[0], w->merges[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Prefill whose last items write the output, with `o`'s strides, type and canaries. */
static inline void gpu_put_out(const ops_case *c, const ops_cut *cut, rkv_type q_type, ops_out *o)
{
    ops_work w = work_make(c, cut);
    const size_t lse_bytes = (size_t)o->lse_stride * o->rows * sizeof *o->lse;
    heap_empty();
    rkvi_attend_args a = gpu_tables(c, q_type);
    a.partials = heap_put(NULL, w.n_slots * c->q_heads * (c->geom.dv + 2) * sizeof(float));
    uint8_t *out = heap_put(out_base(o), o->bytes);
    a.merge = (rkvi_merge_args){.out = o->t,
                                .lse = heap_put(o->lse, lse_bytes),
                                .lse_row_stride = o->lse_stride,
                                .sinks = c->has_sinks ? heap_put(c->sinks, c->q_heads * sizeof *c->sinks) : NULL,
                                .q_heads = c->q_heads,
                                .dv = c->geom.dv};
    a.merge.out.data = out + ((uint8_t *)o->t.data - out_base(o));
    assert_int_equal(rkvk_prepare_geom(&c->geom), 0);
    gpu_run_prefill(c, cut, &w, &a);
    gpu_get(heap.gpu, out_base(o), out, o->bytes);
    gpu_get(heap.gpu, o->lse, a.merge.lse, lse_bytes);
    work_free(&w);
}

/* Attention of all rows into `o`, on the host. */
static inline void gpu_attend(const ops_case *c, const ops_cut *cut, rkv_type q_type, ops_out *o)
{
    ops_work w = work_make(c, cut);
    float *partials = gpu_partials(c, cut, &w, q_type);
    for (int i = 0; i < 2; i++) {
        const rkvi_merge_args merge = {.entries = c->entries, .items = w.merges[i], .nodes = w.nodes,
                                       .partials = partials, .out = o->t, .lse = o->lse,
                                       .lse_row_stride = o->lse_stride, .sinks = c->has_sinks ? c->sinks : NULL,
                                       .q_heads = c->q_heads, .dv = c->geom.dv};
        for (uint64_t m = 0; m < w.n_merges[i] * c->q_heads; m++)
            rkvi_ref_merge(&merge, m);
    }
    free(partials);
    work_free(&w);
}

static inline bool variant_wanted(const gpu_variant *v)
{
    const char *text = getenv("ROLLKV_TEST_VARIANT"); /* a part of the name */
    return !text || strstr(v->name, text);
}

#endif
