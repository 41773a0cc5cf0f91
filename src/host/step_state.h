/* step_state.h: saving and loading, between steps. */
#ifndef RKVI_STEP_STATE_H
#define RKVI_STEP_STATE_H

#include "rollkv/state.h"
#include "step.h"

/* Checked by api: the sequence exists or is RKV_STATE_ALL, the function that is
 * needed is there, no step is open. */
rkv_status rkvi_state_size(rkv_cache *h, uint32_t sequence, uint64_t *out_bytes);
rkv_status rkvi_state_save(rkv_cache *h, const rkv_state_params *p);
rkv_status rkvi_state_load(rkv_cache *h, const rkv_state_params *p);

#endif
