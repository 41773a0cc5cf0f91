/* SPDX-License-Identifier: MIT
 *
 * device_check_impl.h: between the files of device_check.
 *
 *   device_check.c        the calls: streams, events, memory, work
 *   device_check_graph.c  captures and graphs
 *   device_check_track.c  blocks, what operations do to them, reports
 *   device_check_map.c    the history of a block's bytes
 *
 * Calls are judged in the order in which they are made.  That is enough: an
 * edge only ever leads from an earlier call to a later one.  One lock guards
 * all; it is held over inner calls that enqueue, so that both see the same
 * order, and given back in those that may block.
 */
#ifndef RKVI_DEVICE_CHECK_IMPL_H
#define RKVI_DEVICE_CHECK_IMPL_H

#include "device_check.h"
#include "device_check_map.h"

#include <pthread.h>

#define CHECK_REPORTS_MAX 256u
#define CHECK_FREED_MAX 256u
#define CHECK_CAPTURE_STREAMS_MAX 32u

typedef struct check_capture check_capture;

typedef struct check_block {
    unsigned char *ptr;
    uint64_t bytes;
    bool is_device;
    check_map map;
} check_block;

typedef struct check_freed {
    const unsigned char *ptr;
    uint64_t bytes;
    const char *site;
} check_freed;

typedef struct check_lane {
    uint32_t index;
    char name[24];
    check_clock clock;
} check_lane;

typedef struct check_stream {
    struct check_stream *next;
    void *handle;
    check_lane lane;
    check_capture *capture; /* NULL: none */
    uint32_t capture_index;
} check_stream;

typedef struct check_event {
    rkvi_event *inner;
    check_clock clock;   /* of its latest record; all 0 before the first */
    uint64_t capture_id; /* the latest record was made in that capture; 0: none */
    size_t slot;
} check_event;

typedef struct check_thread {
    struct check_thread *next;
    uint64_t id;
    check_lane lane;
} check_thread;

/* What an operation does, apart from when. */
typedef struct check_work {
    const char *what;
    const char *site;
    bool is_copy; /* then `copy` counts, not the ranges */
    rkvi_copy copy;
    const rkvi_range *ranges;
    size_t n_ranges;
    const rkvi_range *(*ranges_now)(void *arg, size_t *out_n); /* captured: rkvi_launch */
    void *ranges_arg;
} check_work;

typedef struct check_device {
    rkvi_device device; /* first */
    rkvi_device *inner;
    rkvi_device_check_settings settings;
    pthread_mutex_t lock;
    bool is_lane_used[RKVI_CHECK_LANES_MAX];
    uint32_t lane_number[RKVI_CHECK_LANES_MAX]; /* operations so far */
    check_stream *streams;
    check_thread *threads;
    check_capture *captures;
    uint64_t next_capture_id;
    check_block **blocks; /* by address */
    size_t n_blocks, blocks_cap;
    check_freed freed[CHECK_FREED_MAX]; /* the latest ones, round */
    size_t n_freed;
    rkvi_check_report reports[CHECK_REPORTS_MAX];
    size_t n_reports;
} check_device;

/* device_check_track.c; with the lock.  Memory that is short there makes a
 * report of its own: the checker sees less then. */
rkv_status rkvi_check_lane_open(check_device *c, check_lane *lane, const char *name);
void rkvi_check_lane_close(check_device *c, check_lane *lane);
void rkvi_check_add_report(check_device *c, rkvi_check_kind kind, const char *first, const char *second,
                           const char *text);
void rkvi_check_run(check_device *c, check_lane *lane, const check_work *work);
rkv_status rkvi_check_block_add(check_device *c, void *ptr, uint64_t bytes, bool is_device);
check_block *rkvi_check_block_of(check_device *c, const void *ptr);
/* Judges the freeing by a host lane; the block stays. */
void rkvi_check_block_free_access(check_device *c, check_block *b, check_lane *lane,
                                  const check_work *work);
void rkvi_check_freed_forget(check_device *c, const void *ptr, uint64_t bytes);
void rkvi_check_block_remove(check_device *c, check_block *b, const char *freed_site);
void rkvi_check_blocks_drop(check_device *c);

/* device_check.c */
check_thread *rkvi_check_thread(check_device *c);
check_stream *rkvi_check_stream(check_device *c, void *handle);

/* device_check_graph.c; with the lock. */
rkv_status rkvi_check_capture_add(check_stream *s, const check_work *work);
rkv_status rkvi_check_capture_record(check_stream *s, check_event *e);
rkv_status rkvi_check_capture_wait(check_device *c, check_stream *s, check_event *e);
void rkvi_check_captures_drop(check_device *c);
rkv_status rkvi_check_capture_begin(rkvi_device *d, void *stream, bool global);
rkv_status rkvi_check_capture_end(rkvi_device *d, void *stream, rkvi_graph **out);
rkv_status rkvi_check_graph_launch(rkvi_device *d, rkvi_graph *graph, void *stream);
rkv_status rkvi_check_graph_destroy(rkvi_device *d, rkvi_graph *graph);

#endif
