/* SPDX-License-Identifier: MIT
 *
 * arena.c: the arena's books: limits, shelves of slabs, the thread that adds
 * slabs ahead of need.
 *
 * A shelf holds the slabs for extents of one size, or of any size where sizes
 * are not known ahead.  At most one slab a shelf is in the making, by the
 * background thread or by a take; its bytes count against the limit from the
 * start, so that the limit holds with several at work.
 */
#include "arena_slab.h"
#include "geometry.h"

#include <assert.h>
#include <stdlib.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define SLAB_DEFAULT_BYTES (1024 * MIB)
#define SLAB_SMALL_BYTES (64 * MIB)
#define SLAB_MAX_BYTES (64 * 1024 * MIB) /* drivers refuse larger registrations */
#define BOUNCE_DEFAULT_BYTES (8 * MIB)
#define BOUNCE_MIN_BYTES (64 * KIB)

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What a shelf's slabs are multiples of: its extent, or a page. */
static uint64_t granule(const rkvi_shelf *s)
{
    return s->extent_bytes ? s->extent_bytes : rkvi_arena_extent_bytes(1);
}

/* ---------------------------------------------------------------- shelves */

/* Without a wish: an eighth of the total, so that host memory follows what is
 * used, within bounds that keep registrations few and short. */
static uint64_t choose_slab_bytes(uint64_t wish_bytes, const rkvi_shelf *s)
{
    uint64_t bytes =
        wish_bytes ? wish_bytes : most(least(s->total_bytes / 8, SLAB_DEFAULT_BYTES), SLAB_SMALL_BYTES);
    bytes = least(bytes, SLAB_MAX_BYTES);
    return most(bytes / granule(s), 1) * granule(s);
}

static int by_extent(const void *a, const void *b)
{
    const uint64_t x = ((const rkvi_shelf *)a)->extent_bytes, y = ((const rkvi_shelf *)b)->extent_bytes;
    return x < y ? -1 : x > y;
}

/* Equal sizes, as several KV layers of one geometry bring them, share a shelf. */
static rkv_status add_class(rkvi_arena *a, const rkvi_arena_class *c)
{
    const uint64_t extent = rkvi_arena_extent_bytes(c->extent_bytes);
    rkvi_shelf *s = a->shelves;
    while (s < a->shelves + a->n_shelves && s->extent_bytes != extent)
        s++;
    uint64_t bytes;
    if (!rkvi_mul(extent, c->n_extents, &bytes) || !rkvi_add(bytes, s->total_bytes, &bytes))
        return rkvi_fail(RKV_E_OVERFLOW,
                         "%llu extents of %llu bytes of host memory are beyond 2^62 bytes",
                         (unsigned long long)c->n_extents, (unsigned long long)extent);
    s->extent_bytes = s->largest_bytes = extent;
    s->total_bytes = bytes;
    if (s == a->shelves + a->n_shelves)
        a->n_shelves++;
    return RKV_OK;
}

/* One shelf a size; without classes, one for all. */
static rkv_status init_shelves(rkvi_arena *a, const rkvi_arena_settings *s)
{
    a->shelves = calloc(most(s->n_classes, 1), sizeof *a->shelves);
    if (!a->shelves)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u classes of extents", s->n_classes);
    for (uint32_t i = 0; i < s->n_classes; i++) {
        if (s->classes[i].extent_bytes == 0 || s->classes[i].n_extents == 0)
            continue;
        const rkv_status st = add_class(a, &s->classes[i]);
        if (st)
            return st;
    }
    if (s->n_classes == 0) {
        a->n_shelves = 1;
        a->shelves[0].total_bytes = s->total_bytes;
    }
    /* Rising, so that the first shelf that holds an extent is the smallest one. */
    qsort(a->shelves, a->n_shelves, sizeof *a->shelves, by_extent);
    for (uint32_t i = 0; i < a->n_shelves; i++)
        a->shelves[i].slab_bytes = choose_slab_bytes(s->slab_bytes, &a->shelves[i]);
    return RKV_OK;
}

/* The shelf of the smallest class that holds `bytes`, or the one of any size. */
static rkvi_shelf *shelf_for(rkvi_arena *a, uint64_t bytes)
{
    for (uint32_t i = 0; i < a->n_shelves; i++)
        if (a->shelves[i].extent_bytes == 0 || bytes <= a->shelves[i].extent_bytes)
            return &a->shelves[i];
    return NULL;
}

/* Bytes of the next slab, 0 for none.  Ahead of need (need_bytes 0) it stays
 * within the total, and a slab that holds no extent as large as seen before is
 * no use; a take that needs one is bounded by the limit alone. */
static uint64_t next_slab_bytes(const rkvi_arena *a, const rkvi_shelf *s, uint64_t need_bytes)
{
    const uint64_t total_left = s->total_bytes > s->mapped_bytes ? s->total_bytes - s->mapped_bytes : 0;
    const uint64_t limit_left = (a->limit_bytes - a->mapped_bytes) / granule(s) * granule(s);
    const uint64_t ahead =
        least(s->slab_bytes, rkvi_arena_extent_bytes(least(total_left, RKVI_SIZE_MAX)));
    const uint64_t bytes = least(most(ahead, need_bytes), limit_left);
    return bytes < (need_bytes ? need_bytes : s->largest_bytes) ? 0 : bytes;
}

/* ------------------------------------------------------------ adding slabs */

/* At the end: takes look from the first slab on, so older ones fill up first. */
static void append(rkvi_arena *a, rkvi_shelf *s, rkvi_slab *slab)
{
    if (s->last)
        s->last->next = slab;
    else
        s->first = slab;
    s->last = slab;
    a->n_slabs++;
    if (slab->kind == RKVI_SLAB_UNPINNED)
        a->unpinned_bytes += slab->bytes;
    else
        a->pinned_bytes += slab->bytes;
}

/* Makes one slab with the lock let go meanwhile: takes from other shelves, and
 * from what this one has left, go on.  Called with the lock held; is_making
 * keeps others from this shelf.  Planned bytes are counted before the slab
 * exists, and taken back if it can't be had. */
static rkv_status add_slab(rkvi_arena *a, rkvi_shelf *s, uint64_t bytes, rkvi_slab_progress *progress)
{
    s->is_making = true;
    s->mapped_bytes += bytes;
    a->mapped_bytes += bytes;
    pthread_mutex_unlock(&a->lock);
    rkv_status st;
    rkvi_slab *slab = malloc(sizeof *slab);
    if (!slab)
        st = rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the table of slabs");
    else
        st = rkvi_slab_make(&a->maker, bytes, progress, slab);
    pthread_mutex_lock(&a->lock);
    s->is_making = false;
    s->has_failed = st != RKV_OK;
    if (st) {
        s->mapped_bytes -= bytes;
        a->mapped_bytes -= bytes;
        free(slab);
    } else {
        append(a, s, slab);
    }
    pthread_cond_broadcast(&a->changed);
    return st;
}

/* The largest extent that can be carved now.  Rests at the ends of slabs don't
 * add up, so a sum would hide that a slab is needed. */
static uint64_t room_bytes(const rkvi_shelf *s)
{
    uint64_t room = 0;
    for (const rkvi_slab *slab = s->first; slab; slab = slab->next)
        room = most(room, slab->bytes - slab->used_bytes);
    return room;
}

/* The shelf that needs a slab ahead of need, or NULL: less than half a slab is
 * left, which is the time that the next one has to get ready. */
static rkvi_shelf *low_shelf(rkvi_arena *a)
{
    for (uint32_t i = 0; i < a->n_shelves; i++) {
        rkvi_shelf *s = &a->shelves[i];
        if (!s->is_making && !s->has_failed &&
            room_bytes(s) < most(s->slab_bytes / 2, s->largest_bytes) && next_slab_bytes(a, s, 0))
            return s;
    }
    return NULL;
}

/* Sleeps until a take has used up room; also woken when a slab is there, which
 * changes nothing for it, and to stop. */
static void *background(void *arg)
{
    rkvi_arena *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->is_stopping) {
        rkvi_shelf *s = low_shelf(a);
        if (!s)
            pthread_cond_wait(&a->changed, &a->lock);
        else if (add_slab(a, s, next_slab_bytes(a, s, 0), NULL) && !a->is_stopping)
            /* Kept as has_failed: the take that needs the slab tries itself,
             * and tells its caller why it can't be had. */
            rkvi_log(RKVI_LOG_WARNING, "host memory could not be added ahead of need: %s",
                     rkvi_error_text());
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --------------------------------------------------------------- life cycle */

/* One for each shelf, on the caller's thread, which is told the progress of
 * all of them together. */
static rkv_status first_slabs(rkvi_arena *a, rkvi_slab_progress *progress)
{
    for (uint32_t i = 0; i < a->n_shelves; i++) {
        const uint64_t bytes = next_slab_bytes(a, &a->shelves[i], 0);
        progress->total_bytes += bytes;
        a->mapped_bytes += bytes; /* so that the next shelf sees what is left */
    }
    a->mapped_bytes = 0;
    rkv_status st = RKV_OK;
    pthread_mutex_lock(&a->lock);
    for (uint32_t i = 0; !st && i < a->n_shelves; i++) {
        const uint64_t bytes = next_slab_bytes(a, &a->shelves[i], 0);
        if (bytes)
            st = add_slab(a, &a->shelves[i], bytes, progress);
        progress->before_bytes += bytes;
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

/* Without the thread, takes make their slabs themselves. */
static void start_thread(rkvi_arena *a)
{
    bool has_more = false;
    for (uint32_t i = 0; i < a->n_shelves; i++)
        has_more |= next_slab_bytes(a, &a->shelves[i], 0) > 0;
    if (!has_more)
        return;
    const int err = rkvi_arena_thread_start(&a->thread, background, a);
    a->has_thread = err == 0;
    if (err)
        rkvi_log(RKVI_LOG_WARNING, "no thread for host memory (error %d): it is added when needed",
                 err);
}

static uint64_t bounce_bytes(const rkvi_arena_settings *s, uint64_t total_bytes)
{
    const uint64_t bytes = s->bounce_bytes
                               ? s->bounce_bytes
                               : most(least(total_bytes / 64, BOUNCE_DEFAULT_BYTES), BOUNCE_MIN_BYTES);
    return rkvi_arena_extent_bytes(bytes);
}

rkv_status rkvi_arena_create(const rkvi_arena_settings *s, rkvi_arena **out)
{
    rkvi_arena *a = calloc(1, sizeof *a);
    if (!a)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the arena");
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    pthread_mutex_init(&a->bounce.lock, NULL);
    rkvi_slab_maker_init(&a->maker, s);
    a->limit_bytes = s->limit_bytes;
    rkv_status st = init_shelves(a, s);
    uint64_t total = 0;
    for (uint32_t i = 0; i < a->n_shelves; i++)
        total += a->shelves[i].total_bytes;
    rkvi_slab_progress progress = {.fn = s->progress, .user = s->progress_user};
    /* The bounce buffer first: once slabs have used up what may be pinned, it
     * could not be had. */
    if (!st && total)
        st = rkvi_bounce_init(a, bounce_bytes(s, total));
    if (!st)
        st = first_slabs(a, &progress);
    if (st) {
        rkvi_arena_destroy(a);
        return st;
    }
    start_thread(a);
    *out = a;
    return RKV_OK;
}

/* A slab in the making is given up while it is touched; a registration that has
 * begun is waited for. */
static void stop_thread(rkvi_arena *a)
{
    if (!a->has_thread)
        return;
    atomic_store(&a->maker.stop, true);
    pthread_mutex_lock(&a->lock);
    a->is_stopping = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
}

void rkvi_arena_destroy(rkvi_arena *a)
{
    if (!a)
        return;
    stop_thread(a);
    for (uint32_t i = 0; i < a->n_shelves; i++) {
        for (rkvi_slab *slab = a->shelves[i].first, *next; slab; slab = next) {
            next = slab->next;
            rkvi_slab_release(&a->maker, slab);
            free(slab);
        }
    }
    rkvi_bounce_free(a);
    free(a->shelves);
    pthread_mutex_destroy(&a->bounce.lock);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* ------------------------------------------------------------------- takes */

/* From the first slab with room: rests that a larger extent left behind serve
 * a smaller one.  NULL: no slab has room. */
static void *carve(rkvi_shelf *s, uint64_t bytes)
{
    for (rkvi_slab *slab = s->first; slab; slab = slab->next) {
        if (slab->bytes - slab->used_bytes < bytes)
            continue;
        slab->used_bytes += bytes;
        s->largest_bytes = most(s->largest_bytes, bytes);
        return slab->base + slab->used_bytes - bytes;
    }
    return NULL;
}

static rkv_status fail_limit(const rkvi_arena *a, uint64_t bytes)
{
    return rkvi_fail(RKV_E_HOST_LIMIT,
                     "host memory for %llu bytes more: %llu of host_limit_bytes %llu are in use; raise "
                     "the limit or lower capacity_cells",
                     (unsigned long long)bytes, (unsigned long long)a->mapped_bytes,
                     (unsigned long long)a->limit_bytes);
}

/* One try to get room for `bytes`: waits for the slab that is being made, or
 * makes one on this thread. */
static rkv_status make_room(rkvi_arena *a, rkvi_shelf *s, uint64_t bytes)
{
    if (s->is_making) {
        pthread_cond_wait(&a->changed, &a->lock);
        return RKV_OK;
    }
    const uint64_t slab_bytes = next_slab_bytes(a, s, bytes);
    return slab_bytes ? add_slab(a, s, slab_bytes, NULL) : fail_limit(a, bytes);
}

rkv_status rkvi_arena_take(rkvi_arena *a, uint64_t bytes, void **out, bool *out_waited)
{
    assert(bytes > 0 && bytes <= RKVI_SIZE_MAX);
    *out_waited = false;
    pthread_mutex_lock(&a->lock);
    rkvi_shelf *s = shelf_for(a, bytes);
    const uint64_t need = s && s->extent_bytes ? s->extent_bytes : rkvi_arena_extent_bytes(bytes);
    rkv_status st = s ? RKV_OK : fail_limit(a, need);
    void *p = NULL;
    while (!st && !(p = carve(s, need))) {
        *out_waited = true;
        st = make_room(a, s, need);
    }
    if (!st) {
        *out = p;
        a->taken_bytes += need;
        pthread_cond_broadcast(&a->changed); /* the thread may have to go on */
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

void rkvi_arena_counters_get(const rkvi_arena *a, rkvi_arena_counters *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&a->lock; /* its state is not the arena's */
    pthread_mutex_lock(lock);
    *out = (rkvi_arena_counters){
        .pinned_bytes = a->pinned_bytes,
        .unpinned_bytes = a->unpinned_bytes,
        .taken_bytes = a->taken_bytes,
        .limit_bytes = a->limit_bytes,
        .n_slabs = a->n_slabs,
        .n_refused = atomic_load(&a->maker.n_refused),
        .bounce_bytes = 2 * a->bounce.half_bytes,
        .numa_node = a->maker.numa_node,
    };
    pthread_mutex_unlock(lock);
}
