/* step_profile.h: profiling of steps.
 *
 * A profiled step is planned with work items as short as there is room for.
 * After each launch of decode items, m and l of their partials are copied to
 * staging memory on the step's own stream, and a host call there takes them
 * over, before a merge or the next launch writes those partials again.  So one
 * staging buffer is enough, and no kernel knows of it. */
#ifndef RKVI_STEP_PROFILE_H
#define RKVI_STEP_PROFILE_H

#include "profile_mass.h"
#include "step_types.h"

/* Between steps. */
rkv_status rkvi_profile_start(rkv_cache *h, uint32_t every);
rkv_status rkvi_profile_stop(rkv_cache *h);
bool rkvi_profile_runs(const rkv_cache *h);
/* Waits for profiled steps; NULL: there was no profile. */
rkv_status rkvi_profile_sums(rkv_cache *h, const rkvi_profile **out);
/* The handle goes; all work is over. */
void rkvi_profile_drop(rkv_cache *h);

/* For step: is this step profiled?  Called by begin. */
bool rkvi_profile_wants(const rkv_cache *h);
/* It is, and is planned: room for its host calls. */
rkv_status rkvi_profile_begin(rkv_cache *h);
/* Decode items of a round were enqueued (rounds of all launches of the site counted on); the last merge is next. */
rkv_status rkvi_profile_launch(rkv_cache *h, const rkvi_site_call *c, uint32_t round);
rkv_status rkvi_profile_output(rkv_cache *h, const rkvi_site_call *c);

#endif
