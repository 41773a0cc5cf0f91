/* SPDX-License-Identifier: MIT
 *
 * cliff_shape.h: the shapes that are measured.
 */
#ifndef CLIFF_SHAPE_H
#define CLIFF_SHAPE_H

#include "cliff_world.h"

/* "qwen14b": 48 sites, all streaming, 8 KV heads of 128, 7 ms.
 * "gemma-a4b": 30 sites, every sixth one full and streaming (2 KV heads of
 * 512), the others with a sliding mask and resident (8 of 256), 14 ms. */
/* K and V of a cell of the site, as stored. */
uint64_t cliff_cell_bytes(const cliff_shape *shape, uint32_t site);
bool cliff_shape_named(const char *name, cliff_shape *out);

/* n sites alike, every `every`th one streaming. */
typedef struct cliff_custom {
    uint32_t n_sites, every, n_kv_heads, head_dim;
} cliff_custom;
bool cliff_shape_custom(const cliff_custom *custom, cliff_shape *out);

#endif
