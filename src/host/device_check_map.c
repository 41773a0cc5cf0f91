/* SPDX-License-Identifier: MIT
 *
 * device_check_map.c: see device_check_map.h.
 */
#include "device_check_map.h"

#include <stdlib.h>
#include <string.h>

void rkvi_clock_join(check_clock *into, const check_clock *from)
{
    for (uint32_t i = 0; i < RKVI_CHECK_LANES_MAX; i++)
        if (into->at[i] < from->at[i])
            into->at[i] = from->at[i];
}

static bool is_ordered(const check_op *first, const check_clock *then)
{
    return then->at[first->lane] >= first->number;
}

void rkvi_check_op_unref(check_op *op)
{
    if (op && --op->refs == 0)
        free(op);
}

static check_op *ref(check_op *op)
{
    if (op)
        op->refs++;
    return op;
}

/* ---- segments ---- */

static void drop_reads(check_segment *s)
{
    for (uint32_t i = 0; i < s->n_reads; i++)
        rkvi_check_op_unref(s->reads[i]);
    s->n_reads = 0;
}

static void free_segment(check_segment *s)
{
    drop_reads(s);
    free(s->reads);
    rkvi_check_op_unref(s->write);
}

static bool copy_reads(check_segment *to, const check_segment *from)
{
    to->reads = NULL;
    to->n_reads = to->reads_cap = 0;
    if (!from->n_reads)
        return true;
    to->reads = malloc(from->n_reads * sizeof *to->reads);
    if (!to->reads)
        return false;
    to->reads_cap = to->n_reads = from->n_reads;
    for (uint32_t i = 0; i < from->n_reads; i++)
        to->reads[i] = ref(from->reads[i]);
    return true;
}

/* Reads that come before the new one are implied by it. */
static bool add_read(check_segment *s, check_op *op, const check_clock *clock)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_reads; i++) {
        if (s->reads[i] == op || is_ordered(s->reads[i], clock))
            rkvi_check_op_unref(s->reads[i]);
        else
            s->reads[n++] = s->reads[i];
    }
    s->n_reads = n;
    if (n == s->reads_cap) {
        const uint32_t cap = n ? 2 * n : 2;
        check_op **reads = realloc(s->reads, cap * sizeof *reads);
        if (!reads)
            return false;
        s->reads = reads;
        s->reads_cap = cap;
    }
    s->reads[s->n_reads++] = ref(op);
    return true;
}

static bool are_alike(const check_segment *a, const check_segment *b)
{
    return a->write == b->write && a->is_defined == b->is_defined && a->n_reads == b->n_reads &&
           (a->n_reads == 0 || !memcmp(a->reads, b->reads, a->n_reads * sizeof *a->reads));
}

/* ---- the map ---- */

bool rkvi_check_map_init(check_map *map, uint64_t bytes, bool is_defined)
{
    *map = (check_map){.bytes = bytes, .cap = 8};
    map->at = calloc(map->cap, sizeof *map->at);
    if (!map->at)
        return false;
    map->at[0].is_defined = is_defined;
    map->n = 1;
    return true;
}

void rkvi_check_map_free(check_map *map)
{
    for (size_t i = 0; i < map->n; i++)
        free_segment(&map->at[i]);
    free(map->at);
    *map = (check_map){0};
}

/* The segment that holds byte `at`. */
static size_t find(const check_map *map, uint64_t at)
{
    size_t lo = 0, hi = map->n;
    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;
        if (map->at[mid].start <= at)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static uint64_t end_of(const check_map *map, size_t i)
{
    return i + 1 < map->n ? map->at[i + 1].start : map->bytes;
}

/* Makes a segment start at `at`; its index in *out (n at the block's end). */
static bool split(check_map *map, uint64_t at, size_t *out)
{
    if (at >= map->bytes) {
        *out = map->n;
        return true;
    }
    const size_t i = find(map, at);
    *out = i;
    if (map->at[i].start == at)
        return true;
    if (map->n == map->cap) {
        check_segment *seg = realloc(map->at, 2 * map->cap * sizeof *seg);
        if (!seg)
            return false;
        map->at = seg;
        map->cap *= 2;
    }
    check_segment half = map->at[i];
    half.start = at;
    if (!copy_reads(&half, &map->at[i]))
        return false;
    ref(half.write);
    memmove(&map->at[i + 2], &map->at[i + 1], (map->n - i - 1) * sizeof *map->at);
    map->at[i + 1] = half;
    map->n++;
    *out = i + 1;
    return true;
}

/* Keeps segment i of [i, j), which covers all of them then. */
static void collapse(check_map *map, size_t i, size_t j)
{
    for (size_t k = i + 1; k < j; k++)
        free_segment(&map->at[k]);
    memmove(&map->at[i + 1], &map->at[j], (map->n - j) * sizeof *map->at);
    map->n -= j - i - 1;
}

/* Joins neighbours of equal history in [i, j] and with what stands before. */
static void join_alike(check_map *map, size_t i, size_t j)
{
    size_t to = i ? i - 1 : 0;
    size_t from = to + 1;
    const size_t end = j < map->n ? j + 1 : map->n;
    for (; from < end; from++) {
        if (are_alike(&map->at[to], &map->at[from]))
            free_segment(&map->at[from]);
        else
            map->at[++to] = map->at[from];
    }
    memmove(&map->at[to + 1], &map->at[end], (map->n - end) * sizeof *map->at);
    map->n -= end - (to + 1);
}

static void report(const check_map *map, size_t i, const check_access *a)
{
    const check_segment *s = &map->at[i];
    const uint64_t from = s->start, to = end_of(map, i);
    if (s->write && s->write != a->op && !is_ordered(s->write, a->clock))
        a->fault(a->user, s->write, true, from, to);
    if (a->access & RKVI_WRITE)
        for (uint32_t k = 0; k < s->n_reads; k++)
            if (s->reads[k] != a->op && !is_ordered(s->reads[k], a->clock))
                a->fault(a->user, s->reads[k], false, from, to);
    if ((a->access & RKVI_READ) && a->needs_defined && !s->is_defined)
        a->fault(a->user, NULL, false, from, to);
}

bool rkvi_check_map_access(check_map *map, uint64_t from, uint64_t to, const check_access *a)
{
    size_t i, j;
    if (from >= to)
        return true;
    if (!split(map, from, &i) || !split(map, to, &j))
        return false;
    bool ok = true;
    for (size_t k = i; k < j; k++)
        report(map, k, a);
    if (a->access & RKVI_WRITE) {
        collapse(map, i, j);
        check_segment *s = &map->at[i];
        drop_reads(s);
        rkvi_check_op_unref(s->write);
        s->write = ref(a->op);
        s->is_defined = true;
        return true;
    }
    for (size_t k = i; k < j; k++)
        ok = add_read(&map->at[k], a->op, a->clock) && ok;
    join_alike(map, i, j);
    return ok;
}

bool rkvi_check_map_define(check_map *map, uint64_t from, uint64_t to, bool is_defined)
{
    size_t i, j;
    if (from >= to)
        return true;
    if (!split(map, from, &i) || !split(map, to, &j))
        return false;
    for (size_t k = i; k < j; k++)
        map->at[k].is_defined = is_defined;
    join_alike(map, i, j);
    return true;
}

bool rkvi_check_map_defined(const check_map *map, uint64_t from, uint64_t to, uint64_t *out_to)
{
    size_t i = find(map, from);
    const bool is_defined = map->at[i].is_defined;
    while (end_of(map, i) < to && map->at[i + 1].is_defined == is_defined)
        i++;
    *out_to = end_of(map, i) < to ? end_of(map, i) : to;
    return is_defined;
}
