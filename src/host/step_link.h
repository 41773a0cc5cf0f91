/* SPDX-License-Identifier: MIT
 *
 * step_link.h: the link's rate, by plain copies of pinned host memory to the device.
 *
 *   stream | first copy || copy | copy | ... | copy |
 *   host    enqueue, wait^^enqueue all ......... wait^   bytes / time between
 *
 * The first copy wakes the link, and tells how many, and how large, the timed
 * ones are to be: a slow link is not kept busy for long.
 */
#ifndef RKVI_STEP_LINK_H
#define RKVI_STEP_LINK_H

#include "config.h"
#include "device.h"

typedef struct rkvi_step_link {
    rkvi_device *dev;
    void *stream;    /* nothing else is enqueued there meanwhile */
    void *dst;       /* on the device */
    const void *src; /* pinned */
    uint64_t copy_bytes;
    bool is_device_time; /* by the executor's clock; else by the machine's, as threads beside it are timed */
} rkvi_step_link;

uint64_t rkvi_step_link_rate(uint64_t bytes, uint64_t ns);
/* Enqueues n of them. */
rkv_status rkvi_step_link_copy(const rkvi_step_link *c, uint64_t n);
/* So many of them take about `ns`, but 64 MiB where those take less than 60 ms; at least one. */
uint64_t rkvi_step_link_count(uint64_t copy_bytes, uint64_t bytes_per_s, uint64_t ns);
/* copy_bytes is at most what crosses in 5 ms, in whole units, but one. */
void rkvi_step_link_cut(rkvi_step_link *c, uint64_t unit_bytes, uint64_t bytes_per_s);
/* The first copy is of first_bytes; the others (rkvi_step_link_count for ns) of copy_bytes, which is
 * cut.  On failure copies may still be enqueued. */
rkv_status rkvi_step_link_measure(rkvi_step_link *c, uint64_t first_bytes, uint64_t unit_bytes, uint64_t ns,
                                  uint64_t *out_bytes_per_s);

/* What the ring's rule wants and nobody gave: for a cache of these sizes, on this
 * executor, before it is made.  Takes at most 16 MiB of the device's memory (the
 * engine's allocator's, where there is one) and as much pinned host memory, no
 * more than the cache will, and has given it back on return.  0: not wanted, or
 * memory for it was refused, which is no failure. */
rkv_status rkvi_step_link_measure_new(rkvi_device *dev, const rkvi_config *cfg, uint64_t *out_bytes_per_s);

#endif
