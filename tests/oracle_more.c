/* SPDX-License-Identifier: MIT
 *
 * oracle_more.c: operations of the oracle that give cells other positions or
 * other tiles: shifts, token trees, states, cells taken out and put in.
 */
#include "oracle.h"
#include "state_fixture.h"

#include "rollkv/cells.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t end_of(const oracle *o, uint32_t seq)
{
    const uint64_t n = o->spilled.n_cells[seq];
    return n ? o->spilled.cells[seq][n - 1].pos + 1 : 0;
}

/* ------------------------------------------------------------------- shifts */

/* can_shift foretells shift; both caches say the same. */
void oracle_shift(oracle *o)
{
    uint32_t seq;
    if (!oracle_any_filled(o, &seq))
        return;
    const int64_t from = oracle_any_position(o, seq);
    const int64_t to = oracle_below(o, 2) ? RKV_POS_END : from + oracle_below(o, 60);
    const int64_t delta = (int64_t)oracle_below(o, 60) - 25;
    fx *both[2] = {&o->spilled, &o->resident};
    const rkv_status want = rkv_sequence_can_shift(o->spilled.cache, seq, from, to, delta);
    snprintf(o->last, sizeof o->last, "shift(%u, %lld, %lld, %lld): %d", seq, (long long)from, (long long)to,
             (long long)delta, want);
    for (uint32_t i = 0; i < 2; i++) {
        fx *w = both[i];
        assert_int_equal(rkv_sequence_shift(w->cache, seq, from, to, delta), want);
        for (uint64_t k = 0; k < w->n_cells[seq] && want == RKV_OK; k++)
            if (w->cells[seq][k].pos >= from && w->cells[seq][k].pos < to)
                w->cells[seq][k].pos += delta;
    }
    assert_true(want == RKV_OK || want == RKV_E_ARGUMENT || want == RKV_E_CAPACITY || want == RKV_E_SEQUENCE);
}

/* -------------------------------------------------------------------- trees */

/* A tree's step, alone or beside another row, then some of its cells accepted. */
void oracle_tree(oracle *o)
{
    const uint32_t seq = oracle_below(o, o->spilled.model.params.n_sequences);
    const uint32_t most = o->spilled.model.params.draft_rows, n = 1 + oracle_below(o, most < 16 ? most : 16);
    const uint64_t before = o->spilled.n_cells[seq];
    uint64_t mask[16];
    int64_t pos[16];
    uint32_t cells[16], n_accepted = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool root = i == 0 || oracle_below(o, 6) == 0;
        const uint32_t parent = root ? 0 : oracle_below(o, i);
        mask[i] = (root ? 0 : mask[parent]) | 1ull << i;
        pos[i] = root ? end_of(o, seq) : pos[parent] + 1;
    }
    const uint32_t leaf = oracle_below(o, n);
    const fx_entry e = {.seq = seq, .rows = n, .tag = o->next_tag, .positions = pos, .tree_mask = mask,
                        .regime = oracle_below(o, 3) ? RKV_REGIME_DECODE : RKV_REGIME_PREFILL};
    o->next_tag += 100;
    for (uint32_t i = 0; i < n; i++)
        if (mask[leaf] >> i & 1)
            cells[n_accepted++] = i;
    n_accepted = oracle_below(o, n_accepted + 1);
    const rkv_status want = fx_check(&o->spilled, &e, 1), s = fx_try_step(&o->spilled, &e, 1);
    snprintf(o->last, sizeof o->last, "a tree of %u cells of sequence %u, %u accepted: %d", n, seq, n_accepted, s);
    if (oracle_lacks_places(o, s, &e, 1))
        return;
    assert_int_equal(s, want);
    assert_int_equal(fx_try_step(&o->resident, &e, 1), s);
    if (s != RKV_OK) {
        assert_true(s == RKV_E_CAPACITY || s == RKV_E_SEQUENCE);
        return;
    }
    if (!fx_same(&o->spilled, &o->resident))
        fail_msg("%s: other bits than without a tail", o->last);
    fx *both[2] = {&o->spilled, &o->resident};
    for (uint32_t k = 0; k < 2; k++) {
        fx_ok(rkv_sequence_accept(both[k]->cache, seq, cells, n_accepted, both[k]->stream), "accept");
        both[k]->n_cells[seq] = before;
        for (uint32_t i = 0; i < n_accepted; i++)
            both[k]->cells[seq][both[k]->n_cells[seq]++] = (fx_cell){e.tag + cells[i], pos[cells[i]]};
    }
}

/* ------------------------------------------------------------------- states */

/* A sequence of either cache, loaded over another one in both. */
void oracle_state(oracle *o)
{
    uint32_t src;
    if (!oracle_any_filled(o, &src))
        return;
    const uint32_t dst = oracle_below(o, o->spilled.model.params.n_sequences);
    fx *from = oracle_below(o, 2) ? &o->spilled : &o->resident, *both[2] = {&o->spilled, &o->resident};
    fx_bytes b;
    fx_save(from, src, &b);
    const rkv_status s = fx_load(&o->spilled, dst, &b, true);
    snprintf(o->last, sizeof o->last, "state of %u loaded into %u: %d", src, dst, s);
    assert_true(s == RKV_OK || s == RKV_E_CAPACITY || s == RKV_E_HOST_LIMIT);
    if (s == RKV_OK)
        fx_ok(fx_load(&o->resident, dst, &b, false), "load");
    for (uint32_t i = 0; i < 2 && s == RKV_OK && src != dst; i++)
        fx_copy_record(both[i], dst, both[i], src);
    fx_bytes_free(&b);
}

/* All sequences, from one cache into both. */
void oracle_state_all(oracle *o)
{
    fx_bytes b;
    fx_save(oracle_below(o, 2) ? &o->spilled : &o->resident, RKV_STATE_ALL, &b);
    const rkv_status s = fx_load(&o->spilled, RKV_STATE_ALL, &b, true);
    snprintf(o->last, sizeof o->last, "all loaded: %d", s);
    assert_true(s == RKV_OK || s == RKV_E_CAPACITY || s == RKV_E_HOST_LIMIT);
    if (s == RKV_OK)
        fx_ok(fx_load(&o->resident, RKV_STATE_ALL, &b, true), "load");
    fx_bytes_free(&b);
}

/* -------------------------------------------------------------------- cells */

/* The cells of `range` that src of one cache has, behind dst's in both. */
void oracle_import(oracle *o)
{
    uint32_t src;
    const uint32_t dst = oracle_below(o, o->spilled.model.params.n_sequences);
    if (!oracle_any_filled(o, &src))
        return;
    const int64_t a = oracle_any_position(o, src);
    const rkv_pos_range range = {a, oracle_below(o, 2) ? RKV_POS_END : a + oracle_below(o, 70)};
    const uint64_t room = o->spilled.n_cells[src] + 1;
    fx *from = oracle_below(o, 2) ? &o->spilled : &o->resident, *both[2] = {&o->spilled, &o->resident};
    uint64_t n = 0, first = 0;
    int64_t *pos = calloc(room, sizeof *pos);
    fx_ok(rkv_export_positions(from->cache, src, &range, room, pos, &n), "positions");
    while (first < o->spilled.n_cells[src] && o->spilled.cells[src][first].pos < range.from)
        first++;
    const int64_t up = n && pos[0] < end_of(o, dst) ? end_of(o, dst) - pos[0] : 0;
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(pos[i], o->spilled.cells[src][first + i].pos);
        pos[i] += up;
    }
    const uint32_t n_layers = o->spilled.model.n_layers;
    rkv_cells c[FX_LAYERS];
    rkv_status s = n ? RKV_OK : RKV_E_ARGUMENT;
    for (uint32_t l = 0; l < n_layers; l++) {
        const rkv_kv_layer_params *p = &o->spilled.model.layers[l];
        c[l] = (rkv_cells){.struct_size = sizeof c[l], .kv_layer = l, .form = RKV_CELLS_STORED, .n_cells = n};
        c[l].k.data = malloc((n + 1) * p->n_kv_heads * p->head_dim_k * 4);
        c[l].v.data = malloc((n + 1) * p->n_kv_heads * p->head_dim_v * 4);
        if (s == RKV_OK)
            s = rkv_export_cells(from->cache, src, &range, &c[l], from->stream);
    }
    const bool is_out = s == RKV_OK; /* not shifted, and not freed */
    assert_true(is_out || n == 0 || s == RKV_E_SEQUENCE || s == RKV_E_UNSUPPORTED);
    if (is_out)
        s = rkv_import_begin(o->spilled.cache, dst, n, pos);
    assert_true(s == RKV_OK || !is_out || s == RKV_E_CAPACITY || s == RKV_E_HOST_LIMIT);
    snprintf(o->last, sizeof o->last, "%llu cells of %u put into %u: %d", (unsigned long long)n, src, dst, s);
    if (s == RKV_OK)
        fx_ok(rkv_import_begin(o->resident.cache, dst, n, pos), "import_begin");
    const bool is_dropped = s == RKV_OK && oracle_below(o, 5) == 0;
    for (uint32_t k = 0; k < 2 && s == RKV_OK; k++) {
        for (uint32_t l = 0; l < n_layers; l++)
            fx_ok(rkv_import_cells(both[k]->cache, &c[l], both[k]->stream), "import_cells");
        fx_ok(is_dropped ? rkv_import_abort(both[k]->cache) : rkv_import_end(both[k]->cache), "import_end");
        for (uint64_t i = 0; i < n && !is_dropped; i++)
            both[k]->cells[dst][both[k]->n_cells[dst]++] = (fx_cell){both[k]->cells[src][first + i].tag, pos[i]};
    }
    for (uint32_t l = 0; l < n_layers; l++)
        free(c[l].k.data), free(c[l].v.data);
    free(pos);
}
