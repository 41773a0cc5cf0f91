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
 *
 * On a GPU what copies write takes bandwidth of the device's memory from the
 * products, more than its bytes; what the products lose beside copies without a
 * gap is measured in the same run, and the second bound is
 *
 *   bound beside copies = max(resident step + that loss * share of the step with copies, tail bytes / link)
 */
#ifndef CLIFF_H
#define CLIFF_H

#include "cliff_world.h"
#include "config.h"

#include <stdio.h>

#define CLIFF_POINTS_MAX 64u
#define CLIFF_RINGS_MAX 16u
#define CLIFF_CUDA_OTHER_STEPS 7u /* cuda: steps at a point beside the warm and measured ones */

typedef struct cliff_options {
    cliff_shape shape;
    cliff_machine machine;
    double points[CLIFF_POINTS_MAX]; /* tail time over compute, ascending */
    uint32_t n_points;
    uint32_t warm_steps, steps, window_tiles;
    uint64_t ring_bytes; /* 0: the library's choice */
    uint64_t most_tail_bytes; /* cuda: points beyond are cut to it */
    uint64_t seed;
    bool waits; /* the host waits for each step */
    bool graphs;      /* cuda: the ring once more, with products captured, and with whole steps */
    bool no_op_level; /* cuda: its figures stay 0 */
    uint32_t cpu_threads; /* cuda: the ring once more, with the CPU's share; 0: not */
    double cpu_bytes_per_s; /* by which the share is chosen; 0: measured */
    const char *commit; /* NULL: the build's */
} cliff_options;

typedef struct cliff_row {
    double point; /* as asked; of several, the one nearest to what came out */
    uint32_t first_point, n_points; /* of those asked, which come to the same tail */
    bool is_cut;                    /* cuda: to the largest tail; `point` is that one */
    cliff_result modes[CLIFF_MODES];
    cliff_result graphs[CLIFF_GRAPHS]; /* cuda, where asked for; [CLIFF_EAGER]: with RKV_FLAG_GRAPHS alone */
    cliff_result cpu; /* cuda, where asked for: with the CPU's share */
    rkvi_cpu_rates cpu_rates; /* by which the share was chosen */
    uint32_t cpu_share;       /* sixteenths of the tail beyond */
    uint64_t cpu_free_bytes;
    double tail_ns; /* tail bytes / link */
    double bound_ns, bound_launches_ns; /* cuda: the second is the bound beside copies */
    double extra_launches; /* of the ring, beyond the resident step's */
    double hidden;         /* share of the ring's copy time that does not lengthen the step */
    const char *cause;     /* cuda: of the ring step's length */
    double over_plain;     /* cuda: resident step over a plain read of weights, K and V */
} cliff_row;

/* cuda: the ways to carry out a product, and what came out for one size. */
typedef enum { CLIFF_CUBLAS, CLIFF_CUBLASLT, CLIFF_GEMV, CLIFF_KINDS } cliff_kind;
typedef struct cliff_product_figures {
    uint32_t in, out, n_tried; /* ways that could do it */
    cliff_kind kind;           /* chosen */
    double bytes_per_s[CLIFF_KINDS]; /* of W, the best of each kind; 0: none */
    bool is_even;                    /* all ways tried agreed to within 1 % of the largest element */
} cliff_product_figures;

#define CLIFF_PRODUCT_SIZES 16u

/* cuda: what it ran on. */
typedef struct cliff_gpu {
    char name[64], driver[64], cuda[64];
    uint64_t memory_bytes, weight_bytes;
    double plain_link_bytes_per_s, repeat; /* without repeats; how often a copy was carried out */
    double read_bytes_per_s;               /* best plain read of the weights */
    double products_ns, products_beside_ns; /* a step's products alone; while copies cross the link */
    cliff_product_figures products[CLIFF_PRODUCT_SIZES]; /* of each size */
    uint32_t n_products;
} cliff_gpu;

typedef struct cliff_curve {
    cliff_options options;
    cliff_sizes sizes;
    double link_bytes_per_s;
    cliff_row rows[CLIFF_POINTS_MAX];
    uint32_t n_rows; /* points that come to the same number of tiles are measured once: print says which */
    cliff_gpu gpu;
    double worst_over_bound; /* cuda: of the ring */
    uint32_t knee_row;       /* cuda: where tail time and compute are nearest to each other */
} cliff_curve;

/* Progress goes to `progress`, where there is one. */
rkv_status cliff_run(const cliff_options *options, FILE *progress, cliff_curve *out);
/* A curve for each size of the ring, in place of the options' one; cuda: what has no
 * ring is measured once for all. */
rkv_status cliff_run_rings(const cliff_options *options, const uint64_t *ring_bytes, uint32_t n, FILE *progress,
                           cliff_curve *out);

/* Another row, for the points asked from `first` on that come to as many tiles. */
cliff_row *cliff_row_add(cliff_curve *curve, uint32_t first_point);
/* Tail time over compute, as it came out; `point` is set by it where several were asked. */
double cliff_row_came_out(const cliff_row *row);
void cliff_row_settle(const cliff_curve *curve, cliff_row *row);

/* What a step with the CPU's share should take, by rates of the same run. */
typedef struct cliff_cpu_model {
    double bytes, share; /* of the tail; the CPU's part of them */
    double step_ns;        /* with the link as it is alone */
    double step_beside_ns; /* with the link as it is beside the threads, while they work */
} cliff_cpu_model;

cliff_cpu_model cliff_cpu_model_of(const cliff_curve *curve, const cliff_row *row);

void cliff_print(const cliff_curve *curve, FILE *file);
/* cuda: where each step's time went. */
void cliff_print_steps(const cliff_curve *curve, FILE *file);
void cliff_write_json(const cliff_curve *curve, FILE *file);
void cliff_write_svg(const cliff_curve *curve, FILE *file);

/* rollkv-bench cliff ARGUMENTS */
int cliff_main(int argc, char **argv);

#endif
