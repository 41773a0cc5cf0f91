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
    bool is_tree;    /* its new cells are a token tree */
} rkvi_batch_entry;

typedef struct rkvi_batch {
    rkvi_batch_entry *entries; /* room for n_sequences */
    rkvi_row *rows;            /* room for max_rows */
    rkvi_row *stored;          /* of token trees: the positions that cells are stored at; they begin one
                                * behind the sequence's end, so as to have segments of their own */
    uint64_t *masks;           /* of token trees: the new cells that a row sees */
    uint32_t n_entries;
    uint32_t n_rows;
    uint32_t most_rows; /* of an entry */
} rkvi_batch;

/* The entry's rows as its cells are stored. */
static inline const rkvi_row *rkvi_batch_stored(const rkvi_batch *b, const rkvi_batch_entry *e)
{
    return (e->is_tree ? b->stored : b->rows) + e->row0;
}

/* `to` has room for as much. */
void rkvi_batch_copy(rkvi_batch *to, const rkvi_batch *from);
/* Tells whether two batches are alike enough for a prediction to hold. */
uint64_t rkvi_batch_print(const rkvi_batch *b);

#endif
