/* SPDX-License-Identifier: MIT
 *
 * device_host.c: see device_host.h.
 *
 * Who waits for what: a stream's thread waits on its own `has_work` for
 * operations, and on the device's `progress` for marks; host calls wait on
 * `progress`.  It is signalled whenever an operation ended.  A wait's mark was
 * pushed before the wait itself, so waits can't form a circle.
 */
#include "device_host.h"
#include "device_workers.h"
#include "thread.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* Copies of one direction, one at a time in the order of tickets. */
typedef struct host_link {
    rkvi_link_settings settings;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t next_ticket, serving;
    int64_t busy_until_ns; /* when the copy that had it last was due */
} host_link;

typedef struct host_device {
    rkvi_core core; /* first */
    rkvi_workers *workers;
    pthread_cond_t progress;
    host_link links[2]; /* RKVI_H2D, RKVI_D2H */
    int64_t delay_max_ns;
    uint64_t delay_seed;
    uint64_t n_streams; /* ever opened: seeds their delays */
} host_device;

typedef struct host_stream {
    rkvi_stream base; /* first */
    pthread_t thread;
    pthread_cond_t has_work;
    bool stop;
    uint64_t rng;
    /* When its former operation was due to end; the wall clock may be later,
     * by as much as the system wakes us late. */
    int64_t t_ns;
} host_stream;

static host_device *host_of(rkvi_core *c)
{
    return (host_device *)c;
}

static int64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void sleep_until(int64_t ns)
{
    const struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (wall_ns() < ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL))
        ;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- running an operation: on the stream's thread, without the lock ---- */

/* splitmix64 */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void link_take(host_link *link)
{
    pthread_mutex_lock(&link->lock);
    const uint64_t ticket = link->next_ticket++;
    while (ticket != link->serving)
        pthread_cond_wait(&link->turn, &link->lock);
    pthread_mutex_unlock(&link->lock);
}

static void link_give(host_link *link)
{
    pthread_mutex_lock(&link->lock);
    link->serving++;
    pthread_cond_broadcast(&link->turn);
    pthread_mutex_unlock(&link->lock);
}

/* busy_until_ns belongs to whoever has the link. */
static void run_link_copy(host_stream *s, host_link *link, const rkvi_copy *copy)
{
    link_take(link);
    const int64_t due = later(s->t_ns, link->busy_until_ns) + rkvi_link_ns(&link->settings, copy);
    rkvi_copy_run(copy);
    const int64_t now = wall_ns();
    sleep_until(due);
    link->busy_until_ns = later(due, now);
    s->t_ns = link->busy_until_ns + link->settings.latency_ns;
    link_give(link);
    if (link->settings.latency_ns > 0)
        sleep_until(s->t_ns);
}

static void run_op(host_stream *s, rkvi_devop *op)
{
    host_device *h = host_of(s->base.core);
    switch (op->kind) {
    case RKVI_DEVOP_COPY:
        if (op->u.copy.direction != RKVI_D2D) {
            run_link_copy(s, &h->links[op->u.copy.direction], &op->u.copy);
            return;
        }
        rkvi_copy_run(&op->u.copy);
        break;
    case RKVI_DEVOP_FILL: memset(op->u.fill.dst, op->u.fill.byte, op->u.fill.bytes); break;
    case RKVI_DEVOP_LAUNCH:
        rkvi_workers_run(h->workers, h->core.ops->fn[op->u.launch.op], rkvi_devop_args(op),
                         op->u.launch.grid);
        break;
    case RKVI_DEVOP_HOST_CALL: op->u.host_call.fn(op->u.host_call.arg); break;
    case RKVI_DEVOP_DELAY:
        s->t_ns += op->u.delay_ns;
        sleep_until(s->t_ns);
        return;
    case RKVI_DEVOP_RECORD:
    case RKVI_DEVOP_WAIT: break;
    }
    s->t_ns = later(s->t_ns, wall_ns());
}

/* With the lock, which it gives back while the operation runs. */
static void step_stream(host_stream *s, rkvi_devop *op)
{
    host_device *h = host_of(s->base.core);
    s->t_ns = later(s->t_ns, op->enqueue_ns);
    if (op->kind == RKVI_DEVOP_WAIT) {
        while (!op->u.mark->is_done)
            pthread_cond_wait(&h->progress, &h->core.lock);
        s->t_ns = later(s->t_ns, op->u.mark->time_ns);
        rkvi_mark_unref(op->u.mark);
    } else if (op->kind == RKVI_DEVOP_RECORD) {
        op->u.mark->is_done = true;
        op->u.mark->time_ns = s->t_ns;
        rkvi_mark_unref(op->u.mark);
    } else if (rkvi_core_op_starts(&h->core, op)) {
        pthread_mutex_unlock(&h->core.lock);
        if (h->delay_max_ns > 0) {
            s->t_ns += (int64_t)(random_next(&s->rng) % (uint64_t)h->delay_max_ns);
            sleep_until(s->t_ns);
        }
        run_op(s, op);
        pthread_mutex_lock(&h->core.lock);
    }
    rkvi_devop_free(op);
    s->base.n_done++;
    pthread_cond_broadcast(&h->progress);
}

static void *stream_thread(void *arg)
{
    host_stream *s = arg;
    rkvi_core *c = s->base.core;
    /* the default slack of 50 us is much against a copy of 20 */
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!s->base.head && !s->stop)
            pthread_cond_wait(&s->has_work, &c->lock);
        if (!s->base.head)
            break;
        step_stream(s, rkvi_stream_pop(&s->base));
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the backend: with the lock ---- */

static rkv_status host_stream_open(rkvi_stream *base)
{
    host_stream *s = (host_stream *)base;
    host_device *h = host_of(base->core);
    s->rng = h->delay_seed + 1000003u * h->n_streams++;
    pthread_cond_init(&s->has_work, NULL);
    if (rkvi_thread_start(&s->thread, stream_thread, s, "rkv-stream")) {
        pthread_cond_destroy(&s->has_work);
        return rkvi_fail(RKV_E_SYSTEM, "the system refused a thread for a stream");
    }
    return RKV_OK;
}

static void host_stream_close(rkvi_stream *base)
{
    host_stream *s = (host_stream *)base;
    s->stop = true;
    pthread_cond_signal(&s->has_work);
    pthread_mutex_unlock(&base->core->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&base->core->lock);
    pthread_cond_destroy(&s->has_work);
}

static void host_push(rkvi_stream *base, rkvi_devop *op)
{
    rkvi_stream_append(base, op);
    pthread_cond_signal(&((host_stream *)base)->has_work);
}

static void host_drain(rkvi_stream *s, uint64_t n_pushed)
{
    while (s->n_done < n_pushed)
        pthread_cond_wait(&host_of(s->core)->progress, &s->core->lock);
}

static void host_mark_wait(rkvi_core *c, rkvi_mark *mark)
{
    while (!mark->is_done)
        pthread_cond_wait(&host_of(c)->progress, &c->lock);
}

static bool host_mark_poll(rkvi_core *c, rkvi_mark *mark)
{
    (void)c;
    return mark->is_done;
}

static int64_t host_now_ns(rkvi_core *c)
{
    (void)c;
    return wall_ns();
}

static void host_links_destroy(host_device *h)
{
    for (int i = 0; i < 2; i++) {
        pthread_mutex_destroy(&h->links[i].lock);
        pthread_cond_destroy(&h->links[i].turn);
    }
}

static void host_destroy(rkvi_core *c)
{
    host_device *h = host_of(c);
    rkvi_workers_destroy(h->workers);
    host_links_destroy(h);
    pthread_cond_destroy(&h->progress);
    free(h);
}

static const rkvi_core_backend host_backend = {
    .name = "host",
    .stream_bytes = sizeof(host_stream),
    .destroy = host_destroy,
    .stream_open = host_stream_open,
    .stream_close = host_stream_close,
    .push = host_push,
    .drain = host_drain,
    .mark_wait = host_mark_wait,
    .mark_poll = host_mark_poll,
    .now_ns = host_now_ns,
};

static uint32_t usable_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    return (uint32_t)CPU_COUNT(&set);
}

rkv_status rkvi_device_host_create(const rkvi_device_host_settings *s, const rkvi_ops *ops,
                                   rkvi_device **out)
{
    static const rkvi_device_host_settings defaults;
    if (!s)
        s = &defaults;
    host_device *h = calloc(1, sizeof *h);
    if (!h)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the host executor");
    h->delay_max_ns = s->delay_max_ns;
    h->delay_seed = s->delay_seed;
    h->core.n_workers = s->n_workers ? s->n_workers : usable_cpus();
    h->core.link_bytes_per_s = s->h2d.bytes_per_s;
    h->links[RKVI_H2D].settings = s->h2d;
    h->links[RKVI_D2H].settings = s->d2h;
    pthread_cond_init(&h->progress, NULL);
    for (int i = 0; i < 2; i++) {
        pthread_mutex_init(&h->links[i].lock, NULL);
        pthread_cond_init(&h->links[i].turn, NULL);
    }
    rkv_status st = rkvi_workers_create(h->core.n_workers, &h->workers);
    if (!st)
        st = rkvi_core_init(&h->core, &host_backend, ops, &s->limits);
    if (st) {
        host_destroy(&h->core);
        return st;
    }
    *out = &h->core.device;
    return RKV_OK;
}
