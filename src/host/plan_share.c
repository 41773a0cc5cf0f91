/* plan_share.c: bases and stems of a batch. */
#include "plan_share.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_STEP ((uint64_t)1 << 32) /* between appended nodes: room for insertions */

/* ---------------------------------------------------------------- life cycle */

rkv_status rkvi_share_init(rkvi_share *s, const rkvi_config *cfg)
{
    const uint64_t n = cfg->n_sequences, bases = cfg->max_bases;
    *s = (rkvi_share){.cfg = cfg};
    s->stems = calloc(2 * n, sizeof *s->stems);
    s->leaf_seqs = calloc(n, sizeof *s->leaf_seqs);
    s->entry_stem = calloc(n, sizeof *s->entry_stem);
    s->row_at = calloc(n, sizeof *s->row_at);
    s->row_map = calloc(cfg->max_rows, sizeof *s->row_map);
    s->base_tile = calloc(bases, sizeof *s->base_tile);
    s->base_repeats = calloc(bases, sizeof *s->base_repeats);
    s->tile_base = calloc(cfg->capacity_tiles, sizeof *s->tile_base);
    s->own_base = calloc(n, sizeof *s->own_base);
    s->node_tile = calloc(bases, sizeof *s->node_tile);
    s->node_next = calloc(bases, sizeof *s->node_next);
    s->node_prev = calloc(bases, sizeof *s->node_prev);
    s->node_label = calloc(bases, sizeof *s->node_label);
    s->tile_entry = calloc(cfg->capacity_tiles, sizeof *s->tile_entry);
    bool ok = s->stems && s->leaf_seqs && s->entry_stem && s->row_at && s->row_map && s->base_tile && s->base_repeats &&
              s->tile_base && s->own_base && s->node_tile && s->node_next && s->node_prev && s->node_label &&
              s->tile_entry;
    for (uint32_t c = 0; c < cfg->n_leaf_classes; c++) {
        s->shared_leaves[c] = calloc(n, sizeof **s->shared_leaves);
        ok = ok && s->shared_leaves[c];
    }
    if (ok)
        return RKV_OK;
    rkvi_share_free(s);
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to compare %u sequences", cfg->n_sequences);
}

void rkvi_share_free(rkvi_share *s)
{
    free(s->stems);
    free(s->leaf_seqs);
    free(s->entry_stem);
    free(s->row_at);
    free(s->row_map);
    free(s->base_tile);
    free(s->base_repeats);
    free(s->tile_base);
    free(s->own_base);
    free(s->node_tile);
    free(s->node_next);
    free(s->node_prev);
    free(s->node_label);
    free(s->tile_entry);
    for (uint32_t c = 0; c < RKVI_LEAF_CLASSES_MAX; c++)
        free(s->shared_leaves[c]);
    *s = (rkvi_share){0};
}

/* --------------------------------------------------------------------- bases */

/* Nodes [first, first + n) were filled with tiles: they go into the list before
 * node `next` (RKVI_NONE: at its end).  False: no labels are left there. */
static bool link_run(rkvi_share *s, uint32_t first, uint32_t n, uint32_t next)
{
    uint32_t prev = next == RKVI_NONE ? s->tail : s->node_prev[next];
    const uint64_t low = prev == RKVI_NONE ? 0 : s->node_label[prev];
    const uint64_t step = next == RKVI_NONE ? LABEL_STEP : (s->node_label[next] - low) / ((uint64_t)n + 1);
    if (step == 0)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t node = first + i;
        s->node_label[node] = low + step * (i + 1);
        s->node_prev[node] = prev;
        if (prev == RKVI_NONE)
            s->head = node;
        else
            s->node_next[prev] = node;
        prev = node;
    }
    if (n == 0)
        return true;
    s->node_next[prev] = next;
    if (next == RKVI_NONE)
        s->tail = prev;
    else
        s->node_prev[next] = prev;
    return true;
}

/* Can the entry's tiles be put among those that are there, each of them once?
 * tile_base holds nodes meanwhile. */
static bool conforms(rkvi_share *s, const rkvi_seq *seq)
{
    uint64_t last = 0;
    s->n_looked++;
    for (uint32_t t = 0; t < seq->n_tiles; t++) {
        const uint32_t tile = seq->tiles[t], node = s->tile_base[tile];
        if (s->tile_entry[tile] == s->n_looked || (node != RKVI_NONE && s->node_label[node] < last))
            return false;
        s->tile_entry[tile] = s->n_looked;
        if (node != RKVI_NONE)
            last = s->node_label[node];
    }
    return true;
}

static bool add_nodes(rkvi_share *s, const rkvi_seq *seq, uint32_t t0, uint32_t t1)
{
    if (t1 - t0 > s->cfg->max_bases - s->n_nodes)
        return false;
    for (uint32_t t = t0; t < t1; t++)
        s->node_tile[s->n_nodes++] = seq->tiles[t];
    return true;
}

/* Runs of tiles that no entry had before go in before the next one that is there. */
static bool merge_entry(rkvi_share *s, const rkvi_seq *seq, bool *out_room)
{
    for (uint32_t t = 0; t < seq->n_tiles;) {
        uint32_t z = t;
        while (z < seq->n_tiles && s->tile_base[seq->tiles[z]] == RKVI_NONE)
            z++;
        const uint32_t first = s->n_nodes, next = z < seq->n_tiles ? s->tile_base[seq->tiles[z]] : RKVI_NONE;
        *out_room = add_nodes(s, seq, t, z);
        if (!*out_room || !link_run(s, first, z - t, next))
            return false;
        for (uint32_t i = t; i < z; i++)
            s->tile_base[seq->tiles[i]] = first + (i - t);
        t = z + 1;
    }
    return true;
}

static bool own_entry(rkvi_share *s, const rkvi_seq *seq, uint32_t e)
{
    const uint32_t first = s->n_nodes;
    s->own_base[e] = first;
    return add_nodes(s, seq, 0, seq->n_tiles) && link_run(s, first, seq->n_tiles, RKVI_NONE);
}

/* Nodes become bases, in the list's order. */
static void number_bases(rkvi_share *s, const rkvi_batch *b)
{
    uint32_t *base_of = s->node_prev; /* what is behind is not needed any more */
    s->n_bases = 0;
    for (uint32_t node = s->head; node != RKVI_NONE; node = s->node_next[node]) {
        const uint32_t tile = s->node_tile[node], base = s->n_bases++;
        s->base_tile[base] = tile;
        s->base_repeats[base] = s->tile_base[tile] != RKVI_NONE && s->tile_base[tile] != node;
        s->has_repeats = s->has_repeats || s->base_repeats[base];
        s->node_label[node] = s->tile_base[tile] == node; /* labels aren't either */
        base_of[node] = base;
    }
    for (uint32_t e = 0; e < b->n_entries; e++)
        if (s->own_base[e] != RKVI_NONE)
            s->own_base[e] = base_of[s->own_base[e]];
    for (uint32_t node = s->head; node != RKVI_NONE; node = s->node_next[node])
        if (s->node_label[node])
            s->tile_base[s->node_tile[node]] = base_of[node];
}

/* No tile is shared: one after another. */
static bool count_bases(rkvi_share *s, const rkvi_batch *b, const rkvi_seq *seqs)
{
    s->n_bases = 0;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_seq *seq = &seqs[b->entries[e].sequence];
        s->own_base[e] = RKVI_NONE;
        if (seq->n_tiles > s->cfg->max_bases - s->n_bases)
            return false;
        for (uint32_t t = 0; t < seq->n_tiles; t++) {
            s->tile_base[seq->tiles[t]] = s->n_bases;
            s->base_tile[s->n_bases++] = seq->tiles[t];
        }
    }
    return true;
}

bool rkvi_share_bases(rkvi_share *s, const rkvi_batch *b, const rkvi_seq *seqs, const rkvi_tiles *tiles)
{
    s->has_repeats = false;
    if (tiles->n_shared == 0)
        return count_bases(s, b, seqs);
    s->n_nodes = 0;
    s->head = s->tail = RKVI_NONE;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_seq *seq = &seqs[b->entries[e].sequence];
        s->own_base[e] = RKVI_NONE;
        for (uint32_t t = 0; t < seq->n_tiles; t++)
            s->tile_base[seq->tiles[t]] = RKVI_NONE;
    }
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_seq *seq = &seqs[b->entries[e].sequence];
        bool has_room = true;
        if (conforms(s, seq) && merge_entry(s, seq, &has_room))
            continue;
        if (!has_room || !own_entry(s, seq, e))
            return false;
    }
    number_bases(s, b);
    return true;
}

/* --------------------------------------------------------------------- stems */

/* Cells that two sequences begin with alike, from segment *segment on, which
 * both have and before which `cells` are alike; *segment moves to the first one
 * that is not all alike. */
static uint64_t common_cells(const rkvi_seq *a, const rkvi_seq *b, uint32_t *segment, uint64_t cells)
{
    while (*segment < a->n_segments && *segment < b->n_segments) {
        const rkvi_segment *x = &a->segments[*segment], *y = &b->segments[*segment];
        if (a->tiles[x->tile_index] != b->tiles[y->tile_index] || x->first != y->first || x->pos != y->pos ||
            x->turn != y->turn)
            break;
        cells += x->count < y->count ? x->count : y->count;
        if (x->count != y->count)
            break;
        ++*segment;
    }
    return cells;
}

/* Leaves within the first `cells` cells.  Where the last segment is cut there,
 * only blocks that end before the cut are the same leaves whatever follows. */
static uint64_t leaves_of(const rkvi_seq *s, uint64_t cells, bool is_cut, uint32_t leaf_cells)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_segments && cells; i++) {
        const rkvi_segment *g = &s->segments[i];
        if (cells < g->count || (is_cut && cells == g->count))
            return n + (g->first + cells) / leaf_cells - g->first / leaf_cells;
        n += rkvi_segment_n_leaves(g, leaf_cells);
        cells -= g->count;
    }
    return n;
}

typedef struct builder {
    rkvi_share *s;
    const rkvi_batch *b;
} builder;

static const rkvi_seq *seq_of(const builder *x, uint32_t e)
{
    return &x->s->leaf_seqs[e];
}

static uint32_t *first_child(rkvi_share *s, uint32_t stem)
{
    return stem == RKVI_NONE ? &s->root : &s->stems[stem].child;
}

/* A stem at the end of parent's children, from `from` cells on. */
static uint32_t add_stem(builder *x, uint32_t e, uint32_t parent, const rkvi_stem *at)
{
    rkvi_share *s = x->s;
    const uint32_t stem = s->n_stems++;
    uint32_t *link = first_child(s, parent);
    s->stems[stem] = *at;
    s->stems[stem].entry = e;
    s->stems[stem].parent = parent;
    s->stems[stem].child = s->stems[stem].sibling = RKVI_NONE;
    while (*link != RKVI_NONE)
        link = &s->stems[*link].sibling;
    *link = stem;
    return stem;
}

/* Where an entry leaves what was there before it. */
typedef struct fork_at {
    uint64_t cells;         /* alike until here */
    uint32_t segment;       /* that the next cell, or the cut, is in */
    uint64_t segment_cells; /* before that segment */
} fork_at;

/* The part of a stem after the fork becomes its child, with all its children. */
static void split(builder *x, uint32_t stem, const fork_at *f)
{
    rkvi_share *s = x->s;
    const uint32_t child = s->stems[stem].child, lower = s->n_stems;
    rkvi_stem at = s->stems[stem];
    at.segment = f->segment;
    at.segment_cells = f->segment_cells;
    s->stems[stem].child = RKVI_NONE;
    s->stems[stem].cells1 = f->cells;
    s->stems[stem].is_cut = f->cells > f->segment_cells;
    add_stem(x, at.entry, stem, &at);
    s->stems[lower].child = child;
    for (uint32_t i = child; i != RKVI_NONE; i = s->stems[i].sibling)
        s->stems[i].parent = lower;
    for (uint32_t e = 0; e < x->b->n_entries; e++)
        if (s->entry_stem[e] == stem)
            s->entry_stem[e] = lower;
}

/* Moves on to the segment that cell number `cells` is in. */
static void move_to(fork_at *f, const rkvi_seq *s, uint64_t cells)
{
    while (f->segment < s->n_segments && f->segment_cells + s->segments[f->segment].count <= cells)
        f->segment_cells += s->segments[f->segment++].count;
    f->cells = cells;
}

/* How far the entry goes along with a stem that begins where *f is; false: not
 * a cell. */
static bool goes_along(const builder *x, uint32_t e, const rkvi_stem *stem, fork_at *f)
{
    const rkvi_seq *seq = seq_of(x, e);
    fork_at to = {.segment = stem->segment, .segment_cells = stem->segment_cells};
    uint32_t segment = to.segment;
    if (x->s->own_base[stem->entry] != RKVI_NONE || x->b->entries[stem->entry].is_prefill)
        return false;
    const uint64_t alike = common_cells(seq, seq_of(x, stem->entry), &segment, to.segment_cells);
    if (alike <= f->cells)
        return false;
    if (alike > stem->cells1) {
        move_to(&to, seq, stem->cells1);
    } else {
        for (; to.segment < segment; to.segment++)
            to.segment_cells += seq->segments[to.segment].count;
        to.cells = alike;
    }
    *f = to;
    return true;
}

/* The rest of an entry, behind stem `parent`.  Where that is cut, leaves of the
 * segment that it is cut in are among the rest, so comparing begins there. */
static void add_rest(builder *x, uint32_t e, uint32_t parent, const fork_at *f)
{
    rkvi_share *s = x->s;
    const rkvi_seq *seq = seq_of(x, e);
    const bool is_cut = parent != RKVI_NONE && s->stems[parent].is_cut;
    rkvi_stem at = {.segment = f->segment, .segment_cells = f->segment_cells, .cells1 = seq->n_cells};
    for (uint32_t c = 0; c < s->cfg->n_leaf_classes; c++)
        s->shared_leaves[c][e] = leaves_of(seq, f->cells, is_cut, s->cfg->leaf_cells[c]);
    s->entry_stem[e] = parent;
    if (parent != RKVI_NONE && f->cells == seq->n_cells && !is_cut)
        return;
    if (is_cut && at.segment_cells == f->cells)
        at.segment_cells -= seq->segments[--at.segment].count;
    s->entry_stem[e] = add_stem(x, e, parent, &at);
}

/* Follows what there is as far as the entry goes along. */
static void insert(builder *x, uint32_t e, bool may_share)
{
    rkvi_share *s = x->s;
    uint32_t parent = RKVI_NONE, next = may_share ? s->root : RKVI_NONE;
    fork_at f = {0};
    while (next != RKVI_NONE) {
        const rkvi_stem *stem = &s->stems[next];
        if (!goes_along(x, e, stem, &f)) {
            next = stem->sibling;
            continue;
        }
        if (f.cells < stem->cells1 || (f.cells > f.segment_cells && !stem->is_cut))
            split(x, next, &f);
        parent = next;
        next = s->stems[parent].child;
    }
    s->is_mapped = s->is_mapped || parent != RKVI_NONE;
    add_rest(x, e, parent, &f);
}

/* Rows of decode entries in the forest's order; a stem's are those of all
 * entries whose paths go through it. */
static void number_rows(builder *x)
{
    rkvi_share *s = x->s;
    uint32_t n = 0, stem = s->root;
    for (uint32_t i = 0; i < s->n_stems; i++)
        s->stems[i].n_rows = 0;
    while (stem != RKVI_NONE) {
        s->stems[stem].row0 = n;
        for (uint32_t e = 0; e < x->b->n_entries; e++) {
            const rkvi_batch_entry *be = &x->b->entries[e];
            if (s->entry_stem[e] != stem || be->is_prefill)
                continue;
            s->row_at[e] = n;
            for (uint32_t r = 0; r < be->n_rows; r++)
                s->row_map[n++] = be->row0 + r;
        }
        uint32_t next = s->stems[stem].child;
        while (next == RKVI_NONE && stem != RKVI_NONE) { /* up, until there is one beside */
            s->stems[stem].n_rows = n - s->stems[stem].row0;
            next = s->stems[stem].sibling;
            stem = s->stems[stem].parent;
        }
        stem = next;
    }
}

static void count_leaves(builder *x, uint32_t c)
{
    rkvi_share *s = x->s;
    const uint32_t leaf = s->cfg->leaf_cells[c];
    for (uint32_t i = 0; i < s->n_stems; i++) {
        rkvi_stem *stem = &s->stems[i];
        stem->leaf1[c] = leaves_of(seq_of(x, stem->entry), stem->cells1, stem->is_cut, leaf);
    }
    for (uint32_t i = 0; i < s->n_stems; i++) {
        rkvi_stem *stem = &s->stems[i];
        stem->leaf0[c] = stem->parent == RKVI_NONE ? 0 : s->stems[stem->parent].leaf1[c];
    }
    s->n_spans[c] = 0;
    for (uint32_t e = 0; e < x->b->n_entries; e++)
        s->n_spans[c] += rkvi_seq_n_leaves(seq_of(x, e), leaf) - s->shared_leaves[c][e];
}

void rkvi_share_stems(rkvi_share *s, const rkvi_batch *b, const rkvi_seq *seqs, const rkvi_tiles *tiles)
{
    builder x = {.s = s, .b = b};
    s->n_stems = 0;
    s->root = RKVI_NONE;
    s->is_mapped = false;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_seq *seq = &seqs[b->entries[e].sequence];
        s->leaf_seqs[e] = rkvi_seq_before(seq, seq->n_tree);
        s->entry_stem[e] = RKVI_NONE;
    }
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_seq *seq = seq_of(&x, e);
        insert(&x, e, seq->n_tiles && tiles->tiles[seq->tiles[0]].refs > 1 && !b->entries[e].is_prefill &&
                          s->own_base[e] == RKVI_NONE);
    }
    number_rows(&x);
    for (uint32_t c = 0; c < s->cfg->n_leaf_classes; c++)
        count_leaves(&x, c);
}
