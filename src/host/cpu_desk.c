/* SPDX-License-Identifier: MIT
 *
 * cpu_desk.c: see cpu_desk.h. */
#include "cpu_desk.h"

#include "diag.h"

#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t word(const uint64_t *w)
{
    return __atomic_load_n(w, __ATOMIC_ACQUIRE);
}

static uint64_t index_of(const rkvi_cpu_desk *d, uint64_t ticket)
{
    return (ticket - 1) % ((uint64_t)d->n_books * d->n_sites);
}

static bool tell(rkvi_cpu_desk *d, rkvi_cpu_stage stage)
{
    const rkvi_cpu_hook hook = atomic_load(&d->hook);
    return !hook || hook(d->hook_arg, stage);
}

static bool is_of(uint64_t claim, uint64_t ticket)
{
    return claim >> 32 == (ticket & UINT32_MAX);
}

/* By one of those that see the new ticket.  A late one reads the number of units of
 * what may be another job by now; its exchange then fails, since `claim` was read before
 * the ticket and so is of a job before it. */
static uint64_t open_job(rkvi_cpu_desk *d, uint64_t ticket, uint64_t claim)
{
    const uint32_t n = atomic_load_explicit(&d->n_units[index_of(d, ticket)], memory_order_relaxed);
    const uint64_t fresh = ticket << 32 | n;
    atomic_store_explicit(&d->opened_ns, now_ns(), memory_order_relaxed);
    return atomic_compare_exchange_strong(&d->claim, &claim, fresh) ? fresh : claim;
}

static bool take(rkvi_cpu_desk *d, uint64_t ticket, uint64_t *claim)
{
    while (is_of(*claim, ticket) && (uint32_t)*claim)
        if (atomic_compare_exchange_weak(&d->claim, claim, *claim - 1))
            return true;
    return false;
}

/* Those behind the limit are dropped; their job is done all the same. */
static void run(rkvi_cpu_desk *d, uint64_t ticket, uint64_t left)
{
    const uint64_t index = index_of(d, ticket);
    const uint32_t n = atomic_load_explicit(&d->n_units[index], memory_order_relaxed);
    tell(d, RKVI_CPU_HAS_UNIT);
    rkvi_cpu_job_run(&d->jobs[index], n - left, d->over, word(&d->words->closed) < ticket);
    if (atomic_fetch_add(&d->n_done, 1) + 1 < n)
        return;
    atomic_store(&d->n_done, 0);
    atomic_fetch_add(&d->busy_ns, now_ns() - atomic_load_explicit(&d->opened_ns, memory_order_relaxed));
    __atomic_store_n(&d->words->done, ticket, __ATOMIC_RELEASE);
}

bool rkvi_cpu_desk_look(void *desk)
{
    rkvi_cpu_desk *d = desk;
    if (!tell(d, RKVI_CPU_LOOKS))
        return false;
    uint64_t claim = atomic_load(&d->claim); /* first: see open_job */
    const uint64_t ticket = word(&d->words->sent);
    bool any = false;
    if (word(&d->words->done) >= ticket)
        return false;
    tell(d, RKVI_CPU_HAS_TICKET);
    if (!is_of(claim, ticket))
        claim = open_job(d, ticket, claim);
    while (take(d, ticket, &claim)) {
        run(d, ticket, (uint32_t)claim);
        any = true;
        claim = atomic_load(&d->claim);
    }
    return any;
}

bool rkvi_cpu_desk_is_due(void *desk)
{
    rkvi_cpu_desk *d = desk;
    return word(&d->words->passed) < atomic_load(&d->expected);
}

bool rkvi_cpu_desk_is_held(const rkvi_cpu_desk *d, uint32_t book)
{
    const uint64_t sent = word(&d->words->sent), done = word(&d->words->done);
    return done < sent && index_of(d, sent) / d->n_sites == book;
}

void rkvi_cpu_desk_put(rkvi_cpu_desk *d, uint64_t ticket, const rkvi_cpu_job *job)
{
    d->jobs[index_of(d, ticket)] = *job;
    atomic_store_explicit(&d->n_units[index_of(d, ticket)], (uint32_t)rkvi_cpu_job_units(job), memory_order_relaxed);
}

rkv_status rkvi_cpu_desk_init(rkvi_cpu_desk *d, rkvi_desk *words, uint32_t n_books, uint32_t n_sites, uint32_t wanted)
{
    const size_t n = (size_t)n_books * n_sites;
    d->words = words;
    d->n_books = n_books;
    d->n_sites = n_sites;
    d->jobs = calloc(n, sizeof *d->jobs);
    d->n_units = calloc(n, sizeof *d->n_units);
    d->over = calloc(wanted, sizeof *d->over);
    return d->jobs && d->n_units && d->over ? RKV_OK : rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %zu jobs of the CPU's share", n);
}

void rkvi_cpu_desk_free(rkvi_cpu_desk *d)
{
    free(d->jobs);
    free(d->n_units);
    free(d->over);
}
