#include "bits_fixture.h"

#include "api_internal.h"
#include "device_check.h"
#include "device_host.h"
#include "device_sim.h"
#include "rkvi_config.h"
#include "rollkv/host.h"
#include "step_types.h"
#if RKVI_HAVE_CUDA
#include "device_cuda.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t bits_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(bits_random(state) % n);
}

/* ------------------------------------------------------------------ the text */

static uint32_t rows_of(const bits_op *op)
{
    return op->kind == BITS_PREFILL || op->kind == BITS_DECODE ? op->n : 0;
}

static void add_op(bits_text *t, uint32_t seq, bits_kind kind, uint32_t n)
{
    t->ops[seq][t->n_ops[seq]++] = (bits_op){kind, n};
}

void bits_text_make(bits_text *t, uint64_t seed, rkv_type k, rkv_type v, uint32_t tile_cells)
{
    uint64_t r = seed;
    *t = (bits_text){.type_k = k, .type_v = v, .tile_cells = tile_cells, .head_dim = 64, .other_dk = 96,
                     .other_dv = 64, .seed = seed};
    for (uint32_t s = 0; s < BITS_SEQS; s++) {
        const uint32_t T = tile_cells;
        add_op(t, s, BITS_PREFILL, 3 * T + below(&r, 3 * T));
        add_op(t, s, BITS_DECODE, T + below(&r, T));
        add_op(t, s, BITS_ROLLBACK, 1 + below(&r, 3 * T)); /* into a demoted tile */
        add_op(t, s, BITS_DECODE, 1 + below(&r, 2 * T));
        add_op(t, s, BITS_PREFILL, 1 + below(&r, 2 * T));
        if (s == 1) {
            add_op(t, s, BITS_CLEAR, 0);
            add_op(t, s, BITS_PREFILL, 2 * T + below(&r, T));
        }
        add_op(t, s, BITS_DECODE, 1 + below(&r, 2 * T));
    }
    for (uint32_t s = 0; s < BITS_SEQS; s++) {
        uint32_t cells = 0, most = 0;
        for (uint32_t i = 0; i < t->n_ops[s]; i++) {
            const bits_op *op = &t->ops[s][i];
            t->n_rows[s] += rows_of(op);
            cells = op->kind == BITS_CLEAR ? 0 : op->kind == BITS_ROLLBACK ? cells - op->n : cells + op->n;
            most = cells > most ? cells : most;
        }
        t->max_cells += most;
    }
}

void bits_values(const bits_text *t, uint32_t seq, uint32_t row, uint32_t site, char what, uint32_t n, float *out)
{
    uint64_t r = t->seed * 1000003u + seq * 7919u + row * 104729u + site * 31u + (uint64_t)what * 1299709u;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)((int64_t)(bits_random(&r) >> 40) - (1 << 23)) / (float)(1 << 22);
}

/* ----------------------------------------------------------------- the model */

static const uint32_t q_heads[BITS_SITES] = {4, 3, 2, 2, 6};
static const uint32_t kv_layer[BITS_SITES] = {0, 1, 2, 3, 2};

uint32_t bits_q_heads(uint32_t site)
{
    return q_heads[site];
}

static rkv_kv_layer_params layers[BITS_LAYERS];
static rkv_site_params sites[BITS_SITES];

void bits_params(const bits_text *t, const bits_setup *s, rkv_cache_params *p)
{
    static const uint32_t heads[BITS_LAYERS] = {2, 1, 2, 1};
    for (uint32_t l = 0; l < BITS_LAYERS; l++)
        layers[l] = (rkv_kv_layer_params){.struct_size = sizeof layers[l],
                                          .n_kv_heads = heads[l],
                                          .head_dim_k = l == 1 ? t->other_dk : l == 3 ? 64 : t->head_dim,
                                          .head_dim_v = l == 1 ? t->other_dv : l == 3 ? 64 : t->head_dim,
                                          .type_k = t->type_k,
                                          .type_v = t->type_v,
                                          .keep_all = 1, /* texts are cut back anywhere */
                                          .k_scale = t->type_k == RKV_TYPE_FP8_E4M3 ? 0.5f : 0,
                                          .resident_cells = s ? s->resident[l] : RKV_RESIDENT_ALL};
    for (uint32_t i = 0; i < BITS_SITES; i++)
        sites[i] = (rkv_site_params){.struct_size = sizeof sites[i], .kv_layer = kv_layer[i], .n_q_heads = q_heads[i]};
    sites[1].mask = RKV_MASK_SLIDING;
    sites[1].mask_width = 2 * t->tile_cells + 5;
    sites[2].softcap = 5;
    sites[4].mask = RKV_MASK_CHUNKED;
    sites[4].mask_width = 3 * t->tile_cells + 7;
    *p = (rkv_cache_params){.struct_size = sizeof *p,
                            .device = RKV_DEVICE_HOST,
                            .kv_layers = layers,
                            .sites = sites,
                            .n_kv_layers = BITS_LAYERS,
                            .n_sites = BITS_SITES,
                            .capacity_cells = t->max_cells,
                            .n_sequences = BITS_SEQS,
                            .max_rows = 200,
                            .tile_cells = t->tile_cells,
                            .device_limit_bytes = (uint64_t)1 << 32,
                            .host_limit_bytes = (uint64_t)1 << 32};
    if (!s)
        return;
    p->ring_bytes = s->ring_bytes;
    p->copy_bytes = s->copy_bytes;
    p->flags = s->flags | RKV_FLAG_NO_HUGE_PAGES;
    p->mode = s->mode;
    p->draft_rows = s->draft_rows;
    p->steps_ahead = s->steps_ahead;
    p->max_rows = s->max_rows ? s->max_rows : 200;
}

/* ------------------------------------------------------------------- one run */

/* Where a sequence is in its text. */
typedef struct cursor {
    uint32_t op, done; /* rows of the op done */
    uint32_t row;      /* outputs so far */
    uint32_t cells;
} cursor;

typedef struct run {
    const bits_text *t;
    const bits_setup *s;
    rkv_cache *cache;
    bits_result *result;
    cursor at[BITS_SEQS];
    uint64_t random;
    void **buffers; /* of steps in flight */
    size_t n_buffers;
    void *stream;         /* the engine's */
    uint64_t delay_random; /* of BITS_CUDA */
    size_t slab_used;
} run;

/* BITS_CUDA: one block of pinned memory and one on the device, kept for the
 * process; what lies at one offset in both belongs together. */
#define SLAB_BYTES ((size_t)256 << 20)
static struct {
    char *host, *dev;
} slab;

static rkvi_device *device(run *r)
{
    return rkvi_handle_device(r->cache);
}

static rkv_status slab_open(run *r)
{
    void *host, *dev;
    if (slab.host)
        return RKV_OK;
    rkv_status s = rkvi_dev(host_alloc, device(r), SLAB_BYTES, &host);
    if (s == RKV_OK)
        s = rkvi_dev(mem_alloc, device(r), SLAB_BYTES, &dev);
    if (s != RKV_OK)
        return s;
    slab.host = host;
    slab.dev = dev;
    return RKV_OK;
}

static void *on_device(const run *r, const void *p)
{
    return r->s->executor == BITS_CUDA && p ? slab.dev + ((const char *)p - slab.host) : (void *)(uintptr_t)p;
}

/* Queued on the engine's stream, as its own kernels would write and read them. */
static rkv_status move(run *r, rkvi_direction direction, void *p, size_t bytes)
{
    if (r->s->executor != BITS_CUDA)
        return RKV_OK;
    const bool in = direction == RKVI_H2D;
    const rkvi_copy c = {.direction = direction,
                         .dst = in ? on_device(r, p) : p,
                         .src = in ? p : on_device(r, p),
                         .width_bytes = bytes,
                         .rows = 1};
    return rkvi_dev(copy, device(r), &c, r->stream);
}

/* The engine's own compute, of any length. */
static rkv_status work(run *r)
{
    if (r->s->executor != BITS_CUDA || below(&r->delay_random, 4))
        return RKV_OK;
    return rkvi_dev(delay, device(r), below(&r->delay_random, 100000), r->stream);
}

static void *buffer(run *r, size_t bytes)
{
    if (r->s->executor == BITS_CUDA) {
        char *p = slab.host + r->slab_used;
        r->slab_used += (bytes + 255) / 256 * 256;
        if (r->slab_used > SLAB_BYTES)
            abort();
        return memset(p, 0, bytes);
    }
    r->buffers = realloc(r->buffers, (r->n_buffers + 1) * sizeof *r->buffers);
    return r->buffers[r->n_buffers++] = calloc(1, bytes);
}

static rkvi_device *make_device(const bits_setup *s)
{
    static rkvi_ops ops;
    rkvi_device *d = NULL, *checked = NULL;
#if RKVI_HAVE_CUDA
    const rkvi_device_cuda_settings cs = {0};
    if (s->executor == BITS_CUDA)
        return rkvi_device_cuda_create(&cs, &d) == RKV_OK ? d : NULL;
#endif
    rkvi_ops_best(&ops, s->kernels);
    if (s->executor == BITS_HOST) {
        const rkvi_device_host_settings hs = {
            .n_workers = 2, .delay_max_ns = s->seed % 3 ? 20000 : 0, .delay_seed = s->seed};
        return rkvi_device_host_create(&hs, &ops, &d) == RKV_OK ? d : NULL;
    }
    const rkvi_device_sim_settings ss = {
        .order = RKVI_SIM_SEEDED, .seed = s->seed, .n_workers = 1 + (uint32_t)(s->seed % 8)};
    if (rkvi_device_sim_create(&ss, &ops, &d) != RKV_OK)
        return NULL;
    if (s->executor == BITS_SIM)
        return d;
    return rkvi_device_check_create(d, NULL, &checked) == RKV_OK ? checked : NULL;
}

static size_t row_floats(void)
{
    return BITS_SITES * (BITS_OUT_MAX + 8);
}

static float *out_of(run *r, uint32_t seq, uint32_t row, uint32_t site)
{
    return r->result->out[seq] + row * row_floats() + site * (BITS_OUT_MAX + 8);
}

/* The step's share of each sequence: rows of its present op. */
static uint32_t choose_batch(run *r, rkv_batch_entry *e, bool one_row)
{
    uint32_t n = 0, left = r->s->max_rows ? r->s->max_rows : 200;
    const uint32_t first = below(&r->random, BITS_SEQS);
    for (uint32_t i = 0; i < BITS_SEQS; i++) {
        const uint32_t s = (first + i) % BITS_SEQS;
        const cursor *c = &r->at[s];
        if (c->op == r->t->n_ops[s] || left == 0 || (n && below(&r->random, 3) == 0))
            continue;
        const bits_op *op = &r->t->ops[s][c->op];
        const uint32_t most = op->kind == BITS_DECODE ? 16 : left, todo = op->n - c->done;
        uint32_t rows = one_row ? 1 : 1 + below(&r->random, most);
        if (op->kind == BITS_PREFILL && below(&r->random, 3) == 0)
            rows = todo;
        rows = rows > todo ? todo : rows;
        rows = rows > left ? left : rows;
        left -= rows;
        e[n++] = (rkv_batch_entry){.struct_size = sizeof *e,
                                   .sequence = s,
                                   .n_rows = rows,
                                   .n_new_cells = rows,
                                   .regime = op->kind == BITS_PREFILL ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE};
    }
    return n;
}

static rkv_status attend_site(run *r, const rkv_batch_entry *e, uint32_t n, uint32_t site, bool keep, float **out_copy)
{
    const uint32_t l = kv_layer[site], nh = q_heads[site], kvh = layers[l].n_kv_heads;
    const uint32_t dk = layers[l].head_dim_k, dv = layers[l].head_dim_v;
    uint32_t rows = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        rows += e[i].n_rows;
    float *q = buffer(r, sizeof(float) * rows * nh * dk), *k = buffer(r, sizeof(float) * rows * kvh * dk);
    float *v = buffer(r, sizeof(float) * rows * kvh * dv), *out = buffer(r, sizeof(float) * rows * nh * (dv + 1));
    float *sinks = buffer(r, sizeof(float) * nh);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < e[i].n_rows; j++, at++) {
            const uint32_t s = e[i].sequence, row = r->at[s].row + j;
            bits_values(r->t, s, row, site, 'q', nh * dk, q + (size_t)at * nh * dk);
            bits_values(r->t, s, row, l, 'k', kvh * dk, k + (size_t)at * kvh * dk);
            bits_values(r->t, s, row, l, 'v', kvh * dv, v + (size_t)at * kvh * dv);
        }
    for (uint32_t i = 0; i < nh; i++)
        sinks[i] = (float)i * 0.5f - 1;
    const bool stores = site != 4;
    const size_t out_bytes = sizeof(float) * rows * nh * (dv + 1);
    rkv_status s = work(r);
    if (s == RKV_OK)
        s = move(r, RKVI_H2D, q, sizeof(float) * rows * nh * dk);
    if (s == RKV_OK)
        s = move(r, RKVI_H2D, k, sizeof(float) * rows * kvh * dk);
    if (s == RKV_OK)
        s = move(r, RKVI_H2D, v, sizeof(float) * rows * kvh * dv);
    if (s == RKV_OK)
        s = move(r, RKVI_H2D, sinks, sizeof(float) * nh);
    if (s != RKV_OK)
        return s;
    const rkv_attend_params p = {.struct_size = sizeof p,
                                 .site = site,
                                 .q = {.data = on_device(r, q), .type = RKV_TYPE_F32},
                                 .k = {.data = stores ? on_device(r, k) : NULL, .type = RKV_TYPE_F32},
                                 .v = {.data = stores ? on_device(r, v) : NULL, .type = RKV_TYPE_F32},
                                 .out = {.data = on_device(r, out), .type = RKV_TYPE_F32},
                                 .lse = on_device(r, out + (size_t)rows * nh * dv),
                                 .sinks = site == 3 ? on_device(r, sinks) : NULL};
    *out_copy = keep ? out : NULL;
    s = rkv_step_attend(r->cache, &p, r->stream);
    return s == RKV_OK ? move(r, RKVI_D2H, out, out_bytes) : s;
}

static rkv_status sync(run *r)
{
    return rkvi_dev(stream_sync, device(r), r->stream);
}

static void keep_outputs(run *r, const rkv_batch_entry *e, uint32_t n, float *const outs[BITS_SITES])
{
    for (uint32_t site = 0; site < BITS_SITES; site++) {
        const uint32_t nh = q_heads[site], dv = layers[kv_layer[site]].head_dim_v;
        uint32_t rows = 0, at = 0;
        for (uint32_t i = 0; i < n; i++)
            rows += e[i].n_rows;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < e[i].n_rows; j++, at++) {
                float *o = out_of(r, e[i].sequence, r->at[e[i].sequence].row + j, site);
                memcpy(o, outs[site] + (size_t)at * nh * dv, sizeof(float) * nh * dv);
                memcpy(o + BITS_OUT_MAX, outs[site] + (size_t)rows * nh * dv + (size_t)at * nh, sizeof(float) * nh);
            }
    }
}

/* Outputs that are still being written, until the next sync. */
typedef struct pending {
    rkv_batch_entry e[BITS_SEQS];
    uint32_t n;
    float *outs[BITS_SITES];
    cursor at[BITS_SEQS];
} pending;

static void flush(run *r, pending *p, uint32_t *n_pending)
{
    cursor now[BITS_SEQS];
    memcpy(now, r->at, sizeof now);
    for (uint32_t i = 0; i < *n_pending; i++) {
        memcpy(r->at, p[i].at, sizeof now);
        keep_outputs(r, p[i].e, p[i].n, p[i].outs);
    }
    memcpy(r->at, now, sizeof now);
    *n_pending = 0;
    for (size_t i = 0; i < r->n_buffers; i++)
        free(r->buffers[i]);
    r->n_buffers = 0;
    r->slab_used = 0;
}

static rkv_status run_step(run *r, pending *p, bool abort)
{
    rkv_batch b = {.struct_size = sizeof b, .entries = p->e};
    p->n = b.n_entries = choose_batch(r, p->e, below(&r->random, 4) == 0);
    if (b.n_entries == 0)
        return RKV_OK;
    memcpy(p->at, r->at, sizeof p->at);
    rkv_status s = rkv_step_begin(r->cache, &b);
    if (s == RKV_OK && below(&r->random, 3) == 0)
        s = rkv_step_start(r->cache, r->stream);
    const uint32_t n_sites = abort ? below(&r->random, BITS_SITES + 1) : BITS_SITES;
    for (uint32_t site = 0; site < n_sites && s == RKV_OK; site++)
        s = attend_site(r, p->e, p->n, site, true, &p->outs[site]);
    if (s != RKV_OK)
        return s;
    if (abort) {
        p->n = 0;
        return rkv_step_abort(r->cache);
    }
    s = rkv_step_end(r->cache, NULL, r->stream);
    for (uint32_t i = 0; i < p->n; i++) {
        cursor *c = &r->at[p->e[i].sequence];
        c->done += p->e[i].n_rows;
        c->row += p->e[i].n_rows;
        c->cells += p->e[i].n_rows;
    }
    return s;
}

/* Roll-backs and clears that are due; true while anything is left to do. */
static bool between_steps(run *r, rkv_status *s)
{
    bool more = false;
    for (uint32_t i = 0; i < BITS_SEQS; i++) {
        cursor *c = &r->at[i];
        while (c->op < r->t->n_ops[i] && *s == RKV_OK) {
            const bits_op *op = &r->t->ops[i][c->op];
            if (rows_of(op) && c->done < op->n)
                break;
            if (op->kind == BITS_ROLLBACK) {
                c->cells -= op->n;
                *s = rkv_sequence_remove(r->cache, i, c->cells, RKV_POS_END);
            } else if (op->kind == BITS_CLEAR) {
                c->cells = 0;
                *s = rkv_sequence_clear(r->cache, i);
            }
            c->op++;
            c->done = 0;
        }
        more = more || c->op < r->t->n_ops[i];
    }
    return more;
}

static rkv_status run_all(run *r)
{
    enum { MOST = 64 };
    pending *p = calloc(MOST, sizeof *p);
    uint32_t n = 0;
    rkv_status s = RKV_OK;
    while (s == RKV_OK && between_steps(r, &s)) {
        const bool abort = r->s->aborts && below(&r->random, 4) == 0;
        s = run_step(r, &p[n], abort);
        n += s == RKV_OK && p[n].n > 0;
        const bool full = n == MOST || r->slab_used > SLAB_BYTES / 2;
        if (s == RKV_OK && (full || !r->s->rare_sync || below(&r->random, 8) == 0)) {
            s = sync(r);
            flush(r, p, &n);
        }
    }
    if (s == RKV_OK)
        s = sync(r);
    flush(r, p, &n);
    free(p);
    return s;
}

/* The engine's stream is the legacy one, or its own. */
static rkv_status engine_open(run *r)
{
    if (r->s->executor != BITS_CUDA)
        return RKV_OK;
    const rkv_status s = slab_open(r);
    if (s != RKV_OK || r->s->seed % 2)
        return s;
    return rkvi_dev(stream_create, device(r), "engine", &r->stream);
}

static void take_reports(run *r)
{
    rkvi_device *d = rkvi_handle_device(r->cache);
    if (r->s->executor != BITS_CHECK)
        return;
    r->result->reports = rkvi_device_check_count(d);
    if (r->result->reports)
        snprintf(r->result->report, sizeof r->result->report, "%s", rkvi_device_check_report(d, 0)->text);
}

rkv_status bits_run(const bits_text *t, const bits_setup *s, bits_result *result)
{
    run r = {.t = t, .s = s, .result = result, .random = s->seed ^ 0xabcdef, .delay_random = s->seed ^ 0x5eed};
    rkv_cache_params p;
    *result = (bits_result){0};
    bits_params(t, s, &p);
    rkvi_device *d = make_device(s);
    if (!d)
        return RKV_E_SYSTEM;
    rkv_status st = rkvi_api_create_on(&p, d, &r.cache);
    if (st != RKV_OK) {
        rkvi_dev_destroy(d);
        return st;
    }
    if (s->target_runs)
        r.cache->target_runs = s->target_runs, r.cache->wide_runs = s->target_runs / 2;
    for (uint32_t i = 0; i < BITS_SEQS; i++)
        result->out[i] = calloc(t->n_rows[i], row_floats() * sizeof(float));
    st = engine_open(&r);
    if (st == RKV_OK)
        st = run_all(&r);
    result->stats.struct_size = sizeof result->stats;
    rkv_cache_stats_get(r.cache, &result->stats);
    for (uint32_t l = 0; l < BITS_LAYERS; l++) {
        result->layers[l].struct_size = sizeof result->layers[l];
        rkv_kv_layer_info_get(r.cache, l, &result->layers[l]);
    }
    take_reports(&r);
    if (r.stream)
        rkvi_dev(stream_destroy, d, r.stream);
    rkv_cache_destroy(r.cache);
    free(r.buffers);
    return st;
}

void bits_result_free(bits_result *r)
{
    for (uint32_t i = 0; i < BITS_SEQS; i++)
        free(r->out[i]);
    *r = (bits_result){0};
}

bool bits_same(const bits_text *t, const bits_result *a, const bits_result *b, char *where, size_t where_bytes)
{
    for (uint32_t s = 0; s < BITS_SEQS; s++)
        for (uint32_t row = 0; row < t->n_rows[s]; row++)
            for (uint32_t site = 0; site < BITS_SITES; site++) {
                const size_t off = row * row_floats() + site * (BITS_OUT_MAX + 8);
                if (memcmp(a->out[s] + off, b->out[s] + off, (BITS_OUT_MAX + 8) * sizeof(float)) == 0)
                    continue;
                snprintf(where, where_bytes, "sequence %u row %u of %u site %u: %g and %g", s, row, t->n_rows[s], site,
                         (double)a->out[s][off], (double)b->out[s][off]);
                return false;
            }
    return true;
}

void bits_setup_print(const bits_setup *s, char *text, size_t bytes)
{
    static const char *const names[] = {"host", "sim", "check", "cuda"};
    snprintf(
        text, bytes,
        "executor %s seed %llu resident %llx %llx %llx %llx ring %llu copy %llu flags %u mode %u draft %u ahead %u "
        "rows %u runs %u aborts %d rare_sync %d kernels %s",
        names[s->executor], (unsigned long long)s->seed, (unsigned long long)s->resident[0],
        (unsigned long long)s->resident[1], (unsigned long long)s->resident[2], (unsigned long long)s->resident[3],
        (unsigned long long)s->ring_bytes, (unsigned long long)s->copy_bytes, s->flags, s->mode, s->draft_rows,
        s->steps_ahead, s->max_rows, s->target_runs, s->aborts, s->rare_sync, s->kernels ? s->kernels : "best");
}
