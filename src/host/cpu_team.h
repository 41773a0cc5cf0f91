/* cpu_team.h: threads that compute a part of a step's attention in host memory.
 *
 *   thread:  asleep --job, or work that is due--> working --none left--> spinning --job--> working
 *               ^                                                         |
 *               +-- no job for RKVI_CPU_SPIN_NS; watched: nothing is due -+
 *
 * So work within a step finds them awake, and between steps they cost nothing.  Where
 * work that is due takes long to come, they look for it from nap to nap.
 * One job runs at a time; its caller works too. */
#ifndef RKVI_CPU_TEAM_H
#define RKVI_CPU_TEAM_H

#include "ops.h"

#define RKVI_CPU_SPIN_NS 2000000

typedef struct rkvi_cpu_team rkvi_cpu_team;

/* Work that nobody tells threads of: they look for it by themselves. */
typedef struct rkvi_cpu_watch {
    bool (*look)(void *arg,
                 uint32_t thread); /* does what there is; false: nothing.  Threads but the caller: [0, n - 1) */
    bool (*is_due)(void *arg); /* else threads may sleep until they are woken */
    void *arg;
} rkvi_cpu_watch;

/* Threads, the caller of jobs among them, run on the CPUs of a NUMA node (-1:
 * wherever the caller may run), as far as the system allows it. */
rkv_status rkvi_cpu_team_create(uint32_t n_threads, int32_t numa_node, rkvi_cpu_team **out);
/* No job may be running; NULL is legal.  Waits for threads that look.  In a fork's
 * child, where there are none, nothing is released. */
void rkvi_cpu_team_destroy(rkvi_cpu_team *t);
/* fn(args, i) for i in [0, n), in any order; returns when all are done. */
void rkvi_cpu_team_run(rkvi_cpu_team *t, rkvi_op_fn fn, const void *args, uint64_t n);
/* Once; the watch stays the caller's, until destroy. */
void rkvi_cpu_team_watch(rkvi_cpu_team *t, const rkvi_cpu_watch *watch);
void rkvi_cpu_team_wake(rkvi_cpu_team *t); /* after is_due has become true */

#endif
