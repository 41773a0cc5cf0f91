/* step_fill.c: tile-layers between places and host code. */
#include "step_fill.h"

#include <stdio.h>

rkv_status rkvi_mover_open(rkvi_mover *m, rkv_cache *h, uint64_t least)
{
    void *staging = NULL;
    *m = (rkvi_mover){.h = h, .bytes = least > RKVI_MOVER_BYTES ? least : RKVI_MOVER_BYTES};
    rkv_status s = rkvi_step_quiet(h);
    if (s == RKV_OK)
        s = rkvi_dev(host_alloc, h->dev, m->bytes, &staging);
    m->staging = staging;
    return rkvi_step_seen_status(h, s);
}

/* Copies that can't be waited for, not at the second time either, may still
 * write to places that the caller is about to give back: the handle is lost,
 * and the staging memory stays.  On a poisoned device nothing runs any more. */
rkv_status rkvi_mover_close(rkvi_mover *m, rkv_status s)
{
    char text[256];
    rkv_status synced = s == RKV_OK ? rkvi_mover_sync(m) : RKV_OK;
    s = s == RKV_OK ? synced : s;
    snprintf(text, sizeof text, "%s", rkvi_error_text());
    synced = rkvi_mover_sync(m);
    if (synced != RKV_OK && synced > RKV_E_POISONED)
        return rkvi_step_seen_status(m->h, rkvi_fail(RKV_E_POISONED, "%s", text));
    const rkv_status freed = rkvi_dev(host_free, m->h->dev, m->staging);
    m->staging = NULL;
    if (synced != RKV_OK && s > RKV_E_POISONED)
        return rkvi_step_seen_status(m->h, synced);
    return rkvi_step_seen_status(m->h, s == RKV_OK ? freed : rkvi_fail(s, "%s", text));
}

bool rkvi_mover_has_room(const rkvi_mover *m, uint64_t bytes)
{
    return m->used + rkvi_align_up(bytes, RKVI_PLACE_ALIGN) <= m->bytes || m->used == 0;
}

rkv_status rkvi_mover_room(rkvi_mover *m, uint64_t bytes, uint8_t **out)
{
    if (!rkvi_mover_has_room(m, bytes)) {
        const rkv_status s = rkvi_mover_sync(m);
        if (s != RKV_OK)
            return s;
    }
    *out = m->staging + m->used;
    m->used += rkvi_align_up(bytes, RKVI_PLACE_ALIGN);
    return RKV_OK;
}

rkv_status rkvi_mover_wait(rkvi_mover *m)
{
    rkv_status s = RKV_OK;
    if (m->in_flight)
        s = rkvi_dev(stream_sync, m->h->dev, m->h->in_stream);
    if (m->in_flight && s == RKV_OK)
        s = rkvi_dev(stream_sync, m->h->dev, m->h->out_stream);
    m->in_flight = m->in_flight && s != RKV_OK;
    return s;
}

rkv_status rkvi_mover_sync(rkvi_mover *m)
{
    m->used = 0;
    return rkvi_mover_wait(m);
}

uint8_t *rkvi_mover_host_cells(const rkvi_mover *m, uint32_t tile, uint32_t layer)
{
    const rkvi_tile_layer *l = rkvi_tile_layer_at(&m->h->cache.tiles, tile, layer);
    return l->host_valid ? (uint8_t *)(uintptr_t)l->host_addr : NULL;
}

static rkv_status copy(rkvi_mover *m, rkvi_direction direction, void *dst, const void *src,
                       uint64_t bytes)
{
    const rkvi_copy c = {
        .direction = direction, .dst = dst, .src = src, .width_bytes = bytes, .rows = 1};
    m->in_flight = true;
    return rkvi_dev(copy, m->h->dev, &c, direction == RKVI_H2D ? m->h->in_stream : m->h->out_stream);
}

rkv_status rkvi_mover_fetch(rkvi_mover *m, uint32_t tile, uint32_t layer, uint8_t *to)
{
    const rkvi_tile_layer *l = rkvi_tile_layer_at(&m->h->cache.tiles, tile, layer);
    const rkvi_geom *g = &m->h->cfg.layers[layer].geom;
    return copy(m, RKVI_D2H, to, (const void *)(uintptr_t)l->device_addr, rkvi_geom_cells_bytes(g));
}

rkv_status rkvi_mover_put(rkvi_mover *m, uint32_t tile, uint32_t layer, const uint8_t *from)
{
    const rkvi_tile_layer *l = rkvi_tile_layer_at(&m->h->cache.tiles, tile, layer);
    const rkvi_geom *g = &m->h->cfg.layers[layer].geom;
    return copy(m, RKVI_H2D, (void *)(uintptr_t)l->device_addr, from, rkvi_geom_cells_bytes(g));
}

void rkvi_mover_access(const rkvi_mover *m, const void *bytes, uint64_t n, uint32_t access)
{
    const rkvi_range range = {.ptr = bytes, .bytes = n, .rows = 1, .access = access};
    m->h->dev->vt->host_access(m->h->dev, &range, 1);
}
