/* SPDX-License-Identifier: MIT
 *
 * api_cells.c: exported functions of import and export.
 */
#include "api_internal.h"
#include "step_cells.h"

static const rkvi_copy_spec cells_spec = {"rkv_cells", sizeof(rkv_cells), offsetof(rkv_cells, k)};

#define U(x) ((unsigned long long)(x))

/* ----------------------------------------------------------------------- checks */

static rkv_status check_range(const rkv_pos_range *range)
{
    if (!range)
        return rkvi_fail(RKV_E_ARGUMENT, "range is NULL");
    return rkvi_api_need_range(range->from, range->to);
}

/* Blocks and the stored form are dense. */
static rkv_status check_dense(const char *name, const rkv_tensor *t, uint32_t form, uint32_t dim)
{
    const bool is_stored = form == RKV_CELLS_STORED;
    if (is_stored && t->type)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "%s: type is %u; the stored form has the KV layer's type: leave it 0", name,
                         t->type);
    if (!is_stored && !rkvi_type_is_quantised(t->type))
        return rkvi_fail(RKV_E_ARGUMENT, "%s: type %u has no blocks; use q8_0 (5) or q4_0 (6)", name,
                         t->type);
    if (t->row_stride || t->head_stride || t->reserved)
        return rkvi_fail(RKV_E_ARGUMENT, "%s: blocks and the stored form are dense: strides must be 0",
                         name);
    if (!is_stored && dim % RKVI_BLOCK)
        return rkvi_fail(RKV_E_UNSUPPORTED, "%s: head dim %u is no multiple of %u and has no blocks",
                         name, dim, RKVI_BLOCK);
    return RKV_OK;
}

typedef struct side {
    const char *name;
    const rkv_tensor *t;
    uint32_t dim;
    bool is_output;
} side;

static rkv_status take_side(const rkv_cells *c, const rkvi_geom *g, const side *s, rkvi_outer *out)
{
    *out = (rkvi_outer){.form = c->form, .n_heads = g->n_heads};
    if (!s->t->data)
        return rkvi_fail(RKV_E_ARGUMENT, "%s: data is NULL, but n_cells is %llu", s->name, U(c->n_cells));
    if (c->form != RKV_CELLS_TENSOR) {
        out->t = (rkvi_tensor){.data = s->t->data, .type = s->t->type};
        return check_dense(s->name, s->t, c->form, s->dim);
    }
    const rkvi_api_shape shape = {s->name, c->n_cells, g->n_heads, s->dim};
    const rkv_status st = rkvi_api_tensor(&shape, s->t, s->is_output, &out->t);
    if (st == RKV_OK && c->memory == RKV_MEMORY_DEVICE && c->n_cells > 1 &&
        out->t.row_stride < (int64_t)s->dim)
        return rkvi_fail(
            RKV_E_UNSUPPORTED,
            "%s: row_stride %lld is below the head dim, %u: device memory is copied in rows", s->name,
            (long long)out->t.row_stride, s->dim);
    return st;
}

static rkv_status take_cells(const rkv_cache *cache, const rkv_cells *cells, void *stream,
                             bool is_export, rkvi_cells_call *out)
{
    const rkvi_config *cfg = rkvi_handle_config(cache);
    rkv_cells c;
    rkv_status s = rkvi_copy_in(&cells_spec, cells, &c);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_need_layer(cache, c.kv_layer);
    if (s != RKV_OK)
        return s;
    if (c.form > RKV_CELLS_STORED || c.memory > RKV_MEMORY_DEVICE)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "form is %u, memory %u; there are forms 0 to 2 and memories 0 and 1", c.form,
                         c.memory);
    if (c.n_cells == 0 || c.n_cells > RKVI_SIZE_MAX || c.first_cell > RKVI_SIZE_MAX)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "first_cell is %llu, n_cells %llu; at least 1 and at most 2^62 are possible",
                         U(c.first_cell), U(c.n_cells));
    const rkvi_geom *g = &cfg->layers[c.kv_layer].geom;
    *out = (rkvi_cells_call){.layer = c.kv_layer,
                             .first = c.first_cell,
                             .n = c.n_cells,
                             .is_device = c.memory == RKV_MEMORY_DEVICE,
                             .stream = stream};
    const side k = {"k", &c.k, g->dk, is_export}, v = {"v", &c.v, g->dv, is_export};
    s = take_side(&c, g, &k, &out->k);
    return s == RKV_OK ? take_side(&c, g, &v, &out->v) : s;
}

/* ----------------------------------------------------------------------- export */

static rkv_status check_export(const rkv_cache *cache, uint32_t sequence, const rkv_pos_range *range)
{
    rkv_status s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK)
        s = rkvi_api_need_sequence(cache, "sequence", sequence);
    if (s == RKV_OK)
        s = rkvi_api_need_accepted(cache, sequence);
    return s == RKV_OK ? check_range(range) : s;
}

rkv_status rkv_export_positions(rkv_cache *cache, uint32_t sequence, const rkv_pos_range *range,
                                uint64_t room_cells, int64_t *out_positions, uint64_t *out_n_cells)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = check_export(cache, sequence, range);
    const uint64_t n = s == RKV_OK ? rkvi_export_count(cache, sequence, range) : 0;
    if (s == RKV_OK && !out_n_cells)
        s = rkvi_fail(RKV_E_ARGUMENT, "out_n_cells is NULL");
    if (s == RKV_OK)
        s = rkvi_api_need_room("room_cells", room_cells);
    if (s == RKV_OK && out_positions && n > room_cells)
        s = rkvi_fail(RKV_E_ARGUMENT, "the range has %llu cells, out_positions has room for %llu", U(n),
                      U(room_cells));
    if (s == RKV_OK && out_positions)
        rkvi_export_positions(cache, sequence, range, out_positions);
    if (s == RKV_OK)
        *out_n_cells = n;
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_export_cells(rkv_cache *cache, uint32_t sequence, const rkv_pos_range *range,
                            const rkv_cells *cells, void *stream)
{
    rkvi_cells_call c = {0};
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = check_export(cache, sequence, range);
    if (s == RKV_OK)
        s = take_cells(cache, cells, stream, true, &c);
    const uint64_t n = s == RKV_OK ? rkvi_export_count(cache, sequence, range) : 0;
    if (s == RKV_OK && (c.first > n || c.n > n - c.first))
        s = rkvi_fail(
            RKV_E_SEQUENCE,
            "sequence %u has %llu cells at positions [%lld, %lld); asked for %llu from %llu on",
            sequence, U(n), (long long)range->from, (long long)range->to, U(c.n), U(c.first));
    if (s == RKV_OK)
        s = rkvi_export_cells(cache, sequence, range, &c);
    return rkvi_api_leave(cache, __func__, s);
}

/* ----------------------------------------------------------------------- import */

rkv_status rkv_import_begin(rkv_cache *cache, uint32_t sequence, uint64_t n_cells,
                            const int64_t *positions)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK)
        s = rkvi_api_need_sequence(cache, "sequence", sequence);
    if (s == RKV_OK)
        s = rkvi_api_need_accepted(cache, sequence);
    if (s == RKV_OK && (n_cells == 0 || n_cells > UINT32_MAX))
        s = rkvi_fail(RKV_E_ARGUMENT, "n_cells is %llu; an import has 1 to 2^32 - 1", U(n_cells));
    if (s == RKV_OK)
        s = rkvi_import_begin(cache, sequence, n_cells, positions);
    return rkvi_api_leave(cache, __func__, s);
}

static rkv_status need_import(const rkv_cache *cache)
{
    if (rkvi_import_is_open(cache))
        return RKV_OK;
    return rkvi_fail(RKV_E_STATE, "no import is open; call rkv_import_begin first");
}

rkv_status rkv_import_cells(rkv_cache *cache, const rkv_cells *cells, void *stream)
{
    rkvi_cells_call c;
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = need_import(cache);
    if (s == RKV_OK)
        s = take_cells(cache, cells, stream, false, &c);
    if (s == RKV_OK)
        s = rkvi_import_cells(cache, &c);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_import_end(rkv_cache *cache)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = need_import(cache);
    if (s == RKV_OK)
        s = rkvi_import_end(cache);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_import_abort(rkv_cache *cache)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = need_import(cache);
    if (s == RKV_OK)
        rkvi_import_abort(cache);
    return rkvi_api_leave(cache, __func__, s);
}
