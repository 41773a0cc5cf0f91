/* step_cpu_rates.h: what the CPU's share is chosen by, measured on the machine.
 *
 * R and B' are taken together: threads compute over the cache's own tail memory,
 * whatever it holds, while copies from there into the ring keep the link busy; B
 * by the same copies before.  Between steps, with nothing in flight: the ring's
 * contents are lost.
 *
 *   link      | copies: B | copies .........: B' | stamp
 *   threads               | unit, unit, ....: R  | those that end behind the stamp don't count
 */
#ifndef RKVI_STEP_CPU_RATES_H
#define RKVI_STEP_CPU_RATES_H

#include "config.h"

/* Fills what is 0 in *rates (step_ns is left); site_bytes_per_s[site]: R in the
 * site's geometry, 0 where it has no tail.  With R given none is measured. */
rkv_status rkvi_step_cpu_measure(rkv_cache *h, rkvi_cpu_rates *rates, uint64_t *site_bytes_per_s);

#endif
