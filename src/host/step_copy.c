/* step_copy.c: everything that crosses a link, and the waits around it. */
#include "step_types.h"

#include <assert.h>

static rkvi_tile_layer *tile_layer(rkv_cache *h, uint32_t tile, uint32_t layer)
{
    return rkvi_tile_layer_at(&h->cache.tiles, tile, layer);
}

static uint64_t mark_of_launch(const rkv_cache *h, uint64_t launch)
{
    if (launch == 0)
        return 0;
    /* Older than the table: its place was taken by a later launch. */
    return h->launch_marks[launch % h->launch_room];
}

/* ------------------------------------------------------------------ copy in */

static void count_in(rkv_cache *h, uint64_t bytes)
{
    h->stats.copies_in++;
    if (bytes > h->stats.largest_copy_in_bytes)
        h->stats.largest_copy_in_bytes = bytes;
}

static rkv_status copy_group(rkv_cache *h, const rkvi_copy_group *g)
{
    const rkvi_copy copy = {.direction = RKVI_H2D,
                            .dst = (unsigned char *)h->ring_memory + g->offset,
                            .src = (const void *)(uintptr_t)g->host_addr,
                            .width_bytes = g->width_bytes,
                            .rows = g->rows,
                            .dst_pitch_bytes = g->width_bytes,
                            .src_pitch_bytes = g->rows > 1 ? g->pitch_bytes : g->width_bytes};
    rkv_status s = rkvi_timeline_wait(&h->compute, mark_of_launch(h, g->dep), h->in_stream, &h->in_seen.compute);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->out, g->out_mark, h->in_stream, &h->in_seen.out);
    if (s == RKV_OK)
        s = rkvi_arena_copy(h->arena, &copy, h->in_stream);
    if (s == RKV_OK)
        s = rkvi_timeline_record(&h->in, h->in_stream);
    return s;
}

static rkv_status issue(rkv_cache *h, const rkvi_copy_group *g)
{
    rkv_status s = copy_group(h, g);
    if (s != RKV_OK)
        return s;
    h->n_ahead = 0; /* what a graph left in the ring is written over */
    rkvi_ring_issued(&h->ring, g, h->in.last);
    for (uint32_t i = g->first; i < g->first + g->n_items; i++) {
        const rkvi_ring_item *it = &h->ring.items[i];
        const uint32_t place = tile_layer(h, it->tile, it->layer)->host_place;
        assert(place != RKVI_NO_PLACE);
        h->cache.layers[it->layer].host_in[place] = h->in.last;
    }
    count_in(h, g->rows * g->width_bytes);
    h->stats.streamed_bytes += g->rows * g->width_bytes;
    h->stats.streamed_tile_layers += g->n_items;
    return RKV_OK;
}

rkv_status rkvi_step_pump(rkv_cache *h, uint64_t needed)
{
    rkvi_copy_group g;
    bool any = false;
    while (rkvi_ring_next_group(&h->ring, h->launched, needed, &g)) {
        rkv_status s = issue(h, &g);
        if (s != RKV_OK)
            return s;
        any = true;
    }
    if (any) {
        const uint64_t ahead = rkvi_ring_ahead_bytes(&h->ring, h->launched);
        if (ahead > h->stats.run_ahead_bytes)
            h->stats.run_ahead_bytes = ahead;
    }
    return RKV_OK;
}

rkv_status rkvi_step_pump_next(rkv_cache *h, uint64_t needed)
{
    rkvi_copy_group g;
    return rkvi_ring_next_group(&h->ring, h->launched, needed, &g) ? issue(h, &g) : RKV_OK;
}

rkv_status rkvi_step_pump_op_level(rkv_cache *h, uint64_t upto)
{
    rkvi_copy_group g;
    while (h->ring.next < h->ring.n_list && h->ring.items[h->ring.next].launch <= upto) {
        if (!rkvi_ring_next_group(&h->ring, h->launched, upto, &g))
            break;
        rkv_status s = rkvi_timeline_wait(&h->compute, h->compute.last, h->in_stream, &h->in_seen.compute);
        if (s == RKV_OK)
            s = issue(h, &g);
        if (s != RKV_OK)
            return s;
    }
    return RKV_OK;
}

/* A host copy goes to a device place: of the tile-layer itself, or of the
 * shared one that it is a copy of. */
static rkv_status bring_back(rkv_cache *h, rkvi_move *m)
{
    rkvi_tile_layer *l = tile_layer(h, m->tile, m->layer);
    rkvi_tile_layer *from = m->kind == RKVI_MOVE_COPY ? tile_layer(h, m->from, m->layer) : l;
    rkvi_layer_state *ls = &h->cache.layers[m->layer];
    rkvi_place_marks *marks = &ls->device_marks[m->place];
    const uint64_t bytes = h->cfg.layers[m->layer].geom.bytes;
    const rkvi_copy copy = {.direction = RKVI_H2D,
                            .dst = (void *)(uintptr_t)l->device_addr,
                            .src = (const void *)(uintptr_t)from->host_addr,
                            .width_bytes = bytes,
                            .rows = 1};
    rkv_status s = rkvi_timeline_wait(&h->compute, marks->used, h->in_stream, &h->in_seen.compute);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->out, marks->out, h->in_stream, &h->in_seen.out);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->out, from->out_mark, h->in_stream, &h->in_seen.out);
    if (s == RKV_OK)
        s = rkvi_arena_copy(h->arena, &copy, h->in_stream);
    if (s == RKV_OK)
        s = rkvi_timeline_record(&h->in, h->in_stream);
    if (s != RKV_OK)
        return s;
    marks->in = ls->store_in = ls->host_in[from->host_place] = h->in.last;
    m->done = true;
    count_in(h, bytes);
    h->stats.brought_back_bytes += bytes;
    return RKV_OK;
}

static bool comes_from_host(rkv_cache *h, const rkvi_move *m)
{
    return m->kind == RKVI_MOVE_BRING_BACK ||
           (m->kind == RKVI_MOVE_COPY && tile_layer(h, m->from, m->layer)->state == RKVI_IN_TAIL);
}

rkv_status rkvi_step_bring_back(rkv_cache *h)
{
    for (uint32_t i = 0; i < h->cache.n_moves; i++) {
        rkvi_move *m = &h->cache.moves[i];
        rkv_status s = comes_from_host(h, m) ? bring_back(h, m) : RKV_OK;
        if (s != RKV_OK)
            return s;
    }
    return RKV_OK;
}

/* Both places may still wait for earlier copies. */
static rkv_status copy_shared(rkv_cache *h, rkvi_move *m, void *stream)
{
    const rkvi_tile_layer *from = tile_layer(h, m->from, m->layer), *l = tile_layer(h, m->tile, m->layer);
    const rkvi_layer_state *ls = &h->cache.layers[m->layer];
    const rkvi_place_marks *to = &ls->device_marks[m->place], *of = &ls->device_marks[from->device_place];
    const uint64_t bytes = h->cfg.layers[m->layer].geom.bytes;
    const rkvi_copy copy = {.direction = RKVI_D2D,
                            .dst = (void *)(uintptr_t)l->device_addr,
                            .src = (const void *)(uintptr_t)from->device_addr,
                            .width_bytes = bytes,
                            .rows = 1};
    rkv_status s = rkvi_timeline_wait(&h->out, to->out, stream, &h->compute_seen.out);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->in, to->in > of->in ? to->in : of->in, stream, &h->compute_seen.in);
    if (s == RKV_OK)
        s = rkvi_dev(copy, h->dev, &copy, stream);
    if (s != RKV_OK)
        return s;
    m->done = true;
    h->stats.shared_copy_bytes += bytes;
    return RKV_OK;
}

rkv_status rkvi_step_copy_shared(rkv_cache *h, void *stream)
{
    for (uint32_t i = 0; h->cache.n_copies && i < h->cache.n_moves; i++) {
        rkvi_move *m = &h->cache.moves[i];
        if (m->kind != RKVI_MOVE_COPY || m->done)
            continue;
        rkv_status s = copy_shared(h, m, stream);
        if (s != RKV_OK)
            return s;
    }
    return RKV_OK;
}

rkv_status rkvi_step_upload(rkv_cache *h)
{
    rkvi_step_tables *t = h->now;
    const uint64_t bytes = rkvi_align_up(h->graphs ? h->image.upload_bytes : h->plan.table_bytes, 16);
    const rkvi_upload_args args = {.dst = (unsigned char *)(uintptr_t)t->mirror.device_addr,
                                   .src = t->mirror.host,
                                   .bytes = bytes};
    rkvi_launch l = {.op = RKVI_OP_UPLOAD,
                     .args_bytes = sizeof args,
                     .args = &args,
                     .grid = rkvi_div_up(bytes, RKVI_UPLOAD_BYTES),
                     .cost_bytes = bytes};
    rkvi_launch_add_range(h, t->mirror.host, bytes, RKVI_READ);
    rkvi_launch_add_range(h, args.dst, bytes, RKVI_WRITE);
    rkv_status s = rkvi_launch_enqueue(h, &l, h->table_stream);
    if (s == RKV_OK)
        s = rkvi_timeline_record(&h->uploads, h->table_stream);
    if (s != RKV_OK)
        return s;
    t->upload_mark = h->uploads.last;
    h->stats.table_bytes += bytes;
    return RKV_OK;
}

/* ----------------------------------------------------------------- copy out */

/* Can b's copy-out be one with that of a and those before it? */
static bool adjacent(rkv_cache *h, const rkvi_move *a, const rkvi_move *b)
{
    const rkvi_tile_layer *x = tile_layer(h, a->tile, a->layer), *y = tile_layer(h, b->tile, b->layer);
    const uint64_t bytes = h->cfg.layers[a->layer].geom.bytes;
    return a->layer == b->layer && x->device_addr + bytes == y->device_addr && x->host_addr + bytes == y->host_addr &&
           rkvi_pool_same_extent(&h->cache.layers[a->layer].device, x->device_place, y->device_place);
}

static bool leaves_now(const rkvi_move *m, uint32_t layer)
{
    return m->kind == RKVI_MOVE_LEAVE && !m->done &&
           (layer == UINT32_MAX || (m->layer == layer && m->in_step));
}

/* Moves [i, j) that leave in one copy.  The padding at a tile-layer's end stays
 * behind: in transit it may hold what another KV layer left there. */
static rkv_status copy_out(rkv_cache *h, uint32_t i, uint32_t j)
{
    rkvi_move *m = h->cache.moves;
    const rkvi_tile_layer *l = tile_layer(h, m[i].tile, m[i].layer);
    const rkvi_geom *geom = &h->cfg.layers[m[i].layer].geom;
    const uint64_t used = rkvi_geom_cells_bytes(geom);
    const bool is_padded = used != geom->bytes && j - i > 1;
    const uint64_t width = is_padded || j - i == 1 ? used : geom->bytes * (j - i);
    const uint64_t rows = is_padded ? j - i : 1;
    uint64_t in_mark = 0;
    for (uint32_t k = i; k < j; k++) {
        const uint64_t mark =
            h->cache.layers[m[k].layer].host_in[tile_layer(h, m[k].tile, m[k].layer)->host_place];
        in_mark = mark > in_mark ? mark : in_mark;
    }
    const rkvi_copy copy = {.direction = RKVI_D2H,
                            .dst = (void *)(uintptr_t)l->host_addr,
                            .src = (const void *)(uintptr_t)l->device_addr,
                            .width_bytes = width,
                            .rows = rows,
                            .dst_pitch_bytes = geom->bytes,
                            .src_pitch_bytes = geom->bytes};
    rkv_status s = rkvi_timeline_wait(&h->in, in_mark, h->out_stream, &h->out_seen.in);
    if (s == RKV_OK)
        s = rkvi_arena_copy(h->arena, &copy, h->out_stream);
    h->stats.copies_out += s == RKV_OK;
    h->stats.demoted_bytes += s == RKV_OK ? width * rows : 0;
    return s;
}

static void settle(rkv_cache *h, uint32_t layer, uint64_t out_mark)
{
    for (uint32_t i = 0; i < h->cache.n_moves; i++) {
        rkvi_move *m = &h->cache.moves[i];
        if (!leaves_now(m, layer))
            continue;
        h->stats.demoted_tile_layers++;
        h->stats.demoted_free_tile_layers += m->has_copy;
        if (tile_layer(h, m->tile, m->layer)->device_place == RKVI_NO_PLACE)
            h->cache.transit[h->cache.transit_of[m->layer]].out_mark = out_mark;
        rkvi_cache_left(&h->cache, m, out_mark);
    }
}

rkv_status rkvi_step_leave(rkv_cache *h, uint32_t layer)
{
    const rkvi_move *m = h->cache.moves;
    const uint32_t n = h->cache.n_moves;
    bool any = false, copies = false;
    for (uint32_t i = 0; i < n; i++) {
        any = any || leaves_now(&m[i], layer);
        copies = copies || (leaves_now(&m[i], layer) && !m[i].has_copy);
    }
    if (!any)
        return RKV_OK;
    rkv_status s = RKV_OK;
    if (copies)
        s = rkvi_timeline_wait(&h->compute, h->compute.last, h->out_stream, &h->out_seen.compute);
    for (uint32_t i = 0; i < n && s == RKV_OK && copies;) {
        uint32_t j = i + 1;
        if (!leaves_now(&m[i], layer) || m[i].has_copy) {
            i++;
            continue;
        }
        while (j < n && leaves_now(&m[j], layer) && !m[j].has_copy && adjacent(h, &m[j - 1], &m[j]))
            j++;
        s = copy_out(h, i, j);
        i = j;
    }
    if (s == RKV_OK && copies)
        s = rkvi_timeline_record(&h->out, h->out_stream);
    if (s == RKV_OK)
        settle(h, layer, h->out.last);
    return s;
}

/* ------------------------------------------------------------------ promote */

static rkv_status promote(rkv_cache *h, rkvi_move *m, void *stream)
{
    const rkvi_ring_item *it = &h->ring.items[m->item];
    const rkvi_layer_state *ls = &h->cache.layers[m->layer];
    const rkvi_place_marks *marks = &ls->device_marks[m->place];
    const rkvi_copy copy = {.direction = RKVI_D2D,
                            .dst = rkvi_pool_at(&ls->device, m->place),
                            .src = (unsigned char *)h->ring_memory + it->at % h->ring.bytes,
                            .width_bytes = it->bytes,
                            .rows = 1};
    /* What was brought back to the place before is over: its step stored there, or was
     * aborted, which empties the ring, so that the slot was filled behind it.  What was
     * fetched, or began to be, this step's start has waited for. */
    assert(marks->in <= h->compute_seen.in);
    rkv_status s = rkvi_timeline_wait(&h->out, marks->out, stream, &h->compute_seen.out);
    if (s == RKV_OK)
        s = rkvi_dev(copy, h->dev, &copy, stream);
    if (s != RKV_OK)
        return s;
    m->done = true;
    h->stats.promoted_bytes += it->bytes;
    h->stats.promoted_tile_layers++;
    return RKV_OK;
}

rkv_status rkvi_step_promote(rkv_cache *h, uint64_t launch, void *stream)
{
    rkvi_cache *c = &h->cache;
    rkv_status s = RKV_OK;
    while (s == RKV_OK && c->next_promote < c->n_moves &&
           h->ring.items[c->moves[c->next_promote].item].launch == launch)
        s = promote(h, &c->moves[c->next_promote++], stream);
    return s;
}
