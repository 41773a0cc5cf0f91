/* SPDX-License-Identifier: MIT
 *
 * step_near.h: outputs that may differ by rounding, as with the CPU's share.
 */
#ifndef STEP_NEAR_H
#define STEP_NEAR_H

#include "step_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>

#include <cmocka.h>

/* All of the last step's are within limit * (1 + |b's|); the first that is not is
 * printed. */
static inline bool fx_near(const fx *a, const fx *b, float limit)
{
    for (uint32_t site = 0; site < a->model.n_sites; site++) {
        const uint32_t heads = a->out[site].heads, dim = a->out[site].dim;
        for (uint32_t at = 0; at < a->n_rows * heads * dim; at++) {
            const uint32_t row = at / dim / heads, head = at / dim % heads;
            const float x = fx_out(a, site, row, head, at % dim), y = fx_out(b, site, row, head, at % dim);
            if (!(fabsf(x - y) <= limit * (1.0f + fabsf(y)))) {
                print_message("site %u, row %u, head %u: %g, not %g\n", site, row, head, (double)x, (double)y);
                return false;
            }
        }
    }
    return true;
}

#endif
