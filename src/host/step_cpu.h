/* step_cpu.h: the CPU's share of a step: a launch whose items threads compute in
 * host memory.
 *
 *   caller's stream   publish | launches of the ring ...     | await | take | what is late | merge
 *                        \                                      /
 *   threads               +--> compute the items --------------+
 *
 * No host thread of the engine waits or takes part, so that all of it can be captured
 * and replayed; nothing of it exists without threads.  ops.h has the protocol,
 * cpu_desk.h the threads' side.  q and partials have one room in pinned memory. */
#ifndef RKVI_STEP_CPU_H
#define RKVI_STEP_CPU_H

#include "cpu_desk.h"
#include "cpu_team.h"
#include "cpu_turn.h"

typedef struct rkvi_step_cpu {
    rkvi_cpu_team *team; /* NULL: no share */
    rkvi_cpu_watch watch;
    rkvi_cpu_desk desk;
    rkvi_ops ops;
    float *q, *partials; /* pinned */
    uint64_t partial_bytes;
    rkvi_desk_state *state; /* device memory, followed by late_items */
    rkvi_item *late_items;
    /* A step's tables as its jobs read them: table_bytes each. */
    unsigned char *books;
    uint64_t *book_plan; /* [book] which plan's tables it holds (steady.plan); 0: none */
    uint32_t *book_of;   /* [tables] of the step that has them */
    uint32_t spare;      /* the book that is left */
    /* Where positions can be shifted: of the job that is out, but for turns. */
    rkvi_cpu_turn *turns; /* [book * n_sites + site] */
    _Atomic uint64_t *turn_state;
    float *turned;        /* as rkv_cache's own */
    uint64_t serial;     /* of the open step */
    uint64_t awaited;    /* newest ticket whose await is enqueued */
    bool is_out;         /* a job was sent, and no await is enqueued behind it */
    bool is_running;     /* a job of the open site; else its launch runs as others do, by the link */
} rkvi_step_cpu;

#endif
