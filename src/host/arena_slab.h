/* SPDX-License-Identifier: MIT
 *
 * arena_slab.h: one slab of host memory, from the system to the executor.
 * Internal to the arena, as is its struct; step_link.c makes one of its own.
 */
#ifndef RKVI_ARENA_SLAB_H
#define RKVI_ARENA_SLAB_H

#include "arena.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum {
    RKVI_SLAB_REGISTERED, /* mapped here, pinned by host_register */
    RKVI_SLAB_ALLOCATED,  /* by host_alloc */
    RKVI_SLAB_UNPINNED,   /* mapped here, copied through the bounce buffer */
} rkvi_slab_kind;

typedef struct rkvi_slab {
    struct rkvi_slab *next;
    unsigned char *base;
    uint64_t bytes;
    uint64_t used_bytes; /* carved from the start */
    rkvi_slab_kind kind;
} rkvi_slab;

/* How slabs are made.  Used by several threads at once. */
typedef struct rkvi_slab_maker {
    rkvi_device *dev;
    int32_t numa_node; /* -1: not bound */
    uint32_t n_touch_threads;
    bool no_huge_pages;
    atomic_bool stop; /* touching ends early: the arena is being destroyed */
    atomic_uint_least64_t n_refused;
    /* Smallest sizes that were refused: those and larger ones are not tried again. */
    atomic_uint_least64_t register_refused_bytes, alloc_refused_bytes;
} rkvi_slab_maker;

/* Told by the thread that makes the slabs.  `done` never falls, and reaches
 * the total only when the last slab is ready. */
typedef struct rkvi_slab_progress {
    rkv_progress_fn fn; /* NULL: nobody asks */
    void *user;
    uint64_t before_bytes; /* of slabs made earlier */
    uint64_t told_bytes, total_bytes;
} rkvi_slab_progress;

void rkvi_slab_maker_init(rkvi_slab_maker *m, const rkvi_arena_settings *s);

/* A slab of `bytes` (whole pages).  progress may be NULL. */
rkv_status rkvi_slab_make(rkvi_slab_maker *m, uint64_t bytes, rkvi_slab_progress *progress,
                          rkvi_slab *out);
void rkvi_slab_release(rkvi_slab_maker *m, const rkvi_slab *slab);

/* ---- the arena itself ---- */

/* Slabs for extents of one size, or (extent_bytes 0) of any. */
typedef struct rkvi_shelf {
    uint64_t extent_bytes;
    uint64_t total_bytes;   /* never more slabs ahead of need */
    uint64_t slab_bytes;    /* of the next slab, before it is cut to total and limit */
    uint64_t mapped_bytes;  /* with the one being made */
    uint64_t largest_bytes; /* extent seen */
    rkvi_slab *first, *last;
    bool is_making;
    bool has_failed; /* ahead of need: left to the take that needs it */
} rkvi_shelf;

/* A part of a copy that a host call carries out, see arena_copy.c. */
typedef struct rkvi_bounce_job rkvi_bounce_job;
typedef struct rkvi_bounce {
    rkvi_slab slab;      /* pinned; the first half for H2D, the second for D2H */
    uint64_t half_bytes; /* 0: there is none */
    pthread_mutex_t lock;
    rkvi_bounce_job *all, *free;
} rkvi_bounce;

struct rkvi_arena {
    rkvi_slab_maker maker;
    rkvi_bounce bounce;
    uint64_t limit_bytes;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    rkvi_shelf *shelves; /* by rising extent size */
    uint32_t n_shelves;
    uint64_t mapped_bytes; /* of all shelves */
    uint64_t pinned_bytes, unpinned_bytes, taken_bytes, n_slabs;
    pthread_t thread; /* adds slabs ahead of need */
    bool has_thread, is_stopping;
};

rkv_status rkvi_bounce_init(rkvi_arena *a, uint64_t bytes);
void rkvi_bounce_free(rkvi_arena *a);

/* A thread that takes no signals: handlers belong to the application's own. */
int rkvi_arena_thread_start(pthread_t *out, void *(*fn)(void *), void *arg);

#endif
