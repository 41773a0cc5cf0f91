/* SPDX-License-Identifier: MIT
 *
 * cliff_products.h: products of a matrix and one row on a GPU, as fast as
 * cuBLAS has them: for each size the fastest of cuBLAS's own choice and the
 * algorithms that cuBLASLt proposes, measured on the weights themselves.
 */
#ifndef CLIFF_PRODUCTS_H
#define CLIFF_PRODUCTS_H

#include "rollkv/types.h"

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
/* How many of the sizes run by an algorithm of cuBLASLt's, of how many. */
void cliff_products_chosen(const cliff_products *p, uint32_t *out_lt, uint32_t *out_all);

#endif
