/* SPDX-License-Identifier: MIT
 *
 * device_sim.h: the executor in virtual time, one operation at a time.
 *
 * Enqueued operations stay in their streams' queues; they run when the host
 * waits (event_sync, stream_sync, destroying calls), asks (event_query) or
 * tells it to (rkvi_device_sim_run), on the calling thread, and no further than
 * that call needs.  So a host write that comes too early is seen by the pending
 * operation.  Host calls run with the executor's lock held: they must not call
 * the executor.
 *
 * RKVI_SIM_TIME    runs operations in the order of virtual time:
 *   copy           waits for its link (FIFO by readiness), occupies it as
 *                  device_core.h says
 *   launch         launch_ns + cost_bytes / device_bytes_per_s
 *   fill, D2D      launch_ns + bytes / device_bytes_per_s (D2D: twice the bytes)
 *   host call      host_call_ns
 *   delay          as asked
 *   Streams overlap freely but for the links.  The host has a clock too: each
 *   enqueueing call costs enqueue_ns, a wait takes it to the time of what was
 *   waited for, and an operation starts no earlier than it was enqueued.
 * RKVI_SIM_SEEDED  runs any operation that heads its stream and whose waits are
 *   done, picked at random by the seed.  Seeds differ in habit: some run one
 *   stream far ahead, some starve one, some run operations as soon as they are
 *   enqueued.  A missing edge shows as wrong data under some seed.
 */
#ifndef RKVI_DEVICE_SIM_H
#define RKVI_DEVICE_SIM_H

#include "device_core.h"

typedef enum { RKVI_SIM_TIME, RKVI_SIM_SEEDED } rkvi_sim_order;

/* See device_poison.h. */
typedef enum {
    RKVI_SIM_POISON_OFF,
    RKVI_SIM_POISON_DEVICE,
    RKVI_SIM_POISON_ALL /* pinned host memory too; slower */
} rkvi_sim_poison;

typedef struct rkvi_device_sim_settings {
    rkvi_sim_order order;
    uint64_t seed; /* of RKVI_SIM_SEEDED */
    rkvi_sim_poison poison;
    bool skip_fill;     /* else fresh device memory holds 0xFF bytes (NaN in every type) */
    uint32_t n_workers; /* as info reports it; 0: 1 */
    rkvi_device_limits limits;
    rkvi_link_settings h2d, d2h;
    bool hides_link;             /* info does not tell h2d's rate: it can be measured, as a GPU's */
    uint64_t device_bytes_per_s; /* 0: no time */
    int64_t launch_ns;
    int64_t host_call_ns;
    int64_t enqueue_ns; /* of the host, per enqueueing call */
} rkvi_device_sim_settings;

/* `s` may be NULL: RKVI_SIM_TIME, in which nothing takes time. */
rkv_status rkvi_device_sim_create(const rkvi_device_sim_settings *s, const rkvi_ops *ops,
                                  rkvi_device **out);

/* Sets links and device bandwidth to those of a measured H200 on PCIe 5 x16. */
void rkvi_device_sim_like_h200(rkvi_device_sim_settings *s);

/* Runs all that is enqueued; the host's clock stands still. */
void rkvi_device_sim_run(rkvi_device *d);
/* The host's clock. */
int64_t rkvi_device_sim_now_ns(rkvi_device *d);
/* The host is busy for a while. */
void rkvi_device_sim_host_work(rkvi_device *d, int64_t ns);
/* How long a link was occupied so far, by operations that ran. */
int64_t rkvi_device_sim_link_busy_ns(rkvi_device *d, rkvi_direction direction);

#endif
