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

/* ---- parts ---- */

static bool part_open(check_part *part)
{
    if (part->at)
        return true;
    part->cap = 8;
    part->at = calloc(part->cap, sizeof *part->at);
    if (!part->at)
        return false;
    part->at[0].start = part->begin;
    part->n = 1;
    return true;
}

static void part_free(check_part *part)
{
    for (size_t i = 0; i < part->n; i++)
        free_segment(&part->at[i]);
    free(part->at);
}

/* The segment that holds byte `at`. */
static size_t find(const check_part *part, uint64_t at)
{
    size_t lo = 0, hi = part->n;
    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;
        if (part->at[mid].start <= at)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static uint64_t end_of(const check_part *part, size_t i)
{
    return i + 1 < part->n ? part->at[i + 1].start : part->end;
}

/* Makes a segment start at `at`; its index in *out (n at the part's end). */
static bool split(check_part *part, uint64_t at, size_t *out)
{
    if (at >= part->end) {
        *out = part->n;
        return true;
    }
    const size_t i = find(part, at);
    *out = i;
    if (part->at[i].start == at)
        return true;
    if (part->n == part->cap) {
        check_segment *seg = realloc(part->at, 2 * part->cap * sizeof *seg);
        if (!seg)
            return false;
        part->at = seg;
        part->cap *= 2;
    }
    check_segment half = part->at[i];
    half.start = at;
    if (!copy_reads(&half, &part->at[i]))
        return false;
    ref(half.write);
    memmove(&part->at[i + 2], &part->at[i + 1], (part->n - i - 1) * sizeof *part->at);
    part->at[i + 1] = half;
    part->n++;
    *out = i + 1;
    return true;
}

/* Keeps segment i of [i, j), which covers all of them then. */
static void collapse(check_part *part, size_t i, size_t j)
{
    for (size_t k = i + 1; k < j; k++)
        free_segment(&part->at[k]);
    memmove(&part->at[i + 1], &part->at[j], (part->n - j) * sizeof *part->at);
    part->n -= j - i - 1;
}

/* Joins neighbours of equal history in [i, j] and with what stands before. */
static void join_alike(check_part *part, size_t i, size_t j)
{
    size_t to = i ? i - 1 : 0;
    size_t from = to + 1;
    const size_t end = j < part->n ? j + 1 : part->n;
    for (; from < end; from++) {
        if (are_alike(&part->at[to], &part->at[from]))
            free_segment(&part->at[from]);
        else
            part->at[++to] = part->at[from];
    }
    memmove(&part->at[to + 1], &part->at[end], (part->n - end) * sizeof *part->at);
    part->n -= end - (to + 1);
}

static void report(const check_part *part, size_t i, const check_access *a)
{
    const check_segment *s = &part->at[i];
    const uint64_t from = s->start, to = end_of(part, i);
    if (s->write && s->write != a->op && !is_ordered(s->write, a->clock))
        a->fault(a->user, s->write, true, from, to);
    if (a->access & RKVI_WRITE)
        for (uint32_t k = 0; k < s->n_reads; k++)
            if (s->reads[k] != a->op && !is_ordered(s->reads[k], a->clock))
                a->fault(a->user, s->reads[k], false, from, to);
    if ((a->access & RKVI_READ) && a->needs_defined && !s->is_defined)
        a->fault(a->user, NULL, false, from, to);
}

static void note_write(check_part *part, size_t i, size_t j, check_op *op)
{
    collapse(part, i, j);
    check_segment *s = &part->at[i];
    drop_reads(s);
    rkvi_check_op_unref(s->write);
    s->write = ref(op);
    s->is_defined = true;
}

static bool part_access(check_part *part, uint64_t from, uint64_t to, const check_access *a)
{
    size_t i, j;
    bool ok = true;
    if (!part_open(part) || !split(part, from, &i) || !split(part, to, &j))
        return false;
    for (size_t k = i; k < j; k++)
        report(part, k, a);
    if (a->access & RKVI_WRITE) {
        note_write(part, i, j, a->op);
        return true;
    }
    for (size_t k = i; k < j; k++)
        ok = add_read(&part->at[k], a->op, a->clock) && ok;
    join_alike(part, i, j);
    return ok;
}

static bool part_define(check_part *part, uint64_t from, uint64_t to, bool is_defined)
{
    size_t i, j;
    if (!part_open(part) || !split(part, from, &i) || !split(part, to, &j))
        return false;
    for (size_t k = i; k < j; k++)
        part->at[k].is_defined = is_defined;
    join_alike(part, i, j);
    return true;
}

/* ---- the map ---- */

#define PARTS_MAX 1024u
#define PART_BYTES_MIN 4096u

bool rkvi_check_map_init(check_map *map, uint64_t bytes)
{
    *map = (check_map){.bytes = bytes, .part_bytes = PART_BYTES_MIN};
    while (bytes / map->part_bytes >= PARTS_MAX)
        map->part_bytes *= 2;
    map->n_parts = (size_t)((bytes + map->part_bytes - 1) / map->part_bytes);
    map->parts = calloc(map->n_parts + 1, sizeof *map->parts);
    if (!map->parts)
        return false;
    for (size_t i = 0; i < map->n_parts; i++) {
        const uint64_t begin = i * map->part_bytes, left = bytes - begin;
        map->parts[i].begin = begin;
        map->parts[i].end = begin + (left < map->part_bytes ? left : map->part_bytes);
    }
    return true;
}

void rkvi_check_map_free(check_map *map)
{
    for (size_t i = 0; i < map->n_parts; i++)
        part_free(&map->parts[i]);
    free(map->parts);
    *map = (check_map){0};
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

bool rkvi_check_map_access(check_map *map, uint64_t from, uint64_t to, const check_access *a)
{
    bool ok = true;
    while (from < to) {
        check_part *part = &map->parts[from / map->part_bytes];
        const uint64_t end = least(to, part->end);
        ok = part_access(part, from, end, a) && ok;
        from = end;
    }
    return ok;
}

bool rkvi_check_map_define(check_map *map, uint64_t from, uint64_t to, bool is_defined)
{
    bool ok = true;
    while (from < to) {
        check_part *part = &map->parts[from / map->part_bytes];
        const uint64_t end = least(to, part->end);
        ok = part_define(part, from, end, is_defined) && ok;
        from = end;
    }
    return ok;
}

bool rkvi_check_map_defined(const check_map *map, uint64_t from, uint64_t to, uint64_t *out_to)
{
    const check_part *part = &map->parts[from / map->part_bytes];
    *out_to = least(to, part->end);
    if (!part->at)
        return false;
    size_t i = find(part, from);
    const bool is_defined = part->at[i].is_defined;
    while (end_of(part, i) < *out_to && part->at[i + 1].is_defined == is_defined)
        i++;
    *out_to = least(*out_to, end_of(part, i));
    return is_defined;
}
