/* SPDX-License-Identifier: MIT
 *
 * device_check.h: wraps any executor and checks the ordering of what runs there.
 *
 * It works out, from the calls alone, which operations are ordered (streams,
 * events, host waits, graphs), and which bytes they touch (declared ranges).
 * So it finds a missing edge whatever order ran.  It reports
 *
 *   RKVI_CHECK_RACE       two operations touch the same bytes, one of them
 *                         writes, and nothing orders them; an operation and a
 *                         host access (host_access) likewise
 *   RKVI_CHECK_FREED      memory given back (mem_free, host_free,
 *                         host_unregister) while enqueued work that uses it is
 *                         not known to have ended, or used after that
 *   RKVI_CHECK_UNDEFINED  a launch, host call or host access reads bytes that
 *                         nothing wrote.  Copies may carry such bytes: what
 *                         they write is defined as far as what they read was.
 *                         Device memory, and host memory from its registration
 *                         on, starts undefined; host_access defines.
 *   RKVI_CHECK_BOUNDS     a range leaves the block in which it begins
 *   RKVI_CHECK_PAGEABLE   a copy to or from host memory that is not pinned
 *
 * It can't see what an operation touches without declaring it: that is what
 * device_sim's poison is for.  Memory that no call allocated or registered is
 * not watched.
 *
 * Host threads: by default each call of any thread comes after all earlier
 * ones, as if a lock was handed on (TSan watches that).  With host_threads_apart
 * a wait orders the thread that waited alone.
 */
#ifndef RKVI_DEVICE_CHECK_H
#define RKVI_DEVICE_CHECK_H

#include "device.h"

typedef enum {
    RKVI_CHECK_RACE,
    RKVI_CHECK_FREED,
    RKVI_CHECK_UNDEFINED,
    RKVI_CHECK_BOUNDS,
    RKVI_CHECK_PAGEABLE
} rkvi_check_kind;

/* One for each kind and pair of sites. */
typedef struct rkvi_check_report {
    rkvi_check_kind kind;
    uint64_t times;
    const char *first_site; /* NULL where there is no earlier operation */
    const char *second_site;
    char text[320];
} rkvi_check_report;

typedef struct rkvi_device_check_settings {
    bool host_threads_apart;
    bool allow_pageable;
} rkvi_device_check_settings;

/* Takes `inner`, also on failure; destroying it destroys inner.  `s` may be NULL. */
rkv_status rkvi_device_check_create(rkvi_device *inner, const rkvi_device_check_settings *s,
                                    rkvi_device **out);
rkvi_device *rkvi_device_check_inner(rkvi_device *d);

/* Each is also logged (RKVI_LOG_ERROR) when it comes up. */
size_t rkvi_device_check_count(rkvi_device *d);
/* Valid until the next call of d or device_check_clear. */
const rkvi_check_report *rkvi_device_check_report(rkvi_device *d, size_t i);
void rkvi_device_check_clear(rkvi_device *d);
/* The caller got this memory from elsewhere: what was freed there before is forgotten. */
void rkvi_device_check_given(rkvi_device *d, const void *ptr, uint64_t bytes);

#endif
