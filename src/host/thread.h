/* SPDX-License-Identifier: MIT
 *
 * thread.h: how the library starts its threads.
 */
#ifndef RKVI_THREAD_H
#define RKVI_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a thread that no signal is delivered to: the program's handlers run on
 * the program's threads.  `name` (15 letters at most) is what debuggers and
 * profilers show, where threads are to have names.  Returns pthread_create's
 * error. */
int rkvi_thread_start(pthread_t *out, void *(*fn)(void *), void *arg, const char *name);
/* Several alike: how many there are, n or fewer where the system refused one. */
uint32_t rkvi_threads_start(pthread_t *out, uint32_t n, void *(*fn)(void *), void *arg, const char *name);
/* Whether threads that start from now on have names; they have none at first. */
void rkvi_threads_name(bool on);
void rkvi_threads_join(const pthread_t *threads, uint32_t n);

#endif
