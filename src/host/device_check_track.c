/* SPDX-License-Identifier: MIT
 *
 * device_check_track.c: what operations do to the blocks, and reports.
 */
#include "device_check_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reports ---- */

static bool is_same_site(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

void rkvi_check_add_report(check_device *c, rkvi_check_kind kind, const char *first, const char *second,
                           const char *text)
{
    for (size_t i = 0; i < c->n_reports; i++) {
        rkvi_check_report *r = &c->reports[i];
        if (r->kind == kind && is_same_site(r->first_site, first) &&
            is_same_site(r->second_site, second)) {
            r->times++;
            return;
        }
    }
    rkvi_log(RKVI_LOG_ERROR, "device_check: %s", text);
    if (c->n_reports == CHECK_REPORTS_MAX)
        return;
    rkvi_check_report *r = &c->reports[c->n_reports++];
    *r = (rkvi_check_report){.kind = kind, .times = 1, .first_site = first, .second_site = second};
    snprintf(r->text, sizeof r->text, "%s", text);
}

static void tell_short_of_memory(check_device *c)
{
    rkvi_check_add_report(c, RKVI_CHECK_BOUNDS, NULL, "device_check",
                          "memory was short: what follows is not all checked");
}

/* ---- lanes ---- */

rkv_status rkvi_check_lane_open(check_device *c, check_lane *lane, const char *name)
{
    uint32_t i = 0;
    while (i < RKVI_CHECK_LANES_MAX && c->is_lane_used[i])
        i++;
    if (i == RKVI_CHECK_LANES_MAX)
        return rkvi_fail(RKV_E_SYSTEM, "device_check: more than %u streams and host threads",
                         RKVI_CHECK_LANES_MAX);
    c->is_lane_used[i] = true;
    lane->index = i;
    snprintf(lane->name, sizeof lane->name, "%s", name ? name : "");
    return RKV_OK;
}

/* Its numbers go on where they were, so a later lane of that index is no
 * mistake for it: it only looks ordered after it, as it is (work has ended). */
void rkvi_check_lane_close(check_device *c, check_lane *lane)
{
    c->is_lane_used[lane->index] = false;
}

static check_op *new_op(check_device *c, check_lane *lane, const check_work *work)
{
    check_op *op = calloc(1, sizeof *op);
    if (!op) {
        tell_short_of_memory(c);
        return NULL;
    }
    op->refs = 1;
    op->lane = lane->index;
    op->number = ++c->lane_number[lane->index];
    op->what = work->what;
    op->site = work->site;
    memcpy(op->lane_name, lane->name, sizeof op->lane_name);
    lane->clock.at[lane->index] = op->number;
    return op;
}

/* ---- blocks ---- */

static size_t block_index(check_device *c, const void *ptr)
{
    size_t lo = 0, hi = c->n_blocks;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const check_block *b = c->blocks[mid];
        if ((uintptr_t)b->ptr + b->bytes <= (uintptr_t)ptr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

check_block *rkvi_check_block_of(check_device *c, const void *ptr)
{
    const size_t i = block_index(c, ptr);
    if (i == c->n_blocks || (uintptr_t)c->blocks[i]->ptr > (uintptr_t)ptr)
        return NULL;
    return c->blocks[i];
}

static bool touches(const check_freed *f, const void *ptr, uint64_t bytes)
{
    return f->bytes && (uintptr_t)f->ptr < (uintptr_t)ptr + bytes &&
           (uintptr_t)ptr < (uintptr_t)f->ptr + f->bytes;
}

/* The address lives again. */
void rkvi_check_freed_forget(check_device *c, const void *ptr, uint64_t bytes)
{
    for (size_t k = 0; k < CHECK_FREED_MAX; k++)
        if (touches(&c->freed[k], ptr, bytes))
            c->freed[k].bytes = 0;
}

rkv_status rkvi_check_block_add(check_device *c, void *ptr, uint64_t bytes, bool is_device)
{
    if (c->n_blocks == c->blocks_cap) {
        const size_t cap = c->blocks_cap ? 2 * c->blocks_cap : 32;
        check_block **blocks = realloc(c->blocks, cap * sizeof *blocks);
        if (!blocks)
            return rkvi_fail(RKV_E_HOST_MEMORY, "device_check: no memory for a block");
        c->blocks = blocks;
        c->blocks_cap = cap;
    }
    check_block *b = calloc(1, sizeof *b);
    if (!b || !rkvi_check_map_init(&b->map, bytes)) {
        free(b);
        return rkvi_fail(RKV_E_HOST_MEMORY, "device_check: no memory for a block");
    }
    b->ptr = ptr;
    b->bytes = bytes;
    b->is_device = is_device;
    const size_t i = block_index(c, ptr);
    memmove(&c->blocks[i + 1], &c->blocks[i], (c->n_blocks - i) * sizeof *c->blocks);
    c->blocks[i] = b;
    c->n_blocks++;
    rkvi_check_freed_forget(c, ptr, bytes);
    return RKV_OK;
}

/* freed_site NULL: the memory is still there, only not pinned any more. */
void rkvi_check_block_remove(check_device *c, check_block *b, const char *freed_site)
{
    const size_t i = block_index(c, b->ptr);
    memmove(&c->blocks[i], &c->blocks[i + 1], (c->n_blocks - i - 1) * sizeof *c->blocks);
    c->n_blocks--;
    if (freed_site)
        c->freed[c->n_freed++ % CHECK_FREED_MAX] =
            (check_freed){.ptr = b->ptr, .bytes = b->bytes, .site = freed_site};
    rkvi_check_map_free(&b->map);
    free(b);
}

void rkvi_check_blocks_drop(check_device *c)
{
    while (c->n_blocks)
        rkvi_check_block_remove(c, c->blocks[c->n_blocks - 1], NULL);
    free(c->blocks);
}

/* ---- accesses ---- */

typedef struct fault_context {
    check_device *c;
    const check_block *block;
    const check_op *op;
    rkvi_check_kind kind; /* of a conflict */
    bool writes;
} fault_context;

static void on_fault(void *user, const check_op *other, bool other_writes, uint64_t from, uint64_t to)
{
    const fault_context *f = user;
    const check_op *op = f->op;
    char text[320];
    char where[96];
    snprintf(where, sizeof where, "bytes [%llu, %llu) of the %s block of %llu",
             (unsigned long long)from, (unsigned long long)to, f->block->is_device ? "device" : "host",
             (unsigned long long)f->block->bytes);
    if (!other) {
        snprintf(text, sizeof text, "%s at %s (%s) reads %s, which nothing wrote", op->what, op->site,
                 op->lane_name, where);
        rkvi_check_add_report(f->c, RKVI_CHECK_UNDEFINED, NULL, op->site, text);
        return;
    }
    snprintf(text, sizeof text, "%s at %s (%s, %s) and then %s at %s (%s, %s) are unordered: %s",
             other->what, other->site, other->lane_name, other_writes ? "writes" : "reads", op->what,
             op->site, op->lane_name,
             f->kind == RKVI_CHECK_FREED ? "frees"
             : f->writes                 ? "writes"
                                         : "reads",
             where);
    rkvi_check_add_report(f->c, f->kind, other->site, op->site, text);
}

static void report_freed(check_device *c, const check_op *op, const void *ptr, uint64_t bytes)
{
    for (size_t i = 0; i < CHECK_FREED_MAX; i++) {
        if (!touches(&c->freed[i], ptr, bytes))
            continue;
        char text[320];
        snprintf(text, sizeof text, "%s at %s (%s) uses memory that was freed at %s", op->what,
                 op->site, op->lane_name, c->freed[i].site);
        rkvi_check_add_report(c, RKVI_CHECK_FREED, c->freed[i].site, op->site, text);
    }
}

static void report_bounds(check_device *c, const check_op *op, const check_block *b, uint64_t offset,
                          uint64_t bytes)
{
    char text[320];
    snprintf(text, sizeof text, "%s at %s (%s) touches %llu bytes from %llu of a block of %llu",
             op->what, op->site, op->lane_name, (unsigned long long)bytes, (unsigned long long)offset,
             (unsigned long long)b->bytes);
    rkvi_check_add_report(c, RKVI_CHECK_BOUNDS, NULL, op->site, text);
}

typedef struct access_context {
    check_device *c;
    check_op *op;
    const check_clock *clock;
    bool needs_defined;
} access_context;

static void access_piece(const access_context *x, const void *ptr, uint64_t bytes, uint32_t access)
{
    check_block *b = rkvi_check_block_of(x->c, ptr);
    if (!b) {
        report_freed(x->c, x->op, ptr, bytes);
        return;
    }
    const uint64_t from = (uint64_t)((const unsigned char *)ptr - b->ptr);
    if (bytes > b->bytes - from) {
        report_bounds(x->c, x->op, b, from, bytes);
        bytes = b->bytes - from;
    }
    fault_context f = {.c = x->c,
                       .block = b,
                       .op = x->op,
                       .kind = RKVI_CHECK_RACE,
                       .writes = (access & RKVI_WRITE) != 0};
    const check_access a = {.op = x->op,
                            .clock = x->clock,
                            .access = access,
                            .needs_defined = x->needs_defined,
                            .fault = on_fault,
                            .user = &f};
    if (!rkvi_check_map_access(&b->map, from, from + bytes, &a))
        tell_short_of_memory(x->c);
}

static void access_range(const access_context *x, const rkvi_range *r, uint32_t access)
{
    const unsigned char *ptr = r->ptr;
    size_t rows = r->rows ? r->rows : 1;
    uint64_t bytes = r->bytes;
    if (bytes == 0)
        return;
    if (rows > 1 && r->pitch_bytes == bytes) { /* one piece after all */
        bytes *= rows;
        rows = 1;
    }
    for (size_t row = 0; row < rows; row++)
        access_piece(x, ptr + row * r->pitch_bytes, bytes, access);
}

/* Reads first, so that what an operation writes does not define what it reads. */
static void access_ranges(const access_context *x, const rkvi_range *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i].access & RKVI_READ)
            access_range(x, &ranges[i], RKVI_READ);
    for (size_t i = 0; i < n; i++)
        if (ranges[i].access & RKVI_WRITE)
            access_range(x, &ranges[i], RKVI_WRITE);
}

/* ---- copies carry definedness ---- */

typedef struct undefined_pieces {
    struct {
        unsigned char *ptr;
        uint64_t bytes;
    } * at;
    size_t n, cap;
} undefined_pieces;

static bool add_piece(undefined_pieces *u, unsigned char *ptr, uint64_t bytes)
{
    if (u->n == u->cap) {
        const size_t cap = u->cap ? 2 * u->cap : 16;
        void *at = realloc(u->at, cap * sizeof *u->at);
        if (!at)
            return false;
        u->at = at;
        u->cap = cap;
    }
    u->at[u->n].ptr = ptr;
    u->at[u->n++].bytes = bytes;
    return true;
}

/* Where the copy of one row will be undefined. */
static bool collect_row(check_device *c, const unsigned char *src, unsigned char *dst, uint64_t bytes,
                        undefined_pieces *u)
{
    const check_block *b = rkvi_check_block_of(c, src);
    if (!b)
        return true; /* not watched: taken as defined */
    const uint64_t start = (uint64_t)(src - b->ptr);
    const uint64_t end = bytes < b->bytes - start ? start + bytes : b->bytes;
    for (uint64_t from = start, to; from < end; from = to)
        if (!rkvi_check_map_defined(&b->map, from, end, &to) &&
            !add_piece(u, dst + (from - start), to - from))
            return false;
    return true;
}

static bool undefine(check_device *c, const undefined_pieces *u)
{
    bool ok = true;
    for (size_t i = 0; i < u->n; i++) {
        check_block *b = rkvi_check_block_of(c, u->at[i].ptr);
        if (!b)
            continue;
        const uint64_t from = (uint64_t)(u->at[i].ptr - b->ptr);
        const uint64_t bytes = u->at[i].bytes < b->bytes - from ? u->at[i].bytes : b->bytes - from;
        ok = rkvi_check_map_define(&b->map, from, from + bytes, false) && ok;
    }
    return ok;
}

static void access_copy(const access_context *x, const rkvi_copy *copy)
{
    const rkvi_range src = {.ptr = copy->src,
                            .bytes = copy->width_bytes,
                            .rows = copy->rows,
                            .pitch_bytes = copy->src_pitch_bytes};
    const rkvi_range dst = {.ptr = copy->dst,
                            .bytes = copy->width_bytes,
                            .rows = copy->rows,
                            .pitch_bytes = copy->dst_pitch_bytes};
    undefined_pieces u = {0};
    bool ok = true;
    for (size_t row = 0; row < copy->rows; row++)
        ok = collect_row(x->c, (const unsigned char *)copy->src + row * copy->src_pitch_bytes,
                         (unsigned char *)copy->dst + row * copy->dst_pitch_bytes, copy->width_bytes,
                         &u) &&
             ok;
    access_range(x, &src, RKVI_READ);
    access_range(x, &dst, RKVI_WRITE);
    ok = undefine(x->c, &u) && ok;
    free(u.at);
    if (!ok)
        tell_short_of_memory(x->c);
}

/* One operation of a lane, now. */
void rkvi_check_run(check_device *c, check_lane *lane, const check_work *work)
{
    check_op *op = new_op(c, lane, work);
    if (!op)
        return;
    const access_context x = {.c = c, .op = op, .clock = &lane->clock, .needs_defined = !work->is_copy};
    if (work->is_copy)
        access_copy(&x, &work->copy);
    else
        access_ranges(&x, work->ranges, work->n_ranges);
    rkvi_check_op_unref(op);
}

void rkvi_check_block_free_access(check_device *c, check_block *b, check_lane *lane,
                                  const check_work *work)
{
    check_op *op = new_op(c, lane, work);
    if (!op)
        return;
    fault_context f = {.c = c, .block = b, .op = op, .kind = RKVI_CHECK_FREED, .writes = true};
    const check_access a = {
        .op = op, .clock = &lane->clock, .access = RKVI_WRITE, .fault = on_fault, .user = &f};
    if (!rkvi_check_map_access(&b->map, 0, b->bytes, &a))
        tell_short_of_memory(c);
    rkvi_check_op_unref(op);
}
