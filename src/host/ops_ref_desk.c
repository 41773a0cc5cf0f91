/* SPDX-License-Identifier: MIT
 *
 * ops_ref_desk.c: the device's side of the CPU's share, on executors that run on
 * the host (ops.h).  Threads of the share read and write the same words
 * (cpu_desk.c), so each access of them says its order. */
#include "ops_ref.h"

#include <sched.h>
#include <time.h>

#define NAP_AFTER_NS 200000u /* of waiting: others may want this CPU */
#define NAP_NS 20000

static uint64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void send_job(const rkvi_publish_args *a)
{
    rkvi_desk_state *s = a->state;
    s->n_published = 0;
    s->out = *a->ticket0 + a->site;
    s->is = RKVI_DESK_OUT;
    __atomic_store_n(&a->desk->sent, s->out, __ATOMIC_RELEASE);
}

/* The state changes behind the last piece alone, and all see the same one. */
void rkvi_ref_publish(const void *args, uint64_t index)
{
    const rkvi_publish_args *a = args;
    if (a->state->is != RKVI_DESK_FREE)
        return;
    rkvi_tensor_get(&a->q, index / a->heads, (uint32_t)(index % a->heads), a->dim, a->to + index * a->dim);
    if (__atomic_add_fetch(&a->state->n_published, 1, __ATOMIC_ACQ_REL) == a->n)
        send_job(a);
}

static bool is_done(const rkvi_desk *desk, uint64_t ticket)
{
    return __atomic_load_n(&desk->done, __ATOMIC_ACQUIRE) >= ticket;
}

static bool comes(const rkvi_desk *desk, uint64_t ticket, uint64_t limit_ns)
{
    const uint64_t from_ns = wall_ns();
    for (uint64_t waited_ns = 0; !is_done(desk, ticket); waited_ns = wall_ns() - from_ns) {
        if (waited_ns >= limit_ns)
            return false;
        if (waited_ns > NAP_AFTER_NS)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        else
            sched_yield();
    }
    return true;
}

/* Whether the job that is out came; what is known of it afterwards. */
static bool decide(const rkvi_await_args *a)
{
    rkvi_desk_state *s = a->state;
    bool came = false;
    if (s->is == RKVI_DESK_OUT) {
        came = comes(a->desk, s->out, a->limit_ns);
        s->is = came ? RKVI_DESK_FREE : RKVI_DESK_LATE;
        if (!came)
            __atomic_store_n(&a->desk->closed, s->out, __ATOMIC_RELEASE);
    } else if (s->is == RKVI_DESK_LATE && is_done(a->desk, s->out)) {
        s->is = RKVI_DESK_FREE;
    }
    return came;
}

static void count_late(const rkvi_await_args *a)
{
    rkvi_desk_state *s = a->state;
    s->n_late++;
    s->late_bytes += a->ticket0[1 + a->site];
    __atomic_store_n(&a->desk->n_late, s->n_late, __ATOMIC_RELAXED);
    __atomic_store_n(&a->desk->late_bytes, s->late_bytes, __ATOMIC_RELAXED);
}

void rkvi_ref_await(const void *args, uint64_t index)
{
    static const rkvi_item none;
    const rkvi_await_args *a = args;
    const bool came = decide(a);
    (void)index;
    a->state->came = came;
    if (!a->ticket0)
        return;
    if (!came)
        count_late(a);
    for (uint64_t i = 0; i < a->n_items; i++)
        a->late_items[i] = came ? none : a->items[i];
    __atomic_store_n(&a->desk->passed, *a->ticket0 + a->site, __ATOMIC_RELEASE);
}

void rkvi_ref_take(const void *args, uint64_t index)
{
    const rkvi_take_args *a = args;
    const rkvi_item *item = &a->items[index / a->item_rows];
    const uint64_t row = index % a->item_rows;
    if (a->state->came && row < item->n_rows)
        memcpy(a->partials + (item->slot + row) * a->floats, a->from + index * a->floats, a->floats * sizeof(float));
}
