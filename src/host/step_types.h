/* step_types.h: the insides of a handle, shared by the files of step. */
#ifndef RKVI_STEP_TYPES_H
#define RKVI_STEP_TYPES_H

#include "cache.h"
#include "plan.h"
#include "step.h"
#include "timeline.h"

#include <pthread.h>

/* A step's tables: written in pinned memory, uploaded on the table stream. */
typedef struct rkvi_step_tables {
    rkvi_mirror mirror;
    uint64_t upload_mark; /* timeline tables */
    uint64_t marker;      /* timeline ends: of the step that used them */
    uint64_t abort_mark;  /* timeline compute: where that step was aborted instead */
} rkvi_step_tables;

typedef enum { RKVI_STEP_IDLE, RKVI_STEP_BEGUN, RKVI_STEP_RUNNING, RKVI_STEP_BROKEN } rkvi_step_state;

/* What a stream has waited for, so that a wait is enqueued once. */
typedef struct rkvi_seen {
    uint64_t in, out, compute;
} rkvi_seen;

struct rkvi_import;       /* step_cells_types.h */
struct rkvi_step_profile; /* step_profile.c */

struct rkv_cache {
    rkvi_config cfg;
    rkvi_device *dev;
    rkvi_cache cache;
    rkvi_ring ring;
    rkvi_plan plan;
    rkvi_arena *arena;
    pthread_mutex_t lock;
    bool lock_made;

    /* device memory, from create to destroy; that of places is known to the
     * cache's pools, extent by extent */
    void *ring_memory, *transit_memory, *partials;
    float *turned; /* q turned back: max_turns times */
    rkvi_step_tables *tables; /* steps_ahead */
    uint64_t device_bytes;

    void *in_stream, *out_stream, *table_stream;
    rkvi_timeline in, out, compute, uploads;
    rkvi_timeline ends; /* one mark a step: those of compute may go round within one */
    rkvi_seen in_seen, out_seen, compute_seen;

    /* the open step */
    rkvi_step_state state;
    rkvi_batch batch;      /* of the open step */
    rkvi_batch scratch;    /* filled by api */
    rkvi_batch next;       /* predicted */
    rkvi_step_tables *now; /* tables of the open step */
    uint32_t next_site;
    void *stream;          /* of the last call */
    bool has_stream;
    uint64_t launched;     /* number of the newest launch enqueued */
    uint64_t *launch_marks;/* [launch % launch_room]: compute marks */
    uint64_t launch_room;
    uint32_t target_runs;
    uint64_t batch_print;  /* of the last begun batch */
    bool missed;           /* the last prediction was wrong */
    bool hint_differs;     /* the last end was told of other sequences than its step's */

    rkvi_range *ranges;    /* scratch, where the executor wants ranges */
    size_t n_ranges, ranges_room;

    struct rkvi_import *import; /* open between steps; NULL: none */
    struct rkvi_step_profile *profile; /* NULL: none was started */
    bool is_profiled;                  /* the open step */

    rkv_status poison;
    char poison_text[256];
    rkv_cache_stats stats;
};

/* ---- step_handle.c: device memory, the engine's or the executor's */

rkv_status rkvi_handle_alloc(rkv_cache *h, uint64_t bytes, void **out); /* 0 bytes: none */
void rkvi_handle_free(rkv_cache *h, void *ptr, uint64_t bytes);
/* The next extent of a KV layer's pool; one whose places are all taken by the caller. */
rkv_status rkvi_handle_add_extent(rkv_cache *h, uint32_t layer);
void rkvi_handle_drop_extent(rkv_cache *h, uint32_t layer, uint32_t extent);

/* ---- step_copy.c: everything that crosses a link */

/* Enqueues the copies that may be; `needed`: a launch that can't run without
 * its own. */
rkv_status rkvi_step_pump(rkv_cache *h, uint64_t needed);
/* Op-level mode: the copies of launches up to `upto`, each after all compute
 * so far. */
rkv_status rkvi_step_pump_op_level(rkv_cache *h, uint64_t upto);
rkv_status rkvi_step_bring_back(rkv_cache *h);
/* Copies of shared tile-layers that lie on the device. */
rkv_status rkvi_step_copy_shared(rkv_cache *h, void *stream);
/* LEAVE moves of a KV layer within the step, or (UINT32_MAX) those left. */
rkv_status rkvi_step_leave(rkv_cache *h, uint32_t layer);
rkv_status rkvi_step_promote(rkv_cache *h, uint64_t launch, void *stream);
rkv_status rkvi_step_upload(rkv_cache *h);

/* ---- step_launch.c: kernels and their ranges */

typedef struct rkvi_site_call {
    const rkvi_attend *a;
    const rkvi_site_config *site;
    const rkvi_layer_config *layer;
    const rkvi_plan_site *plan;
    void *stream;
} rkvi_site_call;
rkv_status rkvi_launch_store(rkv_cache *h, const rkvi_site_call *c);
/* q turned back for the step's turns, if it has any: before the first attend. */
rkv_status rkvi_launch_rotate(rkv_cache *h, const rkvi_site_call *c);
/* The decode and prefill items of launch g, then its merges. */
rkv_status rkvi_launch_attend(rkv_cache *h, const rkvi_site_call *c, uint32_t g);
/* Token trees' partials, then the last merge. */
rkv_status rkvi_launch_output(rkv_cache *h, const rkvi_site_call *c);

/* Accepted cells of the token tree at a sequence's end, in one KV layer. */
rkv_status rkvi_launch_move(rkv_cache *h, uint32_t layer, const rkvi_seq *s, const uint32_t *cells, uint32_t n,
                            void *stream);
/* A device call failed between enqueueing and marking: the host waits for the
 * library's streams, or the handle ends.  Returns the status, with its text. */
rkv_status rkvi_step_failed(rkv_cache *h, rkv_status s);

/* The status of a device call: a fault poisons the handle. */
rkv_status rkvi_step_seen_status(rkv_cache *h, rkv_status s);

#endif
