/* SPDX-License-Identifier: MIT
 *
 * api_cpu.c: the exported function that fixes the CPU's share.
 */
#include "api_internal.h"

#include "diag.h"

static const rkvi_copy_spec spec = {"rkv_cpu_share_params", sizeof(rkv_cpu_share_params),
                                    offsetof(rkv_cpu_share_params, site_shares)};

static rkv_status check_share(const rkvi_config *cfg, const rkv_cpu_share_params *p)
{
    const bool has_rates =
        p->step_ns || p->link_bytes_per_s || p->beside_bytes_per_s || p->cpu_bytes_per_s || p->handover_ns;
    if (p->share && p->share != RKV_CPU_SHARE_NONE && p->share >= RKVI_CPU_PARTS)
        return rkvi_fail(RKV_E_ARGUMENT, "share is %u; it counts sixteenths of the tail, from 0 to %u, or is "
                         "RKV_CPU_SHARE_NONE", p->share, RKVI_CPU_PARTS - 1);
    for (uint32_t i = 0; p->site_shares && i < cfg->n_sites; i++)
        if (p->site_shares[i] >= RKVI_CPU_PARTS)
            return rkvi_fail(RKV_E_ARGUMENT, "site_shares[%u] is %u; it counts sixteenths of the site's tail, from 0 "
                             "to %u", i, p->site_shares[i], RKVI_CPU_PARTS - 1);
    if ((p->share && p->site_shares) || ((p->share || p->site_shares) && has_rates))
        return rkvi_fail(RKV_E_ARGUMENT, "share, site_shares and what a share is chosen by exclude each other");
    if (p->free_bytes && !p->share && !p->site_shares)
        return rkvi_fail(RKV_E_ARGUMENT, "free_bytes is given, and no share or site_shares that it goes with");
    return RKV_OK;
}

static rkv_status check_sizes(const rkv_cpu_share_params *p)
{
    const uint64_t sizes[] = {p->free_bytes, p->step_ns, p->link_bytes_per_s, p->beside_bytes_per_s,
                              p->cpu_bytes_per_s, p->handover_ns};
    static const char *const names[] = {"free_bytes", "step_ns", "link_bytes_per_s", "beside_bytes_per_s",
                                        "cpu_bytes_per_s", "handover_ns"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > RKVI_SIZE_MAX)
            return rkvi_fail(RKV_E_OVERFLOW, "%s is %llu, which is above 2^62", names[i], (unsigned long long)sizes[i]);
    return RKV_OK;
}

static rkvi_cpu_wish wish_of(const rkv_cpu_share_params *p)
{
    return (rkvi_cpu_wish){.is_chosen = !p->share && !p->site_shares,
                           .has_share = (p->share && p->share != RKV_CPU_SHARE_NONE) || p->site_shares,
                           .share = p->share == RKV_CPU_SHARE_NONE ? 0 : p->share,
                           .site_shares = p->site_shares,
                           .free_bytes = p->free_bytes,
                           .rates = {.step_ns = p->step_ns,
                                     .link_bytes_per_s = p->link_bytes_per_s,
                                     .beside_bytes_per_s = p->beside_bytes_per_s,
                                     .cpu_bytes_per_s = p->cpu_bytes_per_s,
                                     .handover_ns = p->handover_ns}};
}

static rkv_status set_cpu_share(rkv_cache *cache, const rkv_cpu_share_params *params)
{
    rkv_cpu_share_params p = RKV_CPU_SHARE_PARAMS_INIT;
    rkv_status s = params ? rkvi_copy_in(&spec, params, &p) : RKV_OK;
    if (s == RKV_OK && rkvi_handle_config(cache)->cpu_threads == 0)
        return rkvi_fail(RKV_E_UNSUPPORTED,
                         "the cache was made without cpu_threads, so the CPU has no share; create it "
                         "with the threads that may compute");
    if (s == RKV_OK)
        s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK)
        s = check_share(rkvi_handle_config(cache), &p);
    if (s == RKV_OK)
        s = check_sizes(&p);
    if (s != RKV_OK)
        return s;
    const rkvi_cpu_wish wish = wish_of(&p);
    return rkvi_handle_set_cpu_share(cache, &wish);
}

rkv_status rkv_cache_set_cpu_share(rkv_cache *cache, const rkv_cpu_share_params *params)
{
    const rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    return rkvi_api_leave(cache, __func__, set_cpu_share(cache, params));
}
