/* SPDX-License-Identifier: MIT
 *
 * ops_desk.cu: the device's side of the CPU's share (ops.h): q and a ticket to pinned
 * memory, the wait for threads with its limit, partials back.
 *
 * Order.  Between device and threads each word is released by who wrote what it stands
 * for, and acquired by who reads that, at system scope:
 *   q, by all blocks --fence.sys, a count at device scope, fence.sys--> sent
 *   partials, by threads --> done --acquired by await, a kernel's end--> take
 * `state` is device memory of these kernels alone, which follow one another in a
 * stream.  They start early (rkvk_device.cuh).  What decode reads before it waits, its
 * items, await writes where they are those of what is late: so take, which stands between
 * the two, lets the next one start once all its blocks know that await is over.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_tensor.cuh"

#define DESK_THREADS 256u
#define DESK_EACH 4u /* floats of a thread in a piece */
#define TAKE_PIECES 8u
#define AWAIT_NAP_NS 200u /* about what a read of host memory takes, or less */

/* -------------------------------------------------------------------- publish */

static __device__ void rkvk_send_job(const rkvi_publish_args &a)
{
    const uint64_t ticket = *a.ticket0 + a.site;
    a.state->n_published = 0;
    a.state->out = ticket;
    a.state->is = RKVI_DESK_OUT;
    rkvk_set_word(&a.desk->sent, ticket);
}

/* A block a row and head.  The state changes behind the last block alone. */
static __global__ void __launch_bounds__(DESK_THREADS) rkvk_publish(const rkvi_publish_args a, const uint64_t grid)
{
    const uint64_t index = rkvk_block();
    rkvk_wait_before();
    if (index >= grid || a.state->is != RKVI_DESK_FREE)
        return;
    float *out = a.to + index * a.dim;
    for (uint32_t i = threadIdx.x; i < a.dim; i += DESK_THREADS)
        out[i] = rkvk_tensor_at(a.q, index / a.heads, (uint32_t)(index % a.heads), i);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    const unsigned long long before = atomicAdd((unsigned long long *)&a.state->n_published, 1ull);
    __threadfence_system();
    if (before + 1 == grid)
        rkvk_send_job(a);
}

extern "C" int rkvk_launch_publish(const rkvi_publish_args *a, uint64_t grid, void *stream)
{
    if (grid == 0)
        return 0;
    return rkvk_run_early(rkvk_publish, a, grid, rkvk_grid(grid), dim3(DESK_THREADS), 0, stream);
}

/* ---------------------------------------------------------------------- await */

static __device__ bool rkvk_comes(const rkvi_desk *desk, uint64_t ticket, uint64_t limit_ns)
{
    const uint64_t from_ns = rkvk_now_ns();
    while (rkvk_word(&desk->done) < ticket) {
        if (rkvk_now_ns() - from_ns >= limit_ns)
            return false;
        __nanosleep(AWAIT_NAP_NS);
    }
    return true;
}

/* By one thread: whether the job that is out came; what is known of it afterwards. */
static __device__ bool rkvk_decide(const rkvi_await_args &a)
{
    rkvi_desk_state *s = a.state;
    bool came = false;
    if (s->is == RKVI_DESK_OUT) {
        came = rkvk_comes(a.desk, s->out, a.limit_ns);
        s->is = came ? RKVI_DESK_FREE : RKVI_DESK_LATE;
        if (!came)
            rkvk_set_word(&a.desk->closed, s->out);
    } else if (s->is == RKVI_DESK_LATE && rkvk_word(&a.desk->done) >= s->out) {
        s->is = RKVI_DESK_FREE;
    }
    s->came = came;
    return came;
}

static __device__ void rkvk_tell(const rkvi_await_args &a, bool came)
{
    rkvi_desk_state *s = a.state;
    if (!came) {
        s->n_late++;
        s->late_bytes += a.ticket0[1 + a.site];
        rkvk_set_word(&a.desk->n_late, s->n_late);
        rkvk_set_word(&a.desk->late_bytes, s->late_bytes);
    }
    rkvk_set_word(&a.desk->passed, *a.ticket0 + a.site);
}

/* One block. */
static __global__ void __launch_bounds__(DESK_THREADS) rkvk_await(const rkvi_await_args a, const uint64_t)
{
    __shared__ bool came;
    rkvk_wait_before();
    rkvk_start_next();
    if (threadIdx.x == 0) {
        came = rkvk_decide(a);
        if (a.ticket0)
            rkvk_tell(a, came);
    }
    __syncthreads();
    const rkvi_item none = {};
    for (uint64_t i = threadIdx.x; a.ticket0 && i < a.n_items; i += DESK_THREADS)
        a.late_items[i] = came ? none : a.items[i];
}

extern "C" int rkvk_launch_await(const rkvi_await_args *a, uint64_t grid, void *stream)
{
    if (grid == 0)
        return 0;
    return rkvk_run_early(rkvk_await, a, grid, dim3(1), dim3(DESK_THREADS), 0, stream);
}

/* ----------------------------------------------------------------------- take */

/* A block takes pieces of one row: each read that crosses the link takes a
 * microsecond or more, so all of a piece's are under way at once. */
static __global__ void __launch_bounds__(DESK_THREADS) rkvk_take(const rkvi_take_args a, const uint64_t grid)
{
    const uint64_t index = rkvk_block() / TAKE_PIECES;
    rkvk_wait_before();
    rkvk_start_next();
    if (index >= grid || !a.state->came)
        return;
    const rkvi_item *item = &a.items[index / a.item_rows];
    if (index % a.item_rows >= item->n_rows)
        return;
    const float *from = a.from + index * a.floats;
    float *out = a.partials + (item->slot + index % a.item_rows) * a.floats;
    const uint32_t step = TAKE_PIECES * DESK_EACH * DESK_THREADS;
    for (uint32_t i0 = (uint32_t)(rkvk_block() % TAKE_PIECES) * DESK_EACH * DESK_THREADS; i0 < a.floats; i0 += step) {
        float x[DESK_EACH];
#pragma unroll
        for (uint32_t k = 0; k < DESK_EACH; k++) {
            const uint32_t i = i0 + k * DESK_THREADS + threadIdx.x;
            x[k] = i < a.floats ? __ldcv(&from[i]) : 0.0f;
        }
#pragma unroll
        for (uint32_t k = 0; k < DESK_EACH; k++) {
            const uint32_t i = i0 + k * DESK_THREADS + threadIdx.x;
            if (i < a.floats)
                out[i] = x[k];
        }
    }
}

extern "C" int rkvk_launch_take(const rkvi_take_args *a, uint64_t grid, void *stream)
{
    if (grid == 0)
        return 0;
    return rkvk_run_early(rkvk_take, a, grid, rkvk_grid(grid * TAKE_PIECES), dim3(DESK_THREADS), 0, stream);
}

extern "C" int rkvk_prepare_desk(void)
{
    int e = rkvk_load((const void *)rkvk_publish, 0);
    e = e ? e : rkvk_load((const void *)rkvk_await, 0);
    return e ? e : rkvk_load((const void *)rkvk_take, 0);
}
