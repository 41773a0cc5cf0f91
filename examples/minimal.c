/* SPDX-License-Identifier: MIT
 *
 * minimal.c: two sequences through a cache whose larger part lies in host memory.
 *
 * A small 'model' of four layers with random queries, keys and values: sequence 0 reads a prompt of
 * 700 tokens, sequence 1 one of 90, in chunks of up to 128 rows a step; then both decode together, a
 * token each a step. What a real engine does between the attention calls is left out. It runs on the
 * host executor; on a GPU, the tensors are device memory and `stream` is a cudaStream_t.
 *
 *     cc minimal.c $(pkg-config --cflags --libs rollkv) -o minimal
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <rollkv/host.h>
#include <rollkv/rollkv.h>

enum { LAYERS = 4, Q_HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64, CHUNK = 128, DECODE_STEPS = 40 };

/* One layer's part in a step: rows of queries, keys and values go in, rows of outputs come out. */
static float q[CHUNK * Q_HEADS * HEAD_DIM], k[CHUNK * KV_HEADS * HEAD_DIM],
    v[CHUNK * KV_HEADS * HEAD_DIM];
static float out[CHUNK * Q_HEADS * HEAD_DIM];

/* Every call that can fail returns a status; the sentence says what was wrong. */
static void check(rkv_status status, const char *what)
{
    if (status == RKV_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, rkv_status_name(status), rkv_error_message());
    exit(1);
}

static rkv_cache *create(void)
{
    rkv_kv_layer_params kv_layers[LAYERS];
    rkv_site_params sites[LAYERS];
    for (uint32_t i = 0; i < LAYERS; i++) {
        kv_layers[i] = (rkv_kv_layer_params)RKV_KV_LAYER_PARAMS_INIT;
        kv_layers[i].n_kv_heads = KV_HEADS;
        kv_layers[i].head_dim_k = HEAD_DIM;
        kv_layers[i].type_k = kv_layers[i].type_v = RKV_TYPE_F16;
        kv_layers[i].resident_cells = 256; /* what stays on the device, over both sequences */
        sites[i] = (rkv_site_params)RKV_SITE_PARAMS_INIT;
        sites[i].kv_layer = i;
        sites[i].n_q_heads = Q_HEADS;
    }
    rkv_cache_params params = RKV_CACHE_PARAMS_INIT;
    params.device = RKV_DEVICE_HOST;
    params.kv_layers = kv_layers;
    params.sites = sites;
    params.n_kv_layers = params.n_sites = LAYERS;
    params.capacity_cells = 1024;
    params.n_sequences = 2;
    params.max_rows = CHUNK;
    params.tile_cells = 64;
    rkv_cache *cache = NULL;
    check(rkv_cache_create(&params, &cache), "create");
    return cache;
}

static void fill_random(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
}

/* A forward pass over the batch: one attention call a layer. Returns the sum of the last outputs. */
static double step(rkv_cache *cache, const rkv_batch_entry *entries, uint32_t n_entries)
{
    rkv_batch batch = RKV_BATCH_INIT;
    batch.entries = entries;
    batch.n_entries = n_entries;
    size_t rows = 0;
    for (uint32_t i = 0; i < n_entries; i++)
        rows += entries[i].n_rows;

    check(rkv_step_begin(cache, &batch), "begin");
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fill_random(q, rows * Q_HEADS * HEAD_DIM);
        fill_random(k, rows * KV_HEADS * HEAD_DIM);
        fill_random(v, rows * KV_HEADS * HEAD_DIM);
        rkv_attend_params attend = RKV_ATTEND_PARAMS_INIT;
        attend.site = layer;
        attend.q = (rkv_tensor){.data = q, .type = RKV_TYPE_F32}; /* strides 0: rows lie densely */
        attend.k = (rkv_tensor){.data = k, .type = RKV_TYPE_F32};
        attend.v = (rkv_tensor){.data = v, .type = RKV_TYPE_F32};
        attend.out = (rkv_tensor){.data = out, .type = RKV_TYPE_F32};
        check(rkv_step_attend(cache, &attend, NULL), "attend");
        /* Attention is queued: wait before q, k and v are written again, and before out is read. */
        check(rkv_host_stream_sync(cache, NULL), "sync");
    }
    check(rkv_step_end(cache, NULL, NULL), "end");

    double sum = 0;
    for (size_t i = 0; i < rows * Q_HEADS * HEAD_DIM; i++)
        sum += out[i];
    return sum;
}

static rkv_batch_entry entry(uint32_t sequence, uint32_t rows, uint32_t regime)
{
    rkv_batch_entry e = RKV_BATCH_ENTRY_INIT;
    e.sequence = sequence;
    e.n_rows = e.n_new_cells = rows;
    e.regime = regime;
    return e;
}

static void prefill(rkv_cache *cache, uint32_t sequence, uint32_t cells)
{
    while (cells > 0) {
        const uint32_t rows = cells < CHUNK ? cells : CHUNK;
        const rkv_batch_entry e = entry(sequence, rows, RKV_REGIME_PREFILL);
        step(cache, &e, 1);
        cells -= rows;
    }
}

static void report(const rkv_cache *cache)
{
    rkv_cache_info info = {.struct_size = sizeof(info)};
    rkv_cache_stats stats = {.struct_size = sizeof(stats)};
    rkv_kv_layer_info layer = {.struct_size = sizeof(layer)};
    check(rkv_cache_info_get(cache, &info), "info");
    check(rkv_cache_stats_get(cache, &stats), "stats");
    check(rkv_kv_layer_info_get(cache, 0, &layer), "KV layer info");
    printf("device '%s', kernels '%s': %" PRIu64 " KiB on the device, a ring of %" PRIu64 " KiB\n",
           info.device_name, info.kernels, info.device_bytes >> 10, info.ring_bytes >> 10);
    for (uint32_t i = 0; i < info.n_sequences; i++) {
        rkv_sequence_state state = {.struct_size = sizeof(state)};
        check(rkv_sequence_info(cache, i, &state), "sequence info");
        printf("sequence %" PRIu32 ": %" PRIu64 " cells\n", i, state.n_cells);
    }
    printf("KV layer 0: %" PRIu64 " tiles in the window, %" PRIu64 " in the tail\n", layer.window_tiles,
           layer.tail_tiles);
    printf("%" PRIu64 " steps: %" PRIu64 " KiB demoted, %" PRIu64 " KiB streamed in %" PRIu64
           " copies\n",
           stats.steps, stats.demoted_bytes >> 10, stats.streamed_bytes >> 10, stats.copies_in);
}

int main(void)
{
    rkv_cache *cache = create();
    double sum = 0;
    srand(1);
    prefill(cache, 0, 700);
    prefill(cache, 1, 90);
    for (int i = 0; i < DECODE_STEPS; i++) {
        const rkv_batch_entry both[2] = {entry(0, 1, RKV_REGIME_DECODE),
                                         entry(1, 1, RKV_REGIME_DECODE)};
        sum += step(cache, both, 2);
    }
    report(cache);
    printf("sum of the decoded outputs: %.6f\n", sum);
    rkv_cache_destroy(cache);
    return 0;
}
