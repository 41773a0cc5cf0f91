/* SPDX-License-Identifier: MIT
 *
 * marks.h: numbers on a timeline (timeline.h), as parts below it see them:
 * 0 is none, 1, 2, 3 ... are in the order of recording.
 */
#ifndef RKVI_MARKS_H
#define RKVI_MARKS_H

#include <stdint.h>

/* Not yet marked, but going to be: a copy-out that is planned. */
#define RKVI_MARK_PENDING UINT64_MAX

#endif
