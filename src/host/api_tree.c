/* SPDX-License-Identifier: MIT
 *
 * api_tree.c: token trees: an entry's mask and positions, and what is accepted.
 */
#include "api_internal.h"

#define U(x) ((unsigned long long)(x))
#define I(x) ((long long)(x))

rkv_status rkvi_api_need_accepted(const rkv_cache *cache, uint32_t sequence)
{
    const uint32_t n = rkvi_handle_sequence_tree(cache, sequence, NULL, NULL);
    if (n == 0)
        return RKV_OK;
    return rkvi_fail(RKV_E_STATE,
                     "sequence %u ends with the %u cells of a token tree; call rkv_sequence_accept for it first (with "
                     "no cells to give all of them up)",
                     sequence, n);
}

rkv_status rkvi_api_check_tree(const rkvi_config *cfg, uint32_t i, const rkv_batch_entry *e)
{
    const uint32_t most = cfg->draft_rows < RKVI_TREE_CELLS_MAX ? cfg->draft_rows : RKVI_TREE_CELLS_MAX;
    if (e->n_new_cells == 0)
        return rkvi_fail(RKV_E_BATCH, "entries[%u]: a tree_mask, but n_new_cells is 0: there is no tree", i);
    if (e->n_rows > most)
        return rkvi_fail(RKV_E_BATCH,
                         "entries[%u]: a token tree of %u rows; it has at most draft_rows, %u, and %u: verify fewer, "
                         "or create the cache with more draft_rows",
                         i, e->n_rows, cfg->draft_rows, RKVI_TREE_CELLS_MAX);
    if (!e->positions)
        return rkvi_fail(RKV_E_BATCH, "entries[%u]: a token tree's positions must be given", i);
    for (uint32_t r = 0; r < e->n_rows && e->n_rows < 64; r++)
        if (e->tree_mask[r] >> e->n_rows)
            return rkvi_fail(RKV_E_BATCH,
                             "entries[%u]: tree_mask[%u] is 0x%llx, but there are %u new cells: the bits beyond are 0",
                             i, r, U(e->tree_mask[r]), e->n_rows);
    return RKV_OK;
}

rkv_status rkvi_api_fill_tree(const rkv_batch_entry *e, const rkvi_api_end *end, rkvi_batch *out)
{
    for (uint32_t r = 0; r < e->n_rows; r++) {
        const int64_t pos = e->positions[r];
        if (pos < end->pos_end || pos >= RKV_POS_END)
            return rkvi_fail(RKV_E_BATCH,
                             "sequence %u, row %u: position %lld; a token tree's are at least %lld, the sequence's "
                             "end, and below 2^62",
                             e->sequence, r, I(pos), I(end->pos_end));
        out->rows[out->n_rows + r].pos = pos;
        out->masks[out->n_rows + r] = e->tree_mask[r];
        out->stored[out->n_rows + r] = (rkvi_row){.pos = end->pos_end + 1 + r, .to = RKV_POS_END};
    }
    return RKV_OK;
}

static rkv_status check_accepted(const uint32_t *cells, uint32_t n, const int64_t *pos, uint32_t n_tree, int64_t end)
{
    if (n > n_tree)
        return rkvi_fail(RKV_E_ARGUMENT, "%u cells are accepted, but the token tree has %u", n, n_tree);
    if (n && !cells)
        return rkvi_fail(RKV_E_ARGUMENT, "cells is NULL, but %u are announced", n);
    for (uint32_t i = 0; i < n; i++) {
        if (cells[i] >= n_tree || (i && cells[i] <= cells[i - 1]))
            return rkvi_fail(RKV_E_ARGUMENT, "cells[%u] is %u; they rise, and are below %u", i, cells[i], n_tree);
        if (pos[cells[i]] < end)
            return rkvi_fail(RKV_E_ARGUMENT,
                             "cells[%u]: cell %u is at position %lld, which does not come after the one accepted "
                             "before it; it must be at least %lld",
                             i, cells[i], I(pos[cells[i]]), I(end));
        end = pos[cells[i]] + 1;
    }
    return RKV_OK;
}

rkv_status rkv_sequence_accept(rkv_cache *cache, uint32_t sequence, const uint32_t *cells, uint32_t n_cells,
                               void *stream)
{
    const int64_t *pos = NULL;
    int64_t end = 0;
    uint32_t n_tree = 0;
    rkv_status s = rkvi_api_enter_change(cache, sequence, __func__);
    if (s != RKV_OK)
        return s;
    n_tree = rkvi_handle_sequence_tree(cache, sequence, &pos, &end);
    if (n_tree == 0)
        s = rkvi_fail(RKV_E_STATE, "sequence %u has no token tree to accept cells of", sequence);
    if (s == RKV_OK)
        s = check_accepted(cells, n_cells, pos, n_tree, end);
    if (s == RKV_OK)
        s = rkvi_step_accept(cache, sequence, cells, n_cells, stream);
    return rkvi_api_leave(cache, __func__, s);
}
