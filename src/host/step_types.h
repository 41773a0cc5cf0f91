/* step_types.h: the insides of a handle, shared by the files of step. */
#ifndef RKVI_STEP_TYPES_H
#define RKVI_STEP_TYPES_H

#include "cache.h"
#include "plan.h"
#include "step.h"
#include "step_clock.h"
#include "step_cpu.h"
#include "timeline.h"

#include <pthread.h>

/* A step's tables: written in pinned memory, uploaded on the table stream. */
typedef struct rkvi_step_tables {
    rkvi_mirror mirror;
    uint64_t upload_mark; /* timeline tables */
    uint64_t marker;      /* timeline ends: of the step that used them */
    uint64_t abort_mark;  /* timeline compute: where that step was aborted instead */
    uint64_t plan;        /* number of the plan that the mirror holds, with some step's lengths; 0: none */
} rkvi_step_tables;

typedef enum { RKVI_STEP_IDLE, RKVI_STEP_BEGUN, RKVI_STEP_RUNNING, RKVI_STEP_BROKEN } rkvi_step_state;

/* What a stream has waited for, so that a wait is enqueued once. */
typedef struct rkvi_seen {
    uint64_t in, out, compute;
} rkvi_seen;

struct rkvi_import;       /* step_cells_types.h */
struct rkvi_step_profile; /* step_profile.c */

/* The open step's tables as graphs find them: at fixed places on the device,
 * brought up to date by pieces (rkvi_op PATCH) that start enqueues.
 *
 *   piece:  unknown --in a patch that start enqueued--> as in the image
 *           as in the image --changed by begin--> unknown */
typedef struct rkvi_step_image {
    void *device;
    unsigned char *host, *spare; /* the open step's tables; what plans are written to */
    unsigned char *state;        /* [piece]: RKVI_PIECE_ */
    uint32_t *changed;           /* pieces of the open step's patch */
    rkvi_patch *runs;            /* scratch */
    uint32_t n_changed, n_runs;
    uint64_t data_off;           /* in the upload: the pieces, behind n_runs rkvi_patch */
    uint64_t upload_bytes;
} rkvi_step_image;
enum { RKVI_PIECE_KNOWN = 1, RKVI_PIECE_CHANGED = 2 };

/* The last step planned, to tell whether the next one is the same but for
 * lengths. */
typedef struct rkvi_steady_size {
    uint64_t n_cells;
    uint32_t n_tiles, n_segments;
} rkvi_steady_size;

typedef struct rkvi_step_steady {
    bool is_valid;
    const unsigned char *tables; /* its mirror: where each step has one of its own */
    uint64_t plan;           /* plans are numbered: of the last one */
    rkvi_batch batch;
    rkvi_steady_size *sizes; /* [entry] of its sequence, the step's cells included */
    uint64_t layout;         /* of the cache */
} rkvi_step_steady;

/* What a launch of a capture touches: asked for at each replay (tests). */
typedef struct rkvi_noted_launch rkvi_noted_launch;

/* A capture under way.  Its events are of no use outside. */
typedef struct rkvi_step_capture {
    bool is_on, is_forked;     /* forked: copy_stream has joined it */
    uint32_t first_site, site, end_site; /* site: the next */
    rkvi_noted_launch *noted;
    /* copies of the tail */
    rkvi_ring ring;            /* the list, and its first items once more for the next replay */
    void *copy_stream;
    rkvi_timeline in, compute;
    rkvi_seen in_seen, compute_seen;
    uint64_t *launch_marks;    /* [launch % launch_room] */
    uint64_t launched;
    uint32_t n_ahead;
} rkvi_step_capture;

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
    uint32_t target_runs, wide_runs; /* as plan.h has them */
    uint64_t batch_print;  /* of the last begun batch */
    bool missed;           /* the last prediction was wrong */
    bool hint_differs;     /* the last end was told of other sequences than its step's */

    /* graphs: RKV_FLAG_GRAPHS */
    bool graphs;
    rkvi_step_image image;
    rkvi_step_capture capture;
    rkvi_step_steady steady; /* in all caches */
    uint64_t key;          /* of the open step */
    bool replay_open;      /* a graph is launched behind the last mark of compute */
    uint64_t replay_first; /* its launches: from here to `launched` */
    bool replayed, expects_replay; /* the open step has had a replay; so had the last one */
    uint64_t list_hash;    /* of the open step's list: what, in which slots, for which launches */
    uint64_t list_out;     /* newest copy-out of what it reads */
    uint64_t ahead_hash;   /* the last replay left the first n_ahead items of that list in the ring */
    uint32_t n_ahead;
    uint64_t ring_base;    /* number of the launch that the ring's list counts from */
    bool ring_is_old;      /* the list is the open step's, but its numbers are a former one's */
    bool ring_is_past;     /* graphs have written to the ring behind its bookkeeping */

    rkvi_step_cpu cpu;
    rkvi_step_clock clock;

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

rkv_status rkvi_allocator_take(rkvi_device *dev, const rkv_allocator *a, uint64_t bytes, void **out);
void rkvi_allocator_give(rkvi_device *dev, const rkv_allocator *a, void *ptr, uint64_t bytes);
/* Counted. */
rkv_status rkvi_handle_alloc(rkv_cache *h, uint64_t bytes, void **out); /* 0 bytes: none */
void rkvi_handle_free(rkv_cache *h, void *ptr, uint64_t bytes);
/* As the tail wants it; nothing where there is none. */
rkv_status rkvi_handle_make_ring(const rkv_cache *h, rkvi_ring *out);
/* The next extent of a KV layer's pool; one whose places are all taken by the caller. */
rkv_status rkvi_handle_add_extent(rkv_cache *h, uint32_t layer);
void rkvi_handle_drop_extent(rkv_cache *h, uint32_t layer, uint32_t extent);

/* The NUMA node that the tail is bound to, and the threads of the CPU's share; -1: none. */
int32_t rkvi_handle_tail_node(const rkvi_config *cfg, int32_t device_node);

/* ---- step_copy.c: everything that crosses a link */

/* Enqueues the copies that may be; `needed`: a launch that can't run without
 * its own. */
rkv_status rkvi_step_pump(rkv_cache *h, uint64_t needed);
/* One copy at most. */
rkv_status rkvi_step_pump_next(rkv_cache *h, uint64_t needed);
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

/* ---- step.c, for step_graph.c */

/* A call on another stream than the call before comes after it. */
rkv_status rkvi_step_order(rkv_cache *h, void *stream);
rkv_status rkvi_step_mark_compute(rkv_cache *h, void *stream);
/* A call of the running step failed: only abort is left, or nothing. */
rkv_status rkvi_step_broken(rkv_cache *h, rkv_status s, void *stream);

/* ---- step_image.c: the tables at fixed places */

rkv_status rkvi_step_image_init(rkv_cache *h);
void rkvi_step_image_free(rkv_cache *h);
/* The spare image holds the step's tables now: what changed is taken over into
 * the image, and written into the mirror. */
void rkvi_step_image_update(rkv_cache *h);
/* Changes in place instead: begin, write and touch, end. */
void rkvi_step_image_begin(rkv_cache *h);
void rkvi_step_image_touch(rkv_cache *h, uint64_t off, uint64_t bytes);
void rkvi_step_image_end(rkv_cache *h);
rkv_status rkvi_step_image_patch(rkv_cache *h, void *stream);
/* Where the open step's tables lie on the device, and what they hold. */
static inline uint64_t rkvi_step_tables_at(const rkv_cache *h)
{
    return h->graphs ? (uint64_t)(uintptr_t)h->image.device : h->now->mirror.device_addr;
}
static inline const unsigned char *rkvi_step_tables_host(const rkv_cache *h)
{
    return h->graphs ? h->image.host : h->now->mirror.host;
}

/* ---- step_steady.c: steps that differ from the last one in lengths alone */

rkv_status rkvi_step_steady_init(rkv_cache *h);
void rkvi_step_steady_free(rkv_cache *h);
/* A step is planned: the next one may be like it. */
void rkvi_step_steady_keep(rkv_cache *h);
/* Carries the tables on; false, and nothing changed, where that is not enough. */
bool rkvi_step_carry_on(rkv_cache *h);
/* Before the ring is used for the open step, other than by a replay that finds
 * all in place. */
void rkvi_step_ring_now(rkv_cache *h);
/* Predicts the same list again; false where tiles are about to enter it. */
bool rkvi_step_predict_again(rkv_cache *h, uint64_t last_launch);

/* ---- step_launch.c: kernels and their ranges */

typedef struct rkvi_site_call {
    const rkvi_attend *a;
    const rkvi_site_config *site;
    const rkvi_layer_config *layer;
    const rkvi_plan_site *plan;
    void *stream;
} rkvi_site_call;
/* One more range of the launch to come, where the executor wants ranges. */
void rkvi_launch_add_range(rkv_cache *h, const void *ptr, uint64_t bytes, uint32_t access);
/* Enqueues it with the ranges collected since the last one, and counts it. */
rkv_status rkvi_launch_enqueue(rkv_cache *h, rkvi_launch *l, void *stream);
/* The items of a launch of the CPU's that it didn't get through in time. */
rkv_status rkvi_launch_late(rkv_cache *h, const rkvi_site_call *c, const rkvi_plan_launch *pl);
/* Opens tiles (not in a capture), stores. */
rkv_status rkvi_launch_open(rkv_cache *h, const rkvi_site_call *c);
rkv_status rkvi_launch_store(rkv_cache *h, const rkvi_site_call *c);
/* Waits of the store: host copies given up, places handed on, transit. */
rkv_status rkvi_step_before_store(rkv_cache *h, const rkvi_site_call *c);
/* q turned back for the step's turns, if it has any: before the first attend. */
rkv_status rkvi_launch_rotate(rkv_cache *h, const rkvi_site_call *c);
/* The decode and prefill items of launch g, then its merges. */
rkv_status rkvi_launch_attend(rkv_cache *h, const rkvi_site_call *c, uint32_t g);
/* Token trees' partials, then the last merge. */
rkv_status rkvi_launch_output(rkv_cache *h, const rkvi_site_call *c);

/* ---- step_cpu.c: the CPU's share */

rkv_status rkvi_step_cpu_init(rkv_cache *h, int32_t numa_node);
/* step_cpu_share.c: when the handle is made, the share that was asked for. */
rkv_status rkvi_step_cpu_first_share(rkv_cache *h);
void rkvi_step_cpu_free(rkv_cache *h);
/* The step that is planned may have one. */
bool rkvi_step_cpu_can(const rkv_cache *h);
/* begin: before the step is planned, its ticket for the plan; then, with its tables
 * written, what threads need to know. */
void rkvi_step_cpu_take_book(rkv_cache *h);
uint64_t rkvi_step_cpu_ticket(const rkv_cache *h);
void rkvi_step_cpu_write_book(rkv_cache *h);
void rkvi_step_cpu_abort(rkv_cache *h);
/* The site's share goes to threads; else its launch is like all others. */
bool rkvi_step_cpu_hands(const rkv_cache *h, const rkvi_site_call *c);
/* The launch whose items begin there has those that were late instead. */
bool rkvi_step_cpu_is_late_launch(const rkv_cache *h, const rkvi_site_call *c, uint64_t decode0);
/* Before the site's launches: q goes out. */
rkv_status rkvi_step_cpu_begin(rkv_cache *h, const rkvi_site_call *c);
/* In place of the CPU's launch, if it is running: partials come in, or are computed after all. */
rkv_status rkvi_step_cpu_finish(rkv_cache *h, const rkvi_site_call *c);
/* Before a graph of these sites is launched. */
rkv_status rkvi_step_cpu_replay(rkv_cache *h, uint32_t first_site, uint32_t end_site, void *stream);
void rkvi_step_cpu_stats(const rkv_cache *h, rkv_cache_stats *out);
void rkvi_step_cpu_ranges(rkv_cache *h, const rkvi_site_call *c, uint32_t op);

/* ---- step_graph_copy.c: the tail's copies in captures and replays */

rkv_status rkvi_capture_init(rkv_cache *h);
void rkvi_capture_free(rkv_cache *h);
/* Lays the list out for the captured sites; copies that wait for no launch come
 * first. */
rkv_status rkvi_capture_fork(rkv_cache *h, void *stream);
/* Before and after a captured launch of the site's. */
rkv_status rkvi_capture_wait_filled(rkv_cache *h, const rkvi_site_call *c, uint64_t number);
rkv_status rkvi_capture_launched(rkv_cache *h, const rkvi_site_call *c, uint64_t number);
rkv_status rkvi_capture_join(rkv_cache *h, void *stream);
/* The plan's list is new: its hash and newest copy-out. */
void rkvi_graph_list(rkv_cache *h);
/* What the graph expects in the ring is there, or on its way, before what
 * follows on `stream`; and what the graph does to the ring is noted. */
rkv_status rkvi_replay_ring(rkv_cache *h, const rkvi_step_graph *graph, void *stream);

/* ---- step_graph_ahead.c: how much a graph copies ahead */

/* Compute from the site's attention to the next one, by the hints; 0: unknown. */
uint64_t rkvi_capture_gap_ns(const rkv_cache *h, uint32_t site);
/* Of the items laid out behind the capture's list, with hints.  Leaves marks in the
 * capture's ring, which is laid out anew then. */
uint32_t rkvi_capture_choose_ahead(rkv_cache *h);

/* ---- step_graph.c: captures and replays */

rkv_status rkvi_capture_attend(rkv_cache *h, const rkvi_site_call *c);
/* The launch whose ranges were just collected is captured: they are asked for
 * again at each replay. */
void rkvi_capture_note(rkv_cache *h, const rkvi_site_call *c, rkvi_launch *l, uint64_t first, uint64_t n);
void rkvi_capture_notes_free(rkv_cache *h);
void rkvi_launch_ranges(rkv_cache *h, const rkvi_site_call *c, uint32_t op, uint64_t first, uint64_t n);
/* What was enqueued behind a replay by the engine gets its mark. */
rkv_status rkvi_step_settle(rkv_cache *h);
/* Accepted cells of the token tree at a sequence's end, in one KV layer. */
rkv_status rkvi_launch_move(rkv_cache *h, uint32_t layer, const rkvi_seq *s, const uint32_t *cells, uint32_t n,
                            void *stream);
/* A device call failed between enqueueing and marking: the host waits for the
 * library's streams, or the handle ends.  Returns the status, with its text. */
rkv_status rkvi_step_failed(rkv_cache *h, rkv_status s);
/* Waits until all that the library, and the engine with it, has enqueued has run. */
rkv_status rkvi_step_quiet(rkv_cache *h);

/* The status of a device call: a fault poisons the handle. */
rkv_status rkvi_step_seen_status(rkv_cache *h, rkv_status s);

#endif
