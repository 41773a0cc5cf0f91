/* SPDX-License-Identifier: MIT
 *
 * device_workers.c: see device_workers.h.
 *
 * A job lies on its caller's stack and hangs in the list while it has items
 * that nobody took.  Threads take runs of items by an atomic counter; joining
 * and leaving a job happens under the lock, which is also what makes the
 * items' results visible to the caller.
 */
#include "device_workers.h"
#include "diag.h"
#include "thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Runs per thread: enough to even out items of unlike cost. */
#define RUNS_PER_THREAD 8u

typedef struct job {
    struct job *next;
    rkvi_op_fn fn;
    const void *args;
    uint64_t grid;
    uint64_t run; /* items taken at a time */
    _Atomic uint64_t next_item;
    uint32_t n_helpers; /* threads of ours within it */
} job;

struct rkvi_workers {
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    pthread_cond_t left; /* a helper left a job */
    job *jobs;
    bool stop;
    uint32_t n_threads;
    pthread_t threads[];
};

static void take_items(job *j)
{
    for (;;) {
        const uint64_t from = atomic_fetch_add_explicit(&j->next_item, j->run, memory_order_relaxed);
        if (from >= j->grid)
            return;
        const uint64_t to = j->grid - from < j->run ? j->grid : from + j->run;
        for (uint64_t i = from; i < to; i++)
            j->fn(j->args, i);
    }
}

static bool has_items(job *j)
{
    return atomic_load_explicit(&j->next_item, memory_order_relaxed) < j->grid;
}

static job *find_job(rkvi_workers *w)
{
    job *j = w->jobs;
    while (j && !has_items(j))
        j = j->next;
    return j;
}

static void *helper(void *arg)
{
    rkvi_workers *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        job *j = find_job(w);
        if (!j) {
            pthread_cond_wait(&w->has_work, &w->lock);
            continue;
        }
        j->n_helpers++;
        pthread_mutex_unlock(&w->lock);
        take_items(j);
        pthread_mutex_lock(&w->lock);
        if (--j->n_helpers == 0)
            pthread_cond_broadcast(&w->left);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void rkvi_workers_run(rkvi_workers *w, rkvi_op_fn fn, const void *args, uint64_t grid)
{
    job j = {.fn = fn, .args = args, .grid = grid};
    j.run = grid / ((uint64_t)RUNS_PER_THREAD * (w->n_threads + 1));
    if (j.run == 0)
        j.run = 1;
    if (w->n_threads == 0 || grid == 1) {
        take_items(&j);
        return;
    }
    pthread_mutex_lock(&w->lock);
    j.next = w->jobs;
    w->jobs = &j;
    if (grid - 1 < w->n_threads)
        for (uint64_t i = 1; i < grid; i++)
            pthread_cond_signal(&w->has_work);
    else
        pthread_cond_broadcast(&w->has_work);
    pthread_mutex_unlock(&w->lock);
    take_items(&j);
    pthread_mutex_lock(&w->lock);
    job **link = &w->jobs;
    while (*link != &j)
        link = &(*link)->next;
    *link = j.next;
    while (j.n_helpers)
        pthread_cond_wait(&w->left, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

void rkvi_workers_destroy(rkvi_workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->has_work);
    pthread_mutex_unlock(&w->lock);
    rkvi_threads_join(w->threads, w->n_threads);
    pthread_cond_destroy(&w->has_work);
    pthread_cond_destroy(&w->left);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

rkv_status rkvi_workers_create(uint32_t n_workers, rkvi_workers **out)
{
    const uint32_t n = n_workers ? n_workers - 1 : 0;
    rkvi_workers *w = calloc(1, sizeof *w + n * sizeof(pthread_t));
    if (!w)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u workers", (unsigned)n_workers);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->has_work, NULL);
    pthread_cond_init(&w->left, NULL);
    w->n_threads = rkvi_threads_start(w->threads, n, helper, w, "rkv-worker");
    if (w->n_threads < n) {
        const uint32_t got = w->n_threads + 1;
        rkvi_workers_destroy(w);
        return rkvi_fail(RKV_E_SYSTEM, "the system refused worker thread %u of %u", (unsigned)got, (unsigned)n);
    }
    *out = w;
    return RKV_OK;
}
