/* SPDX-License-Identifier: MIT
 *
 * fault_scripts.c: see fault_scripts.h.
 */
#include "fault_scripts.h"

#include "rollkv/cells.h"
#include "state_fixture.h"
#include "state_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16, LAYERS = 2 };

bool (*fs_failed)(rkv_status s);

fx_model fs_model(void)
{
    static const float frequencies[4] = {1, 0.5f, 0.25f, 0.125f};
    fx_model m = fx_model_make(T, 0, 40 * T);
    fx_add_layer(&m, 2, 64, 64, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 1, 64, 64, 3 * T);
    m.layers[1].type_k = RKV_TYPE_Q8_0;
    m.layers[1].type_v = RKV_TYPE_Q4_0;
    m.params.n_sequences = 4;
    m.params.max_rows = 48;
    m.params.draft_rows = 4;
    m.params.ring_bytes = 64 << 10;
    m.params.rope = (rkv_rope_params){.frequencies = frequencies, .n_frequencies = 4};
    return m;
}

static void step(fx *w, const fx_entry *e, uint32_t n)
{
    for (bool repeat = true; repeat;) {
        RETRY(fx_begin(w, e, n));
        repeat = false;
        for (uint32_t s = 0; s < LAYERS && !repeat; s++)
            repeat = fs_failed(fx_attend(w, s));
        repeat = repeat || fs_failed(fx_end(w, NULL, 0));
        if (repeat)
            RETRY(fx_abort(w));
    }
    RETRY(fx_sync(w));
}

void fs_append(fx *w, uint32_t q, uint32_t rows, uint32_t regime, uint64_t tag)
{
    const fx_entry e = {.seq = q, .rows = rows, .regime = regime, .tag = tag};
    step(w, &e, 1);
}

static void decode(fx *w, uint32_t steps, uint64_t tag)
{
    for (uint32_t i = 0; i < steps; i++) {
        const fx_entry e[2] = {{.seq = 0, .rows = 1 + i % 3, .tag = tag + 10 * i},
                               {.seq = 1, .rows = 1, .tag = tag + 5000 + i}};
        step(w, e, 2);
    }
}

/* In steps. */
static void grow(fx *w)
{
    fs_append(w, 0, 48, RKV_REGIME_PREFILL, 100);
    fs_append(w, 1, 37, RKV_REGIME_PREFILL, 200);
    decode(w, 10, 1000);
    const int64_t from = w->cells[0][40].pos;
    RETRY(rkv_sequence_remove(w->cache, 0, from, RKV_POS_END));
    fx_truncate(w, 0, 40);
    decode(w, 6, 2000); /* brings a tile back */
}

/* Sequences that share, are cut, shifted, parked. */
static void share(fx *w)
{
    fs_append(w, 0, 45, RKV_REGIME_PREFILL, 100);
    RETRY(rkv_sequence_append_from(w->cache, 1, 0, 0, 29));
    fx_note_append_from(w, 1, 0, 0, 29);
    fs_append(w, 1, 3, RKV_REGIME_DECODE, 3000); /* copies the shared tile */
    RETRY(rkv_sequence_shift(w->cache, 0, 20, RKV_POS_END, 7));
    RETRY(rkv_sequence_shift(w->cache, 0, 27, RKV_POS_END, -7));
    RETRY(rkv_sequence_park(w->cache, 0));
    RETRY(rkv_sequence_fetch(w->cache, 0));
    fs_append(w, 0, 2, RKV_REGIME_DECODE, 4000);
    RETRY(rkv_sequence_append_from(w->cache, 2, 0, 0, 40));
    for (int64_t at = 3; at < 36; at += 6)
        RETRY(rkv_sequence_remove(w->cache, 2, at, at + 4));
    RETRY(rkv_sequence_compact(w->cache, 2));
    RETRY(rkv_cache_set_residency(w->cache, 1, T));
    RETRY(rkv_cache_set_residency(w->cache, 1, 20 * T));
    decode(w, 3, 5000);
    RETRY(rkv_sequence_clear(w->cache, 2));
}

static void drafts(fx *w)
{
    static const int64_t pos[3] = {30, 31, 31};
    static const uint64_t tree[3] = {1, 3, 5};
    static const uint32_t taken[2] = {0, 2};
    const fx_entry e = {.rows = 3, .tag = 700, .positions = pos, .tree_mask = tree};
    fs_append(w, 0, 30, RKV_REGIME_PREFILL, 100);
    step(w, &e, 1);
    RETRY(rkv_sequence_accept(w->cache, 0, taken, 2, w->stream));
    w->cells[0][30] = (fx_cell){700, 30};
    w->cells[0][31] = (fx_cell){702, 31};
    w->n_cells[0] = 32;
    decode(w, 2, 800);
}

typedef struct text {
    uint8_t at[1 << 17];
    uint64_t n, read;
} text;

static int32_t write_text(void *user, const void *data, uint64_t bytes)
{
    text *t = user;
    if (t->n + bytes > sizeof t->at)
        return 1;
    memcpy(t->at + t->n, data, bytes);
    t->n += bytes;
    return 0;
}

static int32_t read_text(void *user, void *data, uint64_t bytes)
{
    text *t = user;
    if (t->read + bytes > t->n)
        return 1;
    memcpy(data, t->at + t->read, bytes);
    t->read += bytes;
    return 0;
}

static rkv_status save(fx *w, text *t)
{
    const rkv_state_params p = {.struct_size = sizeof p, .write = write_text, .user = t};
    t->n = 0;
    return rkv_state_save(w->cache, &p);
}

static rkv_status load(fx *w, text *t, uint32_t q)
{
    const rkv_state_params p = {.struct_size = sizeof p, .sequence = q, .read = read_text, .user = t,
                                .size_bytes = t->n};
    t->read = 0;
    return rkv_state_load(w->cache, &p);
}

static void states(fx *w)
{
    static text t;
    fs_append(w, 0, 40, RKV_REGIME_PREFILL, 100);
    fs_append(w, 0, 9, RKV_REGIME_DECODE, 300);
    fs_append(w, 1, 5, RKV_REGIME_DECODE, 400);
    if (rkvi_state_hash_built() != RKV_OK)
        return;
    RETRY(save(w, &t));
    RETRY(load(w, &t, 1));
    fx_copy_record(w, 1, w, 0);
    decode(w, 2, 600);
}

static void cells(fx *w)
{
    static uint8_t k[LAYERS][32 * 512], v[LAYERS][32 * 512];
    const rkv_pos_range all = {0, RKV_POS_END};
    rkv_cells c[LAYERS];
    fs_append(w, 0, 30, RKV_REGIME_PREFILL, 100);
    for (uint32_t l = 0; l < LAYERS; l++) {
        c[l] = (rkv_cells){.struct_size = sizeof *c, .kv_layer = l, .form = RKV_CELLS_STORED, .n_cells = 30};
        c[l].k.data = k[l];
        c[l].v.data = v[l];
        RETRY(rkv_export_cells(w->cache, 0, &all, &c[l], w->stream));
    }
    for (bool repeat = true; repeat;) {
        RETRY(rkv_import_begin(w->cache, 1, 30, NULL));
        repeat = false;
        for (uint32_t l = 0; l < LAYERS && !repeat; l++)
            repeat = fs_failed(rkv_import_cells(w->cache, &c[l], w->stream));
        if (repeat)
            fx_ok(rkv_import_abort(w->cache), "import_abort");
    }
    fx_ok(rkv_import_end(w->cache), "import_end");
    fx_copy_record(w, 1, w, 0);
    decode(w, 2, 600);
}

const fs_script fs_scripts[FS_SCRIPTS] = {grow, share, drafts, states, cells};
