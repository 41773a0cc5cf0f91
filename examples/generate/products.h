/* SPDX-License-Identifier: MIT
 *
 * Matrix products of the host: by OpenBLAS, or by plain loops where the program is built without it.
 * Both give the same bits for the same sizes every time.
 */
#ifndef PRODUCTS_H
#define PRODUCTS_H

#include <stddef.h>

/* y[rows][outputs] = x[rows][inputs] * w[outputs][inputs]^T, plus y itself if keep is 1. Rows of x
 * lie x_stride floats apart. */
struct product {
    const float *w, *x;
    float *y;
    size_t outputs, inputs, x_stride;
    float keep;
};
void products_multiply(const struct product *p, size_t rows);

void products_set_threads(int threads);
/* "OpenBLAS", or what says that it is slow. */
const char *products_name(void);

/* To be called first of all in main; may start the program again (see products_blas.c). */
void products_start(char **argv);

#endif
