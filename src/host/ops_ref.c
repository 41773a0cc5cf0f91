#include "ops_ref.h"

void rkvi_ref_open(const void *args, uint64_t index)
{
    const rkvi_open_args *a = args;
    memset((void *)(uintptr_t)a->bases[a->base_index[index]], 0, a->bytes);
}

void rkvi_ref_store(const void *args, uint64_t index)
{
    const rkvi_store_args *a = args;
    const uint32_t head = (uint32_t)(index % a->geom.n_heads);
    const rkvi_new_cell *c = &a->cells[index / a->geom.n_heads];
    const uint64_t base = a->bases[c->base];
    const rkvi_plane k = rkvi_plane_k(&a->geom, base, head);
    const rkvi_plane v = rkvi_plane_v(&a->geom, base, head);
    float x[RKVI_HEAD_DIM_MAX];
    rkvi_tensor_get(&a->k, c->row, head, k.dim, x);
    rkvi_plane_put(&k, c->cell, x);
    rkvi_tensor_get(&a->v, c->row, head, v.dim, x);
    rkvi_plane_put(&v, c->cell, x);
}

void rkvi_ref_patch(const void *args, uint64_t index)
{
    const rkvi_patch_args *a = args;
    const rkvi_patch *p = &a->patches[index];
    memcpy(a->dst + p->to, a->src + p->from, p->bytes);
}

void rkvi_ref_upload(const void *args, uint64_t index)
{
    const rkvi_upload_args *a = args;
    const uint64_t from = index * RKVI_UPLOAD_BYTES, left = a->bytes - from;
    memcpy(a->dst + from, a->src + from, left < RKVI_UPLOAD_BYTES ? left : RKVI_UPLOAD_BYTES);
}

void rkvi_ref_rotate(const void *args, uint64_t index)
{
    const rkvi_rotate_args *a = args;
    const uint32_t head = (uint32_t)(index % a->q_heads), n = a->n_pairs;
    const rkvi_turned_row *r = &a->rows[index / a->q_heads];
    const float *angles = a->angles + (uint64_t)r->angles * 2 * n;
    float *out = a->turned + r->turn * a->turned_stride + ((uint64_t)r->row * a->q_heads + head) * a->dk;
    rkvi_tensor_get(&a->q, r->row, head, a->dk, out);
    for (uint32_t p = 0; p < n; p++) {
        const uint32_t i = a->pairing ? 2 * p : p, j = a->pairing ? i + 1 : i + n;
        const float x = out[i], y = out[j], c = angles[2 * p], s = angles[2 * p + 1];
        out[i] = x * c - y * s;
        out[j] = x * s + y * c;
    }
}

static void move_cell(uint8_t *to, const uint8_t *from, uint64_t off, uint32_t to_cell, uint32_t from_cell,
                      uint32_t cell_bytes)
{
    memmove(to + off + (uint64_t)to_cell * cell_bytes, from + off + (uint64_t)from_cell * cell_bytes, cell_bytes);
}

void rkvi_ref_move(const void *args, uint64_t index)
{
    const rkvi_move_args *a = args;
    const rkvi_geom *g = &a->geom;
    for (uint32_t i = 0; i < a->n; i++) {
        const uint32_t to = a->first + i, from = a->first + a->from[i];
        uint8_t *x = (uint8_t *)(uintptr_t)a->tiles[to / g->tile_cells] + index * g->head_bytes;
        const uint8_t *y = (uint8_t *)(uintptr_t)a->tiles[from / g->tile_cells] + index * g->head_bytes;
        const uint32_t tc = to % g->tile_cells, fc = from % g->tile_cells;
        move_cell(x, y, g->k_off, tc, fc, g->k_cell_bytes);
        move_cell(x, y, g->k_scale_off, tc, fc, g->k_scale_cell_bytes);
        move_cell(x, y, g->v_off, tc, fc, g->v_cell_bytes);
        move_cell(x, y, g->v_scale_off, tc, fc, g->v_scale_cell_bytes);
    }
}

void rkvi_ops_ref(rkvi_ops *ops)
{
    ops->fn[RKVI_OP_PUBLISH] = rkvi_ref_publish;
    ops->fn[RKVI_OP_AWAIT] = rkvi_ref_await;
    ops->fn[RKVI_OP_TAKE] = rkvi_ref_take;
    ops->fn[RKVI_OP_OPEN] = rkvi_ref_open;
    ops->fn[RKVI_OP_STORE] = rkvi_ref_store;
    ops->fn[RKVI_OP_DECODE] = rkvi_ref_decode;
    ops->fn[RKVI_OP_PREFILL] = rkvi_ref_prefill;
    ops->fn[RKVI_OP_MERGE] = rkvi_ref_merge;
    ops->fn[RKVI_OP_PATCH] = rkvi_ref_patch;
    ops->fn[RKVI_OP_ROTATE] = rkvi_ref_rotate;
    ops->fn[RKVI_OP_TREE] = rkvi_ref_tree_partial;
    ops->fn[RKVI_OP_MOVE] = rkvi_ref_move;
    ops->fn[RKVI_OP_UPLOAD] = rkvi_ref_upload;
    ops->name = "ref";
}
