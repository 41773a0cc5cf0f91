/* SPDX-License-Identifier: MIT
 *
 * fake_cuda_impl.h: what the files of the fake runtime share.  One lock guards
 * all of it.
 */
#ifndef FAKE_CUDA_IMPL_H
#define FAKE_CUDA_IMPL_H

#include "fake_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    FAKE_COPY,
    FAKE_FILL,
    FAKE_KERNEL,
    FAKE_HOST,
    FAKE_DELAY,
    FAKE_MARK /* does nothing: records, waits, a graph's ends */
} fake_kind;

typedef struct fake_copy {
    unsigned char *dst;
    const unsigned char *src;
    size_t dst_pitch, src_pitch, width, rows;
    enum cudaMemcpyKind kind;
    unsigned char *staged; /* pageable source, as it was at the call */
} fake_copy;

/* What an operation does; a captured node keeps one, and each launch copies it. */
typedef struct fake_work {
    fake_kind kind;
    union {
        fake_copy copy;
        struct {
            unsigned char *dst;
            size_t bytes;
            int byte;
        } fill;
        struct {
            uint32_t op;
            uint64_t grid;
            void *args; /* own copy */
            size_t args_bytes;
        } kernel;
        struct {
            cudaHostFn_t fn;
            void *arg;
        } host;
        int64_t delay_ns;
    } u;
} fake_work;

typedef struct fake_op {
    fake_work work;
    struct CUctx_st *ctx;
    const void *lane; /* stream or branch, for the order's habits */
    uint32_t refs, n_before;
    bool is_done;
    int64_t time_ns; /* ready, then ended */
    struct fake_op **after;
    uint32_t n_after, after_cap;
} fake_op;

typedef struct fake_ids {
    uint32_t *at, n, cap;
} fake_ids;

typedef struct fake_node {
    fake_work work;
    fake_ids before;
    const void *lane;
    bool has_after;
} fake_node;

typedef struct fake_nodes {
    fake_node *at;
    uint32_t n, cap, refs;
} fake_nodes;

typedef struct fake_capture {
    struct fake_capture *next;
    uint64_t id;
    struct CUstream_st *origin;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    bool is_broken;
    fake_nodes *nodes;
} fake_capture;

/* Handles stay allocated once destroyed, so that their use shows. */
enum { FAKE_ALIVE = 0x5ca1ab1e, FAKE_DEAD = 0x0ddba11 };

struct CUctx_st {
    struct CUctx_st *next;
    int ordinal;
    cudaError_t fault;
    struct CUstream_st *legacy;
    bool is_alive;
};

struct CUstream_st {
    uint32_t magic;
    struct CUstream_st *next;
    struct CUctx_st *ctx;
    fake_op *last;
    fake_capture *capture;
    fake_ids front; /* nodes that the next one comes after */
};

struct CUevent_st {
    uint32_t magic;
    struct CUevent_st *next;
    struct CUctx_st *ctx;
    bool is_timed;
    fake_op *mark; /* of the latest record */
    uint64_t capture_id; /* 0: not recorded in a capture */
    fake_ids front;
};

struct CUgraph_st {
    uint32_t magic;
    fake_nodes *nodes;
};

struct CUgraphExec_st {
    uint32_t magic;
    struct CUgraphExec_st *next;
    fake_nodes *nodes;
    fake_op *last; /* a graph does not run beside itself */
};

typedef struct fake_block {
    struct fake_block *next;
    unsigned char *at;
    size_t bytes, mapped;
    bool is_device, is_registered;
    struct CUctx_st *ctx;
} fake_block;

typedef struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a host function has ended */
    fake_block *blocks;
    struct CUctx_st *contexts;
    struct CUstream_st *streams; /* alive or dead; events, execs likewise */
    struct CUevent_st *events;
    struct CUgraphExec_st *execs;
    fake_capture *captures;
    uint64_t next_capture;
    fake_op **runnable;
    uint32_t n_runnable, runnable_cap, n_called; /* host functions on their thread */
    uint64_t rng;
    uint32_t switch_in, eager_in;
    const void *favourite, *starved;
    int64_t host_ns;
    uint64_t fault_in;
    cudaError_t fault_error;
    bool is_open; /* device memory has access */
    uint64_t n_leaves;
    bool obeys_memlock;
    size_t unlimited_bytes; /* pinned when that began */
    fake_cuda_held held;
} fake_state;
extern fake_state fake;

#define FAKE_DEVICE_BYTES ((size_t)16 << 30)

_Noreturn void fake_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *fake_alloc(size_t bytes);
size_t fake_pinned_bytes(void);
void *fake_grow(void *at, uint32_t n, uint32_t *cap, size_t size);

/* Takes the lock, finds the context; the error of its fault, if it has one. */
cudaError_t fake_enter(struct CUctx_st **out_ctx);
/* For what CUDA calls unsafe beside a capture: refused, and the capture broken. */
cudaError_t fake_enter_unsafe(struct CUctx_st **out_ctx);
/* Keeps the error as the thread's last one, and gives back the lock. */
cudaError_t fake_leave(cudaError_t e);
struct CUctx_st *fake_context(void); /* without the lock */

/* fake_cuda_memory.c */
fake_block *fake_block_of(const void *p);
bool fake_holds(const void *p, size_t bytes);       /* device or pinned */
bool fake_holds_device(const void *p, size_t bytes);
void fake_access(bool open); /* to device memory */

/* fake_cuda_run.c.  An operation that comes after all that is in `before`. */
fake_op *fake_op_new(struct CUctx_st *ctx, const fake_work *work, const void *lane);
void fake_op_after(fake_op *op, fake_op *before);
void fake_op_ready(fake_op *op); /* its edges are complete */
fake_op *fake_op_ref(fake_op *op);
void fake_op_unref(fake_op *op);
void fake_run_until(const fake_op *op);
void fake_run_all(void);
bool fake_run_one(void);
void fake_eager(void);
void fake_work_free(fake_work *work);
fake_work fake_work_clone(const fake_work *work);
void fake_lane_gone(const void *lane);

/* fake_cuda_streams.c */
struct CUstream_st *fake_stream(struct CUctx_st *ctx, cudaStream_t s, cudaError_t *e);
struct CUstream_st *fake_stream_new(struct CUctx_st *ctx);
/* Enqueues, or adds to the stream's capture. */
cudaError_t fake_enqueue(struct CUstream_st *s, fake_work work);
void fake_push(struct CUstream_st *s, fake_op *op);

/* fake_cuda_capture.c */
extern _Thread_local enum cudaStreamCaptureMode fake_mode;
cudaError_t fake_capture_refuses(void);
cudaError_t fake_capture_add(struct CUstream_st *s, fake_work work);
void fake_capture_record(struct CUstream_st *s, struct CUevent_st *e);
cudaError_t fake_capture_wait(struct CUstream_st *s, struct CUevent_st *e);
cudaError_t fake_capture_break(fake_capture *c, cudaError_t e);
void fake_ids_add(fake_ids *ids, uint32_t id);

/* fake_kernels.c.  False: it reads or writes where there is no memory. */
bool fake_kernel_run(uint32_t op, const void *args, uint64_t grid);

#endif
