/* step_state.c: saving and loading, between steps. */
#include "step_state.h"

#include "cache_fill.h"
#include "cache_unseen.h"
#include "state_format.h"
#include "state_hash.h"
#include "step_fill.h"

#include <stdlib.h>
#include <string.h>

/* One save or load. */
typedef struct job {
    rkv_cache *h;
    const rkv_state_params *p;
    rkvi_state st;
    rkvi_mover mover;
    uint64_t done_bytes;
    uint8_t *kept; /* load: [tile * n_layers + layer], of what is present that which this cache holds */
} job;

static uint64_t largest_payload(const rkvi_config *cfg)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < cfg->n_layers; l++) {
        const uint64_t bytes = rkvi_state_payload_bytes(cfg, l);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void tell(job *j, uint64_t bytes)
{
    j->done_bytes += bytes;
    if (j->p->progress)
        j->p->progress(j->p->progress_user, j->p->write ? "saving cells" : "loading cells",
                       j->done_bytes, j->st.total_bytes);
}

static rkv_status write_out(job *j, const void *data, uint64_t bytes)
{
    const int32_t r = j->p->write(j->p->user, data, bytes);
    if (r == 0)
        return RKV_OK;
    return rkvi_fail(RKV_E_IO, "the write function gave %d after %llu of %llu bytes", r,
                     (unsigned long long)j->done_bytes, (unsigned long long)j->st.total_bytes);
}

static rkv_status read_in(job *j, void *data, uint64_t bytes)
{
    const int32_t r = j->p->read(j->p->user, data, bytes);
    if (r == 0)
        return RKV_OK;
    return rkvi_fail(RKV_E_IO, "the read function gave %d after %llu bytes, asked for %llu more", r,
                     (unsigned long long)j->done_bytes, (unsigned long long)bytes);
}

/* --------------------------------------------------------------------- save */

static rkv_status collect(rkv_cache *h, uint32_t sequence, rkvi_state *st)
{
    const bool is_whole = sequence == RKV_STATE_ALL;
    return rkvi_state_collect(st, &h->cfg, &h->cache.tiles, &h->cache.seqs[is_whole ? 0 : sequence],
                              is_whole ? h->cfg.n_sequences : 1, is_whole);
}

rkv_status rkvi_state_size(rkv_cache *h, uint32_t sequence, uint64_t *out_bytes)
{
    rkvi_state st;
    const rkv_status s = collect(h, sequence, &st);
    if (s != RKV_OK)
        return s;
    *out_bytes = st.total_bytes;
    rkvi_state_free(&st);
    return RKV_OK;
}

static rkv_status write_description(job *j)
{
    const uint64_t bytes =
        RKVI_STATE_HEADER_BYTES + j->st.description_bytes + RKVI_STATE_CHECKSUM_BYTES;
    uint8_t *text = malloc(bytes);
    if (!text)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %llu bytes of a state's description",
                         (unsigned long long)bytes);
    rkvi_state_encode(&j->st, text, text + RKVI_STATE_HEADER_BYTES);
    const rkv_status s = write_out(j, text, bytes);
    free(text);
    if (s == RKV_OK)
        tell(j, bytes);
    return s;
}

/* Where a tile-layer's bytes can be written from without a copy. */
static uint8_t *direct(const job *j, uint32_t tile, uint32_t layer)
{
    return rkvi_state_is_full(&j->st, tile)
               ? rkvi_mover_host_cells(&j->mover, j->st.records[tile], layer)
               : NULL;
}

/* Tile-layer i to `to`: at once from the host, enqueued from the device. */
static rkv_status gather(job *j, uint64_t i, uint8_t *to)
{
    const uint32_t tile = (uint32_t)(i / j->h->cfg.n_layers),
                   layer = (uint32_t)(i % j->h->cfg.n_layers);
    const uint64_t bytes = rkvi_state_payload_bytes(&j->h->cfg, layer);
    const uint8_t *host = rkvi_mover_host_cells(&j->mover, j->st.records[tile], layer);
    if (!host)
        return rkvi_mover_fetch(&j->mover, j->st.records[tile], layer, to);
    rkvi_mover_access(&j->mover, host, bytes, RKVI_READ);
    rkvi_mover_access(&j->mover, to, bytes, RKVI_WRITE);
    memcpy(to, host, bytes);
    return RKV_OK;
}

/* `at` moves on in the staging memory, where tile-layer i may lie. */
static rkv_status emit(job *j, uint64_t i, uint8_t **at)
{
    const uint32_t tile = (uint32_t)(i / j->h->cfg.n_layers),
                   layer = (uint32_t)(i % j->h->cfg.n_layers);
    const uint64_t bytes = rkvi_state_payload_bytes(&j->h->cfg, layer);
    uint8_t *from = direct(j, tile, layer), sum[RKVI_STATE_CHECKSUM_BYTES];
    if (!from) {
        from = *at;
        *at += rkvi_align_up(bytes, RKVI_PLACE_ALIGN);
        rkvi_mover_access(&j->mover, from, bytes, RKVI_READ | RKVI_WRITE);
        rkvi_state_blank(&j->st, tile, layer, from);
    } else {
        rkvi_mover_access(&j->mover, from, bytes, RKVI_READ);
    }
    rkvi_state_checksum(from, bytes, i, sum);
    rkv_status s = write_out(j, from, bytes);
    if (s == RKV_OK)
        s = write_out(j, sum, sizeof sum);
    if (s == RKV_OK)
        tell(j, bytes + sizeof sum);
    return s;
}

/* Tile-layers [i, *out_end) fill the staging memory, then are written. */
static rkv_status save_some(job *j, uint64_t i, uint64_t n, uint64_t *out_end)
{
    uint64_t end = i;
    rkv_status s = RKV_OK;
    for (; end < n && s == RKV_OK; end++) {
        const uint32_t layer = (uint32_t)(end % j->h->cfg.n_layers);
        const uint64_t bytes = rkvi_state_payload_bytes(&j->h->cfg, layer);
        uint8_t *to;
        if (!j->st.present[end] || direct(j, (uint32_t)(end / j->h->cfg.n_layers), layer))
            continue;
        if (!rkvi_mover_has_room(&j->mover, bytes))
            break;
        s = rkvi_mover_room(&j->mover, bytes, &to);
        if (s == RKV_OK)
            s = gather(j, end, to);
    }
    if (s == RKV_OK)
        s = rkvi_mover_sync(&j->mover);
    uint8_t *at = j->mover.staging;
    for (; i < end && s == RKV_OK; i++)
        if (j->st.present[i])
            s = emit(j, i, &at);
    *out_end = end;
    return s;
}

rkv_status rkvi_state_save(rkv_cache *h, const rkv_state_params *p)
{
    job j = {.h = h, .p = p};
    rkv_status s = collect(h, p->sequence, &j.st);
    if (s != RKV_OK)
        return s;
    const uint64_t n = (uint64_t)j.st.n_tiles * h->cfg.n_layers;
    s = rkvi_mover_open(&j.mover, h, largest_payload(&h->cfg));
    if (s == RKV_OK) {
        s = write_description(&j);
        for (uint64_t i = 0; i < n && s == RKV_OK;)
            s = save_some(&j, i, n, &i);
        s = rkvi_mover_close(&j.mover, s);
    }
    rkvi_state_free(&j.st);
    return s;
}

/* --------------------------------------------------------------------- load */

static rkv_status read_header(job *j)
{
    uint8_t header[RKVI_STATE_HEADER_BYTES];
    if (j->p->size_bytes && j->p->size_bytes < sizeof header)
        return rkvi_fail(RKV_E_DATA, "there are %llu bytes to read; a state has %u at least",
                         (unsigned long long)j->p->size_bytes, RKVI_STATE_HEADER_BYTES);
    rkv_status s = read_in(j, header, sizeof header);
    if (s == RKV_OK)
        s = rkvi_state_read_header(&j->st, &j->h->cfg, header, j->p->size_bytes);
    if (s != RKV_OK || j->st.is_whole == (j->p->sequence == RKV_STATE_ALL))
        return s;
    if (j->st.is_whole)
        return rkvi_fail(RKV_E_DATA, "the state is one of a whole cache; load it with RKV_STATE_ALL");
    return rkvi_fail(RKV_E_DATA, "the state is one of a single sequence; load it into a sequence");
}

/* On failure nothing of the state is left. */
static rkv_status read_description(job *j)
{
    rkv_status s = read_header(j);
    if (s != RKV_OK)
        return s;
    const uint64_t bytes = j->st.description_bytes + RKVI_STATE_CHECKSUM_BYTES;
    uint8_t *text = malloc(bytes);
    if (!text)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %llu bytes of a state's description",
                         (unsigned long long)bytes);
    j->done_bytes = RKVI_STATE_HEADER_BYTES;
    s = read_in(j, text, bytes);
    if (s == RKV_OK)
        s = rkvi_state_decode(&j->st, text);
    free(text);
    if (s == RKV_OK)
        tell(j, bytes);
    return s;
}

/* Present, and seen by what a sequence goes on with, or its last tile. */
static rkv_status find_kept(job *j)
{
    const rkvi_config *cfg = &j->h->cfg;
    const size_t n = (size_t)j->st.n_tiles * cfg->n_layers;
    j->kept = calloc(n + 1, 1);
    if (!j->kept)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the %u tiles of a state", j->st.n_tiles);
    for (uint32_t i = 0; i < j->st.n_seqs; i++)
        for (uint32_t l = 0; l < cfg->n_layers; l++) {
            const rkvi_seq *s = &j->st.seqs[i];
            const int64_t floor = rkvi_cache_floor(cfg, s, l);
            for (uint32_t k = 0; k < s->n_segments; k++) {
                const rkvi_segment *g = &s->segments[k];
                if (rkvi_segment_end(g) > floor || g->tile_index + 1 == s->n_tiles)
                    j->kept[(size_t)s->tiles[g->tile_index] * cfg->n_layers + l] = 1;
            }
        }
    for (size_t k = 0; k < n; k++)
        j->kept[k] &= j->st.present[k];
    return RKV_OK;
}

static rkv_status take_tiles(job *j)
{
    uint64_t n_segments = 0, n_items = 0;
    for (uint32_t i = 0; i < j->st.n_seqs; i++) {
        n_segments += j->st.seqs[i].n_segments;
        n_items += j->st.seqs[i].n_tiles;
    }
    if (n_items > j->st.n_tiles) /* it shares tiles: begin counts what a batch takes */
        n_segments = 0;
    rkv_status s = rkvi_cache_fill_fits(&j->h->cache, j->st.n_tiles, n_segments);
    if (s != RKV_OK)
        return s;
    j->st.records = malloc((j->st.n_tiles + (size_t)1) * sizeof *j->st.records);
    if (!j->st.records)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the %u tiles of a state", j->st.n_tiles);
    s = find_kept(j);
    return s == RKV_OK ? rkvi_cache_fill_take(&j->h->cache, j->st.n_tiles, j->kept, j->st.records) : s;
}

static rkv_status read_cells(job *j, uint64_t i, uint8_t *to, uint64_t bytes)
{
    uint8_t sum[RKVI_STATE_CHECKSUM_BYTES], want[RKVI_STATE_CHECKSUM_BYTES];
    rkvi_mover_access(&j->mover, to, bytes, RKVI_WRITE);
    rkv_status s = read_in(j, to, bytes);
    if (s == RKV_OK)
        s = read_in(j, sum, sizeof sum);
    if (s != RKV_OK)
        return s;
    rkvi_state_checksum(to, bytes, i, want);
    if (memcmp(sum, want, sizeof sum) != 0)
        return rkvi_fail(
            RKV_E_DATA, "the state is damaged: the checksum of tile %llu, KV layer %llu differs",
            (unsigned long long)(i / j->h->cfg.n_layers), (unsigned long long)(i % j->h->cfg.n_layers));
    tell(j, bytes + sizeof sum);
    return RKV_OK;
}

/* Straight into host memory, or through the staging memory to the device; what
 * this cache does not hold goes nowhere. */
static rkv_status load_one(job *j, uint64_t i)
{
    const uint32_t tile = j->st.records[i / j->h->cfg.n_layers],
                   layer = (uint32_t)(i % j->h->cfg.n_layers);
    const uint64_t bytes = rkvi_state_payload_bytes(&j->h->cfg, layer);
    if (!j->st.present[i])
        return RKV_OK;
    uint8_t *to = rkvi_mover_host_cells(&j->mover, tile, layer);
    if (to)
        return read_cells(j, i, to, bytes);
    rkv_status s = rkvi_mover_room(&j->mover, bytes, &to);
    if (s == RKV_OK)
        s = read_cells(j, i, to, bytes);
    return s == RKV_OK && j->kept[i] ? rkvi_mover_put(&j->mover, tile, layer, to) : s;
}

/* All was read: from here on nothing can fail. */
static void install(job *j)
{
    rkvi_cache *c = &j->h->cache;
    const uint32_t first = j->st.is_whole ? 0 : j->p->sequence;
    for (uint32_t i = 0; i < j->st.n_seqs; i++) {
        for (uint32_t t = 0; t < j->st.seqs[i].n_tiles; t++)
            j->st.seqs[i].tiles[t] = j->st.records[j->st.seqs[i].tiles[t]];
        rkvi_cache_fill_keep(c, j->st.seqs[i].n_tiles, j->st.seqs[i].tiles);
    }
    for (uint32_t i = 0; i < j->st.n_seqs; i++)
        rkvi_cache_fill_replace(c, first + i, &j->st.seqs[i]);
    for (uint32_t i = j->st.n_seqs; j->st.is_whole && i < j->h->cfg.n_sequences; i++) {
        rkvi_seq none = {0};
        rkvi_cache_fill_replace(c, i, &none);
    }
    rkvi_cache_fill_drop(c, j->st.n_tiles, j->st.records); /* the reference of their taking */
}

rkv_status rkvi_state_load(rkv_cache *h, const rkv_state_params *p)
{
    job j = {.h = h, .p = p};
    rkv_status s = read_description(&j);
    if (s != RKV_OK)
        return s;
    const uint64_t n = (uint64_t)j.st.n_tiles * h->cfg.n_layers;
    s = rkvi_mover_open(&j.mover, h, largest_payload(&h->cfg));
    if (s == RKV_OK) {
        s = take_tiles(&j);
        const bool taken = s == RKV_OK;
        for (uint64_t i = 0; i < n && s == RKV_OK; i++)
            s = load_one(&j, i);
        s = rkvi_mover_close(&j.mover, s);
        if (s == RKV_OK)
            install(&j);
        else if (taken)
            rkvi_cache_fill_drop(&h->cache, j.st.n_tiles, j.st.records);
    }
    rkvi_state_free(&j.st);
    free(j.kept);
    return s;
}
