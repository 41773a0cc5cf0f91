/* SPDX-License-Identifier: MIT
 *
 * two_caches.c: a model whose layers are split over two devices has a cache on each, and every sequence
 * lies in both. What is done to one is done to the other, so that they stay in step.
 *
 * Few calls can fail for want of room: begin, append_from (and fork), park, fetch, set_residency,
 * compact, import, load. Where one of these succeeds on the first cache and is refused on the second,
 * it is taken back on the first one by a call that can't be refused:
 *
 *   begin                     abort (so both begin before the first attend)
 *   append_from, fork         remove from where dst ended, or clear
 *   load, import              clear, or remove what came
 *   park, fetch, compact,     nothing: where cells lie is each cache's own business, and no
 *   set_residency             result depends on it (compact: but for rounding)
 *
 * The second device has less room here, and refuses first. At the end, the outputs are compared with
 * those of one cache that holds all layers. As in minimal.c, random values stand in for the model.
 *
 *     two_caches            on two host executors
 *     two_caches 0 1        on two GPUs (or 0 0: both on one), where it is built with CUDA
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rollkv/host.h>
#include <rollkv/rollkv.h>

#ifdef TWO_CACHES_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

enum { LAYERS = 4, Q_HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64, CHUNK = 64, TILE = 32, SEQUENCES = 4 };

/* The caches that share the layers between them: cache i has `layers` of them, from i * layers on. */
struct engine {
    rkv_cache *caches[2];
    int32_t devices[2];
    uint32_t n_caches, layers;
    uint64_t outputs_hash; /* over all outputs so far */
};

/* Tensors of one attention call, in memory that both devices and the host can reach. */
struct tensors {
    float *q, *k, *v, *out;
};

/* For what can't fail here, or ends the example. */
static void must(rkv_status status, const char *what)
{
    if (status == RKV_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, rkv_status_name(status), rkv_error_message());
    exit(1);
}

static float *alloc_floats(size_t n, bool on_gpu)
{
    float *memory = NULL;
#ifdef TWO_CACHES_HAVE_CUDA
    if (on_gpu && cudaMallocManaged((void **)&memory, n * sizeof *memory, cudaMemAttachGlobal) != 0)
        memory = NULL;
#endif
    if (!on_gpu)
        memory = malloc(n * sizeof *memory);
    if (memory == NULL) {
        fprintf(stderr, "No memory for tensors%s.\n",
                on_gpu ? " on a GPU, or built without CUDA: see the head of two_caches.c" : "");
        exit(1);
    }
    return memory;
}

static void free_floats(float *memory, bool on_gpu)
{
#ifdef TWO_CACHES_HAVE_CUDA
    if (on_gpu) {
        cudaFree(memory);
        return;
    }
#endif
    (void)on_gpu;
    free(memory);
}

static void wait_for(const struct engine *e, uint32_t i)
{
    if (e->devices[i] == RKV_DEVICE_HOST) {
        must(rkv_host_stream_sync(e->caches[i], NULL), "sync");
        return;
    }
#ifdef TWO_CACHES_HAVE_CUDA
    if (cudaSetDevice(e->devices[i]) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
        fprintf(stderr, "The GPU failed.\n");
        exit(1);
    }
#endif
}

static rkv_cache *create(int32_t device, uint32_t layers, uint64_t capacity_cells)
{
    rkv_kv_layer_params kv_layers[LAYERS];
    rkv_site_params sites[LAYERS];
    for (uint32_t i = 0; i < layers; i++) {
        kv_layers[i] = (rkv_kv_layer_params)RKV_KV_LAYER_PARAMS_INIT;
        kv_layers[i].n_kv_heads = KV_HEADS;
        kv_layers[i].head_dim_k = HEAD_DIM;
        kv_layers[i].resident_cells = 96;
        sites[i] = (rkv_site_params)RKV_SITE_PARAMS_INIT;
        sites[i].kv_layer = i;
        sites[i].n_q_heads = Q_HEADS;
    }
    rkv_cache_params params = RKV_CACHE_PARAMS_INIT;
    params.device = device;
    params.kv_layers = kv_layers;
    params.sites = sites;
    params.n_kv_layers = params.n_sites = layers;
    params.capacity_cells = capacity_cells;
    params.n_sequences = SEQUENCES;
    params.max_rows = CHUNK;
    params.tile_cells = TILE;
    rkv_cache *cache = NULL;
    must(rkv_cache_create(&params, &cache), "create");
    return cache;
}

/* ------------------------------------------------------- on both, or on none */

static rkv_status told(const struct engine *e, uint32_t i, const char *what, rkv_status status)
{
    printf("  cache %" PRIu32 " of %" PRIu32 " refuses to %s: %s: %s\n", i + 1, e->n_caches, what,
           rkv_status_name(status), rkv_error_message());
    return status;
}

/* Asks both, and changes neither. */
static rkv_status check(const struct engine *e, const rkv_batch *batches, uint32_t n_batches)
{
    rkv_status status;
    for (uint32_t i = 0; i < e->n_caches; i++)
        if ((status = rkv_cache_check(e->caches[i], batches, n_batches)) != RKV_OK)
            return told(e, i, "promise that", status);
    printf("  there is room for all of it\n");
    return RKV_OK;
}

static rkv_status begin(const struct engine *e, const rkv_batch *batch)
{
    for (uint32_t i = 0; i < e->n_caches; i++) {
        const rkv_status status = rkv_step_begin(e->caches[i], batch);
        if (status == RKV_OK)
            continue;
        told(e, i, "begin a step", status);
        while (i-- > 0) {
            must(rkv_step_abort(e->caches[i]), "abort");
            printf("  the step of cache %" PRIu32 " is aborted\n", i + 1);
        }
        return status;
    }
    return RKV_OK;
}

static rkv_status fork_sequence(const struct engine *e, uint32_t dst, uint32_t src)
{
    for (uint32_t i = 0; i < e->n_caches; i++) {
        const rkv_status status = rkv_sequence_fork(e->caches[i], dst, src);
        if (status == RKV_OK)
            continue;
        told(e, i, "fork", status);
        while (i-- > 0)
            must(rkv_sequence_clear(e->caches[i], dst), "clear"); /* dst was empty before */
        return status;
    }
    return RKV_OK;
}

/* One of the calls that can't be refused for want of room. */
static void clear(const struct engine *e, uint32_t sequence)
{
    for (uint32_t i = 0; i < e->n_caches; i++)
        must(rkv_sequence_clear(e->caches[i], sequence), "clear");
}

/* A cache that can't park goes on with the sequence where it is: nothing to take back. */
static void park(const struct engine *e, uint32_t sequence)
{
    for (uint32_t i = 0; i < e->n_caches; i++) {
        const rkv_status status = rkv_sequence_park(e->caches[i], sequence);
        if (status != RKV_OK)
            told(e, i, "park", status);
    }
}

/* --------------------------------------------------------------------- step */

/* The same values for the same layer, row and text, whatever cache the layer is in. */
static void fill(float *values, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(seed >> 40) * (1.0f / (1 << 23)) - 1.0f;
    }
}

static void take_outputs(struct engine *e, const float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, out + i, sizeof bits);
        e->outputs_hash = (e->outputs_hash ^ bits) * 1099511628211u;
    }
}

static void attend(struct engine *e, const struct tensors *t, uint32_t layer, size_t rows,
                   uint64_t seed)
{
    const uint32_t i = layer / e->layers;
    rkv_attend_params params = RKV_ATTEND_PARAMS_INIT;
    params.site = layer % e->layers;
    params.q = (rkv_tensor){.data = t->q, .type = RKV_TYPE_F32};
    params.k = (rkv_tensor){.data = t->k, .type = RKV_TYPE_F32};
    params.v = (rkv_tensor){.data = t->v, .type = RKV_TYPE_F32};
    params.out = (rkv_tensor){.data = t->out, .type = RKV_TYPE_F32};
    fill(t->q, rows * Q_HEADS * HEAD_DIM, seed * LAYERS + layer);
    fill(t->k, rows * KV_HEADS * HEAD_DIM, seed * LAYERS + layer + 1000000);
    fill(t->v, rows * KV_HEADS * HEAD_DIM, seed * LAYERS + layer + 2000000);
    must(rkv_step_attend(e->caches[i], &params, NULL), "attend");
    wait_for(e, i);
    take_outputs(e, t->out, rows * Q_HEADS * HEAD_DIM);
}

/* One step over all layers; `seed` is its text. Both caches begin before the first one attends. */
static rkv_status step(struct engine *e, const struct tensors *t, const rkv_batch *batch, uint64_t seed)
{
    size_t rows = 0;
    const rkv_status status = begin(e, batch);
    if (status != RKV_OK)
        return status;
    for (uint32_t i = 0; i < batch->n_entries; i++)
        rows += batch->entries[i].n_rows;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        attend(e, t, layer, rows, seed);
    for (uint32_t i = 0; i < e->n_caches; i++)
        must(rkv_step_end(e->caches[i], NULL, NULL), "end");
    return RKV_OK;
}

static rkv_batch_entry entry(uint32_t sequence, uint32_t rows)
{
    rkv_batch_entry out = RKV_BATCH_ENTRY_INIT;
    out.sequence = sequence;
    out.n_rows = out.n_new_cells = rows;
    out.regime = rows > 1 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE;
    return out;
}

static rkv_status chunk(struct engine *e, const struct tensors *t, uint32_t sequence, uint64_t seed)
{
    const rkv_batch_entry one = entry(sequence, CHUNK);
    return step(e, t, &(rkv_batch){sizeof(rkv_batch), 1, &one}, seed);
}

static void decode(struct engine *e, const struct tensors *t, uint32_t sequences, uint64_t seed)
{
    rkv_batch_entry each[SEQUENCES];
    for (uint32_t i = 0; i < sequences; i++)
        each[i] = entry(i, 1);
    for (uint64_t i = 0; i < 5; i++)
        must(step(e, t, &(rkv_batch){sizeof(rkv_batch), sequences, each}, seed + i), "decode");
}

/* -------------------------------------------------------------------- story */

static void print_lengths(const struct engine *e, const char *what)
{
    printf("%s\n", what);
    for (uint32_t i = 0; i < e->n_caches; i++) {
        printf("  cache %" PRIu32 ": cells of its sequences", i + 1);
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            rkv_sequence_state state = {.struct_size = sizeof state};
            must(rkv_sequence_info(e->caches[i], s, &state), "info");
            printf(" %5" PRIu64, state.n_cells);
        }
        printf("\n");
    }
}

static void run(struct engine *e, const struct tensors *t)
{
    for (uint64_t i = 0; i < 4; i++)
        must(chunk(e, t, 0, i), "reading");
    must(fork_sequence(e, 1, 0), "fork");
    must(fork_sequence(e, 2, 0), "fork");
    decode(e, t, 3, 100);
    print_lengths(e, "a text is read, forked twice, and three sequences decode:");

    printf("sequence 3 is to read 320 cells; asked before, without changing anything:\n");
    const rkv_batch_entry one = entry(3, CHUNK);
    const rkv_batch batch = {sizeof batch, 1, &one}, batches[5] = {batch, batch, batch, batch, batch};
    check(e, batches, 5);
    printf("tried all the same, chunk by chunk:\n");
    uint32_t done = 0;
    while (done < 5 && chunk(e, t, 3, 200 + done) == RKV_OK)
        done++;
    print_lengths(e, e->n_caches == 2 ? "after that, both caches have the same cells:" : "after that:");

    park(e, 2);
    clear(e, 1);
    clear(e, 2);
    print_lengths(e, "sequences 1 and 2 are given up:");
    for (; done < 5; done++)
        must(chunk(e, t, 3, 200 + done), "the retry");
    decode(e, t, 1, 300);
    print_lengths(e, "sequence 3 is read to its end, and sequence 0 goes on:");
}

static void destroy(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_caches; i++)
        rkv_cache_destroy(e->caches[i]);
}

int main(int argc, char **argv)
{
    if (argc != 1 && argc != 3) {
        fprintf(stderr, "usage: %s [DEVICE DEVICE]   (0, 1, ..; none: two host executors)\n", argv[0]);
        return 2;
    }
    struct engine two = {.n_caches = 2, .layers = LAYERS / 2};
    for (int i = 0; i < 2; i++)
        two.devices[i] = argc == 3 ? (int32_t)strtol(argv[1 + i], NULL, 10) : RKV_DEVICE_HOST;
    struct engine whole = {.n_caches = 1, .layers = LAYERS, .devices = {two.devices[0]}};
    const bool on_gpu = argc == 3;
    const struct tensors t = {alloc_floats(CHUNK * Q_HEADS * HEAD_DIM, on_gpu),
                              alloc_floats(CHUNK * KV_HEADS * HEAD_DIM, on_gpu),
                              alloc_floats(CHUNK * KV_HEADS * HEAD_DIM, on_gpu),
                              alloc_floats(CHUNK * Q_HEADS * HEAD_DIM, on_gpu)};
    two.caches[0] = create(two.devices[0], two.layers, 1024);
    two.caches[1] = create(two.devices[1], two.layers, 500);
    run(&two, &t);
    destroy(&two);
    printf("\none cache with all layers, and room enough:\n");
    whole.caches[0] = create(whole.devices[0], whole.layers, 1024);
    run(&whole, &t);
    destroy(&whole);
    const bool is_same = two.outputs_hash == whole.outputs_hash;
    printf("\noutputs of all steps and layers: %s\n",
           is_same ? "the same bits in both runs" : "DIFFERENT");
    free_floats(t.q, on_gpu);
    free_floats(t.k, on_gpu);
    free_floats(t.v, on_gpu);
    free_floats(t.out, on_gpu);
    return is_same ? 0 : 1;
}
