/* SPDX-License-Identifier: MIT
 *
 * A small program that knows librollkv only as installed: it shows that headers and library belong
 * together, and that a cache can be made. C99.
 */
#include <stdio.h>

#include <rollkv/host.h>
#include <rollkv/rollkv.h>

int main(void)
{
    rkv_kv_layer_params kv_layer = RKV_KV_LAYER_PARAMS_INIT;
    rkv_site_params site = RKV_SITE_PARAMS_INIT;
    rkv_cache_params params = RKV_CACHE_PARAMS_INIT;
    rkv_estimate estimate = {.struct_size = sizeof(estimate)};
    rkv_cache *cache = NULL;

    if (rkv_version() != RKV_VERSION) {
        fprintf(stderr, "headers of %d, library of %u\n", RKV_VERSION, (unsigned)rkv_version());
        return 1;
    }
    kv_layer.n_kv_heads = 2;
    kv_layer.head_dim_k = 64;
    kv_layer.resident_cells = RKV_RESIDENT_NONE;
    site.n_q_heads = 4;
    params.device = RKV_DEVICE_HOST;
    params.kv_layers = &kv_layer;
    params.n_kv_layers = 1;
    params.sites = &site;
    params.n_sites = 1;
    params.capacity_cells = 1024;
    params.ring_bytes = 1 << 20;

    if (rkv_cache_estimate(&params, &estimate) != RKV_OK || rkv_cache_create(&params, &cache) != RKV_OK) {
        fprintf(stderr, "%s\n", rkv_error_message());
        return 1;
    }
    rkv_cache_destroy(cache);
    /* K and V of 1,024 cells in f16: the tail at full capacity holds at least that. */
    if (estimate.host_tail_bytes < 1024u * 2 * 2 * 64 * 2) {
        fprintf(stderr, "an estimate of %llu bytes\n", (unsigned long long)estimate.host_tail_bytes);
        return 1;
    }
    printf("rollkv %s, %s\n", rkv_version_string(), rkv_build_info());
    return 0;
}
