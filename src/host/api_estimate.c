/* SPDX-License-Identifier: MIT
 *
 * api_estimate.c: the one exported function that has parameters, but no cache.
 */
#include "api_internal.h"

static const rkvi_copy_spec estimate_spec = {"rkv_estimate", sizeof(rkv_estimate),
                                             offsetof(rkv_estimate, device_window_bytes)};

rkv_status rkv_cache_estimate(const rkv_cache_params *params, rkv_estimate *out_estimate)
{
    rkv_cache_params p;
    rkvi_machine machine;
    rkv_estimate estimate;
    rkv_status s = rkvi_copy_out_check(&estimate_spec, out_estimate);
    if (s == RKV_OK)
        s = rkvi_api_params(params, &p);
    if (s == RKV_OK)
        s = rkvi_api_machine(&p, &machine);
    if (s == RKV_OK)
        s = rkvi_config_estimate(&p, &machine, &estimate);
    if (s == RKV_OK)
        rkvi_copy_out(&estimate_spec, &estimate, out_estimate);
    return rkvi_api_told(__func__, s);
}
