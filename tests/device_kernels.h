/* SPDX-License-Identifier: MIT
 *
 * device_kernels.h: a kernel table for the tests of executors.  The numbers
 * are those of ops.h; what they do is not.
 */
#ifndef DEVICE_KERNELS_H
#define DEVICE_KERNELS_H

#include "device.h"
#include "ops.h"

#include <string.h>

/* dst[index] = src[index] + add, over uint32_t */
enum { OP_ADD = 0, OP_COUNT_UP = 1 };

typedef struct add_args {
    uint32_t *dst;
    const uint32_t *src;
    uint32_t add;
} add_args;

static void kernel_add(const void *args, uint64_t index)
{
    add_args a;
    memcpy(&a, args, sizeof a);
    a.dst[index] = a.src[index] + a.add;
}

/* dst[index]++: shows an item that ran twice or never */
static void kernel_count_up(const void *args, uint64_t index)
{
    add_args a;
    memcpy(&a, args, sizeof a);
    a.dst[index]++;
}

static const rkvi_ops test_ops = {
    .fn = {[OP_ADD] = kernel_add, [OP_COUNT_UP] = kernel_count_up},
    .name = "test",
};

/* Below: functions that enqueue, and macros that take the site of their caller. */

/* dst[0..n) = src[0..n) + add on a stream, with its ranges declared. */
static inline rkv_status launch_add_here(rkvi_device *d, uint32_t *dst, const uint32_t *src,
                                         uint32_t add, uint64_t n, void *stream)
{
    const add_args args = {.dst = dst, .src = src, .add = add};
    const rkvi_range ranges[] = {
        {.ptr = dst, .bytes = n * 4, .access = RKVI_WRITE},
        {.ptr = src, .bytes = n * 4, .access = RKVI_READ},
    };
    const rkvi_launch launch = {.op = OP_ADD,
                                .args = &args,
                                .args_bytes = sizeof args,
                                .grid = n,
                                .cost_bytes = n * 4,
                                .ranges = ranges,
                                .n_ranges = 2};
    return d->vt->launch(d, &launch, stream);
}

static inline rkv_status copy_1d_here(rkvi_device *d, rkvi_direction direction, void *dst,
                                      const void *src, size_t bytes, void *stream)
{
    const rkvi_copy copy = {
        .direction = direction, .dst = dst, .src = src, .width_bytes = bytes, .rows = 1};
    return d->vt->copy(d, &copy, stream);
}

static inline void host_touch_here(rkvi_device *d, const void *ptr, size_t bytes, uint32_t access)
{
    const rkvi_range range = {.ptr = ptr, .bytes = bytes, .access = access};
    d->vt->host_access(d, &range, 1);
}

#define at_site(call) (rkvi_call_site = RKVI_HERE, call)
#define launch_add(...) at_site(launch_add_here(__VA_ARGS__))
#define copy_1d(...) at_site(copy_1d_here(__VA_ARGS__))
#define host_touch(...) at_site(host_touch_here(__VA_ARGS__))

#endif
