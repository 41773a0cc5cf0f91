/* SPDX-License-Identifier: MIT
 *
 * api_tensor.c: the tensors of an attend.
 */
#include "api_internal.h"

#define I(x) ((long long)(x))

static const rkvi_copy_spec attend_spec = {"rkv_attend_params", sizeof(rkv_attend_params),
                                           offsetof(rkv_attend_params, q)};

/* What a tensor must be. */
typedef rkvi_api_shape shape;

/* Elements from data to the end of the last row's last head. */
static bool reach(const shape *want, const rkvi_tensor *t, uint64_t *out)
{
    uint64_t rows, heads;
    return rkvi_mul(want->rows - 1, (uint64_t)t->row_stride, &rows) &&
           rkvi_mul(want->heads - 1, (uint64_t)t->head_stride, &heads) && rkvi_add(rows, heads, out) &&
           rkvi_add(*out, want->dim, out);
}

static rkv_status check_layout(const shape *want, const rkv_tensor *t)
{
    if (!rkvi_type_is_tensor(t->type ? t->type : RKV_TYPE_F16))
        return rkvi_fail(RKV_E_ARGUMENT,
                         "%s: type %u is no tensor type; use f32 (1), f16 (2) or bf16 (3)", want->name,
                         t->type);
    if (t->row_stride < 0 || t->head_stride < 0)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "%s: row_stride %lld, head_stride %lld: a stride can't be negative",
                         want->name, I(t->row_stride), I(t->head_stride));
    if (t->reserved)
        return rkvi_fail(RKV_E_ARGUMENT, "%s: reserved is %u; it must be 0", want->name, t->reserved);
    const uint32_t bytes = rkvi_tensor_type_bytes(t->type);
    if ((uintptr_t)t->data % bytes)
        return rkvi_fail(RKV_E_ARGUMENT, "%s: data is not aligned to its elements of %u bytes",
                         want->name, bytes);
    return RKV_OK;
}

static rkv_status take_tensor(const shape *want, const rkv_tensor *t, rkvi_tensor *out)
{
    uint64_t elements, bytes;
    const rkv_status s = check_layout(want, t);
    if (s != RKV_OK)
        return s;
    out->data = t->data;
    out->type = t->type ? t->type : RKV_TYPE_F16;
    out->head_stride = t->head_stride ? t->head_stride : (int64_t)want->dim;
    out->row_stride = t->row_stride;
    if (!out->row_stride &&
        __builtin_mul_overflow(out->head_stride, (int64_t)want->heads, &out->row_stride))
        out->row_stride = INT64_MAX;
    if (!reach(want, out, &elements) || !rkvi_mul(elements, rkvi_tensor_type_bytes(out->type), &bytes))
        return rkvi_fail(RKV_E_ARGUMENT,
                         "%s: row_stride %lld and head_stride %lld reach beyond 2^62 bytes", want->name,
                         I(t->row_stride), I(t->head_stride));
    return RKV_OK;
}

static rkv_status need_tensor(const shape *want, const rkv_tensor *t, rkvi_tensor *out)
{
    if (!t->data)
        return rkvi_fail(RKV_E_ARGUMENT, "%s: data is NULL, but the step has %llu rows of it",
                         want->name, (unsigned long long)want->rows);
    return take_tensor(want, t, out);
}

/* Rows and heads of what is written must not lie over each other. */
static rkv_status check_apart(const shape *want, const rkvi_tensor *t)
{
    const uint64_t row = (uint64_t)t->row_stride, head = (uint64_t)t->head_stride, dim = want->dim;
    const bool one_row = want->rows == 1, one_head = want->heads == 1;
    const bool rows_outside =
        (one_head || head >= dim) && (one_row || row >= (want->heads - 1) * head + dim);
    const bool heads_outside =
        (one_row || row >= dim) && (one_head || head >= (want->rows - 1) * row + dim);
    if (rows_outside || heads_outside)
        return RKV_OK;
    return rkvi_fail(
        RKV_E_ARGUMENT,
        "%s: with row_stride %lld and head_stride %lld its %llu rows and %llu heads of %llu overlap",
        want->name, I(t->row_stride), I(t->head_stride), (unsigned long long)want->rows,
        (unsigned long long)want->heads, (unsigned long long)dim);
}

rkv_status rkvi_api_tensor(const rkvi_api_shape *want, const rkv_tensor *t, bool is_output, rkvi_tensor *out)
{
    const rkv_status s = need_tensor(want, t, out);
    return s == RKV_OK && is_output ? check_apart(want, out) : s;
}

static uint64_t new_cells(const rkvi_batch *batch)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < batch->n_entries; i++)
        n += batch->entries[i].n_new;
    return n;
}

/* K and V: both where there is something to store, else neither. */
static rkv_status take_kv(const rkvi_config *cfg, const rkvi_batch *batch, const rkv_attend_params *p,
                          rkvi_attend *out)
{
    const rkvi_site_config *site = &cfg->sites[p->site];
    const rkvi_geom *g = &cfg->layers[site->kv_layer].geom;
    const uint64_t n_new = new_cells(batch);
    const shape k = {"k", n_new, g->n_heads, g->dk}, v = {"v", n_new, g->n_heads, g->dv};
    if (!site->stores && (p->k.data || p->v.data))
        return rkvi_fail(
            RKV_E_ARGUMENT,
            "site %u: k and v must be NULL: site %u, the first one of KV layer %u, stored them",
            p->site, cfg->layers[site->kv_layer].first_site, site->kv_layer);
    if (n_new == 0 && (p->k.data || p->v.data))
        return rkvi_fail(RKV_E_ARGUMENT, "site %u: k and v must be NULL: the step has no new cells",
                         p->site);
    if (!site->stores || n_new == 0)
        return RKV_OK;
    const rkv_status s = need_tensor(&k, &p->k, &out->k);
    return s == RKV_OK ? need_tensor(&v, &p->v, &out->v) : s;
}

static rkv_status take_lse(const rkv_attend_params *p, uint64_t rows, uint64_t heads, rkvi_attend *out)
{
    uint64_t elements, bytes;
    out->lse = p->lse;
    out->lse_row_stride = p->lse_row_stride ? p->lse_row_stride : (int64_t)heads;
    if (!p->lse)
        return RKV_OK;
    if (p->lse_row_stride < 0 || (rows > 1 && out->lse_row_stride < (int64_t)heads))
        return rkvi_fail(RKV_E_ARGUMENT,
                         "lse_row_stride is %lld; it must be at least n_q_heads, %llu, or 0",
                         I(p->lse_row_stride), (unsigned long long)heads);
    if (!rkvi_mul(rows, (uint64_t)out->lse_row_stride, &elements) ||
        !rkvi_mul(elements, sizeof(float), &bytes))
        return rkvi_fail(RKV_E_ARGUMENT, "lse_row_stride %lld reaches beyond 2^62 bytes",
                         I(p->lse_row_stride));
    if ((uintptr_t)p->lse % sizeof(float))
        return rkvi_fail(RKV_E_ARGUMENT, "lse is not aligned to its elements of %zu bytes",
                         sizeof(float));
    return RKV_OK;
}

rkv_status rkvi_api_attend(const rkvi_config *cfg, const rkvi_batch *batch,
                           const rkv_attend_params *params, rkvi_attend *out)
{
    rkv_attend_params p;
    rkv_status s = rkvi_copy_in(&attend_spec, params, &p);
    if (s != RKV_OK)
        return s;
    if (p.site >= cfg->n_sites)
        return rkvi_fail(RKV_E_ARGUMENT, "site is %u, but there are %u sites", p.site, cfg->n_sites);
    const rkvi_site_config *site = &cfg->sites[p.site];
    const rkvi_geom *g = &cfg->layers[site->kv_layer].geom;
    const shape q = {"q", batch->n_rows, site->n_q_heads, g->dk};
    const shape o = {"out", batch->n_rows, site->n_q_heads, g->dv};
    *out = (rkvi_attend){.site = p.site, .sinks = p.sinks};
    s = need_tensor(&q, &p.q, &out->q);
    if (s == RKV_OK)
        s = take_kv(cfg, batch, &p, out);
    if (s == RKV_OK)
        s = need_tensor(&o, &p.out, &out->out);
    if (s == RKV_OK)
        s = check_apart(&o, &out->out);
    if (s == RKV_OK)
        s = take_lse(&p, batch->n_rows, site->n_q_heads, out);
    if (s == RKV_OK && (uintptr_t)p.sinks % sizeof(float))
        s = rkvi_fail(RKV_E_ARGUMENT, "sinks is not aligned to its elements of %zu bytes",
                      sizeof(float));
    return s;
}
