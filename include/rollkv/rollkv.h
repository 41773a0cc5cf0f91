/* SPDX-License-Identifier: MIT
 *
 * rollkv/rollkv.h: decode with a KV cache larger than the device's memory.
 *
 * What it models
 * --------------
 * The KV cache of a transformer is cut into tiles of T cells (token positions)
 * of one sequence; a tile's part in one KV layer is a tile-layer.  Per KV
 * layer a budget of cells stays on the device (the window); the rest lies in
 * pinned host memory (the tail) and crosses the link once per step, through a
 * small device buffer (the ring), while the whole step computes:
 *
 *      host memory (tail)                  device memory
 *   +-----------------------+        +------------------------+
 *   | t3 t4 t5 t6 t7 t8 ... | -----> |  ring  [t7][t8][t3]    |--+
 *   +-----------------------+  link  +------------------------+  |  attend
 *              ^                     |  window [t0][t1][t2]   |--+----------> out
 *              |                     +------------------------+  |
 *              +---- demotion ------ |  active [t9]           |--+
 *                   (full tiles)     +------------------------+
 *
 * Attention over all of it is exact: the output has the same bits wherever a
 * tile lies, whatever the ring's size, the copies and the batch around it.
 *
 * Life cycle
 * ----------
 *   rkv_cache_create
 *      per step:  rkv_step_begin    plan, reserve; the copies start
 *                 rkv_step_start    (or the first attend does it)
 *                 rkv_step_attend   once per site, in the order of sites[]
 *                 rkv_step_end      or rkv_step_abort
 *      between steps: sequences are cleared, cut, forked, asked about
 *   rkv_cache_destroy
 *
 *             begin              start            last site attended, end
 *   [ idle ] -------> [ begun ] -------> [ running ] -------------------> [ idle ]
 *       ^                |                   |
 *       +----------------+------ abort ------+       a device fault: [ poisoned ]
 *
 * The parts, in the order in which they are best read
 * ---------------------------------------------------
 *   library.h    version, error messages, log, settings, devices
 *   params.h     what a cache is made of; estimate
 *   kvcache.h    create, destroy, windows, the CPU's share, info, stats
 *   sequence.h   clear, remove, append from, park, fetch, shift, compact
 *   attend.h     a step: batch, check, begin, attend, end, abort; token trees
 *   graph.h      steps in CUDA graphs
 * This header includes them all.  Beside it: state.h (saved sequences), cells.h
 * (cells as others hold them), profile.h (where attention looks), host.h
 * (streams of the host executor).
 *
 * Conventions
 * -----------
 *  - Input structs begin with struct_size: set it with the initialiser macros
 *    (RKV_CACHE_PARAMS_INIT and so on).  Zero means 'default' in every field.
 *    An array of structs has the stride array[0].struct_size (the others have
 *    the same one, or 0).  Nothing that is passed in is kept: arrays may be
 *    freed once the call has returned.
 *  - Output structs: set struct_size to the size you know; that much is filled.
 *  - Sizes are in bytes, cells, rows as the name says; times in nanoseconds.
 *    All 64-bit.  A value above 2^62 is always an error (a wrapped negative).
 *  - Ranges of positions are [from, to).
 *  - A stream is `void *`: a cudaStream_t on a GPU, a stream of rollkv/host.h
 *    on the host executor.  NULL is the legacy default stream, or the cache's
 *    own default stream on the host executor.
 *  - A call that fails changes nothing, and rkv_error_message() says on the
 *    calling thread what was wrong, with values and limits.  (Tiles whose time
 *    has come may enter the tail in a begin that fails for memory or a device
 *    call: that changes where they are read from, and no result.)
 *  - Where a device call fails within begin, attend or end, that call may block
 *    until the library's own streams have run dry, so that what it had queued
 *    there is known to be over.
 *  - After a device fault every call but rkv_cache_destroy gives
 *    RKV_E_POISONED, with the first fault in the message.
 *
 * Threads
 * -------
 *   call                                        may run beside
 *   rkv_version .. rkv_device_*                 everything
 *   rkv_error_message                           everything (per thread)
 *   rkv_cache_create, _estimate                 everything
 *   rkv_cache_info, _stats, rkv_kv_layer_info,  each other, and any one call on the
 *     rkv_site_info, rkv_sequence_info, _ranges   same cache from another thread
 *   all other calls on one cache                nothing else on that cache
 *   calls on different caches                   each other
 *
 * Since 0.1 unless a declaration says otherwise.
 */
#ifndef ROLLKV_ROLLKV_H
#define ROLLKV_ROLLKV_H

#include "types.h"
#include "version.h"
#include "library.h"
#include "params.h"
#include "kvcache.h"
#include "sequence.h"
#include "attend.h"
#include "graph.h"

#endif
