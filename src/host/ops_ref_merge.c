/* Merges of the reference: the tree that decode grows leaf by leaf, and the
 * merge of nodes to one node or to the output. */
#include "ops_math.h"
#include "ops_ref.h"

void rkvi_ref_merge_into(rkvi_partial a, rkvi_partial b, uint32_t dv)
{
    const float m = *a.m > *b.m ? *a.m : *b.m;
    const float ea = rkvi_expf(*a.m - m), eb = rkvi_expf(*b.m - m);
    *a.m = m;
    *a.l = *a.l * ea + *b.l * eb;
    for (uint32_t i = 0; i < dv; i++)
        a.o[i] = a.o[i] * ea + b.o[i] * eb;
}

void rkvi_ref_copy(rkvi_partial dst, rkvi_partial src, uint32_t dv)
{
    *dst.m = *src.m;
    *dst.l = *src.l;
    memcpy(dst.o, src.o, dv * sizeof *dst.o);
}

rkvi_partial rkvi_ref_tree_at(rkvi_ref_tree *t, uint32_t i)
{
    return (rkvi_partial){.o = t->o[i], .m = &t->m[i], .l = &t->l[i]};
}

/* The lower of the top two takes the merge: it came first in the sequence. */
static void merge_top(rkvi_ref_tree *t)
{
    t->n--;
    rkvi_ref_merge_into(rkvi_ref_tree_at(t, t->n - 1), rkvi_ref_tree_at(t, t->n), t->dv);
}

rkvi_partial rkvi_ref_tree_next(rkvi_ref_tree *t, uint64_t leaf)
{
    while (t->n >= 2 && rkvi_tree_merges(t->leaf[t->n - 2], t->leaf[t->n - 1], leaf))
        merge_top(t);
    t->leaf[t->n] = leaf;
    return rkvi_ref_tree_at(t, t->n);
}

rkvi_partial rkvi_ref_tree_root(rkvi_ref_tree *t)
{
    while (t->n >= 2)
        merge_top(t);
    if (t->n == 0)
        rkvi_partial_clear(rkvi_ref_tree_at(t, 0), t->dv);
    return rkvi_ref_tree_at(t, 0);
}

/* One row and query head: its nodes to a root. */
static rkvi_partial reduce(const rkvi_merge_args *a, const rkvi_merge_item *item, uint32_t r,
                           uint32_t head, rkvi_ref_tree *t)
{
    t->n = 0;
    t->dv = a->dv;
    for (uint32_t i = 0; i < item->n_nodes; i++) {
        const rkvi_node *node = &a->nodes[item->node0 + i];
        const rkvi_partial p =
            rkvi_partial_at(a->partials, node->slot + r, a->q_heads, a->dv, head);
        if (*p.m == -INFINITY)
            continue;
        rkvi_ref_copy(rkvi_ref_tree_next(t, node->leaf0), p, a->dv);
        t->n++;
    }
    return rkvi_ref_tree_root(t);
}

void rkvi_ref_put_out(const rkvi_merge_args *a, uint64_t row, uint32_t head, rkvi_partial p)
{
    const float sink = a->sinks ? a->sinks[head] : -INFINITY;
    float m = *p.m, l = *p.l, e = 1;
    if (sink > -INFINITY) {
        const float top = m > sink ? m : sink;
        e = m == -INFINITY ? 0 : rkvi_expf(m - top);
        l = l * e + rkvi_expf(sink - top);
        m = top;
    }
    for (uint32_t i = 0; i < a->dv; i++)
        p.o[i] = *p.m == -INFINITY ? 0 : p.o[i] * e / l;
    rkvi_tensor_put(&a->out, row, head, a->dv, p.o);
    if (a->lse)
        a->lse[(int64_t)row * a->lse_row_stride + head] =
            m == -INFINITY ? m : (float)((double)m + rkvi_log((double)l));
}

void rkvi_ref_merge(const void *args, uint64_t index)
{
    const rkvi_merge_args *a = args;
    const rkvi_merge_item *item = &a->items[index / a->q_heads];
    const uint32_t head = (uint32_t)(index % a->q_heads);
    const rkvi_entry *entry = &a->entries[item->entry];
    rkvi_ref_tree t;
    for (uint32_t r = 0; r < item->n_rows; r++) {
        const rkvi_partial p = reduce(a, item, r, head, &t);
        if (item->dst == RKVI_TO_OUT)
            rkvi_ref_put_out(a, (uint64_t)entry->row0 + item->row + r, head, p);
        else
            rkvi_ref_copy(rkvi_partial_at(a->partials, item->dst + r, a->q_heads, a->dv, head), p,
                          a->dv);
    }
}
