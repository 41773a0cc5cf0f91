/* state_format.h: what a saved state says, and its bytes (docs/state-format.md).
 *
 *   [header 64][description, its checksum][cells of tile 0: KV layer 0, checksum]
 *   [tile 0: KV layer 1, checksum] ... [tile n-1: KV layer m-1, checksum]
 *
 * Pure: it knows sequences, tiles and parameters, but no device and no file.
 * Cells of a tile-layer are written in the stored form, without the padding. */
#ifndef RKVI_STATE_FORMAT_H
#define RKVI_STATE_FORMAT_H

#include "config.h"
#include "seq.h"
#include "tile.h"

#define RKVI_STATE_HEADER_BYTES 64u
#define RKVI_STATE_CHECKSUM_BYTES 8u

/* Cells of a tile that a sequence of the state holds. */
typedef struct rkvi_state_cover {
    uint32_t tile, first, count;
} rkvi_state_cover;

typedef struct rkvi_state {
    const rkvi_config *cfg;
    bool is_whole; /* a whole cache; else one sequence */
    uint32_t n_seqs, n_tiles;
    uint32_t n_rope;        /* RoPE frequencies in the state that is read */
    rkvi_seq *seqs;    /* their tiles[] are numbers of the state's tiles */
    uint32_t *records; /* [tile] its record in the tile table; of a state that is read: not yet */
    uint8_t *present;  /* [tile * n_layers + layer] its cells are in the state */
    rkvi_state_cover *covers; /* sorted by tile and first cell; they may overlap */
    uint64_t n_covers;
    uint64_t n_payloads;
    uint64_t description_bytes, payload_bytes, total_bytes; /* payloads with their checksums */
} rkvi_state;

/* The cells of one tile-layer. */
static inline uint64_t rkvi_state_payload_bytes(const rkvi_config *cfg, uint32_t layer)
{
    return rkvi_geom_cells_bytes(&cfg->layers[layer].geom);
}

/* What saving n sequences would write.  On failure there is nothing to free. */
rkv_status rkvi_state_collect(rkvi_state *st, const rkvi_config *cfg, const rkvi_tiles *tiles,
                              const rkvi_seq *seqs, uint32_t n, bool is_whole);
/* Writes the 64 bytes of the header, and the description with its checksum
 * (description_bytes + 8). */
void rkvi_state_encode(const rkvi_state *st, uint8_t *header, uint8_t *description);

/* Checks a header against what there is to read (0: unknown) and what this
 * cache could hold; fills the sizes.  RKV_E_DATA, RKV_E_CAPACITY. */
rkv_status rkvi_state_read_header(rkvi_state *st, const rkvi_config *cfg, const uint8_t *header,
                                  uint64_t size_bytes);
/* Checks a description (with its checksum) against the cache; fills the rest.
 * On failure there is nothing to free. */
rkv_status rkvi_state_decode(rkvi_state *st, const uint8_t *description);
void rkvi_state_free(rkvi_state *st);

/* Zeroes all cells of a tile-layer's bytes that the state's sequences do not
 * hold; is_full: there are none. */
bool rkvi_state_is_full(const rkvi_state *st, uint32_t tile);
void rkvi_state_blank(const rkvi_state *st, uint32_t tile, uint32_t layer, uint8_t *bytes);

/* The checksum of a payload's bytes and of its index. */
void rkvi_state_checksum(const uint8_t *bytes, uint64_t n, uint64_t index, uint8_t *out);

/* Between the files of state: fills covers from seqs. */
rkv_status rkvi_state_cover_make(rkvi_state *st);

/* The lowest position that a row at `pos` or later may see in a KV layer. */
int64_t rkvi_state_lowest_seen(const rkvi_config *cfg, uint32_t layer, int64_t pos);

/* How a KV layer's K were rotated: k_form, frequencies of its own (0: the
 * cache's, or not known), their hash with the pairing as its seed. */
typedef struct rkvi_state_rope {
    uint32_t k_form, n;
    uint64_t hash;
} rkvi_state_rope;
rkvi_state_rope rkvi_state_rope_of(const rkvi_config *cfg, uint32_t layer);

#endif
