/* SPDX-License-Identifier: MIT
 *
 * An engine with a CUDA runtime of its own (the shared one, loaded apart), its
 * own stream and allocator, and the shared library with the one that is linked
 * into it: in one process, in each other's way as little as two processes.
 * Values against the host executor.
 */
#include "rollkv/host.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SKIPPED 77
#define KV_HEADS 2u
#define Q_HEADS 6u
#define DIM 128u
#define ROWS 100u
#define STEPS 9u /* of ROWS rows, then as many of one row */

/* The engine's runtime.  Numbers are those of cudaMemcpyKind and cudaError. */
enum { H2D = 1, D2H = 2, INVALID_VALUE = 1, NON_BLOCKING = 1 };
static struct {
    int (*malloc)(void **, size_t);
    int (*free)(void *);
    int (*memcpy_async)(void *, const void *, size_t, int, void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_sync)(void *);
    int (*stream_destroy)(void *);
    int (*last_error)(void);
    int (*get_device)(int *);
} engine;

static bool load_runtime(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so",
                                        "/usr/local/cuda/lib64/libcudart.so"};
    static const struct {
        const char *name;
        void *fn;
    } calls[] = {{"cudaMalloc", &engine.malloc},
                 {"cudaFree", &engine.free},
                 {"cudaMemcpyAsync", &engine.memcpy_async},
                 {"cudaStreamCreateWithFlags", &engine.stream_create},
                 {"cudaStreamSynchronize", &engine.stream_sync},
                 {"cudaStreamDestroy", &engine.stream_destroy},
                 {"cudaGetLastError", &engine.last_error},
                 {"cudaGetDevice", &engine.get_device}};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; lib && i < sizeof calls / sizeof *calls; i++) {
        void *fn = dlsym(lib, calls[i].name);
        if (!fn)
            return false;
        memcpy(calls[i].fn, &fn, sizeof fn);
    }
    return lib != NULL;
}

static void *engine_alloc(void *user, uint64_t bytes)
{
    void *p = NULL;
    *(uint64_t *)user += bytes;
    return engine.malloc(&p, bytes) ? NULL : p;
}

static void engine_free(void *user, void *p, uint64_t bytes)
{
    *(uint64_t *)user -= bytes;
    assert_int_equal(engine.free(p), 0);
}

static void told(rkv_status s)
{
    if (s != RKV_OK)
        print_error("%s\n", rkv_error_message());
    assert_int_equal(s, RKV_OK);
}

static rkv_cache *make_cache(int32_t device, const rkv_allocator *allocator)
{
    const rkv_kv_layer_params layer = {.struct_size = sizeof layer,
                                       .n_kv_heads = KV_HEADS,
                                       .head_dim_k = DIM,
                                       .resident_cells = RKV_RESIDENT_NONE};
    const rkv_site_params site = {.struct_size = sizeof site, .n_q_heads = Q_HEADS};
    rkv_cache_params p = {.struct_size = sizeof p,
                          .device = device,
                          .kv_layers = &layer,
                          .sites = &site,
                          .n_kv_layers = 1,
                          .n_sites = 1,
                          .capacity_cells = 4096,
                          .tile_cells = 64,
                          .device_limit_bytes = (uint64_t)1 << 30,
                          .host_limit_bytes = (uint64_t)1 << 30};
    if (allocator)
        p.device_allocator = *allocator;
    rkv_cache *cache = NULL;
    told(rkv_cache_create(&p, &cache));
    return cache;
}

/* Inputs of one step, and what comes out of it. */
enum { Q_FLOATS = ROWS * Q_HEADS * DIM, KV_FLOATS = ROWS * KV_HEADS * DIM };
typedef struct tensors {
    float q[Q_FLOATS], k[KV_FLOATS], v[KV_FLOATS], out[Q_FLOATS];
} tensors;

static void fill(float *x, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((int64_t)(*state >> 40) - (1 << 23)) / (float)(1 << 23);
    }
}

static void step(rkv_cache *cache, tensors *at, uint32_t rows, void *stream)
{
    const rkv_batch_entry e = {.struct_size = sizeof e, .n_rows = rows, .n_new_cells = rows};
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = 1, .entries = &e};
    const rkv_attend_params a = {.struct_size = sizeof a,
                                 .q = {.data = at->q, .type = RKV_TYPE_F32},
                                 .k = {.data = at->k, .type = RKV_TYPE_F32},
                                 .v = {.data = at->v, .type = RKV_TYPE_F32},
                                 .out = {.data = at->out, .type = RKV_TYPE_F32}};
    told(rkv_step_begin(cache, &b));
    told(rkv_step_attend(cache, &a, stream));
    told(rkv_step_end(cache, NULL, stream));
}

static double largest_difference(const tensors *a, const float *b, uint32_t rows)
{
    double most = 0;
    for (size_t i = 0; i < (size_t)rows * Q_HEADS * DIM; i++)
        most = fmax(most, isnan(b[i]) ? INFINITY : fabs((double)a->out[i] - (double)b[i]));
    return most;
}

static void test_engine(void **state)
{
    (void)state;
    uint64_t held_bytes = 0, random = 1;
    const rkv_allocator allocator = {.alloc = engine_alloc, .free = engine_free, .user = &held_bytes};
    tensors *host = calloc(1, sizeof *host), *gpu = NULL;
    float *back = calloc(Q_FLOATS, sizeof *back);
    void *stream, *host_stream, *p = NULL;
    int device = -1;
    double most = 0;
    assert_int_equal(engine.malloc(&p, sizeof *gpu), 0);
    gpu = p;
    assert_int_equal(engine.stream_create(&stream, NON_BLOCKING), 0);
    rkv_cache *on_host = make_cache(RKV_DEVICE_HOST, NULL), *on_gpu = make_cache(0, &allocator);
    told(rkv_host_stream_create(on_host, &host_stream));
    assert_true(held_bytes > 0);
    assert_int_equal(engine.malloc(NULL, 1),
                     INVALID_VALUE); /* an error that the engine has yet to look at */
    for (uint32_t i = 0; i < 2 * STEPS; i++) {
        const uint32_t rows = i < STEPS ? ROWS : 1;
        fill(host->q, Q_FLOATS, &random);
        fill(host->k, KV_FLOATS, &random);
        fill(host->v, KV_FLOATS, &random);
        assert_int_equal(engine.memcpy_async(gpu, host, offsetof(tensors, out), H2D, stream), 0);
        step(on_gpu, gpu, rows, stream);
        assert_int_equal(engine.memcpy_async(back, gpu->out, sizeof gpu->out, D2H, stream), 0);
        step(on_host, host, rows, host_stream);
        assert_int_equal(engine.stream_sync(stream), 0);
        told(rkv_host_stream_sync(on_host, host_stream));
        most = fmax(most, largest_difference(host, back, rows));
    }
    printf("at most %.2g from the host executor's\n", most);
    assert_true(most < 0.01);
    assert_int_equal(engine.last_error(), INVALID_VALUE);
    assert_int_equal(engine.last_error(), 0);
    assert_int_equal(engine.get_device(&device), 0);
    assert_int_equal(device, 0);
    told(rkv_host_stream_destroy(on_host, host_stream));
    rkv_cache_destroy(on_host);
    rkv_cache_destroy(on_gpu);
    assert_int_equal(held_bytes, 0);
    assert_int_equal(engine.stream_destroy(stream), 0);
    assert_int_equal(engine.free(gpu), 0);
    assert_int_equal(engine.last_error(), 0);
    free(host);
    free(back);
}

int main(void)
{
    if (rkv_device_count() == 0 || !load_runtime()) {
        printf("skipped: no GPU, or no shared CUDA runtime\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_engine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
