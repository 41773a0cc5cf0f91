/* SPDX-License-Identifier: MIT
 *
 * cliff_products.h: products of a matrix and one row on a GPU, each size in the
 * fastest way found: cuBLAS's own choice, the algorithms that cuBLASLt proposes
 * (y as a column and as a row), and a kernel for one row (bench_cuda_gemv.h).
 * All are measured on the weights themselves, one after another, so that no
 * cache holds them.
 */
#ifndef CLIFF_PRODUCTS_H
#define CLIFF_PRODUCTS_H

#include "cliff.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

typedef struct cliff_products cliff_products;

/* y[out] = W[out][in] x[in]; W and x are f16, y is f32 or f16. */
typedef struct cliff_product {
    const void *w;
    uint32_t in, out;
    bool is_f32;
} cliff_product;

/* Chooses for all sizes in `all`; x and y are long enough for each of them. */
rkv_status cliff_products_create(const cliff_product *all, uint32_t n, const void *x, void *y, cudaStream_t stream,
                                 cliff_products **out);
void cliff_products_destroy(cliff_products *p);
rkv_status cliff_products_run(cliff_products *p, const cliff_product *product, const void *x, void *y);
/* Returns how many there are. */
uint32_t cliff_products_figures(const cliff_products *p, cliff_product_figures out[CLIFF_PRODUCT_SIZES]);

#endif
