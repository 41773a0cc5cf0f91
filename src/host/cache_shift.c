/* SPDX-License-Identifier: MIT
 *
 * cache_shift.c: shifting positions: the cache's counts and limits around
 * seq_shift.c.  Tiles, places and tails know nothing of it.
 */
#include "cache.h"
#include "cache_places.h"
#include "cache_unseen.h"

#define POS_END ((int64_t)1 << 62)

static rkv_status check(const rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to, int64_t delta,
                        uint32_t *out_more)
{
    rkv_status s = rkvi_seq_shift_check(&c->seqs[sequence], from, to, delta, c->cfg->max_turns, POS_END, out_more);
    if (s == RKV_OK)
        s = rkvi_cache_can_move(c, sequence, from, to, delta);
    const uint64_t most = c->cfg->capacity_tiles + c->cfg->extra_segments;
    if (s == RKV_OK && *out_more && c->tiles.n_shared == 0 && c->n_segments + *out_more > most)
        return rkvi_fail(RKV_E_CAPACITY,
                         "the shift would make %llu separate runs of positions, at most %llu are kept; shift larger "
                         "ranges, or create the cache with more extra_segments",
                         (unsigned long long)(c->n_segments + *out_more), (unsigned long long)most);
    return s;
}

rkv_status rkvi_cache_sequence_can_shift(const rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to,
                                         int64_t delta)
{
    uint32_t more;
    return check(c, sequence, from, to, delta, &more);
}

rkv_status rkvi_cache_sequence_shift(rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to, int64_t delta)
{
    uint32_t more;
    rkv_status s = check(c, sequence, from, to, delta, &more);
    if (s == RKV_OK)
        s = rkvi_seq_take_ahead(&c->seqs[sequence], more);
    if (s != RKV_OK)
        return s;
    c->n_segments -= c->seqs[sequence].n_segments;
    c->layout++;
    rkvi_seq_shift(&c->seqs[sequence], from, to, delta);
    rkvi_cache_look_from_start(c, sequence);
    c->n_segments += c->seqs[sequence].n_segments;
    rkvi_seq_reserve(&c->seqs[sequence], 0, 0); /* ahead of the next one, if there is memory now */
    return RKV_OK;
}
