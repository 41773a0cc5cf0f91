/* SPDX-License-Identifier: MIT */
#include "where.h"

#include <rollkv/profile.h>
#include <stdlib.h>

static int check(rkv_status status, const char *what, struct gen_error *err)
{
    if (status == RKV_OK)
        return 0;
    return gen_fail(err, "%s: %s (%s)", what, rkv_error_message(), rkv_status_name(status));
}

int where_start(rkv_cache *cache, struct gen_error *err)
{
    return check(rkv_profile_start(cache, 1), "A profile can't be started", err);
}

static int print_layer(rkv_cache *cache, uint32_t layer, const rkv_advice *a, FILE *out,
                       struct gen_error *err)
{
    rkv_profile_mass m = {.struct_size = sizeof m};
    if (check(rkv_profile_mass_get(cache, layer, RKV_PROFILE_ALL_HEADS, &m), "No profile", err) != 0)
        return -1;
    char resident[32] = "none";
    if (a->resident_cells != RKV_RESIDENT_NONE)
        snprintf(resident, sizeof resident, "%llu", (unsigned long long)a->resident_cells);
    fprintf(out, "%5u %7.3f %7.3f %7.3f %7.3f  %7.3f %7.3f  %4u %9s %9.3f %8.3f\n", layer, m.recent[5],
            m.recent[7], m.recent[9], m.recent[11], m.first[5], m.first[7], a->rank, resident, a->tail_mass,
            (double)a->streamed_bytes * 1e-6);
    return 0;
}

static int print_layers(rkv_cache *cache, const rkv_cache_info *info, const rkv_advise_params *p,
                        FILE *out, struct gen_error *err)
{
    rkv_advice_sum sum = {.struct_size = sizeof sum};
    rkv_advice *advice = calloc(info->n_kv_layers, sizeof *advice);
    if (advice == NULL)
        return gen_fail(err, "No memory for advice on %u KV layers.", info->n_kv_layers);
    advice[0].struct_size = sizeof *advice;
    int rc = check(rkv_profile_advise(cache, p, advice, &sum), "No advice", err);
    fprintf(
        out,
        "\nshare of the attention's mass among the last and the first cells, mean of decoded tokens\n"
        "layer last 32     128     512    2048  first 32     128  rank  resident beyond it  MB/step\n");
    for (uint32_t l = 0; l < info->n_kv_layers && rc == 0; l++)
        rc = print_layer(cache, l, &advice[l], out, err);
    if (rc == 0)
        fprintf(out, "with %.1f MB for windows: %.1f MB streamed a step, none dropped\n",
                (double)sum.window_bytes * 1e-6, (double)sum.streamed_bytes * 1e-6);
    free(advice);
    return rc;
}

int where_print(rkv_cache *cache, uint64_t context_cells, FILE *out, struct gen_error *err)
{
    rkv_cache_info info = {.struct_size = sizeof info};
    rkv_advise_params p = RKV_ADVISE_PARAMS_INIT;
    int rc = check(rkv_cache_info_get(cache, &info), "The cache's settings can't be read", err);
    for (uint32_t l = 0; l < info.n_kv_layers && rc == 0; l++) {
        rkv_kv_layer_info k = {.struct_size = sizeof k};
        rc = check(rkv_kv_layer_info_get(cache, l, &k), "A KV layer can't be read", err);
        p.device_bytes += k.tile_layer_device_bytes / info.tile_cells * context_cells / 4;
    }
    p.context_cells = context_cells;
    return rc == 0 ? print_layers(cache, &info, &p, out, err) : -1;
}
