/* step_clock.h: what a step takes without the tail's copies, by the host's clock.
 *
 * From begin to begin of decode steps that have no share on the CPU and whose tail
 * crosses in less time: so copies are hidden.  Steps that are enqueued ahead begin
 * at once until the tables are all in use, then as often as steps end; so the
 * median of many. */
#ifndef RKVI_STEP_CLOCK_H
#define RKVI_STEP_CLOCK_H

#include "config.h"

#include <stdatomic.h>

#define RKVI_CLOCK_STEPS 16u
#define RKVI_CLOCK_LEAST 8u

typedef struct rkvi_step_clock {
    uint64_t begun_ns;   /* 0: the last step does not count */
    uint64_t list_bytes; /* its own */
    uint64_t ns[RKVI_CLOCK_STEPS];
    uint64_t n;          /* so far */
    _Atomic uint64_t stamp_ns; /* step_cpu_rates.c: by a host call */
} rkvi_step_clock;

/* The open step, whose plan is made.  Nothing where the cache has no threads. */
void rkvi_step_clock_begin(rkv_cache *h);
/* 0: too few steps. */
uint64_t rkvi_step_clock_ns(const rkv_cache *h);

#endif
