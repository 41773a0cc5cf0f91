/* SPDX-License-Identifier: MIT
 *
 * The forward pass of forward.h on a GPU: weights in f16, the residual stream, Q, K, V and logits in
 * f32, products by cuBLAS from f16 with sums in f32. Everything is queued on one stream; a step ends
 * with one wait, for what it hands out.
 */
#include "gpu_backend.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_kernels.h"

enum { MOST_ALLOCATIONS = 16 };
static const size_t workspace_bytes = (size_t)32 << 20, upload_floats = (size_t)1 << 24;

struct gpu {
    const struct model *model;
    struct backend_settings settings;
    cudaStream_t stream;
    cublasHandle_t blas;
    void *allocations[MOST_ALLOCATIONS];
    size_t allocation_count;
    gpu_f16 *weights; /* all of the model's, at the same offsets */
    float *norms;     /* [2 layers + 1][embedding]: attention's and the feed-forward's, the output's */
    float *turns;     /* [positions][head_dim], as in forward.c */
    int32_t *tokens;  /* [max_rows] */
    /* All are [max_rows][...]. */
    float *x;          /* [embedding] */
    gpu_f16 *normed;   /* [embedding] */
    float *qkv;        /* [(heads + 2 kv_heads) head_dim] */
    gpu_f16 *attended; /* [heads head_dim] */
    float *gate_up;    /* [2 feed_forward] */
    gpu_f16 *act;      /* [feed_forward] */
    float *logits;     /* [max_rows or 1][vocabulary] */
    int32_t *best;
    int32_t *pinned; /* [max_rows + 1]: tokens on their way in, then the best token out */
};

static int check_cuda(int status, const char *what, struct gen_error *err)
{
    if (status == cudaSuccess)
        return 0;
    return gen_fail(err, "%s: %s", what, cudaGetErrorString((cudaError_t)status));
}

static int check_blas(cublasStatus_t status, const char *what, struct gen_error *err)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return gen_fail(err, "%s: %s", what, cublasGetStatusString(status));
}

/* ------------------------------------------------------------------- set-up */

/* NULL on failure, with err set. */
static void *alloc(struct gpu *g, size_t count, size_t size, struct gen_error *err)
{
    void *memory = NULL;
    if (check_cuda(cudaMalloc(&memory, count * size), "Device memory for the model", err) != 0)
        return NULL;
    g->allocations[g->allocation_count++] = memory;
    return memory;
}

static int alloc_all(struct gpu *g, struct gen_error *err)
{
    const struct model_shape *s = &g->model->shape;
    const size_t rows = g->settings.max_rows, q = s->heads * s->head_dim;
    const size_t kv = s->kv_heads * s->head_dim, f32 = sizeof(float), f16 = sizeof(gpu_f16);
    if (!(g->weights = alloc(g, g->model->weight_count, f16, err)) ||
        !(g->norms = alloc(g, (2 * s->layers + 1) * s->embedding, f32, err)) ||
        !(g->turns = alloc(g, g->settings.positions * s->head_dim, f32, err)) ||
        !(g->tokens = alloc(g, rows, sizeof *g->tokens, err)) ||
        !(g->x = alloc(g, rows * s->embedding, f32, err)) ||
        !(g->normed = alloc(g, rows * s->embedding, f16, err)) ||
        !(g->qkv = alloc(g, rows * (q + 2 * kv), f32, err)) ||
        !(g->attended = alloc(g, rows * q, f16, err)) ||
        !(g->gate_up = alloc(g, rows * 2 * s->feed_forward, f32, err)) ||
        !(g->act = alloc(g, rows * s->feed_forward, f16, err)) ||
        !(g->logits = alloc(g, (g->settings.all_logits ? rows : 1) * s->vocabulary, f32, err)) ||
        !(g->best = alloc(g, 1, sizeof *g->best, err)))
        return -1;
    return check_cuda(cudaMallocHost((void **)&g->pinned, (rows + 1) * sizeof *g->pinned),
                      "Pinned memory for tokens", err);
}

static int upload(struct gpu *g, float *to, const float *from, size_t count, struct gen_error *err)
{
    const int status = cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyHostToDevice, g->stream);
    return check_cuda(status, "Copying the model", err);
}

/* Piece by piece through a buffer, since the rounding is done over there. */
static int upload_weights(struct gpu *g, struct gen_error *err)
{
    const struct model *m = g->model;
    float *piece = NULL;
    int rc = check_cuda(cudaMalloc((void **)&piece, upload_floats * sizeof *piece),
                        "Device memory for copying the model", err);
    for (size_t at = 0; rc == 0 && at < m->weight_count; at += upload_floats) {
        const size_t left = m->weight_count - at, count = left < upload_floats ? left : upload_floats;
        rc = upload(g, piece, m->weights + at, count, err);
        if (rc == 0)
            rc = check_cuda(gpu_to_f16(g->stream, piece, count, g->weights + at), "Rounding the model",
                            err);
    }
    if (rc == 0)
        rc = check_cuda(cudaStreamSynchronize(g->stream), "Copying the model", err);
    cudaFree(piece);
    return rc;
}

static int upload_norms(struct gpu *g, struct gen_error *err)
{
    const struct model *m = g->model;
    const size_t n = m->shape.embedding;
    for (size_t i = 0; i < m->shape.layers; i++)
        if (upload(g, g->norms + 2 * i * n, m->layers[i].attention_norm, n, err) != 0 ||
            upload(g, g->norms + (2 * i + 1) * n, m->layers[i].ffn_norm, n, err) != 0)
            return -1;
    return upload(g, g->norms + 2 * m->shape.layers * n, m->output_norm, n, err);
}

static int upload_turns(struct gpu *g, struct gen_error *err)
{
    const size_t count = g->settings.positions * g->model->shape.head_dim;
    float *turns = malloc(count * sizeof *turns);
    if (turns == NULL)
        return gen_fail(err, "No memory for the turns of %zu positions.", g->settings.positions);
    forward_fill_turns(turns, &g->model->shape, g->settings.positions);
    int rc = upload(g, g->turns, turns, count, err);
    if (rc == 0)
        rc = check_cuda(cudaStreamSynchronize(g->stream), "Copying the turns", err);
    free(turns);
    return rc;
}

/* With a workspace of its own and one stream, a product of the same sizes has the same bits every
 * time. */
static int open_blas(struct gpu *g, struct gen_error *err)
{
    void *workspace = alloc(g, workspace_bytes, 1, err);
    if (workspace == NULL || check_blas(cublasCreate(&g->blas), "Starting cuBLAS", err) != 0 ||
        check_blas(cublasSetStream(g->blas, g->stream), "cuBLAS's stream", err) != 0)
        return -1;
    return check_blas(cublasSetWorkspace(g->blas, workspace, workspace_bytes), "cuBLAS's workspace",
                      err);
}

static void destroy(void *self)
{
    struct gpu *g = self;
    if (g->stream != NULL)
        cudaStreamSynchronize(g->stream);
    if (g->blas != NULL)
        cublasDestroy(g->blas);
    for (size_t i = 0; i < g->allocation_count; i++)
        cudaFree(g->allocations[i]);
    if (g->pinned != NULL)
        cudaFreeHost(g->pinned);
    if (g->stream != NULL)
        cudaStreamDestroy(g->stream);
    free(g);
}

static int open_all(struct gpu *g, struct gen_error *err)
{
    if (check_cuda(cudaSetDevice(0), "The first GPU", err) != 0 ||
        check_cuda(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "A stream", err) != 0)
        return -1;
    if (alloc_all(g, err) != 0 || open_blas(g, err) != 0 || upload_weights(g, err) != 0)
        return -1;
    return upload_norms(g, err) != 0 ? -1 : upload_turns(g, err);
}

/* --------------------------------------------------------------------- step */

/* y[rows][outputs] = x[rows][inputs] * w[outputs][inputs]^T, plus y itself if keep is 1. */
struct product {
    const float *w; /* the model's, which says where its f16 copy lies */
    const gpu_f16 *x;
    float *y;
    size_t outputs, inputs;
    float keep;
};

/* cuBLAS counts by columns: what is row-major here is its own transpose there. */
static int multiply_rows(const struct gpu *g, const struct product *p, size_t rows,
                         struct gen_error *err)
{
    static const float one = 1.0f;
    const gpu_f16 *w = g->weights + (p->w - g->model->weights);
    const int outputs = (int)p->outputs, inputs = (int)p->inputs;
    const cublasStatus_t status =
        cublasGemmEx(g->blas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, (int)rows, inputs, &one, w, CUDA_R_16F,
                     inputs, p->x, CUDA_R_16F, inputs, &p->keep, p->y, CUDA_R_32F, outputs,
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return check_blas(status, "A matrix product", err);
}

/* `rows` is the step's, or 1 where one row is wanted. */
static int multiply(const struct gpu *g, const struct product *p, const struct forward_step *step,
                    size_t rows, struct gen_error *err)
{
    struct product one = *p;
    int rc = 0;
    if (!step->rows_apart)
        return multiply_rows(g, p, rows, err);
    for (size_t r = 0; rc == 0 && r < rows; r++, one.x += p->inputs, one.y += p->outputs)
        rc = multiply_rows(g, &one, 1, err);
    return rc;
}

static int norm(const struct gpu *g, const float *x, size_t index, size_t rows, struct gen_error *err)
{
    const struct model_shape *s = &g->model->shape;
    const struct gpu_norm args = {.x = x,
                                  .weight = g->norms + index * s->embedding,
                                  .out = g->normed,
                                  .rows = rows,
                                  .n = s->embedding,
                                  .epsilon = s->norm_epsilon};
    return check_cuda(gpu_norm(g->stream, args), "A norm", err);
}

static int rope(const struct gpu *g, const struct forward_step *step, struct gen_error *err)
{
    const struct model_shape *s = &g->model->shape;
    const size_t at_once = step->positions != NULL ? 1 : step->rows; /* rows of one launch */
    struct gpu_rope args = {.x = g->qkv,
                            .rows = at_once,
                            .heads = s->heads + s->kv_heads,
                            .head_dim = s->head_dim,
                            .stride = (s->heads + 2 * s->kv_heads) * s->head_dim};
    int rc = 0;
    for (size_t r = 0; rc == 0 && r < step->rows; r += at_once, args.x += at_once * args.stride) {
        args.turns = g->turns + forward_position(step, r) * s->head_dim;
        rc = check_cuda(gpu_rope(g->stream, args), "The rotary embedding", err);
    }
    return rc;
}

static int attention_block(struct gpu *g, const struct attention *attention, size_t layer,
                           const struct forward_step *step, struct gen_error *err)
{
    const struct model_shape *s = &g->model->shape;
    const struct model_layer *w = &g->model->layers[layer];
    const size_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, stride = q + 2 * kv;
    const struct product in = {w->qkv, g->normed, g->qkv, stride, s->embedding, 0.0f};
    const struct product out = {w->attention_out, g->attended, g->x, s->embedding, q, 1.0f};
    const struct attention_rows rows = {.q = g->qkv,
                                        .k = g->qkv + q,
                                        .v = g->qkv + q + kv,
                                        .out = g->attended,
                                        .rows = step->rows,
                                        .qkv_stride = stride,
                                        .out_stride = q};
    if (norm(g, g->x, 2 * layer, step->rows, err) != 0 ||
        multiply(g, &in, step, step->rows, err) != 0 || rope(g, step, err) != 0 ||
        attention->attend(attention->self, layer, &rows, err) != 0)
        return -1;
    return multiply(g, &out, step, step->rows, err);
}

static int feed_forward_block(struct gpu *g, size_t layer, const struct forward_step *step,
                              struct gen_error *err)
{
    const size_t rows = step->rows;
    const struct model_shape *s = &g->model->shape;
    const struct model_layer *w = &g->model->layers[layer];
    const size_t n = s->feed_forward;
    const struct product in = {w->gate_up, g->normed, g->gate_up, 2 * n, s->embedding, 0.0f};
    const struct product out = {w->down, g->act, g->x, s->embedding, n, 1.0f};
    const struct gpu_swiglu args = {.gate_up = g->gate_up, .out = g->act, .rows = rows, .n = n};
    if (norm(g, g->x, 2 * layer + 1, rows, err) != 0 || multiply(g, &in, step, rows, err) != 0 ||
        check_cuda(gpu_swiglu(g->stream, args), "The activation", err) != 0)
        return -1;
    return multiply(g, &out, step, rows, err);
}

static int copy_out(const struct gpu *g, void *to, const void *from, size_t bytes,
                    struct gen_error *err)
{
    const int status = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, g->stream);
    return check_cuda(status, "Copying results", err);
}

/* Logits of the last row, or of all; what is wanted of them goes to the host. */
static int output(struct gpu *g, const struct forward_step *step, struct gen_error *err)
{
    const struct model *m = g->model;
    const size_t n = m->shape.embedding, v = m->shape.vocabulary, row_bytes = v * sizeof(float);
    const size_t rows = step->all_logits != NULL ? step->rows : 1;
    const float *last = g->logits + (rows - 1) * v;
    int32_t *best = g->pinned + g->settings.max_rows;
    const struct product p = {m->output, g->normed, g->logits, v, n, 0.0f};
    if (norm(g, g->x + (step->rows - rows) * n, 2 * m->shape.layers, rows, err) != 0 ||
        multiply(g, &p, step, rows, err) != 0)
        return -1;
    if (step->all_logits != NULL &&
        copy_out(g, step->all_logits, g->logits, rows * row_bytes, err) != 0)
        return -1;
    if (step->logits != NULL && copy_out(g, step->logits, last, row_bytes, err) != 0)
        return -1;
    if (step->best == NULL)
        return 0;
    if (check_cuda(gpu_argmax(g->stream, last, v, g->best), "Choosing a token", err) != 0 ||
        copy_out(g, best, g->best, sizeof *best, err) != 0)
        return -1;
    return 0;
}

static int embed(struct gpu *g, const struct forward_step *step, struct gen_error *err)
{
    const struct model *m = g->model;
    const size_t bytes = step->rows * sizeof *g->tokens;
    memcpy(g->pinned, step->tokens, bytes); /* the step before has ended */
    if (check_cuda(cudaMemcpyAsync(g->tokens, g->pinned, bytes, cudaMemcpyHostToDevice, g->stream),
                   "Copying tokens", err) != 0)
        return -1;
    const struct gpu_embed args = {.table = g->weights + (m->token_embedding - m->weights),
                                   .tokens = g->tokens,
                                   .out = g->x,
                                   .rows = step->rows,
                                   .n = m->shape.embedding};
    return check_cuda(gpu_embed(g->stream, args), "The embedding", err);
}

static int queue_step(struct gpu *g, const struct attention *attention, const struct forward_step *step,
                      struct gen_error *err)
{
    if (attention->begin(attention->self, step->rows, err) != 0 || embed(g, step, err) != 0)
        return -1;
    for (size_t layer = 0; layer < g->model->shape.layers; layer++)
        if (attention_block(g, attention, layer, step, err) != 0 ||
            feed_forward_block(g, layer, step, err) != 0)
            return -1;
    if (attention->end(attention->self, err) != 0)
        return -1;
    const bool wants_output = step->logits != NULL || step->all_logits != NULL || step->best != NULL;
    return wants_output ? output(g, step, err) : 0;
}

static int run(void *self, const struct attention *attention, const struct forward_step *step,
               struct gen_error *err)
{
    struct gpu *g = self;
    const struct forward_limits limits = {g->settings.max_rows, g->settings.positions,
                                          g->model->shape.vocabulary};
    if (forward_check_step(&limits, step, err) != 0)
        return -1;
    if (step->all_logits != NULL && !g->settings.all_logits)
        return gen_fail(err, "Logits of all rows were not set up.");
    const int rc = queue_step(g, attention, step, err);
    /* Also after a failure: buffers must not be reused under work that is still queued. */
    const int status = cudaStreamSynchronize(g->stream);
    if (rc != 0 || check_cuda(status, "Running a step", err) != 0)
        return -1;
    if (step->best != NULL)
        *step->best = g->pinned[g->settings.max_rows];
    return 0;
}

/* --------------------------------------------------------------------- link */

struct link_test {
    void *host, *device;
    cudaEvent_t begin, end;
};

static int time_copies(const struct gpu *g, const struct link_test *t, size_t bytes, uint64_t *out)
{
    float best_ms = INFINITY;
    for (int i = 0; i < 8; i++) {
        float ms = 0.0f;
        int status = cudaEventRecord(t->begin, g->stream);
        if (status == cudaSuccess)
            status = cudaMemcpyAsync(t->device, t->host, bytes, cudaMemcpyHostToDevice, g->stream);
        if (status == cudaSuccess)
            status = cudaEventRecord(t->end, g->stream);
        if (status == cudaSuccess)
            status = cudaEventSynchronize(t->end);
        if (status == cudaSuccess)
            status = cudaEventElapsedTime(&ms, t->begin, t->end);
        if (status != cudaSuccess)
            return status;
        best_ms = fminf(best_ms, ms);
    }
    *out = (uint64_t)((double)bytes / (double)best_ms * 1e3);
    return cudaSuccess;
}

static int measure_link(void *self, uint64_t *out, struct gen_error *err)
{
    static const size_t bytes = (size_t)64 << 20;
    struct gpu *g = self;
    struct link_test t = {0};
    int status = cudaMallocHost(&t.host, bytes);
    if (status == cudaSuccess)
        status = cudaMalloc(&t.device, bytes);
    if (status == cudaSuccess)
        status = cudaEventCreate(&t.begin);
    if (status == cudaSuccess)
        status = cudaEventCreate(&t.end);
    if (status == cudaSuccess)
        status = time_copies(g, &t, bytes, out);
    if (t.begin != NULL)
        cudaEventDestroy(t.begin);
    if (t.end != NULL)
        cudaEventDestroy(t.end);
    cudaFree(t.device);
    cudaFreeHost(t.host);
    return check_cuda(status, "Measuring the link", err);
}

int gpu_backend_open(struct backend *out, const struct backend_settings *settings,
                     struct gen_error *err)
{
    struct gpu *g = calloc(1, sizeof *g);
    if (g == NULL)
        return gen_fail(err, "No memory for the forward pass.");
    g->model = settings->model;
    g->settings = *settings;
    if (open_all(g, err) != 0) {
        destroy(g);
        return -1;
    }
    *out = (struct backend){.name = "cuda",
                            .device = 0,
                            .stream = g->stream,
                            .out_type = RKV_TYPE_F16,
                            .self = g,
                            .run = run,
                            .destroy = destroy,
                            .measure_link = measure_link};
    return 0;
}
