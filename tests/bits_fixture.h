/* bits_fixture.h: the same text of q, k, v decoded through differently set-up
 * caches; outputs are kept by sequence and row, to be compared by memcmp. */
#ifndef BITS_FIXTURE_H
#define BITS_FIXTURE_H

#include "device.h"
#include "rollkv/rollkv.h"

#include <stdbool.h>

#define BITS_SEQS 3u
#define BITS_LAYERS 4u
#define BITS_SITES 5u
#define BITS_OUT_MAX (8u * 192u)

typedef enum { BITS_PREFILL, BITS_DECODE, BITS_ROLLBACK, BITS_CLEAR } bits_kind;

/* What happens to a sequence, one after another. */
typedef struct bits_op {
    bits_kind kind;
    uint32_t n; /* rows; for a roll-back: cells to remove */
} bits_op;

typedef struct bits_text {
    rkv_type type_k, type_v;
    uint32_t tile_cells;
    uint32_t head_dim; /* of the wide layers */
    uint32_t other_dk, other_dv; /* of layer 1 */
    bits_op ops[BITS_SEQS][12];
    uint32_t n_ops[BITS_SEQS];
    uint32_t n_rows[BITS_SEQS]; /* in all: outputs kept */
    uint32_t max_cells;         /* that all sequences hold at once */
    uint64_t seed;
} bits_text;

/* The CUDA ones are there in builds with RKVI_HAVE_CUDA; q, k, v, out then lie
 * in device memory, and the stream has random delays. */
typedef enum { BITS_HOST, BITS_SIM, BITS_CHECK, BITS_CUDA } bits_executor;

/* How it is run.  Nothing here may change a bit. */
typedef struct bits_setup {
    bits_executor executor;
    uint64_t seed;          /* schedule: batches, chunks, executor's order */
    uint64_t resident[BITS_LAYERS];
    uint64_t ring_bytes, copy_bytes;
    uint32_t flags, mode, draft_rows, steps_ahead, max_rows;
    uint32_t target_runs;   /* 0: as the library chooses */
    bool aborts;            /* some steps are begun, partly run, aborted, begun again */
    bool rare_sync;         /* the host runs ahead of the executor */
    const char *kernels;    /* NULL: the best */
} bits_setup;

typedef struct bits_result {
    float *out[BITS_SEQS]; /* [row][site][BITS_OUT_MAX + heads] */
    rkv_cache_stats stats;
    rkv_kv_layer_info layers[BITS_LAYERS];
    uint64_t reports;      /* of device_check */
    char report[400];
} bits_result;

void bits_text_make(bits_text *t, uint64_t seed, rkv_type k, rkv_type v, uint32_t tile_cells);
/* Parameters of the text's model; setup may be NULL (all resident). */
void bits_params(const bits_text *t, const bits_setup *s, rkv_cache_params *p);
rkv_status bits_run(const bits_text *t, const bits_setup *s, bits_result *r);
void bits_result_free(bits_result *r);
/* Index of the first differing float, or SIZE_MAX; *seq, *row, *site where. */
bool bits_same(const bits_text *t, const bits_result *a, const bits_result *b, char *where, size_t where_bytes);
void bits_setup_print(const bits_setup *s, char *text, size_t bytes);

/* splitmix64 */
uint64_t bits_random(uint64_t *state);

/* q, k, v of a row, the same for every run. */
void bits_values(const bits_text *t, uint32_t seq, uint32_t row, uint32_t site, char what, uint32_t n, float *out);
uint32_t bits_q_heads(uint32_t site);

#endif
