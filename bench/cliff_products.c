/* SPDX-License-Identifier: MIT
 *
 * cliff_products.c: see cliff_products.h.
 */
#include "cliff_products.h"

#include "cliff_engine.h"
#include "diag.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdlib.h>

#define WORKSPACE_BYTES ((size_t)32 << 20)
#define SIZES_MAX 16u
#define PROPOSED 16
#define TURN_BYTES ((uint64_t)1 << 30) /* of different weights a turn, so that no cache holds them */

/* One size. */
typedef struct choice {
    uint32_t in, out;
    bool is_f32, is_lt; /* is_lt: by `algo`, else as cuBLAS chooses */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algo;
} choice;

struct cliff_products {
    cublasHandle_t blas;
    cublasLtHandle_t lt;
    cudaStream_t stream;
    void *workspace;
    cudaEvent_t from, to;
    choice choices[SIZES_MAX];
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

/* cuBLAS counts by columns, so W is its own transpose there. */
static cublasStatus_t run_plain(cliff_products *p, const cliff_product *product, const void *x, void *y)
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
    return cublasLtMatmul(p->lt, c->desc, &one, product->w, c->w, x, c->x, &zero, y, c->y, y, c->y, &c->algo,
                          p->workspace, WORKSPACE_BYTES, p->stream);
}

rkv_status cliff_products_run(cliff_products *p, const cliff_product *product, const void *x, void *y)
{
    const choice *c = choice_of(p, product);
    if (c && c->is_lt)
        return blas_status(run_lt(p, c, product, x, y), "a matrix product by cuBLASLt");
    return blas_status(run_plain(p, product, x, y), "a matrix product by cuBLAS");
}

/* ---------------------------------------------------------------------- choose */

/* What is tried: products of one size, all of them or as many as a turn takes. */
typedef struct trial {
    const cliff_product *all;
    uint32_t n;
    const void *x;
    void *y;
} trial;

/* Milliseconds of a turn as `c` is set, the better of two; the first one warms up. */
static rkv_status time_of(cliff_products *p, const choice *c, const trial *t, float *out_ms)
{
    rkv_status s = RKV_OK;
    *out_ms = 1e9f;
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
        if (turn > 0 && s == RKV_OK && ms < *out_ms)
            *out_ms = ms;
    }
    return s;
}

static cublasStatus_t describe(choice *c)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t s = cublasLtMatmulDescCreate(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutCreate(&c->w, CUDA_R_16F, c->in, c->out, c->in);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutCreate(&c->x, CUDA_R_16F, c->in, 1, c->in);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutCreate(&c->y, c->is_f32 ? CUDA_R_32F : CUDA_R_16F, c->out, 1, c->out);
    return s;
}

/* The number of proposals; 0 where there are none. */
static int propose(cliff_products *p, choice *c, cublasLtMatmulHeuristicResult_t *out)
{
    const size_t room = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference = NULL;
    int n = 0;
    if (describe(c) != CUBLAS_STATUS_SUCCESS || cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 0;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    if (cublasLtMatmulAlgoGetHeuristic(p->lt, c->desc, c->w, c->x, c->y, c->y, preference, PROPOSED, out, &n) !=
        CUBLAS_STATUS_SUCCESS)
        n = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    return n;
}

static rkv_status choose(cliff_products *p, choice *c, const trial *t)
{
    cublasLtMatmulHeuristicResult_t proposed[PROPOSED];
    float best_ms, ms;
    const rkv_status s = time_of(p, c, t, &best_ms);
    const int n = s == RKV_OK ? propose(p, c, proposed) : 0;
    int best = -1;
    c->is_lt = true;
    for (int i = 0; i < n; i++) {
        if (proposed[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        c->algo = proposed[i].algo;
        if (time_of(p, c, t, &ms) == RKV_OK && ms < best_ms) { /* one that is refused is none */
            best_ms = ms;
            best = i;
        }
    }
    c->is_lt = best >= 0;
    if (best >= 0)
        c->algo = proposed[best].algo;
    return s == RKV_OK ? CLIFF_CUDA(cudaStreamSynchronize(p->stream)) : s;
}

static rkv_status choose_all(cliff_products *p, const trial *t)
{
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < t->n && s == RKV_OK; i++) {
        if (choice_of(p, &t->all[i]) || p->n == SIZES_MAX)
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
    rkv_status s = CLIFF_CUDA(cudaMalloc(&p->workspace, WORKSPACE_BYTES));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaEventCreate(&p->from));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaEventCreate(&p->to));
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

void cliff_products_destroy(cliff_products *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n; i++) {
        const choice *c = &p->choices[i];
        cublasLtMatrixLayout_t const layouts[] = {c->w, c->x, c->y};
        for (uint32_t k = 0; k < 3; k++)
            if (layouts[k])
                cublasLtMatrixLayoutDestroy(layouts[k]);
        if (c->desc)
            cublasLtMatmulDescDestroy(c->desc);
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

void cliff_products_chosen(const cliff_products *p, uint32_t *out_lt, uint32_t *out_all)
{
    *out_lt = 0;
    *out_all = p->n;
    for (uint32_t i = 0; i < p->n; i++)
        *out_lt += p->choices[i].is_lt;
}
