/* cpu_desk.h: the threads' side of the CPU's share (ops.h tells of both sides).
 *
 *   seat:   [any ticket before t] --first unit taken--> [t, begin, end) --taken--> ... [t, empty]
 *   job:    sent --units taken, computed --all are over--> done
 *
 * Each thread has a seat, with an even share of a job's units: it takes them from the
 * front, and when its own are gone, one by one those of others from the back.  So threads
 * seldom meet at one word, which costs them more than a unit of work does.  A seat of
 * an older ticket stands for its whole share of the job that is out.
 *
 * A unit is taken by compare-and-swap of ticket and range in one word, so that a thread
 * that slept through a job can't take part in the next one by mistake (of the ticket 44
 * bits are kept: they come again after years).  What a job
 * reads lies in a book that is its step's own; begin writes a book again once `done`
 * says that no thread is in it.  At most one book can be held by a thread that
 * doesn't come back, since no job is sent before the last one is done: with one
 * more book than steps in flight, begin never waits for threads. */
#ifndef RKVI_CPU_DESK_H
#define RKVI_CPU_DESK_H

#include "ops.h"

#include <stdatomic.h>

/* A unit is one KV head of one item, whose partials lie one after another. */
typedef struct rkvi_cpu_job {
    rkvi_attend_args args; /* all pointers to host memory; max_rows slots an item */
    rkvi_op_fn decode;
} rkvi_cpu_job;

/* Tests: where a thread is.  One that looks doesn't where the hook returns false. */
typedef enum { RKVI_CPU_LOOKS, RKVI_CPU_HAS_TICKET, RKVI_CPU_HAS_UNIT } rkvi_cpu_stage;
typedef bool (*rkvi_cpu_hook)(void *arg, rkvi_cpu_stage stage);

typedef struct rkvi_cpu_seat {
    _Alignas(64) _Atomic uint64_t range; /* ticket's lower bits, begin, end */
} rkvi_cpu_seat;

typedef struct rkvi_cpu_desk {
    rkvi_desk *words;           /* pinned */
    rkvi_cpu_job *jobs;         /* [book * n_sites + site] */
    _Atomic uint32_t *n_units;  /* likewise; may be read while a job is no more */
    rkvi_cpu_seat *seats;       /* [n_seats] */
    uint32_t n_books, n_sites, n_seats;
    _Atomic uint64_t expected;  /* threads are awake until this ticket is passed */
    _Atomic uint64_t busy_ns;   /* jobs, so far, by the clock of the thread that was through last */
    _Atomic(rkvi_cpu_hook) hook;
    void *hook_arg;
    uint64_t apart[8];       /* the next one changes often */
    _Atomic uint64_t n_over; /* units of the open job, of threads that found no more */
} rkvi_cpu_desk;

rkv_status rkvi_cpu_desk_init(rkvi_cpu_desk *d, rkvi_desk *words, uint32_t n_books, uint32_t n_sites,
                              uint32_t n_threads);
void rkvi_cpu_desk_free(rkvi_cpu_desk *d); /* no thread is there any more */

/* For threads [0, n_threads): takes units while there are any; false: there were none. */
bool rkvi_cpu_desk_look(void *desk, uint32_t thread);
/* Jobs are to come, or may be. */
bool rkvi_cpu_desk_is_due(void *desk);

/* Ticket of a step's site 0, the others follow: it names the book. */
static inline uint64_t rkvi_cpu_desk_ticket(const rkvi_cpu_desk *d, uint64_t serial, uint32_t book)
{
    return (serial * d->n_books + book) * d->n_sites + 1;
}
/* A thread may still be within one of the book's jobs, all of whose steps are over. */
bool rkvi_cpu_desk_is_held(const rkvi_cpu_desk *d, uint32_t book);
/* n_units 0: none. */
void rkvi_cpu_desk_put(rkvi_cpu_desk *d, uint64_t ticket, const rkvi_cpu_job *job, uint32_t n_units);

#endif
