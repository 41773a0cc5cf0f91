#include "plan_work.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- life cycle */

static void find_masks(rkvi_plan_work *w, const rkvi_config *cfg)
{
    for (uint32_t site = 0; site < cfg->n_sites; site++) {
        const rkvi_site_mask mask = cfg->sites[site].mask;
        uint32_t m = 0;
        while (m < w->n_masks && (w->masks[m].kind != mask.kind || w->masks[m].width != mask.width))
            m++;
        if (m == w->n_masks)
            w->masks[w->n_masks++] = mask;
        w->mask_of[site] = m;
    }
}

static rkv_status work_init(rkvi_plan_work *w, const rkvi_config *cfg)
{
    w->mask_of = calloc(cfg->n_sites, sizeof *w->mask_of);
    w->masks = calloc(cfg->n_sites, sizeof *w->masks);
    w->items = calloc(cfg->max_items_site, sizeof *w->items);
    w->item_launch = calloc(cfg->max_items_site, sizeof *w->item_launch);
    w->item_stem = calloc(cfg->max_items_site, sizeof *w->item_stem);
    w->sorted_stem = calloc(cfg->max_items_site, sizeof *w->sorted_stem);
    w->block_seen = calloc(cfg->max_rows, sizeof *w->block_seen);
    w->nodes = calloc(2 * (uint64_t)cfg->n_sequences, sizeof *w->nodes);
    w->live = calloc(cfg->partial_slots, sizeof *w->live);
    w->free = calloc(cfg->partial_slots, sizeof *w->free);
    bool ok = w->mask_of && w->masks && w->items && w->item_launch && w->item_stem && w->sorted_stem &&
              w->block_seen && w->nodes && w->live && w->free;
    for (uint32_t c = 0; c < cfg->n_leaf_classes; c++) {
        w->span0[c] = calloc(cfg->n_sequences, sizeof **w->span0);
        ok = ok && w->span0[c];
    }
    if (!ok)
        return RKV_E_HOST_MEMORY;
    find_masks(w, cfg);
    w->seen = calloc(cfg->max_bases, w->n_masks * sizeof *w->seen);
    w->tail_base = calloc(cfg->max_bases, sizeof *w->tail_base);
    return w->seen && w->tail_base ? rkvi_share_init(&w->share, cfg) : RKV_E_HOST_MEMORY;
}

static void work_free(rkvi_plan_work *w)
{
    rkvi_share_free(&w->share);
    free(w->mask_of);
    free(w->masks);
    free(w->seen);
    free(w->tail_base);
    free(w->items);
    free(w->item_launch);
    free(w->item_stem);
    free(w->sorted_stem);
    free(w->block_seen);
    free(w->nodes);
    free(w->live);
    free(w->free);
    for (uint32_t c = 0; c < RKVI_LEAF_CLASSES_MAX; c++)
        free(w->span0[c]);
}

rkv_status rkvi_plan_init(rkvi_plan *p, const rkvi_config *cfg)
{
    *p = (rkvi_plan){0};
    uint64_t max_spans = cfg->max_spans;
    p->launches_room = cfg->n_sites * 4;
    p->work = calloc(1, sizeof *p->work);
    p->sites = calloc(cfg->n_sites, sizeof *p->sites);
    p->launches = calloc(p->launches_room, sizeof *p->launches);
    p->tile_launch = calloc(cfg->n_sites * cfg->max_bases, sizeof *p->tile_launch);
    p->leaf_launch = calloc(max_spans, sizeof *p->leaf_launch);
    p->tree_slot0 = calloc(cfg->n_sequences, sizeof *p->tree_slot0);
    if (p->work && p->tree_slot0 && p->sites && p->launches && p->tile_launch && p->leaf_launch &&
        work_init(p->work, cfg) == RKV_OK && rkvi_plan_turns_init(&p->turns, cfg))
        return RKV_OK;
    rkvi_plan_free(p);
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to plan steps over %llu tiles at %u sites",
                     (unsigned long long)cfg->capacity_tiles, cfg->n_sites);
}

void rkvi_plan_free(rkvi_plan *p)
{
    if (p->work)
        work_free(p->work);
    rkvi_plan_turns_free(&p->turns);
    free(p->work);
    free(p->sites);
    free(p->launches);
    free(p->tile_launch);
    free(p->leaf_launch);
    free(p->tree_slot0);
    *p = (rkvi_plan){0};
}

/* ------------------------------------------------------------------ the list */

void rkvi_plan_range(const rkvi_batch *b, const rkvi_batch_entry *e, rkvi_site_mask mask, int64_t *out_lo,
                     int64_t *out_hi)
{
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (uint32_t i = e->row0; i < e->row0 + e->n_rows; i++) {
        int64_t a, z;
        rkvi_visible(&b->rows[i], mask, &a, &z);
        if (a >= z)
            continue; /* sees nothing, wherever its range lies */
        lo = a < lo ? a : lo;
        hi = z > hi ? z : hi;
    }
    *out_lo = lo;
    *out_hi = hi;
}

/* Which bases the rows see, by each mask. */
static void find_seen(const rkvi_plan *p, const rkvi_plan_view *v)
{
    rkvi_plan_work *w = p->work;
    for (uint32_t m = 0; m < w->n_masks; m++) {
        bool *seen = w->seen + m * v->cfg->max_bases;
        memset(seen, 0, w->share.n_bases * sizeof *seen);
        for (uint32_t e = 0; e < v->batch->n_entries; e++) {
            const rkvi_batch_entry *be = &v->batch->entries[e];
            const rkvi_seq *s = &v->seqs[be->sequence];
            int64_t lo, hi;
            rkvi_plan_range(v->batch, be, w->masks[m], &lo, &hi);
            for (uint32_t i = 0; i < s->n_segments; i++) {
                const rkvi_segment *g = &s->segments[i];
                if (g->pos < hi && rkvi_segment_end(g) > lo)
                    seen[rkvi_share_base(&w->share, e, s, g->tile_index)] = true;
            }
        }
    }
}

static bool is_tail(const rkvi_plan_view *v, const rkvi_tile_layer *l)
{
    if (!v->predict)
        return l->state == RKVI_IN_TAIL;
    return (l->state == RKVI_IN_TAIL && !l->promoting) ||
           (l->state == RKVI_LEAVING && l->enter_step <= v->step + 1) ||
           (l->state == RKVI_ON_DEVICE && l->enter_step == v->step + 1 &&
            l->out_mark == RKVI_MARK_PENDING); /* leaves within this step */
}

static void fill_item(rkvi_ring_item *it, const rkvi_plan_view *v, uint32_t site, uint32_t tile)
{
    const uint32_t layer = v->cfg->sites[site].kv_layer;
    const rkvi_tile_layer *l = rkvi_tile_layer_at(v->tiles, tile, layer);
    *it = (rkvi_ring_item){.site = site,
                           .layer = layer,
                           .tile = tile,
                           .generation = l->generation,
                           .serial = v->tiles->tiles[tile].serial,
                           .bytes = v->cfg->layers[layer].geom.bytes,
                           .host_addr = l->host_addr,
                           .out_mark = &l->out_mark};
}

/* The site's items, in order of bases; marks[] (may be NULL) tells of each base
 * whether it is unseen, on the device, or which item it is. */
static uint32_t site_items(const rkvi_plan *p, const rkvi_plan_view *v, uint32_t site, rkvi_ring_item *items,
                           uint32_t *marks)
{
    const rkvi_plan_work *w = p->work;
    const uint32_t layer = v->cfg->sites[site].kv_layer;
    const bool *seen = w->seen + w->mask_of[site] * v->cfg->max_bases;
    uint32_t n = 0;
    for (uint32_t base = 0; base < w->share.n_bases; base++) {
        const uint32_t tile = w->share.base_tile[base];
        const rkvi_tile_layer *l = rkvi_tile_layer_at(v->tiles, tile, layer);
        const bool is_seen = seen[base] && l->state != RKVI_FREED;
        uint32_t mark = is_seen ? RKVI_TILE_DEVICE : RKVI_TILE_UNSEEN;
        if (is_seen && is_tail(v, l)) {
            mark = n;
            w->tail_base[n] = base;
            fill_item(&items[n++], v, site, tile);
        }
        if (marks)
            marks[base] = mark;
    }
    return n;
}

static bool has_prefill(const rkvi_batch *b)
{
    for (uint32_t e = 0; e < b->n_entries; e++)
        if (b->entries[e].is_prefill)
            return true;
    return false;
}

/* Most bytes that a launch reads of a site whose tail is n tile-layers.  Where one
 * may not read it all, a launch waits for less, and gives back slots sooner, the less
 * it reads.  But each takes up prefill's states and puts them down: so with those it
 * is a quarter of the ring, if that is more, and launches are alike. */
static uint64_t launch_limit(const rkvi_plan_view *v, uint64_t n, uint64_t tile_layer_bytes)
{
    const uint64_t quarter = v->launch_bytes / 2, most = quarter / tile_layer_bytes;
    if (n <= v->launch_bytes / tile_layer_bytes)
        return n * tile_layer_bytes;
    if (most == 0 || quarter <= v->group_bytes || !has_prefill(v->batch))
        return v->launch_bytes ? v->group_bytes : 0;
    return rkvi_div_up(n, rkvi_div_up(n, most)) * tile_layer_bytes;
}

/* Cuts the site's items into launches; returns how many launches. */
static uint32_t cut_launches(const rkvi_plan_view *v, rkvi_ring_item *items, uint32_t n, uint64_t number)
{
    const uint64_t limit = n ? launch_limit(v, n, items[0].bytes) : 0;
    uint64_t in_group = 0;
    uint32_t launch = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (in_group && in_group + items[i].bytes > limit) {
            launch++;
            in_group = 0;
        }
        in_group += items[i].bytes;
        items[i].launch = number + launch;
    }
    return launch + 1;
}

/* Items that repeat a tile-layer. */
static uint64_t count_repeats(const rkvi_plan *p, const uint32_t *marks, uint32_t n_items)
{
    const rkvi_share *share = &p->work->share;
    uint64_t n = 0;
    for (uint32_t base = 0; share->has_repeats && base < share->n_bases; base++)
        n += share->base_repeats[base] && marks[base] < n_items;
    return n;
}

/* Of all sites, where the CPU may have a share of it. */
static uint64_t tail_bytes(const rkvi_plan *p, const rkvi_plan_view *v)
{
    const rkvi_plan_work *w = p->work;
    uint64_t sum = 0;
    for (uint32_t site = 0; site < v->cfg->n_sites && v->cfg->cpu_share; site++) {
        const uint32_t layer = v->cfg->sites[site].kv_layer;
        const bool *seen = w->seen + w->mask_of[site] * v->cfg->max_bases;
        uint64_t n = 0;
        for (uint32_t base = 0; base < w->share.n_bases && rkvi_site_streams(v->cfg, site); base++)
            n += seen[base] && is_tail(v, rkvi_tile_layer_at(v->tiles, w->share.base_tile[base], layer));
        sum += n * v->cfg->layers[layer].geom.bytes;
    }
    return sum;
}

/* One site: its items become part of the list; returns its launches. */
static uint32_t list_site(rkvi_plan *p, const rkvi_plan_view *v, uint32_t site, rkvi_ring_item *items, uint32_t *n,
                          uint32_t launch0)
{
    uint32_t *marks = v->predict ? NULL : p->tile_launch + site * p->n_bases;
    const uint64_t number = v->launch_base + launch0;
    const uint32_t k = site_items(p, v, site, items + *n, marks);
    const uint32_t listed =
        rkvi_plan_cpu_first(v->cfg, &p->work->cpu, site, p->work->tail_base, k); /* the CPU has the others */
    const uint32_t by_ring = cut_launches(v, items + *n, listed, number);
    const uint32_t launches = by_ring + (listed < k);
    if (!v->predict) {
        p->own_entries += count_repeats(p, marks, k);
        for (uint64_t b = 0; b < p->n_bases; b++)
            if (marks[b] < k)
                marks[b] = marks[b] < listed ? (uint32_t)(items[*n + marks[b]].launch - number) : by_ring;
        p->sites[site] = (rkvi_plan_site){
            .launch0 = launch0, .n_launches = launches, .number0 = number, .list0 = *n, .n_list = listed,
            .cpu_launch = listed < k ? by_ring : RKVI_NO_LAUNCH};
    }
    *n += listed;
    return launches;
}

rkv_status rkvi_plan_list(rkvi_plan *p, const rkvi_plan_view *v, rkvi_ring_item *items, uint32_t *out_n)
{
    uint32_t n = 0, n_launches = 0;
    uint64_t bytes = 0;
    *out_n = 0;
    if (!rkvi_share_bases(&p->work->share, v->batch, v->seqs, v->tiles))
        return rkvi_fail(RKV_E_CAPACITY,
                         "sequences of the batch have shared tiles in different orders, which takes more than the "
                         "%llu tiles that a step lists; use smaller batches",
                         (unsigned long long)v->cfg->max_bases);
    find_seen(p, v);
    if (!v->predict) {
        p->n_bases = p->work->share.n_bases;
        p->own_entries = 0;
    }
    rkvi_plan_cpu_open(v, tail_bytes(p, v), &p->work->cpu);
    for (uint32_t site = 0; site < v->cfg->n_sites; site++)
        n_launches += list_site(p, v, site, items, &n, n_launches);
    for (uint32_t i = 0; i < n; i++)
        bytes += items[i].bytes;
    if (!v->predict) {
        p->n_launches = n_launches;
        p->list_bytes = bytes;
    }
    *out_n = n;
    return RKV_OK;
}

/* ---------------------------------------------------------------- the tables */

bool rkvi_mirror_room(rkvi_plan *p, const rkvi_mirror *m, uint64_t n, uint64_t item_bytes, uint64_t *out_off)
{
    const uint64_t off = rkvi_align_up(p->table_bytes, 256);
    if (n * item_bytes > m->bytes || off > m->bytes - n * item_bytes)
        return false;
    *out_off = off;
    p->table_bytes = off + n * item_bytes;
    return true;
}

/* Elements that a table has room for: `most` where its end must stay in place. */
static uint64_t room_of(const rkvi_plan_view *v, uint64_t n, uint64_t most)
{
    return v->fixed && n < most ? most : n;
}

static bool write_ticket(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m)
{
    if (v->cfg->cpu_threads == 0)
        return true;
    if (!rkvi_mirror_room(p, m, 1 + (uint64_t)v->cfg->n_sites, sizeof v->ticket0, &p->ticket0_off))
        return false;
    memcpy(m->host + p->ticket0_off, &v->ticket0, sizeof v->ticket0);
    return true;
}

static bool write_rows(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m)
{
    const rkvi_batch *b = v->batch;
    if (!rkvi_mirror_room(p, m, room_of(v, b->n_rows, v->cfg->max_rows), sizeof(rkvi_row), &p->rows_off))
        return false;
    memcpy(m->host + p->rows_off, b->rows, b->n_rows * sizeof(rkvi_row));
    return true;
}

static bool write_row_map(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m)
{
    const rkvi_share *share = &p->work->share;
    uint64_t n = 0;
    p->is_mapped = share->is_mapped;
    if (!p->is_mapped)
        return true;
    for (uint32_t e = 0; e < v->batch->n_entries; e++)
        n += v->batch->entries[e].is_prefill ? 0 : v->batch->entries[e].n_rows;
    if (!rkvi_mirror_room(p, m, n, sizeof(uint32_t), &p->row_map_off))
        return false;
    memcpy(m->host + p->row_map_off, share->row_map, n * sizeof(uint32_t));
    p->n_mapped_rows = n;
    return true;
}

/* The entry's spans from leaf `skip` on, with bases for tiles; returns how many. */
static uint64_t write_spans(const rkvi_plan *p, uint32_t e, uint32_t leaf, uint64_t skip, rkvi_span *out)
{
    const rkvi_seq *s = &p->work->share.leaf_seqs[e];
    const uint64_t n = rkvi_seq_spans(s, leaf, skip, out);
    for (uint64_t i = 0; i < n; i++)
        out[i].tile = rkvi_share_base(&p->work->share, e, s, out[i].tile);
    return n;
}

/* Entries and spans of one class of leaves.  Leading leaves that lie in the
 * spans of entries before are not written again: span0 is where leaf 0 would
 * be, which is never before the table's beginning. */
static bool write_class(rkvi_plan *p, const rkvi_plan_view *v, uint32_t c, rkvi_mirror *m)
{
    const rkvi_batch *b = v->batch;
    const rkvi_share *share = &p->work->share;
    const uint32_t leaf = v->cfg->leaf_cells[c];
    rkvi_plan_class *pc = &p->classes[c];
    uint64_t *span0 = p->work->span0[c], n = 0;
    if (share->n_spans[c] > v->cfg->max_spans ||
        !rkvi_mirror_room(p, m, room_of(v, b->n_entries, v->cfg->active_sequences), RKVI_ENTRY_ROOM,
                          &pc->entries_off) ||
        !rkvi_mirror_room(p, m, room_of(v, share->n_spans[c], v->cfg->max_spans), sizeof(rkvi_span), &pc->spans_off))
        return false;
    rkvi_entry *entries = (rkvi_entry *)(m->host + pc->entries_off);
    rkvi_span *spans = (rkvi_span *)(m->host + pc->spans_off);
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_batch_entry *be = &b->entries[e];
        const uint64_t shared = share->shared_leaves[c][e];
        const uint64_t own = write_spans(p, e, leaf, shared, spans + n);
        assert(n >= shared);
        if (p->n_turned_rows)
            rkvi_seq_leaf_turns(&share->leaf_seqs[e], leaf, shared, p->turns.turns + (size_t)e * v->cfg->max_turns,
                                p->turns.n[e], p->turns.leaf_turn[c] + n);
        span0[e] = n - shared;
        n += own;
        entries[e] = (rkvi_entry){
            .span0 = span0[e], .n_spans = shared + own, .base0 = 0, .row0 = be->row0, .n_rows = be->n_rows};
    }
    assert(n == share->n_spans[c]);
    return true;
}

/* Where the last n cells of a sequence lie. */
static void write_cells_of(const rkvi_share *share, uint32_t e, const rkvi_seq *s, uint32_t n, uint32_t row,
                           rkvi_new_cell *out)
{
    uint32_t i = s->n_segments, left = n;
    while (i > 0 && left > s->segments[i - 1].count)
        left -= s->segments[--i].count;
    for (uint32_t g = i - 1; n > 0; g++) {
        const rkvi_segment *seg = &s->segments[g];
        const uint32_t base = rkvi_share_base(share, e, s, seg->tile_index);
        for (uint32_t c = seg->count - left; c < seg->count; c++, n--)
            *out++ = (rkvi_new_cell){.base = base, .cell = seg->first + c, .row = row++};
        left = g + 1 < s->n_segments ? s->segments[g + 1].count : 0;
    }
}

/* New cells, and the tiles opened that they don't fill. */
static bool write_cells(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m)
{
    const rkvi_batch *b = v->batch;
    uint64_t n = 0;
    for (uint32_t e = 0; e < b->n_entries; e++)
        n += b->entries[e].n_new;
    if (!rkvi_mirror_room(p, m, room_of(v, n, v->cfg->max_rows), sizeof(rkvi_new_cell), &p->cells_off) ||
        !rkvi_mirror_room(p, m, room_of(v, b->n_entries, v->cfg->active_sequences), sizeof(uint64_t), &p->open_off))
        return false;
    rkvi_new_cell *cells = (rkvi_new_cell *)(m->host + p->cells_off);
    uint64_t *open = (uint64_t *)(m->host + p->open_off);
    uint32_t row = 0;
    p->n_open = 0;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_batch_entry *be = &b->entries[e];
        const rkvi_seq *s = &v->seqs[be->sequence];
        const uint32_t fill = rkvi_seq_last_fill(s);
        if (be->n_new == 0)
            continue;
        write_cells_of(&p->work->share, e, s, be->n_new, row, cells + row);
        row += be->n_new;
        if (fill <= be->n_new && fill < v->cfg->tile_cells)
            open[p->n_open++] = rkvi_share_base(&p->work->share, e, s, s->n_tiles - 1);
    }
    p->n_new_cells = n;
    return true;
}

/* The device address of each tile-layer at this site. */
static bool write_bases(rkvi_plan *p, const rkvi_plan_view *v, uint32_t site, const rkvi_ring_item *items,
                        uint64_t ring_addr, uint64_t ring_bytes, rkvi_mirror *m)
{
    rkvi_plan_site *ps = &p->sites[site];
    const uint32_t layer = v->cfg->sites[site].kv_layer;
    const uint32_t *marks = p->tile_launch + site * p->n_bases;
    if (!rkvi_mirror_room(p, m, room_of(v, p->n_bases, v->cfg->capacity_tiles), sizeof(uint64_t), &ps->bases_off))
        return false;
    uint64_t *bases = (uint64_t *)(m->host + ps->bases_off);
    const rkvi_ring_item *it = items + ps->list0;
    for (uint64_t base = 0; base < p->n_bases; base++)
        if (marks[base] == ps->cpu_launch) {
            const rkvi_tile_layer *l = rkvi_tile_layer_at(v->tiles, p->work->share.base_tile[base], layer);
            bases[base] = l->host_addr;
            ps->cpu_out_mark = l->out_mark > ps->cpu_out_mark ? l->out_mark : ps->cpu_out_mark;
            ps->n_cpu++;
        } else if (marks[base] < RKVI_TILE_DEVICE)
            bases[base] = ring_addr + it++->at % ring_bytes;
        else /* an unseen tile may still take new cells: its address is needed by store */
            bases[base] = rkvi_tile_layer_at(v->tiles, p->work->share.base_tile[base], layer)->device_addr;
    return true;
}

void rkvi_plan_ring_bases(const rkvi_plan *p, const rkvi_config *cfg, const rkvi_ring_item *items, uint64_t ring_addr,
                          rkvi_mirror *m)
{
    for (uint32_t site = 0; site < cfg->n_sites; site++) {
        const rkvi_plan_site *ps = &p->sites[site];
        const uint32_t *marks = p->tile_launch + site * p->n_bases;
        uint64_t *bases = (uint64_t *)(void *)(m->host + ps->bases_off);
        const rkvi_ring_item *it = items + ps->list0;
        for (uint64_t base = 0; base < p->n_bases && ps->n_list; base++)
            if (marks[base] < RKVI_TILE_DEVICE && marks[base] != ps->cpu_launch)
                bases[base] = ring_addr + it++->at % cfg->ring_bytes;
    }
}

static void write_cpu_bytes(const rkvi_plan *p, const rkvi_config *cfg, rkvi_mirror *m)
{
    uint64_t *bytes = (uint64_t *)(void *)(m->host + p->ticket0_off) + 1;
    for (uint32_t site = 0; cfg->cpu_threads && site < cfg->n_sites; site++)
        bytes[site] = p->sites[site].n_cpu * cfg->layers[cfg->sites[site].kv_layer].geom.bytes;
}

static bool same_shape(const rkvi_plan *p, const rkvi_config *cfg, uint32_t a, uint32_t b)
{
    const rkvi_site_config *sa = &cfg->sites[a], *sb = &cfg->sites[b];
    const rkvi_layer_config *la = &cfg->layers[sa->kv_layer], *lb = &cfg->layers[sb->kv_layer];
    return la->leaf_class == lb->leaf_class && la->geom.bytes == lb->geom.bytes &&
           (p->n_turned_rows == 0 || rkvi_site_turns(cfg, a) == rkvi_site_turns(cfg, b)) &&
           sa->mask.kind == sb->mask.kind && sa->mask.width == sb->mask.width &&
           p->sites[a].n_launches == p->sites[b].n_launches && p->sites[a].cpu_launch == p->sites[b].cpu_launch &&
           memcmp(p->tile_launch + a * p->n_bases, p->tile_launch + b * p->n_bases,
                  p->n_bases * sizeof *p->tile_launch) == 0;
}

/* Takes over the work of an earlier site of the same shape. */
static bool share_items(rkvi_plan *p, const rkvi_config *cfg, uint32_t site)
{
    const uint32_t first = site > 8 ? site - 8 : 0;
    for (uint32_t other = site; other-- > first;) {
        if (!same_shape(p, cfg, site, other))
            continue;
        rkvi_plan_site *a = &p->sites[site], *b = &p->sites[other];
        memcpy(&p->launches[a->launch0 * p->n_rounds], &p->launches[b->launch0 * p->n_rounds],
               b->n_launches * p->n_rounds * sizeof *p->launches);
        a->merge0 = b->merge0;
        a->n_merge = b->n_merge;
        a->items_off = b->items_off;
        a->merges_off = b->merges_off;
        a->nodes_off = b->nodes_off;
        a->cpu_is_mixed = b->cpu_is_mixed;
        return true;
    }
    return false;
}

static rkv_status launches_room(rkvi_plan *p)
{
    const uint32_t n = p->n_launches * p->n_rounds;
    if (n <= p->launches_room)
        return RKV_OK;
    rkvi_plan_launch *l = realloc(p->launches, 2 * (size_t)n * sizeof *l);
    if (!l)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to plan %u launches", n);
    p->launches = l;
    p->launches_room = 2 * n;
    return RKV_OK;
}

rkv_status rkvi_plan_tables(rkvi_plan *p, const rkvi_plan_view *v, const rkvi_ring_item *items,
                            uint64_t ring_addr, uint64_t ring_bytes, rkvi_mirror *m)
{
    p->table_bytes = 0;
    rkvi_plan_turns_of(p, v);
    rkv_status s = launches_room(p);
    rkvi_share_stems(&p->work->share, v->batch, v->seqs, v->tiles);
    bool ok = s == RKV_OK && write_ticket(p, v, m) && write_rows(p, v, m) && write_cells(p, v, m) &&
              write_row_map(p, v, m) && rkvi_plan_write_turned(p, v, m) && rkvi_plan_write_trees(p, v, m);
    for (uint32_t c = 0; ok && c < v->cfg->n_leaf_classes; c++)
        ok = write_class(p, v, c, m);
    for (uint32_t site = 0; ok && site < v->cfg->n_sites; site++)
        ok = write_bases(p, v, site, items, ring_addr, ring_bytes, m);
    if (ok)
        write_cpu_bytes(p, v->cfg, m);
    for (uint32_t site = 0; ok && site < v->cfg->n_sites; site++)
        if (!share_items(p, v->cfg, site)) {
            s = rkvi_plan_site_items(p, v, site, m);
            ok = s == RKV_OK;
        }
    if (s != RKV_OK || ok)
        return s;
    return rkvi_fail(RKV_E_CAPACITY,
                     "the step's tables take more than %llu bytes: too many separate runs of positions in "
                     "one batch; use smaller batches, compact sequences, or create the cache with more extra_segments",
                     (unsigned long long)m->bytes);
}

static uint64_t mix(uint64_t hash, uint64_t x)
{
    hash = (hash ^ x) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_launch(uint64_t hash, const rkvi_plan_launch *l)
{
    hash = mix(mix(mix(hash, l->decode0), l->grid_decode), l->decode_rows);
    hash = mix(mix(hash, l->prefill0), l->n_prefill);
    return mix(mix(hash, l->merge0), l->n_merge);
}

uint64_t rkvi_plan_hash(const rkvi_plan *p, const rkvi_config *cfg, const rkvi_batch *b)
{
    uint64_t hash = mix(0xcbf29ce484222325u, b->n_entries);
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_batch_entry *be = &b->entries[e];
        hash = mix(hash, (uint64_t)be->n_rows << 3 | (uint64_t)be->is_tree << 2 | (uint64_t)(be->n_new > 0) << 1 |
                             be->is_prefill);
    }
    hash = mix(mix(hash, p->n_rounds), p->is_mapped ? p->row_map_off + 1 : 0);
    hash = mix(mix(mix(hash, p->rows_off), p->cells_off), p->open_off);
    hash = mix(mix(hash, p->n_tree_rows), p->n_tree_rows ? p->trees_off : 0);
    hash = mix(mix(hash, p->n_turned_rows), p->n_turned_rows ? p->turned_off : 0);
    for (uint32_t i = 0; i < cfg->n_ropes && p->n_turned_rows; i++)
        hash = mix(hash, p->turns.angles_off[i]);
    for (uint32_t c = 0; c < cfg->n_leaf_classes; c++)
        hash = mix(mix(hash, p->classes[c].entries_off), p->classes[c].spans_off);
    for (uint32_t i = 0; i < cfg->n_sites; i++) {
        const rkvi_plan_site *s = &p->sites[i];
        hash = mix(mix(mix(mix(hash, s->bases_off), s->items_off), s->merges_off), s->nodes_off);
        hash = mix(mix(mix(mix(mix(hash, s->merge0), s->n_merge), s->n_launches), s->cpu_launch), s->cpu_is_mixed);
        for (uint32_t g = 0; g < s->n_launches * p->n_rounds; g++)
            hash = hash_launch(hash, &p->launches[s->launch0 * p->n_rounds + g]);
    }
    return hash;
}

void rkvi_plan_print(const rkvi_plan *p, const rkvi_config *cfg, void (*line)(void *, const char *), void *user)
{
    char text[200];
    for (uint32_t site = 0; site < cfg->n_sites; site++)
        for (uint32_t i = 0; i < p->sites[site].n_launches * p->n_rounds; i++) {
            const rkvi_plan_site *s = &p->sites[site];
            const rkvi_plan_launch *l = &p->launches[s->launch0 * p->n_rounds + i];
            snprintf(
                text, sizeof text,
                "site %u launch %llu round %u: decode items %llu, prefill items %llu, merges %llu, reads %llu bytes",
                site, (unsigned long long)(s->number0 + i / p->n_rounds), i % p->n_rounds,
                (unsigned long long)l->n_decode, (unsigned long long)l->n_prefill, (unsigned long long)l->n_merge,
                (unsigned long long)l->cost_bytes);
            line(user, text);
        }
}
