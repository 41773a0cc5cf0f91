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

void rkvi_ops_ref(rkvi_ops *ops)
{
    ops->fn[RKVI_OP_OPEN] = rkvi_ref_open;
    ops->fn[RKVI_OP_STORE] = rkvi_ref_store;
    ops->fn[RKVI_OP_DECODE] = rkvi_ref_decode;
    ops->fn[RKVI_OP_PREFILL] = rkvi_ref_prefill;
    ops->fn[RKVI_OP_MERGE] = rkvi_ref_merge;
    ops->fn[RKVI_OP_PATCH] = rkvi_ref_patch;
    ops->name = "ref";
}
