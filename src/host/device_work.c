/* SPDX-License-Identifier: MIT
 *
 * device_work.c: operations of the core: how they are kept, checked and queued.
 */
#include "device_core.h"

#include <stdlib.h>
#include <string.h>

static rkvi_core *core_of(rkvi_device *d)
{
    return (rkvi_core *)d;
}

/* ---- operations ---- */

uint64_t rkvi_copy_bytes(const rkvi_copy *copy)
{
    return (uint64_t)copy->width_bytes * copy->rows;
}

int64_t rkvi_link_ns(const rkvi_link_settings *link, const rkvi_copy *copy)
{
    double ns = (double)link->cost_ns + (double)link->row_cost_ns * (double)(copy->rows - 1);
    if (link->bytes_per_s)
        ns += 1e9 * (double)rkvi_copy_bytes(copy) / (double)link->bytes_per_s;
    return (int64_t)ns;
}

void rkvi_copy_run(const rkvi_copy *copy)
{
    unsigned char *dst = copy->dst;
    const unsigned char *src = copy->src;
    for (size_t row = 0; row < copy->rows; row++)
        memcpy(dst + row * copy->dst_pitch_bytes, src + row * copy->src_pitch_bytes, copy->width_bytes);
}

/* Those without ranges are all of one size, and are kept for the next one. */
#define KEPT_OP_BYTES (sizeof(rkvi_devop) + RKVI_ARGS_MAX)

static rkvi_devop *op_room(rkvi_core *c, size_t size)
{
    const bool is_kept = size <= KEPT_OP_BYTES;
    rkvi_devop *op = is_kept ? c->kept_ops : NULL;
    if (op) {
        c->kept_ops = op->next;
        return op;
    }
    op = malloc(is_kept ? KEPT_OP_BYTES : size);
    if (!op) {
        rkvi_fail(RKV_E_HOST_MEMORY, "no memory for an operation of %zu bytes", size);
        return NULL;
    }
    c->usage.op_allocations++;
    op->core = is_kept ? c : NULL;
    return op;
}

rkvi_devop *rkvi_devop_new(rkvi_core *c, rkvi_devop_kind kind, uint32_t args_bytes, size_t n_ranges)
{
    const size_t args_room = (args_bytes + (size_t)15) & ~(size_t)15;
    const size_t size = sizeof(rkvi_devop) + args_room + n_ranges * sizeof(rkvi_range);
    rkvi_devop *op = op_room(c, size);
    if (!op)
        return NULL;
    rkvi_core *core = op->core;
    memset(op, 0, size);
    op->core = core;
    op->size_bytes = size;
    op->kind = kind;
    op->args_bytes = args_bytes;
    op->n_ranges = n_ranges;
    op->site = rkvi_call_site;
    return op;
}

rkvi_devop *rkvi_devop_clone(rkvi_core *c, const rkvi_devop *op)
{
    rkvi_devop *copy = op_room(c, op->size_bytes);
    if (!copy)
        return NULL;
    rkvi_core *core = copy->core;
    memcpy(copy, op, op->size_bytes);
    copy->core = core;
    copy->next = NULL;
    return copy;
}

/* Marks of records and waits are the caller's to drop. */
void rkvi_devop_free(rkvi_devop *op)
{
    rkvi_core *c = op->core;
    if (!c) {
        free(op);
        return;
    }
    op->next = c->kept_ops;
    c->kept_ops = op;
}

bool rkvi_core_op_starts(rkvi_core *c, const rkvi_devop *op)
{
    if (op->kind > RKVI_DEVOP_HOST_CALL)
        return !c->is_poisoned;
    if (!c->is_poisoned && c->fault_in && --c->fault_in == 0) {
        c->is_poisoned = true;
        c->poison_site = op->site;
    }
    if (c->is_poisoned)
        return false;
    if (op->kind == RKVI_DEVOP_COPY) {
        c->usage.copies[op->u.copy.direction]++;
        c->usage.copied_bytes[op->u.copy.direction] += rkvi_copy_bytes(&op->u.copy);
    }
    c->usage.launches += op->kind == RKVI_DEVOP_LAUNCH;
    return true;
}

rkvi_mark *rkvi_mark_new(rkvi_core *c)
{
    rkvi_mark *mark = c->kept_marks;
    if (mark) {
        c->kept_marks = mark->next;
    } else {
        mark = malloc(sizeof *mark);
        c->usage.op_allocations += mark != NULL;
    }
    if (mark)
        *mark = (rkvi_mark){.refs = 1, .core = c};
    else
        rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the mark of an event");
    return mark;
}

rkvi_mark *rkvi_mark_ref(rkvi_mark *mark)
{
    mark->refs++;
    return mark;
}

void rkvi_mark_unref(rkvi_mark *mark)
{
    if (mark && --mark->refs == 0) {
        mark->next = mark->core->kept_marks;
        mark->core->kept_marks = mark;
    }
}

void rkvi_core_drop_kept(rkvi_core *c)
{
    while (c->kept_ops) {
        rkvi_devop *op = c->kept_ops;
        c->kept_ops = op->next;
        free(op);
    }
    while (c->kept_marks) {
        rkvi_mark *mark = c->kept_marks;
        c->kept_marks = mark->next;
        free(mark);
    }
}

/* ---- work ---- */

/* Takes op, also on failure. */
static rkv_status enqueue(rkvi_core *c, rkvi_devop *op, void *stream)
{
    rkvi_stream *s = rkvi_core_stream(c, stream);
    if (!s) {
        rkvi_devop_free(op);
        return RKV_E_ARGUMENT;
    }
    if (s->capture)
        return rkvi_capture_add(s, op);
    rkvi_core_push(s, op);
    return RKV_OK;
}

/* A range that begins in one of our blocks must end there.  Memory that is
 * none of ours is the caller's, as device memory that an engine brought. */
static rkv_status check_extent(rkvi_core *c, const char *call, const void *ptr, size_t width,
                               size_t rows, size_t pitch)
{
    uint64_t extent;
    if (!ptr || !rkvi_mul(rows ? rows - 1 : 0, pitch, &extent) || !rkvi_add(extent, width, &extent))
        return rkvi_fail(RKV_E_ARGUMENT, "%s at %p of %zu rows of %zu bytes", call, ptr, rows, width);
    if (rkvi_block_of(&c->device_blocks, ptr) && !rkvi_block_holds(&c->device_blocks, ptr, extent))
        return rkvi_fail(RKV_E_ARGUMENT, "%s of %llu bytes at %p leaves its block", call,
                         (unsigned long long)extent, ptr);
    return RKV_OK;
}

static rkv_status check_copy(rkvi_core *c, const rkvi_copy *copy)
{
    if ((unsigned)copy->direction > RKVI_D2D)
        return rkvi_fail(RKV_E_ARGUMENT, "copy: direction %d", (int)copy->direction);
    if (copy->rows > 1 &&
        (copy->dst_pitch_bytes < copy->width_bytes || copy->src_pitch_bytes < copy->width_bytes))
        return rkvi_fail(RKV_E_ARGUMENT, "copy: rows of %zu bytes at pitches %zu and %zu overlap",
                         copy->width_bytes, copy->src_pitch_bytes, copy->dst_pitch_bytes);
    const rkv_status st =
        check_extent(c, "copy to", copy->dst, copy->width_bytes, copy->rows, copy->dst_pitch_bytes);
    if (st)
        return st;
    return check_extent(c, "copy from", copy->src, copy->width_bytes, copy->rows,
                        copy->src_pitch_bytes);
}

static void count_pageable(rkvi_core *c, const rkvi_copy *copy)
{
    const void *host = copy->direction == RKVI_H2D ? copy->src : copy->dst;
    if (copy->direction != RKVI_D2D && !rkvi_block_of(&c->pinned_blocks, host))
        c->usage.pageable_copies++;
}

rkv_status rkvi_core_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_COPY);
    if (st)
        return st;
    if (copy->rows == 0 || copy->width_bytes == 0)
        return rkvi_core_leave(c, RKV_OK);
    st = check_copy(c, copy);
    rkvi_devop *op = st ? NULL : rkvi_devop_new(c, RKVI_DEVOP_COPY, 0, 0);
    if (op) {
        op->u.copy = *copy;
        count_pageable(c, copy);
        st = enqueue(c, op, stream);
    } else if (!st) {
        st = RKV_E_HOST_MEMORY;
    }
    return rkvi_core_leave(c, st);
}

rkv_status rkvi_core_fill(rkvi_device *d, void *dst, int byte, size_t bytes, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_FILL);
    if (st)
        return st;
    if (bytes == 0)
        return rkvi_core_leave(c, RKV_OK);
    st = check_extent(c, "fill", dst, bytes, 1, 0);
    rkvi_devop *op = st ? NULL : rkvi_devop_new(c, RKVI_DEVOP_FILL, 0, 0);
    if (op) {
        op->u.fill.dst = dst;
        op->u.fill.byte = byte;
        op->u.fill.bytes = bytes;
        st = enqueue(c, op, stream);
    } else if (!st) {
        st = RKV_E_HOST_MEMORY;
    }
    return rkvi_core_leave(c, st);
}

static rkv_status check_launch(rkvi_core *c, const rkvi_launch *launch)
{
    if (launch->op >= RKVI_OP_COUNT || !c->ops->fn[launch->op])
        return rkvi_fail(RKV_E_ARGUMENT, "launch: no kernel %u", (unsigned)launch->op);
    if (launch->args_bytes > RKVI_ARGS_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "launch: %u bytes of arguments, at most %d",
                         (unsigned)launch->args_bytes, RKVI_ARGS_MAX);
    return RKV_OK;
}

rkv_status rkvi_core_launch(rkvi_device *d, const rkvi_launch *launch, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_LAUNCH);
    if (st)
        return st;
    if (launch->grid == 0)
        return rkvi_core_leave(c, RKV_OK);
    st = check_launch(c, launch);
    const size_t n_ranges = d->wants_ranges && launch->ranges ? launch->n_ranges : 0;
    rkvi_devop *op = st ? NULL : rkvi_devop_new(c, RKVI_DEVOP_LAUNCH, launch->args_bytes, n_ranges);
    if (op) {
        op->u.launch.op = launch->op;
        op->u.launch.grid = launch->grid;
        op->u.launch.ranges_now = d->wants_ranges ? launch->ranges_now : NULL;
        op->u.launch.ranges_arg = launch->ranges_arg;
        op->u.launch.cost_bytes = launch->cost_bytes;
        if (launch->args_bytes)
            memcpy(op->data, launch->args, launch->args_bytes);
        if (n_ranges)
            memcpy(rkvi_devop_ranges(op), launch->ranges, n_ranges * sizeof(rkvi_range));
        st = enqueue(c, op, stream);
    } else if (!st) {
        st = RKV_E_HOST_MEMORY;
    }
    return rkvi_core_leave(c, st);
}

rkv_status rkvi_core_host_call(rkvi_device *d, rkvi_host_fn fn, void *arg, const rkvi_range *ranges,
                               size_t n_ranges, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_HOST_CALL);
    if (st)
        return st;
    const size_t n = d->wants_ranges && ranges ? n_ranges : 0;
    rkvi_devop *op = rkvi_devop_new(c, RKVI_DEVOP_HOST_CALL, 0, n);
    if (op) {
        op->u.host_call.fn = fn;
        op->u.host_call.arg = arg;
        if (n)
            memcpy(rkvi_devop_ranges(op), ranges, n * sizeof(rkvi_range));
        st = enqueue(c, op, stream);
    } else {
        st = RKV_E_HOST_MEMORY;
    }
    return rkvi_core_leave(c, st);
}

rkv_status rkvi_core_delay(rkvi_device *d, int64_t ns, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_DELAY);
    if (st)
        return st;
    rkvi_devop *op = rkvi_devop_new(c, RKVI_DEVOP_DELAY, 0, 0);
    if (op) {
        op->u.delay_ns = ns > 0 ? ns : 0;
        st = enqueue(c, op, stream);
    } else {
        st = RKV_E_HOST_MEMORY;
    }
    return rkvi_core_leave(c, st);
}
