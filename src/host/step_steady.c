/* SPDX-License-Identifier: MIT
 *
 * step_steady.c: the step after, where nothing but lengths changed.
 *
 * In decode, most steps are the one before with every sequence a few cells
 * longer: the same tiles at the same addresses, the same leaves but for the last
 * ones' counts, the same items, the same list.  Then the image of the tables is
 * the former one with new rows, new cells and those counts, and there is nothing
 * to plan; nor to copy, where the step's mirror held a step of the same plan. */
#include "step_types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

rkv_status rkvi_step_steady_init(rkv_cache *h)
{
    rkvi_step_steady *t = &h->steady;
    t->batch.entries = calloc(h->cfg.n_sequences, sizeof *t->batch.entries);
    t->batch.rows = calloc(h->cfg.max_rows, sizeof *t->batch.rows);
    t->sizes = calloc(h->cfg.n_sequences, sizeof *t->sizes);
    if (t->batch.entries && t->batch.rows && t->sizes)
        return RKV_OK;
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a step's batch of %u rows", h->cfg.max_rows);
}

void rkvi_step_steady_free(rkv_cache *h)
{
    free(h->steady.batch.entries);
    free(h->steady.batch.rows);
    free(h->steady.sizes);
}

void rkvi_step_steady_keep(rkv_cache *h)
{
    rkvi_step_steady *t = &h->steady;
    const rkvi_batch *b = &h->batch;
    t->batch.n_entries = b->n_entries;
    t->batch.n_rows = b->n_rows;
    memcpy(t->batch.entries, b->entries, b->n_entries * sizeof *b->entries);
    memcpy(t->batch.rows, b->rows, b->n_rows * sizeof *b->rows);
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_seq *s = &h->cache.seqs[b->entries[e].sequence];
        t->sizes[e] = (rkvi_steady_size){s->n_cells, s->n_tiles, s->n_segments};
    }
    t->layout = h->cache.layout;
    t->tables = h->now->mirror.host;
    t->is_valid = true;
}

/* ------------------------------------------------------------------- is it so? */

static bool same_rows(const rkvi_step_steady *t, const rkvi_batch *b, const rkvi_batch_entry *be)
{
    for (uint32_t r = be->row0; r < be->row0 + be->n_rows; r++) {
        const rkvi_row *x = &t->batch.rows[r], *y = &b->rows[r];
        if (y->pos != x->pos + be->n_new || y->from != x->from || y->to != x->to)
            return false;
    }
    return true;
}

/* The last step's tables. */
static const unsigned char *tables_of(const rkv_cache *h)
{
    return h->graphs ? h->image.host : h->steady.tables;
}

/* New cells go on with the last segment, in the leaf that holds its last cell. */
static bool grows_in_place(const rkv_cache *h, const rkvi_steady_size *was, const rkvi_batch_entry *be)
{
    const rkvi_seq *s = &h->cache.seqs[be->sequence];
    if (s->n_cells != was->n_cells + be->n_new || s->n_tiles != was->n_tiles || s->n_segments != was->n_segments)
        return false;
    const uint32_t fill = rkvi_seq_last_fill(s);
    for (uint32_t c = 0; c < h->cfg.n_leaf_classes && be->n_new; c++)
        if (fill <= be->n_new || (fill - be->n_new - 1) / h->cfg.leaf_cells[c] != (fill - 1) / h->cfg.leaf_cells[c])
            return false;
    return true;
}

static bool same_entries(const rkv_cache *h)
{
    const rkvi_step_steady *t = &h->steady;
    const rkvi_batch *b = &h->batch;
    if (b->n_entries != t->batch.n_entries || b->n_rows != t->batch.n_rows)
        return false;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_batch_entry *x = &t->batch.entries[e], *y = &b->entries[e];
        if (y->sequence != x->sequence || y->n_rows != x->n_rows || y->n_new != x->n_new || y->is_prefill ||
            x->is_prefill || y->is_tree || x->is_tree || !same_rows(t, b, y) || !grows_in_place(h, &t->sizes[e], y))
            return false;
    }
    return true;
}

/* A mask that moves along still begins in the same leaf. */
static bool same_first_leaf(const rkv_cache *h, uint32_t class, rkvi_site_mask mask)
{
    const unsigned char *m = tables_of(h);
    const rkvi_entry *entries = (const rkvi_entry *)(const void *)(m + h->plan.classes[class].entries_off);
    const rkvi_span *spans = (const rkvi_span *)(const void *)(m + h->plan.classes[class].spans_off);
    for (uint32_t e = 0; e < h->batch.n_entries; e++) {
        const rkvi_span *s = spans + entries[e].span0;
        int64_t was, now, hi;
        rkvi_plan_range(&h->steady.batch, &h->batch.entries[e], mask, &was, &hi);
        rkvi_plan_range(&h->batch, &h->batch.entries[e], mask, &now, &hi);
        if (was != now &&
            rkvi_plan_leaf_after(s, entries[e].n_spans, was) != rkvi_plan_leaf_after(s, entries[e].n_spans, now))
            return false;
    }
    return true;
}

static bool same_masks(const rkv_cache *h)
{
    for (uint32_t i = 0; i < h->cfg.n_sites; i++) {
        const rkvi_site_config *s = &h->cfg.sites[i], *former = i ? s - 1 : NULL;
        const uint32_t class = h->cfg.layers[s->kv_layer].leaf_class;
        const bool is_new = !former || former->mask.kind != s->mask.kind || former->mask.width != s->mask.width ||
                            h->cfg.layers[former->kv_layer].leaf_class != class;
        if (s->mask.kind != RKV_MASK_CAUSAL && is_new && !same_first_leaf(h, class, s->mask))
            return false;
    }
    return true;
}

/* -------------------------------------------------------------------- carry on */

/* The step's tables, as some step of this plan had them: its mirror may have
 * been that one's. */
static unsigned char *carry_begin(rkv_cache *h)
{
    if (h->graphs)
        rkvi_step_image_begin(h);
    else if (h->now->plan != h->steady.plan)
        memcpy(h->now->mirror.host, h->steady.tables, h->plan.table_bytes);
    h->now->plan = h->steady.plan;
    return h->graphs ? h->image.host : h->now->mirror.host;
}

static void touch(rkv_cache *h, uint64_t off, uint64_t bytes)
{
    if (h->graphs)
        rkvi_step_image_touch(h, off, bytes);
}

static void write_rows(rkv_cache *h, unsigned char *m)
{
    const rkvi_batch *b = &h->batch;
    memcpy(m + h->plan.rows_off, b->rows, b->n_rows * sizeof *b->rows);
    touch(h, h->plan.rows_off, b->n_rows * sizeof *b->rows);
}

static void write_ticket(rkv_cache *h, unsigned char *m)
{
    const uint64_t ticket0 = rkvi_step_cpu_ticket(h);
    if (h->cfg.cpu_threads == 0)
        return;
    memcpy(m + h->plan.ticket0_off, &ticket0, sizeof ticket0);
    touch(h, h->plan.ticket0_off, sizeof ticket0);
}

static void write_cells(rkv_cache *h, unsigned char *m)
{
    rkvi_new_cell *cell = (rkvi_new_cell *)(void *)(m + h->plan.cells_off);
    const rkvi_span *spans = (const rkvi_span *)(void *)(m + h->plan.classes[0].spans_off);
    const rkvi_entry *entries = (const rkvi_entry *)(void *)(m + h->plan.classes[0].entries_off);
    uint32_t row = 0;
    for (uint32_t e = 0; e < h->batch.n_entries; e++) {
        const uint32_t n = h->batch.entries[e].n_new;
        const rkvi_seq *s = &h->cache.seqs[h->batch.entries[e].sequence];
        for (uint32_t i = 0; i < n; i++)
            *cell++ = (rkvi_new_cell){.base = entries[e].base0 + spans[entries[e].span0 + entries[e].n_spans - 1].tile,
                                      .cell = rkvi_seq_last_fill(s) - n + i,
                                      .row = row++};
    }
    touch(h, h->plan.cells_off, row * sizeof *cell);
}

/* Counts go on from those of the last step. */
static void write_counts(rkv_cache *h, unsigned char *m, uint32_t class)
{
    const uint64_t off = h->plan.classes[class].spans_off;
    const rkvi_entry *entries = (const rkvi_entry *)(void *)(m + h->plan.classes[class].entries_off);
    const rkvi_span *former = (const rkvi_span *)(const void *)(tables_of(h) + off);
    rkvi_span *spans = (rkvi_span *)(void *)(m + off);
    for (uint32_t e = 0; e < h->batch.n_entries; e++) {
        const uint32_t n = h->batch.entries[e].n_new;
        const uint64_t last = entries[e].span0 + entries[e].n_spans - 1;
        if (n == 0)
            continue;
        spans[last].count = (uint16_t)(former[last].count + n);
        touch(h, off + last * sizeof *spans, sizeof *spans);
    }
}

bool rkvi_step_carry_on(rkv_cache *h)
{
    const rkvi_step_steady *t = &h->steady;
    if (!t->is_valid || t->layout != h->cache.layout || h->plan.is_mapped || !same_entries(h) || !same_masks(h))
        return false;
    unsigned char *m = carry_begin(h);
    write_ticket(h, m);
    write_rows(h, m);
    write_cells(h, m);
    for (uint32_t c = 0; c < h->cfg.n_leaf_classes; c++)
        write_counts(h, m, c);
    if (h->graphs)
        rkvi_step_image_end(h);
    h->plan.n_open = 0;
    for (uint32_t i = 0; i < h->cfg.n_sites; i++)
        h->plan.sites[i].number0 = h->launched + 1 + h->plan.sites[i].launch0;
    h->ring_is_old = h->ring.n_list > 0;
    return true;
}

/* ------------------------------------------------------------------- the ring */

void rkvi_step_ring_now(rkv_cache *h)
{
    if (!h->ring_is_old)
        return;
    const uint32_t n = h->ring.n_list;
    const uint64_t base = h->plan.sites[0].number0, wrong = h->ring.predicted_wrong;
    if (h->ring_is_past)
        rkvi_ring_reset(&h->ring, h->launched);
    rkvi_ring_plan_again(&h->ring, n, base - h->ring_base);
    h->missed = h->ring.predicted_wrong != wrong;
    h->ring_base = base;
    h->ring_is_old = h->ring_is_past = false;
}

bool rkvi_step_predict_again(rkv_cache *h, uint64_t last_launch)
{
    const rkvi_cache *c = &h->cache;
    if (h->ring.n_list == 0 || (h->cfg.flags & RKV_FLAG_NO_PREDICT))
        return h->ring.n_list == 0 && c->n_leaving == 0 && c->n_moves == 0;
    for (uint32_t i = 0; i < c->n_moves; i++)
        if (c->moves[i].in_step || c->moves[i].kind == RKVI_MOVE_PROMOTE)
            return false;
    for (uint32_t i = 0; i < c->n_leaving; i++)
        if (rkvi_tile_layer_at(&c->tiles, c->leaving[i].tile, c->leaving[i].layer)->enter_step <= c->step + 1)
            return false;
    rkvi_ring_predict_again(&h->ring, last_launch + 1 - h->ring_base, last_launch);
    return true;
}
