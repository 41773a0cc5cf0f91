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

/* ------------------------------------------------------------------------ seats */

#define RANGE_BITS 10u
#define RANGE_MOST ((1u << RANGE_BITS) - 1)

static uint64_t pack(uint64_t ticket, uint64_t begin, uint64_t end)
{
    return ticket << 2 * RANGE_BITS | begin << RANGE_BITS | end;
}

static bool is_of(uint64_t range, uint64_t ticket)
{
    return range >> 2 * RANGE_BITS == (ticket & UINT64_MAX >> 2 * RANGE_BITS);
}

/* Units are taken so many at a time: more than one where a seat's share is beyond what
 * its word counts. */
static uint64_t grain_of(const rkvi_cpu_desk *d, uint64_t n_units)
{
    return rkvi_div_up(n_units, (uint64_t)d->n_seats * RANGE_MOST);
}

static uint64_t seat_first(const rkvi_cpu_desk *d, uint64_t n_units, uint64_t seat)
{
    const uint64_t grain = grain_of(d, n_units);
    return grain ? rkvi_div_up(n_units, grain) * seat / d->n_seats : 0;
}

/* Of a seat, in grains from the job's first unit.  While the job is not done, which is
 * looked at behind the others, its number of units holds, and no seat is of a later one.
 * When it is done all seats that had a share are of its ticket, so that the exchange
 * of a thread that is late fails. */
static bool take(rkvi_cpu_desk *d, uint32_t seat, uint64_t ticket, bool is_own, uint64_t *out_grain)
{
    _Atomic uint64_t *at = &d->seats[seat].range;
    uint64_t was = atomic_load(at);
    for (;;) {
        const uint64_t n = atomic_load(&d->n_units[index_of(d, ticket)]);
        if (word(&d->words->done) >= ticket)
            return false;
        const uint64_t first = seat_first(d, n, seat);
        uint64_t begin = 0, end = seat_first(d, n, (uint64_t)seat + 1) - first;
        if (is_of(was, ticket)) {
            begin = was >> RANGE_BITS & RANGE_MOST;
            end = was & RANGE_MOST;
        }
        if (begin >= end)
            return false;
        *out_grain = first + (is_own ? begin : end - 1);
        if (atomic_compare_exchange_weak(at, &was,
                                         is_own ? pack(ticket, begin + 1, end) : pack(ticket, begin, end - 1)))
            return true;
    }
}

/* ------------------------------------------------------------------------- jobs */

static void compute(const rkvi_cpu_job *j, uint64_t unit)
{
    const uint32_t heads = j->args.geom.n_heads;
    rkvi_item item = j->args.items[unit / heads];
    rkvi_attend_args args = j->args;
    item.slot = unit / heads * args.max_rows;
    args.items = &item;
    j->decode(&args, unit % heads);
}

/* Those behind the limit are dropped; their job is done all the same. */
static uint64_t run(rkvi_cpu_desk *d, uint64_t ticket, uint64_t grain_index)
{
    const uint64_t index = index_of(d, ticket), n = atomic_load(&d->n_units[index]), grain = grain_of(d, n);
    const uint64_t from = grain_index * grain, to = from + grain < n ? from + grain : n;
    tell(d, RKVI_CPU_HAS_UNIT);
    for (uint64_t i = from; i < to && word(&d->words->closed) < ticket; i++)
        compute(&d->jobs[index], i);
    return to - from;
}

static void count(rkvi_cpu_desk *d, uint64_t ticket, uint64_t n_over, uint64_t from_ns)
{
    const uint64_t n = atomic_load(&d->n_units[index_of(d, ticket)]);
    if (atomic_fetch_add(&d->n_over, n_over) + n_over < n)
        return;
    atomic_store(&d->n_over, 0);
    atomic_fetch_add(&d->busy_ns, now_ns() - from_ns);
    __atomic_store_n(&d->words->done, ticket, __ATOMIC_RELEASE);
}

bool rkvi_cpu_desk_look(void *desk, uint32_t thread)
{
    rkvi_cpu_desk *d = desk;
    if (!tell(d, RKVI_CPU_LOOKS))
        return false;
    const uint64_t ticket = word(&d->words->sent);
    if (word(&d->words->done) >= ticket)
        return false;
    tell(d, RKVI_CPU_HAS_TICKET);
    const uint64_t from_ns = now_ns();
    uint64_t n_over = 0, grain;
    for (uint32_t i = 0; i < d->n_seats; i++) /* a seat that is empty stays so */
        while (take(d, (thread + i) % d->n_seats, ticket, i == 0, &grain))
            n_over += run(d, ticket, grain);
    if (n_over)
        count(d, ticket, n_over, from_ns);
    return n_over > 0;
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

void rkvi_cpu_desk_put(rkvi_cpu_desk *d, uint64_t ticket, const rkvi_cpu_job *job, uint32_t n_units)
{
    d->jobs[index_of(d, ticket)] = *job;
    atomic_store(&d->n_units[index_of(d, ticket)], n_units);
}

rkv_status rkvi_cpu_desk_init(rkvi_cpu_desk *d, rkvi_desk *words, uint32_t n_books, uint32_t n_sites,
                              uint32_t n_threads)
{
    const size_t n = (size_t)n_books * n_sites;
    d->words = words;
    d->n_books = n_books;
    d->n_sites = n_sites;
    d->n_seats = n_threads;
    d->jobs = calloc(n, sizeof *d->jobs);
    d->n_units = calloc(n, sizeof *d->n_units);
    d->seats = aligned_alloc(64, n_threads * sizeof *d->seats);
    for (uint32_t i = 0; d->seats && i < n_threads; i++)
        atomic_init(&d->seats[i].range, 0);
    return d->jobs && d->n_units && d->seats
               ? RKV_OK
               : rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %zu jobs of the CPU's share", n);
}

void rkvi_cpu_desk_free(rkvi_cpu_desk *d)
{
    free(d->jobs);
    free(d->n_units);
    free(d->seats);
}
