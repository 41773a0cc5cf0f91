/* SPDX-License-Identifier: MIT
 *
 * thread.c: see thread.h.
 */
#include "thread.h"

#include <signal.h>
#include <stddef.h>

int rkvi_thread_start(pthread_t *out, void *(*fn)(void *), void *arg, const char *name)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited */
    const int err = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!err)
        pthread_setname_np(*out, name);
    return err;
}
