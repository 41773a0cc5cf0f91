/* SPDX-License-Identifier: MIT
 *
 * device_check_map.h: clocks, and what happened to each byte of a block.
 *
 * A lane is what runs in order by itself: a stream, a host thread, a branch of
 * a graph.  An operation is known by its lane and its number there; it comes
 * before another one exactly when that one's clock has reached the number.
 *
 * A block is cut into segments of equal history: the last write, the reads
 * since then that no later read comes after, and whether the bytes hold a
 * value.  That is all that a later operation can conflict with: who is ordered
 * after the last write is ordered after what that was ordered after.
 */
#ifndef RKVI_DEVICE_CHECK_MAP_H
#define RKVI_DEVICE_CHECK_MAP_H

#include "device.h"

#define RKVI_CHECK_LANES_MAX 128u

typedef struct check_clock {
    uint32_t at[RKVI_CHECK_LANES_MAX];
} check_clock;

void rkvi_clock_join(check_clock *into, const check_clock *from);

/* One operation, shared by the segments that it touched. */
typedef struct check_op {
    uint32_t refs;
    uint32_t lane;
    uint32_t number; /* in its lane, from 1 */
    const char *what;
    const char *site;
    char lane_name[24];
} check_op;

void rkvi_check_op_unref(check_op *op);

typedef struct check_segment {
    uint64_t start; /* it ends where the next one starts */
    check_op *write;
    check_op **reads;
    uint32_t n_reads, reads_cap;
    bool is_defined;
} check_segment;

/* The segments of bytes [begin, end) of a block; none before its first use. */
typedef struct check_part {
    uint64_t begin, end;
    check_segment *at;
    size_t n, cap;
} check_part;

/* A block in parts of equal size, so that cutting a segment stays cheap. */
typedef struct check_map {
    uint64_t bytes;
    uint64_t part_bytes;
    size_t n_parts;
    check_part *parts;
} check_map;

typedef struct check_access {
    check_op *op;
    const check_clock *clock;
    uint32_t access;    /* RKVI_READ | RKVI_WRITE */
    bool needs_defined; /* a read of bytes without a value is a fault */
    /* Told of each fault in [from, to); `other` NULL: the bytes hold no value. */
    void (*fault)(void *user, const check_op *other, bool other_writes, uint64_t from, uint64_t to);
    void *user;
} check_access;

/* All return false when memory is short; the map then stays usable.  A new
 * map's bytes are undefined. */
bool rkvi_check_map_init(check_map *map, uint64_t bytes);
void rkvi_check_map_free(check_map *map);
/* Reports conflicts of an access to [from, to), then notes it. */
bool rkvi_check_map_access(check_map *map, uint64_t from, uint64_t to, const check_access *access);
bool rkvi_check_map_define(check_map *map, uint64_t from, uint64_t to, bool is_defined);
/* Whether a piece at the start of [from, to) is defined; it ends at *out_to. */
bool rkvi_check_map_defined(const check_map *map, uint64_t from, uint64_t to, uint64_t *out_to);

#endif
