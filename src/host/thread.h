/* SPDX-License-Identifier: MIT
 *
 * thread.h: how the library starts its threads.
 */
#ifndef RKVI_THREAD_H
#define RKVI_THREAD_H

#include <pthread.h>

/* Starts a thread that no signal is delivered to: the program's handlers run on
 * the program's threads.  `name` (15 letters at most) is what debuggers and
 * profilers show.  Returns pthread_create's error. */
int rkvi_thread_start(pthread_t *out, void *(*fn)(void *), void *arg, const char *name);

#endif
