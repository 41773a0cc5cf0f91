/* cpu_desk.h: the threads' side of the CPU's share (ops.h tells of both sides).
 *
 *   claim:  [ticket t, no unit left] --sent t+1--> [t+1, n units] --taken--> ... [t+1, 0]
 *   job:    sent --a thread opens it--> units taken, computed --the last one is over--> done
 *
 * A unit is taken by compare-and-swap of ticket and count in one word, so that a thread
 * that slept through a job can't take part in the next one by mistake.  What a job
 * reads lies in a book that is its step's own; begin writes a book again once `done`
 * says that no thread is in it.  At most one book can be held by a thread that
 * doesn't come back, since no job is sent before the last one is done: with one
 * more book than steps in flight, begin never waits for threads. */
#ifndef RKVI_CPU_DESK_H
#define RKVI_CPU_DESK_H

#include "cpu_job.h"

/* Tests: where a thread is.  One that looks doesn't where the hook returns false. */
typedef enum { RKVI_CPU_LOOKS, RKVI_CPU_HAS_TICKET, RKVI_CPU_HAS_UNIT } rkvi_cpu_stage;
typedef bool (*rkvi_cpu_hook)(void *arg, rkvi_cpu_stage stage);

typedef struct rkvi_cpu_desk {
    rkvi_desk *words;           /* pinned */
    rkvi_cpu_job *jobs;         /* [book * n_sites + site] */
    _Atomic uint32_t *n_units;  /* likewise; may be read while a job is no more */
    _Atomic uint32_t *over;     /* of the open job (cpu_job.h) */
    uint32_t n_books, n_sites;
    _Atomic uint64_t expected;  /* threads are awake until this ticket is passed */
    _Atomic uint64_t busy_ns;   /* jobs, so far */
    _Atomic(rkvi_cpu_hook) hook;
    void *hook_arg;
    _Atomic uint64_t opened_ns;
    uint64_t apart[8];          /* the next ones change often */
    _Atomic uint64_t claim;     /* ticket's lower half, units left */
    _Atomic uint64_t n_done;    /* units of the open job */
} rkvi_cpu_desk;

/* `wanted`: into how many units jobs are divided, where they are. */
rkv_status rkvi_cpu_desk_init(rkvi_cpu_desk *d, rkvi_desk *words, uint32_t n_books, uint32_t n_sites, uint32_t wanted);
void rkvi_cpu_desk_free(rkvi_cpu_desk *d); /* no thread is there any more */

/* For threads: takes units while there are any; false: there were none. */
bool rkvi_cpu_desk_look(void *desk);
/* Jobs are to come, or may be. */
bool rkvi_cpu_desk_is_due(void *desk);

/* Ticket of a step's site 0, the others follow: it names the book. */
static inline uint64_t rkvi_cpu_desk_ticket(const rkvi_cpu_desk *d, uint64_t serial, uint32_t book)
{
    return (serial * d->n_books + book) * d->n_sites + 1;
}
/* A thread may still be within one of the book's jobs, all of whose steps are over. */
bool rkvi_cpu_desk_is_held(const rkvi_cpu_desk *d, uint32_t book);
void rkvi_cpu_desk_put(rkvi_cpu_desk *d, uint64_t ticket, const rkvi_cpu_job *job);

#endif
