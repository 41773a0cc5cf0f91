#include "ring_slots.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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

/* ------------------------------------------------------------------- slots */

static void pop_front(rkvi_ring *r)
{
    const rkvi_ring_slot *s = rkvi_ring_slot_at(r, 0);
    if (s->launch > r->freed_launch)
        r->freed_launch = s->launch;
    r->first_slot = r->first_slot + 1 < r->slots_room ? r->first_slot + 1 : 0;
    r->n_slots--;
}

static void pop_back(rkvi_ring *r)
{
    r->head = rkvi_ring_slot_at(r, r->n_slots - 1)->at;
    r->n_slots--;
}

bool rkvi_ring_lay_out(rkvi_ring *r, uint64_t bytes, uint64_t limit, uint64_t *out_at)
{
    const uint64_t at = rkvi_ring_place_of(r, bytes);
    const uint64_t gone = at + bytes > r->bytes ? at + bytes - r->bytes : 0;
    uint32_t n = 0;
    for (; n < r->n_slots && rkvi_ring_slot_at(r, n)->at < gone; n++)
        if (rkvi_ring_slot_at(r, n)->launch >= limit)
            return false;
    while (n--)
        pop_front(r);
    assert(r->n_slots < r->slots_room);
    *rkvi_ring_slot_at(r, r->n_slots) = (rkvi_ring_slot){.at = at, .bytes = bytes, .item = RKVI_NO_ITEM};
    r->n_slots++;
    r->head = at + bytes;
    *out_at = at;
    return true;
}

void rkvi_ring_settle(rkvi_ring *r, uint32_t item, uint64_t at)
{
    rkvi_ring_item *it = &r->items[item];
    rkvi_ring_slot *s = rkvi_ring_slot_at(r, r->n_slots - 1);
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
        rkvi_ring_slot *s = rkvi_ring_slot_at(r, i);
        if (s->item == RKVI_NO_ITEM || s->item < r->n_list) {
            s->item = RKVI_NO_ITEM;
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
        if (rkvi_ring_same(&r->ahead[r->hash[h]], it))
            return r->hash[h];
    return UINT32_MAX;
}

/* Slots copied ahead (launch PENDING) get the launch of the item that matches
 * them, or are dropped.  ahead[].launch holds the matching item's index. */
static void match(rkvi_ring *r, uint32_t n, uint32_t n_ahead)
{
    for (uint32_t i = 0; i < n_ahead; i++)
        r->ahead[i].launch = RKVI_NO_ITEM;
    for (uint32_t i = 0, n_left = n_ahead; n_left && i < n; i++) {
        const uint32_t a = find_ahead(r, &r->items[i]);
        if (a == UINT32_MAX || r->ahead[a].launch != RKVI_NO_ITEM)
            continue;
        n_left--;
        r->ahead[a].launch = i;
        r->items[i].at = r->ahead[a].at;
        r->items[i].dep = 0;
        r->items[i].in_mark = r->ahead[a].in_mark;
    }
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = rkvi_ring_slot_at(r, i);
        if (s->launch != PENDING)
            continue;
        const uint64_t item = r->ahead[s->item].launch;
        if (item == RKVI_NO_ITEM) {
            *s = (rkvi_ring_slot){.at = s->at, .bytes = s->bytes, .item = RKVI_NO_ITEM};
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
    rkvi_ring_slot *s = rkvi_ring_slot_at(r, r->n_slots - 1);
    if (s->launch != 0 && (s->launch <= launch || s->item == RKVI_NO_ITEM))
        return false;
    if (s->item != RKVI_NO_ITEM) {
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
        rkvi_ring_slot *s = rkvi_ring_slot_at(r, i);
        if (s->item != RKVI_NO_ITEM) {
            r->discarded_bytes += r->items[s->item].in_mark ? s->bytes : 0;
            *s = (rkvi_ring_slot){.at = s->at, .bytes = s->bytes, .item = RKVI_NO_ITEM};
        }
    }
    for (uint32_t i = 0; i < n; i++)
        r->items[i].in_mark = 0;
}

bool rkvi_ring_lay_out_list(rkvi_ring *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        rkvi_ring_item *it = &r->items[i];
        uint64_t at = 0;
        if (it->in_mark)
            continue;
        while (!rkvi_ring_lay_out(r, it->bytes, it->launch, &at))
            if (!evict_back(r, it->launch))
                return false;
        rkvi_ring_settle(r, i, at);
    }
    return true;
}

/* -------------------------------------------------------------------- lists */

rkvi_ring_item *rkvi_ring_new_items(rkvi_ring *r)
{
    return r->items ? r->items + r->items_room : NULL; /* no tail: there is no list */
}

/* The n first items become the list; n_ahead tile-layers were copied ahead. */
static void lay_out_anew(rkvi_ring *r, uint32_t n, uint32_t n_ahead)
{
    for (uint32_t i = 0; i < n; i++)
        r->items[i].in_mark = r->items[i].dep = 0;
    match(r, n, n_ahead);
    rkvi_ring_begin_list(r, n);
    if (!rkvi_ring_lay_out_list(r, n)) {
        drop_matches(r, n);
        /* The attempt may have given up slots of its own launches. */
        if (r->freed_launch >= r->items[0].launch)
            r->freed_launch = r->items[0].launch - 1;
        const bool ok = rkvi_ring_lay_out_list(r, n);
        assert(ok);
        (void)ok;
    }
}

void rkvi_ring_plan(rkvi_ring *r, uint32_t n)
{
    rkvi_ring_unpredict(r);
    if (r->laps) {
        rkvi_laps_plan(r, n);
        return;
    }
    const uint32_t n_ahead = collect_ahead(r);
    if (n)
        memcpy(r->items, rkvi_ring_new_items(r), n * sizeof *r->items);
    lay_out_anew(r, n, n_ahead);
}

static void copy_items(rkvi_ring *r, uint32_t n, uint64_t more)
{
    rkvi_ring_item *to = rkvi_ring_new_items(r);
    memcpy(to, r->items, n * sizeof *to);
    for (uint32_t i = 0; i < n; i++)
        to[i].launch += more;
}

void rkvi_ring_plan_again(rkvi_ring *r, uint32_t n, uint64_t more)
{
    if (r->laps) {
        copy_items(r, n, more);
        rkvi_ring_plan(r, n);
        return;
    }
    rkvi_ring_unpredict(r);
    const uint32_t n_ahead = collect_ahead(r);
    for (uint32_t i = 0; i < n; i++)
        r->items[i].launch += more;
    lay_out_anew(r, n, n_ahead);
}

/* Items from `keep` on, none of them copied, give their slots back. */
static void forget_from(rkvi_ring *r, uint32_t keep)
{
    while (r->n_slots && rkvi_ring_slot_at(r, r->n_slots - 1)->item != RKVI_NO_ITEM &&
           rkvi_ring_slot_at(r, r->n_slots - 1)->item >= keep)
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
    return item < r->n_items && rkvi_ring_same(it, p) && it->launch == p->launch && it->host_addr == p->host_addr;
}

void rkvi_ring_predict(rkvi_ring *r, uint32_t n, uint64_t last_launch)
{
    const rkvi_ring_item *p = rkvi_ring_new_items(r);
    if (r->laps) {
        rkvi_ring_unpredict(r);
        rkvi_laps_predict(r, n, last_launch);
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
        if (r->n_items == r->items_room || !rkvi_ring_lay_out(r, p[i].bytes, last_launch + 1, &at)) {
            r->predict_cut = true;
            return;
        }
        r->items[r->n_items] = p[i];
        rkvi_ring_settle(r, r->n_items++, at);
    }
}

/* The ring holds little of a long list: what is laid out of it is seen to lie
 * among the first items. */
void rkvi_ring_predict_again(rkvi_ring *r, uint64_t more, uint64_t last_launch)
{
    const uint64_t most = r->laps ? r->n_list : 2 * (uint64_t)r->slots_room + 1;
    const uint32_t n = r->n_list < most ? r->n_list : (uint32_t)most;
    copy_items(r, n, more);
    rkvi_ring_predict(r, n, last_launch);
    if (n == r->n_list || r->predict_cut)
        return;
    copy_items(r, r->n_list, more);
    rkvi_ring_predict(r, r->n_list, last_launch);
}

void rkvi_ring_unpredict(rkvi_ring *r)
{
    forget_from(r, first_uncopied(r));
}

void rkvi_ring_reset(rkvi_ring *r, uint64_t launched)
{
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = rkvi_ring_slot_at(r, i);
        if (s->launch > launched && s->item != RKVI_NO_ITEM && r->items[s->item].in_mark)
            r->discarded_bytes += s->bytes;
        s->item = RKVI_NO_ITEM;
        s->launch = s->launch > launched ? 0 : s->launch;
    }
    r->freed_launch = r->freed_launch > launched ? launched : r->freed_launch;
    rkvi_ring_begin_list(r, 0);
}

