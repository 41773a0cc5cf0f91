/* arena.h: pinned host memory for the tail.
 *
 * Slabs are mapped, advised huge, bound to the device's NUMA node, excluded
 * from fork, touched by several threads and registered with the executor; a
 * background thread adds them ahead of need.  Extents are carved from slabs
 * and live as long as the arena (pools keep and reuse them).
 *
 *   slab:  mapped -> advised -> bound -> touched -> registered -> ready
 *                                            | refused: host_alloc, then unpinned
 *
 * A refused registration falls back to the executor's own pinned allocation,
 * then to unpinned memory, whose copies go through a pinned bounce buffer
 * filled by host calls on the copy stream; both show in the counters.  A size
 * that was refused once is never tried again, nor is a larger one: on some
 * systems a failed attempt spoils later ones.
 *
 * Where classes are given, slabs hold extents of one size only and whole
 * numbers of them, so that nothing is lost at a slab's end.  If every size that
 * is taken is listed (a pool's short last extent too), a limit of the exact
 * sum, in whole pages, is enough in whatever order the extents are taken.
 *
 * Thread-safe.  The memory is not in a forked child, nor is the background
 * thread: a child makes no call here, not even destroy. */
#ifndef RKVI_ARENA_H
#define RKVI_ARENA_H

#include "device.h"
#include "rollkv/rollkv.h"

typedef struct rkvi_arena rkvi_arena;

/* So many extents of one size will be taken at most. */
typedef struct rkvi_arena_class {
    uint64_t extent_bytes, n_extents;
} rkvi_arena_class;

typedef struct rkvi_arena_settings {
    rkvi_device *dev;
    uint64_t limit_bytes;     /* most host memory; slabs are cut to fit it exactly */
    uint64_t total_bytes;     /* that will ever be asked for: no slab ahead beyond it */
    const rkvi_arena_class *classes; /* what will be asked for, by size (equal sizes may */
    uint32_t n_classes;              /* repeat); they replace total_bytes; NULL: unknown */
    uint64_t slab_bytes;      /* 0: 1 GiB, smaller for small totals; at most 64 GiB */
    uint64_t bounce_bytes;    /* of each direction's bounce buffer; 0: 8 MiB, smaller
                                 for small totals.  Beside the limit. */
    int32_t numa_node;        /* -1: not bound */
    uint32_t n_touch_threads; /* 0: one per core, at most 16 */
    bool no_huge_pages;
    rkv_progress_fn progress;
    void *progress_user;
} rkvi_arena_settings;

typedef struct rkvi_arena_counters {
    uint64_t pinned_bytes, unpinned_bytes;
    uint64_t taken_bytes, limit_bytes;
    uint64_t n_slabs, n_refused; /* registrations refused */
    uint64_t bounce_bytes;       /* of both directions; 0: none could be pinned */
    int32_t numa_node;           /* that mapped slabs are bound to, -1: none */
} rkvi_arena_counters;

/* Maps and registers the first slab, of each class where they are given, before
 * it returns (total_bytes 0: none). */
rkv_status rkvi_arena_create(const rkvi_arena_settings *s, rkvi_arena **out);
/* All device work on its memory must have ended. */
void rkvi_arena_destroy(rkvi_arena *a);

/* What an extent takes of the limit: whole pages. */
uint64_t rkvi_arena_extent_bytes(uint64_t bytes);

/* An extent of contiguous host memory, 4096-byte aligned, within one slab.
 * With classes, a size that is not listed takes the room of the smallest class
 * that holds it, and so a place that was counted for another.
 * Blocks only while the slab that holds it is being made (*out_waited).  Where
 * the background thread failed, or there is none, it makes that slab itself.
 * RKV_E_HOST_LIMIT or RKV_E_HOST_MEMORY: nothing was taken. */
rkv_status rkvi_arena_take(rkvi_arena *a, uint64_t bytes, void **out, bool *out_waited);
void rkvi_arena_counters_get(const rkvi_arena *a, rkvi_arena_counters *out);

/* Whether both lie in one slab: only such memory may be joined into one 2D copy. */
bool rkvi_arena_same_slab(rkvi_arena *a, const void *p, const void *q);

/* Copies between arena memory and the device on `stream`: as it is where the
 * memory is pinned, else through the bounce buffer of that direction.  All
 * copies of one direction must come on one stream, which is not captured if
 * there is unpinned memory: a replay would find the bounce buffer's jobs gone.
 * Rows that lie in different slabs are copied one by one.  On failure a first
 * part may have been enqueued. */
rkv_status rkvi_arena_copy(rkvi_arena *a, const rkvi_copy *copy, void *stream);

#endif
