/* SPDX-License-Identifier: MIT
 *
 * cliff_products.c: see cliff_products.h.
 */
#include "cliff_products.h"

#include "bench_cuda_gemv.h"
#include "cliff_engine.h"
#include "diag.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <math.h>
#include <stdlib.h>

#define WORKSPACE_BYTES ((size_t)32 << 20)
#define PROPOSED 32
#define TURN_BYTES ((uint64_t)1 << 30) /* of different weights a turn, so that no cache holds them */

/* One way to carry out products of a size. */
typedef struct way {
    cliff_kind kind;
    uint32_t number; /* GEMV: its way; CUBLASLT: 1 where y is a row, 0 where it is a column */
    cublasLtMatmulAlgo_t algo;
} way;

/* How cuBLASLt sees W, x and y.  It counts by columns, so W is its own transpose
 * there: y = W' x as a column, y' = x' W as a row. */
typedef struct description {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
} description;

/* One size. */
typedef struct choice {
    uint32_t in, out;
    bool is_f32;
    way way;
    description described[2];
    cliff_product_figures figures;
} choice;

struct cliff_products {
    cublasHandle_t blas;
    cublasLtHandle_t lt;
    cudaStream_t stream;
    void *workspace;
    cudaEvent_t from, to;
    uint32_t n_sm;
    choice choices[CLIFF_PRODUCT_SIZES];
    uint32_t n;
};

static rkv_status blas_status(cublasStatus_t status, const char *what)
{
    return status == CUBLAS_STATUS_SUCCESS
               ? RKV_OK
               : rkvi_fail(RKV_E_DEVICE_CALL, "%s: %s", what, cublasGetStatusString(status));
}

/* ------------------------------------------------------------------------- run */

static choice *choice_of(cliff_products *p, const cliff_product *product)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->choices[i].in == product->in && p->choices[i].out == product->out &&
            p->choices[i].is_f32 == product->is_f32)
            return &p->choices[i];
    return NULL;
}

static cublasStatus_t run_blas(cliff_products *p, const cliff_product *product, const void *x, void *y)
{
    static const float one = 1.0f, zero = 0.0f;
    const int in = (int)product->in, out = (int)product->out;
    return cublasGemmEx(p->blas, CUBLAS_OP_T, CUBLAS_OP_N, out, 1, in, &one, product->w, CUDA_R_16F, in, x, CUDA_R_16F,
                        in, &zero, y, product->is_f32 ? CUDA_R_32F : CUDA_R_16F, out, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT);
}

static cublasStatus_t run_lt(cliff_products *p, const choice *c, const cliff_product *product, const void *x, void *y)
{
    static const float one = 1.0f, zero = 0.0f;
    const uint32_t is_row = c->way.number;
    const description *d = &c->described[is_row];
    return cublasLtMatmul(p->lt, d->desc, &one, is_row ? x : product->w, d->a, is_row ? product->w : x, d->b, &zero, y,
                          d->y, y, d->y, &c->way.algo, p->workspace, WORKSPACE_BYTES, p->stream);
}

static cudaError_t run_gemv(cliff_products *p, const choice *c, const cliff_product *product, const void *x, void *y)
{
    const bench_gemv g = {
        .w = product->w, .x = x, .y = y, .in = product->in, .out = product->out, .is_f32 = product->is_f32};
    return (cudaError_t)bench_cuda_gemv(&g, c->way.number, p->n_sm, p->stream);
}

rkv_status cliff_products_run(cliff_products *p, const cliff_product *product, const void *x, void *y)
{
    const choice *c = choice_of(p, product);
    if (c && c->way.kind == CLIFF_GEMV) {
        const cudaError_t e = run_gemv(p, c, product, x, y);
        return e == cudaSuccess ? RKV_OK : cliff_cuda_fail(e, "a matrix product by the bench's kernel");
    }
    if (c && c->way.kind == CLIFF_CUBLASLT)
        return blas_status(run_lt(p, c, product, x, y), "a matrix product by cuBLASLt");
    return blas_status(run_blas(p, product, x, y), "a matrix product by cuBLAS");
}

/* ----------------------------------------------------------------------- trial */

/* What is tried: products of one size, all of them or as many as a turn takes. */
typedef struct trial {
    const cliff_product *all;
    uint32_t n;
    const void *x;
    void *y;
} trial;

/* Seconds a byte as `c` is set, the better of two turns; the first one warms up. */
static rkv_status time_of(cliff_products *p, const choice *c, const trial *t, double *out_s)
{
    rkv_status s = RKV_OK;
    *out_s = 1;
    for (uint32_t turn = 0; turn < 3 && s == RKV_OK; turn++) {
        uint64_t bytes = 0;
        float ms = 0;
        s = CLIFF_CUDA(cudaEventRecord(p->from, p->stream));
        for (uint32_t i = 0; i < t->n && bytes < TURN_BYTES && s == RKV_OK; i++)
            if (choice_of(p, &t->all[i]) == c) {
                s = cliff_products_run(p, &t->all[i], t->x, t->y);
                bytes += (uint64_t)c->in * c->out * 2;
            }
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventRecord(p->to, p->stream));
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventSynchronize(p->to));
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventElapsedTime(&ms, p->from, p->to));
        if (turn > 0 && s == RKV_OK && (double)ms * 1e-3 / (double)bytes < *out_s)
            *out_s = (double)ms * 1e-3 / (double)bytes;
    }
    return s;
}

static float f16_value(uint16_t h)
{
    const int e = h >> 10 & 31;
    const float m = ldexpf((float)(h & 1023) + (e ? 1024.0f : 0.0f), (e ? e : 1) - 25);
    return h & 0x8000 ? -m : m;
}

/* y of the first product of the size, as f32; `y` has room. */
static rkv_status result_of(cliff_products *p, const choice *c, const trial *t, float *y)
{
    const size_t bytes = (size_t)c->out * (c->is_f32 ? 4 : 2);
    uint32_t i = 0;
    while (choice_of(p, &t->all[i]) != c)
        i++;
    rkv_status s = CLIFF_CUDA(cudaMemsetAsync(t->y, 0xff, bytes, p->stream));
    if (s == RKV_OK)
        s = cliff_products_run(p, &t->all[i], t->x, t->y);
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMemcpyAsync(y, t->y, bytes, cudaMemcpyDeviceToHost, p->stream));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaStreamSynchronize(p->stream));
    for (uint32_t k = c->out; k > 0 && s == RKV_OK && !c->is_f32; k--)
        y[k - 1] = f16_value(((const uint16_t *)(const void *)y)[k - 1]);
    return s;
}

static bool is_alike(const float *a, const float *b, uint32_t n)
{
    float largest = 0, off = 0;
    for (uint32_t i = 0; i < n; i++) {
        largest = fmaxf(largest, fabsf(a[i]));
        off = fabsf(a[i] - b[i]) <= off ? off : fabsf(a[i] - b[i]); /* NaN stays */
    }
    return off <= 0.01f * largest;
}

/* Measures `w`; it becomes the choice where it is the fastest yet and its result is cuBLAS's. */
static void try_way(cliff_products *p, choice *c, const trial *t, const way *w, const float *right, double *best_s)
{
    const way before = c->way;
    double s = 1;
    float *y = malloc((size_t)c->out * sizeof *y);
    c->way = *w;
    const bool is_done = y && result_of(p, c, t, y) == RKV_OK && time_of(p, c, t, &s) == RKV_OK;
    const bool is_right = is_done && is_alike(right, y, c->out);
    free(y);
    c->figures.n_tried += is_done;
    c->figures.is_even = c->figures.is_even && (!is_done || is_right);
    if (is_right && 1 / s > c->figures.bytes_per_s[w->kind])
        c->figures.bytes_per_s[w->kind] = 1 / s;
    if (is_right && s < *best_s)
        *best_s = s;
    else
        c->way = before;
}

/* ---------------------------------------------------------------------- choose */

static cublasStatus_t describe(const choice *c, bool is_row, description *d)
{
    const cublasOperation_t transposed = is_row ? CUBLAS_OP_N : CUBLAS_OP_T;
    const uint64_t in = c->in, out = c->out;
    cublasStatus_t s = cublasLtMatmulDescCreate(&d->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(d->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = is_row ? cublasLtMatrixLayoutCreate(&d->a, CUDA_R_16F, 1, in, 1)
                   : cublasLtMatrixLayoutCreate(&d->a, CUDA_R_16F, in, out, c->in);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = is_row ? cublasLtMatrixLayoutCreate(&d->b, CUDA_R_16F, in, out, c->in)
                   : cublasLtMatrixLayoutCreate(&d->b, CUDA_R_16F, in, 1, c->in);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = is_row ? cublasLtMatrixLayoutCreate(&d->y, c->is_f32 ? CUDA_R_32F : CUDA_R_16F, 1, out, 1)
                   : cublasLtMatrixLayoutCreate(&d->y, c->is_f32 ? CUDA_R_32F : CUDA_R_16F, out, 1, c->out);
    return s;
}

/* The number of proposals; 0 where there are none. */
static int propose(cliff_products *p, choice *c, bool is_row, cublasLtMatmulHeuristicResult_t *out)
{
    const size_t room = WORKSPACE_BYTES;
    description *d = &c->described[is_row];
    cublasLtMatmulPreference_t preference = NULL;
    int n = 0;
    if (describe(c, is_row, d) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 0;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    if (cublasLtMatmulAlgoGetHeuristic(p->lt, d->desc, d->a, d->b, d->y, d->y, preference, PROPOSED, out, &n) !=
        CUBLAS_STATUS_SUCCESS)
        n = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    return n;
}

static void try_all(cliff_products *p, choice *c, const trial *t, const float *right, double best_s)
{
    cublasLtMatmulHeuristicResult_t proposed[PROPOSED];
    for (uint32_t is_row = 0; is_row < 2; is_row++) {
        const int n = propose(p, c, is_row, proposed);
        for (int i = 0; i < n; i++) {
            const way w = {.kind = CLIFF_CUBLASLT, .number = is_row, .algo = proposed[i].algo};
            if (proposed[i].state == CUBLAS_STATUS_SUCCESS)
                try_way(p, c, t, &w, right, &best_s);
        }
    }
    for (uint32_t i = 0; i < BENCH_GEMV_WAYS; i++)
        try_way(p, c, t, &(way){.kind = CLIFF_GEMV, .number = i}, right, &best_s);
    cudaGetLastError(); /* of a way that was refused */
    c->figures.kind = c->way.kind;
}

static rkv_status choose(cliff_products *p, choice *c, const trial *t)
{
    double s_a_byte = 1;
    float *right = malloc((size_t)c->out * sizeof *right);
    if (!right)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u numbers", c->out);
    c->figures = (cliff_product_figures){.in = c->in, .out = c->out, .n_tried = 1, .is_even = true};
    rkv_status s = result_of(p, c, t, right);
    if (s == RKV_OK)
        s = time_of(p, c, t, &s_a_byte);
    c->figures.bytes_per_s[CLIFF_CUBLAS] = 1 / s_a_byte;
    if (s == RKV_OK)
        try_all(p, c, t, right, s_a_byte);
    free(right);
    return s == RKV_OK ? CLIFF_CUDA(cudaStreamSynchronize(p->stream)) : s;
}

static rkv_status choose_all(cliff_products *p, const trial *t)
{
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < t->n && s == RKV_OK; i++) {
        if (choice_of(p, &t->all[i]) || p->n == CLIFF_PRODUCT_SIZES)
            continue;
        choice *c = &p->choices[p->n++];
        *c = (choice){.in = t->all[i].in, .out = t->all[i].out, .is_f32 = t->all[i].is_f32};
        s = choose(p, c, t);
    }
    return s;
}

/* ---------------------------------------------------------------------- create */

/* One stream and a workspace of its own: the same bits every time. */
static rkv_status open_blas(cliff_products *p)
{
    int n_sm = 0;
    rkv_status s = CLIFF_CUDA(cudaMalloc(&p->workspace, WORKSPACE_BYTES));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaEventCreate(&p->from));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaEventCreate(&p->to));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0));
    p->n_sm = (uint32_t)n_sm;
    if (s == RKV_OK)
        s = blas_status(cublasCreate(&p->blas), "starting cuBLAS");
    if (s == RKV_OK)
        s = blas_status(cublasLtCreate(&p->lt), "starting cuBLASLt");
    if (s == RKV_OK)
        s = blas_status(cublasSetStream(p->blas, p->stream), "cuBLAS's stream");
    if (s == RKV_OK)
        s = blas_status(cublasSetWorkspace(p->blas, p->workspace, WORKSPACE_BYTES), "cuBLAS's workspace");
    return s;
}

rkv_status cliff_products_create(const cliff_product *all, uint32_t n, const void *x, void *y, cudaStream_t stream,
                                 cliff_products **out)
{
    const trial t = {.all = all, .n = n, .x = x, .y = y};
    cliff_products *p = calloc(1, sizeof *p);
    if (!p)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for products");
    p->stream = stream;
    rkv_status s = open_blas(p);
    if (s == RKV_OK)
        s = choose_all(p, &t);
    if (s != RKV_OK)
        cliff_products_destroy(p);
    else
        *out = p;
    return s;
}

static void forget(const description *d)
{
    cublasLtMatrixLayout_t const layouts[] = {d->a, d->b, d->y};
    for (uint32_t k = 0; k < 3; k++)
        if (layouts[k])
            cublasLtMatrixLayoutDestroy(layouts[k]);
    if (d->desc)
        cublasLtMatmulDescDestroy(d->desc);
}

void cliff_products_destroy(cliff_products *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n; i++) {
        forget(&p->choices[i].described[0]);
        forget(&p->choices[i].described[1]);
    }
    if (p->lt)
        cublasLtDestroy(p->lt);
    if (p->blas)
        cublasDestroy(p->blas);
    if (p->from)
        cudaEventDestroy(p->from);
    if (p->to)
        cudaEventDestroy(p->to);
    cudaFree(p->workspace);
    free(p);
}

uint32_t cliff_products_figures(const cliff_products *p, cliff_product_figures out[CLIFF_PRODUCT_SIZES])
{
    for (uint32_t i = 0; i < p->n; i++)
        out[i] = p->choices[i].figures;
    return p->n;
}
