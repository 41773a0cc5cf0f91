/* SPDX-License-Identifier: MIT
 *
 * ring_copies.c: which copies may be enqueued, and what they join.
 */
#include "ring_slots.h"

#define PITCH_MAX ((uint64_t)1 << 31) /* of a 2D copy, in CUDA */
#define PENDING RKVI_MARK_PENDING

/* Items from `first` on that lie one behind the other in ring and host memory,
 * up to `limit` bytes and item `end`. */
static uint32_t piece(const rkvi_ring *r, uint32_t first, uint32_t end, uint64_t limit, uint64_t *out_bytes)
{
    uint64_t bytes = r->items[first].bytes;
    uint32_t i = first + 1;
    for (; i < end; i++) {
        const rkvi_ring_item *a = &r->items[i - 1], *b = &r->items[i];
        if (b->in_mark || b->host_addr != a->host_addr + a->bytes || b->at != a->at + a->bytes ||
            bytes + b->bytes > limit || b->at % r->bytes == 0)
            break;
        bytes += b->bytes;
    }
    *out_bytes = bytes;
    return i - first;
}

/* Adds further pieces of the first one's shape at an equal pitch.  A longer
 * piece is not cut to that shape: its rest would begin the next group, and
 * every later one would be cut out of step. */
static void add_rows(const rkvi_ring *r, rkvi_copy_group *g, uint32_t end)
{
    uint32_t last = g->first;
    while (g->first + g->n_items < end) {
        const uint32_t next = g->first + g->n_items;
        const rkvi_ring_item *a = &r->items[last], *b = &r->items[next];
        uint64_t bytes;
        if (b->in_mark || b->at != r->items[next - 1].at + r->items[next - 1].bytes || b->at % r->bytes == 0 ||
            b->host_addr < a->host_addr + g->width_bytes || (g->rows + 1) * g->width_bytes > r->copy_bytes)
            return;
        const uint64_t pitch = b->host_addr - a->host_addr;
        const uint32_t n = piece(r, next, end, UINT64_MAX, &bytes);
        if (bytes != g->width_bytes || pitch >= PITCH_MAX || (g->rows > 1 && pitch != g->pitch_bytes))
            return;
        g->pitch_bytes = pitch;
        g->rows++;
        g->n_items += n;
        last = next;
    }
}

/* One past the last item that may share a copy with `first`: its slot must not
 * be freed by the launch that reads `first`, or a later one.  No further than a
 * copy reaches, and an item beyond, which tells that a piece is longer. */
static uint32_t group_end(const rkvi_ring *r, uint32_t first)
{
    uint32_t end = first + 1;
    uint64_t bytes = r->items[first].bytes;
    while (end < r->n_items && r->join && r->items[end].dep < r->items[first].launch && bytes <= r->copy_bytes)
        bytes += r->items[end++].bytes;
    return end;
}

static void finish_group(const rkvi_ring *r, rkvi_copy_group *g)
{
    g->dep = g->out_mark = 0;
    for (uint32_t i = g->first; i < g->first + g->n_items; i++) {
        const rkvi_ring_item *it = &r->items[i];
        const uint64_t mark = it->out_mark ? *it->out_mark : 0;
        g->dep = it->dep > g->dep ? it->dep : g->dep;
        g->out_mark = mark > g->out_mark ? mark : g->out_mark;
    }
}

static rkvi_copy_group group_from(const rkvi_ring *r, uint32_t first, uint32_t end)
{
    const rkvi_ring_item *it = &r->items[first];
    rkvi_copy_group g = {.first = first, .rows = 1, .offset = it->at % r->bytes, .host_addr = it->host_addr};
    g.n_items = piece(r, first, end, r->copy_bytes, &g.width_bytes);
    add_rows(r, &g, end);
    finish_group(r, &g);
    return g;
}

bool rkvi_ring_next_group(const rkvi_ring *r, uint64_t launched, uint64_t needed, rkvi_copy_group *out)
{
    uint32_t first = r->next;
    while (first < r->n_items && r->items[first].in_mark)
        first++;
    if (first == r->n_items || r->items[first].dep > launched)
        return false;
    rkvi_copy_group g = group_from(r, first, group_end(r, first));
    const bool cut = r->predict_cut && g.first + g.n_items == r->n_items &&
                     g.rows * g.width_bytes < r->copy_bytes;
    if (g.dep > launched || g.out_mark == PENDING || cut) {
        if (r->items[first].launch > needed)
            return false;
        uint32_t end = first + 1; /* what the needed launch reads, and may be copied now */
        while (end < first + g.n_items && r->items[end].launch <= needed && r->items[end].dep <= launched)
            end++;
        g = group_from(r, first, end);
        if (g.dep > launched || g.out_mark == PENDING)
            return false;
    }
    *out = g;
    return true;
}

void rkvi_ring_issued(rkvi_ring *r, const rkvi_copy_group *group, uint64_t in_mark)
{
    for (uint32_t i = group->first; i < group->first + group->n_items; i++)
        r->items[i].in_mark = in_mark;
    r->next = group->first + group->n_items;
}

/* A window moves along the list: its sum is kept. */
uint64_t rkvi_ring_ahead_bytes(rkvi_ring *r, uint64_t launched)
{
    while (r->counted_to < r->next)
        r->counted_bytes += r->items[r->counted_to++].bytes;
    while (r->counted_from < r->counted_to && r->items[r->counted_from].launch <= launched)
        r->counted_bytes -= r->items[r->counted_from++].bytes;
    return r->counted_bytes;
}
