/* SPDX-License-Identifier: MIT
 *
 * cliff_engine.c: see cliff_engine.h.
 */
#include "cliff_engine.h"

#include "diag.h"

#include <stdlib.h>

#define PIECE_BYTES (((size_t)64 << 20) + 256) /* of random weights, repeated; not the period of a site */
#define ALIGN 256u
#define RUNS (CLIFF_ENGINE_TURNS - 2)

int bench_cuda_read(const void *p, uint64_t bytes, uint32_t *sink, uint32_t n_blocks, void *stream);

typedef struct product {
    uint64_t at; /* bytes, in the weights */
    uint32_t in, out;
} product;

enum { QKV, O, GATE_UP, DOWN, PRODUCTS };

struct cliff_engine {
    cliff_shape shape;
    product sites[CLIFF_SITES_MAX][PRODUCTS], head;
    uint64_t weight_bytes;
    char *weights;
    /* Activations: the products' constant input; what they write. */
    char *input, *qkv, *attended, *wide, *narrow, *logits;
    uint32_t *sink;
    cudaStream_t stream;
    cliff_products *products;
    cudaEvent_t from, to;
    uint32_t n_sm;
};

rkv_status cliff_cuda_fail(cudaError_t error, const char *what)
{
    const rkv_status s = error == cudaErrorMemoryAllocation ? RKV_E_DEVICE_MEMORY : RKV_E_DEVICE_CALL;
    return rkvi_fail(s, "%s: %s", what, cudaGetErrorString(error));
}

/* -------------------------------------------------------------------- weights */

static product place(cliff_engine *e, uint64_t in, uint64_t out)
{
    const product p = {.at = e->weight_bytes, .in = (uint32_t)in, .out = (uint32_t)out};
    e->weight_bytes += (in * out * 2 + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static void place_all(cliff_engine *e)
{
    const cliff_shape *s = &e->shape;
    for (uint32_t i = 0; i < s->n_sites; i++) {
        const cliff_site *site = &s->sites[i];
        const uint64_t q = (uint64_t)site->n_q_heads * site->head_dim, kv = (uint64_t)site->n_kv_heads * site->head_dim;
        e->sites[i][QKV] = place(e, s->hidden, q + 2 * kv);
        e->sites[i][O] = place(e, q, s->hidden);
        e->sites[i][GATE_UP] = place(e, s->hidden, 2 * (uint64_t)s->feed_forward);
        e->sites[i][DOWN] = place(e, s->feed_forward, s->hidden);
    }
    e->head = place(e, s->hidden, s->vocabulary);
}

/* About +-0.03 to +-0.12 as f16. */
static void fill_pattern(uint16_t *p, size_t n)
{
    uint64_t s = 88172645463325252u;
    for (size_t i = 0; i < n; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        p[i] = (uint16_t)(0x2800 | (s & 0x87ff));
    }
}

static rkv_status fill_weights(cliff_engine *e)
{
    uint16_t *pattern = malloc(PIECE_BYTES);
    if (!pattern)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %zu bytes of weights", PIECE_BYTES);
    fill_pattern(pattern, PIECE_BYTES / 2);
    rkv_status s = CLIFF_CUDA(cudaMemcpy(e->weights, pattern, PIECE_BYTES, cudaMemcpyHostToDevice));
    for (uint64_t at = PIECE_BYTES; at < e->weight_bytes && s == RKV_OK; at += PIECE_BYTES) {
        const uint64_t left = e->weight_bytes - at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        s = CLIFF_CUDA(cudaMemcpyAsync(e->weights + at, e->weights, bytes, cudaMemcpyDeviceToDevice, e->stream));
    }
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMemcpyAsync(e->input, e->weights, (size_t)64 << 10, cudaMemcpyDeviceToDevice, e->stream));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaStreamSynchronize(e->stream));
    free(pattern);
    return s;
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static rkv_status allocate(cliff_engine *e)
{
    uint64_t most_qkv = 0, most_q = 0;
    for (uint32_t i = 0; i < e->shape.n_sites; i++) {
        most_qkv = largest(most_qkv, e->sites[i][QKV].out);
        most_q = largest(most_q, e->sites[i][O].in);
    }
    rkv_status s = CLIFF_CUDA(cudaMalloc((void **)&e->weights, largest(e->weight_bytes, PIECE_BYTES)));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMalloc((void **)&e->input, (size_t)64 << 10));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMalloc((void **)&e->qkv, most_qkv * 2));
    if (s == RKV_OK) /* many rows' too */
        s = CLIFF_CUDA(cudaMalloc((void **)&e->attended, most_q * 2 * CLIFF_ENGINE_ROWS));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMalloc((void **)&e->wide, (size_t)e->shape.feed_forward * 4));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMalloc((void **)&e->narrow, (size_t)e->shape.hidden * 2));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMalloc((void **)&e->logits, (size_t)e->shape.vocabulary * 4));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaMalloc((void **)&e->sink, sizeof *e->sink));
    return s;
}

/* --------------------------------------------------------------------- create */

static cliff_product product_at(const cliff_engine *e, const product *p)
{
    return (cliff_product){.w = e->weights + p->at, .in = p->in, .out = p->out, .is_f32 = p == &e->head};
}

/* `logits` is the longest output. */
static rkv_status open_products(cliff_engine *e)
{
    cliff_product all[CLIFF_SITES_MAX * PRODUCTS + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->shape.n_sites; i++)
        for (uint32_t p = 0; p < PRODUCTS; p++)
            all[n++] = product_at(e, &e->sites[i][p]);
    all[n++] = product_at(e, &e->head);
    return cliff_products_create(all, n, e->input, e->logits, e->stream, &e->products);
}

static rkv_status open_all(cliff_engine *e)
{
    int n_sm = 0;
    rkv_status s = CLIFF_CUDA(cudaSetDevice(0));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaEventCreate(&e->from));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaEventCreate(&e->to));
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0));
    e->n_sm = (uint32_t)n_sm;
    if (s == RKV_OK)
        s = allocate(e);
    if (s == RKV_OK)
        s = fill_weights(e);
    return s == RKV_OK ? open_products(e) : s;
}

rkv_status cliff_engine_create(const cliff_shape *shape, cliff_engine **out)
{
    if (!shape->hidden)
        return rkvi_fail(RKV_E_ARGUMENT, "the shape %s has no weights; on a GPU there are gemma-a4b and qwen14b",
                         shape->name);
    cliff_engine *e = calloc(1, sizeof *e);
    if (!e)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for an engine");
    e->shape = *shape;
    place_all(e);
    const rkv_status s = open_all(e);
    if (s != RKV_OK)
        cliff_engine_destroy(e);
    else
        *out = e;
    return s;
}

void cliff_engine_destroy(cliff_engine *e)
{
    if (!e)
        return;
    if (e->stream)
        cudaStreamSynchronize(e->stream);
    cliff_products_destroy(e->products);
    void *const memory[] = {e->weights, e->input, e->qkv, e->attended, e->wide, e->narrow, e->logits, e->sink};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        cudaFree(memory[i]);
    if (e->from)
        cudaEventDestroy(e->from);
    if (e->to)
        cudaEventDestroy(e->to);
    if (e->stream)
        cudaStreamDestroy(e->stream);
    free(e);
}

cudaStream_t cliff_engine_stream(const cliff_engine *e)
{
    return e->stream;
}

/* ------------------------------------------------------------------- products */

static rkv_status multiply(cliff_engine *e, const product *p, const void *x, void *y)
{
    const cliff_product what = product_at(e, p);
    return cliff_products_run(e->products, &what, x, y);
}

rkv_status cliff_engine_before(cliff_engine *e, uint32_t site, cliff_qkv *out)
{
    const cliff_site *s = &e->shape.sites[site];
    const size_t q = (size_t)s->n_q_heads * s->head_dim * 2, kv = (size_t)s->n_kv_heads * s->head_dim * 2;
    *out = (cliff_qkv){.q = e->qkv, .k = e->qkv + q, .v = e->qkv + q + kv, .out = e->attended};
    return multiply(e, &e->sites[site][QKV], e->input, e->qkv);
}

rkv_status cliff_engine_after(cliff_engine *e, uint32_t site)
{
    rkv_status s = multiply(e, &e->sites[site][O], e->attended, e->narrow);
    if (s == RKV_OK)
        s = multiply(e, &e->sites[site][GATE_UP], e->input, e->wide);
    if (s == RKV_OK)
        s = multiply(e, &e->sites[site][DOWN], e->input, e->narrow);
    return s;
}

rkv_status cliff_engine_head(cliff_engine *e)
{
    return multiply(e, &e->head, e->input, e->logits);
}

/* Somewhere in the weights. */
static void *random_rows(const cliff_engine *e, uint64_t salt, uint64_t row_bytes)
{
    const uint64_t room = e->weight_bytes - row_bytes * CLIFF_ENGINE_ROWS;
    return e->weights + (salt * 0x9e3779b97f4a7c15u >> 16) % room / 16 * 16;
}

rkv_status cliff_engine_rows(cliff_engine *e, uint32_t site, uint64_t salt, cliff_qkv *out)
{
    const cliff_site *s = &e->shape.sites[site];
    const uint64_t q = (uint64_t)s->n_q_heads * s->head_dim * 2, kv = (uint64_t)s->n_kv_heads * s->head_dim * 2;
    const uint64_t from = (salt * CLIFF_SITES_MAX + site) * 3 + 1;
    *out = (cliff_qkv){.q = random_rows(e, from, q), .k = random_rows(e, from + 1, kv),
                       .v = random_rows(e, from + 2, kv), .out = e->attended};
    return RKV_OK;
}

/* -------------------------------------------------------------------- measure */

static uint64_t product_bytes(const product *p)
{
    return (uint64_t)p->in * p->out * 2;
}

uint64_t cliff_engine_bytes(const cliff_engine *e)
{
    return e->weight_bytes;
}

uint64_t cliff_engine_gap_bytes(const cliff_engine *e, uint32_t site)
{
    const bool is_last = site + 1 == e->shape.n_sites;
    uint64_t bytes = product_bytes(&e->sites[is_last ? 0 : site + 1][QKV]);
    for (uint32_t p = O; p < PRODUCTS; p++)
        bytes += product_bytes(&e->sites[site][p]);
    return bytes + (is_last ? product_bytes(&e->head) : 0);
}

static rkv_status all_products(cliff_engine *e)
{
    cliff_qkv qkv;
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < e->shape.n_sites && s == RKV_OK; i++) {
        s = cliff_engine_before(e, i, &qkv);
        if (s == RKV_OK)
            s = cliff_engine_after(e, i);
    }
    return s == RKV_OK ? cliff_engine_head(e) : s;
}

static rkv_status plain_read(cliff_engine *e)
{
    const int error = bench_cuda_read(e->weights, e->weight_bytes, e->sink, 4 * e->n_sm, e->stream);
    return error == 0 ? RKV_OK : cliff_cuda_fail((cudaError_t)error, "a plain read");
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Sorted milliseconds of `work`, after two turns to warm up. */
static rkv_status time_of(cliff_engine *e, rkv_status (*work)(cliff_engine *), float ms[RUNS])
{
    rkv_status s = work(e);
    if (s == RKV_OK)
        s = work(e);
    for (uint32_t i = 0; i < RUNS && s == RKV_OK; i++) {
        s = CLIFF_CUDA(cudaEventRecord(e->from, e->stream));
        if (s == RKV_OK)
            s = work(e);
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventRecord(e->to, e->stream));
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventSynchronize(e->to));
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventElapsedTime(&ms[i], e->from, e->to));
    }
    qsort(ms, RUNS, sizeof *ms, by_value);
    return s;
}

rkv_status cliff_engine_products(cliff_engine *e, double *out_ns)
{
    float ms[RUNS] = {0};
    const rkv_status s = time_of(e, all_products, ms);
    *out_ns = (double)ms[RUNS / 2] * 1e6;
    return s;
}

rkv_status cliff_engine_read(cliff_engine *e, double *out_bytes_per_s)
{
    float ms[RUNS] = {0};
    const rkv_status s = time_of(e, plain_read, ms);
    *out_bytes_per_s = s == RKV_OK ? (double)e->weight_bytes * 1e3 / (double)ms[0] : 0;
    return s;
}

uint32_t cliff_engine_figures(const cliff_engine *e, cliff_product_figures out[CLIFF_PRODUCT_SIZES])
{
    return cliff_products_figures(e->products, out);
}
