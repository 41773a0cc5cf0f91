/* SPDX-License-Identifier: MIT
 *
 * bench_link.c: see bench_link.h.  Sources rotate over memory that no cache has;
 * the thread sleeps between looks, so that it takes little of a core.
 */
#include "bench_link.h"

#include "options.h"
#include "rkvi_config.h"
#if RKVI_HAVE_CUDA
#include "device_cuda.h"
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE_BYTES ((uint64_t)16 << 20)
#define PIECES 64u /* 1 GiB */
#define DEPTH 8u   /* copies in the queue: some milliseconds */

struct bench_link {
    rkvi_device *dev;
    void *stream, *to;
    unsigned char *from;
    rkvi_event *done[DEPTH];
    pthread_t thread;
    _Atomic bool is_on, has_failed;
    _Atomic uint64_t n_done;
    uint64_t n_sent; /* the thread's */
};

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static rkv_status send_one(bench_link *l)
{
    const rkvi_copy copy = {.direction = RKVI_H2D, .dst = l->to, .src = l->from + l->n_sent % PIECES * PIECE_BYTES,
                            .width_bytes = PIECE_BYTES, .rows = 1};
    rkv_status s = rkvi_dev(copy, l->dev, &copy, l->stream);
    if (s == RKV_OK)
        s = rkvi_dev(event_record, l->dev, l->done[l->n_sent % DEPTH], l->stream);
    l->n_sent += s == RKV_OK;
    return s;
}

static rkv_status look(bench_link *l)
{
    bool is_done = true;
    rkv_status s = RKV_OK;
    for (uint64_t n = atomic_load(&l->n_done); n < l->n_sent && s == RKV_OK; n++) {
        s = rkvi_dev(event_query, l->dev, l->done[n % DEPTH], &is_done);
        if (s != RKV_OK || !is_done)
            break;
        atomic_store(&l->n_done, n + 1);
    }
    return s;
}

static void *run(void *arg)
{
    bench_link *l = arg;
    rkv_status s = RKV_OK;
    while (s == RKV_OK && (atomic_load(&l->is_on) || atomic_load(&l->n_done) < l->n_sent)) {
        while (s == RKV_OK && atomic_load(&l->is_on) && l->n_sent - atomic_load(&l->n_done) < DEPTH)
            s = send_one(l);
        sleep_us(100);
        if (s == RKV_OK)
            s = look(l);
    }
    if (s != RKV_OK) {
        option_mistake("copies beside: %s", rkvi_error_text());
        atomic_store(&l->has_failed, true);
    }
    return NULL;
}

#if RKVI_HAVE_CUDA
static rkv_status make_device(rkvi_device **out, const char **out_none)
{
    const rkvi_device_cuda_settings settings = {0};
    return rkvi_device_cuda_count(out_none) ? rkvi_device_cuda_create(&settings, out) : RKV_E_UNSUPPORTED;
}
#else
static rkv_status make_device(rkvi_device **out, const char **out_none)
{
    (void)out, (void)out_none;
    return rkvi_fail(RKV_E_UNSUPPORTED, "this build has no CUDA executor");
}
#endif

bool bench_link_open(bench_link **out, const char **out_none)
{
    bench_link *l = calloc(1, sizeof *l);
    void *from = NULL;
    *out_none = NULL;
    if (!l)
        return option_mistake("--beside: out of memory");
    rkv_status s = make_device(&l->dev, out_none);
    if (s == RKV_OK)
        s = rkvi_dev(host_alloc, l->dev, PIECES * PIECE_BYTES, &from);
    if (s == RKV_OK)
        memset(from, 1, PIECES * PIECE_BYTES);
    if (s == RKV_OK)
        s = rkvi_dev(mem_alloc, l->dev, PIECE_BYTES, &l->to);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, l->dev, "beside", &l->stream);
    for (uint32_t i = 0; i < DEPTH && s == RKV_OK; i++)
        s = rkvi_dev(event_create, l->dev, &l->done[i]);
    l->from = from;
    if (s == RKV_OK) {
        *out = l;
        return true;
    }
    if (!*out_none)
        option_mistake("--beside: %s", rkvi_error_text());
    bench_link_close(l);
    return false;
}

void bench_link_close(bench_link *l)
{
    if (!l)
        return;
    for (uint32_t i = 0; i < DEPTH; i++)
        if (l->done[i])
            rkvi_dev(event_destroy, l->dev, l->done[i]);
    if (l->stream)
        rkvi_dev(stream_destroy, l->dev, l->stream);
    if (l->to)
        rkvi_dev(mem_free, l->dev, l->to);
    if (l->from)
        rkvi_dev(host_free, l->dev, l->from);
    if (l->dev)
        rkvi_dev_destroy(l->dev);
    free(l);
}

bool bench_link_start(bench_link *l)
{
    const uint64_t before = atomic_load(&l->n_done);
    atomic_store(&l->is_on, true);
    if (pthread_create(&l->thread, NULL, run, l)) {
        atomic_store(&l->is_on, false);
        return option_mistake("--beside: no thread for the copies");
    }
    while (!atomic_load(&l->has_failed) && atomic_load(&l->n_done) < before + DEPTH)
        sleep_us(100);
    if (!atomic_load(&l->has_failed))
        return true;
    bench_link_stop(l);
    return false;
}

void bench_link_stop(bench_link *l)
{
    atomic_store(&l->is_on, false);
    pthread_join(l->thread, NULL);
}

uint64_t bench_link_bytes(const bench_link *l)
{
    return atomic_load(&l->n_done) * PIECE_BYTES;
}
