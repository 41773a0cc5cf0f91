/* SPDX-License-Identifier: MIT
 *
 * cuda_fixture.h: what the GPU tests share.  Each is a program of its own, and
 * exits 77 where there is no GPU.
 */
#ifndef CUDA_FIXTURE_H
#define CUDA_FIXTURE_H

/* Over the fake runtime (tests/fake_cuda), which its build says. */
#ifndef FAKE_CUDA
#define FAKE_CUDA 0
#endif

#include "device_cuda.h"
#include "geometry.h"
#include "ops_ref.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ok(call) assert_int_equal(call, RKV_OK)
#define SKIPPED 77

static inline void gpu_or_skip(void)
{
    const char *why;
    if (rkvi_device_cuda_count(&why) > 0)
        return;
    printf("skipped: %s\n", why);
    exit(SKIPPED);
}

static inline rkvi_device *gpu_open(void)
{
    const rkvi_device_cuda_settings s = {.timed_events = true};
    rkvi_device *d = NULL;
    const rkv_status st = rkvi_device_cuda_create(&s, &d);
    if (st != RKV_OK)
        print_error("%s\n", rkvi_error_text());
    ok(st);
    return d;
}

static inline uint64_t gpu_seed(void)
{
    const char *text = getenv("ROLLKV_TEST_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : 20261129;
    printf("seed %llu (ROLLKV_TEST_SEED)\n", (unsigned long long)seed);
    return seed;
}

/* splitmix64 */
static inline uint64_t gpu_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* ROLLKV_TEST_ONE_IN=n leaves out all of a test's cases but one in n: for kernels that run slowly. */
static inline bool gpu_leaves_out(void)
{
    static uint64_t one_in, n;
    if (!one_in) {
        const char *text = getenv("ROLLKV_TEST_ONE_IN");
        one_in = text ? strtoull(text, NULL, 0) : 1;
        one_in = one_in ? one_in : 1;
    }
    return n++ % one_in != 0;
}

static inline rkv_status gpu_copy(rkvi_device *d, rkvi_direction direction, void *dst, const void *src,
                                  size_t bytes, void *stream)
{
    const rkvi_copy c = {
        .direction = direction, .dst = dst, .src = src, .width_bytes = bytes, .rows = 1};
    return rkvi_dev(copy, d, &c, stream);
}

/* Device memory with these bytes in it (NULL: whatever is there). */
static inline void *gpu_put(rkvi_device *d, const void *bytes, size_t n)
{
    void *p = NULL;
    ok(rkvi_dev(mem_alloc, d, n ? n : 1, &p));
    if (bytes && n)
        ok(gpu_copy(d, RKVI_H2D, p, bytes, n, NULL));
    ok(rkvi_dev(stream_sync, d, NULL));
    return p;
}

static inline void gpu_get(rkvi_device *d, void *bytes, const void *p, size_t n)
{
    ok(gpu_copy(d, RKVI_D2H, bytes, p, n, NULL));
    ok(rkvi_dev(stream_sync, d, NULL));
}

static inline void gpu_free(rkvi_device *d, void *p)
{
    ok(rkvi_dev(mem_free, d, p));
}

/* All items of an op, and then a wait for them. */
static inline void gpu_launch(rkvi_device *d, rkvi_op op, const void *args, size_t args_bytes,
                              uint64_t grid)
{
    const rkvi_launch l = {.op = op, .args = args, .args_bytes = (uint32_t)args_bytes, .grid = grid};
    ok(rkvi_dev(launch, d, &l, NULL));
    const rkv_status s = rkvi_dev(stream_sync, d, NULL);
    if (s != RKV_OK)
        print_error("%s\n", rkvi_error_text());
    ok(s);
}

#endif
