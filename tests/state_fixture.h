/* SPDX-License-Identifier: MIT
 *
 * state_fixture.h: states in memory, and models to save and load.
 */
#ifndef STATE_FIXTURE_H
#define STATE_FIXTURE_H

#include "rollkv/state.h"
#include "step_fixture.h"

typedef struct fx_bytes {
    uint8_t *at;
    uint64_t n, room;
    uint64_t read;       /* so far */
    uint64_t stop_after; /* the function gives 7 from this byte on; 0: never */
} fx_bytes;

/* Four KV layers of unlike types and budgets (residency 0 to 3: none, all,
 * mixed, one tile), with a sliding and a chunked mask. */
fx_model fx_state_model(uint32_t residency, fx_executor executor, uint64_t seed);

/* Steps of all kinds, of sequences 0 and 1; the last one ends in the middle of a tile. */
void fx_first_half(fx *w);

int32_t fx_write_bytes(void *user, const void *data, uint64_t size_bytes);
int32_t fx_read_bytes(void *user, void *data, uint64_t size_bytes);
void fx_bytes_free(fx_bytes *b);

/* Saves; the size is that which was announced. */
void fx_save(fx *w, uint32_t sequence, fx_bytes *out);
/* Loads with the size known, or (is_sized false) unknown. */
rkv_status fx_load(fx *w, uint32_t sequence, fx_bytes *from, bool is_sized);
/* The record of `from`'s sequence becomes that of `to`'s. */
void fx_copy_record(fx *to, uint32_t to_seq, const fx *from, uint32_t from_seq);

#endif
