/* SPDX-License-Identifier: MIT
 *
 * cpu_model.h: a step with a share of its tail on the CPU, in virtual time, and
 * the rule for that share against a sweep.
 *
 * The step is a sequence of sites as the library runs it: compute, q; at a site
 * with a tail the threads take their part while the ring's part crosses; the link
 * runs ahead of the readers as far as the ring has room, into the next step too.
 * The shares are those of the library's own plan.
 *
 *   compute | compute | hand-over, CPU's part ......... | compute | ...
 *   link      ring's part of this site and of the next ones, until the ring is full
 */
#ifndef CPU_MODEL_H
#define CPU_MODEL_H

#include "cliff_shape.h"
#include "config.h"

typedef struct cpu_model_machine {
    rkvi_cpu_rates rates; /* step_ns is the shape's */
    rkv_type type;        /* of K and V */
} cpu_model_machine;

/* The cache's configuration at full size, with threads and the share that the
 * rates come to; free it with rkvi_config_free. */
rkv_status cpu_model_config(const cliff_shape *shape, const cpu_model_machine *m, uint64_t most_tail_bytes,
                            rkvi_config *out);
/* With so much tail in all, by the shares in cfg. */
double cpu_model_step_s(const rkvi_config *cfg, uint64_t tail_bytes);
/* The least such step of a sweep over shares of the whole tail, none of it free;
 * cfg has other shares then. */
double cpu_model_best_s(rkvi_config *cfg, uint64_t tail_bytes, double *out_share);

/* rollkv-bench cpu-model */
int cpu_model_main(int argc, char **argv);

#endif
