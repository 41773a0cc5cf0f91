/* SPDX-License-Identifier: MIT */
#ifndef STOPWATCH_H
#define STOPWATCH_H

#include <stdint.h>

/* Nanoseconds of a clock that never goes back. */
uint64_t stopwatch_now_ns(void);

#endif
