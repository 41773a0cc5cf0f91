/* step_launch.c: kernels of a step and the ranges that they touch. */
#include "step_profile.h"
#include "step_types.h"

#include <stdlib.h>

/* ------------------------------------------------------------------- ranges */

/* Ranges are collected only where the executor wants them (tests). */
void rkvi_launch_add_range(rkv_cache *h, const void *ptr, uint64_t bytes, uint32_t access)
{
    if (!h->dev->wants_ranges || bytes == 0 || !ptr)
        return;
    if (h->n_ranges == h->ranges_room) {
        const size_t room = 2 * h->ranges_room + 256;
        rkvi_range *p = realloc(h->ranges, room * sizeof *p);
        if (!p)
            return; /* the checker will name the missing range */
        h->ranges = p;
        h->ranges_room = room;
    }
    h->ranges[h->n_ranges++] = (rkvi_range){.ptr = ptr, .bytes = bytes, .rows = 1, .access = access};
}

static void add_tensor(rkv_cache *h, const rkvi_tensor *t, uint32_t rows, uint32_t heads, uint32_t dim,
                       uint32_t access)
{
    const uint64_t size = rkvi_tensor_type_bytes(t->type);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < heads; i++)
            rkvi_launch_add_range(
                h, (const char *)t->data + ((int64_t)r * t->row_stride + (int64_t)i * t->head_stride) * (int64_t)size,
                dim * size, access);
}

static const void *table(const rkv_cache *h, uint64_t off)
{
    return (const void *)(uintptr_t)(rkvi_step_tables_at(h) + off);
}

static void add_table(rkv_cache *h, uint64_t off, uint64_t bytes)
{
    rkvi_launch_add_range(h, table(h, off), bytes, RKVI_READ);
}

rkv_status rkvi_launch_enqueue(rkv_cache *h, rkvi_launch *l, void *stream)
{
    l->ranges = h->ranges;
    l->n_ranges = h->n_ranges;
    h->n_ranges = 0;
    h->stats.launches++;
    return rkvi_dev(launch, h->dev, l, stream);
}

/* -------------------------------------------------------------------- store */

static uint32_t n_new_rows(const rkv_cache *h)
{
    return (uint32_t)h->plan.n_new_cells;
}

/* The cells' tile-layers: those of new cells, by their bases in the mirror. */
static void store_ranges(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_geom *g = &c->layer->geom;
    const rkvi_new_cell *cells = (const rkvi_new_cell *)(rkvi_step_tables_host(h) + h->plan.cells_off);
    const uint64_t *bases = (const uint64_t *)(rkvi_step_tables_host(h) + c->plan->bases_off);
    if (!h->dev->wants_ranges)
        return;
    add_table(h, c->plan->bases_off, h->plan.n_bases * sizeof(uint64_t));
    add_table(h, h->plan.cells_off, h->plan.n_new_cells * sizeof(rkvi_new_cell));
    add_tensor(h, &c->a->k, n_new_rows(h), g->n_heads, g->dk, RKVI_READ);
    add_tensor(h, &c->a->v, n_new_rows(h), g->n_heads, g->dv, RKVI_READ);
    for (uint64_t i = 0; i < h->plan.n_new_cells; i++)
        for (uint32_t head = 0; head < g->n_heads; head++) {
            char *base = (char *)(uintptr_t)bases[cells[i].base] + head * g->head_bytes;
            const uint64_t cell = cells[i].cell;
            rkvi_launch_add_range(h, base + g->k_off + cell * g->k_cell_bytes, g->k_cell_bytes, RKVI_WRITE);
            rkvi_launch_add_range(h, base + g->k_scale_off + cell * g->k_scale_cell_bytes, g->k_scale_cell_bytes,
                                  RKVI_WRITE);
            rkvi_launch_add_range(h, base + g->v_off + cell * g->v_cell_bytes, g->v_cell_bytes, RKVI_WRITE);
            rkvi_launch_add_range(h, base + g->v_scale_off + cell * g->v_scale_cell_bytes, g->v_scale_cell_bytes,
                                  RKVI_WRITE);
        }
}

rkv_status rkvi_launch_open(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_open_args args = {.bases = table(h, c->plan->bases_off),
                                 .base_index = table(h, h->plan.open_off),
                                 .bytes = c->layer->geom.bytes};
    rkvi_launch l = {.op = RKVI_OP_OPEN, .args_bytes = sizeof args, .args = &args, .grid = h->plan.n_open};
    const uint64_t *bases = (const uint64_t *)(rkvi_step_tables_host(h) + c->plan->bases_off);
    const uint64_t *open = (const uint64_t *)(rkvi_step_tables_host(h) + h->plan.open_off);
    if (h->plan.n_open == 0)
        return RKV_OK;
    add_table(h, c->plan->bases_off, h->plan.n_bases * sizeof(uint64_t));
    add_table(h, h->plan.open_off, h->plan.n_open * sizeof(uint64_t));
    for (uint64_t i = 0; i < h->plan.n_open; i++)
        rkvi_launch_add_range(h, (void *)(uintptr_t)bases[open[i]], c->layer->geom.bytes, RKVI_WRITE);
    h->stats.extra_launches++;
    return rkvi_launch_enqueue(h, &l, c->stream);
}

rkv_status rkvi_launch_store(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_store_args args = {.geom = c->layer->geom,
                                  .bases = table(h, c->plan->bases_off),
                                  .cells = table(h, h->plan.cells_off),
                                  .k = c->a->k,
                                  .v = c->a->v};
    rkvi_launch l = {.op = RKVI_OP_STORE,
                     .args_bytes = sizeof args,
                     .args = &args,
                     .grid = h->plan.n_new_cells * c->layer->geom.n_heads};
    store_ranges(h, c);
    rkvi_capture_note(h, c, &l, 0, 0);
    return rkvi_launch_enqueue(h, &l, c->stream);
}

/* ------------------------------------------------------------------- attend */

static uint64_t partial_bytes(const rkvi_site_call *c)
{
    return (uint64_t)c->site->n_q_heads * (c->layer->geom.dv + 2) * sizeof(float);
}

/* Heads are written apart by work items of one launch; the whole rows are
 * declared. */
static void add_partials(rkv_cache *h, const rkvi_site_call *c, uint64_t slot, uint64_t n, uint32_t access)
{
    rkvi_launch_add_range(h, (char *)h->partials + slot * partial_bytes(c), n * partial_bytes(c), access);
}

/* Rows of an entry that a launch puts out. */
static void output_ranges(rkv_cache *h, const rkvi_site_call *c, uint32_t entry, uint32_t row, uint32_t n_rows)
{
    const rkvi_entry *entries =
        (const rkvi_entry *)(rkvi_step_tables_host(h) + h->plan.classes[c->layer->leaf_class].entries_off);
    const uint32_t row0 = entries[entry].row0 + row;
    rkvi_tensor out = c->a->out;
    out.data = (char *)out.data + (int64_t)row0 * out.row_stride * (int64_t)rkvi_tensor_type_bytes(out.type);
    add_tensor(h, &out, n_rows, c->site->n_q_heads, c->layer->geom.dv, RKVI_WRITE);
    for (uint32_t r = row0; c->a->lse && r < row0 + n_rows; r++)
        rkvi_launch_add_range(h, c->a->lse + (int64_t)r * c->a->lse_row_stride, c->site->n_q_heads * sizeof(float),
                              RKVI_WRITE);
    rkvi_launch_add_range(h, c->a->sinks, c->site->n_q_heads * sizeof(float), RKVI_READ);
}

static void item_ranges(rkv_cache *h, const rkvi_site_call *c, const rkvi_item *it, bool is_prefill)
{
    const uint32_t class = c->layer->leaf_class;
    const unsigned char *m = rkvi_step_tables_host(h);
    const rkvi_entry *e = (const rkvi_entry *)(m + h->plan.classes[class].entries_off) + it->entry;
    const rkvi_span *spans = (const rkvi_span *)(m + h->plan.classes[class].spans_off) + e->span0;
    const uint64_t *bases = (const uint64_t *)(m + c->plan->bases_off) + e->base0;
    uint64_t last = 0;
    for (uint64_t leaf = it->leaf0; leaf < it->leaf1; leaf++) {
        const uint64_t base = bases[spans[leaf].tile];
        if (base && base != last)
            rkvi_launch_add_range(h, (void *)(uintptr_t)base, rkvi_geom_cells_bytes(&c->layer->geom), RKVI_READ);
        last = base;
    }
    const bool reads = is_prefill && !(it->flags & RKVI_ITEM_FIRST);
    add_partials(h, c, it->slot, it->n_rows, RKVI_WRITE | (reads ? RKVI_READ : 0u));
    if (is_prefill && (it->flags & RKVI_ITEM_LAST))
        output_ranges(h, c, it->entry, it->row, it->n_rows);
}

static bool turns(const rkv_cache *h, const rkvi_site_call *c)
{
    return h->plan.n_turned_rows > 0 && c->layer->rope != RKVI_NO_ROPE;
}

static void add_turned(rkv_cache *h, const rkvi_site_call *c, uint32_t access)
{
    const rkvi_turned_row *rows = (const rkvi_turned_row *)(rkvi_step_tables_host(h) + h->plan.turned_off);
    const uint64_t floats = (uint64_t)c->site->n_q_heads * c->layer->geom.dk;
    for (uint64_t i = 0; i < h->plan.n_turned_rows; i++)
        rkvi_launch_add_range(h, h->turned + rows[i].turn * h->cfg.turned_floats + rows[i].row * floats,
                              floats * sizeof(float), access);
}

static void rotate_ranges(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_rope *rope = &h->cfg.ropes[c->layer->rope];
    const uint64_t angles_off = h->plan.turns.angles_off[c->layer->rope];
    if (!h->dev->wants_ranges)
        return;
    add_table(h, h->plan.turned_off, h->plan.n_turned_rows * sizeof(rkvi_turned_row));
    add_table(h, angles_off, (uint64_t)h->plan.turns.n_pairs * rope->n * 2 * sizeof(float));
    add_tensor(h, &c->a->q, h->batch.n_rows, c->site->n_q_heads, c->layer->geom.dk, RKVI_READ);
    add_turned(h, c, RKVI_WRITE);
}

rkv_status rkvi_launch_rotate(rkv_cache *h, const rkvi_site_call *c)
{
    if (!turns(h, c))
        return RKV_OK;
    const rkvi_rope *rope = &h->cfg.ropes[c->layer->rope];
    const uint64_t angles_off = h->plan.turns.angles_off[c->layer->rope];
    const rkvi_rotate_args args = {.q = c->a->q,
                                   .rows = table(h, h->plan.turned_off),
                                   .angles = table(h, angles_off),
                                   .turned = h->turned,
                                   .turned_stride = h->cfg.turned_floats,
                                   .q_heads = c->site->n_q_heads,
                                   .dk = c->layer->geom.dk,
                                   .n_pairs = rope->n,
                                   .pairing = rope->pairing};
    rkvi_launch l = {.op = RKVI_OP_ROTATE, .args_bytes = sizeof args, .args = &args,
                     .grid = h->plan.n_turned_rows * c->site->n_q_heads};
    rotate_ranges(h, c);
    h->stats.extra_launches++;
    rkvi_capture_note(h, c, &l, 0, 0);
    return rkvi_launch_enqueue(h, &l, c->stream);
}

static void attend_ranges(rkv_cache *h, const rkvi_site_call *c, rkvi_op op, uint64_t first, uint64_t n)
{
    const uint32_t class = c->layer->leaf_class;
    if (!h->dev->wants_ranges)
        return;
    const unsigned char *m = rkvi_step_tables_host(h);
    const rkvi_entry *entries = (const rkvi_entry *)(m + h->plan.classes[class].entries_off);
    const rkvi_entry *last = &entries[h->batch.n_entries - 1];
    add_table(h, h->plan.classes[class].entries_off, h->batch.n_entries * sizeof(rkvi_entry));
    add_table(h, h->plan.classes[class].spans_off, (last->span0 + last->n_spans) * sizeof(rkvi_span));
    add_table(h, h->plan.rows_off, h->batch.n_rows * sizeof(rkvi_row));
    add_table(h, c->plan->bases_off, h->plan.n_bases * sizeof(uint64_t));
    add_table(h, c->plan->items_off + first * sizeof(rkvi_item), n * sizeof(rkvi_item));
    add_tensor(h, &c->a->q, h->batch.n_rows, c->site->n_q_heads, c->layer->geom.dk, RKVI_READ);
    if (turns(h, c))
        add_turned(h, c, RKVI_READ);
    if (op == RKVI_OP_DECODE && rkvi_step_cpu_is_late_launch(h, c, first))
        rkvi_launch_add_range(h, h->cpu.late_items, n * sizeof(rkvi_item), RKVI_READ);
    if (op == RKVI_OP_DECODE && h->plan.is_mapped)
        add_table(h, h->plan.row_map_off, h->plan.n_mapped_rows * sizeof(uint32_t));
    for (uint64_t i = first; i < first + n; i++)
        item_ranges(h, c, (const rkvi_item *)(m + c->plan->items_off) + i, op == RKVI_OP_PREFILL);
}

static rkvi_merge_args merge_args(const rkv_cache *h, const rkvi_site_call *c, uint64_t first)
{
    return (rkvi_merge_args){
        .entries = table(h, h->plan.classes[c->layer->leaf_class].entries_off),
        .items = table(h, c->plan->merges_off + first * sizeof(rkvi_merge_item)),
        .nodes = table(h, c->plan->nodes_off),
        .partials = h->partials,
        .out = c->a->out,
        .lse = c->a->lse,
        .lse_row_stride = c->a->lse_row_stride,
        .sinks = c->a->sinks,
        .q_heads = c->site->n_q_heads,
        .dv = c->layer->geom.dv,
        .max_rows = h->batch.most_rows,
    };
}

static rkvi_attend_args attend_args(const rkv_cache *h, const rkvi_site_call *c, bool is_decode,
                                    const rkvi_plan_launch *pl)
{
    const rkvi_plan_class *pc = &h->plan.classes[c->layer->leaf_class];
    const uint64_t first = is_decode ? pl->decode0 : pl->prefill0;
    return (rkvi_attend_args){
        .geom = c->layer->geom,
        .entries = table(h, pc->entries_off),
        .rows = table(h, h->plan.rows_off),
        .spans = table(h, pc->spans_off),
        .bases = table(h, c->plan->bases_off),
        .items = table(h, c->plan->items_off + first * sizeof(rkvi_item)),
        .partials = h->partials,
        .q = c->a->q,
        .turned = h->turned,
        .turned_stride = h->cfg.turned_floats,
        .row_map = is_decode && h->plan.is_mapped ? table(h, h->plan.row_map_off) : NULL,
        .mask = c->site->mask,
        .q_heads = c->site->n_q_heads,
        .scale = c->site->scale,
        .softcap = c->site->softcap,
        .max_rows = is_decode ? pl->decode_rows : 0,
        .mean_leaves = is_decode && pl->n_decode ? (uint32_t)rkvi_div_up(pl->decode_leaves, pl->n_decode) : 0,
        .merge = merge_args(h, c, c->plan->merge0),
    };
}

static rkv_status run_items(rkv_cache *h, const rkvi_site_call *c, rkvi_launch *l, uint64_t first, uint64_t n)
{
    if (n == 0)
        return RKV_OK;
    l->grid = n * c->layer->geom.n_heads;
    attend_ranges(h, c, (rkvi_op)l->op, first, n);
    rkvi_capture_note(h, c, l, first, n);
    return rkvi_launch_enqueue(h, l, c->stream);
}

static rkv_status launch_items(rkv_cache *h, const rkvi_site_call *c, rkvi_op op, const rkvi_plan_launch *pl)
{
    const bool is_decode = op == RKVI_OP_DECODE;
    const rkvi_attend_args args = attend_args(h, c, is_decode, pl);
    rkvi_launch l = {.op = op, .args_bytes = sizeof args, .args = &args,
                     .cost_bytes = is_decode || !pl->n_decode ? pl->cost_bytes : 0};
    return run_items(h, c, &l, is_decode ? pl->decode0 : pl->prefill0, is_decode ? pl->grid_decode : pl->n_prefill);
}

rkv_status rkvi_launch_late(rkv_cache *h, const rkvi_site_call *c, const rkvi_plan_launch *pl)
{
    rkvi_attend_args args = attend_args(h, c, true, pl);
    args.items = h->cpu.late_items;
    rkvi_launch l = {.op = RKVI_OP_DECODE, .args_bytes = sizeof args, .args = &args};
    h->stats.extra_launches++;
    return run_items(h, c, &l, pl->decode0, pl->grid_decode);
}

/* -------------------------------------------------------------------- merge */

static void merge_ranges(rkv_cache *h, const rkvi_site_call *c, uint64_t first, uint64_t n)
{
    const unsigned char *m = rkvi_step_tables_host(h);
    const rkvi_merge_item *items = (const rkvi_merge_item *)(m + c->plan->merges_off);
    const rkvi_node *nodes = (const rkvi_node *)(m + c->plan->nodes_off);
    const uint32_t class = c->layer->leaf_class;
    if (!h->dev->wants_ranges)
        return;
    add_table(h, h->plan.classes[class].entries_off, h->batch.n_entries * sizeof(rkvi_entry));
    add_table(h, c->plan->merges_off + first * sizeof *items, n * sizeof *items);
    for (uint64_t i = first; i < first + n; i++) {
        add_table(h, c->plan->nodes_off + items[i].node0 * sizeof *nodes, items[i].n_nodes * sizeof *nodes);
        for (uint64_t k = items[i].node0; k < items[i].node0 + items[i].n_nodes; k++)
            add_partials(h, c, nodes[k].slot, items[i].n_rows, RKVI_READ);
        if (items[i].dst != RKVI_TO_OUT)
            add_partials(h, c, items[i].dst, items[i].n_rows, RKVI_WRITE);
        else
            output_ranges(h, c, items[i].entry, items[i].row, items[i].n_rows);
    }
}

static rkv_status launch_merge(rkv_cache *h, const rkvi_site_call *c, uint64_t first, uint64_t n)
{
    const rkvi_merge_args args = merge_args(h, c, first);
    rkvi_launch l = {.op = RKVI_OP_MERGE, .args_bytes = sizeof args, .args = &args, .grid = n * c->site->n_q_heads};
    if (n == 0)
        return RKV_OK;
    merge_ranges(h, c, first, n);
    rkvi_capture_note(h, c, &l, first, n);
    return rkvi_launch_enqueue(h, &l, c->stream);
}

/* Rounds of all launches of the site are numbered one after another. */
static rkv_status launch_round(rkv_cache *h, const rkvi_site_call *c, uint32_t round)
{
    const rkvi_plan_launch *l = &h->plan.launches[c->plan->launch0 * h->plan.n_rounds + round];
    rkv_status s = launch_items(h, c, RKVI_OP_DECODE, l);
    if (s == RKV_OK && h->is_profiled)
        s = rkvi_profile_launch(h, c, round);
    if (s == RKV_OK)
        s = launch_items(h, c, RKVI_OP_PREFILL, l);
    if (s == RKV_OK)
        s = launch_merge(h, c, l->merge0, l->n_merge);
    const bool runs = l->n_decode || l->n_prefill;
    h->stats.extra_launches += (round > 0 && runs) + (l->n_decode && l->n_prefill) + (l->n_merge > 0);
    return s;
}

rkv_status rkvi_launch_attend(rkv_cache *h, const rkvi_site_call *c, uint32_t g)
{
    const uint32_t n = h->plan.n_rounds;
    rkv_status s = RKV_OK;
    for (uint32_t r = 0; r < n && s == RKV_OK; r++)
        s = launch_round(h, c, g * n + r);
    return s;
}

/* --------------------------------------------------------------- token trees */

static void tree_ranges(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_geom *g = &c->layer->geom;
    const unsigned char *m = rkvi_step_tables_host(h);
    const rkvi_tree_item *items = (const rkvi_tree_item *)(m + h->plan.trees_off);
    const rkvi_new_cell *cells = (const rkvi_new_cell *)(m + h->plan.cells_off);
    const uint64_t *bases = (const uint64_t *)(m + c->plan->bases_off);
    if (!h->dev->wants_ranges)
        return;
    add_table(h, h->plan.trees_off, h->plan.n_tree_rows * sizeof *items);
    add_table(h, h->plan.rows_off, h->batch.n_rows * sizeof(rkvi_row));
    add_table(h, h->plan.cells_off, h->plan.n_new_cells * sizeof *cells);
    add_table(h, c->plan->bases_off, h->plan.n_bases * sizeof *bases);
    add_tensor(h, &c->a->q, h->batch.n_rows, c->site->n_q_heads, g->dk, RKVI_READ);
    for (uint64_t i = 0; i < h->plan.n_tree_rows; i++) {
        const rkvi_new_cell *cell = &cells[items[i].cell0 + items[i].row];
        rkvi_launch_add_range(h, (void *)(uintptr_t)bases[cell->base], rkvi_geom_cells_bytes(g), RKVI_READ);
        add_partials(h, c, items[i].slot, 1, RKVI_WRITE);
    }
}

static rkv_status launch_trees(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_tree_args args = {.geom = c->layer->geom,
                                 .rows = table(h, h->plan.rows_off),
                                 .bases = table(h, c->plan->bases_off),
                                 .cells = table(h, h->plan.cells_off),
                                 .items = table(h, h->plan.trees_off),
                                 .partials = h->partials,
                                 .q = c->a->q,
                                 .mask = c->site->mask,
                                 .q_heads = c->site->n_q_heads,
                                 .scale = c->site->scale,
                                 .softcap = c->site->softcap};
    rkvi_launch l = {.op = RKVI_OP_TREE, .args_bytes = sizeof args, .args = &args,
                     .grid = h->plan.n_tree_rows * c->site->n_q_heads};
    if (h->plan.n_tree_rows == 0)
        return RKV_OK;
    tree_ranges(h, c);
    h->stats.extra_launches++;
    rkvi_capture_note(h, c, &l, 0, 0);
    return rkvi_launch_enqueue(h, &l, c->stream);
}

rkv_status rkvi_launch_move(rkv_cache *h, uint32_t layer, const rkvi_seq *s, const uint32_t *cells, uint32_t n,
                            void *stream)
{
    const rkvi_geom *g = &h->cfg.layers[layer].geom;
    const rkvi_segment begin = rkvi_seq_tree_begin(s);
    rkvi_move_args args = {.geom = *g, .first = begin.first, .n = n};
    rkvi_launch l = {.op = RKVI_OP_MOVE, .args_bytes = sizeof args, .args = &args, .grid = g->n_heads};
    const uint32_t n_tiles = (begin.first + s->n_tree - 1) / g->tile_cells + 1;
    for (uint32_t t = 0; t < n_tiles; t++) {
        const rkvi_tile_layer *tl = rkvi_tile_layer_at(&h->cache.tiles, s->tiles[begin.tile_index + t], layer);
        args.tiles[t] = tl->device_addr;
        rkvi_launch_add_range(h, (void *)(uintptr_t)tl->device_addr, rkvi_geom_cells_bytes(g), RKVI_READ | RKVI_WRITE);
    }
    for (uint32_t i = 0; i < n; i++)
        args.from[i] = (uint8_t)cells[i];
    h->stats.extra_launches++;
    return rkvi_launch_enqueue(h, &l, stream);
}

rkv_status rkvi_launch_output(rkv_cache *h, const rkvi_site_call *c)
{
    rkv_status s = launch_trees(h, c);
    if (s == RKV_OK && h->is_profiled)
        s = rkvi_profile_output(h, c);
    if (s != RKV_OK)
        return s;
    return launch_merge(h, c, c->plan->merge0, c->plan->n_merge);
}

void rkvi_launch_ranges(rkv_cache *h, const rkvi_site_call *c, uint32_t op, uint64_t first, uint64_t n)
{
    h->n_ranges = 0;
    if (op == RKVI_OP_STORE)
        store_ranges(h, c);
    else if (op == RKVI_OP_ROTATE)
        rotate_ranges(h, c);
    else if (op == RKVI_OP_TREE)
        tree_ranges(h, c);
    else if (op == RKVI_OP_PUBLISH || op == RKVI_OP_AWAIT || op == RKVI_OP_TAKE)
        rkvi_step_cpu_ranges(h, c, op);
    else if (op == RKVI_OP_MERGE)
        merge_ranges(h, c, first, n);
    else
        attend_ranges(h, c, (rkvi_op)op, first, n);
}
