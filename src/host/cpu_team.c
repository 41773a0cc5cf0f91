/* cpu_team.c: see cpu_team.h.
 *
 * A helper says that it is inside before it looks whether a job is open, and the
 * caller closes the job before it looks who is inside: both in sequentially
 * consistent order, so that no helper is inside a job whose caller has left.
 * Falling asleep and waking are ordered alike by n_asleep. */
#include "cpu_team.h"

#include "diag.h"
#include "thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define YIELD_AFTER 4096u /* pauses: others may want this CPU */
#define NAP_NS 20000      /* of work that is due and hasn't come for RKVI_CPU_SPIN_NS */
#define LONG_AFTER_NS 100000000
#define LONG_NAP_NS 1000000

struct rkvi_cpu_team {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic bool is_open, stop;
    _Atomic uint64_t n_asleep;
    _Atomic uint32_t n_begun; /* helpers, who take their numbers from it */
    _Atomic(const rkvi_cpu_watch *) watch; /* NULL: none */
    pid_t pid;
    /* the job */
    rkvi_op_fn fn;
    const void *args;
    uint64_t n;
    _Alignas(64) _Atomic uint64_t next;
    _Alignas(64) _Atomic uint64_t n_inside;
    uint32_t n_threads; /* helpers */
    pthread_t threads[];
};

static void relax(uint32_t turn)
{
    if (turn % YIELD_AFTER == YIELD_AFTER - 1)
        sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void take_units(rkvi_cpu_team *t)
{
    for (uint64_t i; (i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->n;)
        t->fn(t->args, i);
}

static void help(rkvi_cpu_team *t)
{
    atomic_fetch_add(&t->n_inside, 1);
    if (atomic_load(&t->is_open))
        take_units(t);
    atomic_fetch_sub(&t->n_inside, 1);
}

static bool is_due(rkvi_cpu_team *t)
{
    const rkvi_cpu_watch *w = atomic_load(&t->watch);
    return w && w->is_due(w->arg);
}

static void sleep_until_woken(rkvi_cpu_team *t)
{
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->n_asleep, 1);
    while (!atomic_load(&t->is_open) && !is_due(t) && !atomic_load(&t->stop))
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->n_asleep, 1);
    pthread_mutex_unlock(&t->lock);
}

/* Naps where work is due and takes long, sleeps where none is; true: it slept. */
static bool rest(rkvi_cpu_team *t, int64_t idle_ns)
{
    const bool is_new = idle_ns <= RKVI_CPU_SPIN_NS;
    if (is_due(t)) {
        if (!is_new)
            nanosleep(&(struct timespec){.tv_nsec = idle_ns < LONG_AFTER_NS ? NAP_NS : LONG_NAP_NS}, NULL);
        return false;
    }
    if (is_new && !atomic_load(&t->watch))
        return false;
    sleep_until_woken(t);
    return true;
}

static bool work(rkvi_cpu_team *t, uint32_t thread)
{
    const rkvi_cpu_watch *w = atomic_load(&t->watch);
    if (atomic_load(&t->is_open)) {
        help(t);
        return true;
    }
    return w && w->look(w->arg, thread);
}

static void *helper(void *arg)
{
    rkvi_cpu_team *t = arg;
    const uint32_t thread = atomic_fetch_add(&t->n_begun, 1);
    int64_t idle_since = now_ns();
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* naps are shorter than the default slack */
    for (uint32_t turn = 0; !atomic_load(&t->stop); turn++) {
        if (work(t, thread) || (turn % 64 == 0 && rest(t, now_ns() - idle_since)))
            idle_since = now_ns();
        relax(turn);
    }
    return NULL;
}

void rkvi_cpu_team_wake(rkvi_cpu_team *t)
{
    if (atomic_load(&t->n_asleep) == 0)
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

void rkvi_cpu_team_run(rkvi_cpu_team *t, rkvi_op_fn fn, const void *args, uint64_t n)
{
    t->fn = fn;
    t->args = args;
    t->n = n;
    atomic_store(&t->next, 0);
    atomic_store(&t->is_open, true);
    rkvi_cpu_team_wake(t);
    take_units(t);
    atomic_store(&t->is_open, false);
    for (uint32_t turn = 0; atomic_load(&t->n_inside); turn++)
        relax(turn);
}

void rkvi_cpu_team_watch(rkvi_cpu_team *t, const rkvi_cpu_watch *watch)
{
    atomic_store(&t->watch, watch);
}

/* The CPUs of a node out of those that the calling thread may use. */
static bool node_cpus(int32_t node, cpu_set_t *out)
{
    char path[64];
    cpu_set_t allowed;
    int a, z, n;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", (int)node);
    FILE *f = node < 0 || sched_getaffinity(0, sizeof allowed, &allowed) ? NULL : fopen(path, "r");
    if (!f)
        return false;
    CPU_ZERO(out);
    while (fscanf(f, "%d", &a) == 1) {
        z = a;
        n = fgetc(f);
        if (n == '-' && fscanf(f, "%d", &z) == 1)
            n = fgetc(f);
        for (int c = a; c <= z && c < CPU_SETSIZE; c++)
            if (CPU_ISSET(c, &allowed))
                CPU_SET(c, out);
        if (n != ',')
            break;
    }
    fclose(f);
    return CPU_COUNT(out) > 0;
}

void rkvi_cpu_team_destroy(rkvi_cpu_team *t)
{
    if (!t || t->pid != getpid())
        return;
    atomic_store(&t->stop, true);
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    rkvi_threads_join(t->threads, t->n_threads);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

rkv_status rkvi_cpu_team_create(uint32_t n_threads, int32_t numa_node, rkvi_cpu_team **out)
{
    const uint32_t n = n_threads ? n_threads - 1 : 0;
    const size_t bytes = sizeof(rkvi_cpu_team) + n * sizeof(pthread_t);
    rkvi_cpu_team *t = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    cpu_set_t cpus;
    if (!t)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u threads of the CPU's share", n_threads);
    *t = (rkvi_cpu_team){.pid = getpid()};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    const bool pin = node_cpus(numa_node, &cpus);
    t->n_threads = rkvi_threads_start(t->threads, n, helper, t, "rkv-cpu");
    for (uint32_t i = 0; pin && i < t->n_threads; i++) /* where it may not be, it runs elsewhere: slower, not wrong */
        pthread_setaffinity_np(t->threads[i], sizeof cpus, &cpus);
    if (t->n_threads < n) {
        rkvi_cpu_team_destroy(t);
        return rkvi_fail(RKV_E_SYSTEM, "the system refused a thread of the CPU's share; it is of %u threads", n);
    }
    *out = t;
    return RKV_OK;
}
