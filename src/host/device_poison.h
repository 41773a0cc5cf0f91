/* SPDX-License-Identifier: MIT
 *
 * device_poison.h: makes memory outside an operation's declared ranges
 * untouchable while the operation runs, so that an under-declared range ends
 * the process at the access itself.
 *
 * In an ASan build shadow bytes do it: exact at a range's end, to 8 bytes at
 * its start.  Elsewhere page protection does it: whole pages, but writes
 * through a range that was declared for reading alone are caught too.
 *
 * Device memory is closed all the time, for host code as well.  Pinned host
 * memory belongs to the host between operations and is closed only while one
 * runs (with page protection: those pages that lie wholly within it).
 */
#ifndef RKVI_DEVICE_POISON_H
#define RKVI_DEVICE_POISON_H

#include "device_core.h"

bool rkvi_poison_is_exact(void); /* by bytes (ASan), not pages */
void rkvi_poison_close(const rkvi_block *b);
void rkvi_poison_open(const rkvi_block *b);
/* Opens what the ranges cover of the blocks, for what they declare. */
void rkvi_poison_open_ranges(const rkvi_blocks *blocks, const rkvi_range *ranges, size_t n);

#endif
