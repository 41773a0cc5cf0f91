/* device.h: the one interface to an executor.
 *
 * An executor carries out memory, streams, events, copies and kernels.  All
 * parts above know only this header; nothing above may know which executor
 * runs.  Semantics, alike in all executors (CUDA's are the model):
 *
 *  - A stream is FIFO: its operations run one after another in the order of
 *    enqueueing.  Different streams are independent of each other, and of the
 *    legacy default stream.  A stream handle is `void *`; engines bring their
 *    own.  NULL is the executor's default stream.
 *  - Every enqueueing call returns at once; `args`, range lists and labels are
 *    copied before it returns.
 *  - event_record marks the end of all that its stream holds at call time; a
 *    later record replaces an earlier one.  stream_wait takes the event's
 *    latest record at call time, and is nothing on an event never recorded.
 *    event_sync blocks the host on the latest record (nothing if none).
 *  - One link per direction (H2D, D2H), shared by all streams; copies on one
 *    link run one at a time, in the order in which they become ready.
 *    D2D copies use no link.
 *  - Each operation declares the ranges that it reads and writes.  Copies,
 *    fills imply theirs; launches and host calls pass them, where the executor
 *    wants them (`wants_ranges`), else the list may be NULL.
 *  - Host code that reads or writes memory which operations touch as well
 *    (mirrors, staging) says so with host_access.
 *  - A failed enqueueing call enqueued nothing.  A fault of an operation that
 *    was enqueued shows in every later call as RKV_E_POISONED.
 *  - Capture: between capture_begin and capture_end the operations of that
 *    stream (and of those that joined it through events) are recorded, not
 *    run.  Refused as in CUDA: waiting on an event recorded outside the
 *    capture (fails, kills the capture); waiting on or querying, outside, an
 *    event recorded inside; synchronising a captured stream; an unjoined
 *    stream at capture_end; and, during another thread's global-mode capture,
 *    mem_alloc, mem_free, host_register, host_unregister, event_query unless
 *    the calling thread is in relaxed mode (capture_relax).
 */
#ifndef RKVI_DEVICE_H
#define RKVI_DEVICE_H

#include "diag.h"
#include "rollkv/types.h"

#include <stdbool.h>
#include <time.h>

typedef struct rkvi_device rkvi_device;
typedef struct rkvi_event rkvi_event; /* opaque, per executor */
typedef struct rkvi_graph rkvi_graph; /* opaque, per executor */
struct rkvi_geom;                     /* geometry.h */

enum { RKVI_READ = 1, RKVI_WRITE = 2 };

/* `rows` pieces of `bytes`, `pitch_bytes` apart (rows 0 or 1: one piece). */
typedef struct rkvi_range {
    const void *ptr;
    size_t bytes;
    size_t pitch_bytes;
    size_t rows;
    uint32_t access; /* RKVI_READ | RKVI_WRITE */
} rkvi_range;

typedef enum { RKVI_H2D = 0, RKVI_D2H = 1, RKVI_D2D = 2 } rkvi_direction;

/* rows pieces of width_bytes; rows == 1 is a plain copy (pitches ignored). */
typedef struct rkvi_copy {
    rkvi_direction direction;
    void *dst;
    const void *src;
    size_t width_bytes;
    size_t rows;
    size_t dst_pitch_bytes;
    size_t src_pitch_bytes;
} rkvi_copy;

/* A kernel of the table in ops.h over `grid` independent work items. */
typedef struct rkvi_launch {
    uint32_t op;             /* rkvi_op of ops.h */
    uint32_t args_bytes;     /* copied, at most RKVI_ARGS_MAX */
    const void *args;
    uint64_t grid;           /* 0: nothing is enqueued */
    uint64_t cost_bytes;     /* device memory it reads: its time in device_sim */
    const rkvi_range *ranges;
    size_t n_ranges;
    /* Captured, what the launch touches may differ from replay to replay: where
     * given, and the executor wants ranges, it is asked at each launch of the
     * graph.  The list is valid until the next call. */
    const rkvi_range *(*ranges_now)(void *arg, size_t *out_n);
    void *ranges_arg;
} rkvi_launch;
#define RKVI_ARGS_MAX 512

typedef void (*rkvi_host_fn)(void *arg);

typedef struct rkvi_device_info {
    char name[64];
    char kernels[16];           /* the kernel set: "ref", "avx2", ... */
    uint64_t memory_bytes;      /* total device memory */
    uint64_t memory_free_bytes; /* now */
    uint32_t n_workers;         /* work items that run at once (SMs, threads) */
    int32_t numa_node;          /* node of the device, -1 unknown */
    uint64_t link_bytes_per_s;  /* H2D, 0 unknown */
    bool has_link;              /* to be measured, where it is unknown */
    bool is_host;               /* device memory can be read by host code */
} rkvi_device_info;

/* `at` the first member of every executor's own struct. */
typedef struct rkvi_device_vt {
    void (*destroy)(rkvi_device *d);
    rkv_status (*info)(rkvi_device *d, rkvi_device_info *out);

    /* Memory.  256-byte aligned; contents undefined.  Freeing (and
     * unregistering) needs all use to have ended: the caller's edge. */
    rkv_status (*mem_alloc)(rkvi_device *d, size_t bytes, void **out);
    rkv_status (*mem_free)(rkvi_device *d, void *ptr);
    rkv_status (*host_register)(rkvi_device *d, void *ptr, size_t bytes);
    rkv_status (*host_unregister)(rkvi_device *d, void *ptr);
    rkv_status (*host_alloc)(rkvi_device *d, size_t bytes, void **out); /* pinned */
    rkv_status (*host_free)(rkvi_device *d, void *ptr);

    rkv_status (*stream_create)(rkvi_device *d, const char *name, void **out);
    rkv_status (*stream_destroy)(rkvi_device *d, void *stream); /* waits for its work */
    rkv_status (*stream_sync)(rkvi_device *d, void *stream);
    rkv_status (*stream_wait)(rkvi_device *d, void *stream, rkvi_event *event);

    rkv_status (*event_create)(rkvi_device *d, rkvi_event **out);
    rkv_status (*event_destroy)(rkvi_device *d, rkvi_event *event);
    rkv_status (*event_record)(rkvi_device *d, rkvi_event *event, void *stream);
    rkv_status (*event_sync)(rkvi_device *d, rkvi_event *event);
    rkv_status (*event_query)(rkvi_device *d, rkvi_event *event, bool *out_done);
    /* The host's time on the executor's clock (virtual in device_sim).  May be
     * NULL: CLOCK_MONOTONIC. */
    uint64_t (*now_ns)(rkvi_device *d);
    /* Time between two completed records, on that clock. */
    rkv_status (*event_elapsed)(rkvi_device *d, rkvi_event *from, rkvi_event *to, int64_t *out_ns);

    rkv_status (*copy)(rkvi_device *d, const rkvi_copy *copy, void *stream);
    rkv_status (*fill)(rkvi_device *d, void *dst, int byte, size_t bytes, void *stream);
    rkv_status (*launch)(rkvi_device *d, const rkvi_launch *launch, void *stream);
    rkv_status (*host_call)(rkvi_device *d, rkvi_host_fn fn, void *arg, const rkvi_range *ranges,
                            size_t n_ranges, void *stream);
    /* Keeps the stream's compute busy for `ns`: stands for an engine's own work. */
    rkv_status (*delay)(rkvi_device *d, int64_t ns, void *stream);
    /* The calling thread reads or writes these ranges now. */
    void (*host_access)(rkvi_device *d, const rkvi_range *ranges, size_t n_ranges);

    /* May be NULL: nothing to do.  At creation, once for each KV layer: refuses
     * (RKV_E_UNSUPPORTED, with what there is) a geometry that the executor's
     * attention does not cover, and loads the kernels of one that it does. */
    rkv_status (*geom_prepare)(rkvi_device *d, const struct rkvi_geom *g);

    bool (*capture_relax)(rkvi_device *d, bool relaxed); /* this thread; returns the former */
    rkv_status (*capture_begin)(rkvi_device *d, void *stream, bool global);
    rkv_status (*capture_end)(rkvi_device *d, void *stream, rkvi_graph **out);
    rkv_status (*graph_launch)(rkvi_device *d, rkvi_graph *graph, void *stream);
    rkv_status (*graph_destroy)(rkvi_device *d, rkvi_graph *graph);
} rkvi_device_vt;

struct rkvi_device {
    const rkvi_device_vt *vt;
    bool wants_ranges; /* launches and host calls must declare what they touch */
};

/* Calls go through these, so that the call site is known to device_check:
 * rkvi_dev(copy, dev, &c, stream). */
#define rkvi_dev(call, d, ...) (rkvi_call_site = RKVI_HERE, (d)->vt->call((d), __VA_ARGS__))
#define rkvi_dev_destroy(d) ((d)->vt->destroy(d))

/* The host's time on the executor's clock; NULL: the machine's. */
static inline uint64_t rkvi_device_now_ns(rkvi_device *d)
{
    struct timespec ts;
    if (d && d->vt->now_ns)
        return d->vt->now_ns(d);
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
