/* SPDX-License-Identifier: MIT
 *
 * cliff_engine.h: the engine's own work of a decode step on a GPU: the matrix
 * products of a shape, with f16 weights of their true sizes, on one stream.
 *
 *   each site:  QKV | the library's attention | O, gate and up, down
 *   at the end: the vocabulary's product
 *
 * Norms, rotation and activation are left out.  Weights and inputs are random
 * and small, and no product but O's reads what another wrote, so that no value
 * grows from site to site.
 */
#ifndef CLIFF_ENGINE_H
#define CLIFF_ENGINE_H

#include "cliff_products.h"
#include "cliff_world.h"

#include <cuda_runtime_api.h>

typedef struct cliff_engine cliff_engine;

/* One row, dense; f16. */
typedef struct cliff_qkv {
    void *q, *k, *v, *out;
} cliff_qkv;

rkv_status cliff_engine_create(const cliff_shape *shape, cliff_engine **out);
void cliff_engine_destroy(cliff_engine *e);
cudaStream_t cliff_engine_stream(const cliff_engine *e);

rkv_status cliff_engine_before(cliff_engine *e, uint32_t site, cliff_qkv *out);
rkv_status cliff_engine_after(cliff_engine *e, uint32_t site);
rkv_status cliff_engine_head(cliff_engine *e);

/* Many rows to store: `out` has room for them, q, k and v are random and alike
 * for the same `salt`. */
rkv_status cliff_engine_rows(cliff_engine *e, uint32_t site, uint64_t salt, cliff_qkv *out);
#define CLIFF_ENGINE_ROWS 4096u

/* Of all weights; of those between this site's attention and the next one's,
 * the step's edge included. */
uint64_t cliff_engine_bytes(const cliff_engine *e);
uint64_t cliff_engine_gap_bytes(const cliff_engine *e, uint32_t site);
/* A step's products alone, median over some of CLIFF_ENGINE_TURNS steps; the best
 * plain read of the weights. */
rkv_status cliff_engine_products(cliff_engine *e, double *out_ns);
rkv_status cliff_engine_read(cliff_engine *e, double *out_bytes_per_s);
#define CLIFF_ENGINE_TURNS 11u

/* Of each size of products; returns how many there are. */
uint32_t cliff_engine_figures(const cliff_engine *e, cliff_product_figures out[CLIFF_PRODUCT_SIZES]);

/* Records "what: CUDA's sentence". */
rkv_status cliff_cuda_fail(cudaError_t error, const char *what);
#define CLIFF_CUDA(call) ((call) == cudaSuccess ? RKV_OK : cliff_cuda_fail(cudaGetLastError(), #call))

#endif
