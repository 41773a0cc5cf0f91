/* profile_advise.h: budgets from memory, link and mass.  Pure. */
#ifndef RKVI_PROFILE_ADVISE_H
#define RKVI_PROFILE_ADVISE_H

#include "profile_mass.h"

/* `p` may be NULL: no profile.  Fills n_layers items. */
rkv_status rkvi_advise(const rkvi_config *cfg, const rkvi_profile *p, const rkv_advise_params *want,
                       rkv_advice *out, rkv_advice_sum *sum);

#endif
