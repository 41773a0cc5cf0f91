/* SPDX-License-Identifier: MIT
 *
 * device_pool.c: see device_pool.h.
 *
 * A job lies on its caller's stack and hangs in the list while it has items
 * that nobody took.  Threads take runs of items by an atomic counter; joining
 * and leaving a job happens under the lock, which is also what makes the
 * items' results visible to the caller.
 */
#include "device_pool.h"
#include "diag.h"

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
    uint64_t run;             /* items taken at a time */
    _Atomic uint64_t next_item;
    uint32_t n_helpers;       /* threads of the pool within it */
} job;

struct rkvi_pool {
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
        const uint64_t from =
            atomic_fetch_add_explicit(&j->next_item, j->run, memory_order_relaxed);
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

static job *find_job(rkvi_pool *pool)
{
    job *j = pool->jobs;
    while (j && !has_items(j))
        j = j->next;
    return j;
}

static void *helper(void *arg)
{
    rkvi_pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        job *j = find_job(pool);
        if (!j) {
            pthread_cond_wait(&pool->has_work, &pool->lock);
            continue;
        }
        j->n_helpers++;
        pthread_mutex_unlock(&pool->lock);
        take_items(j);
        pthread_mutex_lock(&pool->lock);
        if (--j->n_helpers == 0)
            pthread_cond_broadcast(&pool->left);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

void rkvi_pool_run(rkvi_pool *pool, rkvi_op_fn fn, const void *args, uint64_t grid)
{
    job j = {.fn = fn, .args = args, .grid = grid};
    j.run = grid / ((uint64_t)RUNS_PER_THREAD * (pool->n_threads + 1));
    if (j.run == 0)
        j.run = 1;
    if (pool->n_threads == 0 || grid == 1) {
        take_items(&j);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    j.next = pool->jobs;
    pool->jobs = &j;
    if (grid - 1 < pool->n_threads)
        for (uint64_t i = 1; i < grid; i++)
            pthread_cond_signal(&pool->has_work);
    else
        pthread_cond_broadcast(&pool->has_work);
    pthread_mutex_unlock(&pool->lock);
    take_items(&j);
    pthread_mutex_lock(&pool->lock);
    job **link = &pool->jobs;
    while (*link != &j)
        link = &(*link)->next;
    *link = j.next;
    while (j.n_helpers)
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void rkvi_pool_destroy(rkvi_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->has_work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->has_work);
    pthread_cond_destroy(&pool->left);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

rkv_status rkvi_pool_create(uint32_t n_workers, rkvi_pool **out)
{
    const uint32_t n = n_workers ? n_workers - 1 : 0;
    rkvi_pool *pool = calloc(1, sizeof *pool + n * sizeof(pthread_t));
    if (!pool)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u workers", (unsigned)n_workers);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->has_work, NULL);
    pthread_cond_init(&pool->left, NULL);
    while (pool->n_threads < n) {
        if (pthread_create(&pool->threads[pool->n_threads], NULL, helper, pool)) {
            const uint32_t got = pool->n_threads + 1;
            rkvi_pool_destroy(pool);
            return rkvi_fail(RKV_E_SYSTEM, "the system refused worker thread %u of %u",
                             (unsigned)got, (unsigned)n);
        }
        pool->n_threads++;
    }
    *out = pool;
    return RKV_OK;
}
