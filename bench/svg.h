/* SPDX-License-Identifier: MIT
 *
 * svg.h: a line chart with logarithmic axes.
 */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct svg_series {
    const char *label, *colour;
    bool is_dashed; /* a line without markers */
    const double *x, *y; /* ascending x; all above 0 */
} svg_series;

typedef struct svg_chart {
    const char *title, *subtitle, *x_label, *y_label;
    const svg_series *series;
    uint32_t n_series, n_points; /* of each series */
} svg_chart;

void svg_write(FILE *file, const svg_chart *chart);

#endif
