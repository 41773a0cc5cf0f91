/* SPDX-License-Identifier: MIT
 *
 * config_cpu.c: the CPU's share of the tail.
 *
 * The link can run ahead of a step, the CPU can't: it waits for q.  With C the
 * compute of a step, L its tail, B and R the rates of link and CPU, and the
 * share x on the CPU, a step takes
 *
 *   T(x) = max(C + x L / R, (1 - x) L / B)
 *
 * whose two lines meet at x = (1/B - C/L) / (1/R + 1/B), below 0 where the tail
 * is hidden anyway.
 */
#include "config_layers.h"

#include "diag.h"

#define CPU_THREADS_MAX 1024u
#define CPU_WAIT_NS 250000000u
#define CPU_LEAST_BYTES ((uint64_t)4 << 20) /* what crosses while a hand-over takes its 50 us or so */

double rkvi_config_cpu_step_s(double x, double compute_s, double bytes, double link_bytes_per_s, double cpu_bytes_per_s)
{
    const double by_cpu = compute_s + x * bytes / cpu_bytes_per_s, by_link = (1 - x) * bytes / link_bytes_per_s;
    return by_cpu > by_link ? by_cpu : by_link;
}

uint32_t rkvi_config_cpu_best(double compute_s, double bytes, double link_bytes_per_s, double cpu_bytes_per_s)
{
    uint32_t best = 0;
    double least = rkvi_config_cpu_step_s(0, compute_s, bytes, link_bytes_per_s, cpu_bytes_per_s);
    for (uint32_t x = 1; x < RKVI_CPU_PARTS; x++) {
        const double t = rkvi_config_cpu_step_s((double)x / RKVI_CPU_PARTS, compute_s, bytes, link_bytes_per_s,
                                                cpu_bytes_per_s);
        if (t < least) {
            least = t;
            best = x;
        }
    }
    return best;
}

rkv_status rkvi_config_take_cpu(rkvi_config *cfg, const rkv_cache_params *p)
{
    cfg->cpu_threads = p->cpu_threads;
    cfg->cpu_share = p->cpu_share;
    cfg->cpu_bytes_per_s = p->cpu_bytes_per_s;
    cfg->cpu_wait_ns = p->cpu_wait_ns ? p->cpu_wait_ns : CPU_WAIT_NS;
    if (p->cpu_threads > CPU_THREADS_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "cpu_threads is %u; it must be from 0 (no share for the CPU) to %u",
                         p->cpu_threads, CPU_THREADS_MAX);
    if (p->cpu_share >= RKVI_CPU_PARTS)
        return rkvi_fail(RKV_E_ARGUMENT, "cpu_share is %u; it counts sixteenths of the tail, from 0 to %u", p->cpu_share,
                         RKVI_CPU_PARTS - 1);
    if (p->cpu_threads == 0 && (p->cpu_share || p->cpu_bytes_per_s || p->cpu_wait_ns))
        return rkvi_fail(RKV_E_ARGUMENT, "cpu_share, cpu_bytes_per_s or cpu_wait_ns is given, and no cpu_threads to compute it");
    if (p->cpu_threads && !p->cpu_share && !p->cpu_bytes_per_s)
        return rkvi_fail(RKV_E_ARGUMENT, "cpu_threads is %u: give cpu_share too, or cpu_bytes_per_s to choose it by",
                         p->cpu_threads);
    if (p->cpu_threads && p->mode == RKV_MODE_OP_LEVEL)
        return rkvi_fail(RKV_E_UNSUPPORTED, "cpu_threads with RKV_MODE_OP_LEVEL: the CPU's share needs the ring");
    const rkv_status s = rkvi_check_size("cpu_wait_ns", p->cpu_wait_ns);
    return s == RKV_OK ? rkvi_check_size("cpu_bytes_per_s", p->cpu_bytes_per_s) : s;
}

void rkvi_config_set_cpu(rkvi_config *cfg)
{
    if (cfg->cpu_threads == 0 || cfg->cpu_share)
        return;
    cfg->cpu_least_bytes = CPU_LEAST_BYTES;
    if (cfg->link_bytes_per_s)
        cfg->cpu_share = rkvi_config_cpu_best((double)cfg->step_ns * 1e-9, (double)cfg->host_tail_bytes,
                                              (double)cfg->link_bytes_per_s, (double)cfg->cpu_bytes_per_s);
}
