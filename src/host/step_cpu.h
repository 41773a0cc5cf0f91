/* step_cpu.h: the CPU's share of a step: a launch whose items threads compute in
 * host memory.
 *
 *   caller's stream   carry q out | launches of the ring ...        | carry partials in | merge
 *                          \                                       /
 *   CPU's stream            +--> host call: threads compute ------+
 *
 * No host thread of the engine waits, and nothing of it exists without threads.
 * q and partials have one room in pinned memory: a site's q goes out after the
 * partials of the site before came in, by the caller's stream. */
#ifndef RKVI_STEP_CPU_H
#define RKVI_STEP_CPU_H

#include "cpu_team.h"
#include "timeline.h"

#include <stdatomic.h>

/* What a host call computes: one for each site and each of the steps in flight. */
typedef struct rkvi_cpu_job {
    rkvi_attend_args args; /* all pointers to host memory */
    uint64_t n_items;
    rkvi_op_fn decode;
    rkvi_cpu_team *team;
    _Atomic uint64_t *busy_ns; /* added to */
} rkvi_cpu_job;

typedef struct rkvi_step_cpu {
    rkvi_cpu_team *team; /* NULL: no share */
    rkvi_ops ops;
    rkvi_cpu_job *jobs;  /* [tables * n_sites + site] */
    float *q, *partials; /* pinned */
    uint64_t partial_bytes;
    void *stream;
    rkvi_timeline done;  /* of host calls */
    struct {
        uint64_t out, compute;
    } seen;              /* by the stream */
    _Atomic uint64_t busy_ns; /* in host calls, so far */
    bool is_running;     /* a host call of the open site; else the launch runs as others do, by the link */
} rkvi_step_cpu;

#endif
