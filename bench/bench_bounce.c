/* SPDX-License-Identifier: MIT
 *
 * bench_bounce.c: copies between host memory and the device, pinned and through
 * the bounce buffer.  Measures, asserts nothing.
 *
 *   bench_bounce [--cuda]     on the first GPU; else on the host executor, whose
 *                             link has no set speed: both lines are memory's
 *
 * For each size of copy, GB/s each way, median of 5 runs of 256 MiB: with a tail
 * that is pinned, and with one of which only the bounce buffer is, as after a
 * refused registration.
 */
#include "arena.h"
#include "device_host.h"
#include "options.h"
#include "rkvi_config.h"
#if RKVI_HAVE_CUDA
#include "device_cuda.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
enum { RUNS = 5, TOTAL_MIB = 256, BUFFER_MIB = 64 };

static const rkvi_ops no_ops; /* copies and host calls need no kernels */
static rkvi_device_vt refusing; /* of a device that pins the bounce buffer alone */
static const rkvi_device_vt *usual;
static uint32_t n_pinned;

static void must(rkv_status s, const char *what)
{
    if (s == RKV_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, rkvi_error_text());
    exit(1);
}

static rkv_status pin_once(rkvi_device *d, void *ptr, size_t bytes)
{
    if (n_pinned++)
        return rkvi_fail(RKV_E_HOST_MEMORY, "refused by the bench");
    return usual->host_register(d, ptr, bytes);
}

static rkv_status alloc_nothing(rkvi_device *d, size_t bytes, void **out)
{
    (void)d, (void)bytes, (void)out;
    return rkvi_fail(RKV_E_HOST_MEMORY, "refused by the bench");
}

static rkvi_device *open_device(bool cuda)
{
    rkvi_device *d = NULL;
    if (cuda) {
#if RKVI_HAVE_CUDA
        const rkvi_device_cuda_settings s = {0};
        must(rkvi_device_cuda_create(&s, &d), "CUDA executor");
#else
        option_mistake("--cuda: this build has no CUDA executor");
        exit(2);
#endif
    } else {
        const rkvi_device_host_settings s = {.n_workers = 1};
        must(rkvi_device_host_create(&s, &no_ops, &d), "host executor");
    }
    return d;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct ends {
    rkvi_device *d;
    rkvi_arena *a;
    void *stream, *device, *host;
} ends;

static double gb_per_s(const ends *e, rkvi_direction dir, uint64_t bytes)
{
    double s[RUNS];
    for (uint32_t run = 0; run < RUNS; run++) {
        const double from = now_s();
        for (uint64_t at = 0; at < TOTAL_MIB * MIB; at += bytes) {
            unsigned char *device = (unsigned char *)e->device + at % (BUFFER_MIB * MIB);
            unsigned char *host = (unsigned char *)e->host + at % (BUFFER_MIB * MIB);
            const rkvi_copy c = {dir, dir == RKVI_H2D ? device : host, dir == RKVI_H2D ? host : device, bytes, 1, 0, 0};
            must(rkvi_arena_copy(e->a, &c, e->stream), "copy");
        }
        must(rkvi_dev(stream_sync, e->d, e->stream), "sync");
        s[run] = now_s() - from;
    }
    qsort(s, RUNS, sizeof *s, by_value);
    return (double)(TOTAL_MIB * MIB) / s[RUNS / 2] * 1e-9;
}

static void measure(rkvi_device *d, bool bounces, double out[4][2])
{
    ends e = {.d = d};
    const rkvi_arena_settings s = {.dev = d,
                                   .limit_bytes = BUFFER_MIB * MIB,
                                   .total_bytes = BUFFER_MIB * MIB,
                                   .bounce_bytes = 8 * MIB,
                                   .numa_node = -1};
    bool waited;
    n_pinned = 0;
    if (bounces)
        d->vt = &refusing;
    must(rkvi_arena_create(&s, &e.a), "arena");
    must(rkvi_arena_take(e.a, BUFFER_MIB * MIB, &e.host, &waited), "host memory");
    must(rkvi_dev(mem_alloc, d, BUFFER_MIB * MIB, &e.device), "device memory");
    must(rkvi_dev(stream_create, d, "bench", &e.stream), "stream");
    memset(e.host, 1, BUFFER_MIB * MIB);
    gb_per_s(&e, RKVI_H2D, MIB); /* warm */
    for (uint32_t i = 0; i < 4; i++) {
        out[i][0] = gb_per_s(&e, RKVI_H2D, MIB << 2 * i >> 2);
        out[i][1] = gb_per_s(&e, RKVI_D2H, MIB << 2 * i >> 2);
    }
    must(rkvi_dev(stream_destroy, d, e.stream), "stream");
    must(rkvi_dev(mem_free, d, e.device), "device memory");
    rkvi_arena_destroy(e.a);
    d->vt = usual;
}

static const char help[] =
    "bench_bounce: copies between host memory and the device, pinned and through the bounce buffer\n\n"
    "  --cuda   on the first GPU (else on the host executor)\n";

int main(int argc, char **argv)
{
    double pinned[4][2], bounced[4][2];
    rkvi_device_info info;
    bool cuda = false;
    option_of table[] = {{.name = "cuda", .kind = OPTION_FLAG, .to = &cuda}, {0}};
    const int go_on = options_parse("bench_bounce", help, table, argc, argv);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    rkvi_device *d = open_device(cuda);
    usual = d->vt;
    refusing = *usual;
    refusing.host_register = pin_once;
    refusing.host_alloc = alloc_nothing;
    must(rkvi_dev(info, d, &info), "info");
    measure(d, false, pinned);
    measure(d, true, bounced);
    printf(
        "%s, GB/s, median of %d\n\n   copy            in              out\n    MiB  pinned  bounce  pinned  bounce\n",
        info.name, RUNS);
    for (uint32_t i = 0; i < 4; i++)
        printf("%7.2f %7.2f %7.2f %7.2f %7.2f\n", (double)(1u << 2 * i) / 4, pinned[i][0], bounced[i][0], pinned[i][1],
               bounced[i][1]);
    rkvi_dev_destroy(d);
    return 0;
}
