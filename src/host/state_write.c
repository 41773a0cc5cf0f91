/* state_write.c: a state's header and description as bytes. */
#include "state_format.h"
#include "state_hash.h"
#include "state_layout.h"

#include <assert.h>

static void put_layer(rkvi_put *p, const rkvi_config *cfg, uint32_t l)
{
    const rkvi_geom *g = &cfg->layers[l].geom;
    const rkvi_state_rope rope = rkvi_state_rope_of(cfg, l);
    rkvi_put_u32(p, g->n_heads);
    rkvi_put_u32(p, g->dk);
    rkvi_put_u32(p, g->dv);
    rkvi_put_u32(p, g->type_k);
    rkvi_put_u32(p, g->type_v);
    rkvi_put_u32(p, g->leaf_cells);
    rkvi_put_f32(p, g->k_scale);
    rkvi_put_f32(p, g->v_scale);
    rkvi_put_u64(p, rkvi_state_payload_bytes(cfg, l));
    rkvi_put_u32(p, rope.k_form);
    rkvi_put_u32(p, rope.n);
    rkvi_put_u64(p, rope.hash);
    rkvi_put_zeros(p, 8);
}

static void put_seq(rkvi_put *p, const rkvi_seq *s)
{
    rkvi_put_u32(p, s->n_segments);
    rkvi_put_u32(p, s->n_tiles);
    rkvi_put_u64(p, s->n_cells);
    for (uint32_t i = 0; i < s->n_tiles; i++)
        rkvi_put_u32(p, s->tiles[i]);
    rkvi_put_zeros(p, s->n_tiles % 2 * 4);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i];
        rkvi_put_u64(p, (uint64_t)g->pos);
        rkvi_put_u64(p, (uint64_t)g->turn);
        rkvi_put_u32(p, g->tile_index);
        rkvi_put_u32(p, g->first);
        rkvi_put_u32(p, g->count);
        rkvi_put_u32(p, 0);
    }
}

static void put_description(const rkvi_state *st, rkvi_put *p)
{
    const rkvi_config *cfg = st->cfg;
    const rkvi_rope rope = rkvi_config_rope(cfg);
    rkvi_put_u32(p, cfg->tile_cells);
    rkvi_put_u32(p, cfg->n_layers);
    rkvi_put_u32(p, st->n_seqs);
    rkvi_put_u32(p, st->n_tiles);
    rkvi_put_u32(p, RKVI_STATE_K_AS_GIVEN);
    rkvi_put_u32(p, rope.pairing);
    rkvi_put_u32(p, rope.n);
    rkvi_put_zeros(p, RKVI_STATE_FIXED_BYTES - 7 * 4);
    for (uint32_t l = 0; l < cfg->n_layers; l++)
        put_layer(p, cfg, l);
    for (uint32_t i = 0; i < rope.n; i++)
        rkvi_put_f32(p, rope.frequencies[i]);
    rkvi_put_zeros(p, rope.n % 2 * 4);
    for (uint32_t i = 0; i < st->n_seqs; i++)
        put_seq(p, &st->seqs[i]);
    const uint64_t n = (uint64_t)st->n_tiles * cfg->n_layers;
    for (uint64_t i = 0; i < n; i++)
        *p->at++ = st->present[i];
    rkvi_put_zeros(p, rkvi_state_pad(n) - n);
}

static void put_header(const rkvi_state *st, uint8_t *header)
{
    rkvi_put p = {header + 8};
    memcpy(header, RKVI_STATE_MAGIC, 8);
    rkvi_put_u32(&p, RKVI_STATE_VERSION);
    rkvi_put_u32(&p, RKVI_STATE_HEADER_BYTES);
    rkvi_put_u64(&p, st->total_bytes);
    rkvi_put_u64(&p, st->description_bytes);
    rkvi_put_u64(&p, st->n_payloads);
    rkvi_put_u32(&p, st->is_whole ? RKVI_STATE_SCOPE_CACHE : RKVI_STATE_SCOPE_SEQUENCE);
    rkvi_put_u32(&p, RKVI_STATE_HASH_XXH3);
    rkvi_put_u64(&p, 0);
    rkvi_put_u64(&p, rkvi_state_hash(header, RKVI_STATE_HEADER_BYTES - 8, 0));
}

void rkvi_state_encode(const rkvi_state *st, uint8_t *header, uint8_t *description)
{
    rkvi_put p = {description};
    put_header(st, header);
    put_description(st, &p);
    assert(p.at == description + st->description_bytes);
    rkvi_put_u64(&p, rkvi_state_hash(description, st->description_bytes, 0));
}

void rkvi_state_checksum(const uint8_t *bytes, uint64_t n, uint64_t index, uint8_t *out)
{
    rkvi_put p = {out};
    rkvi_put_u64(&p, rkvi_state_hash(bytes, n, index));
}
