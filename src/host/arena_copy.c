/* SPDX-License-Identifier: MIT
 *
 * arena_copy.c: copies between host slabs and the device; unpinned memory goes
 * through the bounce buffer.
 *
 *   H2D:  [host call: slab -> bounce] then [copy: bounce -> device]
 *   D2H:  [copy: device -> bounce] then [host call: bounce -> slab]
 *
 * piece by piece, all on the one stream of that direction.  FIFO order is the
 * only edge: a piece begins when the one before it has left the buffer, so the
 * buffer is never split in two; nothing could overlap.
 */
#include "arena_slab.h"

#include <stdlib.h>
#include <string.h>

/* What a host call moves.  The call gives it back when it has run. */
struct rkvi_bounce_job {
    rkvi_bounce *bounce;
    rkvi_bounce_job *next_all, *next_free;
    rkvi_copy move; /* host to host; its direction means nothing */
};

/* Made as a slab is, so it is pinned in whichever way works here. */
rkv_status rkvi_bounce_init(rkvi_arena *a, uint64_t bytes)
{
    rkvi_bounce *b = &a->bounce;
    const rkv_status st = rkvi_slab_make(&a->maker, 2 * bytes, NULL, &b->slab);
    if (st)
        return st;
    if (b->slab.kind != RKVI_SLAB_UNPINNED) {
        b->half_bytes = bytes;
        return RKV_OK;
    }
    rkvi_slab_release(&a->maker, &b->slab);
    rkvi_log(RKVI_LOG_WARNING,
             "no %llu bytes of host memory can be pinned: copies are left to the driver",
             (unsigned long long)(2 * bytes));
    return RKV_OK;
}

void rkvi_bounce_free(rkvi_arena *a)
{
    rkvi_bounce *b = &a->bounce;
    for (rkvi_bounce_job *job = b->all, *next; job; job = next) {
        next = job->next_all;
        free(job);
    }
    if (b->half_bytes)
        rkvi_slab_release(&a->maker, &b->slab);
    b->half_bytes = 0;
}

/* Jobs are kept for the next copies: in a steady state nothing is allocated. */
static rkvi_bounce_job *take_job(rkvi_bounce *b)
{
    pthread_mutex_lock(&b->lock);
    rkvi_bounce_job *job = b->free;
    if (job) {
        b->free = job->next_free;
    } else if ((job = malloc(sizeof *job))) {
        *job = (rkvi_bounce_job){.bounce = b, .next_all = b->all};
        b->all = job;
    }
    pthread_mutex_unlock(&b->lock);
    return job;
}

static void give_job(rkvi_bounce_job *job)
{
    rkvi_bounce *b = job->bounce;
    pthread_mutex_lock(&b->lock);
    job->next_free = b->free;
    b->free = job;
    pthread_mutex_unlock(&b->lock);
}

/* The host call, on the executor's thread. */
static void run_job(void *arg)
{
    rkvi_bounce_job *job = arg;
    const rkvi_copy *m = &job->move;
    for (size_t row = 0; row < m->rows; row++)
        memcpy((unsigned char *)m->dst + row * m->dst_pitch_bytes,
               (const unsigned char *)m->src + row * m->src_pitch_bytes, m->width_bytes);
    give_job(job);
}

/* Queues a copy by the host.  When the call was queued, run_job gives the job
 * back; else this function does. */
static rkv_status enqueue_move(rkvi_arena *a, const rkvi_copy *move, void *stream)
{
    rkvi_bounce_job *job = take_job(&a->bounce);
    if (!job)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a job of the bounce buffer");
    job->move = *move;
    const rkvi_range ranges[2] = {
        {move->src, move->width_bytes, move->src_pitch_bytes, move->rows, RKVI_READ},
        {move->dst, move->width_bytes, move->dst_pitch_bytes, move->rows, RKVI_WRITE},
    };
    const rkv_status st = rkvi_dev(host_call, a->maker.dev, run_job, job, ranges, 2, stream);
    if (st)
        give_job(job);
    return st;
}

/* A piece that fits the bounce buffer, where its rows lie without gaps. */
static rkv_status bounce_piece(rkvi_arena *a, const rkvi_copy *piece, void *stream)
{
    const bool is_h2d = piece->direction == RKVI_H2D;
    unsigned char *half = a->bounce.slab.base + (is_h2d ? 0 : a->bounce.half_bytes);
    rkvi_copy to = *piece, from = *piece;
    to.dst = half;
    to.dst_pitch_bytes = piece->width_bytes;
    from.src = half;
    from.src_pitch_bytes = piece->width_bytes;
    const rkv_status st =
        is_h2d ? enqueue_move(a, &to, stream) : rkvi_dev(copy, a->maker.dev, &to, stream);
    if (st)
        return st;
    return is_h2d ? rkvi_dev(copy, a->maker.dev, &from, stream) : enqueue_move(a, &from, stream);
}

/* `rows` rows from row `row` on, `width` bytes of each from `column` on. */
static rkvi_copy part_of(const rkvi_copy *c, size_t row, size_t rows, size_t column, size_t width)
{
    rkvi_copy part = *c;
    part.dst = (unsigned char *)c->dst + row * c->dst_pitch_bytes + column;
    part.src = (const unsigned char *)c->src + row * c->src_pitch_bytes + column;
    part.rows = rows;
    part.width_bytes = width;
    return part;
}

/* As many whole rows at a time as the buffer holds, packed. */
static rkv_status bounce_rows(rkvi_arena *a, const rkvi_copy *c, void *stream)
{
    const size_t most = a->bounce.half_bytes / c->width_bytes;
    rkv_status st = RKV_OK;
    for (size_t row = 0, n; !st && row < c->rows; row += n) {
        n = c->rows - row < most ? c->rows - row : most;
        const rkvi_copy piece = part_of(c, row, n, 0, c->width_bytes);
        st = bounce_piece(a, &piece, stream);
    }
    return st;
}

/* Rows that are longer than the bounce buffer: each in parts. */
static rkv_status bounce_long_rows(rkvi_arena *a, const rkvi_copy *c, void *stream)
{
    const size_t most = a->bounce.half_bytes;
    rkv_status st = RKV_OK;
    for (size_t row = 0; row < c->rows; row++)
        for (size_t column = 0, n; !st && column < c->width_bytes; column += n) {
            n = c->width_bytes - column < most ? c->width_bytes - column : most;
            const rkvi_copy piece = part_of(c, row, 1, column, n);
            st = bounce_piece(a, &piece, stream);
        }
    return st;
}

/* ------------------------------------------------------------ which way */

static bool holds(const rkvi_slab *slab, const void *p)
{
    return (uintptr_t)p >= (uintptr_t)slab->base && (uintptr_t)p - (uintptr_t)slab->base < slab->bytes;
}

/* Slabs live as long as the arena and keep their kind: what is found stays true. */
static const rkvi_slab *slab_of(rkvi_arena *a, const void *p)
{
    const rkvi_slab *found = NULL;
    pthread_mutex_lock(&a->lock);
    for (uint32_t i = 0; !found && i < a->n_shelves; i++)
        for (const rkvi_slab *slab = a->shelves[i].first; !found && slab; slab = slab->next)
            if (holds(slab, p))
                found = slab;
    pthread_mutex_unlock(&a->lock);
    return found;
}

bool rkvi_arena_same_slab(rkvi_arena *a, const void *p, const void *q)
{
    const rkvi_slab *slab = slab_of(a, p);
    return slab && holds(slab, q);
}

/* Without a bounce buffer the executor gets unpinned memory as it is: right,
 * and as fast as its driver's own staging. */
static rkv_status copy_in_slab(rkvi_arena *a, const rkvi_slab *slab, const rkvi_copy *c, void *stream)
{
    if (!slab || slab->kind != RKVI_SLAB_UNPINNED || !a->bounce.half_bytes)
        return rkvi_dev(copy, a->maker.dev, c, stream);
    return c->width_bytes <= a->bounce.half_bytes ? bounce_rows(a, c, stream)
                                                  : bounce_long_rows(a, c, stream);
}

rkv_status rkvi_arena_copy(rkvi_arena *a, const rkvi_copy *copy, void *stream)
{
    if (copy->direction == RKVI_D2D || copy->width_bytes == 0 || copy->rows == 0)
        return rkvi_dev(copy, a->maker.dev, copy, stream);
    const bool is_h2d = copy->direction == RKVI_H2D;
    const unsigned char *host = is_h2d ? copy->src : copy->dst;
    const size_t pitch = is_h2d ? copy->src_pitch_bytes : copy->dst_pitch_bytes;
    const rkvi_slab *slab = slab_of(a, host);
    if (copy->rows == 1 || (slab && holds(slab, host + (copy->rows - 1) * pitch)))
        return copy_in_slab(a, slab, copy, stream);
    /* Row by row, since one driver call must not span two registrations. */
    rkv_status st = RKV_OK;
    for (size_t row = 0; !st && row < copy->rows; row++) {
        const rkvi_copy one = part_of(copy, row, 1, 0, copy->width_bytes);
        st = copy_in_slab(a, slab_of(a, one.direction == RKVI_H2D ? one.src : one.dst), &one, stream);
    }
    return st;
}
