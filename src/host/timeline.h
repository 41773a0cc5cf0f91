/* timeline.h: numbered marks on a stream of work.
 *
 * record() marks the end of what a stream holds now and numbers the mark
 * (1, 2, 3 ...); wait() makes another stream wait for a number.  Marks share a
 * fixed ring of events, so an old number may wait for a later mark of the same
 * timeline: never too early, and never for work that is not enqueued yet, so
 * it can't hang. */
#ifndef RKVI_TIMELINE_H
#define RKVI_TIMELINE_H

#include "device.h"
#include "marks.h"

typedef struct rkvi_timeline {
    rkvi_device *dev;
    rkvi_event **events;
    uint32_t n_events;
    uint64_t last;   /* number of the newest mark; 0: none */
    uint64_t n_waits;/* enqueued */
} rkvi_timeline;

rkv_status rkvi_timeline_init(rkvi_timeline *t, rkvi_device *dev, uint32_t n_events);
void rkvi_timeline_free(rkvi_timeline *t);
rkv_status rkvi_timeline_record(rkvi_timeline *t, void *stream);
/* Nothing when mark is 0 or at most *seen: what this consumer has waited for. */
rkv_status rkvi_timeline_wait(rkvi_timeline *t, uint64_t mark, void *stream, uint64_t *seen);
/* Has the mark been reached?  True when that can't be told. */
bool rkvi_timeline_is_done(rkvi_timeline *t, uint64_t mark);
/* The host waits for the mark. */
rkv_status rkvi_timeline_sync(rkvi_timeline *t, uint64_t mark);

#endif
