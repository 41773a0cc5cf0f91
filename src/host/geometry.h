/* geometry.h: types, sizes and layouts, with overflow checks.
 *
 * A tile-layer (T cells of one KV layer) is one run of bytes, KV head by KV
 * head; within a head K before V, and within K and V the quants before the
 * scales (planes), so that a head is one linear copy and all loads are 16-byte
 * aligned (T is at least 16):
 *
 *   tile-layer = [head 0][head 1] ... [head H-1][pad to RKVI_PLACE_ALIGN]
 *   head       = [K quants T x k_cell][K scales T x k_scale_cell][V quants ...][V scales ...]
 *
 * Cell c of head h: K at base + h * head_bytes + k_off + c * k_cell_bytes.
 * Types without scales have *_scale_cell_bytes 0.
 *
 *   f16, bf16  2 bytes an element
 *   fp8        1 byte; value = stored * k_scale (v_scale)
 *   q8_0       dim bytes of int8; dim/32 f16 scales; value = q * d
 *   q4_0       dim/2 bytes; dim/32 f16 scales; value = (nibble - 8) * d.
 *              Block b of a cell is 16 bytes: byte i holds element 32b+i in
 *              its low nibble and element 32b+16+i in its high one (as ggml).
 */
#ifndef RKVI_GEOMETRY_H
#define RKVI_GEOMETRY_H

#include "rollkv/types.h"

#include <stdbool.h>

#define RKVI_PLACE_ALIGN 256u
#define RKVI_BLOCK 32u          /* elements in a quantised block */
#define RKVI_SIZE_MAX ((uint64_t)1 << 62)
#define RKVI_TILE_MIN 16u
#define RKVI_TILE_MAX 4096u
#define RKVI_TILE_DEFAULT 256u
#define RKVI_HEAD_DIM_MAX 1024u

typedef struct rkvi_geom {
    uint32_t n_heads; /* KV heads */
    uint32_t dk, dv;
    rkv_type type_k, type_v;
    float k_scale, v_scale; /* fp8: value = stored * scale; 1 elsewhere */
    uint32_t tile_cells;    /* T */
    uint32_t leaf_cells;    /* L = min(T, table by head dims) */
    uint32_t k_cell_bytes, k_scale_cell_bytes;
    uint32_t v_cell_bytes, v_scale_cell_bytes;
    uint64_t k_off, k_scale_off, v_off, v_scale_off; /* within a head */
    uint64_t head_bytes;
    uint64_t bytes; /* of a tile-layer, device and host alike, with its padding */
} rkvi_geom;

/* Heads, dims and types are the same: what attention over it costs. */
static inline bool rkvi_geom_is_alike(const rkvi_geom *a, const rkvi_geom *b)
{
    return a->n_heads == b->n_heads && a->dk == b->dk && a->dv == b->dv && a->type_k == b->type_k &&
           a->type_v == b->type_v;
}

/* Of a tile-layer's cells, without its padding. */
static inline uint64_t rkvi_geom_cells_bytes(const rkvi_geom *g)
{
    return g->head_bytes * g->n_heads;
}

/* a * b and a + b into *out; false when it exceeds RKVI_SIZE_MAX. */
bool rkvi_mul(uint64_t a, uint64_t b, uint64_t *out);
bool rkvi_add(uint64_t a, uint64_t b, uint64_t *out);
uint64_t rkvi_div_up(uint64_t a, uint64_t b);
uint64_t rkvi_align_up(uint64_t a, uint64_t align);

const char *rkvi_type_name(rkv_type type);
bool rkvi_type_is_storage(rkv_type type);
bool rkvi_type_is_tensor(rkv_type type);
bool rkvi_type_is_quantised(rkv_type type); /* q8_0, q4_0: head dim a multiple of 32 */
uint32_t rkvi_tensor_type_bytes(rkv_type type); /* f32 4, f16 and bf16 2 */
uint32_t rkvi_leaf_cells(uint32_t tile_cells, uint32_t dk, uint32_t dv);

/* Fills the derived fields from the first ones (n_heads .. tile_cells);
 * fails with a sentence on what no layout exists for. */
rkv_status rkvi_geom_init(rkvi_geom *g);

#endif
