/* state_hash.h: the checksum of states: XXH3, 64 bits. */
#ifndef RKVI_STATE_HASH_H
#define RKVI_STATE_HASH_H

#include "diag.h"

#include <stdbool.h>

/* RKV_OK, or RKV_E_UNSUPPORTED in a build without libxxhash. */
rkv_status rkvi_state_hash_built(void);
uint64_t rkvi_state_hash(const void *data, uint64_t bytes, uint64_t seed);

#endif
