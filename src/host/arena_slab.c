/* SPDX-License-Identifier: MIT
 *
 * arena_slab.c: maps, advises, binds, touches and pins one slab.
 */
#include "arena_slab.h"
#include "arena_numa.h"
#include "geometry.h"
#include "thread.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)
#define TOUCH_CHUNK_BYTES ((uint64_t)4 << 20)
#define TOUCH_THREADS_MAX 16u

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t rkvi_arena_extent_bytes(uint64_t bytes)
{
    return rkvi_align_up(bytes, page_bytes());
}

int rkvi_arena_thread_start(pthread_t *out, void *(*fn)(void *), void *arg)
{
    return rkvi_thread_start(out, fn, arg, "rkv-arena");
}

/* That this process may use: a container's share, not the machine's. */
static uint32_t core_count(void)
{
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set))
        return (uint32_t)CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (uint32_t)online : 1;
}

void rkvi_slab_maker_init(rkvi_slab_maker *m, const rkvi_arena_settings *s)
{
    m->dev = s->dev;
    m->numa_node = rkvi_arena_numa_usable(s->numa_node);
    m->n_touch_threads = s->n_touch_threads ? s->n_touch_threads : core_count();
    if (m->n_touch_threads > TOUCH_THREADS_MAX)
        m->n_touch_threads = TOUCH_THREADS_MAX;
    m->no_huge_pages = s->no_huge_pages;
    atomic_init(&m->stop, false);
    atomic_init(&m->n_refused, 0);
    atomic_init(&m->register_refused_bytes, UINT64_MAX);
    atomic_init(&m->alloc_refused_bytes, UINT64_MAX);
}

/* ---------------------------------------------------------------- mapping */

static void *map_anonymous(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Begins on a huge page's edge where one fits: maps more and cuts the ends off. */
static unsigned char *map_aligned(uint64_t bytes)
{
    if (bytes < HUGE_PAGE_BYTES)
        return map_anonymous(bytes);
    unsigned char *p = map_anonymous(bytes + HUGE_PAGE_BYTES);
    if (!p)
        return NULL;
    const uint64_t head = (HUGE_PAGE_BYTES - (uintptr_t)p % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (head)
        munmap(p, head);
    munmap(p + head + bytes, HUGE_PAGE_BYTES - head);
    return p + head;
}

/* Advice and binding come before the first touch, which they are for. */
static rkv_status map_slab(const rkvi_slab_maker *m, uint64_t bytes, unsigned char **out)
{
    unsigned char *p = map_aligned(bytes);
    if (!p)
        return rkvi_fail(
            RKV_E_HOST_MEMORY,
            "the system refused %llu bytes of host memory (%s): lower host_limit_bytes, or "
            "raise the process's address space limit",
            (unsigned long long)bytes, strerror(errno));
    /* Pinned pages and a child's copy-on-write do not go together; and the
     * child of a killed process must not keep the tail. */
    if (madvise(p, bytes, MADV_DONTFORK)) {
        const int err = errno;
        munmap(p, bytes);
        return rkvi_fail(RKV_E_HOST_MEMORY, "%llu bytes of host memory can't be kept out of forks: %s",
                         (unsigned long long)bytes, strerror(err));
    }
    /* Refused by kernels without transparent huge pages. */
    if (!m->no_huge_pages && madvise(p, bytes, MADV_HUGEPAGE))
        rkvi_log(RKVI_LOG_DEBUG, "no huge pages for %llu bytes of host memory: %s",
                 (unsigned long long)bytes, strerror(errno));
    rkvi_arena_numa_bind(m->numa_node, p, bytes);
    *out = p;
    return RKV_OK;
}

/* --------------------------------------------------------------- touching */

/* Memory that is touched again after a refusal was told before: never back. */
static void tell(rkvi_slab_progress *progress, uint64_t done_bytes)
{
    if (!progress || !progress->fn || progress->before_bytes + done_bytes <= progress->told_bytes)
        return;
    progress->told_bytes = progress->before_bytes + done_bytes;
    progress->fn(progress->user, "host memory", progress->told_bytes, progress->total_bytes);
}

typedef struct touch {
    rkvi_slab_maker *maker;
    unsigned char *base;
    uint64_t bytes, page_bytes;
    atomic_uint_least64_t next_bytes, done_bytes;
} touch;

/* The first write to a page gives it memory.  False: no chunk is left. */
static bool touch_chunk(touch *t)
{
    if (atomic_load(&t->maker->stop))
        return false;
    const uint64_t from = atomic_fetch_add(&t->next_bytes, TOUCH_CHUNK_BYTES);
    if (from >= t->bytes)
        return false;
    const uint64_t left = t->bytes - from;
    const uint64_t n = left < TOUCH_CHUNK_BYTES ? left : TOUCH_CHUNK_BYTES;
    for (uint64_t i = 0; i < n; i += t->page_bytes)
        *(volatile unsigned char *)(t->base + from + i) = 0;
    atomic_fetch_add(&t->done_bytes, n);
    return true;
}

static void *touch_thread(void *arg)
{
    while (touch_chunk(arg))
        ;
    return NULL;
}

/* With the calling thread and as many others as are allowed and can be had;
 * only the calling one tells the progress. */
static rkv_status touch_slab(rkvi_slab_maker *m, unsigned char *base, uint64_t bytes,
                             rkvi_slab_progress *progress)
{
    touch t = {.maker = m, .base = base, .bytes = bytes, .page_bytes = page_bytes()};
    atomic_init(&t.next_bytes, 0);
    atomic_init(&t.done_bytes, 0);
    const uint64_t n_chunks = (bytes - 1) / TOUCH_CHUNK_BYTES + 1;
    const uint32_t n_most = n_chunks < m->n_touch_threads ? (uint32_t)n_chunks : m->n_touch_threads;
    pthread_t threads[TOUCH_THREADS_MAX];
    uint32_t n = 0;
    while (n + 1 < n_most && !rkvi_arena_thread_start(&threads[n], touch_thread, &t))
        n++;
    while (touch_chunk(&t)) {
        const uint64_t done = atomic_load(&t.done_bytes);
        tell(progress, done < bytes ? done : bytes - 1); /* all: once it is pinned */
    }
    while (n > 0)
        pthread_join(threads[--n], NULL);
    return atomic_load(&t.done_bytes) == bytes
               ? RKV_OK
               : rkvi_fail(RKV_E_STATE, "the host memory is being given back");
}

static rkv_status map_and_touch(rkvi_slab_maker *m, uint64_t bytes, rkvi_slab_progress *progress,
                                rkvi_slab *out)
{
    rkv_status st = map_slab(m, bytes, &out->base);
    if (st)
        return st;
    st = touch_slab(m, out->base, bytes, progress);
    if (st)
        munmap(out->base, bytes);
    return st;
}

/* ---------------------------------------------------------------- pinning */

/* Keeps the smallest size that was refused.  Asking again for what a driver
 * refused costs the touching each time, and with some drivers spoils what they
 * would have granted later. */
static void note_refusal(atomic_uint_least64_t *smallest, const char *what, uint64_t bytes)
{
    uint64_t known = atomic_load(smallest);
    while (bytes < known && !atomic_compare_exchange_weak(smallest, &known, bytes))
        ;
    rkvi_log(RKVI_LOG_WARNING, "%s of %llu bytes of host memory was refused: %s", what,
             (unsigned long long)bytes, rkvi_error_text());
}

/* These two set out->kind only when they succeed.  A refusal is RKV_OK; after a
 * device fault there is nothing to fall back to. */
static rkv_status try_register(rkvi_slab_maker *m, uint64_t bytes, rkvi_slab_progress *progress,
                               rkvi_slab *out)
{
    if (bytes >= atomic_load(&m->register_refused_bytes))
        return RKV_OK;
    rkv_status st = map_and_touch(m, bytes, progress, out);
    if (st)
        return st;
    st = rkvi_dev(host_register, m->dev, out->base, bytes);
    if (!st) {
        out->kind = RKVI_SLAB_REGISTERED;
        return RKV_OK;
    }
    munmap(out->base, bytes);
    if (st == RKV_E_POISONED)
        return st;
    atomic_fetch_add(&m->n_refused, 1);
    note_refusal(&m->register_refused_bytes, "registration", bytes);
    return RKV_OK;
}

static rkv_status try_alloc(rkvi_slab_maker *m, uint64_t bytes, rkvi_slab *out)
{
    if (bytes >= atomic_load(&m->alloc_refused_bytes))
        return RKV_OK;
    void *p = NULL;
    const rkv_status st = rkvi_dev(host_alloc, m->dev, bytes, &p);
    if (!st) {
        out->base = p;
        out->kind = RKVI_SLAB_ALLOCATED;
        /* Drivers may do it themselves, or refuse it for their mappings. */
        if (madvise(p, bytes, MADV_DONTFORK))
            rkvi_log(RKVI_LOG_DEBUG, "pinned memory of the executor stays in forks: %s",
                     strerror(errno));
        return RKV_OK;
    }
    if (st == RKV_E_POISONED)
        return st;
    note_refusal(&m->alloc_refused_bytes, "pinned allocation", bytes);
    return RKV_OK;
}

/* The executor frees nothing between the tries: each begins from new memory,
 * so that the limit holds, with one slab's bytes at most at any time. */
static rkv_status make_any(rkvi_slab_maker *m, uint64_t bytes, rkvi_slab_progress *progress,
                           rkvi_slab *out)
{
    rkv_status st = try_register(m, bytes, progress, out);
    if (st || out->kind != RKVI_SLAB_UNPINNED)
        return st;
    st = try_alloc(m, bytes, out);
    if (st || out->kind != RKVI_SLAB_UNPINNED)
        return st;
    return map_and_touch(m, bytes, progress, out);
}

rkv_status rkvi_slab_make(rkvi_slab_maker *m, uint64_t bytes, rkvi_slab_progress *progress,
                          rkvi_slab *out)
{
    *out = (rkvi_slab){.bytes = bytes, .kind = RKVI_SLAB_UNPINNED};
    /* Another thread may be capturing meanwhile. */
    const bool was_relaxed = rkvi_dev(capture_relax, m->dev, true);
    const rkv_status st = make_any(m, bytes, progress, out);
    rkvi_dev(capture_relax, m->dev, was_relaxed);
    if (!st)
        tell(progress, bytes);
    return st;
}

void rkvi_slab_release(rkvi_slab_maker *m, const rkvi_slab *slab)
{
    const bool was_relaxed = rkvi_dev(capture_relax, m->dev, true);
    rkv_status st = RKV_OK;
    if (slab->kind == RKVI_SLAB_REGISTERED)
        st = rkvi_dev(host_unregister, m->dev, slab->base);
    if (slab->kind == RKVI_SLAB_ALLOCATED) {
        madvise(slab->base, slab->bytes, MADV_DOFORK);
        st = rkvi_dev(host_free, m->dev, slab->base);
    } else {
        munmap(slab->base, slab->bytes);
    }
    rkvi_dev(capture_relax, m->dev, was_relaxed);
    if (st)
        rkvi_log(RKVI_LOG_WARNING, "%llu bytes of host memory were not given back properly: %s",
                 (unsigned long long)slab->bytes, rkvi_error_text());
}
