/* ops_vec_merge.h: merges of partials in vectors.
 *
 * Decode, prefill and merge of a kernel set all use vec_merge, so that a node
 * has the same bits whichever of them computes it.
 */
#ifndef RKVI_OPS_VEC_MERGE_H
#define RKVI_OPS_VEC_MERGE_H

#include "ops_attend.h"
#include "ops_simd.h"

/* A node on its way to the root; o lies in scratch or in a partial's slot. */
typedef struct vec_node {
    const float *o;
    float m, l;
} vec_node;

/* `o` = a.o * ea + b.o * eb for `dim` elements, a multiple of 8. */
static inline void merge_rows(float *o, const float *a, float ea, const float *b, float eb,
                              uint32_t dim)
{
    uint32_t i = 0;
    for (; i + RKVI_LANES <= dim; i += RKVI_LANES)
        v_store(o + i, v_fma(v_load(b + i), v_set(eb), v_load(a + i) * v_set(ea)));
    for (; i < dim; i += 8) {
        const __m256 x = _mm256_loadu_ps(a + i) * _mm256_set1_ps(ea);
        _mm256_storeu_ps(o + i, _mm256_fmadd_ps(_mm256_loadu_ps(b + i), _mm256_set1_ps(eb), x));
    }
}

/* merge(a, b) of two nodes that are not empty, its o in `o` (may be a's or b's). */
static inline vec_node vec_merge(vec_node a, vec_node b, float *o, uint32_t dv)
{
    const float m = a.m > b.m ? a.m : b.m;
    const float ea = rkvi_expf(a.m - m), eb = rkvi_expf(b.m - m);
    merge_rows(o, a.o, ea, b.o, eb, dv);
    return (vec_node){.o = o, .m = m, .l = __builtin_fmaf(b.l, eb, a.l * ea)};
}

static inline void vec_put(rkvi_partial p, vec_node n, uint32_t dv)
{
    *p.m = n.m;
    *p.l = n.l;
    if (p.o != n.o)
        memcpy(p.o, n.o, dv * sizeof *p.o);
}

/* Pending nodes; merges write to the lower node's own room. */
typedef struct vec_tree {
    uint32_t n, dv;
    uint64_t leaf[RKVI_TREE_DEPTH];
    vec_node node[RKVI_TREE_DEPTH];
    float *room; /* `pitch` floats for each */
    uint32_t pitch;
} vec_tree;

static inline float *tree_room(const vec_tree *t, uint32_t i)
{
    return t->room + (size_t)i * t->pitch;
}

static inline void tree_merge_top(vec_tree *t)
{
    const uint32_t i = --t->n;
    t->node[i - 1] = vec_merge(t->node[i - 1], t->node[i], tree_room(t, i - 1), t->dv);
}

/* Merges what is due before the node that begins at `leaf`. */
static inline void tree_before(vec_tree *t, uint64_t leaf)
{
    while (t->n >= 2 && rkvi_tree_merges(t->leaf[t->n - 2], t->leaf[t->n - 1], leaf))
        tree_merge_top(t);
}

static inline void tree_push(vec_tree *t, uint64_t leaf, vec_node node)
{
    t->leaf[t->n] = leaf;
    t->node[t->n++] = node;
}

/* The root; false when there is none. */
static inline bool tree_root(vec_tree *t, vec_node *root)
{
    while (t->n >= 2)
        tree_merge_top(t);
    *root = t->node[0];
    return t->n > 0;
}

static inline bool merge_reduce(const rkvi_merge_args *a, const rkvi_merge_item *item, uint32_t r,
                                uint32_t head, vec_tree *t, vec_node *root)
{
    t->n = 0;
    for (uint32_t i = 0; i < item->n_nodes; i++) {
        const rkvi_node *node = &a->nodes[item->node0 + i];
        const rkvi_partial p =
            rkvi_partial_at(a->partials, node->slot + r, a->q_heads, a->dv, head);
        if (*p.m == -INFINITY)
            continue;
        tree_before(t, node->leaf0);
        tree_push(t, node->leaf0, (vec_node){.o = p.o, .m = *p.m, .l = *p.l});
    }
    return tree_root(t, root);
}

static inline void divide_row(float *out, const float *o, float e, float l, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i += 8)
        _mm256_storeu_ps(out + i,
                         _mm256_loadu_ps(o + i) * _mm256_set1_ps(e) / _mm256_set1_ps(l));
}

/* As the reference: the sink joins as a partial of one cell with V = 0. */
static inline void merge_out(const rkvi_merge_args *a, uint64_t row, uint32_t head,
                             const vec_node *root)
{
    const float sink = a->sinks ? a->sinks[head] : -INFINITY;
    float m = root ? root->m : -INFINITY, l = root ? root->l : 0, e = 1;
    if (sink > -INFINITY) {
        const float top = m > sink ? m : sink;
        e = root ? rkvi_expf(m - top) : 0;
        l = l * e + rkvi_expf(sink - top);
        m = top;
    }
    float out[RKVI_HEAD_DIM_MAX];
    if (root)
        divide_row(out, root->o, e, l, a->dv);
    else
        memset(out, 0, a->dv * sizeof *out);
    rkvi_tensor_put(&a->out, row, head, a->dv, out);
    if (a->lse)
        a->lse[(int64_t)row * a->lse_row_stride + head] =
            m == -INFINITY ? m : (float)((double)m + rkvi_log((double)l));
}

static void vec_op_merge(const void *args, uint64_t index)
{
    const rkvi_merge_args *a = args;
    const rkvi_merge_item *item = &a->items[index / a->q_heads];
    const uint32_t head = (uint32_t)(index % a->q_heads);
    const uint64_t row0 = (uint64_t)a->entries[item->entry].row0 + item->row;
    float room[RKVI_TREE_DEPTH * RKVI_HEAD_DIM_MAX]; /* touched as deep as the tree gets */
    vec_tree t = {.dv = a->dv, .pitch = a->dv, .room = room};
    for (uint32_t r = 0; r < item->n_rows; r++) {
        vec_node root;
        const bool any = merge_reduce(a, item, r, head, &t, &root);
        if (item->dst == RKVI_TO_OUT) {
            merge_out(a, row0 + r, head, any ? &root : NULL);
            continue;
        }
        const rkvi_partial p = rkvi_partial_at(a->partials, item->dst + r, a->q_heads, a->dv, head);
        if (any)
            vec_put(p, root, a->dv);
        else
            rkvi_partial_clear(p, a->dv);
    }
}

#endif
