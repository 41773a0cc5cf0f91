/* SPDX-License-Identifier: MIT
 *
 * device_host.h: the executor on CPU threads.
 *
 * A stream is a thread with a queue that grows as needed, so an enqueueing
 * call never blocks.  Launches spread over worker threads that all streams
 * share.  Device memory is mapped apart from host memory.  Each direction has
 * one link, taken in turn; a link with a set speed is occupied in wall time for
 * as long as the copy would take there, and times add up without drift: the
 * next copy counts from the moment at which the former one was due.
 *
 * Destroying it waits for pending work and frees what was left allocated.
 * device_core.h has failures on demand and what a fork does.
 */
#ifndef RKVI_DEVICE_HOST_H
#define RKVI_DEVICE_HOST_H

#include "device_core.h"

/* Zero is a sensible default everywhere. */
typedef struct rkvi_device_host_settings {
    uint32_t n_workers; /* 0: the CPUs that this process may use */
    rkvi_device_limits limits;
    rkvi_link_settings h2d, d2h; /* 0: as fast as memcpy goes */
    /* Tests: a random time up to delay_max_ns passes before each operation. */
    int64_t delay_max_ns;
    uint64_t delay_seed;
} rkvi_device_host_settings;

/* `s` may be NULL; `ops` must outlive the executor. */
rkv_status rkvi_device_host_create(const rkvi_device_host_settings *s, const rkvi_ops *ops,
                                   rkvi_device **out);

#endif
