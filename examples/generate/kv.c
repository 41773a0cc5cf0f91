/* SPDX-License-Identifier: MIT */
#include "kv.h"

#include <math.h>
#include <rollkv/host.h>
#include <stdbool.h>
#include <stdlib.h>

#include "stopwatch.h"

struct kv {
    rkv_cache *cache;
    size_t head_dim;
    bool is_host;
    void *stream;
    rkv_type out_type;
    rkv_batch batch; /* of the next step; no entries: the next rows of sequence 0 */
    uint64_t spent_ns;
};

/* The library's sentence, with what the engine was about. */
static int check(rkv_status status, const char *what, struct gen_error *err)
{
    if (status == RKV_OK)
        return 0;
    return gen_fail(err, "%s: %s (%s)", what, rkv_error_message(), rkv_status_name(status));
}

/* Every layer is alike, so a step's compute is spread evenly over the gaps between attentions,
 * but for the part behind the last one. */
static uint64_t gap_ns(const struct kv_settings *settings, size_t layers, size_t layer)
{
    const double step_ns = (double)settings->step_ns, behind = step_ns * settings->output_fraction;
    const double gap = (step_ns - behind) / (double)layers;
    return (uint64_t)(layer + 1 == layers ? gap + behind : gap);
}

/* The parameters and the arrays that they point to; they are only needed for one call. */
struct kv_params {
    rkv_cache_params params;
    rkv_kv_layer_params *kv_layers;
    rkv_site_params *sites;
    float *frequencies;
};

static void free_params(struct kv_params *p)
{
    free(p->kv_layers);
    free(p->sites);
    free(p->frequencies);
}

static void fill_layer(struct kv_params *p, const struct model_shape *shape,
                       const struct kv_settings *settings, uint32_t layer)
{
    p->kv_layers[layer] = (rkv_kv_layer_params){.struct_size = sizeof *p->kv_layers,
                                                .n_kv_heads = (uint32_t)shape->kv_heads,
                                                .head_dim_k = (uint32_t)shape->head_dim,
                                                .type_k = settings->type_k,
                                                .type_v = settings->type_v,
                                                .resident_cells = settings->resident_cells};
    p->sites[layer] = (rkv_site_params){.struct_size = sizeof *p->sites,
                                        .kv_layer = layer,
                                        .n_q_heads = (uint32_t)shape->heads,
                                        .mask = RKV_MASK_CAUSAL,
                                        .gap_ns = gap_ns(settings, shape->layers, layer)};
}

static int fill_params(struct kv_params *p, const struct model_shape *shape,
                       const struct kv_settings *settings, struct gen_error *err)
{
    const uint32_t layers = (uint32_t)shape->layers;
    *p = (struct kv_params){.params = RKV_CACHE_PARAMS_INIT};
    p->kv_layers = calloc(layers, sizeof *p->kv_layers);
    p->sites = calloc(layers, sizeof *p->sites);
    p->frequencies = calloc(shape->head_dim / 2, sizeof *p->frequencies);
    if (p->kv_layers == NULL || p->sites == NULL || p->frequencies == NULL) {
        free_params(p);
        return gen_fail(err, "No memory for the parameters of %u layers.", layers);
    }
    for (uint32_t i = 0; i < layers; i++)
        fill_layer(p, shape, settings, i);
    for (size_t i = 0; i < shape->head_dim / 2; i++)
        p->frequencies[i] = (float)pow(shape->rope_base, -2.0 * (double)i / (double)shape->head_dim);
    rkv_cache_params *c = &p->params;
    c->device = settings->device;
    c->kv_layers = p->kv_layers;
    c->sites = p->sites;
    c->n_kv_layers = c->n_sites = layers;
    c->capacity_cells = settings->positions;
    c->n_sequences = settings->sequences;
    /* Pairs (0, 1), (2, 3), ...; they are for shifts alone. */
    c->rope = (rkv_rope_params){p->frequencies, (uint32_t)(shape->head_dim / 2), 1};
    c->max_turns = settings->shifts ? 0 : RKV_TURNS_NONE;
    c->max_rows = (uint32_t)settings->max_rows;
    c->tile_cells = settings->tile_cells;
    c->mode = settings->mode;
    c->ring_bytes = settings->ring_bytes;
    c->device_limit_bytes = settings->device_limit_bytes;
    c->step_ns = settings->step_ns;
    if (settings->device == RKV_DEVICE_HOST) {
        c->host.link_bytes_per_s = settings->link_bytes_per_s;
        c->host.n_threads = settings->threads;
    }
    return 0;
}

static int create_cache(struct kv *kv, const struct model_shape *shape,
                        const struct kv_settings *settings, struct gen_error *err)
{
    struct kv_params p;
    if (fill_params(&p, shape, settings, err) != 0)
        return -1;
    const int rc = check(rkv_cache_create(&p.params, &kv->cache), "The cache can't be set up", err);
    free_params(&p);
    return rc;
}

int kv_estimate(const struct model_shape *shape, const struct kv_settings *settings,
                rkv_estimate *out_estimate, struct gen_error *err)
{
    struct kv_params p;
    if (fill_params(&p, shape, settings, err) != 0)
        return -1;
    *out_estimate = (rkv_estimate){.struct_size = sizeof *out_estimate};
    const int rc =
        check(rkv_cache_estimate(&p.params, out_estimate), "The cache can't be estimated", err);
    free_params(&p);
    return rc;
}

struct kv *kv_create(const struct model_shape *shape, const struct kv_settings *settings,
                     struct gen_error *err)
{
    struct kv *kv = calloc(1, sizeof *kv);
    if (kv == NULL) {
        gen_fail(err, "No memory for the cache's handle.");
        return NULL;
    }
    kv->head_dim = shape->head_dim;
    kv->is_host = settings->device == RKV_DEVICE_HOST;
    kv->stream = settings->stream;
    kv->out_type = settings->out_type;
    if (create_cache(kv, shape, settings, err) != 0) {
        free(kv);
        return NULL;
    }
    return kv;
}

void kv_destroy(struct kv *kv)
{
    if (kv == NULL)
        return;
    rkv_cache_destroy(kv->cache);
    free(kv);
}

/* More than one row is a prompt's chunk. Its regime is named even where it is short, so that the
 * bits don't depend on where the prompt is cut. */
static int begin(void *self, size_t rows, struct gen_error *err)
{
    struct kv *kv = self;
    const uint64_t started = stopwatch_now_ns();
    rkv_batch_entry entry = RKV_BATCH_ENTRY_INIT;
    entry.n_rows = entry.n_new_cells = (uint32_t)rows;
    entry.regime = rows > 1 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE;
    rkv_batch batch = RKV_BATCH_INIT;
    batch.n_entries = 1;
    batch.entries = &entry;
    if (kv->batch.n_entries > 0)
        batch = kv->batch;
    kv->batch.n_entries = 0;
    const int rc = check(rkv_step_begin(kv->cache, &batch), "A step can't begin", err);
    kv->spent_ns += stopwatch_now_ns() - started;
    return rc;
}

/* The data is only read where the library takes q, k and v. */
static rkv_tensor tensor(const void *data, rkv_type type, size_t row_stride, size_t head_stride)
{
    return (rkv_tensor){.data = (void *)(uintptr_t)data,
                        .type = type,
                        .row_stride = (int64_t)row_stride,
                        .head_stride = (int64_t)head_stride};
}

/* On the host, matrix products run on the calling thread, which therefore waits for each attention;
 * the copies of later layers run on meanwhile. On a GPU all is queued on one stream. */
static int attend(void *self, size_t layer, const struct attention_rows *x, struct gen_error *err)
{
    struct kv *kv = self;
    const uint64_t started = stopwatch_now_ns();
    rkv_attend_params params = RKV_ATTEND_PARAMS_INIT;
    params.site = (uint32_t)layer;
    params.q = tensor(x->q, RKV_TYPE_F32, x->qkv_stride, kv->head_dim);
    params.k = tensor(x->k, RKV_TYPE_F32, x->qkv_stride, kv->head_dim);
    params.v = tensor(x->v, RKV_TYPE_F32, x->qkv_stride, kv->head_dim);
    params.out = tensor(x->out, kv->out_type, x->out_stride, kv->head_dim);
    int rc = check(rkv_step_attend(kv->cache, &params, kv->stream), "An attention call failed", err);
    if (rc == 0 && kv->is_host)
        rc = check(rkv_host_stream_sync(kv->cache, kv->stream), "Waiting for an attention failed", err);
    kv->spent_ns += stopwatch_now_ns() - started;
    return rc;
}

static int end(void *self, struct gen_error *err)
{
    struct kv *kv = self;
    const uint64_t started = stopwatch_now_ns();
    const int rc = check(rkv_step_end(kv->cache, NULL, kv->stream), "A step can't end", err);
    kv->spent_ns += stopwatch_now_ns() - started;
    return rc;
}

uint64_t kv_spent_ns(const struct kv *kv)
{
    return kv->spent_ns;
}

struct attention kv_attention(struct kv *kv)
{
    return (struct attention){kv, begin, attend, end};
}

void kv_set_batch(struct kv *kv, const rkv_batch_entry *entries, uint32_t n_entries)
{
    kv->batch =
        (rkv_batch){.struct_size = sizeof kv->batch, .n_entries = n_entries, .entries = entries};
}

rkv_cache *kv_cache(struct kv *kv)
{
    return kv->cache;
}

int kv_stats(const struct kv *kv, rkv_cache_stats *out_stats, struct gen_error *err)
{
    *out_stats = (rkv_cache_stats){.struct_size = sizeof *out_stats};
    return check(rkv_cache_stats_get(kv->cache, out_stats), "The cache's statistics can't be read",
                 err);
}

int kv_info(const struct kv *kv, rkv_cache_info *out_info, struct gen_error *err)
{
    *out_info = (rkv_cache_info){.struct_size = sizeof *out_info};
    return check(rkv_cache_info_get(kv->cache, out_info), "The cache's settings can't be read", err);
}
