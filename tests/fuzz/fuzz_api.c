/* SPDX-License-Identifier: MIT
 *
 * fuzz_api.c: a byte string read as calls of the API, against a plain model of
 * what each sequence holds.
 *
 * Bytes 0 to 7 choose the cache; then each byte is a call, with its arguments
 * behind it.  q is zero, so a row's output is the mean of the values that it
 * sees: a cell too many, a missing or a foreign one shows.  Every call must give
 * a status that fits, a failed one a sentence and an unchanged cache; what
 * rkv_cache_check says comes true; at the end nothing is left.
 */
#include "fuzz_common.h"

#include "rollkv/state.h"

#include <math.h>

enum { SEQS = 3, LAYERS = 2, DIM = 32, ROWS = 40, ROOM = 512, CALLS = 200 };

typedef struct cell {
    int64_t pos;
    int8_t value;
} cell;

typedef struct fuzz {
    rkv_cache *cache;
    rkvi_device *dev, *core;
    bool is_checked, is_dead; /* dead: poisoned by a failure within a failure */
    bool is_armed;            /* a device call may fail */
    bool has_cpu;             /* threads, which may have a share of the tail */
    rkv_mask mask;            /* of site 1 */
    int64_t mask_width;
    uint32_t n[SEQS];
    cell cells[SEQS][ROOM];
    uint32_t tag;
    float q[ROWS * 2 * DIM], k[LAYERS][ROWS * DIM], v[LAYERS][ROWS * DIM], out[LAYERS][ROWS * 2 * DIM];
} fuzz;

#define EVER_NS ((uint64_t)10000000000) /* what threads do in time does not depend on the machine's load */

static const float frequencies[4] = {1, 0.5f, 0.25f, 0.125f};

static rkv_status create(fuzz *z, fuzz_bytes *b)
{
    static const uint64_t budgets[] = {RKV_RESIDENT_NONE, RKV_RESIDENT_ALL, 16, 48, 100, 0};
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_Q8_0, RKV_TYPE_FP8_E4M3, RKV_TYPE_BF16};
    rkv_kv_layer_params l[LAYERS] = {RKV_KV_LAYER_PARAMS_INIT, RKV_KV_LAYER_PARAMS_INIT};
    rkv_site_params s[LAYERS] = {RKV_SITE_PARAMS_INIT, RKV_SITE_PARAMS_INIT};
    const uint8_t flags = fuzz_u8(b), mask = fuzz_u8(b);
    for (uint32_t i = 0; i < LAYERS; i++) {
        l[i].n_kv_heads = 1;
        l[i].head_dim_k = DIM;
        l[i].type_k = l[i].type_v = types[fuzz_u8(b) % 4];
        l[i].resident_cells = budgets[fuzz_u8(b) % 6];
        s[i].kv_layer = i;
        s[i].n_q_heads = 2;
    }
    l[1].keep_all = mask >> 7;
    s[1].mask = z->mask = mask % 3;
    z->mask_width = 1 + (mask >> 2) % 32;
    s[1].mask_width = z->mask ? (uint64_t)z->mask_width : 0;
    rkv_cache_params p = RKV_CACHE_PARAMS_INIT;
    p.kv_layers = l;
    p.sites = s;
    p.n_kv_layers = p.n_sites = LAYERS;
    p.device = RKV_DEVICE_HOST;
    p.capacity_cells = 16u * (4 + (flags & 15));
    p.n_sequences = SEQS;
    p.max_rows = ROWS;
    p.tile_cells = 16;
    p.mode = flags >> 4 & 1;
    p.draft_rows = flags >> 5 & 1 ? 4 : RKV_DRAFT_NONE;
    p.flags = fuzz_u8(b) % 16;
    p.rope = (rkv_rope_params){.frequencies = frequencies, .n_frequencies = 4};
    p.max_turns = 3;
    z->is_checked = flags >> 6 & 1;
    p.ring_bytes = flags >> 7 ? 16384 : 0;
    const uint8_t steps = fuzz_u8(b);
    p.steps_ahead = 1 + steps % 3;
    z->has_cpu = steps >> 7 && p.mode == RKV_MODE_RING;
    if (z->has_cpu) {
        p.cpu_threads = 1 + (steps >> 6 & 1);
        p.cpu_share = steps >> 2 & 15;
        p.cpu_wait_ns = EVER_NS;
    }
    z->dev = fuzz_device(flags, z->is_checked, &z->core);
    const rkv_status status = rkvi_api_create_on(&p, z->dev, &z->cache);
    if (status != RKV_OK)
        rkvi_dev_destroy(z->dev);
    return status;
}

/* ---------------------------------------------------------- status and model */

/* True: done.  Resources of the device and the system fail on demand alone. */
static bool done(fuzz *z, rkv_status s)
{
    if (s == RKV_OK)
        return true;
    FUZZ_CHECK(strlen(rkv_error_message()) > 10);
    FUZZ_CHECK(strcmp(rkv_status_name(s), "unknown status"));
    if (s == RKV_E_DEVICE_CALL || s == RKV_E_POISONED)
        FUZZ_CHECK(z->is_armed);
    else
        FUZZ_CHECK(s > RKV_E_DEVICE_CALL && s != RKV_E_SYSTEM && s != RKV_E_HOST_MEMORY);
    z->is_dead |= s == RKV_E_POISONED;
    return false;
}

static void disarm(fuzz *z)
{
    rkvi_device_fail_call(z->core, RKVI_CALL_ANY, 0, RKV_OK);
}

static int64_t end_of(const fuzz *z, uint32_t q)
{
    return z->n[q] ? z->cells[q][z->n[q] - 1].pos + 1 : 0;
}

static void remove_range(fuzz *z, uint32_t q, int64_t from, int64_t to)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < z->n[q]; i++)
        if (z->cells[q][i].pos < from || z->cells[q][i].pos >= to)
            z->cells[q][n++] = z->cells[q][i];
    z->n[q] = n;
}

static void compare(fuzz *z)
{
    for (uint32_t q = 0; q < SEQS; q++) {
        rkv_sequence_state s = {.struct_size = sizeof s};
        FUZZ_CHECK(rkv_sequence_info(z->cache, q, &s) == RKV_OK);
        FUZZ_CHECK(s.n_cells == z->n[q]);
        FUZZ_CHECK(s.pos_end == end_of(z, q));
        FUZZ_CHECK(s.pos_begin == (z->n[q] ? z->cells[q][0].pos : 0));
    }
    rkv_cache_stats t = {.struct_size = sizeof t};
    FUZZ_CHECK(rkv_cache_stats_get(z->cache, &t) == RKV_OK);
    FUZZ_CHECK(t.dead_cells <= t.stored_cells && t.stored_cells <= 16 * t.used_tiles);
}

/* --------------------------------------------------------------------- steps */

typedef struct step {
    rkv_batch_entry e[SEQS];
    int64_t pos[SEQS][ROWS];
    uint64_t tree[SEQS][ROWS];
    int64_t row_pos[ROWS];
    uint32_t row_seq[ROWS];
    uint32_t n, rows, n_new;
    bool has_tree;
} step;

static void add_entry(fuzz *z, fuzz_bytes *b, step *t, uint32_t q, uint8_t how)
{
    rkv_batch_entry *e = &t->e[t->n];
    const uint32_t rows = 1 + (how >> 3) % (how & 4 ? 20 : 4);
    const bool is_query = (how & 3) == 3;
    int64_t at = end_of(z, q);
    if (t->rows + rows > ROWS)
        return;
    if (is_query)
        at = at > rows ? at - rows : 0;
    else if ((how & 3) == 2)
        at += fuzz_number(b);
    *e = (rkv_batch_entry){.struct_size = sizeof *e, .sequence = q, .n_rows = rows};
    e->n_new_cells = is_query ? 0 : rows;
    e->regime = how & 4 && how & 32 ? RKV_REGIME_PREFILL : RKV_REGIME_AUTO;
    for (uint32_t i = 0; i < rows; i++) {
        t->row_seq[t->rows] = q;
        t->row_pos[t->rows++] = t->pos[t->n][i] = (int64_t)((uint64_t)at + i);
    }
    if (is_query || (how & 3) == 2)
        e->positions = t->pos[t->n];
    if (!is_query)
        t->n_new += rows;
    t->n++;
}

/* New cells of the step, in the model; values in the tensors. */
static void append_model(fuzz *z, const step *t)
{
    uint32_t row = 0;
    for (uint32_t i = 0, r = 0; i < t->n; r += t->e[i++].n_rows)
        for (uint32_t j = 0; j < t->e[i].n_new_cells; j++, row++) {
            const uint32_t q = t->e[i].sequence;
            const int8_t value = (int8_t)(z->tag++ % 17) - 8;
            FUZZ_CHECK(z->n[q] < ROOM);
            z->cells[q][z->n[q]++] = (cell){t->row_pos[r + j], value};
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t d = 0; d < DIM; d++) {
                    z->k[l][row * DIM + d] = (float)(z->tag % 5);
                    z->v[l][row * DIM + d] = value;
                }
        }
}

static void take_back(fuzz *z, const step *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        z->n[t->e[i].sequence] -= t->e[i].n_new_cells;
}

static float mean(const fuzz *z, uint32_t site, uint32_t q, int64_t p)
{
    int64_t from = 0;
    float sum = 0, n = 0;
    if (site == 1 && z->mask == RKV_MASK_SLIDING)
        from = p - z->mask_width + 1;
    else if (site == 1 && z->mask == RKV_MASK_CHUNKED)
        from = p - p % z->mask_width;
    for (uint32_t i = 0; i < z->n[q]; i++)
        if (z->cells[q][i].pos >= from && z->cells[q][i].pos <= p) {
            sum += z->cells[q][i].value;
            n++;
        }
    return n > 0 ? sum / n : 0;
}

static void check_outputs(fuzz *z, const step *t)
{
    for (uint32_t site = 0; site < LAYERS; site++)
        for (uint32_t r = 0; r < t->rows; r++) {
            const float want = mean(z, site, t->row_seq[r], t->row_pos[r]);
            for (uint32_t d = 0; d < 2 * DIM; d += 31)
                FUZZ_CHECK(fabsf(z->out[site][r * 2 * DIM + d] - want) < 0.02f);
        }
}

static bool sync(fuzz *z)
{
    const bool ok = done(z, rkv_host_stream_sync(z->cache, NULL));
    if (!ok && !z->is_dead)
        FUZZ_CHECK(rkv_host_stream_sync(z->cache, NULL) == RKV_OK);
    return ok;
}

static bool attend(fuzz *z, uint32_t site, const step *t)
{
    rkv_attend_params a = RKV_ATTEND_PARAMS_INIT;
    a.site = site;
    a.q = (rkv_tensor){.data = z->q, .type = RKV_TYPE_F32};
    if (t->n_new) {
        a.k = (rkv_tensor){.data = z->k[site], .type = RKV_TYPE_F32};
        a.v = (rkv_tensor){.data = z->v[site], .type = RKV_TYPE_F32};
    }
    a.out = (rkv_tensor){.data = z->out[site], .type = RKV_TYPE_F32};
    return done(z, rkv_step_attend(z->cache, &a, NULL));
}

/* Up to `sites` of it, else aborted. */
static void run_step(fuzz *z, const step *t, uint32_t sites)
{
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = t->n, .entries = t->e};
    const rkv_status foreseen = rkv_cache_check(z->cache, &batch, 1);
    const rkv_status begun = rkv_step_begin(z->cache, &batch);
    if (!z->is_armed)
        FUZZ_CHECK(foreseen == begun || (foreseen == RKV_OK && begun <= RKV_E_CAPACITY));
    if (!done(z, begun))
        return;
    append_model(z, t);
    bool ok = true;
    for (uint32_t s = 0; s < sites && s < LAYERS && ok; s++)
        ok = attend(z, s, t);
    ok = ok && sites >= LAYERS && done(z, rkv_step_end(z->cache, NULL, NULL));
    if (!ok) {
        done(z, rkv_step_abort(z->cache));
        take_back(z, t);
    }
    if (!z->is_dead && sync(z) && ok)
        check_outputs(z, t);
}

static void call_step(fuzz *z, fuzz_bytes *b, uint32_t sites)
{
    step t = {0};
    const uint8_t which = fuzz_u8(b);
    for (uint32_t i = 0; i < SEQS; i++)
        if (which >> i & 1)
            add_entry(z, b, &t, (i + (which >> 3)) % SEQS, fuzz_u8(b));
    run_step(z, &t, sites);
}

/* A chain or a bush of drafts, of which some are accepted. */
static void call_tree(fuzz *z, fuzz_bytes *b)
{
    const uint32_t q = fuzz_u8(b) % SEQS, how = fuzz_u8(b), rows = 1 + how % 4;
    step t = {.n = 1, .rows = rows, .n_new = rows};
    uint32_t taken[4], n = 0;
    for (uint32_t i = 0; i < rows; i++) {
        const bool is_root = i == 0 || how >> (3 + i) & 1;
        t.tree[0][i] = (is_root ? 0 : t.tree[0][i - 1]) | 1u << i;
        t.pos[0][i] = is_root ? end_of(z, q) : t.pos[0][i - 1] + 1;
        t.row_pos[i] = t.pos[0][i];
    }
    t.e[0] = (rkv_batch_entry){.struct_size = sizeof *t.e, .sequence = q, .n_rows = rows, .n_new_cells = rows,
                               .positions = t.pos[0], .tree_mask = t.tree[0]};
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 1, .entries = t.e};
    if (!done(z, rkv_step_begin(z->cache, &batch)))
        return;
    append_model(z, &t);
    z->n[q] -= rows; /* not the sequence's yet */
    bool ok = attend(z, 0, &t) && attend(z, 1, &t) && done(z, rkv_step_end(z->cache, NULL, NULL));
    if (!ok) {
        done(z, rkv_step_abort(z->cache));
        if (!z->is_dead)
            sync(z);
        return;
    }
    sync(z);
    if (z->is_dead)
        return;
    cell *at = &z->cells[q][z->n[q]];
    for (uint32_t i = 0, mask = fuzz_u8(b); i < rows; i++)
        if (mask >> i & 1 && (n == 0 || t.pos[0][i] > t.pos[0][taken[n - 1]]))
            taken[n++] = i;
    bool accepted = done(z, rkv_sequence_accept(z->cache, q, taken, n, NULL));
    if (!accepted && !z->is_dead)
        accepted = done(z, rkv_sequence_accept(z->cache, q, taken, n, NULL));
    FUZZ_CHECK(accepted || z->is_dead);
    for (uint32_t i = 0; i < n; i++)
        at[i] = at[taken[i]];
    z->n[q] += n;
}

/* ----------------------------------------------------------------- sequences */

static void call_append_from(fuzz *z, fuzz_bytes *b)
{
    const uint8_t which = fuzz_u8(b);
    const uint32_t dst = which % 4, src = which / 4 % 4;
    const int64_t from = fuzz_number(b), to = which & 128 ? RKV_POS_END : fuzz_number(b);
    if (dst < SEQS && src < SEQS && z->n[dst] + z->n[src] > ROOM / 2)
        return;
    if (!done(z, rkv_sequence_append_from(z->cache, dst, src, from, to)))
        return;
    FUZZ_CHECK(dst < SEQS && src < SEQS);
    for (uint32_t i = 0; i < z->n[src]; i++)
        if (z->cells[src][i].pos >= from && z->cells[src][i].pos < to)
            z->cells[dst][z->n[dst]++] = z->cells[src][i];
}

static void call_shift(fuzz *z, fuzz_bytes *b)
{
    const uint8_t which = fuzz_u8(b);
    const uint32_t q = which % 4;
    const int64_t from = fuzz_number(b), to = which & 128 ? RKV_POS_END : fuzz_number(b);
    const int64_t delta = which & 64 ? -fuzz_u8(b) : fuzz_number(b);
    const rkv_status can = rkv_sequence_can_shift(z->cache, q, from, to, delta);
    const rkv_status s = rkv_sequence_shift(z->cache, q, from, to, delta);
    FUZZ_CHECK(can == s || z->is_armed);
    if (!done(z, s))
        return;
    for (uint32_t i = 0; i < z->n[q]; i++)
        if (z->cells[q][i].pos >= from && z->cells[q][i].pos < to)
            z->cells[q][i].pos += delta;
}

static void call_remove(fuzz *z, fuzz_bytes *b)
{
    const uint8_t which = fuzz_u8(b);
    const int64_t from = fuzz_number(b), to = which & 128 ? RKV_POS_END : fuzz_number(b);
    if (done(z, rkv_sequence_remove(z->cache, which % 4, from, to)))
        remove_range(z, which % 4, from, to);
}

typedef struct text {
    uint8_t at[1 << 17];
    uint64_t n, read;
} text;

static int32_t write_text(void *user, const void *data, uint64_t bytes)
{
    text *t = user;
    FUZZ_CHECK(t->n + bytes <= sizeof t->at);
    memcpy(t->at + t->n, data, bytes);
    t->n += bytes;
    return 0;
}

static int32_t read_text(void *user, void *data, uint64_t bytes)
{
    text *t = user;
    FUZZ_CHECK(t->read + bytes <= t->n);
    memcpy(data, t->at + t->read, bytes);
    t->read += bytes;
    return 0;
}

static void call_save_load(fuzz *z, fuzz_bytes *b)
{
    static text t;
    const uint8_t which = fuzz_u8(b);
    const uint32_t from = which % SEQS, to = which / 4 % SEQS;
    rkv_state_params p = RKV_STATE_PARAMS_INIT;
    t.n = t.read = 0;
    p.sequence = from;
    p.write = write_text;
    p.user = &t;
    if (!done(z, rkv_state_save(z->cache, &p)))
        return;
    p = (rkv_state_params){.struct_size = sizeof p, .sequence = to, .read = read_text, .user = &t};
    p.size_bytes = which & 128 ? t.n : 0;
    if (!done(z, rkv_state_load(z->cache, &p)))
        return;
    z->n[to] = z->n[from];
    memmove(z->cells[to], z->cells[from], sizeof z->cells[0]);
}

/* What the sites have of it; those without a tail have none. */
static void shares_of(const fuzz *z, uint32_t *out)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        rkv_site_info s = {.struct_size = sizeof s};
        FUZZ_CHECK(rkv_site_info_get(z->cache, i, &s) == RKV_OK);
        FUZZ_CHECK(s.cpu_share < 16);
        out[i] = s.cpu_share;
    }
}

/* Rates are given: what is measured differs from run to run. */
static void call_cpu_share(fuzz *z, fuzz_bytes *b)
{
    const uint8_t which = fuzz_u8(b);
    uint32_t before[LAYERS], after[LAYERS], shares[LAYERS];
    rkv_cpu_share_params p = RKV_CPU_SHARE_PARAMS_INIT;
    if (which & 1) {
        const uint8_t share = fuzz_u8(b);
        p.share = share > 200 ? RKV_CPU_SHARE_NONE : share % 20;
    }
    if (which & 2) {
        for (uint32_t i = 0; i < LAYERS; i++)
            shares[i] = fuzz_u8(b) % 20;
        p.site_shares = shares;
    }
    if (which & 4)
        p.free_bytes = (uint64_t)fuzz_number(b) << (which >> 4);
    if (!(which & 3) || which & 8) {
        p.step_ns = (uint64_t)fuzz_number(b) << (which >> 4);
        p.link_bytes_per_s = (uint64_t)fuzz_number(b) << (which >> 4) | 1;
        p.beside_bytes_per_s = (uint64_t)fuzz_number(b) << (which >> 4) | 1;
        p.cpu_bytes_per_s = (uint64_t)fuzz_number(b) << (which >> 4) | 1;
        p.handover_ns = (uint64_t)fuzz_number(b);
    }
    shares_of(z, before);
    const bool is_done = done(z, rkv_cache_set_cpu_share(z->cache, &p));
    if (z->is_dead)
        return;
    shares_of(z, after);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const uint32_t given = p.share == RKV_CPU_SHARE_NONE ? 0 : p.site_shares ? shares[i] : p.share;
        FUZZ_CHECK(is_done || after[i] == before[i]);
        FUZZ_CHECK(!is_done || !(p.share || p.site_shares) || after[i] == given || after[i] == 0);
    }
}

static void call(fuzz *z, fuzz_bytes *b)
{
    static const uint64_t budgets[] = {RKV_RESIDENT_NONE, RKV_RESIDENT_ALL, 16, 64, 0, 1000};
    const uint8_t what = fuzz_u8(b);
    const uint32_t q = what >> 4 & 3;
    switch (what & 15) {
    case 0:
        if (done(z, rkv_sequence_clear(z->cache, q)))
            z->n[q] = 0;
        break;
    case 1: call_remove(z, b); break;
    case 2: call_append_from(z, b); break;
    case 3: call_shift(z, b); break;
    case 4: done(z, rkv_sequence_park(z->cache, q)); break;
    case 5: done(z, rkv_sequence_fetch(z->cache, q)); break;
    case 6: done(z, rkv_sequence_compact(z->cache, q)); break;
    case 7: {
        const uint64_t r = fuzz_u8(b);
        done(z, rkv_cache_set_residency(z->cache, q, r < 200 ? budgets[r % 6] : (uint64_t)fuzz_number(b)));
        break;
    }
    case 8: call_save_load(z, b); break;
    case 9: call_tree(z, b); break;
    case 10: call_step(z, b, q % 3 ? 0 : 1); break; /* aborted */
    case 11:
        rkvi_device_fail_call(z->core, RKVI_CALL_ANY, 1 + fuzz_u8(b), RKV_E_DEVICE_CALL);
        z->is_armed = true;
        break;
    case 12:
        if (done(z, rkv_sequence_keep(z->cache, q)))
            for (uint32_t i = 0; i < SEQS; i++)
                z->n[i] = i == q ? z->n[i] : 0;
        break;
    case 15:
        if (z->has_cpu) {
            call_cpu_share(z, b);
            break;
        } /* fall through */
    default: call_step(z, b, LAYERS); break;
    }
}

static void finish(fuzz *z)
{
    disarm(z);
    if (!z->is_dead) {
        rkv_cache_stats t = {.struct_size = sizeof t};
        compare(z);
        FUZZ_CHECK(rkv_cache_clear(z->cache) == RKV_OK);
        FUZZ_CHECK(rkv_cache_stats_get(z->cache, &t) == RKV_OK);
        FUZZ_CHECK(t.used_tiles == 0 && t.stored_cells == 0 && t.shared_tiles == 0 && t.dead_cells == 0);
    }
    fuzz_no_reports(z->dev, z->is_checked);
    rkv_cache_destroy(z->cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz z;
    fuzz_bytes b = {data, data + size};
    memset(&z, 0, sizeof z);
    if (create(&z, &b) != RKV_OK)
        return 0;
    for (uint32_t i = 0; i < CALLS && b.at < b.end && !z.is_dead; i++) {
        call(&z, &b);
        if (!z.is_dead)
            compare(&z);
    }
    finish(&z);
    return 0;
}
