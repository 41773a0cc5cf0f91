/* step_fill.h: tile-layers between places and host code, while nothing else
 * runs: what saving, loading, import and export share.
 *
 * A mover has pinned staging memory.  Its copies go through the library's own
 * streams, and the host waits for them: between steps, with all enqueued work
 * over (rkvi_mover_open waits for it), so no marks are needed. */
#ifndef RKVI_STEP_FILL_H
#define RKVI_STEP_FILL_H

#include "step_types.h"

#define RKVI_MOVER_BYTES ((uint64_t)16 << 20)

typedef struct rkvi_mover {
    rkv_cache *h;
    uint8_t *staging; /* pinned */
    uint64_t bytes, used;
    bool in_flight; /* copies are enqueued */
} rkvi_mover;

/* Waits for all of the library's work; staging of at least `least` bytes. */
rkv_status rkvi_mover_open(rkvi_mover *m, rkv_cache *h, uint64_t least);
/* Waits for its copies, also after a failure of theirs. */
rkv_status rkvi_mover_close(rkvi_mover *m, rkv_status s);

/* Room of so many bytes in the staging memory; waits for copies where it is full. */
rkv_status rkvi_mover_room(rkvi_mover *m, uint64_t bytes, uint8_t **out);
bool rkvi_mover_has_room(const rkvi_mover *m, uint64_t bytes);
/* Waits for the copies, and keeps what lies in the staging memory. */
rkv_status rkvi_mover_wait(rkvi_mover *m);
/* Waits for the copies; all of the staging memory is free again. */
rkv_status rkvi_mover_sync(rkvi_mover *m);

/* A tile-layer's cells on the host, without the padding; NULL: on the device alone. */
uint8_t *rkvi_mover_host_cells(const rkvi_mover *m, uint32_t tile, uint32_t layer);
/* Enqueues a copy from or to the device place; readable after a sync. */
rkv_status rkvi_mover_fetch(rkvi_mover *m, uint32_t tile, uint32_t layer, uint8_t *to);
rkv_status rkvi_mover_put(rkvi_mover *m, uint32_t tile, uint32_t layer, const uint8_t *from);

/* The host reads or writes these bytes now. */
void rkvi_mover_access(const rkvi_mover *m, const void *bytes, uint64_t n, uint32_t access);

#endif
