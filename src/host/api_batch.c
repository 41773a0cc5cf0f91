/* SPDX-License-Identifier: MIT
 *
 * api_batch.c: batches, checked and resolved: regimes chosen, positions and
 * visible ranges filled in.
 */
#include "api_internal.h"

#define U(x) ((unsigned long long)(x))
#define I(x) ((long long)(x))

static const rkvi_copy_spec batch_spec = {"rkv_batch", sizeof(rkv_batch), offsetof(rkv_batch, entries)};
static const rkvi_copy_spec entry_spec = {"rkv_batch_entry", sizeof(rkv_batch_entry),
                                          offsetof(rkv_batch_entry, regime)};

void rkvi_api_end_add(rkvi_api_end *end, const rkvi_batch *batch, const rkvi_batch_entry *entry)
{
    if (entry->n_new == 0)
        return;
    const rkvi_row *rows = rkvi_batch_stored(batch, entry);
    if (end->n_cells == 0)
        end->pos_begin = rows[0].pos;
    end->pos_end = rows[entry->n_rows - 1].pos + 1;
    end->n_cells += entry->n_new;
}

static rkv_status check_regime(uint32_t i, const rkv_batch_entry *e)
{
    if (e->regime > RKV_REGIME_PREFILL)
        return rkvi_fail(
            RKV_E_BATCH,
            "entries[%u]: regime is %u; use RKV_REGIME_AUTO (0), _DECODE (1) or _PREFILL (2)", i,
            e->regime);
    if (e->regime == RKV_REGIME_DECODE && e->n_rows > RKV_DECODE_ROWS_MAX)
        return rkvi_fail(
            RKV_E_BATCH,
            "entries[%u]: %u rows in the decode regime, which takes at most %u; use prefill", i,
            e->n_rows, RKV_DECODE_ROWS_MAX);
    return RKV_OK;
}

static rkv_status check_entry(const rkvi_config *cfg, uint32_t i, const rkv_batch_entry *e)
{
    if (e->sequence >= cfg->n_sequences)
        return rkvi_fail(RKV_E_SEQUENCE, "entries[%u]: sequence is %u, but there are %u sequences", i,
                         e->sequence, cfg->n_sequences);
    if (e->n_rows == 0)
        return rkvi_fail(RKV_E_BATCH, "entries[%u]: n_rows is 0; leave the sequence out of the batch",
                         i);
    if (e->n_new_cells != 0 && e->n_new_cells != e->n_rows)
        return rkvi_fail(RKV_E_BATCH, "entries[%u]: n_new_cells is %u; it must be 0 or n_rows, %u", i,
                         e->n_new_cells, e->n_rows);
    if (e->reserved)
        return rkvi_fail(RKV_E_BATCH, "entries[%u]: reserved is %u; it must be 0", i, e->reserved);
    const rkv_status s = check_regime(i, e);
    return s == RKV_OK && e->tree_mask ? rkvi_api_check_tree(cfg, i, e) : s;
}

/* Each sequence once.  Batches are mostly in ascending order, where comparing
 * with the largest so far is enough. */
static rkv_status check_once(const rkvi_batch *batch, uint32_t sequence, uint32_t *largest)
{
    if (batch->n_entries == 0 || sequence > *largest) {
        *largest = sequence;
        return RKV_OK;
    }
    for (uint32_t i = 0; i < batch->n_entries; i++)
        if (batch->entries[i].sequence == sequence)
            return rkvi_fail(RKV_E_BATCH, "entries[%u] and [%u] both have sequence %u; each comes once",
                             i, batch->n_entries, sequence);
    return RKV_OK;
}

/* The next positions; for a query, the last ones of the sequence. */
static rkv_status default_start(const rkv_batch_entry *e, const rkvi_api_end *end, int64_t *out)
{
    if (e->n_new_cells) {
        *out = end->pos_end;
        return RKV_OK;
    }
    if (e->n_rows > end->n_cells)
        return rkvi_fail(
            RKV_E_BATCH,
            "sequence %u: a query of its last %u rows, but it has %llu cells; give positions",
            e->sequence, e->n_rows, U(end->n_cells));
    if ((uint64_t)(end->pos_end - end->pos_begin) != end->n_cells)
        return rkvi_fail(
            RKV_E_BATCH,
            "sequence %u: %llu cells at positions [%lld, %lld) leave gaps, so a query must give "
            "its positions",
            e->sequence, U(end->n_cells), I(end->pos_begin), I(end->pos_end));
    *out = end->pos_end - (int64_t)e->n_rows;
    return RKV_OK;
}

static rkv_status fill_positions(const rkv_batch_entry *e, const rkvi_api_end *end, rkvi_row *rows)
{
    int64_t start = 0, least = e->n_new_cells ? end->pos_end : 0;
    if (!e->positions) {
        const rkv_status s = default_start(e, end, &start);
        if (s != RKV_OK)
            return s;
    }
    for (uint32_t r = 0; r < e->n_rows; r++) {
        const int64_t pos = e->positions ? e->positions[r] : start + (int64_t)r;
        if (pos < 0 || pos >= RKV_POS_END)
            return rkvi_fail(RKV_E_BATCH, "sequence %u, row %u: position %lld is not in [0, 2^62)",
                             e->sequence, r, I(pos));
        if (pos < least)
            return rkvi_fail(
                RKV_E_BATCH,
                "sequence %u, row %u: position %lld; it must be at least %lld: positions increase "
                "strictly, and new cells come after the sequence's",
                e->sequence, r, I(pos), I(least));
        rows[r].pos = pos;
        least = pos + 1;
    }
    return RKV_OK;
}

static rkv_status fill_visible(const rkv_batch_entry *e, rkvi_row *rows)
{
    for (uint32_t r = 0; r < e->n_rows; r++) {
        const rkv_pos_range range = e->visible ? e->visible[r] : (rkv_pos_range){0, RKV_POS_END};
        if (range.from < 0 || range.from > range.to || range.to > RKV_POS_END)
            return rkvi_fail(
                RKV_E_BATCH,
                "sequence %u, row %u: visible [%lld, %lld) is no range of positions in [0, 2^62)",
                e->sequence, r, I(range.from), I(range.to));
        rows[r].from = range.from;
        rows[r].to = range.to;
    }
    return RKV_OK;
}

/* Appends an entry that passed its checks. */
static rkv_status take_entry(const rkvi_api_batch_source *source, const rkv_batch_entry *e,
                             rkvi_batch *out)
{
    rkvi_api_end end;
    rkvi_row *rows = &out->rows[out->n_rows];
    if (e->n_rows > source->cfg->max_rows - out->n_rows)
        return rkvi_fail(
            RKV_E_BATCH,
            "sequence %u brings %u rows to the batch, which has %u; more than max_rows, %u: cut prompts into "
            "chunks, make several batches of it, or create the cache with more max_rows",
            e->sequence, e->n_rows, out->n_rows, source->cfg->max_rows);
    source->end_of(source->from, e->sequence, &end);
    if (end.n_tree)
        return rkvi_fail(RKV_E_BATCH,
                         "sequence %u ends with the %u cells of a token tree: call rkv_sequence_accept before it "
                         "takes part in a step",
                         e->sequence, end.n_tree);
    rkv_status s = e->tree_mask ? rkvi_api_fill_tree(e, &end, out) : fill_positions(e, &end, rows);
    if (s == RKV_OK)
        s = fill_visible(e, rows);
    if (s != RKV_OK)
        return s;
    out->entries[out->n_entries++] = (rkvi_batch_entry){
        .sequence = e->sequence,
        .row0 = out->n_rows,
        .n_rows = e->n_rows,
        .n_new = e->n_new_cells,
        .is_prefill = e->regime == RKV_REGIME_PREFILL ||
                      (e->regime == RKV_REGIME_AUTO && e->n_rows > RKV_DECODE_ROWS_MAX),
        .is_tree = e->tree_mask != NULL,
    };
    out->n_rows += e->n_rows;
    out->most_rows = e->n_rows > out->most_rows ? e->n_rows : out->most_rows;
    return RKV_OK;
}

rkv_status rkvi_api_batch(const rkvi_api_batch_source *source, const rkv_batch *batches, uint32_t index,
                          rkvi_batch *out)
{
    rkv_batch b;
    uint32_t largest = 0;
    out->n_entries = out->n_rows = out->most_rows = 0;
    rkv_status s = rkvi_copy_in_at(&batch_spec, batches, index, &b);
    if (s != RKV_OK)
        return s;
    if (b.n_entries == 0)
        return rkvi_fail(RKV_E_BATCH, "the batch has no entries");
    if (b.n_entries > source->cfg->n_sequences)
        return rkvi_fail(RKV_E_BATCH, "the batch has %u entries, but there are %u sequences, each once",
                         b.n_entries, source->cfg->n_sequences);
    if (b.n_entries > source->cfg->active_sequences)
        return rkvi_fail(
            RKV_E_BATCH,
            "the batch has %u entries, a step at most active_sequences, %u; make several batches of it, or "
            "create the cache with more active_sequences",
            b.n_entries, source->cfg->active_sequences);
    for (uint32_t i = 0; i < b.n_entries && s == RKV_OK; i++) {
        rkv_batch_entry e;
        s = rkvi_copy_in_at(&entry_spec, b.entries, i, &e);
        if (s == RKV_OK)
            s = check_entry(source->cfg, i, &e);
        if (s == RKV_OK)
            s = check_once(out, e.sequence, &largest);
        if (s == RKV_OK)
            s = take_entry(source, &e, out);
    }
    return s;
}
