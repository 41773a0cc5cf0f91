/* SPDX-License-Identifier: MIT
 *
 * device_cuda_impl.h: what the files of device_cuda share.
 */
#ifndef RKVI_DEVICE_CUDA_IMPL_H
#define RKVI_DEVICE_CUDA_IMPL_H

#include "device_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define RKVI_CUDA_POISON_BYTES 200

typedef struct cuda_device {
    rkvi_device base; /* first */
    int ordinal;
    CUcontext context;
    pid_t pid;
    bool timed_events;
    size_t max_pitch_bytes;
    atomic_bool is_poisoned;
    pthread_mutex_t lock; /* of poison_text, written once */
    char poison_text[RKVI_CUDA_POISON_BYTES];
} cuda_device;

/* What a call is, for its guard. */
enum {
    RKVI_CUDA_QUEUES = 1,  /* may be captured: the thread's capture mode stays */
    RKVI_CUDA_RELEASES = 2 /* is carried out on a poisoned executor too */
};

/* What a call found and puts back. */
typedef struct cuda_guard {
    bool pushed;
    bool relaxed;
    enum cudaStreamCaptureMode mode;
} cuda_guard;

/* device_cuda_context.c.  The driver's calls are found through the runtime, so
 * that the library does not need libcuda to load. */
rkv_status rkvi_cuda_context(int ordinal, CUcontext *out); /* current one on that device, or primary */
rkv_status rkvi_cuda_push(CUcontext context, bool *out_pushed);
void rkvi_cuda_pop(void);
rkv_status rkvi_cuda_enter(cuda_device *c, uint32_t flags, cuda_guard *g);
/* Puts back, and turns `e` into a status. */
rkv_status rkvi_cuda_leave(cuda_device *c, const cuda_guard *g, cudaError_t e, const char *what);

/* device_cuda_info.c */
/* c: the executor that asks, or NULL. */
rkv_status rkvi_cuda_info_in(cuda_device *c, CUcontext context, int ordinal, rkvi_device_info *out);

/* device_cuda_error.c.  Clears the runtime's last error and records a sentence. */
rkv_status rkvi_cuda_fail(cuda_device *c, cudaError_t e, const char *what); /* c may be NULL */
rkv_status rkvi_cuda_poisoned(cuda_device *c);

#endif
