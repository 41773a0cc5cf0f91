/* SPDX-License-Identifier: MIT
 *
 * seq_shift.c: shifting the positions of a sequence's cells, and what turn the
 * query has to take for them.
 */
#include "seq.h"

#include "diag.h"

#include <assert.h>
#include <string.h>

#define I(x) ((long long)(x))

/* Segments that a shift is about: [a, z), of which the first is cut before and
 * the last one behind the range, or is not. */
typedef struct range {
    uint32_t a, z;
    bool cuts_first, cuts_last;
} range;

static range find_range(const rkvi_seq *s, int64_t from, int64_t to)
{
    range r = {0};
    while (r.a < s->n_segments && rkvi_segment_end(&s->segments[r.a]) <= from)
        r.a++;
    for (r.z = r.a; r.z < s->n_segments && s->segments[r.z].pos < to;)
        r.z++;
    if (r.a < r.z) {
        const rkvi_segment *last = &s->segments[r.z - 1];
        r.cuts_first = s->segments[r.a].pos < from;
        r.cuts_last = rkvi_segment_end(last) > to;
    }
    return r;
}

/* First and last position in the range, and those of the cells around it. */
typedef struct reach {
    int64_t before, first, last, after; /* before: -1, after: INT64_MAX where there is none */
} reach;

static reach find_reach(const rkvi_seq *s, const range *r, int64_t from, int64_t to)
{
    const rkvi_segment *a = &s->segments[r->a], *z = &s->segments[r->z - 1];
    reach x = {.before = -1, .first = a->pos, .last = rkvi_segment_end(z) - 1, .after = INT64_MAX};
    if (r->a > 0)
        x.before = rkvi_segment_end(a - 1) - 1;
    if (r->z < s->n_segments)
        x.after = s->segments[r->z].pos;
    if (r->cuts_first) {
        x.before = from - 1;
        x.first = from;
    }
    if (r->cuts_last) {
        x.last = to - 1;
        x.after = to;
    }
    return x;
}

/* Stretches of one turn other than 0, once the range's has grown by delta. */
static uint32_t turned_after(const rkvi_seq *s, const range *r, int64_t delta)
{
    uint32_t n = 0;
    int64_t last = 0;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const int64_t turn = s->segments[i].turn;
        const bool in = i >= r->a && i < r->z;
        int64_t parts[3];
        uint32_t n_parts = 0;
        if (in && i == r->a && r->cuts_first)
            parts[n_parts++] = turn;
        parts[n_parts++] = in ? turn + delta : turn;
        if (in && i == r->z - 1 && r->cuts_last)
            parts[n_parts++] = turn;
        for (uint32_t k = 0; k < n_parts; k++) {
            n += parts[k] != 0 && parts[k] != last;
            last = parts[k];
        }
    }
    return n;
}

static rkv_status check_positions(const reach *x, int64_t delta, int64_t end)
{
    if (x->first + delta < 0)
        return rkvi_fail(RKV_E_ARGUMENT, "position %lld shifted by %lld is negative; shift by %lld or more",
                         I(x->first), I(delta), -I(x->first));
    if (x->last + delta >= end)
        return rkvi_fail(RKV_E_ARGUMENT, "position %lld shifted by %lld is not below 2^62; shift by %lld or less",
                         I(x->last), I(delta), I(end - 1 - x->last));
    if (x->first + delta <= x->before)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "position %lld shifted by %lld would not come after position %lld, of the cell before it; "
                         "remove the cells between first, or shift by %lld or more",
                         I(x->first), I(delta), I(x->before), I(x->before + 1 - x->first));
    if (x->last + delta >= x->after)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "position %lld shifted by %lld would not come before position %lld, of the cell after it; "
                         "shift that one as well, or by %lld or less",
                         I(x->last), I(delta), I(x->after), I(x->after - 1 - x->last));
    return RKV_OK;
}

rkv_status rkvi_seq_shift_check(const rkvi_seq *s, int64_t from, int64_t to, int64_t delta, uint32_t max_turned,
                                int64_t pos_end, uint32_t *out_more)
{
    const range r = find_range(s, from, to);
    *out_more = 0;
    if (r.a >= r.z || from >= to || delta == 0)
        return RKV_OK;
    const reach x = find_reach(s, &r, from, to);
    const rkv_status st = check_positions(&x, delta, pos_end);
    const uint32_t n = turned_after(s, &r, delta);
    *out_more = r.cuts_first + r.cuts_last;
    if (st == RKV_OK && n > max_turned)
        return rkvi_fail(RKV_E_CAPACITY,
                         "the shift would make %u stretches of cells whose positions differ from those of their K, "
                         "each by its own delta; a sequence can have max_turns, %u: feed some of the cells again, or "
                         "create the cache with a larger max_turns",
                         n, max_turned);
    return st;
}

/* Segment i joins the one before it, if it goes on with it in every way. */
static void join(rkvi_seq *s, uint32_t i)
{
    rkvi_segment *g = &s->segments[i];
    if (i == 0 || i >= s->n_segments || g[-1].tile_index != g->tile_index || !rkvi_segment_goes_on(g - 1, g))
        return;
    g[-1].count += g->count;
    memmove(g, g + 1, (--s->n_segments - i) * sizeof *g);
}

void rkvi_seq_shift(rkvi_seq *s, int64_t from, int64_t to, int64_t delta)
{
    range r = find_range(s, from, to);
    if (r.a >= r.z || from >= to || delta == 0)
        return;
    assert(s->n_segments + r.cuts_first + r.cuts_last <= s->segments_room);
    if (r.cuts_last) {
        rkvi_segment *g = &s->segments[r.z - 1];
        memmove(g + 1, g, (s->n_segments++ - (r.z - 1)) * sizeof *g);
        g->count = (uint32_t)(to - g->pos);
        g[1].first += g->count;
        g[1].count -= g->count;
        g[1].pos = to;
    }
    if (r.cuts_first) {
        rkvi_segment *g = &s->segments[r.a];
        memmove(g + 1, g, (s->n_segments++ - r.a) * sizeof *g);
        g->count = (uint32_t)(from - g->pos);
        g[1].first += g->count;
        g[1].count -= g->count;
        g[1].pos = from;
        r.a++;
        r.z++;
    }
    for (uint32_t i = r.a; i < r.z; i++) {
        s->segments[i].pos += delta;
        s->segments[i].turn += delta;
    }
    join(s, r.z);
    join(s, r.a);
}

uint32_t rkvi_seq_turns(const rkvi_seq *s, uint32_t room, int64_t *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const int64_t turn = s->segments[i].turn;
        uint32_t k = 0;
        if (turn == 0 || (i > 0 && turn == s->segments[i - 1].turn))
            continue;
        while (k < n && out[k] != turn)
            k++;
        if (k < n)
            continue;
        assert(n < room);
        out[n++] = turn;
    }
    (void)room;
    return n;
}

uint32_t rkvi_seq_n_turned(const rkvi_seq *s, int64_t from, int64_t to)
{
    const range r = find_range(s, from, to);
    uint32_t n = 0;
    for (uint32_t i = r.a; i < r.z; i++)
        n += s->segments[i].turn != 0 && (i == r.a || s->segments[i].turn != s->segments[i - 1].turn);
    return n;
}

uint32_t rkvi_seq_n_stretches(const rkvi_seq *s)
{
    uint32_t n = s->n_segments > 0;
    for (uint32_t i = 1; i < s->n_segments; i++)
        n += s->segments[i].turn != s->segments[i - 1].turn;
    return n;
}

void rkvi_seq_leaf_turns(const rkvi_seq *s, uint32_t leaf_cells, uint64_t skip, const int64_t *turns, uint32_t n_turns,
                         uint8_t *out)
{
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i];
        uint64_t n = rkvi_segment_n_leaves(g, leaf_cells);
        const uint64_t skipped = skip < n ? skip : n;
        uint32_t k = 0;
        skip -= skipped;
        n -= skipped;
        while (g->turn && k < n_turns && turns[k] != g->turn)
            k++;
        memset(out, g->turn ? (int)k + 1 : 0, n);
        out += n;
    }
}
