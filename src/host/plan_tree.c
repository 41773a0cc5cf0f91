/* SPDX-License-Identifier: MIT
 *
 * plan_tree.c: rows of token trees.  Their own new cells are cut out of the
 * entry's spans, and come as one more node of each row, behind all leaves.
 */
#include "plan_work.h"

bool rkvi_plan_write_trees(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m)
{
    const rkvi_batch *b = v->batch;
    uint64_t slot = v->cfg->partial_slots;
    uint32_t cell = 0;
    p->n_tree_rows = 0;
    for (uint32_t e = 0; e < b->n_entries; e++)
        p->n_tree_rows += b->entries[e].is_tree ? b->entries[e].n_rows : 0;
    if (p->n_tree_rows == 0)
        return true;
    if (p->n_tree_rows > v->cfg->tree_slots ||
        !rkvi_mirror_room(p, m, p->n_tree_rows, sizeof(rkvi_tree_item), &p->trees_off))
        return false;
    rkvi_tree_item *out = (rkvi_tree_item *)(m->host + p->trees_off);
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_batch_entry *be = &b->entries[e];
        p->tree_slot0[e] = slot;
        for (uint32_t r = 0; be->is_tree && r < be->n_rows; r++)
            *out++ = (rkvi_tree_item){.mask = b->masks[be->row0 + r], .slot = slot++, .row0 = be->row0, .row = r,
                                      .cell0 = cell, .n_cells = be->n_new};
        cell += be->n_new;
    }
    return true;
}
