/* SPDX-License-Identifier: MIT
 *
 * cpu_turn.h: q turned back by the threads of the CPU's share, for leaves whose
 * positions were shifted.
 *
 * The first thread that wants a turn of a KV head's query heads turns all of the
 * step's rows of it; others that want it meanwhile wait.  A job's ticket tells its
 * own from what jobs before have left, of which no thread takes part any more.
 *
 *   state:  [any other ticket] --claimed--> [ticket, being turned] --> [ticket, turned]
 */
#ifndef RKVI_CPU_TURN_H
#define RKVI_CPU_TURN_H

#include "ops.h"

#include <stdatomic.h>

/* Of a job: its args.turned points to this, and its decode is rkvi_cpu_turn_decode. */
typedef struct rkvi_cpu_turn {
    rkvi_rotate_args rotate; /* all pointers to host memory */
    uint64_t n_rows;         /* of rotate.rows */
    uint64_t ticket;
    _Atomic uint64_t *state; /* [turn * KV heads + head], of all jobs */
    rkvi_op_fn rotate_fn, decode;
} rkvi_cpu_turn;

/* RKVI_OP_DECODE for such a job. */
void rkvi_cpu_turn_decode(const void *args, uint64_t index);

#endif
