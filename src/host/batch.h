/* batch.h: a step's batch, checked and resolved by api: regimes chosen,
 * positions filled in.  Rows of all entries lie one after another. */
#ifndef RKVI_BATCH_H
#define RKVI_BATCH_H

#include "ops.h"

typedef struct rkvi_batch_entry {
    uint32_t sequence;
    uint32_t row0;   /* first row in rows[] */
    uint32_t n_rows;
    uint32_t n_new;  /* 0 or n_rows */
    bool is_prefill; /* regime */
} rkvi_batch_entry;

typedef struct rkvi_batch {
    rkvi_batch_entry *entries; /* room for n_sequences */
    rkvi_row *rows;            /* room for max_rows */
    uint32_t n_entries;
    uint32_t n_rows;
} rkvi_batch;

#endif
