/* SPDX-License-Identifier: MIT
 *
 * cuda_wrap.h: calls of the CUDA runtime that fail on demand, and what is held
 * through them.  The linker puts these in front of the runtime's (--wrap), so
 * src/cuda is as it is, over a GPU or over the fake runtime.
 *
 * A call that fails does nothing, and its error stays as the last one, until
 * cudaGetLastError.  A call that gives something back fails after it has done so
 * (CUDA returns errors of earlier work from any call), so that what is still
 * held in the end is a leak.
 */
#ifndef CUDA_WRAP_H
#define CUDA_WRAP_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    WRAP_ANY, /* counts all kinds but WRAP_CONTEXT */
    WRAP_MALLOC,
    WRAP_HOST_ALLOC,
    WRAP_REGISTER,
    WRAP_STREAM_CREATE,
    WRAP_EVENT_CREATE,
    WRAP_RECORD,
    WRAP_WAIT,
    WRAP_EVENT_SYNC,
    WRAP_EVENT_QUERY,
    WRAP_STREAM_SYNC,
    WRAP_COPY,
    WRAP_FILL,
    WRAP_HOST_FUNC,
    WRAP_LAUNCH,
    WRAP_PREPARE,
    WRAP_INFO,
    WRAP_CAPTURE,
    WRAP_GRAPH,   /* instantiate, launch */
    WRAP_RELEASE, /* all that gives back */
    WRAP_CONTEXT, /* the driver's cuCtxGetCurrent, cuCtxPushCurrent */
    WRAP_KINDS
} wrap_kind;
extern const char *const wrap_names[WRAP_KINDS];

/* The nth call of that kind from now (0: none) gives this error.  Sticky: so
 * does every call after it, of whatever kind; what was enqueued has run. */
void wrap_arm(wrap_kind kind, uint64_t nth, int error, bool sticky);
/* Back to normal; true: the call was reached. */
bool wrap_disarm(void);
bool wrap_was_hit(void);
uint64_t wrap_calls(wrap_kind kind); /* so far */

typedef struct wrap_held {
    int64_t device, pinned, registered, streams, events, execs;
} wrap_held;
wrap_held wrap_holds(void);
/* Errors that no cudaGetLastError has cleared, over all threads. */
int64_t wrap_left_errors(void);

#endif
