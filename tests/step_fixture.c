/* SPDX-License-Identifier: MIT
 *
 * step_fixture.c: see step_fixture.h.
 */
#include "step_fixture.h"

#include "api_internal.h"
#include "device_check.h"
#include "device_host.h"
#include "device_sim.h"
#include "step_tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GAP 8u /* elements behind each row of a head-major tensor */

const fx_gpu_calls *fx_gpu;

uint64_t fx_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t fx_seed(void)
{
    const char *text = getenv("ROLLKV_TEST_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    return seed;
}

bool fx_is_full(void)
{
    const char *full = getenv("ROLLKV_TEST_FULL");
    return full && *full == '1';
}

void fx_ok(rkv_status s, const char *what)
{
    if (s != RKV_OK)
        fail_msg("%s: %s: %s", what, rkv_status_name(s), rkv_error_message());
}

/* ----------------------------------------------------------------- the model */

fx_model fx_model_make(uint32_t tile_cells, uint32_t head_dim, uint64_t capacity_cells)
{
    fx_model m = {.n_workers = 1};
    m.params = (rkv_cache_params){.struct_size = sizeof m.params,
                                  .device = RKV_DEVICE_HOST,
                                  .capacity_cells = capacity_cells,
                                  .n_sequences = 1,
                                  .max_rows = FX_ROWS,
                                  .tile_cells = tile_cells,
                                  .flags = RKV_FLAG_NO_HUGE_PAGES,
                                  .device_limit_bytes = (uint64_t)1 << 33,
                                  .host_limit_bytes = (uint64_t)1 << 33};
    if (head_dim)
        fx_add_layer(&m, 1, head_dim, head_dim, RKV_RESIDENT_NONE);
    return m;
}

uint32_t fx_add_site(fx_model *m, uint32_t layer, uint32_t q_heads)
{
    assert_true(m->n_sites < FX_SITES);
    m->sites[m->n_sites] =
        (rkv_site_params){.struct_size = sizeof m->sites[0], .kv_layer = layer, .n_q_heads = q_heads};
    return m->n_sites++;
}

uint32_t fx_add_layer(fx_model *m, uint32_t kv_heads, uint32_t dk, uint32_t dv, uint64_t resident_cells)
{
    assert_true(m->n_layers < FX_LAYERS);
    m->layers[m->n_layers] = (rkv_kv_layer_params){.struct_size = sizeof m->layers[0],
                                                   .n_kv_heads = kv_heads,
                                                   .head_dim_k = dk,
                                                   .head_dim_v = dv,
                                                   .resident_cells = resident_cells};
    fx_add_site(m, m->n_layers, 2 * kv_heads);
    return m->n_layers++;
}

uint32_t fx_add_unequal(fx_model *m, uint64_t resident_cells)
{
    return fx_add_layer(m, 1, fx_gpu ? 192 : 96, fx_gpu ? 128 : 64, resident_cells);
}

/* Destroying an executor, with a look at what it still holds. */
static void (*core_destroy[2])(rkvi_device *d);
static rkvi_device_vt core_vt[2];

static void destroy_empty(rkvi_device *d)
{
    fx_nothing_left(d);
    core_destroy[d->vt == &core_vt[1]](d);
}

/* The table is filled by the first one of its kind, before threads use it. */
static void watch_destroy(rkvi_device *core, uint32_t kind)
{
    if (!core_destroy[kind]) {
        core_destroy[kind] = core->vt->destroy;
        core_vt[kind] = *core->vt;
        core_vt[kind].destroy = destroy_empty;
    }
    core->vt = &core_vt[kind];
}

static rkvi_device *make_device(const fx_model *m, rkvi_device **core)
{
    static rkvi_ops ops;
    rkvi_device *checked = NULL;
    const rkvi_device_host_settings hs = {.n_workers = m->n_workers ? m->n_workers : 1,
                                          .delay_max_ns = m->delay_ns,
                                          .delay_seed = m->seed,
                                          .limits = m->limits};
    const rkvi_device_sim_settings ss = {.order = RKVI_SIM_SEEDED, .seed = m->seed, .limits = m->limits};
    if (fx_gpu)
        return *core = fx_gpu->open(m);
    if (!ops.name)
        rkvi_ops_best(&ops, NULL);
    if (m->executor == FX_HOST)
        fx_ok(rkvi_device_host_create(&hs, &ops, core), "device_host");
    else
        fx_ok(rkvi_device_sim_create(&ss, &ops, core), "device_sim");
    watch_destroy(*core, m->executor == FX_HOST);
    if (m->executor != FX_CHECK)
        return *core;
    const rkvi_device_check_settings cs = {.allow_pageable = m->limits.host_alloc_max_bytes != 0};
    fx_ok(rkvi_device_check_create(*core, &cs, &checked), "device_check");
    return checked;
}

rkv_status fx_try_open(fx *w, const fx_model *m)
{
    *w = (fx){.model = *m};
    if (fx_gpu) {
        w->model.executor = FX_GPU;
        w->stream = fx_gpu->engine_stream();
    }
    w->dev = make_device(m, &w->core);
    w->model.params.kv_layers = w->model.layers;
    w->model.params.sites = w->model.sites;
    w->model.params.n_kv_layers = m->n_layers;
    w->model.params.n_sites = m->n_sites;
    const rkv_status s = rkvi_api_create_on(&w->model.params, w->dev, &w->cache);
    if (s != RKV_OK) {
        rkvi_dev_destroy(w->dev);
        return s;
    }
    for (uint32_t i = 0; i < 3; i++)
        w->copied_bytes[i] = fx_copied(w, (rkvi_direction)i);
    /* A sequence may fill the tiles that are there for others' ragged ends. */
    rkv_cache_info info = {.struct_size = sizeof info};
    fx_ok(rkv_cache_info_get(w->cache, &info), "info");
    for (uint32_t i = 0; i < info.n_sequences; i++)
        w->cells[i] = calloc(info.capacity_tiles * info.tile_cells, sizeof *w->cells[i]);
    return RKV_OK;
}

void fx_open(fx *w, const fx_model *m)
{
    fx_ok(fx_try_open(w, m), "create");
}

void fx_nothing_left(rkvi_device *core)
{
    rkvi_device_usage u;
    rkvi_device_usage_get(core, &u);
    assert_int_equal(u.device_bytes, 0);
    assert_int_equal(u.registered_bytes, 0);
    assert_int_equal(u.allocations, 0);
    assert_int_equal(u.registrations, 0);
    assert_int_equal(u.streams, 0);
    assert_int_equal(u.events, 0);
}

/* --------------------------------------------------------------- the tensors */

void fx_values(uint64_t tag, uint32_t layer, char what, uint32_t n, float *out)
{
    uint64_t r = tag * 0x9E3779B97F4A7C15u ^ (uint64_t)layer << 40 ^ (uint64_t)what << 48;
    for (uint32_t i = 0; i < n; i += 8) {
        const uint64_t x = fx_random(&r);
        for (uint32_t j = i; j < i + 8 && j < n; j++)
            out[j] = (float)(int8_t)(x >> 8 * (j - i)) / 64;
    }
}

static void *keep(fx *w, size_t bytes)
{
    w->old = realloc(w->old, (w->n_old + 1) * sizeof *w->old);
    w->old[w->n_old] = fx_gpu ? fx_gpu->alloc(bytes) : malloc(bytes ? bytes : 1);
    if (w->model.executor == FX_CHECK)
        rkvi_device_check_given(w->dev, w->old[w->n_old], bytes);
    return memset(w->old[w->n_old++], FX_CANARY, bytes);
}

/* Rows of a head lie together, with gaps; or all is dense. */
static fx_tensor tensor_make(fx *w, uint32_t rows, uint32_t heads, uint32_t dim)
{
    fx_tensor x = {.rows = rows, .heads = heads, .dim = dim};
    x.t.type = w->tensor_type ? w->tensor_type : RKV_TYPE_F32;
    x.t.row_stride = w->is_strided ? dim + GAP : (int64_t)heads * dim;
    x.t.head_stride = w->is_strided ? (int64_t)rows * (dim + GAP) + GAP : dim;
    const uint64_t n = w->is_strided ? heads * (uint64_t)x.t.head_stride : (uint64_t)rows * heads * dim;
    x.size_bytes = n * (x.t.type == RKV_TYPE_F32 ? 4 : 2);
    x.bytes = keep(w, x.size_bytes);
    x.t.data = x.bytes;
    return x;
}

float fx_out(const fx *w, uint32_t site, uint32_t row, uint32_t head, uint32_t i)
{
    return tensor_get(&w->out[site], row, head, i);
}

/* ------------------------------------------------------------------ the step */

static void to_public(const fx_entry *e, rkv_batch_entry *b)
{
    *b = (rkv_batch_entry){.struct_size = sizeof *b,
                           .sequence = e->seq,
                           .n_rows = e->rows,
                           .n_new_cells = e->is_query ? 0 : e->rows,
                           .regime = e->regime,
                           .positions = e->positions,
                           .visible = e->visible,
                           .tree_mask = e->tree_mask};
}

static int64_t row_position(const fx *w, const fx_entry *e, uint32_t row)
{
    const uint64_t n = w->n_cells[e->seq];
    if (e->positions)
        return e->positions[row];
    if (e->is_query)
        return w->cells[e->seq][n - e->rows + row].pos;
    return (n ? w->cells[e->seq][n - 1].pos + 1 : 0) + row;
}

rkv_status fx_begin(fx *w, const fx_entry *entries, uint32_t n)
{
    rkv_batch_entry e[FX_SEQS];
    w->n_entries = n;
    w->n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        w->entries[i] = entries[i];
        to_public(&entries[i], &e[i]);
        for (uint32_t r = 0; r < entries[i].rows; r++, w->n_rows++) {
            w->row_pos[w->n_rows] = row_position(w, &entries[i], r);
            w->row_visible[w->n_rows] =
                entries[i].visible ? entries[i].visible[r] : (rkv_pos_range){0, RKV_POS_END};
        }
    }
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = n, .entries = e};
    return rkv_step_begin(w->cache, &b);
}

static bool is_first_site(const fx *w, uint32_t site)
{
    for (uint32_t i = 0; i < site; i++)
        if (w->model.sites[i].kv_layer == w->model.sites[site].kv_layer)
            return false;
    return true;
}

static void fill_site(fx *w, uint32_t site)
{
    const rkv_site_params *sp = &w->model.sites[site];
    const rkv_kv_layer_params *lp = &w->model.layers[sp->kv_layer];
    const uint32_t dv = lp->head_dim_v ? lp->head_dim_v : lp->head_dim_k;
    uint32_t n_new = 0, row = 0, cell = 0;
    float *x = malloc(sizeof(float) * 64 * 1024);
    for (uint32_t i = 0; i < w->n_entries; i++)
        n_new += w->entries[i].is_query ? 0 : w->entries[i].rows;
    if (!w->is_fixed || w->q[site].rows != w->n_rows || w->k[site].rows != n_new) {
        w->q[site] = tensor_make(w, w->n_rows, sp->n_q_heads, lp->head_dim_k);
        w->k[site] = tensor_make(w, n_new, lp->n_kv_heads, lp->head_dim_k);
        w->v[site] = tensor_make(w, n_new, lp->n_kv_heads, dv);
        w->out[site] = tensor_make(w, w->n_rows, sp->n_q_heads, dv);
        w->lse[site] = keep(w, sizeof(float) * w->n_rows * sp->n_q_heads);
    }
    for (uint32_t i = 0; i < w->n_entries; i++)
        for (uint32_t r = 0; r < w->entries[i].rows; r++, row++) {
            const uint64_t tag = w->entries[i].tag + r;
            fx_values(tag, site, 'q', sp->n_q_heads * lp->head_dim_k, x);
            tensor_put(&w->q[site], row, x);
            if (w->entries[i].is_query)
                continue;
            fx_values(tag, sp->kv_layer, 'k', lp->n_kv_heads * lp->head_dim_k, x);
            tensor_put(&w->k[site], cell, x);
            fx_values(tag, sp->kv_layer, 'v', lp->n_kv_heads * dv, x);
            tensor_put(&w->v[site], cell++, x);
        }
    w->site_sinks[site] = w->is_fixed ? w->site_sinks[site] : NULL;
    if (w->model.sinks[site] && !w->site_sinks[site]) {
        w->site_sinks[site] = keep(w, sizeof(float) * sp->n_q_heads);
        fx_values(site, 0, 's', sp->n_q_heads, w->site_sinks[site]);
    }
    free(x);
}

void fx_fill(fx *w)
{
    for (uint32_t site = 0; site < w->model.n_sites; site++)
        fill_site(w, site);
}

rkv_status fx_attend(fx *w, uint32_t site)
{
    if (!w->is_fixed)
        fill_site(w, site);
    const bool stores = is_first_site(w, site) && w->k[site].rows > 0;
    rkv_attend_params p = {.struct_size = sizeof p,
                           .site = site,
                           .q = w->q[site].t,
                           .out = w->out[site].t,
                           .lse = w->lse[site],
                           .sinks = w->site_sinks[site]};
    if (stores) {
        p.k = w->k[site].t;
        p.v = w->v[site].t;
    }
    if (fx_gpu && w->model.delay_ns)
        fx_ok(rkvi_dev(delay, w->dev, (int64_t)(fx_random(&w->model.seed) % (uint64_t)w->model.delay_ns), w->stream),
              "delay");
    return rkv_step_attend(w->cache, &p, w->stream);
}

rkv_status fx_end(fx *w, const fx_entry *next, uint32_t n_next)
{
    rkv_batch_entry e[FX_SEQS];
    for (uint32_t i = 0; i < n_next; i++)
        to_public(&next[i], &e[i]);
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = n_next, .entries = e};
    const rkv_status s = rkv_step_end(w->cache, n_next ? &b : NULL, w->stream);
    uint32_t row = 0;
    for (uint32_t i = 0; i < w->n_entries && s == RKV_OK; i++)
        for (uint32_t r = 0; r < w->entries[i].rows; r++, row++)
            if (!w->entries[i].is_query)
                w->cells[w->entries[i].seq][w->n_cells[w->entries[i].seq]++] =
                    (fx_cell){w->entries[i].tag + r, w->row_pos[row]};
    return s;
}

rkv_status fx_abort(fx *w)
{
    return rkv_step_abort(w->cache);
}

rkv_status fx_sync(fx *w)
{
    const rkv_status s = rkv_host_stream_sync(w->cache, w->stream);
    for (uint32_t i = 0; i < w->model.n_sites && s == RKV_OK; i++)
        if (w->is_strided && w->out[i].bytes)
            tensor_check_canaries(&w->out[i]);
    return s;
}

/* The n oldest buffers go; the stream has come to its end. */
static void drop_old(fx *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        (fx_gpu ? fx_gpu->release : free)(w->old[i]);
    w->n_old -= n;
    if (n)
        memmove(w->old, w->old + n, w->n_old * sizeof *w->old);
}

rkv_status fx_try_step(fx *w, const fx_entry *entries, uint32_t n)
{
    const uint32_t n_before = w->n_old; /* aborted steps may still use them */
    const rkv_status s = fx_begin(w, entries, n);
    if (s != RKV_OK)
        return s;
    for (uint32_t site = 0; site < w->model.n_sites; site++)
        fx_ok(fx_attend(w, site), "attend");
    fx_ok(fx_end(w, NULL, 0), "end");
    fx_ok(fx_sync(w), "sync");
    drop_old(w, n_before);
    return RKV_OK;
}

rkv_status fx_check(fx *w, const fx_entry *entries, uint32_t n)
{
    rkv_batch_entry e[FX_SEQS];
    for (uint32_t i = 0; i < n; i++)
        to_public(&entries[i], &e[i]);
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = n, .entries = e};
    return rkv_cache_check(w->cache, &b, 1);
}

void fx_step(fx *w, const fx_entry *entries, uint32_t n)
{
    fx_ok(fx_try_step(w, entries, n), "begin");
}

void fx_append(fx *w, uint32_t seq, uint32_t rows, uint32_t regime, uint64_t tag)
{
    for (uint32_t done = 0; done < rows;) {
        const uint32_t most = w->model.params.max_rows, left = rows - done;
        const fx_entry e = {
            .seq = seq, .rows = left < most ? left : most, .regime = regime, .tag = tag + done};
        fx_step(w, &e, 1);
        done += e.rows;
    }
}

void fx_truncate(fx *w, uint32_t seq, uint64_t n_cells)
{
    const int64_t from = n_cells ? w->cells[seq][n_cells - 1].pos + 1 : 0;
    fx_ok(rkv_sequence_remove(w->cache, seq, from, RKV_POS_END), "remove");
    w->n_cells[seq] = n_cells;
}

void fx_park(fx *w, uint32_t seq)
{
    fx_ok(rkv_sequence_park(w->cache, seq), "park");
}

void fx_fetch(fx *w, uint32_t seq)
{
    fx_ok(rkv_sequence_fetch(w->cache, seq), "fetch");
}

void fx_clear(fx *w, uint32_t seq)
{
    fx_ok(rkv_sequence_clear(w->cache, seq), "clear");
    w->n_cells[seq] = 0;
}

void fx_keep(fx *w, uint32_t seq)
{
    fx_ok(rkv_sequence_keep(w->cache, seq), "keep");
    for (uint32_t i = 0; i < FX_SEQS; i++)
        w->n_cells[i] = i == seq ? w->n_cells[i] : 0;
}

void fx_remove(fx *w, uint32_t seq, int64_t from, int64_t to)
{
    uint64_t n = 0;
    fx_ok(rkv_sequence_remove(w->cache, seq, from, to), "remove");
    for (uint64_t i = 0; i < w->n_cells[seq]; i++)
        if (w->cells[seq][i].pos < from || w->cells[seq][i].pos >= to)
            w->cells[seq][n++] = w->cells[seq][i];
    w->n_cells[seq] = n;
}

void fx_append_from(fx *w, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    fx_ok(rkv_sequence_append_from(w->cache, dst, src, from, to), "append_from");
    fx_note_append_from(w, dst, src, from, to);
}

void fx_note_append_from(fx *w, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    for (uint64_t i = 0; i < w->n_cells[src]; i++)
        if (w->cells[src][i].pos >= from && w->cells[src][i].pos < to)
            w->cells[dst][w->n_cells[dst]++] = w->cells[src][i];
}

void fx_close(fx *w)
{
    if (w->cache && w->model.executor == FX_CHECK && rkvi_device_check_count(w->dev))
        fail_msg("device_check: %s", rkvi_device_check_report(w->dev, 0)->text);
    rkv_cache_destroy(w->cache);
    if (w->n_old)
        drop_old(w, w->n_old);
    free(w->old);
    for (uint32_t i = 0; i < FX_SEQS; i++)
        free(w->cells[i]);
    *w = (fx){0};
}

/* ------------------------------------------------------------------- asking */

rkv_cache_stats fx_stats(const fx *w)
{
    rkv_cache_stats s = {.struct_size = sizeof s};
    fx_ok(rkv_cache_stats_get(w->cache, &s), "stats");
    return s;
}

rkv_kv_layer_info fx_layer(const fx *w, uint32_t layer)
{
    rkv_kv_layer_info i = {.struct_size = sizeof i};
    fx_ok(rkv_kv_layer_info_get(w->cache, layer, &i), "layer info");
    return i;
}

uint64_t fx_copied(const fx *w, rkvi_direction direction)
{
    rkvi_device_usage u;
    if (fx_gpu)
        return fx_gpu->copied_bytes(w->core, direction) - w->copied_bytes[direction];
    rkvi_device_usage_get(w->core, &u);
    return u.copied_bytes[direction] - w->copied_bytes[direction];
}

const void *fx_device_bytes(const fx *w, uint64_t addr, uint64_t bytes, void *buffer)
{
    const void *p = (const void *)(uintptr_t)addr;
    const rkvi_copy c = {.direction = RKVI_D2H, .dst = buffer, .src = p, .width_bytes = bytes, .rows = 1};
    if (!fx_gpu)
        return p;
    fx_ok(rkvi_dev(copy, w->dev, &c, w->stream), "copy");
    fx_ok(rkvi_dev(stream_sync, w->dev, w->stream), "sync");
    return buffer;
}

void fx_check_empty(fx *w)
{
    fx_ok(rkv_cache_clear(w->cache), "clear");
    memset(w->n_cells, 0, sizeof w->n_cells);
    for (uint32_t l = 0; l < w->model.n_layers; l++) {
        assert_int_equal(fx_layer(w, l).window_tiles, 0);
        assert_int_equal(fx_layer(w, l).tail_tiles, 0);
    }
    assert_int_equal(fx_stats(w).used_tail_places, 0);
    for (uint32_t s = 0; s < w->model.params.n_sequences; s++) {
        rkv_sequence_state q = {.struct_size = sizeof q};
        fx_ok(rkv_sequence_info(w->cache, s, &q), "info");
        assert_int_equal(q.n_tiles, 0);
    }
}

bool fx_same(const fx *a, const fx *b)
{
    assert_int_equal(a->n_rows, b->n_rows);
    for (uint32_t s = 0; s < a->model.n_sites; s++) {
        assert_int_equal(a->out[s].size_bytes, b->out[s].size_bytes);
        if (memcmp(a->out[s].bytes, b->out[s].bytes, a->out[s].size_bytes) != 0 ||
            memcmp(a->lse[s], b->lse[s], sizeof(float) * a->n_rows * a->model.sites[s].n_q_heads) != 0)
            return false;
    }
    return true;
}

static void feed(fx *w, uint32_t seq, const fx_cell *cells, uint64_t n)
{
    int64_t *pos = calloc(n + 1, sizeof *pos);
    for (uint64_t i = 0, rows; i < n; i += rows) {
        for (rows = 0; i + rows < n && rows < w->model.params.max_rows; rows++) {
            if (rows && cells[i + rows].tag != cells[i].tag + rows)
                break;
            pos[rows] = cells[i + rows].pos;
        }
        const fx_entry e = {.seq = seq, .rows = (uint32_t)rows, .regime = RKV_REGIME_PREFILL,
                            .tag = cells[i].tag, .positions = pos};
        fx_step(w, &e, 1);
    }
    free(pos);
}

void fx_compare_fresh(fx *w, uint32_t seq, uint32_t rows)
{
    fx f;
    fx_model m = w->model;
    int64_t pos[16];
    const uint64_t n = w->n_cells[seq];
    for (uint32_t l = 0; l < m.n_layers; l++) {
        m.layers[l].resident_cells = RKV_RESIDENT_ALL;
        m.layers[l].keep_all = 1;
    }
    m.executor = FX_HOST;
    m.delay_ns = 0;
    m.limits = (rkvi_device_limits){0};
    fx_open(&f, &m);
    feed(&f, seq, w->cells[seq], n);
    rows = n < rows ? (uint32_t)n : rows;
    for (uint32_t r = 0; r < rows; r++)
        pos[r] = w->cells[seq][n - rows + r].pos;
    const fx_entry e = {.seq = seq, .rows = rows, .is_query = true, .regime = RKV_REGIME_DECODE,
                        .tag = 77777, .positions = pos};
    fx_step(w, &e, 1);
    fx_step(&f, &e, 1);
    assert_true(fx_same(w, &f));
    fx_close(&f);
}
