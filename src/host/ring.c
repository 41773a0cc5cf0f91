#include "ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NO_ITEM UINT32_MAX
#define PITCH_MAX ((uint64_t)1 << 31) /* of a 2D copy, in CUDA */
#define PENDING RKVI_MARK_PENDING

rkv_status rkvi_ring_init(rkvi_ring *r, uint64_t bytes, uint64_t copy_bytes, uint64_t smallest_bytes,
                          uint32_t max_items)
{
    *r = (rkvi_ring){.bytes = bytes, .copy_bytes = copy_bytes, .join = true};
    const uint64_t in_ring = smallest_bytes ? bytes / smallest_bytes + 2 : 2;
    uint32_t hash_size = 16;
    if (in_ring > (uint32_t)1 << 30 || max_items > UINT32_MAX - in_ring)
        return rkvi_fail(RKV_E_OVERFLOW, "a ring of %llu bytes holds %llu tile-layers; at most 2^30 are numbered",
                         (unsigned long long)bytes, (unsigned long long)in_ring);
    while (hash_size < 2 * in_ring)
        hash_size *= 2;
    r->slots_room = (uint32_t)in_ring;
    r->items_room = max_items + (uint32_t)in_ring;
    r->hash_mask = hash_size - 1;
    r->slots = calloc(r->slots_room, sizeof *r->slots);
    r->items = calloc((size_t)r->items_room + max_items, sizeof *r->items);
    r->ahead = calloc(in_ring, sizeof *r->ahead);
    r->hash = calloc(hash_size, sizeof *r->hash);
    if (r->slots && r->items && r->ahead && r->hash)
        return RKV_OK;
    rkvi_ring_free(r);
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a ring's list of %u tile-layers", max_items);
}

void rkvi_ring_free(rkvi_ring *r)
{
    free(r->slots);
    free(r->items);
    free(r->ahead);
    free(r->hash);
    *r = (rkvi_ring){0};
}

uint64_t rkvi_ring_launch_bytes(const rkvi_ring *r, uint64_t largest_bytes)
{
    /* Of equal laps half the shortest one: a launch's slots don't cover each other. */
    if (r->laps)
        return 5 * largest_bytes <= r->bytes ? (r->bytes - 3 * largest_bytes) / 2 : 0;
    /* Half the ring, so that the other half fills meanwhile; the wrap may waste
     * up to one slot, which must fit as well. */
    return 2 * largest_bytes <= r->bytes ? r->bytes / 2 : 0;
}

/* ------------------------------------------------------------------- slots */

static rkvi_ring_slot *slot_at(const rkvi_ring *r, uint32_t i)
{
    const uint32_t k = r->first_slot + i;
    return &r->slots[k < r->slots_room ? k : k - r->slots_room];
}

static void pop_front(rkvi_ring *r)
{
    const rkvi_ring_slot *s = slot_at(r, 0);
    if (s->launch > r->freed_launch)
        r->freed_launch = s->launch;
    r->first_slot = r->first_slot + 1 < r->slots_room ? r->first_slot + 1 : 0;
    r->n_slots--;
}

static void pop_back(rkvi_ring *r)
{
    r->head = slot_at(r, r->n_slots - 1)->at;
    r->n_slots--;
}

static uint64_t place_of(const rkvi_ring *r, uint64_t bytes)
{
    const uint64_t offset = r->head % r->bytes;
    const bool lap_ends = r->lap_bytes && offset >= r->lap_bytes;
    return offset + bytes > r->bytes || lap_ends ? r->head + (r->bytes - offset) : r->head;
}

/* Lays out one slot at the head, giving up the oldest slots that it covers.
 * False, and nothing changed, when one of them is read by `limit` or later. */
static bool lay_out(rkvi_ring *r, uint64_t bytes, uint64_t limit, uint64_t *out_at)
{
    const uint64_t at = place_of(r, bytes);
    const uint64_t gone = at + bytes > r->bytes ? at + bytes - r->bytes : 0;
    uint32_t n = 0;
    for (; n < r->n_slots && slot_at(r, n)->at < gone; n++)
        if (slot_at(r, n)->launch >= limit)
            return false;
    while (n--)
        pop_front(r);
    assert(r->n_slots < r->slots_room);
    *slot_at(r, r->n_slots) = (rkvi_ring_slot){.at = at, .bytes = bytes, .item = NO_ITEM};
    r->n_slots++;
    r->head = at + bytes;
    *out_at = at;
    return true;
}

static void settle(rkvi_ring *r, uint32_t item, uint64_t at)
{
    rkvi_ring_item *it = &r->items[item];
    rkvi_ring_slot *s = slot_at(r, r->n_slots - 1);
    it->at = at;
    it->dep = r->freed_launch;
    it->in_mark = 0;
    s->launch = it->launch;
    s->item = item;
}

/* ---------------------------------------------------------------- matching */

static uint32_t hash_of(const rkvi_ring_item *it)
{
    uint64_t h = it->serial * 0x9E3779B97F4A7C15u ^ (uint64_t)it->site * 0xC2B2AE3D27D4EB4Fu;
    return (uint32_t)(h ^ h >> 32);
}

static bool same(const rkvi_ring_item *a, const rkvi_ring_item *b)
{
    return a->site == b->site && a->layer == b->layer && a->serial == b->serial &&
           a->generation == b->generation;
}

static void add_ahead(rkvi_ring *r, uint32_t n, uint32_t item)
{
    r->ahead[n] = r->items[item];
    uint32_t h = hash_of(&r->ahead[n]) & r->hash_mask;
    while (r->hash[h] != UINT32_MAX)
        h = (h + 1) & r->hash_mask;
    r->hash[h] = n;
}

/* Moves the slots copied ahead into `ahead` and the hash; the slots stay, read
 * by nobody yet.  Returns how many. */
static uint32_t collect_ahead(rkvi_ring *r)
{
    uint32_t n = 0;
    memset(r->hash, 0xff, ((size_t)r->hash_mask + 1) * sizeof *r->hash);
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = slot_at(r, i);
        if (s->item == NO_ITEM || s->item < r->n_list) {
            s->item = NO_ITEM;
            continue;
        }
        add_ahead(r, n, s->item);
        s->item = n; /* for the moment: index into ahead */
        s->launch = PENDING;
        n++;
    }
    return n;
}

static uint32_t find_ahead(const rkvi_ring *r, const rkvi_ring_item *it)
{
    for (uint32_t h = hash_of(it) & r->hash_mask; r->hash[h] != UINT32_MAX; h = (h + 1) & r->hash_mask)
        if (same(&r->ahead[r->hash[h]], it))
            return r->hash[h];
    return UINT32_MAX;
}

/* Slots copied ahead (launch PENDING) get the launch of the item that matches
 * them, or are dropped.  ahead[].launch holds the matching item's index. */
static void match(rkvi_ring *r, uint32_t n, uint32_t n_ahead)
{
    for (uint32_t i = 0; i < n_ahead; i++)
        r->ahead[i].launch = NO_ITEM;
    for (uint32_t i = 0; n_ahead && i < n; i++) {
        const uint32_t a = find_ahead(r, &r->items[i]);
        if (a == UINT32_MAX || r->ahead[a].launch != NO_ITEM)
            continue;
        r->ahead[a].launch = i;
        r->items[i].at = r->ahead[a].at;
        r->items[i].dep = 0;
        r->items[i].in_mark = r->ahead[a].in_mark;
    }
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = slot_at(r, i);
        if (s->launch != PENDING)
            continue;
        const uint64_t item = r->ahead[s->item].launch;
        if (item == NO_ITEM) {
            *s = (rkvi_ring_slot){.at = s->at, .bytes = s->bytes, .item = NO_ITEM};
            r->predicted_wrong++;
            r->discarded_bytes += s->bytes;
        } else {
            s->launch = r->items[item].launch;
            s->item = (uint32_t)item;
            r->predicted_right++;
        }
    }
}

/* The slot used last gives its room to an item used before it. */
static bool evict_back(rkvi_ring *r, uint64_t launch)
{
    if (r->n_slots == 0)
        return false;
    rkvi_ring_slot *s = slot_at(r, r->n_slots - 1);
    if (s->launch != 0 && (s->launch <= launch || s->item == NO_ITEM))
        return false;
    if (s->item != NO_ITEM) {
        r->items[s->item].in_mark = 0;
        r->discarded_bytes += s->bytes;
    }
    pop_back(r);
    return true;
}

/* Drops all that was copied ahead for items from `from` on that are not yet
 * placed: then what is left are slots of launches before the list. */
static void drop_matches(rkvi_ring *r, uint32_t n)
{
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = slot_at(r, i);
        if (s->item != NO_ITEM) {
            r->discarded_bytes += r->items[s->item].in_mark ? s->bytes : 0;
            *s = (rkvi_ring_slot){.at = s->at, .bytes = s->bytes, .item = NO_ITEM};
        }
    }
    for (uint32_t i = 0; i < n; i++)
        r->items[i].in_mark = 0;
}

static bool lay_out_list(rkvi_ring *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        rkvi_ring_item *it = &r->items[i];
        uint64_t at = 0;
        if (it->in_mark)
            continue;
        while (!lay_out(r, it->bytes, it->launch, &at))
            if (!evict_back(r, it->launch))
                return false;
        settle(r, i, at);
    }
    return true;
}

/* --------------------------------------------------------------------- laps */

/* Laps as long as each other, each with room for the item that ends it.  In a
 * ring of a few slots a lap is as long as it gets. */
static uint64_t lap_of(const rkvi_ring *r, uint32_t n)
{
    const rkvi_ring_item *p = r->items + r->items_room;
    const uint64_t most = r->bytes - r->largest_bytes;
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += p[i].bytes;
    if (total <= r->bytes || r->bytes < 5 * r->largest_bytes)
        return 0;
    const uint64_t n_laps = (total + most - 1) / most;
    return (total + n_laps - 1) / n_laps;
}

/* Where the list begins: with what was copied ahead of it, or the next lap. */
static uint64_t lap_begin(const rkvi_ring *r)
{
    if (r->n_items > r->n_list)
        return r->items[r->n_list].at;
    return r->head % r->bytes ? r->head + (r->bytes - r->head % r->bytes) : r->head;
}

/* Items copied ahead that are the new list's first ones, in the slots that they
 * have in it.  Moves head from the list's begin to their end. */
static uint32_t match_head(rkvi_ring *r, uint32_t n)
{
    const rkvi_ring_item *p = rkvi_ring_new_items(r), *ahead = r->items + r->n_list;
    const uint32_t n_ahead = r->n_items - r->n_list;
    uint32_t i = 0;
    r->head = lap_begin(r);
    for (; i < n && i < n_ahead && same(&p[i], &ahead[i]) && place_of(r, p[i].bytes) == ahead[i].at; i++)
        r->head = ahead[i].at + p[i].bytes;
    return i;
}

static void take_ahead(rkvi_ring *r, uint32_t n)
{
    rkvi_ring_item *p = rkvi_ring_new_items(r);
    const rkvi_ring_item *ahead = r->items + r->n_list;
    const uint32_t n_ahead = r->n_items - r->n_list, k = match_head(r, n);
    for (uint32_t i = 0; i < k; i++) {
        p[i].at = ahead[i].at;
        p[i].in_mark = ahead[i].in_mark;
    }
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = slot_at(r, i);
        const bool is_ahead = s->item != NO_ITEM && s->item >= r->n_list;
        const uint32_t item = is_ahead ? s->item - r->n_list : NO_ITEM;
        s->item = item < k ? item : NO_ITEM;
        if (is_ahead)
            s->launch = item < k ? p[item].launch : 0;
        if (is_ahead && item >= k)
            r->discarded_bytes += s->bytes;
    }
    while (r->n_slots && slot_at(r, r->n_slots - 1)->at >= r->head)
        r->n_slots--;
    r->predicted_right += k;
    r->predicted_wrong += n_ahead - k;
}

static void plan_laps(rkvi_ring *r, uint32_t n)
{
    rkvi_ring_item *p = rkvi_ring_new_items(r);
    for (uint32_t i = 0; i < n; i++)
        p[i].in_mark = p[i].dep = 0;
    r->lap_bytes = lap_of(r, n);
    take_ahead(r, n);
    memcpy(r->items, p, n * sizeof *r->items);
    r->n_list = r->n_items = n;
    r->next = 0;
    r->predict_cut = false;
    const bool ok = lay_out_list(r, n);
    assert(ok);
    (void)ok;
}

/* The list's items from r->n_items - r->n_list on, behind those before them. */
static void add_ahead_laps(rkvi_ring *r, uint32_t n, uint64_t last_launch)
{
    const rkvi_ring_item *p = rkvi_ring_new_items(r);
    for (uint32_t i = r->n_items - r->n_list; i < n; i++) {
        uint64_t at;
        if (r->n_items == r->items_room || !lay_out(r, p[i].bytes, last_launch + 1, &at)) {
            r->predict_cut = true;
            return;
        }
        r->items[r->n_items] = p[i];
        settle(r, r->n_items++, at);
    }
}

static void predict_laps(rkvi_ring *r, uint32_t n, uint64_t last_launch)
{
    const uint64_t head = r->head, lap = r->lap_bytes;
    r->lap_bytes = lap_of(r, n);
    if (match_head(r, n) == r->n_items - r->n_list) {
        add_ahead_laps(r, n, last_launch);
        return;
    }
    r->head = head; /* another list than before: the next plan sorts that out */
    r->lap_bytes = lap;
}

void rkvi_ring_cycle(rkvi_ring *r, uint32_t n, uint32_t n_ahead, uint64_t last_launch)
{
    rkvi_ring_item *p = rkvi_ring_new_items(r);
    const uint64_t end = n ? p[n - 1].launch : 0, behind = (end > last_launch ? end : last_launch) + 1;
    r->n_slots = r->first_slot = r->n_list = r->n_items = 0;
    r->head = r->freed_launch = 0;
    plan_laps(r, n);
    for (uint32_t i = 0; i < n_ahead; i++)
        p[i].launch = behind;
    r->head = lap_begin(r);
    add_ahead_laps(r, n_ahead, last_launch);
    r->predict_cut = false;
}

/* -------------------------------------------------------------------- lists */

rkvi_ring_item *rkvi_ring_new_items(rkvi_ring *r)
{
    return r->items ? r->items + r->items_room : NULL; /* no tail: there is no list */
}

void rkvi_ring_plan(rkvi_ring *r, uint32_t n)
{
    rkvi_ring_unpredict(r);
    if (r->laps) {
        plan_laps(r, n);
        return;
    }
    const uint32_t n_ahead = collect_ahead(r);
    if (n)
        memcpy(r->items, rkvi_ring_new_items(r), n * sizeof *r->items);
    for (uint32_t i = 0; i < n; i++)
        r->items[i].in_mark = r->items[i].dep = 0;
    match(r, n, n_ahead);
    r->n_list = r->n_items = n;
    r->next = 0;
    r->predict_cut = false;
    if (!lay_out_list(r, n)) {
        drop_matches(r, n);
        /* The attempt may have given up slots of its own launches. */
        if (r->freed_launch >= r->items[0].launch)
            r->freed_launch = r->items[0].launch - 1;
        const bool ok = lay_out_list(r, n);
        assert(ok);
        (void)ok;
    }
}

/* Items from `keep` on, none of them copied, give their slots back. */
static void forget_from(rkvi_ring *r, uint32_t keep)
{
    while (r->n_slots && slot_at(r, r->n_slots - 1)->item != NO_ITEM &&
           slot_at(r, r->n_slots - 1)->item >= keep)
        pop_back(r);
    r->n_items = keep;
    r->predict_cut = false;
}

static uint32_t first_uncopied(const rkvi_ring *r)
{
    return r->next > r->n_list ? r->next : r->n_list;
}

/* Laid out by an earlier prediction: its slot and its finer dep stay. */
static bool is_laid_out(const rkvi_ring *r, uint32_t item, const rkvi_ring_item *p)
{
    const rkvi_ring_item *it = &r->items[item];
    return item < r->n_items && same(it, p) && it->launch == p->launch && it->host_addr == p->host_addr;
}

void rkvi_ring_predict(rkvi_ring *r, uint32_t n, uint64_t last_launch)
{
    const rkvi_ring_item *p = rkvi_ring_new_items(r);
    if (r->laps) {
        rkvi_ring_unpredict(r);
        predict_laps(r, n, last_launch);
        return;
    }
    uint32_t i = 0, laid_out = first_uncopied(r);
    const uint32_t n_copied = laid_out - r->n_list; /* by an earlier prediction */
    memset(r->hash, 0xff, ((size_t)r->hash_mask + 1) * sizeof *r->hash);
    for (uint32_t k = 0; k < n_copied; k++)
        add_ahead(r, k, r->n_list + k);
    for (; i < n; i++)
        if (n_copied == 0 || find_ahead(r, &p[i]) == UINT32_MAX) {
            if (!is_laid_out(r, laid_out, &p[i]))
                break;
            laid_out++;
        }
    forget_from(r, laid_out);
    for (; i < n; i++) {
        uint64_t at;
        if (n_copied && find_ahead(r, &p[i]) != UINT32_MAX)
            continue;
        if (r->n_items == r->items_room || !lay_out(r, p[i].bytes, last_launch + 1, &at)) {
            r->predict_cut = true;
            return;
        }
        r->items[r->n_items] = p[i];
        settle(r, r->n_items++, at);
    }
}

void rkvi_ring_unpredict(rkvi_ring *r)
{
    forget_from(r, first_uncopied(r));
}

void rkvi_ring_reset(rkvi_ring *r, uint64_t launched)
{
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = slot_at(r, i);
        if (s->launch > launched && s->item != NO_ITEM && r->items[s->item].in_mark)
            r->discarded_bytes += s->bytes;
        s->item = NO_ITEM;
        s->launch = s->launch > launched ? 0 : s->launch;
    }
    r->freed_launch = r->freed_launch > launched ? launched : r->freed_launch;
    r->n_list = r->n_items = r->next = 0;
    r->predict_cut = false;
}

/* ------------------------------------------------------------------- copies */

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
 * be freed by the launch that reads `first`, or a later one. */
static uint32_t group_end(const rkvi_ring *r, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < r->n_items && r->join && r->items[end].dep < r->items[first].launch)
        end++;
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
    if (first == r->n_items)
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

uint64_t rkvi_ring_ahead_bytes(const rkvi_ring *r, uint64_t launched)
{
    uint64_t bytes = 0;
    for (uint32_t i = r->next; i-- > 0 && r->items[i].launch > launched;)
        bytes += r->items[i].bytes;
    return bytes;
}
