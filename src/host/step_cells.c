/* step_cells.c: cells of one tile-layer between host memory that holds it and
 * the caller's memory. */
#include "step_cells_types.h"

/* ------------------------------------------------------- the caller's memory */

static rkvi_plane plane_of(const rkvi_geom *g, const uint8_t *tile, uint32_t head, bool is_v)
{
    const uint64_t base = (uint64_t)(uintptr_t)tile;
    return is_v ? rkvi_plane_v(g, base, head) : rkvi_plane_k(g, base, head);
}

uint64_t rkvi_cells_side_bytes(const rkvi_geom *g, const rkvi_outer *o, uint64_t n, bool is_v)
{
    const rkvi_plane p = plane_of(g, NULL, 0, is_v);
    return n * rkvi_outer_row_bytes(o, &p);
}

static rkv_status enqueue(rkvi_mover *m, const rkvi_copy *c)
{
    m->in_flight = true;
    return rkvi_dev(copy, m->h->dev, c, c->direction == RKVI_H2D ? m->h->in_stream : m->h->out_stream);
}

/* Rows [row, row + n) of the caller's device memory from or to `dense`. */
rkv_status rkvi_cells_cross(rkvi_mover *m, const rkvi_cells_part *part, const rkvi_outer *o,
                            const rkvi_outer *dense, bool is_v)
{
    const rkvi_plane p = plane_of(part->geom, NULL, 0, is_v);
    const rkvi_direction direction = part->is_export ? RKVI_H2D : RKVI_D2H;
    const bool is_tensor = o->form == RKV_CELLS_TENSOR;
    const uint64_t row_bytes = rkvi_outer_row_bytes(o, &p), element = rkvi_tensor_type_bytes(o->t.type);
    rkv_status s = RKV_OK;
    for (uint32_t head = 0; head < (is_tensor ? o->n_heads : 1) && s == RKV_OK; head++) {
        uint8_t *outer = (uint8_t *)o->t.data + part->row * row_bytes, *inner = dense->t.data;
        rkvi_copy c = {.direction = direction, .width_bytes = part->n * row_bytes, .rows = 1};
        if (is_tensor) {
            outer =
                (uint8_t *)o->t.data +
                (part->row * (uint64_t)o->t.row_stride + head * (uint64_t)o->t.head_stride) * element;
            inner += (uint64_t)head * part->n * p.dim * element;
            c.width_bytes = p.dim * element;
            c.rows = part->n;
            c.src_pitch_bytes = part->is_export ? p.dim * element : (uint64_t)o->t.row_stride * element;
            c.dst_pitch_bytes = part->is_export ? (uint64_t)o->t.row_stride * element : p.dim * element;
        }
        c.dst = part->is_export ? outer : inner;
        c.src = part->is_export ? inner : outer;
        s = enqueue(m, &c);
    }
    return s;
}

/* ------------------------------------------------------------------ conversion */

void rkvi_cells_convert(const rkvi_cells_part *part, uint8_t *tile, const rkvi_outer *o, uint64_t row,
                        bool is_v)
{
    for (uint32_t head = 0; head < part->geom->n_heads; head++) {
        const rkvi_plane p = plane_of(part->geom, tile, head, is_v);
        for (uint32_t i = 0; i < part->n; i++)
            if (part->is_export)
                rkvi_cells_out(&p, part->first + i, o, row + i, head);
            else
                rkvi_cells_in(&p, part->first + i, o, row + i, head);
    }
}

uint64_t rkvi_cells_room(const rkv_cache *h)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < h->cfg.n_layers; l++) {
        const rkvi_geom *g = &h->cfg.layers[l].geom;
        const uint64_t bytes = g->bytes + (uint64_t)g->tile_cells * g->n_heads * 4 * (g->dk + g->dv);
        most = bytes > most ? bytes : most;
    }
    return most + 4 * RKVI_PLACE_ALIGN;
}
