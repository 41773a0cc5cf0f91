/* SPDX-License-Identifier: MIT
 *
 * device_cuda.h: the executor on a CUDA device.
 *
 * Streams are cudaStream_t; NULL is the legacy default stream.  Its own streams
 * are non-blocking, so that neither they nor the legacy stream wait for each
 * other.
 *
 * Beside an engine.  The runtime is linked statically: its last error and its
 * thread's device are not the engine's.  The executor works in the context that
 * is current when it is made, if that one is on its device, else in the
 * device's primary context (which is kept for the life of the process, as the
 * runtime does); an engine's own context must outlive the executor.  Every call
 * makes the context current for its own length and puts back what was there; a
 * thread without one has none afterwards.
 *
 * Captures.  Calls that CUDA forbids during another thread's global-mode capture
 * (allocating, registering, creating, querying, synchronising) are made in
 * relaxed mode, whatever the thread's mode is; only enqueueing calls are not.
 *
 * Errors.  Every CUDA error becomes a status with a sentence, and is cleared
 * from the runtime.  Those after which CUDA answers nothing more in this
 * context poison the executor: each further call gives RKV_E_POISONED with the
 * first cause; what gives back does so as far as CUDA still can.
 *
 * Thread-safe.  Destroying it frees nothing that was left allocated, and does
 * nothing in the child of a fork.
 */
#ifndef RKVI_DEVICE_CUDA_H
#define RKVI_DEVICE_CUDA_H

#include "device.h"

/* Zero is the default everywhere. */
typedef struct rkvi_device_cuda_settings {
    int32_t ordinal;
    /* Events with time: event_elapsed works, records and waits cost more.  For
     * tests and benches. */
    bool timed_events;
} rkvi_device_cuda_settings;

/* GPUs; 0 without a driver, and then *out_why (NULL allowed) is the reason. */
uint32_t rkvi_device_cuda_count(const char **out_why);

/* What the executor on it would say, without making one. */
rkv_status rkvi_device_cuda_info(int32_t ordinal, rkvi_device_info *out);

/* Refuses a device for which this build has no machine code. */
rkv_status rkvi_device_cuda_create(const rkvi_device_cuda_settings *s, rkvi_device **out);

#endif
