/* ops_ref.h: the entries of the plain C reference. */
#ifndef RKVI_OPS_REF_H
#define RKVI_OPS_REF_H

#include "ops_attend.h"

void rkvi_ref_open(const void *args, uint64_t index);
void rkvi_ref_store(const void *args, uint64_t index);
void rkvi_ref_patch(const void *args, uint64_t index);
void rkvi_ref_upload(const void *args, uint64_t index);
void rkvi_ref_decode(const void *args, uint64_t index);
void rkvi_ref_prefill(const void *args, uint64_t index);
void rkvi_ref_merge(const void *args, uint64_t index);
void rkvi_ref_rotate(const void *args, uint64_t index);
void rkvi_ref_tree_partial(const void *args, uint64_t index);
void rkvi_ref_move(const void *args, uint64_t index);
void rkvi_ref_publish(const void *args, uint64_t index);
void rkvi_ref_await(const void *args, uint64_t index);
void rkvi_ref_take(const void *args, uint64_t index);

/* a = merge(a, b), where neither is empty. */
void rkvi_ref_merge_into(rkvi_partial a, rkvi_partial b, uint32_t dv);
/* A row's root to its output, which is o / l; p.o is overwritten.  The sink joins
 * as a partial of one cell with V = 0. */
void rkvi_ref_put_out(const rkvi_merge_args *a, uint64_t row, uint32_t head, rkvi_partial p);
void rkvi_ref_copy(rkvi_partial dst, rkvi_partial src, uint32_t dv);

/* Pending nodes of one row and head. */
typedef struct rkvi_ref_tree {
    uint32_t n, dv;
    uint64_t leaf[RKVI_TREE_DEPTH];
    float m[RKVI_TREE_DEPTH], l[RKVI_TREE_DEPTH];
    float o[RKVI_TREE_DEPTH][RKVI_HEAD_DIM_MAX];
} rkvi_ref_tree;

rkvi_partial rkvi_ref_tree_at(rkvi_ref_tree *t, uint32_t i);
/* Room for the node that begins at `leaf`, after the merges due before it.  It
 * counts once t->n is raised. */
rkvi_partial rkvi_ref_tree_next(rkvi_ref_tree *t, uint64_t leaf);
/* The root; an empty partial when there are no nodes. */
rkvi_partial rkvi_ref_tree_root(rkvi_ref_tree *t);

#endif
