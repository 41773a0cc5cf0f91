/* SPDX-License-Identifier: MIT
 *
 * fuzz_state.c: a byte string read as a saved state.  Checksums are made to fit,
 * so that what lies behind them is reached.  A state is refused with a sentence
 * and leaves the cache as it was, or is a sequence as good as any: it can be
 * asked, continued, saved and loaded again with the same bytes.
 */
#include "fuzz_common.h"

#include "rollkv/state.h"
#include "state_hash.h"
#include "state_layout.h"

enum { DIM = 32, MOST = 1 << 16 };

typedef struct text {
    uint8_t at[MOST];
    uint64_t n, read;
} text;

static float zeros[2 * DIM], out[2 * DIM];

static int32_t write_text(void *user, const void *data, uint64_t bytes)
{
    text *t = user;
    FUZZ_CHECK(t->n + bytes <= MOST);
    memcpy(t->at + t->n, data, bytes);
    t->n += bytes;
    return 0;
}

static int32_t read_text(void *user, void *data, uint64_t bytes)
{
    text *t = user;
    if (bytes > t->n - t->read)
        return 1;
    memcpy(data, t->at + t->read, bytes);
    t->read += bytes;
    return 0;
}

static rkv_cache *create(rkvi_device **out_device)
{
    static const float frequencies[2] = {1, 0.5f};
    rkv_kv_layer_params l = RKV_KV_LAYER_PARAMS_INIT;
    rkv_site_params s = RKV_SITE_PARAMS_INIT;
    rkv_cache_params p = RKV_CACHE_PARAMS_INIT;
    rkvi_device *core;
    rkv_cache *cache = NULL;
    l.n_kv_heads = 1;
    l.head_dim_k = DIM;
    l.type_k = l.type_v = RKV_TYPE_Q4_0;
    l.resident_cells = RKV_RESIDENT_NONE;
    s.n_q_heads = 1;
    p.device = RKV_DEVICE_HOST;
    p.kv_layers = &l;
    p.sites = &s;
    p.n_kv_layers = p.n_sites = 1;
    p.capacity_cells = 128;
    p.n_sequences = 2;
    p.tile_cells = 16;
    p.max_rows = 2;
    p.rope = (rkv_rope_params){.frequencies = frequencies, .n_frequencies = 2};
    *out_device = fuzz_device(1, false, &core);
    FUZZ_CHECK(rkvi_api_create_on(&p, *out_device, &cache) == RKV_OK);
    return cache;
}

static rkv_status append(rkv_cache *cache, uint32_t sequence)
{
    const rkv_batch_entry e = {.struct_size = sizeof e, .sequence = sequence, .n_rows = 1, .n_new_cells = 1};
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 1, .entries = &e};
    const rkv_status s = rkv_step_begin(cache, &batch);
    if (s != RKV_OK)
        return s;
    rkv_attend_params a = RKV_ATTEND_PARAMS_INIT;
    a.q = a.k = a.v = (rkv_tensor){.data = zeros, .type = RKV_TYPE_F32};
    a.out = (rkv_tensor){.data = out, .type = RKV_TYPE_F32};
    FUZZ_CHECK(rkv_step_attend(cache, &a, NULL) == RKV_OK);
    FUZZ_CHECK(rkv_step_end(cache, NULL, NULL) == RKV_OK);
    FUZZ_CHECK(rkv_host_stream_sync(cache, NULL) == RKV_OK);
    return RKV_OK;
}

static void seal(text *t)
{
    if (t->n < 64)
        return;
    rkvi_put p = {t->at + 56};
    rkvi_put_u64(&p, rkvi_state_hash(t->at, 56, 0));
    rkvi_get g = {t->at + 24, t->at + 32, 0, 0};
    const uint64_t n = rkvi_get_u64(&g);
    if (n > t->n - 64 || t->n - 64 - n < 8)
        return;
    p.at = t->at + 64 + n;
    rkvi_put_u64(&p, rkvi_state_hash(t->at + 64, n, 0));
}

static rkv_status load(rkv_cache *cache, text *t, uint32_t sequence, bool is_sized)
{
    rkv_state_params p = RKV_STATE_PARAMS_INIT;
    t->read = 0;
    p.sequence = sequence;
    p.size_bytes = is_sized ? t->n : 0;
    p.read = read_text;
    p.user = t;
    return rkv_state_load(cache, &p);
}

static void save(rkv_cache *cache, text *t, uint32_t sequence)
{
    rkv_state_params p = RKV_STATE_PARAMS_INIT;
    t->n = 0;
    p.sequence = sequence;
    p.write = write_text;
    p.user = t;
    FUZZ_CHECK(rkv_state_save(cache, &p) == RKV_OK);
}

/* What was loaded is saved with the same bytes again, and goes on. */
static void use(rkv_cache *cache)
{
    static text a, b;
    save(cache, &a, 1);
    FUZZ_CHECK(load(cache, &a, 0, true) == RKV_OK);
    save(cache, &b, 0);
    FUZZ_CHECK(a.n == b.n && memcmp(a.at, b.at, a.n) == 0);
    const rkv_status s = append(cache, 1);
    if (s != RKV_OK)
        FUZZ_CHECK(s == RKV_E_CAPACITY || s == RKV_E_SEQUENCE || s == RKV_E_BATCH);
}

/* ROLLKV_FUZZ_SEED=FILE writes a state to start from. */
static void write_seed(rkv_cache *cache, const char *path)
{
    static text t;
    FILE *f = fopen(path, "wb");
    save(cache, &t, 0);
    FUZZ_CHECK(f && fputc(1, f) == 1 && fwrite(t.at, 1, t.n, f) == t.n && fclose(f) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static text t;
    rkvi_device *dev;
    rkv_cache *cache;
    if (rkvi_state_hash_built() != RKV_OK || size < 1 || size - 1 > MOST)
        return 0;
    cache = create(&dev);
    for (uint32_t i = 0; i < 20; i++)
        FUZZ_CHECK(append(cache, 0) == RKV_OK);
    if (getenv("ROLLKV_FUZZ_SEED"))
        write_seed(cache, getenv("ROLLKV_FUZZ_SEED"));
    t.n = size - 1;
    memcpy(t.at, data + 1, t.n);
    if (data[0] & 1)
        seal(&t);
    const rkv_status s = load(cache, &t, 1, data[0] & 2);
    if (s == RKV_OK)
        use(cache);
    else {
        rkv_sequence_state info = {.struct_size = sizeof info};
        FUZZ_CHECK(s == RKV_E_DATA || s == RKV_E_IO || s == RKV_E_CAPACITY);
        FUZZ_CHECK(strlen(rkv_error_message()) > 10);
        FUZZ_CHECK(rkv_sequence_info(cache, 0, &info) == RKV_OK && info.n_cells == 20);
        FUZZ_CHECK(rkv_sequence_info(cache, 1, &info) == RKV_OK && info.n_cells == 0);
        FUZZ_CHECK(append(cache, 0) == RKV_OK);
    }
    rkv_cache_destroy(cache);
    return 0;
}
