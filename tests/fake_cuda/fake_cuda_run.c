/* SPDX-License-Identifier: MIT
 *
 * fake_cuda_run.c: operations, the edges between them, and the order in which
 * they run.
 */
#include "fake_cuda_impl.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------- operations */

fake_work fake_work_clone(const fake_work *work)
{
    fake_work w = *work;
    if (w.kind == FAKE_KERNEL) {
        w.u.kernel.args = fake_alloc(w.u.kernel.args_bytes);
        memcpy(w.u.kernel.args, work->u.kernel.args, w.u.kernel.args_bytes);
    } else if (w.kind == FAKE_COPY && w.u.copy.staged) {
        fake_wrong("a captured copy from pageable memory");
    }
    return w;
}

void fake_work_free(fake_work *work)
{
    if (work->kind == FAKE_KERNEL)
        free(work->u.kernel.args);
    if (work->kind == FAKE_COPY)
        free(work->u.copy.staged);
}

fake_op *fake_op_new(struct CUctx_st *ctx, const fake_work *work, const void *lane)
{
    fake_op *op = fake_alloc(sizeof *op);
    /* Two owners: who made it, and the run. */
    *op = (fake_op){.work = *work, .ctx = ctx, .lane = lane, .refs = 2, .n_before = 1, .time_ns = fake.host_ns};
    return op;
}

fake_op *fake_op_ref(fake_op *op)
{
    if (op)
        op->refs++;
    return op;
}

void fake_op_unref(fake_op *op)
{
    if (!op || --op->refs > 0)
        return;
    fake_work_free(&op->work);
    free(op->after);
    free(op);
}

void fake_op_after(fake_op *op, fake_op *before)
{
    if (!before)
        return;
    if (op->time_ns < before->time_ns)
        op->time_ns = before->time_ns;
    if (before->is_done)
        return;
    before->after = fake_grow(before->after, before->n_after, &before->after_cap, sizeof *before->after);
    before->after[before->n_after++] = op;
    op->n_before++;
}

void fake_op_ready(fake_op *op)
{
    if (--op->n_before > 0)
        return;
    fake.runnable = fake_grow(fake.runnable, fake.n_runnable, &fake.runnable_cap, sizeof *fake.runnable);
    fake.runnable[fake.n_runnable++] = op;
}

static void end(fake_op *op)
{
    op->is_done = true;
    for (uint32_t i = 0; i < op->n_after; i++) {
        if (op->after[i]->time_ns < op->time_ns)
            op->after[i]->time_ns = op->time_ns;
        fake_op_ready(op->after[i]);
    }
    op->n_after = 0;
    fake_op_unref(op);
}

/* -------------------------------------------------------------------- bodies */

static void fault(struct CUctx_st *ctx, cudaError_t e)
{
    if (ctx->fault == cudaSuccess)
        ctx->fault = e;
}

static void run_copy(const fake_copy *c)
{
    const size_t last = c->rows - 1;
    const bool to_host = c->kind == cudaMemcpyDeviceToHost, from_host = c->kind == cudaMemcpyHostToDevice;
    if (!to_host && !fake_holds_device(c->dst, last * c->dst_pitch + c->width))
        fake_wrong("a copy to device memory that was given back, %p", (void *)c->dst);
    if (!from_host && !fake_holds_device(c->src, last * c->src_pitch + c->width))
        fake_wrong("a copy from device memory that was given back, %p", (const void *)c->src);
    for (size_t i = 0; i < c->rows; i++)
        memmove(c->dst + i * c->dst_pitch, (c->staged ? c->staged : c->src) + i * c->src_pitch, c->width);
}

static void run_fill(const fake_work *w)
{
    if (!fake_holds_device(w->u.fill.dst, w->u.fill.bytes))
        fake_wrong("a fill of device memory that was given back, %p", (void *)w->u.fill.dst);
    memset(w->u.fill.dst, w->u.fill.byte, w->u.fill.bytes);
}

static void *call_back(void *arg)
{
    fake_op *op = arg;
    op->work.u.host.fn(op->work.u.host.arg);
    pthread_mutex_lock(&fake.lock);
    fake.n_called--;
    end(op);
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

/* True: it goes on, on a thread of its own. */
static bool run_host(fake_op *op)
{
    static int threaded = -1;
    pthread_t thread;
    if (threaded < 0) {
        const char *how = getenv("FAKE_CUDA_CALLBACKS");
        threaded = how && strcmp(how, "thread") == 0;
    }
    fake_access(false);
    if (!threaded) {
        op->work.u.host.fn(op->work.u.host.arg);
        return false;
    }
    fake.n_called++;
    if (pthread_create(&thread, NULL, call_back, op) != 0)
        fake_wrong("no thread for a host function");
    pthread_detach(thread);
    return true;
}

/* False: it goes on. */
static bool run(fake_op *op)
{
    const fake_work *w = &op->work;
    if (w->kind == FAKE_MARK || op->ctx->fault != cudaSuccess)
        return true;
    fake.held.operations++;
    if (fake.fault_in && --fake.fault_in == 0) {
        fault(op->ctx, fake.fault_error);
        return true;
    }
    if (w->kind == FAKE_HOST)
        return !run_host(op);
    fake_access(true);
    switch (w->kind) {
    case FAKE_COPY: run_copy(&w->u.copy); break;
    case FAKE_FILL: run_fill(w); break;
    case FAKE_KERNEL:
        if (!fake_kernel_run(w->u.kernel.op, w->u.kernel.args, w->u.kernel.grid))
            fault(op->ctx, cudaErrorIllegalAddress);
        break;
    case FAKE_DELAY: op->time_ns += w->u.delay_ns; break;
    case FAKE_HOST:
    case FAKE_MARK: break;
    }
    return true;
}

/* ----------------------------------------------------------------- the order */

/* splitmix64 */
static uint64_t random_next(void)
{
    uint64_t z = (fake.rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void seed(uint64_t s)
{
    static const uint32_t switches[] = {1, 3, 10, 40};
    static const uint32_t eagers[] = {0, 0, 1, 4};
    fake.rng = s;
    fake.switch_in = switches[random_next() % 4];
    fake.eager_in = eagers[random_next() % 4];
}

static void seed_at_start(void) __attribute__((constructor));
static void seed_at_start(void)
{
    const char *text = getenv("FAKE_CUDA_SEED");
    seed(text ? strtoull(text, NULL, 0) : 1);
}

void fake_cuda_seed(uint64_t s)
{
    pthread_mutex_lock(&fake.lock);
    seed(s);
    pthread_mutex_unlock(&fake.lock);
}

void fake_lane_gone(const void *lane)
{
    fake.favourite = fake.favourite == lane ? NULL : fake.favourite;
    fake.starved = fake.starved == lane ? NULL : fake.starved;
}

/* One of this lane (NULL: any), not of that one; n_runnable: none. */
static uint32_t pick_of(const void *lane, const void *but)
{
    uint32_t picked = fake.n_runnable;
    uint64_t n = 0;
    for (uint32_t i = 0; i < fake.n_runnable; i++)
        if (fake.runnable[i]->lane != but && (!lane || fake.runnable[i]->lane == lane) && random_next() % ++n == 0)
            picked = i;
    return picked;
}

static const void *lane_of(uint32_t i)
{
    return i < fake.n_runnable ? fake.runnable[i]->lane : NULL;
}

static uint32_t pick(void)
{
    if (random_next() % fake.switch_in == 0) {
        fake.favourite = lane_of(pick_of(NULL, NULL));
        fake.starved = random_next() % 2 ? lane_of(pick_of(NULL, fake.favourite)) : NULL;
    }
    uint32_t i = fake.favourite ? pick_of(fake.favourite, NULL) : fake.n_runnable;
    if (i == fake.n_runnable)
        i = pick_of(NULL, fake.starved);
    return i < fake.n_runnable ? i : pick_of(NULL, NULL);
}

/* Host functions on their thread may be all that is left: then it waits. */
bool fake_run_one(void)
{
    if (fake.n_runnable == 0)
        return false;
    const uint32_t i = pick();
    fake_op *op = fake.runnable[i];
    fake.runnable[i] = fake.runnable[--fake.n_runnable];
    if (run(op))
        end(op);
    return true;
}

static bool run_or_wait(void)
{
    if (fake_run_one())
        return true;
    if (fake.n_called == 0)
        return false;
    fake_access(false);
    pthread_cond_wait(&fake.changed, &fake.lock);
    return true;
}

void fake_run_until(const fake_op *op)
{
    while (op && !op->is_done)
        if (!run_or_wait())
            fake_wrong("a wait for work that nothing lets run");
    if (op && fake.host_ns < op->time_ns)
        fake.host_ns = op->time_ns;
}

void fake_run_all(void)
{
    while (run_or_wait())
        ;
}

void fake_eager(void)
{
    if (fake.eager_in)
        while (random_next() % (fake.eager_in + 1) == 0 && fake_run_one())
            ;
}

void fake_cuda_fault_op(uint64_t nth, int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.fault_in = nth;
    fake.fault_error = (cudaError_t)error;
    pthread_mutex_unlock(&fake.lock);
}
