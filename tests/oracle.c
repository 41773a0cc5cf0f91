/* SPDX-License-Identifier: MIT
 *
 * oracle.c: the operations, and the run of them.
 */
#include "oracle.h"

#include "step_types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define SEQS 6u

/* ------------------------------------------------------------------- choices */

uint32_t oracle_below(oracle *o, uint32_t n)
{
    return (uint32_t)(fx_random(&o->random) % n);
}

static bool one_in(oracle *o, uint32_t n)
{
    return oracle_below(o, n) == 0;
}

bool oracle_any_filled(oracle *o, uint32_t *out_seq)
{
    const uint32_t first = oracle_below(o, SEQS);
    for (uint32_t i = 0; i < SEQS; i++) {
        *out_seq = (first + i) % SEQS;
        if (o->spilled.n_cells[*out_seq])
            return true;
    }
    return false;
}

static int64_t end_of(const oracle *o, uint32_t seq)
{
    const uint64_t n = o->spilled.n_cells[seq];
    return n ? o->spilled.cells[seq][n - 1].pos + 1 : 0;
}

int64_t oracle_any_position(oracle *o, uint32_t seq)
{
    const int64_t end = end_of(o, seq), near = oracle_below(o, 20);
    return one_in(o, 3) ? (end > near ? end - near : 0) : (int64_t)oracle_below(o, (uint32_t)end + 3);
}

/* ---------------------------------------------------------------- operations */

/* Both refuse what would look at cells that a mask has let go, and append_from
 * also stretches of shifted cells beyond max_turns. */
static bool is_refused(oracle *o, rkv_status first, rkv_status second, bool appends)
{
    assert_int_equal(first, second);
    if (first == RKV_OK)
        return false;
    assert_true(first == RKV_E_SEQUENCE || (appends && first == RKV_E_CAPACITY));
    o->n_unseen += first == RKV_E_SEQUENCE;
    o->n_turned += first == RKV_E_CAPACITY;
    return true;
}

void oracle_remove(oracle *o, uint32_t seq, int64_t from, int64_t to)
{
    if (is_refused(o, rkv_sequence_remove(o->spilled.cache, seq, from, to),
                   rkv_sequence_remove(o->resident.cache, seq, from, to), false))
        return; /* what was removed is gone below */
    fx_remove(&o->spilled, seq, from, to);
    fx_remove(&o->resident, seq, from, to);
    snprintf(o->last, sizeof o->last, "remove(%u, %lld, %lld)", seq, (long long)from, (long long)to);
}

void oracle_append_from(oracle *o, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    if (is_refused(o, rkv_sequence_append_from(o->spilled.cache, dst, src, from, to),
                   rkv_sequence_append_from(o->resident.cache, dst, src, from, to), true))
        return;
    fx_note_append_from(&o->spilled, dst, src, from, to);
    fx_note_append_from(&o->resident, dst, src, from, to);
    snprintf(o->last, sizeof o->last, "append_from(%u, %u, %lld, %lld)", dst, src, (long long)from, (long long)to);
}

/* A batch of anything: decode, prefill, queries; gaps in the positions; ranges. */
typedef struct any_batch {
    fx_entry e[SEQS];
    uint32_t n;
    int64_t positions[SEQS][64];
    rkv_pos_range visible[SEQS][64];
} any_batch;

static void any_entry(oracle *o, any_batch *b, uint32_t seq)
{
    const int64_t end = end_of(o, seq);
    fx_entry *e = &b->e[b->n];
    int64_t pos = end + (one_in(o, 12) ? oracle_below(o, 30) : 0);
    *e = (fx_entry){.seq = seq, .rows = one_in(o, 4) ? 1 + oracle_below(o, 60) : 1 + oracle_below(o, 3)};
    e->tag = o->next_tag;
    e->regime = e->rows > 16 || one_in(o, 8) ? RKV_REGIME_PREFILL : RKV_REGIME_AUTO;
    e->is_query = end > 0 && one_in(o, 6);
    o->next_tag += 100;
    if (e->is_query)
        pos = oracle_below(o, (uint32_t)end + 10);
    for (uint32_t i = 0; i < e->rows; i++) {
        b->positions[b->n][i] = pos++;
        pos += one_in(o, 60) ? oracle_below(o, 30) : 0;
        const int64_t from = one_in(o, 2) ? 0 : oracle_below(o, (uint32_t)pos + 5);
        b->visible[b->n][i] = (rkv_pos_range){from, one_in(o, 2) ? RKV_POS_END : from + oracle_below(o, 200)};
    }
    e->positions = b->positions[b->n];
    e->visible = one_in(o, 6) ? b->visible[b->n] : NULL;
    b->n++;
}

static void any_step(oracle *o, any_batch *b)
{
    const uint32_t active = o->spilled.model.params.active_sequences, most = active ? active : SEQS;
    const uint32_t first = oracle_below(o, SEQS), some = one_in(o, 2) ? 1 : 2;
    b->n = 0;
    for (uint32_t i = 0; i < SEQS && b->n < most; i++)
        if (some == 1 || oracle_below(o, 2) || (i + 1 == SEQS && b->n == 0))
            any_entry(o, b, (first + i) % SEQS);
}

bool oracle_lacks_places(oracle *o, rkv_status s, const fx_entry *entries, uint32_t n)
{
    const rkvi_cache *c = &o->spilled.cache->cache;
    const uint32_t keep = oracle_below(o, SEQS);
    uint32_t active = 0;
    if (s != RKV_E_DEVICE_LIMIT)
        return false;
    for (uint32_t q = 0; q < SEQS; q++) {
        bool is_active = c->seqs[q].n_tiles && !c->parked[q];
        for (uint32_t e = 0; e < n; e++)
            is_active = is_active || entries[e].seq == q;
        active += is_active;
    }
    if (active <= c->cfg->active_sequences)
        fail_msg("%s: %u of %u active sequences: %s", o->last, active, c->cfg->active_sequences, rkv_error_message());
    for (uint32_t q = 0; q < SEQS; q++) {
        const rkv_status parked = q == keep ? RKV_OK : rkv_sequence_park(o->spilled.cache, q);
        assert_true(parked == RKV_OK || parked == RKV_E_HOST_LIMIT);
    }
    o->n_no_place++;
    return true;
}

/* Both caches take the same steps; check foretells what begin says. */
static void run_step(oracle *o)
{
    any_batch b;
    any_step(o, &b);
    snprintf(o->last, sizeof o->last, "a step of %u entries, the first %u rows of sequence %u", b.n, b.e[0].rows,
             b.e[0].seq);
    const rkv_status want = fx_check(&o->spilled, b.e, b.n);
    const rkv_status s = fx_try_step(&o->spilled, b.e, b.n);
    if (oracle_lacks_places(o, s, b.e, b.n))
        return;
    if (s != want)
        fail_msg("check said %d, begin %d: %s", want, s, rkv_error_message());
    assert_int_equal(fx_try_step(&o->resident, b.e, b.n), s);
    if (s != RKV_OK) {
        assert_true(s == RKV_E_CAPACITY || s == RKV_E_SEQUENCE);
        o->n_refused++;
        return;
    }
    o->n_steps++;
    if (!fx_same(&o->spilled, &o->resident))
        fail_msg("%s: other bits than without a tail", o->last);
    if (!o->is_rotated)
        fx_check_rows(&o->spilled, 41, &o->errors);
}

static void run_abort(oracle *o)
{
    any_batch b;
    any_step(o, &b);
    const uint32_t sites = oracle_below(o, o->spilled.model.n_sites + 1);
    snprintf(o->last, sizeof o->last, "a step of %u entries aborted after %u sites", b.n, sites);
    const rkv_status s = fx_begin(&o->spilled, b.e, b.n);
    if (oracle_lacks_places(o, s, b.e, b.n) || s != RKV_OK)
        return;
    for (uint32_t i = 0; i < sites; i++)
        fx_ok(fx_attend(&o->spilled, i), "attend");
    fx_ok(fx_abort(&o->spilled), "abort");
}

static void run_rollback(oracle *o)
{
    uint32_t seq;
    if (oracle_any_filled(o, &seq))
        oracle_remove(o, seq, oracle_any_position(o, seq), RKV_POS_END);
}

static void run_remove(oracle *o)
{
    uint32_t seq;
    if (!oracle_any_filled(o, &seq))
        return;
    const int64_t a = oracle_any_position(o, seq), b = oracle_any_position(o, seq);
    oracle_remove(o, seq, a < b ? a : b, a < b ? b : a);
}

static void run_fork(oracle *o)
{
    uint32_t src;
    const uint32_t dst = oracle_below(o, SEQS);
    if (!oracle_any_filled(o, &src) || src == dst)
        return;
    oracle_remove(o, dst, 0, RKV_POS_END);
    oracle_append_from(o, dst, src, 0, one_in(o, 2) ? RKV_POS_END : oracle_any_position(o, src));
}

static void run_append_from(oracle *o)
{
    uint32_t src;
    const uint32_t dst = oracle_below(o, SEQS);
    if (!oracle_any_filled(o, &src) || src == dst)
        return;
    const int64_t a = oracle_any_position(o, src), b = oracle_any_position(o, src), end = end_of(o, dst);
    const int64_t from = a < b ? a : b, to = a < b ? b : a;
    oracle_append_from(o, dst, src, from > end ? from : end, to > end ? to : end);
}

static void run_keep(oracle *o)
{
    const uint32_t seq = oracle_below(o, SEQS);
    fx_keep(&o->spilled, seq);
    fx_keep(&o->resident, seq);
    snprintf(o->last, sizeof o->last, "keep(%u)", seq);
}

static void run_clear(oracle *o)
{
    const uint32_t seq = oracle_below(o, SEQS);
    fx_clear(&o->spilled, seq);
    fx_clear(&o->resident, seq);
    snprintf(o->last, sizeof o->last, "clear(%u)", seq);
}

/* ---- where the cells lie: of the spilled one alone */

static void run_park(oracle *o)
{
    const uint32_t seq = oracle_below(o, SEQS);
    const rkv_status s = rkv_sequence_park(o->spilled.cache, seq);
    assert_true(s == RKV_OK || s == RKV_E_HOST_LIMIT);
    snprintf(o->last, sizeof o->last, "park(%u): %d", seq, s);
}

static void run_fetch(oracle *o)
{
    const uint32_t seq = oracle_below(o, SEQS);
    const fx_entry e = {.seq = seq};
    const rkv_status s = rkv_sequence_fetch(o->spilled.cache, seq);
    snprintf(o->last, sizeof o->last, "fetch(%u): %d", seq, s);
    assert_true(oracle_lacks_places(o, s, &e, 1) || s == RKV_OK);
}

static void run_set_residency(oracle *o)
{
    const uint64_t cells[] = {RKV_RESIDENT_AUTO, RKV_RESIDENT_NONE, RKV_RESIDENT_ALL, oracle_below(o, 30) * T};
    const uint32_t layer = oracle_below(o, o->spilled.model.n_layers), which = oracle_below(o, 4);
    if (!fx_layer(&o->spilled, layer).has_tail)
        return;
    fx_ok(rkv_cache_set_residency(o->spilled.cache, layer, cells[which]), "set_residency");
    snprintf(o->last, sizeof o->last, "set_residency(%u, %llu)", layer, (unsigned long long)cells[which]);
}

/* Both, so that they have the same leaves; or none, for want of room. */
static void run_compact(oracle *o)
{
    const uint32_t seq = oracle_below(o, SEQS);
    const rkv_status s = rkv_sequence_compact(o->spilled.cache, seq);
    assert_true(s == RKV_OK || s == RKV_E_CAPACITY || s == RKV_E_HOST_LIMIT || s == RKV_E_DEVICE_LIMIT);
    if (s == RKV_OK)
        fx_ok(rkv_sequence_compact(o->resident.cache, seq), "compact");
    snprintf(o->last, sizeof o->last, "compact(%u): %d", seq, s);
}

static const oracle_operation oracle_operations[] = {
    {"step", 60, run_step},           {"abort", 3, run_abort},
    {"rollback", 8, run_rollback},    {"remove", 6, run_remove},
    {"fork", 8, run_fork},            {"append_from", 6, run_append_from},
    {"keep", 1, run_keep},            {"clear", 3, run_clear},
    {"park", 6, run_park},            {"fetch", 3, run_fetch},
    {"residency", 3, run_set_residency}, {"compact", 3, run_compact},
    {"shift", 6, oracle_shift},       {"tree", 5, oracle_tree},
    {"state", 3, oracle_state},       {"state_all", 1, oracle_state_all},
    {"import", 4, oracle_import},
};
#define N_OPERATIONS (sizeof oracle_operations / sizeof *oracle_operations)

/* -------------------------------------------------------------------- a run */

/* K with positions in them, or (rows can be compared with f64) without. */
static void any_rope(oracle *o, fx_model *m)
{
    static const float frequencies[16] = {1, 0.7f, 0.5f, 0.3f, 0.2f, 0.1f, 0.05f, 0.02f, 0.01f};
    o->is_rotated = one_in(o, 3);
    m->params.max_turns = 1 + oracle_below(o, 20);
    m->params.rope = (rkv_rope_params){frequencies, 16, oracle_below(o, 2)};
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->layers[i].k_form = o->is_rotated ? RKV_K_ROTATED : RKV_K_PLAIN;
}

static fx_model any_model(oracle *o, fx_executor executor)
{
    fx_model m = fx_model_make(T, 0, (50 + oracle_below(o, 60)) * T);
    static const uint64_t budgets[] = {RKV_RESIDENT_NONE, 3 * T, 20 * T};
    const uint32_t first = fx_add_layer(&m, 2, 64, 64, budgets[oracle_below(o, 3)]);
    fx_add_unequal(&m, budgets[oracle_below(o, 2)]);
    fx_add_layer(&m, 1, 64, 64, budgets[oracle_below(o, 3)]);
    m.sites[m.n_sites - 1].mask = RKV_MASK_SLIDING;
    m.sites[m.n_sites - 1].mask_width = 20 + oracle_below(o, 60);
    m.layers[m.n_layers - 1].keep_all = one_in(o, 2);
    fx_add_site(&m, first, 2);
    m.sinks[1] = true;
    m.params.n_sequences = SEQS;
    m.params.active_sequences = one_in(o, 3) ? 1 + oracle_below(o, SEQS) : 0;
    m.params.max_rows = SEQS * 64;
    m.params.draft_rows = oracle_below(o, 2) ? 4 : oracle_below(o, 40) + 1;
    m.params.ring_bytes = (40 + oracle_below(o, 100)) << 10;
    m.params.copy_bytes = one_in(o, 2) ? 0 : 12 << 10;
    m.params.mode = one_in(o, 8) ? RKV_MODE_OP_LEVEL : RKV_MODE_RING;
    m.params.flags |= one_in(o, 6) ? RKV_FLAG_NO_PROMOTE : 0;
    m.params.flags |= m.params.mode == RKV_MODE_RING && one_in(o, 3) ? RKV_FLAG_GRAPHS : 0;
    if (one_in(o, 4)) {
        m.sites[m.n_sites - 1].mask = RKV_MASK_CHUNKED;
        m.sites[m.n_sites - 1].mask_width = 20 + oracle_below(o, 60);
    }
    any_rope(o, &m);
    m.executor = executor;
    m.seed = o->random;
    m.delay_ns = executor == FX_HOST && one_in(o, 2) ? 20000 : 0;
    return m;
}

static void do_one(oracle *o)
{
    uint32_t all = 0, at;
    for (uint32_t i = 0; i < N_OPERATIONS; i++)
        all += oracle_operations[i].weight;
    at = oracle_below(o, all);
    for (uint32_t i = 0; i < N_OPERATIONS; i++) {
        if (at < oracle_operations[i].weight) {
            snprintf(o->last, sizeof o->last, "%s", oracle_operations[i].name);
            oracle_operations[i].run(o);
            break;
        }
        at -= oracle_operations[i].weight;
    }
    oracle_check_books(&o->spilled, o->last);
    oracle_check_books(&o->resident, o->last);
    o->n_done++;
}

/* Over all rows that were held against f64.  A GPU rounds P as well. */
static void check_errors(const fx_errors *e)
{
    if (e->n < 1000)
        return;
    print_message("errors: ours %.3g, plain code %.3g (rms over %llu elements)\n", sqrt(e->ours / (double)e->n),
                  sqrt(e->plain / (double)e->n), (unsigned long long)e->n);
    assert_true(fx_gpu || sqrt(e->ours) <= 2 * sqrt(e->plain));
}

void oracle_run(uint64_t seed, fx_executor executor, uint32_t n)
{
    oracle o = {.random = seed, .next_tag = 1000};
    fx_model m = any_model(&o, executor), all = m;
    for (uint32_t i = 0; i < all.n_layers; i++)
        all.layers[i].resident_cells = RKV_RESIDENT_ALL;
    all.executor = FX_HOST;
    all.delay_ns = 0;
    all.params.mode = RKV_MODE_RING;
    fx_open(&o.spilled, &m);
    fx_open(&o.resident, &all);
    for (uint32_t i = 0; i < n; i++)
        do_one(&o);
    const rkv_cache_stats s = fx_stats(&o.spilled);
    print_message(
        "seed %llu, executor %d: %llu steps, %llu refused, %llu bytes streamed, %llu brought back, %llu "
        "copied as shared, %llu promoted, %llu own entries, %llu refused by a mask, %llu by max_turns, %llu for want "
        "of a place\n",
        (unsigned long long)seed, executor, (unsigned long long)o.n_steps, (unsigned long long)o.n_refused,
        (unsigned long long)s.streamed_bytes, (unsigned long long)s.brought_back_bytes,
        (unsigned long long)s.shared_copy_bytes, (unsigned long long)s.promoted_bytes,
        (unsigned long long)s.own_entries, (unsigned long long)o.n_unseen, (unsigned long long)o.n_turned,
        (unsigned long long)o.n_no_place);
    check_errors(&o.errors);
    fx_check_empty(&o.spilled);
    fx_close(&o.spilled);
    fx_close(&o.resident);
}
