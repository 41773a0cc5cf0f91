/* cpu_team.h: threads that compute a part of a step's attention in host memory.
 *
 *   thread:  asleep --job--> working --no units left--> spinning --job--> working
 *               ^                                          |
 *               +------- no job for RKVI_CPU_SPIN_NS ------+
 *
 * So a job within a step finds them awake, and between steps they cost nothing.
 * One job runs at a time; its caller works too. */
#ifndef RKVI_CPU_TEAM_H
#define RKVI_CPU_TEAM_H

#include "ops.h"

#define RKVI_CPU_SPIN_NS 2000000

typedef struct rkvi_cpu_team rkvi_cpu_team;

/* Threads run on the CPUs of a NUMA node (-1: wherever the caller may run), as
 * far as the system allows it. */
rkv_status rkvi_cpu_team_create(uint32_t n_threads, int32_t numa_node, rkvi_cpu_team **out);
void rkvi_cpu_team_destroy(rkvi_cpu_team *t); /* no job may be running; NULL is legal */
/* fn(args, i) for i in [0, n), in any order; returns when all are done. */
void rkvi_cpu_team_run(rkvi_cpu_team *t, rkvi_op_fn fn, const void *args, uint64_t n);

#endif
