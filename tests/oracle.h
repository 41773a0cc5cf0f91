/* SPDX-License-Identifier: MIT
 *
 * oracle.h: random operations on sequences, carried out on two caches and on a
 * plain record.
 *
 *   spilled    budgets, ring and executor by the seed
 *   resident   all on the device, on the host executor: the bits to compare with
 *   record     the fixture's: for every sequence, its cells' tags and positions,
 *              from which K and V follow; rows are compared with attention in
 *              f64 over it
 *
 * An operation is a function in a table (oracle_operations of oracle.c); a
 * feature adds its own there, or in a file of its own.  After each one the books
 * of both caches are looked through (oracle_books.c).
 *
 * A run is named by its seed alone: ROLLKV_TEST_SEED replays it.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "step_rows.h"

typedef struct oracle {
    fx spilled, resident;
    uint64_t random; /* state */
    uint64_t next_tag;
    fx_errors errors;
    uint64_t n_refused, n_steps, n_done, n_unseen, n_turned, n_no_place;
    bool is_rotated; /* K hold positions: rows of shifted cells are not compared with f64 */
    char last[96];   /* what was done last, for the message of a failure */
} oracle;

typedef struct oracle_operation {
    const char *name;
    uint32_t weight;
    void (*run)(oracle *o);
} oracle_operation;

uint32_t oracle_below(oracle *o, uint32_t n);
/* A sequence with cells; false: there is none. */
bool oracle_any_filled(oracle *o, uint32_t *out_seq);
/* A position in a sequence, or a little beyond its end. */
int64_t oracle_any_position(oracle *o, uint32_t seq);
/* The same in both caches and in the record; each asserts that both agree. */
void oracle_remove(oracle *o, uint32_t seq, int64_t from, int64_t to);
void oracle_append_from(oracle *o, uint32_t dst, uint32_t src, int64_t from, int64_t to);

/* A begin or fetch found no device place: true, and all sequences but one are parked.
 * Fails the test where no more than active_sequences were not. */
bool oracle_lacks_places(oracle *o, rkv_status s, const fx_entry *entries, uint32_t n);

/* Operations of oracle_more.c. */
void oracle_shift(oracle *o);
void oracle_tree(oracle *o);
void oracle_state(oracle *o);
void oracle_state_all(oracle *o);
void oracle_import(oracle *o);

/* n random operations of the table with this seed. */
void oracle_run(uint64_t seed, fx_executor executor, uint32_t n);

/* The books of a cache between steps: references, places, states, segments,
 * what the API says of sequences, against each other and the record. */
void oracle_check_books(fx *w, const char *what);

#endif
