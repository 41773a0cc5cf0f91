/* SPDX-License-Identifier: MIT
 *
 * thread.c: see thread.h.
 */
#include "thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_bool has_names;

void rkvi_threads_name(bool on)
{
    atomic_store(&has_names, on);
}

int rkvi_thread_start(pthread_t *out, void *(*fn)(void *), void *arg, const char *name)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited */
    const int err = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!err && atomic_load(&has_names))
        pthread_setname_np(*out, name);
    return err;
}

uint32_t rkvi_threads_start(pthread_t *out, uint32_t n, void *(*fn)(void *), void *arg, const char *name)
{
    uint32_t i = 0;
    while (i < n && rkvi_thread_start(&out[i], fn, arg, name) == 0)
        i++;
    return i;
}

void rkvi_threads_join(const pthread_t *threads, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}
