/* SPDX-License-Identifier: MIT
 *
 * fault_scripts.h: the life of a cache, for tests in which its calls fail: steps
 * and bringing back, sharing and shifts and moves, drafts, states, cells.  Each
 * call is made again until it works, a step by aborting it first.
 */
#ifndef FAULT_SCRIPTS_H
#define FAULT_SCRIPTS_H

#include "step_fixture.h"

typedef void (*fs_script)(fx *w);
enum { FS_SCRIPTS = 5 };
extern const fs_script fs_scripts[FS_SCRIPTS];

/* Two KV layers of unlike types, one of them with a window. */
fx_model fs_model(void);
/* Of the test: false when the call worked, true when it failed as it may; leaves
 * the script by a long jump when the cache is lost, fails the test otherwise. */
extern bool (*fs_failed)(rkv_status s);

#define RETRY(call) \
    do { \
    } while (fs_failed(call))

/* One step, until it works. */
void fs_append(fx *w, uint32_t q, uint32_t rows, uint32_t regime, uint64_t tag);

#endif
