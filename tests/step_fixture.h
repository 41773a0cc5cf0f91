/* SPDX-License-Identifier: MIT
 *
 * step_fixture.h: a cache driven step by step, with a record of what each
 * sequence holds.
 *
 * A cell's K and V, and a row's q, follow from a 64-bit tag, so a sequence is a
 * list of (tag, position), and a fresh cache can be fed the same text.  All
 * values are multiples of 1/64 below 2: exact in f32, f16 and bf16.
 */
#ifndef STEP_FIXTURE_H
#define STEP_FIXTURE_H

#include "device_core.h"
#include "rollkv/host.h"

#include <stdbool.h>

#define FX_SEQS 104u
#define FX_LAYERS 4u
#define FX_SITES 5u
#define FX_ROWS 1024u /* of a step */

/* FX_GPU: all of them, after fx_use_gpu. */
typedef enum { FX_HOST, FX_SIM, FX_CHECK, FX_GPU } fx_executor;

/* params.kv_layers, sites and their numbers are filled in by fx_open. */
typedef struct fx_model {
    rkv_kv_layer_params layers[FX_LAYERS];
    rkv_site_params sites[FX_SITES];
    bool sinks[FX_SITES];
    uint32_t n_layers, n_sites;
    rkv_cache_params params;
    fx_executor executor;
    uint64_t seed;      /* of the executor's order or delays */
    int64_t delay_ns;   /* FX_HOST: up to so long before each operation; FX_GPU: before attends */
    uint32_t n_workers; /* FX_HOST; 0: 1 */
    rkvi_device_limits limits;
} fx_model;

/* What a GPU has of its own. */
typedef struct fx_gpu_calls {
    /* Skips the test where the build has no kernels for the model. */
    rkvi_device *(*open)(const fx_model *m);
    uint64_t (*copied_bytes)(const rkvi_device *d, rkvi_direction direction);
    /* Pinned memory, which host code and kernels both can use. */
    void *(*alloc)(size_t bytes);
    void (*release)(void *p);
    void *(*engine_stream)(void); /* in turn one of its own and the legacy one */
    bool is_fake; /* tests/fake_cuda: no GPU, and slow */
} fx_gpu_calls;

/* NULL: executors on the host.  fx_use_gpu (step_cuda.c) sets it, for the whole
 * program, whatever models ask for; without a GPU it ends the program with 77. */
extern const fx_gpu_calls *fx_gpu;
void fx_use_gpu(void);

typedef struct fx_cell {
    uint64_t tag;
    int64_t pos;
} fx_cell;

typedef struct fx_entry {
    uint32_t seq, rows;
    bool is_query;   /* no new cells */
    uint32_t regime;
    uint64_t tag;    /* of row 0; the others follow by one */
    const int64_t *positions;
    const rkv_pos_range *visible;
    const uint64_t *tree_mask;
} fx_entry;

/* A tensor of rows x heads x dim, dense or head-major with gaps. */
typedef struct fx_tensor {
    unsigned char *bytes;
    uint64_t size_bytes;
    rkv_tensor t;
    uint32_t rows, heads, dim;
} fx_tensor;

typedef struct fx {
    fx_model model;
    rkv_cache *cache;
    rkvi_device *dev, *core; /* core: below a checker */
    uint64_t copied_bytes[3]; /* when fx_open had ended, by direction */
    rkv_type tensor_type;    /* 0: f32 */
    bool is_strided;
    bool is_fixed; /* tensors stay where they are while the number of rows does */
    void *stream;
    fx_cell *cells[FX_SEQS];
    uint64_t n_cells[FX_SEQS];
    /* the step, begun or ended */
    fx_entry entries[FX_SEQS];
    uint32_t n_entries, n_rows;
    int64_t row_pos[FX_ROWS];
    rkv_pos_range row_visible[FX_ROWS];
    fx_tensor q[FX_SITES], k[FX_SITES], v[FX_SITES], out[FX_SITES];
    float *lse[FX_SITES], *site_sinks[FX_SITES];
    /* buffers that work in flight may still touch */
    void **old;
    uint32_t n_old;
} fx;

/* T cells a tile, one f16 KV layer with one site: to be changed before fx_open. */
fx_model fx_model_make(uint32_t tile_cells, uint32_t head_dim, uint64_t capacity_cells);
/* Adds a KV layer with a site, or (layer given) another site of it. */
uint32_t fx_add_layer(fx_model *m, uint32_t kv_heads, uint32_t dk, uint32_t dv, uint64_t resident_cells);
uint32_t fx_add_site(fx_model *m, uint32_t layer, uint32_t q_heads);
/* One with a KV head, of unequal head dims (that GPUs have kernels for). */
uint32_t fx_add_unequal(fx_model *m, uint64_t resident_cells);

/* Fails the test when the cache can't be made; status version below. */
void fx_open(fx *w, const fx_model *m);
rkv_status fx_try_open(fx *w, const fx_model *m);
/* Destroys the cache; fails the test when a checker has reports. */
void fx_close(fx *w);

/* One step, as calls.  A status is returned as it comes. */
rkv_status fx_begin(fx *w, const fx_entry *entries, uint32_t n);
rkv_status fx_attend(fx *w, uint32_t site);
void fx_fill(fx *w); /* fixed tensors, of the step that is begun */
rkv_status fx_end(fx *w, const fx_entry *next, uint32_t n_next);
rkv_status fx_abort(fx *w);
rkv_status fx_sync(fx *w); /* the results may be read */
/* The whole step: what begin says; fails the test when another call fails. */
rkv_status fx_try_step(fx *w, const fx_entry *entries, uint32_t n);
/* What rkv_cache_check says to it. */
rkv_status fx_check(fx *w, const fx_entry *entries, uint32_t n);
/* The whole step; fails the test when a call fails. */
void fx_step(fx *w, const fx_entry *entries, uint32_t n);
/* rows cells of a sequence in one step. */
void fx_append(fx *w, uint32_t seq, uint32_t rows, uint32_t regime, uint64_t tag);
/* Sequence calls, with the record kept. */
void fx_truncate(fx *w, uint32_t seq, uint64_t n_cells);
void fx_clear(fx *w, uint32_t seq);
void fx_keep(fx *w, uint32_t seq);
void fx_remove(fx *w, uint32_t seq, int64_t from, int64_t to);
void fx_append_from(fx *w, uint32_t dst, uint32_t src, int64_t from, int64_t to);
void fx_note_append_from(fx *w, uint32_t dst, uint32_t src, int64_t from, int64_t to); /* in the record alone */
void fx_park(fx *w, uint32_t seq);
void fx_fetch(fx *w, uint32_t seq);

rkv_cache_stats fx_stats(const fx *w);
rkv_kv_layer_info fx_layer(const fx *w, uint32_t layer);
/* Since fx_open, all that crossed the link or was copied on the device. */
uint64_t fx_copied(const fx *w, rkvi_direction direction);
/* Device memory: itself, or in `buffer` of so many bytes, all at rest. */
const void *fx_device_bytes(const fx *w, uint64_t addr, uint64_t bytes, void *buffer);
/* Fails the test with the library's sentence. */
void fx_ok(rkv_status s, const char *what);
/* All of the device's memory, streams and events were given back. */
void fx_nothing_left(rkvi_device *core);

/* Clears all; then no place and no tile is in use. */
void fx_check_empty(fx *w);
/* Outputs and lse of the last step are the same bytes. */
bool fx_same(const fx *a, const fx *b);
/* A fresh cache with everything resident, fed the text of `w`'s sequence; both
 * are asked by `rows` query rows and must answer with the same bits. */
void fx_compare_fresh(fx *w, uint32_t seq, uint32_t rows);

void fx_values(uint64_t tag, uint32_t layer, char what, uint32_t n, float *out);
float fx_out(const fx *w, uint32_t site, uint32_t row, uint32_t head, uint32_t i);
/* splitmix64 */
uint64_t fx_random(uint64_t *state);
uint64_t fx_seed(void); /* ROLLKV_TEST_SEED or 1; printed */
bool fx_is_full(void);  /* ROLLKV_TEST_FULL */

#endif
