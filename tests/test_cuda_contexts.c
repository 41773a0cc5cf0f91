/* SPDX-License-Identifier: MIT
 *
 * What the executor on a GPU promises to an engine in the same process: contexts,
 * streams, the device that is set and the last error stay the engine's; several
 * executors beside each other.
 */
#include "cuda_streams.h"

#include <cuda.h>
#include <pthread.h>

typedef struct driver_calls {
    CUresult (*ctx_create)(CUcontext *, unsigned, CUdevice);
    CUresult (*ctx_destroy)(CUcontext);
    CUresult (*ctx_get_current)(CUcontext *);
    CUresult (*ctx_set_current)(CUcontext);
} driver_calls;

/* Of the version in which a call got the arguments that we use. */
static void find(const char *name, unsigned version, void *out)
{
    enum cudaDriverEntryPointQueryResult found;
    void *fn = NULL;
#if CUDART_VERSION >= 12050
    assert_int_equal(cudaGetDriverEntryPointByVersion(name, &fn, version, cudaEnableDefault, &found),
                     cudaSuccess);
#else
    CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    assert_int_equal(cudaGetDriverEntryPoint("cuGetProcAddress", &fn, cudaEnableDefault, &found), cudaSuccess);
    memcpy(&get, &fn, sizeof get);
    assert_int_equal(get(name, &fn, (int)version, CU_GET_PROC_ADDRESS_DEFAULT, NULL), CUDA_SUCCESS);
#endif
    memcpy(out, &fn, sizeof fn);
}

static driver_calls driver(void)
{
    driver_calls c;
    find("cuCtxCreate", 3020, &c.ctx_create);
    find("cuCtxDestroy", 4000, &c.ctx_destroy);
    find("cuCtxGetCurrent", 4000, &c.ctx_get_current);
    find("cuCtxSetCurrent", 4000, &c.ctx_set_current);
    return c;
}

static driver_calls calls; /* found by a thread that may have a context */

static void *thread_without_context(void *arg)
{
    fixture *f = arg;
    const driver_calls c = calls;
    CUcontext now = NULL;
    assert_int_equal(c.ctx_get_current(&now), CUDA_SUCCESS);
    assert_null(now);
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[1], f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_int_equal(c.ctx_get_current(&now), CUDA_SUCCESS);
    assert_null(now);
    return f;
}

static void test_thread_without_context(void **state)
{
    pthread_t thread;
    void *done = NULL;
    calls = driver();
    assert_int_equal(pthread_create(&thread, NULL, thread_without_context, *state), 0);
    pthread_join(thread, &done);
    assert_ptr_equal(done, *state);
}

/* An engine with a context of its own, on the same GPU. */
static void test_engines_own_context(void **state)
{
    fixture *f = *state;
    const driver_calls c = driver();
    CUcontext before, own, now;
    rkvi_device *d;
    void *p, *s;
    assert_int_equal(c.ctx_get_current(&before), CUDA_SUCCESS);
    assert_int_equal(c.ctx_create(&own, 0, 0), CUDA_SUCCESS); /* now current */
    /* the one made before goes on in its context */
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[1], f->a));
    ok(copy(f, RKVI_D2H, f->host[2], f->dev[0], f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_memory_equal(f->host[2], f->host[1], BYTES);
    assert_int_equal(c.ctx_get_current(&now), CUDA_SUCCESS);
    assert_ptr_equal(now, own);
    /* a new one works in the engine's, also from where another is current */
    d = gpu_open();
    assert_int_equal(c.ctx_set_current(before), CUDA_SUCCESS);
    ok(rkvi_dev(stream_create, d, "s", &s));
    ok(rkvi_dev(mem_alloc, d, BYTES, &p));
    ok(gpu_copy(d, RKVI_H2D, p, f->host[0], BYTES, s));
    ok(rkvi_dev(delay, d, 1000, s)); /* a kernel, in that context's module */
    ok(gpu_copy(d, RKVI_D2H, f->host[2], p, BYTES, s));
    ok(rkvi_dev(stream_sync, d, s));
    assert_memory_equal(f->host[2], f->host[0], BYTES);
    assert_int_equal(c.ctx_get_current(&now), CUDA_SUCCESS);
    assert_ptr_equal(now, before);
    ok(rkvi_dev(mem_free, d, p));
    ok(rkvi_dev(stream_destroy, d, s));
    rkvi_dev_destroy(d);
    assert_int_equal(c.ctx_destroy(own), CUDA_SUCCESS);
}

/* The engine's stream, its device, and its pending error stay what they are. */
static void test_engines_runtime(void **state)
{
    fixture *f = *state;
    cudaStream_t mine;
    int n = 0, device = -1;
    assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
    assert_int_equal(cudaSetDevice(n - 1), cudaSuccess);
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[1], f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_int_equal(cudaGetDevice(&device), cudaSuccess);
    assert_int_equal(device, n - 1);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&mine), cudaSuccess);
    assert_int_equal(cudaMalloc(NULL, 1), cudaErrorInvalidValue); /* left by the engine */
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[1], mine));
    ok(rkvi_dev(delay, f->d, 1000, mine));
    ok(copy(f, RKVI_D2H, f->host[2], f->dev[0], mine));
    ok(rkvi_dev(stream_sync, f->d, mine));
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_memory_equal(f->host[2], f->host[1], BYTES);
    assert_int_equal(cudaStreamDestroy(mine), cudaSuccess);
}

static char came_to_its_end; /* a thread */

/* Several executors on a GPU, and one on each GPU, from several threads. */
static void *round_trips(void *arg)
{
    const rkvi_device_cuda_settings s = {.ordinal = (int32_t)(intptr_t)arg};
    rkvi_device *d;
    void *stream, *host, *dev;
    ok(rkvi_device_cuda_create(&s, &d));
    ok(rkvi_dev(stream_create, d, "s", &stream));
    ok(rkvi_dev(mem_alloc, d, 1 << 20, &dev));
    ok(rkvi_dev(host_alloc, d, 2 << 20, &host));
    for (int i = 0; i < 50; i++) {
        memset(host, i, 1 << 20);
        ok(gpu_copy(d, RKVI_H2D, dev, host, 1 << 20, stream));
        ok(rkvi_dev(delay, d, 1000 * (i % 7), stream));
        ok(gpu_copy(d, RKVI_D2H, (char *)host + (1 << 20), dev, 1 << 20, stream));
        ok(rkvi_dev(stream_sync, d, stream));
        assert_memory_equal(host, (char *)host + (1 << 20), 1 << 20);
    }
    ok(rkvi_dev(host_free, d, host));
    ok(rkvi_dev(mem_free, d, dev));
    ok(rkvi_dev(stream_destroy, d, stream));
    rkvi_dev_destroy(d);
    return &came_to_its_end;
}

static void test_several_executors(void **state)
{
    (void)state;
    enum { MOST = 8 };
    pthread_t threads[MOST];
    const uint32_t n_gpus = rkvi_device_cuda_count(NULL);
    for (uint32_t i = 0; i < MOST; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, round_trips, (void *)(intptr_t)(i % n_gpus)),
                         0);
    for (uint32_t i = 0; i < MOST; i++) {
        void *done = NULL;
        pthread_join(threads[i], &done);
        assert_ptr_equal(done, &came_to_its_end);
    }
    printf("%u executors over %u GPUs\n", (unsigned)MOST, n_gpus);
}

int main(void)
{
    gpu_or_skip();
    const struct CMUnitTest tests[] = {
        with_fixture(test_thread_without_context),
        with_fixture(test_engines_own_context),
        with_fixture(test_engines_runtime),
        cmocka_unit_test(test_several_executors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
