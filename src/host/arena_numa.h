/* SPDX-License-Identifier: MIT
 *
 * arena_numa.h: memory near a device.  Asks the kernel itself: libnuma would be
 * one more library that every program which links this one must find.
 */
#ifndef RKVI_ARENA_NUMA_H
#define RKVI_ARENA_NUMA_H

#include <stdint.h>

/* The node, or -1 where nothing can be bound to it, which is told in the log and
 * no error: the memory is as right elsewhere, only slower. */
int32_t rkvi_arena_numa_usable(int32_t node);

/* Pages of [base, base + bytes) that have not been touched will come from the
 * node, as long as it has some.  node: usable, or -1 for nothing. */
void rkvi_arena_numa_bind(int32_t node, void *base, uint64_t bytes);

#endif
