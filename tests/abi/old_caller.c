/* SPDX-License-Identifier: MIT
 *
 * A program of release 0.1: compiled with that release's headers (v0_1/), linked
 * and run with today's library.  It never changes; while 0.1 is not released, its
 * headers are those of an early state of it, since when structs have grown.
 */
#include <rollkv/host.h>
#include <rollkv/rollkv.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DIM = 64, ROWS = 32, STEPS = 20 };
static float q[ROWS * DIM], k[ROWS * DIM], v[ROWS * DIM], out[ROWS * DIM];

#define MUST(x)                                                                               \
    do {                                                                                      \
        if (!(x)) {                                                                           \
            fprintf(stderr, "%d: %s: %s\n", __LINE__, #x, rkv_error_message());               \
            return 1;                                                                         \
        }                                                                                     \
    } while (0)

int main(void)
{
    rkv_kv_layer_params layer = RKV_KV_LAYER_PARAMS_INIT;
    rkv_site_params site = RKV_SITE_PARAMS_INIT;
    rkv_cache_params params = RKV_CACHE_PARAMS_INIT;
    /* canaries: an older struct is never overrun */
    struct {
        rkv_cache_info it;
        unsigned char after[64];
    } info;
    struct {
        rkv_cache_stats it;
        unsigned char after[64];
    } stats;
    rkv_sequence_state state = {.struct_size = sizeof(state)};
    rkv_cache *cache = NULL;
    memset(&info, 0xa5, sizeof(info));
    memset(&stats, 0xa5, sizeof(stats));
    info.it.struct_size = sizeof(info.it);
    stats.it.struct_size = sizeof(stats.it);

    MUST(rkv_version() >= RKV_VERSION);
    layer.n_kv_heads = 1;
    layer.head_dim_k = DIM;
    layer.resident_cells = RKV_RESIDENT_NONE;
    site.n_q_heads = 1;
    params.device = RKV_DEVICE_HOST;
    params.kv_layers = &layer;
    params.sites = &site;
    params.n_kv_layers = params.n_sites = 1;
    params.capacity_cells = STEPS * ROWS;
    params.tile_cells = 32;
    params.max_rows = ROWS;
    MUST(rkv_cache_create(&params, &cache) == RKV_OK);
    for (int n = 0; n < STEPS; n++) {
        rkv_batch_entry entry = RKV_BATCH_ENTRY_INIT;
        rkv_batch batch = RKV_BATCH_INIT;
        rkv_attend_params attend = RKV_ATTEND_PARAMS_INIT;
        for (int i = 0; i < ROWS * DIM; i++)
            v[i] = (float)n;
        entry.n_rows = entry.n_new_cells = ROWS;
        batch.n_entries = 1;
        batch.entries = &entry;
        attend.q = (rkv_tensor){.data = q, .type = RKV_TYPE_F32};
        attend.k = (rkv_tensor){.data = k, .type = RKV_TYPE_F32};
        attend.v = (rkv_tensor){.data = v, .type = RKV_TYPE_F32};
        attend.out = (rkv_tensor){.data = out, .type = RKV_TYPE_F32};
        MUST(rkv_cache_check(cache, &batch, 1) == RKV_OK);
        MUST(rkv_step_begin(cache, &batch) == RKV_OK);
        MUST(rkv_step_start(cache, NULL) == RKV_OK);
        MUST(rkv_step_attend(cache, &attend, NULL) == RKV_OK);
        MUST(rkv_step_end(cache, NULL, NULL) == RKV_OK);
        MUST(rkv_host_stream_sync(cache, NULL) == RKV_OK);
        /* q is zero: the mean of all values so far */
        MUST(fabsf(out[(ROWS - 1) * DIM] - (float)n / 2) < 1e-3f);
    }
    MUST(rkv_cache_info_get(cache, &info.it) == RKV_OK && info.it.tile_cells == 32);
    MUST(rkv_cache_stats_get(cache, &stats.it) == RKV_OK && stats.it.steps == STEPS && stats.it.streamed_bytes > 0);
    for (int i = 0; i < 64; i++)
        MUST(info.after[i] == 0xa5 && stats.after[i] == 0xa5);
    MUST(rkv_sequence_remove(cache, 0, 100, RKV_POS_END) == RKV_OK);
    MUST(rkv_sequence_info(cache, 0, &state) == RKV_OK && state.n_cells == 100 && state.pos_end == 100);
    MUST(rkv_sequence_clear(cache, 7) == RKV_E_SEQUENCE);
    rkv_cache_destroy(cache);
    return 0;
}
