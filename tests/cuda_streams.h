/* SPDX-License-Identifier: MIT
 *
 * cuda_streams.h: an executor with two streams, and memory on both sides, for
 * tests of the executor itself.
 */
#ifndef CUDA_STREAMS_H
#define CUDA_STREAMS_H

#include "cuda_fixture.h"

#include <cuda_runtime_api.h>

#define COUNT 1000u
#define BYTES (COUNT * sizeof(uint32_t))

typedef struct fixture {
    rkvi_device *d;
    void *a, *b; /* streams */
    uint32_t *dev[3];
    uint32_t *host[3]; /* pinned */
} fixture;

static inline int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->d = gpu_open();
    ok(rkvi_dev(stream_create, f->d, "a", &f->a));
    ok(rkvi_dev(stream_create, f->d, "b", &f->b));
    for (uint32_t i = 0; i < 3; i++) {
        void *p;
        ok(rkvi_dev(mem_alloc, f->d, BYTES, &p));
        f->dev[i] = p;
        ok(rkvi_dev(host_alloc, f->d, BYTES, &p));
        f->host[i] = p;
        for (uint32_t k = 0; k < COUNT; k++)
            f->host[i][k] = 10000u * i + k;
    }
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture *f = *state;
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* whatever the test did */
    for (int i = 0; i < 3; i++) {
        ok(rkvi_dev(mem_free, f->d, f->dev[i]));
        ok(rkvi_dev(host_free, f->d, f->host[i]));
    }
    ok(rkvi_dev(stream_destroy, f->d, f->a));
    ok(rkvi_dev(stream_destroy, f->d, f->b));
    rkvi_dev_destroy(f->d);
    free(f);
    return 0;
}

static inline rkv_status copy(fixture *f, rkvi_direction direction, void *dst, const void *src, void *stream)
{
    return gpu_copy(f->d, direction, dst, src, BYTES, stream);
}

#define with_fixture(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
