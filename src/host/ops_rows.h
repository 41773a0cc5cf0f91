/* ops_rows.h: one row (the elements of one cell or of one tensor row) in f32.
 *
 * Storage types are read and written here and in the ISA kernels alone.
 */
#ifndef RKVI_OPS_ROWS_H
#define RKVI_OPS_ROWS_H

#include "ops.h"

/* K or V of one KV head in one tile-layer. */
typedef struct rkvi_plane {
    uint8_t *quants; /* of the tile's cell 0 */
    uint8_t *scales;
    uint32_t cell_bytes, scale_cell_bytes;
    uint32_t dim;
    rkv_type type;
    float scale; /* fp8 */
} rkvi_plane;

rkvi_plane rkvi_plane_k(const rkvi_geom *g, uint64_t base, uint32_t head);
rkvi_plane rkvi_plane_v(const rkvi_geom *g, uint64_t base, uint32_t head);

/* Dequantise, or quantise and saturate, `plane->dim` elements of a tile's cell. */
void rkvi_plane_get(const rkvi_plane *plane, uint32_t cell, float *out);
void rkvi_plane_put(const rkvi_plane *plane, uint32_t cell, const float *in);

/* Row of q, k or v to f32, and f32 to a row of out. */
void rkvi_tensor_get(const rkvi_tensor *t, uint64_t row, uint32_t head, uint32_t dim, float *out);
void rkvi_tensor_put(const rkvi_tensor *t, uint64_t row, uint32_t head, uint32_t dim,
                     const float *in);

#endif
