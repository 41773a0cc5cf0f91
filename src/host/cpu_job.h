/* cpu_job.h: what threads of the CPU's share compute of a site, and how it is divided
 * among them.
 *
 * A unit is one KV head of a part of an item.  Parts are aligned runs of an item's
 * leaves, or, where there are few leaves, aligned runs of a leaf's cells:
 *
 *   item            |  leaf 8   |  leaf 9   |  leaf 10  |  leaf 11  |
 *   part_leaves 2           0   |                  1                |
 *   leaf_parts 2      0  |  1   |  2  |  3  |  4  |  5  |  6  |  7  |
 *
 * So few partials cross the link, and yet threads end at about the same time.  A part's
 * partial goes to a slot behind those of the items; whoever ends the last part of
 * an item's head merges them, in the tree's order, so that bits depend on the cut alone. */
#ifndef RKVI_CPU_JOB_H
#define RKVI_CPU_JOB_H

#include "ops.h"

#include <stdatomic.h>

typedef struct rkvi_cpu_job {
    rkvi_attend_args args; /* all pointers to host memory; max_rows slots an item */
    rkvi_op_fn decode, merge;
    uint64_t n_items;
    uint32_t leaf_parts, part_leaves; /* one of them is 1; part_leaves 0: items are not divided */
} rkvi_cpu_job;

#define RKVI_CPU_PARTS_MOST 64u /* of an item */

/* Divides the items into `wanted` units or a few more, as long as parts have 32 cells, an
 * item RKVI_CPU_PARTS_MOST of them, and partials `room` bytes.  `merge` is set. */
void rkvi_cpu_job_divide(rkvi_cpu_job *j, uint64_t wanted, uint64_t room);
uint64_t rkvi_cpu_job_units(const rkvi_cpu_job *j);
/* By any thread, each unit once.  over[item * KV heads + head] counts parts that are
 * over: 0 before a job's first unit and after its last one; fewer than `wanted` of them
 * are used.  `is_wanted` false: nobody waits for the job any more, so that it is only
 * counted. */
void rkvi_cpu_job_run(const rkvi_cpu_job *j, uint64_t unit, _Atomic uint32_t *over, bool is_wanted);

#endif
