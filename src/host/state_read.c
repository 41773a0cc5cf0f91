/* state_read.c: bytes that came from outside become a state, or a sentence on
 * what is wrong with them.  Nothing is believed: sizes are bounded by what the
 * cache could hold before they are used, and checksums guard against damage,
 * not against intent. */
#include "state_format.h"
#include "state_hash.h"
#include "state_layout.h"

#include <stdlib.h>

#define U(x) ((unsigned long long)(x))

/* ------------------------------------------------------------------- header */

/* The largest description that a state fitting this cache can have; sequences
 * that share tiles have segments of their own each. */
static uint64_t largest_description(const rkvi_config *cfg)
{
    const uint64_t segments = cfg->n_sequences * (cfg->capacity_tiles + cfg->extra_segments);
    return RKVI_STATE_FIXED_BYTES + (uint64_t)cfg->n_layers * RKVI_STATE_LAYER_BYTES +
           4 * RKVI_STATE_ROPE_MAX + (uint64_t)cfg->n_sequences * (RKVI_STATE_SEQ_BYTES + 8) +
           segments * (RKVI_STATE_SEGMENT_BYTES + 4) +
           rkvi_state_pad(cfg->capacity_tiles * cfg->n_layers);
}

static rkv_status check_identity(const uint8_t *header, uint32_t version, uint32_t header_bytes)
{
    if (memcmp(header, RKVI_STATE_MAGIC, 8) != 0)
        return rkvi_fail(RKV_E_DATA,
                         "this is no saved state: it does not begin with " RKVI_STATE_MAGIC);
    if (version != RKVI_STATE_VERSION)
        return rkvi_fail(RKV_E_DATA, "the state has format version %u; this library reads version %u",
                         version, RKVI_STATE_VERSION);
    if (header_bytes != RKVI_STATE_HEADER_BYTES)
        return rkvi_fail(RKV_E_DATA, "the state's header says that it has %u bytes; version %u has %u",
                         header_bytes, RKVI_STATE_VERSION, RKVI_STATE_HEADER_BYTES);
    return RKV_OK;
}

static rkv_status check_sizes(const rkvi_state *st, uint64_t size_bytes)
{
    if (size_bytes && size_bytes != st->total_bytes)
        return rkvi_fail(RKV_E_DATA,
                         "the state says that it has %llu bytes, but there are %llu to read: it is %s",
                         U(st->total_bytes), U(size_bytes),
                         size_bytes < st->total_bytes ? "truncated" : "followed by something else");
    const uint64_t least = RKVI_STATE_FIXED_BYTES, most = largest_description(st->cfg);
    if (st->description_bytes < least || st->description_bytes % 8)
        return rkvi_fail(RKV_E_DATA, "the state's description can't have %llu bytes",
                         U(st->description_bytes));
    if (st->description_bytes > most)
        return rkvi_fail(
            RKV_E_CAPACITY,
            "the state's description has %llu bytes; one that fits this cache's %llu tiles, %u KV "
            "layers and %u sequences has at most %llu",
            U(st->description_bytes), U(st->cfg->capacity_tiles), st->cfg->n_layers,
            st->cfg->n_sequences, U(most));
    return RKV_OK;
}

rkv_status rkvi_state_read_header(rkvi_state *st, const rkvi_config *cfg, const uint8_t *header,
                                  uint64_t size_bytes)
{
    rkvi_get g = {header + 8, header + RKVI_STATE_HEADER_BYTES, 0, 0};
    *st = (rkvi_state){.cfg = cfg};
    const uint32_t version = rkvi_get_u32(&g), header_bytes = rkvi_get_u32(&g);
    st->total_bytes = rkvi_get_u64(&g);
    st->description_bytes = rkvi_get_u64(&g);
    st->n_payloads = rkvi_get_u64(&g);
    const uint32_t scope = rkvi_get_u32(&g), hash = rkvi_get_u32(&g);
    const uint64_t reserved = rkvi_get_u64(&g), checksum = rkvi_get_u64(&g);
    const rkv_status s = check_identity(header, version, header_bytes);
    if (s != RKV_OK)
        return s;
    if (checksum != rkvi_state_hash(header, RKVI_STATE_HEADER_BYTES - 8, 0))
        return rkvi_fail(RKV_E_DATA, "the state's header is damaged: its checksum differs");
    if ((scope != RKVI_STATE_SCOPE_SEQUENCE && scope != RKVI_STATE_SCOPE_CACHE) ||
        hash != RKVI_STATE_HASH_XXH3 || reserved)
        return rkvi_fail(RKV_E_DATA,
                         "the state's header has scope %u, checksum kind %u, reserved %llu: unknown",
                         scope, hash, U(reserved));
    st->is_whole = scope == RKVI_STATE_SCOPE_CACHE;
    return check_sizes(st, size_bytes);
}

/* -------------------------------------------------------------- what differs */

static rkv_status differs(uint32_t layer, const char *what, uint64_t in_state, uint64_t in_cache)
{
    if (in_state == in_cache)
        return RKV_OK;
    return rkvi_fail(RKV_E_DATA, "KV layer %u has %s %llu in the state and %llu in this cache", layer,
                     what, U(in_state), U(in_cache));
}

static rkv_status type_differs(uint32_t layer, char what, rkv_type in_state, rkv_type in_cache)
{
    if (in_state == in_cache)
        return RKV_OK;
    return rkvi_fail(RKV_E_DATA, "KV layer %u stores %c as %s in the state and as %s in this cache",
                     layer, what, rkvi_type_name(in_state), rkvi_type_name(in_cache));
}

static rkv_status scale_differs(uint32_t layer, char what, float in_state, float in_cache)
{
    if (memcmp(&in_state, &in_cache, sizeof in_state) == 0)
        return RKV_OK;
    return rkvi_fail(RKV_E_DATA, "KV layer %u scales %c by %.9g in the state and by %.9g in this cache",
                     layer, what, (double)in_state, (double)in_cache);
}

/* Frequencies of the KV layer's own against its own, or against the cache's; not
 * against none at all, as with the cache's. */
static rkv_status layer_rope_differs(const rkvi_state *st, uint32_t l, const rkvi_state_rope *in_state)
{
    const rkvi_state_rope here = rkvi_state_rope_of(st->cfg, l);
    const rkv_status s = differs(l, "k_form", in_state->k_form, here.k_form);
    const bool known = (in_state->n || st->n_rope) && (here.n || rkvi_config_rope(st->cfg).n);
    if (s == RKV_OK && known && (in_state->n != here.n || in_state->hash != here.hash))
        return rkvi_fail(
            RKV_E_DATA,
            "KV layer %u has other RoPE frequencies of its own, or another pairing, in the state (%u) than "
            "in this cache (%u)",
            l, in_state->n, here.n);
    return s;
}

static rkv_status check_layer(rkvi_state *st, uint32_t l, rkvi_get *g)
{
    const rkvi_geom *geom = &st->cfg->layers[l].geom;
    const uint32_t heads = rkvi_get_u32(g), dk = rkvi_get_u32(g), dv = rkvi_get_u32(g);
    const rkv_type type_k = rkvi_get_u32(g), type_v = rkvi_get_u32(g);
    const uint32_t leaf = rkvi_get_u32(g);
    const float k_scale = rkvi_get_f32(g), v_scale = rkvi_get_f32(g);
    const uint64_t bytes = rkvi_get_u64(g);
    rkvi_state_rope rope = {.k_form = rkvi_get_u32(g)};
    rope.n = rkvi_get_u32(g);
    rope.hash = rkvi_get_u64(g);
    const uint64_t reserved = rkvi_get_u64(g);
    rkv_status s = differs(l, "n_kv_heads", heads, geom->n_heads);
    if (s == RKV_OK)
        s = differs(l, "head_dim_k", dk, geom->dk);
    if (s == RKV_OK)
        s = differs(l, "head_dim_v", dv, geom->dv);
    if (s == RKV_OK)
        s = type_differs(l, 'K', type_k, geom->type_k);
    if (s == RKV_OK)
        s = type_differs(l, 'V', type_v, geom->type_v);
    if (s == RKV_OK)
        s = scale_differs(l, 'K', k_scale, geom->k_scale);
    if (s == RKV_OK)
        s = scale_differs(l, 'V', v_scale, geom->v_scale);
    if (s == RKV_OK)
        s = differs(l, "leaf_cells", leaf, geom->leaf_cells);
    if (s == RKV_OK)
        s = differs(l, "bytes a tile", bytes, rkvi_state_payload_bytes(st->cfg, l));
    if (s == RKV_OK)
        s = layer_rope_differs(st, l, &rope);
    return s == RKV_OK ? differs(l, "reserved fields", reserved, 0) : s;
}

/* Frequencies tell how turned segments are read: they differ only where one
 * side has none. */
static rkv_status check_rope(const rkvi_state *st, uint32_t n, uint32_t pairing, rkvi_get *g)
{
    const rkvi_rope rope = rkvi_config_rope(st->cfg);
    if (n > RKVI_STATE_ROPE_MAX)
        return rkvi_fail(RKV_E_DATA, "the state has %u RoPE frequencies; at most %u are possible", n,
                         RKVI_STATE_ROPE_MAX);
    const bool both = n && rope.n;
    if (both && (n != rope.n || pairing != rope.pairing))
        return rkvi_fail(
            RKV_E_DATA,
            "the state's K have %u RoPE frequencies (pairing %u), this cache was created with %u "
            "(pairing %u)",
            n, pairing, rope.n, rope.pairing);
    for (uint32_t i = 0; i < n; i++) {
        const float f = rkvi_get_f32(g);
        if (both && !g->is_short && memcmp(&f, &rope.frequencies[i], sizeof f) != 0)
            return rkvi_fail(RKV_E_DATA,
                             "RoPE frequency %u is %.9g in the state and %.9g in this cache", i,
                             (double)f, (double)rope.frequencies[i]);
    }
    rkvi_get_zeros(g, n % 2 ? 4 : 0);
    return RKV_OK;
}

/* ---------------------------------------------------------------- sequences */

static rkv_status bad_segment(uint32_t seq, uint32_t segment, const char *why)
{
    return rkvi_fail(RKV_E_DATA, "segment %u of sequence %u in the state is impossible: %s", segment,
                     seq, why);
}

/* Segments are in the order of positions and of cells. */
static rkv_status check_segment(const rkvi_state *st, uint32_t seq, uint32_t i)
{
    const rkvi_seq *s = &st->seqs[seq];
    const rkvi_segment *g = &s->segments[i], *before = i ? g - 1 : NULL;
    const int64_t most = (int64_t)RKVI_SIZE_MAX;
    if (g->count == 0 || g->count > st->cfg->tile_cells || g->first > st->cfg->tile_cells - g->count)
        return bad_segment(seq, i, "its cells are not within a tile");
    if (g->pos < 0 || g->pos > most - g->count || g->turn > most || g->turn < -most)
        return bad_segment(seq, i, "its position or turn is out of range");
    if (g->tile_index >= s->n_tiles)
        return bad_segment(seq, i, "it names a tile that the sequence has not");
    if (g->turn && rkvi_config_can_shift(st->cfg) != RKV_OK)
        return rkvi_fail(RKV_E_DATA, "sequence %u of the state was shifted: %s", seq, rkvi_error_text());
    if (!before)
        return g->tile_index == 0 ? RKV_OK
                                  : bad_segment(seq, i, "the first one is not in the first tile");
    if (g->pos < rkvi_segment_end(before))
        return bad_segment(seq, i, "positions do not increase");
    if (g->tile_index != before->tile_index && g->tile_index != before->tile_index + 1)
        return bad_segment(seq, i, "it skips a tile");
    if (g->tile_index == before->tile_index && g->first < rkvi_segment_fill(before))
        return bad_segment(seq, i, "it lies over the one before it");
    return RKV_OK;
}

static rkv_status check_seq(const rkvi_state *st, uint32_t seq)
{
    const rkvi_seq *s = &st->seqs[seq];
    uint64_t cells = 0;
    for (uint32_t i = 0; i < s->n_tiles; i++)
        if (s->tiles[i] >= st->n_tiles)
            return rkvi_fail(RKV_E_DATA, "sequence %u of the state names tile %u of %u", seq,
                             s->tiles[i], st->n_tiles);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkv_status r = check_segment(st, seq, i);
        if (r != RKV_OK)
            return r;
        cells += s->segments[i].count;
    }
    const uint32_t n_turned = rkvi_seq_n_turned(s, INT64_MIN, INT64_MAX);
    if (n_turned > st->cfg->max_turns)
        return rkvi_fail(RKV_E_DATA,
                         "sequence %u of the state has %u stretches of shifted cells; this cache has max_turns %u", seq,
                         n_turned, st->cfg->max_turns);
    const uint32_t used = s->n_segments ? s->segments[s->n_segments - 1].tile_index + 1 : 0;
    if (cells != s->n_cells || used != s->n_tiles)
        return rkvi_fail(
            RKV_E_DATA,
            "sequence %u of the state says %llu cells in %u tiles, its segments are %llu in %u", seq,
            U(s->n_cells), s->n_tiles, U(cells), used);
    return RKV_OK;
}

static rkv_status truncated(void)
{
    return rkvi_fail(RKV_E_DATA,
                     "the state's description ends too early: what it announces does not fit into it");
}

static rkv_status read_seq(rkvi_state *st, uint32_t seq, rkvi_get *g)
{
    rkvi_seq *s = &st->seqs[seq];
    const uint32_t n_segments = rkvi_get_u32(g), n_tiles = rkvi_get_u32(g);
    s->n_cells = rkvi_get_u64(g);
    const uint64_t bytes =
        rkvi_state_pad(4 * (uint64_t)n_tiles) + (uint64_t)n_segments * RKVI_STATE_SEGMENT_BYTES;
    if (g->is_short || bytes > (uint64_t)(g->end - g->at))
        return truncated();
    rkv_status r = rkvi_seq_reserve(s, n_tiles, n_segments);
    if (r != RKV_OK)
        return r;
    s->n_tiles = n_tiles;
    s->n_segments = n_segments;
    for (uint32_t i = 0; i < n_tiles; i++)
        s->tiles[i] = rkvi_get_u32(g);
    rkvi_get_zeros(g, n_tiles % 2 ? 4 : 0);
    for (uint32_t i = 0; i < n_segments; i++) {
        rkvi_segment *o = &s->segments[i];
        o->pos = (int64_t)rkvi_get_u64(g);
        o->turn = (int64_t)rkvi_get_u64(g);
        o->tile_index = rkvi_get_u32(g);
        o->first = rkvi_get_u32(g);
        o->count = rkvi_get_u32(g);
        rkvi_get_zeros(g, 4);
    }
    return check_seq(st, seq);
}

static rkv_status read_seqs(rkvi_state *st, uint32_t n, rkvi_get *g)
{
    st->seqs = calloc(n + (size_t)1, sizeof *st->seqs);
    if (!st->seqs)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the %u sequences of a state", n);
    st->n_seqs = n;
    for (uint32_t i = 0; i < n; i++) {
        const rkv_status s = read_seq(st, i, g);
        if (s != RKV_OK)
            return s;
    }
    return RKV_OK;
}

/* -------------------------------------------------------------------- tiles */

static rkv_status lacks(uint32_t layer, const rkvi_segment *g, const char *why, int64_t from)
{
    return rkvi_fail(
        RKV_E_DATA,
        "the state lacks the cells of KV layer %u at positions [%lld, %lld), which %s from %lld on",
        layer, (long long)g->pos, (long long)rkvi_segment_end(g), why, (long long)from);
}

/* Cells may be absent where no later row sees them, in KV layers that give such
 * cells up: there a sequence can't be cut back to where they would be seen. */
static rkv_status check_absent(const rkvi_state *st)
{
    for (uint32_t i = 0; i < st->n_seqs; i++) {
        const rkvi_seq *s = &st->seqs[i];
        for (uint32_t l = 0; l < st->cfg->n_layers; l++) {
            const int64_t lowest = rkvi_state_lowest_seen(st->cfg, l, rkvi_seq_pos_end(s));
            for (uint32_t j = 0; j < s->n_segments; j++) {
                const rkvi_segment *g = &s->segments[j];
                if (st->present[(uint64_t)s->tiles[g->tile_index] * st->cfg->n_layers + l])
                    continue;
                if (rkvi_segment_end(g) > lowest)
                    return lacks(l, g, "the masks of this cache's sites see", lowest);
                if (!st->cfg->layers[l].frees)
                    return lacks(l, g, "this cache keeps (keep_all, or a causal site)", 0);
            }
        }
    }
    return RKV_OK;
}

static rkv_status read_present(rkvi_state *st, rkvi_get *g)
{
    const uint64_t n = (uint64_t)st->n_tiles * st->cfg->n_layers;
    uint64_t n_present = 0;
    if (n > (uint64_t)(g->end - g->at))
        return truncated();
    st->present = malloc(n + 1);
    if (!st->present)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a state of %u tiles", st->n_tiles);
    memcpy(st->present, g->at, n);
    g->at += n;
    for (uint64_t i = 0; i < n; i++) {
        if (st->present[i] > 1)
            return rkvi_fail(RKV_E_DATA,
                             "the state marks tile %llu, KV layer %llu with %u; 0 or 1 is possible",
                             U(i / st->cfg->n_layers), U(i % st->cfg->n_layers), st->present[i]);
        n_present += st->present[i];
        if (st->present[i])
            st->payload_bytes += rkvi_state_payload_bytes(st->cfg, (uint32_t)(i % st->cfg->n_layers)) +
                                 RKVI_STATE_CHECKSUM_BYTES;
    }
    for (; g->at < g->end && (uintptr_t)(g->end - g->at) < 8; g->at++)
        if (*g->at)
            return rkvi_fail(RKV_E_DATA, "the state's description does not end in zeros");
    const uint64_t total =
        RKVI_STATE_HEADER_BYTES + st->description_bytes + RKVI_STATE_CHECKSUM_BYTES + st->payload_bytes;
    if (g->at != g->end || n_present != st->n_payloads || total != st->total_bytes)
        return rkvi_fail(RKV_E_DATA,
                         "the state's parts do not add up: %llu tile-layers, %llu bytes; the header "
                         "says %llu and %llu",
                         U(n_present), U(total), U(st->n_payloads), U(st->total_bytes));
    return RKV_OK;
}

/* Each tile is held by some sequence, so that none is left behind. */
static rkv_status check_used(const rkvi_state *st)
{
    uint32_t next = 0;
    for (uint64_t i = 0; i < st->n_covers; i++) {
        if (st->covers[i].tile > next)
            break;
        next = st->covers[i].tile == next ? next + 1 : next;
    }
    if (next == st->n_tiles)
        return RKV_OK;
    return rkvi_fail(RKV_E_DATA, "tile %u of the state belongs to no sequence", next);
}

/* --------------------------------------------------------------- description */

static rkv_status check_counts(const rkvi_state *st, uint32_t tile_cells, uint32_t n_layers,
                               uint32_t n_seqs)
{
    const rkvi_config *cfg = st->cfg;
    if (tile_cells != cfg->tile_cells)
        return rkvi_fail(RKV_E_DATA, "the state has tiles of %u cells, this cache of %u (tile_cells)",
                         tile_cells, cfg->tile_cells);
    if (n_layers != cfg->n_layers)
        return rkvi_fail(RKV_E_DATA, "the state has %u KV layers, this cache has %u", n_layers,
                         cfg->n_layers);
    if (!st->is_whole && n_seqs != 1)
        return rkvi_fail(RKV_E_DATA, "the state of one sequence says that it has %u", n_seqs);
    if (n_seqs > cfg->n_sequences)
        return rkvi_fail(RKV_E_CAPACITY,
                         "the state has %u sequences, this cache has room for %u (n_sequences)", n_seqs,
                         cfg->n_sequences);
    if (st->n_tiles > cfg->capacity_tiles)
        return rkvi_fail(RKV_E_CAPACITY,
                         "the state has %u tiles of %u cells, this cache has room for %llu",
                         st->n_tiles, tile_cells, U(cfg->capacity_tiles));
    return RKV_OK;
}

static rkv_status decode(rkvi_state *st, rkvi_get *g)
{
    const uint32_t tile_cells = rkvi_get_u32(g), n_layers = rkvi_get_u32(g), n_seqs = rkvi_get_u32(g);
    st->n_tiles = rkvi_get_u32(g);
    const uint32_t k_state = rkvi_get_u32(g), pairing = rkvi_get_u32(g), n_rope = rkvi_get_u32(g);
    st->n_rope = n_rope;
    rkvi_get_zeros(g, RKVI_STATE_FIXED_BYTES - 7 * 4);
    rkv_status s = check_counts(st, tile_cells, n_layers, n_seqs);
    if (s == RKV_OK && k_state != RKVI_STATE_K_AS_GIVEN)
        s = rkvi_fail(RKV_E_DATA,
                      "the state's K were changed in a way (%u) that this library does not know",
                      k_state);
    for (uint32_t l = 0; l < st->cfg->n_layers && s == RKV_OK; l++)
        s = g->end - g->at < (ptrdiff_t)RKVI_STATE_LAYER_BYTES ? truncated() : check_layer(st, l, g);
    if (s == RKV_OK)
        s = check_rope(st, n_rope, pairing, g);
    if (s == RKV_OK)
        s = read_seqs(st, n_seqs, g);
    if (s == RKV_OK && g->is_unknown)
        s = rkvi_fail(RKV_E_DATA, "the state's description has reserved bytes that are set: unknown");
    if (s == RKV_OK)
        s = read_present(st, g);
    if (s == RKV_OK)
        s = rkvi_state_cover_make(st);
    if (s == RKV_OK)
        s = check_used(st);
    return s == RKV_OK ? check_absent(st) : s;
}

rkv_status rkvi_state_decode(rkvi_state *st, const uint8_t *description)
{
    rkvi_get g = {description, description + st->description_bytes, 0, 0};
    rkvi_get sum = {g.end, g.end + RKVI_STATE_CHECKSUM_BYTES, 0, 0};
    rkv_status s = RKV_OK;
    if (rkvi_get_u64(&sum) != rkvi_state_hash(description, st->description_bytes, 0))
        s = rkvi_fail(RKV_E_DATA, "the state's description is damaged: its checksum differs");
    if (s == RKV_OK)
        s = decode(st, &g);
    if (s != RKV_OK)
        rkvi_state_free(st);
    return s;
}
