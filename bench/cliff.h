/* SPDX-License-Identifier: MIT
 *
 * cliff.h: the cliff curve: step time against tail bytes, for all resident,
 * copies op by op, the ring, and what no schedule can beat:
 *
 *   bound = max(resident step, tail bytes / link)
 *
 * `link` is the bandwidth of the best plain copy of 64 MiB in the same run.
 * The ring cuts a site whose tail does not fit half of it into several
 * launches; those beyond the resident step's are counted, and in a second bound
 * their time is part of the compute:
 *
 *   bound with launches = max(resident step + extra launches * launch_ns, tail bytes / link)
 */
#ifndef CLIFF_H
#define CLIFF_H

#include "cliff_world.h"

#include <stdio.h>

#define CLIFF_POINTS_MAX 64u

typedef struct cliff_options {
    cliff_shape shape;
    cliff_machine machine;
    double points[CLIFF_POINTS_MAX]; /* tail time over compute, ascending */
    uint32_t n_points;
    uint32_t warm_steps, steps, window_tiles;
    uint64_t ring_bytes; /* 0: the library's choice */
    uint64_t seed;
    bool waits; /* the host waits for each step */
} cliff_options;

typedef struct cliff_row {
    double point; /* as asked; tail_ns / resident step is what came out */
    cliff_result modes[CLIFF_MODES];
    double tail_ns; /* tail bytes / link */
    double bound_ns, bound_launches_ns;
    double extra_launches; /* of the ring, beyond the resident step's */
    double hidden;         /* share of the ring's copy time that does not lengthen the step */
} cliff_row;

typedef struct cliff_curve {
    cliff_options options;
    cliff_sizes sizes;
    double link_bytes_per_s;
    cliff_row rows[CLIFF_POINTS_MAX];
    uint32_t n_rows; /* points that come to the same number of tiles are measured once */
} cliff_curve;

/* Progress goes to `progress`, where there is one. */
rkv_status cliff_run(const cliff_options *options, FILE *progress, cliff_curve *out);

void cliff_print(const cliff_curve *curve, FILE *file);
void cliff_write_json(const cliff_curve *curve, FILE *file);
void cliff_write_svg(const cliff_curve *curve, FILE *file);

/* rollkv-bench cliff ARGUMENTS */
int cliff_main(int argc, char **argv);

#endif
