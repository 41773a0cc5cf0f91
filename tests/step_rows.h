/* SPDX-License-Identifier: MIT
 *
 * step_rows.h: the rows of a step against attention in f64 over the cells that
 * the record of the fixture holds, and beside plain code in f32.
 */
#ifndef STEP_ROWS_H
#define STEP_ROWS_H

#include "step_fixture.h"

typedef struct fx_errors {
    double ours, plain; /* squared errors */
    uint64_t n, n_empty;
} fx_errors;

/* Every `stride`th (row, head) of the last step. */
void fx_check_rows(const fx *w, uint32_t stride, fx_errors *sums);

#endif
