/* SPDX-License-Identifier: MIT
 *
 * oracle_books.c: what must hold of a cache between any two calls.
 */
#include "oracle.h"

#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *doing;

#define holds(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x))                                                                                                      \
            fail_msg("after %s: %s (line %d)", doing, #x, __LINE__);                                                   \
    } while (0)

/* References are the items of sequences' tiles; records are used or free. */
static void check_references(const rkvi_cache *c)
{
    const rkvi_tiles *t = &c->tiles;
    uint32_t *refs = calloc(t->capacity, sizeof *refs), n_free = 0, n_shared = 0;
    for (uint32_t q = 0; q < c->cfg->n_sequences; q++)
        for (uint32_t i = 0; i < c->seqs[q].n_tiles; i++)
            refs[c->seqs[q].tiles[i]]++;
    for (uint32_t i = 0; i < t->capacity; i++) {
        holds(t->tiles[i].refs == refs[i]);
        holds((t->tiles[i].serial != 0) == (refs[i] > 0));
        holds(t->tiles[i].serial <= t->last_serial);
        n_free += refs[i] == 0;
        n_shared += refs[i] > 1;
    }
    holds(t->n_free == n_free && t->n_shared == n_shared);
    free(refs);
}

static void check_pool(const rkvi_pool *p, const bool *used, uint32_t n_used)
{
    uint32_t n = 0;
    for (uint64_t i = 0; i < rkvi_pool_indices(p); i++)
        n += used[i];
    holds(n == n_used); /* no place twice */
    holds(p->n_free + n == p->n_places);
}

/* A tile-layer is in one state, with the places that go with it. */
static void check_layer(const rkvi_cache *c, uint32_t layer)
{
    const rkvi_layer_state *ls = &c->layers[layer];
    bool *device = calloc(rkvi_pool_indices(&ls->device) + 1, 1),
         *host = calloc(rkvi_pool_indices(&ls->host) + 1, 1);
    uint32_t n_device = 0, n_host = 0, n_window = 0, n_tail = 0, n_freed = 0;
    for (uint32_t i = 0; i < c->tiles.capacity; i++) {
        const rkvi_tile_layer *l = rkvi_tile_layer_at(&c->tiles, i, layer);
        if (c->tiles.tiles[i].serial == 0)
            continue;
        n_window += l->state == RKVI_IN_WINDOW;
        n_tail += l->state == RKVI_IN_TAIL;
        n_freed += l->state == RKVI_FREED;
        holds(!l->is_due && !l->promoting);
        holds(l->out_mark != RKVI_MARK_PENDING);
        holds(l->state != RKVI_IN_TAIL || (l->device_place == RKVI_NO_PLACE && l->host_valid));
        holds(l->state != RKVI_LEAVING || (l->device_addr && l->host_valid));
        holds((l->state != RKVI_ON_DEVICE && l->state != RKVI_IN_WINDOW) || l->device_place != RKVI_NO_PLACE);
        holds(rkvi_tile_layer_is_held(l) || (l->device_place == RKVI_NO_PLACE && l->host_place == RKVI_NO_PLACE));
        holds(!l->host_valid || l->host_place != RKVI_NO_PLACE);
        if (l->device_place != RKVI_NO_PLACE) {
            device[l->device_place] = true;
            n_device++;
        }
        if (l->host_place != RKVI_NO_PLACE) {
            host[l->host_place] = true;
            n_host++;
        }
    }
    holds(ls->n_window == n_window && ls->n_tail == n_tail && ls->n_freed == n_freed);
    holds(n_freed == 0 || c->cfg->layers[layer].frees);
    holds(n_window <= c->cfg->layers[layer].window_tiles);
    check_pool(&ls->device, device, n_device);
    if (ls->host.max_places)
        check_pool(&ls->host, host, n_host);
    free(device);
    free(host);
}

/* Segments lie in order, within their tiles' stored cells; all cells are those
 * of the record. */
static void check_sequence(const fx *w, uint32_t q, uint8_t *cover)
{
    const rkvi_cache *c = &w->cache->cache;
    const rkvi_seq *s = &c->seqs[q];
    const uint32_t t = c->cfg->tile_cells;
    uint64_t n = 0;
    uint32_t item = 0;
    holds(s->n_segments < s->segments_room || s->n_segments == 0);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i];
        const rkvi_tile *tile = &c->tiles.tiles[s->tiles[g->tile_index]];
        holds(g->count > 0 && g->first + g->count <= tile->end && tile->end <= tile->stored && tile->stored <= t);
        holds(i == 0 ? g->tile_index == 0 : g->tile_index == item || g->tile_index == item + 1);
        holds(i == 0 || g->tile_index != item || g[-1].first + g[-1].count <= g->first);
        item = g->tile_index;
        for (uint32_t k = 0; k < g->count; k++, n++) {
            holds(n < w->n_cells[q] && w->cells[q][n].pos == g->pos + k);
            cover[s->tiles[item] * t + g->first + k] = 1;
        }
    }
    holds(n == s->n_cells && n == w->n_cells[q]);
    holds(s->n_tiles == (s->n_segments ? item + 1 : 0));
}

static void check_sequences(fx *w)
{
    const rkvi_cache *c = &w->cache->cache;
    uint8_t *cover = calloc(c->tiles.capacity, c->cfg->tile_cells);
    uint64_t segments = 0, stored = 0, covered = 0;
    for (uint32_t q = 0; q < c->cfg->n_sequences; q++) {
        check_sequence(w, q, cover);
        segments += c->seqs[q].n_segments;
    }
    for (uint32_t i = 0; i < c->tiles.capacity; i++) {
        stored += c->tiles.tiles[i].serial ? c->tiles.tiles[i].stored : 0;
        for (uint32_t k = 0; k < c->cfg->tile_cells; k++)
            covered += cover[i * c->cfg->tile_cells + k];
    }
    const rkv_cache_stats st = fx_stats(w);
    holds(c->n_segments == segments);
    holds(st.stored_cells == stored && st.dead_cells == stored - covered);
    holds(st.used_tiles == c->tiles.capacity - c->tiles.n_free && st.shared_tiles == c->tiles.n_shared);
    free(cover);
}

static void check_answers(fx *w, uint32_t q)
{
    rkv_sequence_state st = {.struct_size = sizeof st};
    rkv_pos_range *r = calloc(w->n_cells[q] + 1, sizeof *r);
    uint64_t n = 0, cells = 0;
    fx_ok(rkv_sequence_info(w->cache, q, &st), "info");
    fx_ok(rkv_sequence_ranges(w->cache, q, r, w->n_cells[q] + 1, &n), "ranges");
    holds(st.n_cells == w->n_cells[q]);
    holds(n == 0 || (r[0].from == st.pos_begin && r[n - 1].to == st.pos_end));
    for (uint64_t i = 0; i < n; i++) {
        holds(r[i].from < r[i].to && (i == 0 || r[i - 1].to < r[i].from));
        for (int64_t x = r[i].from; x < r[i].to; x++, cells++)
            holds(cells < w->n_cells[q] && w->cells[q][cells].pos == x);
    }
    holds(cells == w->n_cells[q]);
    free(r);
}

void oracle_check_books(fx *w, const char *what)
{
    const rkvi_cache *c = &w->cache->cache;
    doing = what;
    check_references(c);
    for (uint32_t layer = 0; layer < c->cfg->n_layers; layer++)
        check_layer(c, layer);
    check_sequences(w);
    for (uint32_t q = 0; q < c->cfg->n_sequences; q++)
        check_answers(w, q);
}
