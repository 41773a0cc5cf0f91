/* SPDX-License-Identifier: MIT
 *
 * device_sim.c: see device_sim.h.  Everything runs under the core's lock.
 */
#include "device_sim.h"
#include "device_poison.h"

#include <stdlib.h>
#include <string.h>

/* Freed device memory stays mapped, filled with 0xFF, until this much is held:
 * an operation that comes too late reads NaN instead of ending the process. */
#define QUARANTINE_BYTES ((uint64_t)64 << 20)
#define QUERY_NS 1000 /* a host that polls makes time pass */

typedef struct sim_link {
    rkvi_link_settings settings;
    int64_t free_ns; /* when its last copy ends */
    int64_t busy_ns; /* sum over its copies */
} sim_link;

/* Habits of a seed. */
typedef struct sim_habit {
    uint64_t rng;
    uint32_t switch_in;     /* a new favourite once in so many operations */
    uint32_t eager_in;      /* 0: never run at an enqueue; else once in so many */
    rkvi_stream *favourite; /* runs while it can */
    rkvi_stream *starved;   /* runs only when nothing else can */
} sim_habit;

typedef struct sim_device {
    rkvi_core core; /* first */
    rkvi_device_sim_settings settings;
    int64_t host_ns;
    sim_link links[2];
    sim_habit habit;
    rkvi_block *quarantine; /* oldest first */
    size_t n_quarantine, quarantine_cap;
    uint64_t quarantine_bytes;
} sim_device;

typedef struct sim_stream {
    rkvi_stream base; /* first */
    int64_t t_ns;     /* when its last operation ended */
} sim_stream;

static sim_device *sim_of(rkvi_core *c)
{
    return (sim_device *)c;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- one operation ---- */

static int64_t device_ns(const sim_device *sim, uint64_t bytes)
{
    const uint64_t rate = sim->settings.device_bytes_per_s;
    return sim->settings.launch_ns + (rate ? (int64_t)(1e9 * (double)bytes / (double)rate) : 0);
}

/* When an operation that is ready at `ready` ends. */
static int64_t op_end_ns(sim_device *sim, const rkvi_devop *op, int64_t ready)
{
    switch (op->kind) {
    case RKVI_DEVOP_COPY:
        if (op->u.copy.direction != RKVI_D2D) {
            sim_link *link = &sim->links[op->u.copy.direction];
            const int64_t ns = rkvi_link_ns(&link->settings, &op->u.copy);
            link->busy_ns += ns;
            link->free_ns = later(ready, link->free_ns) + ns;
            return link->free_ns + link->settings.latency_ns;
        }
        return ready + device_ns(sim, 2 * rkvi_copy_bytes(&op->u.copy));
    case RKVI_DEVOP_FILL: return ready + device_ns(sim, op->u.fill.bytes);
    case RKVI_DEVOP_LAUNCH: return ready + device_ns(sim, op->u.launch.cost_bytes);
    case RKVI_DEVOP_HOST_CALL: return ready + sim->settings.host_call_ns;
    case RKVI_DEVOP_DELAY: return ready + op->u.delay_ns;
    case RKVI_DEVOP_RECORD:
    case RKVI_DEVOP_WAIT: break;
    }
    return ready;
}

static void run_body(sim_device *sim, rkvi_devop *op)
{
    switch (op->kind) {
    case RKVI_DEVOP_COPY: rkvi_copy_run(&op->u.copy); break;
    case RKVI_DEVOP_FILL: memset(op->u.fill.dst, op->u.fill.byte, op->u.fill.bytes); break;
    case RKVI_DEVOP_LAUNCH:
        for (uint64_t i = 0; i < op->u.launch.grid; i++)
            sim->core.ops->fn[op->u.launch.op](rkvi_devop_args(op), i);
        break;
    case RKVI_DEVOP_HOST_CALL: op->u.host_call.fn(op->u.host_call.arg); break;
    case RKVI_DEVOP_DELAY:
    case RKVI_DEVOP_RECORD:
    case RKVI_DEVOP_WAIT: break;
    }
}

/* The ranges of an operation: declared, or implied by a copy or fill. */
static size_t ranges_of(rkvi_devop *op, rkvi_range implied[2], const rkvi_range **out)
{
    *out = implied;
    if (op->kind == RKVI_DEVOP_COPY) {
        const rkvi_copy *c = &op->u.copy;
        implied[0] = (rkvi_range){.ptr = c->src,
                                  .bytes = c->width_bytes,
                                  .rows = c->rows,
                                  .pitch_bytes = c->src_pitch_bytes,
                                  .access = RKVI_READ};
        implied[1] = (rkvi_range){.ptr = c->dst,
                                  .bytes = c->width_bytes,
                                  .rows = c->rows,
                                  .pitch_bytes = c->dst_pitch_bytes,
                                  .access = RKVI_WRITE};
        return 2;
    }
    if (op->kind == RKVI_DEVOP_FILL) {
        implied[0] =
            (rkvi_range){.ptr = op->u.fill.dst, .bytes = op->u.fill.bytes, .access = RKVI_WRITE};
        return 1;
    }
    *out = rkvi_devop_ranges(op);
    return op->n_ranges;
}

static void close_all(const rkvi_blocks *blocks, bool is_open_after)
{
    for (size_t i = 0; i < blocks->n; i++)
        if (is_open_after)
            rkvi_poison_open(&blocks->at[i]);
        else
            rkvi_poison_close(&blocks->at[i]);
}

/* Device memory is closed before and after; see device_poison.h. */
static void close_ranges(const rkvi_blocks *blocks, const rkvi_range *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char *ptr = ranges[i].ptr;
        const size_t rows = ranges[i].rows ? ranges[i].rows : 1;
        for (size_t row = 0; row < rows; row++) {
            const rkvi_block *b = rkvi_block_of(blocks, ptr + row * ranges[i].pitch_bytes);
            if (b)
                rkvi_poison_close(b);
            if (b && ptr + (rows - 1) * ranges[i].pitch_bytes < b->ptr + b->bytes)
                break; /* all rows lie in this block */
        }
    }
}

static void run_poisoned(sim_device *sim, rkvi_devop *op)
{
    const rkvi_range *ranges;
    rkvi_range implied[2];
    const size_t n = ranges_of(op, implied, &ranges);
    const bool all = sim->settings.poison == RKVI_SIM_POISON_ALL;
    rkvi_poison_open_ranges(&sim->core.device_blocks, ranges, n);
    if (all) {
        close_all(&sim->core.pinned_blocks, false);
        rkvi_poison_open_ranges(&sim->core.pinned_blocks, ranges, n);
    }
    run_body(sim, op);
    close_ranges(&sim->core.device_blocks, ranges, n);
    if (all)
        close_all(&sim->core.pinned_blocks, true);
}

static int64_t ready_ns(const rkvi_stream *s)
{
    const rkvi_devop *op = s->head;
    const int64_t ready = later(((const sim_stream *)s)->t_ns, op->enqueue_ns);
    return op->kind == RKVI_DEVOP_WAIT ? later(ready, op->u.mark->time_ns) : ready;
}

static void run_head(sim_device *sim, rkvi_stream *base)
{
    sim_stream *s = (sim_stream *)base;
    const int64_t ready = ready_ns(base);
    rkvi_devop *op = rkvi_stream_pop(base);
    s->t_ns = ready;
    if (op->kind == RKVI_DEVOP_RECORD) {
        op->u.mark->is_done = true;
        op->u.mark->time_ns = ready;
        rkvi_mark_unref(op->u.mark);
    } else if (op->kind == RKVI_DEVOP_WAIT) {
        rkvi_mark_unref(op->u.mark);
    } else if (rkvi_core_op_starts(&sim->core, op)) {
        s->t_ns = op_end_ns(sim, op, ready);
        if (sim->settings.poison)
            run_poisoned(sim, op);
        else
            run_body(sim, op);
    }
    rkvi_devop_free(op);
    base->n_done++;
}

/* ---- which one ---- */

static bool can_run(const rkvi_stream *s)
{
    return s->head && (s->head->kind != RKVI_DEVOP_WAIT || s->head->u.mark->is_done);
}

/* The earliest in virtual time, then in order of enqueueing.  Times picked so
 * never fall, which makes the links FIFO by readiness. */
static rkvi_stream *pick_by_time(sim_device *sim)
{
    rkvi_stream *best = NULL;
    for (rkvi_stream *s = sim->core.streams; s; s = s->next) {
        if (!can_run(s))
            continue;
        const int64_t mine = ready_ns(s), least = best ? ready_ns(best) : 0;
        if (!best || mine < least || (mine == least && s->head->serial < best->head->serial))
            best = s;
    }
    return best;
}

/* splitmix64 */
static uint64_t random_next(sim_habit *h)
{
    uint64_t z = (h->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Any runnable stream but `but`; NULL when there is none. */
static rkvi_stream *pick_any(sim_device *sim, const rkvi_stream *but)
{
    rkvi_stream *pick = NULL;
    uint64_t n = 0;
    for (rkvi_stream *s = sim->core.streams; s; s = s->next)
        if (s != but && can_run(s) && random_next(&sim->habit) % ++n == 0)
            pick = s;
    return pick;
}

static rkvi_stream *pick_by_seed(sim_device *sim)
{
    sim_habit *h = &sim->habit;
    if (random_next(h) % h->switch_in == 0) {
        h->favourite = pick_any(sim, NULL);
        h->starved = random_next(h) % 2 ? pick_any(sim, h->favourite) : NULL;
    }
    if (h->favourite && can_run(h->favourite))
        return h->favourite;
    rkvi_stream *s = pick_any(sim, h->starved);
    return s ? s : pick_any(sim, NULL);
}

static rkvi_stream *pick(sim_device *sim)
{
    return sim->settings.order == RKVI_SIM_SEEDED ? pick_by_seed(sim) : pick_by_time(sim);
}

/* False: nothing is left to run. */
static bool step(sim_device *sim)
{
    rkvi_stream *s = pick(sim);
    if (s)
        run_head(sim, s);
    return s != NULL;
}

static void init_habit(sim_habit *h, uint64_t seed)
{
    static const uint32_t switches[] = {1, 3, 10, 40};
    static const uint32_t eagers[] = {0, 0, 1, 4};
    h->rng = seed;
    h->switch_in = switches[random_next(h) % 4];
    h->eager_in = eagers[random_next(h) % 4];
}

/* ---- the backend ---- */

static void sim_push(rkvi_stream *s, rkvi_devop *op)
{
    sim_device *sim = sim_of(s->core);
    rkvi_stream_append(s, op);
    sim->host_ns += sim->settings.enqueue_ns;
    if (sim->settings.order == RKVI_SIM_SEEDED && sim->habit.eager_in)
        while (random_next(&sim->habit) % (sim->habit.eager_in + 1) == 0 && step(sim))
            ;
}

static void sim_drain(rkvi_stream *s, uint64_t n_pushed)
{
    sim_device *sim = sim_of(s->core);
    while (s->n_done < n_pushed && step(sim))
        ;
    sim->host_ns = later(sim->host_ns, ((sim_stream *)s)->t_ns);
}

static void sim_mark_wait(rkvi_core *c, rkvi_mark *mark)
{
    sim_device *sim = sim_of(c);
    while (!mark->is_done && step(sim))
        ;
    sim->host_ns = later(sim->host_ns, mark->time_ns);
}

/* By time: what started by now has run.  By seed: one more operation runs, so
 * that a host that polls comes to an end. */
static bool sim_mark_poll(rkvi_core *c, rkvi_mark *mark)
{
    sim_device *sim = sim_of(c);
    if (sim->settings.order == RKVI_SIM_SEEDED) {
        const bool is_done = mark->is_done;
        if (!is_done)
            step(sim);
        return is_done;
    }
    rkvi_stream *s;
    while ((s = pick_by_time(sim)) && ready_ns(s) <= sim->host_ns)
        run_head(sim, s);
    if (mark->is_done && mark->time_ns <= sim->host_ns)
        return true;
    sim->host_ns += QUERY_NS;
    return false;
}

static int64_t sim_now_ns(rkvi_core *c)
{
    return sim_of(c)->host_ns;
}

static rkv_status sim_stream_open(rkvi_stream *s)
{
    ((sim_stream *)s)->t_ns = sim_of(s->core)->host_ns;
    return RKV_OK;
}

static void sim_stream_close(rkvi_stream *s)
{
    sim_habit *h = &sim_of(s->core)->habit;
    h->favourite = h->favourite == s ? NULL : h->favourite;
    h->starved = h->starved == s ? NULL : h->starved;
}

static void sim_block_added(rkvi_core *c, const rkvi_block *b, bool is_device)
{
    sim_device *sim = sim_of(c);
    if (is_device && !sim->settings.skip_fill)
        memset(b->ptr, 0xff, b->bytes);
    if (is_device && sim->settings.poison)
        rkvi_poison_close(b);
}

static void quarantine_drop(sim_device *sim, uint64_t keep_bytes)
{
    size_t n = 0;
    while (n < sim->n_quarantine && sim->quarantine_bytes > keep_bytes) {
        rkvi_poison_open(&sim->quarantine[n]);
        rkvi_block_unmap(&sim->quarantine[n]);
        sim->quarantine_bytes -= sim->quarantine[n++].bytes;
    }
    sim->n_quarantine -= n;
    if (n && sim->n_quarantine)
        memmove(sim->quarantine, sim->quarantine + n, sim->n_quarantine * sizeof(rkvi_block));
}

static bool sim_block_gone(rkvi_core *c, const rkvi_block *b, bool is_device)
{
    sim_device *sim = sim_of(c);
    if (!is_device)
        return true;
    if (sim->n_quarantine == sim->quarantine_cap) {
        const size_t cap = sim->quarantine_cap ? 2 * sim->quarantine_cap : 16;
        rkvi_block *at = realloc(sim->quarantine, cap * sizeof *at);
        if (!at) {
            rkvi_poison_open(b);
            return true;
        }
        sim->quarantine = at;
        sim->quarantine_cap = cap;
    }
    if (!sim->settings.skip_fill) {
        rkvi_poison_open(b);
        memset(b->ptr, 0xff, b->bytes);
    }
    if (sim->settings.poison)
        rkvi_poison_close(b);
    sim->quarantine[sim->n_quarantine++] = *b;
    sim->quarantine_bytes += b->bytes;
    quarantine_drop(sim, QUARANTINE_BYTES);
    return false;
}

static void sim_destroy(rkvi_core *c)
{
    sim_device *sim = sim_of(c);
    quarantine_drop(sim, 0);
    free(sim->quarantine);
    free(sim);
}

static const rkvi_core_backend sim_backend = {
    .name = "sim",
    .stream_bytes = sizeof(sim_stream),
    .destroy = sim_destroy,
    .stream_open = sim_stream_open,
    .stream_close = sim_stream_close,
    .push = sim_push,
    .drain = sim_drain,
    .mark_wait = sim_mark_wait,
    .mark_poll = sim_mark_poll,
    .now_ns = sim_now_ns,
    .block_added = sim_block_added,
    .block_gone = sim_block_gone,
};

/* ---- what tests and benches call ---- */

rkv_status rkvi_device_sim_create(const rkvi_device_sim_settings *s, const rkvi_ops *ops,
                                  rkvi_device **out)
{
    static const rkvi_device_sim_settings defaults;
    sim_device *sim = calloc(1, sizeof *sim);
    if (!sim)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the simulating executor");
    sim->settings = s ? *s : defaults;
    sim->links[RKVI_H2D].settings = sim->settings.h2d;
    sim->links[RKVI_D2H].settings = sim->settings.d2h;
    init_habit(&sim->habit, sim->settings.seed);
    sim->core.device.wants_ranges = sim->settings.poison != RKVI_SIM_POISON_OFF;
    sim->core.n_workers = sim->settings.n_workers ? sim->settings.n_workers : 1;
    sim->core.has_link = sim->settings.h2d.bytes_per_s != 0;
    sim->core.link_bytes_per_s = sim->settings.hides_link ? 0 : sim->settings.h2d.bytes_per_s;
    const rkv_status st = rkvi_core_init(&sim->core, &sim_backend, ops, &sim->settings.limits);
    if (st) {
        sim_destroy(&sim->core);
        return st;
    }
    *out = &sim->core.device;
    return RKV_OK;
}

/* 2.9 us and 55.8 GB/s meet the measured 17, 34, 48, 52, 55 GB/s of copies of
 * 64 KiB, 256 KiB, 1, 4 and 16 MiB within 8, 1, 1, 4 and 1 %. */
void rkvi_device_sim_like_h200(rkvi_device_sim_settings *s)
{
    s->h2d = (rkvi_link_settings){.bytes_per_s = 55800000000u, .cost_ns = 2900, .row_cost_ns = 200};
    s->d2h = s->h2d;
    s->device_bytes_per_s = 4200000000000u;
    s->launch_ns = 6000;
}

void rkvi_device_sim_run(rkvi_device *d)
{
    sim_device *sim = sim_of((rkvi_core *)d);
    pthread_mutex_lock(&sim->core.lock);
    while (step(sim))
        ;
    pthread_mutex_unlock(&sim->core.lock);
}

int64_t rkvi_device_sim_now_ns(rkvi_device *d)
{
    sim_device *sim = sim_of((rkvi_core *)d);
    pthread_mutex_lock(&sim->core.lock);
    const int64_t ns = sim->host_ns;
    pthread_mutex_unlock(&sim->core.lock);
    return ns;
}

void rkvi_device_sim_host_work(rkvi_device *d, int64_t ns)
{
    sim_device *sim = sim_of((rkvi_core *)d);
    pthread_mutex_lock(&sim->core.lock);
    sim->host_ns += ns;
    pthread_mutex_unlock(&sim->core.lock);
}

int64_t rkvi_device_sim_link_busy_ns(rkvi_device *d, rkvi_direction direction)
{
    sim_device *sim = sim_of((rkvi_core *)d);
    pthread_mutex_lock(&sim->core.lock);
    const int64_t ns = direction == RKVI_D2D ? 0 : sim->links[direction].busy_ns;
    pthread_mutex_unlock(&sim->core.lock);
    return ns;
}
