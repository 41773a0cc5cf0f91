/* SPDX-License-Identifier: MIT
 *
 * Where attention looks: the library's profile of the decoded tokens, and what it advises.
 */
#ifndef WHERE_H
#define WHERE_H

#include <rollkv/rollkv.h>
#include <stdio.h>

#include "gen_error.h"

int where_start(rkv_cache *cache, struct gen_error *err);
/* A line per KV layer; advice is for device memory that holds a quarter of K and V. */
int where_print(rkv_cache *cache, uint64_t context_cells, FILE *out, struct gen_error *err);

#endif
