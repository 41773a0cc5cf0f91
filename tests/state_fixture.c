#include "state_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

fx_model fx_state_model(uint32_t residency, fx_executor executor, uint64_t seed)
{
    static const uint64_t budgets[4][4] = {
        {RKV_RESIDENT_NONE, RKV_RESIDENT_NONE, RKV_RESIDENT_NONE, RKV_RESIDENT_NONE},
        {RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL},
        {RKV_RESIDENT_NONE, RKV_RESIDENT_ALL, 48, 16},
        {16, 16, 16, 16},
    };
    static const rkv_type types[4][2] = {{RKV_TYPE_F16, RKV_TYPE_F16},
                                         {RKV_TYPE_Q8_0, RKV_TYPE_Q4_0},
                                         {RKV_TYPE_FP8_E4M3, RKV_TYPE_FP8_E4M3},
                                         {RKV_TYPE_BF16, RKV_TYPE_Q8_0}};
    fx_model m = fx_model_make(16, 0, 320);
    m.executor = executor;
    m.seed = seed;
    m.params.n_sequences = 3;
    m.params.max_rows = 64;
    for (uint32_t l = 0; l < 4; l++) {
        fx_add_layer(&m, 1 + l % 2, 64, l == 3 ? 32 : 64, budgets[residency][l]);
        m.layers[l].keep_all = 1; /* sequences are cut back anywhere */
        m.layers[l].type_k = types[l][0];
        m.layers[l].type_v = types[l][1];
    }
    m.layers[2].k_scale = 0.5f;
    m.sites[1].mask = RKV_MASK_SLIDING;
    m.sites[1].mask_width = 37;
    m.sites[3].mask = RKV_MASK_CHUNKED;
    m.sites[3].mask_width = 41;
    return m;
}

void fx_first_half(fx *w)
{
    fx_append(w, 0, 75, RKV_REGIME_PREFILL, 1000);
    fx_append(w, 1, 33, RKV_REGIME_PREFILL, 2000);
    for (uint32_t i = 0; i < 6; i++) {
        const fx_entry e[2] = {{.seq = 0, .rows = 3, .tag = 3000 + 3 * i},
                               {.seq = 1, .rows = 1, .tag = 4000 + i}};
        fx_step(w, e, 2);
    }
    fx_truncate(w, 1, 20); /* into a tile that was demoted, where there is a tail */
    fx_append(w, 1, 2, RKV_REGIME_DECODE, 4500);
}

int32_t fx_write_bytes(void *user, const void *data, uint64_t size_bytes)
{
    fx_bytes *b = user;
    if (b->stop_after && b->n + size_bytes > b->stop_after)
        return 7;
    if (b->n + size_bytes > b->room) {
        b->room = 2 * (b->n + size_bytes);
        b->at = realloc(b->at, b->room);
        assert_non_null(b->at);
    }
    memcpy(b->at + b->n, data, size_bytes);
    b->n += size_bytes;
    return 0;
}

int32_t fx_read_bytes(void *user, void *data, uint64_t size_bytes)
{
    fx_bytes *b = user;
    if (size_bytes > b->n - b->read || (b->stop_after && b->read + size_bytes > b->stop_after))
        return 7;
    memcpy(data, b->at + b->read, size_bytes);
    b->read += size_bytes;
    return 0;
}

void fx_bytes_free(fx_bytes *b)
{
    free(b->at);
    *b = (fx_bytes){0};
}

void fx_save(fx *w, uint32_t sequence, fx_bytes *out)
{
    uint64_t announced = 0;
    const rkv_state_params p = {
        .struct_size = sizeof p, .sequence = sequence, .write = fx_write_bytes, .user = out};
    *out = (fx_bytes){0};
    fx_ok(rkv_state_size(w->cache, sequence, &announced), "state_size");
    fx_ok(rkv_state_save(w->cache, &p), "save");
    assert_int_equal(out->n, announced);
}

rkv_status fx_load(fx *w, uint32_t sequence, fx_bytes *from, bool is_sized)
{
    const rkv_state_params p = {.struct_size = sizeof p,
                                .sequence = sequence,
                                .size_bytes = is_sized ? from->n : 0,
                                .read = fx_read_bytes,
                                .user = from};
    from->read = 0;
    return rkv_state_load(w->cache, &p);
}

void fx_copy_record(fx *to, uint32_t to_seq, const fx *from, uint32_t from_seq)
{
    to->n_cells[to_seq] = from->n_cells[from_seq];
    memcpy(to->cells[to_seq], from->cells[from_seq], from->n_cells[from_seq] * sizeof(fx_cell));
}
