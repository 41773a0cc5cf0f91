/* SPDX-License-Identifier: MIT
 *
 * device_core.h: what device_host and device_sim have in common.
 *
 * The core implements device.h's table: it checks calls, injects failures,
 * owns allocations, registrations, streams and events, and records captures.
 * What is left to the executor behind it is a queue of operations per stream:
 *
 *   call of device.h -> core (check, copy into an rkvi_devop) -> backend.push
 *                            |                                       |
 *                            +-> capture: list of commands           v
 *                                 graph_launch pushes them      runs it, later
 *
 * Locking: one lock per device guards all that is here, the queues and marks
 * included.  The backend's functions are called with it held, except where
 * said; operations run without it in device_host.
 *
 * Fork: the threads of device_host do not live on in a child.  There, destroy
 * returns at once and releases nothing; every other call is the caller's fault.
 */
#ifndef RKVI_DEVICE_CORE_H
#define RKVI_DEVICE_CORE_H

#include "device.h"
#include "ops.h"

#include <pthread.h>
#include <stdalign.h>
#include <sys/types.h>

#define RKVI_DEVICE_ALIGN 256u
#define RKVI_CAPTURE_STREAMS_MAX 32u

typedef struct rkvi_core rkvi_core;
typedef struct rkvi_stream rkvi_stream;
typedef struct rkvi_capture rkvi_capture;

/* ---- failures on demand, on any executor that is built on the core ---- */

/* The calls of device.h that can fail. */
typedef enum {
    RKVI_CALL_ANY, /* counts the calls of all kinds */
    RKVI_CALL_INFO,
    RKVI_CALL_MEM_ALLOC,
    RKVI_CALL_MEM_FREE,
    RKVI_CALL_HOST_REGISTER,
    RKVI_CALL_HOST_UNREGISTER,
    RKVI_CALL_HOST_ALLOC,
    RKVI_CALL_HOST_FREE,
    RKVI_CALL_STREAM_CREATE,
    RKVI_CALL_STREAM_DESTROY,
    RKVI_CALL_STREAM_SYNC,
    RKVI_CALL_STREAM_WAIT,
    RKVI_CALL_EVENT_CREATE,
    RKVI_CALL_EVENT_DESTROY,
    RKVI_CALL_EVENT_RECORD,
    RKVI_CALL_EVENT_SYNC,
    RKVI_CALL_EVENT_QUERY,
    RKVI_CALL_EVENT_ELAPSED,
    RKVI_CALL_COPY,
    RKVI_CALL_FILL,
    RKVI_CALL_LAUNCH,
    RKVI_CALL_HOST_CALL,
    RKVI_CALL_DELAY,
    RKVI_CALL_CAPTURE_BEGIN,
    RKVI_CALL_CAPTURE_END,
    RKVI_CALL_GRAPH_LAUNCH,
    RKVI_CALL_GRAPH_DESTROY,
    RKVI_CALL_COUNT
} rkvi_device_call;

/* The nth call of that kind from now (1: the next one) fails with `status` and
 * does nothing; nth 0 takes the order back.  A failed mem_free, host_free,
 * host_unregister, or destroying call has released nothing. */
void rkvi_device_fail_call(rkvi_device *d, rkvi_device_call call, uint64_t nth, rkv_status status);
/* Calls of that kind made so far: lets a test fail each one in turn. */
uint64_t rkvi_device_calls(rkvi_device *d, rkvi_device_call call);
/* The nth copy, fill, launch or host call that runs from now on faults: it is
 * not carried out, and the device is poisoned from then on. */
void rkvi_device_fault_op(rkvi_device *d, uint64_t nth);

/* What is held now: a test finds 0 everywhere once all was given back. */
typedef struct rkvi_device_usage {
    uint64_t device_bytes;
    uint64_t registered_bytes; /* host_register and host_alloc */
    uint64_t pageable_copies;  /* H2D, D2H copies of host memory that was not pinned, so far */
    uint64_t copies[3];        /* copies run so far, by direction */
    uint64_t copied_bytes[3];
    uint64_t launches; /* run so far */
    uint64_t op_allocations; /* of operations and marks, so far */
    uint32_t allocations, registrations, streams, events, graphs;
} rkvi_device_usage;
void rkvi_device_usage_get(rkvi_device *d, rkvi_device_usage *out);

/* ---- settings that both executors share ---- */

/* Refused registrations, as drivers refuse them.  0: no cap. */
typedef struct rkvi_device_limits {
    uint64_t memory_bytes;         /* of the device; 0: the machine's RAM */
    uint64_t register_max_bytes;   /* one host_register */
    uint64_t register_total_bytes; /* all registered and host_alloc memory */
    uint64_t host_alloc_max_bytes; /* one host_alloc */
} rkvi_device_limits;

/* A copy occupies its link for
 *   cost_ns + (rows - 1) * row_cost_ns + bytes / bytes_per_s
 * and is done latency_ns later.  bytes_per_s 0: bytes take no time of their own. */
typedef struct rkvi_link_settings {
    uint64_t bytes_per_s;
    int64_t cost_ns;
    int64_t row_cost_ns;
    int64_t latency_ns;
} rkvi_link_settings;

/* ---- operations ---- */

/* The end of what a stream held when an event was recorded.  Each record has
 * a mark of its own: a wait holds the one that was the latest at call time. */
typedef struct rkvi_mark {
    rkvi_core *core;
    struct rkvi_mark *next; /* of those kept */
    uint32_t refs;
    bool is_done;
    int64_t time_ns;
} rkvi_mark;

typedef enum {
    RKVI_DEVOP_COPY,
    RKVI_DEVOP_FILL,
    RKVI_DEVOP_LAUNCH,
    RKVI_DEVOP_HOST_CALL,
    RKVI_DEVOP_DELAY,
    RKVI_DEVOP_RECORD, /* completes u.mark */
    RKVI_DEVOP_WAIT    /* until u.mark is done */
} rkvi_devop_kind;

/* One operation, self-contained in one allocation: the launch's arguments,
 * rounded up to 16 bytes, then its ranges, lie in `data`. */
typedef struct rkvi_devop {
    struct rkvi_devop *next;
    rkvi_core *core;   /* that keeps it once it has run; NULL: it is freed */
    size_t size_bytes; /* used of this allocation */
    rkvi_devop_kind kind;
    uint32_t args_bytes;
    size_t n_ranges;
    const char *site;
    int64_t enqueue_ns;
    uint64_t serial; /* order of enqueueing over all streams */
    union {
        rkvi_copy copy;
        struct {
            void *dst;
            size_t bytes;
            int byte;
        } fill;
        struct {
            uint32_t op;
            uint64_t grid;
            const rkvi_range *(*ranges_now)(void *arg, size_t *out_n);
            void *ranges_arg;
            uint64_t cost_bytes;
        } launch;
        struct {
            rkvi_host_fn fn;
            void *arg;
        } host_call;
        int64_t delay_ns;
        rkvi_mark *mark; /* a reference is held; in a captured list: u.slot */
        uint64_t slot;
    } u;
    alignas(16) unsigned char data[];
} rkvi_devop;

static inline const void *rkvi_devop_args(const rkvi_devop *op)
{
    return op->data;
}

static inline rkvi_range *rkvi_devop_ranges(rkvi_devop *op)
{
    return (rkvi_range *)(void *)(op->data + ((op->args_bytes + 15u) & ~15u));
}

uint64_t rkvi_copy_bytes(const rkvi_copy *copy);
int64_t rkvi_link_ns(const rkvi_link_settings *link, const rkvi_copy *copy);
void rkvi_copy_run(const rkvi_copy *copy);
rkvi_devop *rkvi_devop_new(rkvi_core *c, rkvi_devop_kind kind, uint32_t args_bytes, size_t n_ranges);
rkvi_devop *rkvi_devop_clone(rkvi_core *c, const rkvi_devop *op);

/* ---- objects ---- */

struct rkvi_stream {
    rkvi_core *core;
    rkvi_stream *next;
    char name[32];
    rkvi_devop *head, *tail;
    uint64_t n_pushed, n_done;
    /* Capture: NULL, or the capture that this stream is part of. */
    rkvi_capture *capture;
    uint32_t capture_index;
    bool is_internal; /* of a graph */
    bool is_closing;
};

struct rkvi_event {
    rkvi_mark *latest; /* NULL: never recorded */
    /* The latest record was made within this capture (0: none); its slot there. */
    uint64_t capture_id;
    uint64_t capture_slot;
};

typedef struct rkvi_block {
    unsigned char *ptr;
    uint64_t bytes;
    bool is_alloc; /* of host_alloc, not host_register */
} rkvi_block;

/* Blocks by address; few, so a sorted array. */
typedef struct rkvi_blocks {
    rkvi_block *at;
    size_t n, cap;
    uint64_t bytes;
} rkvi_blocks;

/* What an executor brings.  `core->lock` is held in all of them. */
typedef struct rkvi_core_backend {
    const char *name;
    size_t stream_bytes;           /* its stream struct; rkvi_stream is the first member */
    void (*destroy)(rkvi_core *c); /* without the lock; the last call */
    rkv_status (*stream_open)(rkvi_stream *s);
    void (*stream_close)(rkvi_stream *s);             /* its work is done; lock held before and after */
    void (*push)(rkvi_stream *s, rkvi_devop *op);     /* takes op; cannot fail */
    void (*drain)(rkvi_stream *s, uint64_t n_pushed); /* until n_done reaches n_pushed */
    void (*mark_wait)(rkvi_core *c, rkvi_mark *mark);
    bool (*mark_poll)(rkvi_core *c, rkvi_mark *mark);
    int64_t (*now_ns)(rkvi_core *c); /* as the calling host thread sees it */
    /* Told of each device block (is_device) and pinned host block that comes
     * and goes; may be NULL.  block_gone returns whether the core is to unmap
     * what it had mapped; else the backend does (rkvi_block_unmap). */
    void (*block_added)(rkvi_core *c, const rkvi_block *b, bool is_device);
    bool (*block_gone)(rkvi_core *c, const rkvi_block *b, bool is_device);
} rkvi_core_backend;

typedef struct rkvi_fault_order {
    uint64_t nth; /* 0: none */
    rkv_status status;
} rkvi_fault_order;

struct rkvi_core {
    rkvi_device device; /* first: an rkvi_device * is an rkvi_core * */
    const rkvi_core_backend *backend;
    const rkvi_ops *ops;
    rkvi_device_limits limits;
    uint64_t link_bytes_per_s;
    bool has_link;
    uint32_t n_workers;
    pid_t pid;
    pthread_mutex_t lock;
    bool is_poisoned;
    const char *poison_site;
    uint64_t fault_in; /* operations until one faults, 0: none */
    rkvi_fault_order orders[RKVI_CALL_COUNT];
    uint64_t n_calls[RKVI_CALL_COUNT];
    rkvi_blocks device_blocks, pinned_blocks;
    rkvi_stream *streams; /* all, the default stream and graphs' own included */
    rkvi_stream *default_stream;
    rkvi_capture *captures; /* open ones */
    uint64_t next_capture_id, next_serial;
    rkvi_device_usage usage; /* counters; bytes and blocks are derived */
    /* Free lists: as much as was ever in flight, so steady work allocates nothing. */
    rkvi_devop *kept_ops;
    rkvi_mark *kept_marks;
};

rkv_status rkvi_core_init(rkvi_core *c, const rkvi_core_backend *backend, const rkvi_ops *ops,
                          const rkvi_device_limits *limits);

/* For backends.  With the lock held. */
rkvi_devop *rkvi_stream_pop(rkvi_stream *s);
void rkvi_stream_append(rkvi_stream *s, rkvi_devop *op);
rkvi_mark *rkvi_mark_new(rkvi_core *c);
rkvi_mark *rkvi_mark_ref(rkvi_mark *mark);
void rkvi_mark_unref(rkvi_mark *mark);
/* Before an operation runs: counts it; false: it is not to be carried out,
 * since it faults or the device is poisoned. */
bool rkvi_core_op_starts(rkvi_core *c, const rkvi_devop *op);
void rkvi_devop_free(rkvi_devop *op);
void rkvi_core_drop_kept(rkvi_core *c);

/* Between the core's files.  With the lock held. */
rkv_status rkvi_core_enter(rkvi_core *c, rkvi_device_call call); /* takes the lock */
rkv_status rkvi_core_leave(rkvi_core *c, rkv_status status);     /* gives it back */
rkv_status rkvi_core_leave_poisoned(rkvi_core *c, rkv_status status);
rkvi_stream *rkvi_core_stream(rkvi_core *c, void *handle);
rkv_status rkvi_core_stream_new(rkvi_core *c, const char *name, rkvi_stream **out);
void rkvi_core_stream_free(rkvi_stream *s);
void rkvi_core_push(rkvi_stream *s, rkvi_devop *op);
/* Captures (device_capture.c). */
rkv_status rkvi_capture_refuse(rkvi_core *c, const char *what); /* by a global-mode capture */
rkv_status rkvi_capture_kill(rkvi_capture *cap, const char *why);
rkv_status rkvi_capture_add(rkvi_stream *s, rkvi_devop *op); /* takes op, also on failure */
rkv_status rkvi_capture_record(rkvi_event *event, rkvi_stream *s);
rkv_status rkvi_capture_wait(rkvi_stream *s, rkvi_event *event);
rkv_status rkvi_capture_event_refuse(rkvi_core *c, rkvi_event *event, const char *what);
void rkvi_capture_drop_all(rkvi_core *c);
bool rkvi_core_capture_relax(rkvi_device *d, bool relaxed);
rkv_status rkvi_core_capture_begin(rkvi_device *d, void *stream, bool global);
rkv_status rkvi_core_capture_end(rkvi_device *d, void *stream, rkvi_graph **out);
rkv_status rkvi_core_graph_launch(rkvi_device *d, rkvi_graph *graph, void *stream);
rkv_status rkvi_core_graph_destroy(rkvi_device *d, rkvi_graph *graph);
/* Work (device_work.c). */
rkv_status rkvi_core_copy(rkvi_device *d, const rkvi_copy *copy, void *stream);
rkv_status rkvi_core_fill(rkvi_device *d, void *dst, int byte, size_t bytes, void *stream);
rkv_status rkvi_core_launch(rkvi_device *d, const rkvi_launch *launch, void *stream);
rkv_status rkvi_core_host_call(rkvi_device *d, rkvi_host_fn fn, void *arg, const rkvi_range *ranges,
                               size_t n_ranges, void *stream);
rkv_status rkvi_core_delay(rkvi_device *d, int64_t ns, void *stream);
/* Memory (device_memory.c). */
rkv_status rkvi_core_mem_alloc(rkvi_device *d, size_t bytes, void **out);
rkv_status rkvi_core_mem_free(rkvi_device *d, void *ptr);
rkv_status rkvi_core_host_register(rkvi_device *d, void *ptr, size_t bytes);
rkv_status rkvi_core_host_unregister(rkvi_device *d, void *ptr);
rkv_status rkvi_core_host_alloc(rkvi_device *d, size_t bytes, void **out);
rkv_status rkvi_core_host_free(rkvi_device *d, void *ptr);
void rkvi_core_memory_drop(rkvi_core *c);
const rkvi_block *rkvi_block_of(const rkvi_blocks *blocks, const void *ptr);
void rkvi_block_unmap(const rkvi_block *b);
bool rkvi_block_holds(const rkvi_blocks *blocks, const void *ptr, uint64_t bytes);

#endif
