/* SPDX-License-Identifier: MIT
 *
 * config_estimate.h: what a cache would take, from the sizes it would be made with.
 */
#ifndef RKVI_CONFIG_ESTIMATE_H
#define RKVI_CONFIG_ESTIMATE_H

#include "config_internal.h"

/* Allocates nothing that outlives the call; *out is complete on success. */
rkv_status rkvi_config_estimate(const rkv_cache_params *params, const rkvi_machine *machine,
                                rkv_estimate *out);

#endif
