/* SPDX-License-Identifier: MIT
 *
 * rollkv/graph.h: steps in an engine's CUDA graphs.
 * A part of rollkv.h, which has the conventions.
 */
#ifndef ROLLKV_GRAPH_H
#define ROLLKV_GRAPH_H

#include "attend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With RKV_FLAG_GRAPHS the attends of a step can be captured into the engine's
 * CUDA graph, together with the engine's own kernels, and replayed in later
 * steps while the sequences grow.  begin, start and end always run eagerly:
 *
 *   capture   rkv_step_begin, _start, _graph_key -> k
 *             cudaStreamBeginCapture(stream)
 *               rkv_graph_capture(cache, first site, 0, stream)
 *               engine kernels, rkv_step_attend of each site
 *               rkv_graph_capture_end(cache, stream, &g)
 *               engine kernels
 *             cudaStreamEndCapture             keep its exec and g under k
 *             rkv_step_replay, cudaGraphLaunch, rkv_step_end
 *   replay    rkv_step_begin, _start, _graph_key -> k, known
 *             rkv_step_replay(cache, &g, stream), cudaGraphLaunch, rkv_step_end
 *
 * Nothing of a capture runs, and the step stands where it stood before it: the
 * graph is then replayed in the same step, or the sites are attended eagerly.  A
 * capture holds any run of sites, so a step may be several graphs, one after
 * another, with eager attends between them; and a step may be captured twice.
 * q, k, v, out, lse and sinks are held by the graph as the capture saw them.
 *
 * The key tells whether a graph fits a step: it depends on
 *   - the batch's entries in their order: rows, new cells or none, regime;
 *   - the list of tail tile-layers that the step reads: which ones, in which order.
 *     Tiles enter the tail in batches, once in T/2 steps (T: tile_cells);
 *     Tail tile-layers of a sliding or chunked mask also leave the list as the
 *     mask moves on;
 *   - what sequences of the batch share, token trees, and turns of shifted cells;
 *   - twofold growth of a launch's work beyond the device's multiprocessors, as
 *     many short sequences may cause.
 * It does not depend on which sequences the entries are of, on their lengths and
 * positions, or on which tiles are on the device: without a tail, a graph
 * captured over dummy sequences fits all others.  Keys are of one cache.
 *
 * The last part of the ring's copies for a step is made by the graph of the step
 * before, as far as there is time: the hints gap_ns or step_ns, and
 * link_bytes_per_s, tell how much.  The link rests less where they are given.
 *
 * A graph is the caller's: drop it with the exec.  It may run while the next
 * steps are begun.  Outputs have the bits of an eager step.  The flag costs one
 * small kernel a step, room for a further step's tables, and promotion: freed
 * window room is filled by tiles that are due.  A decode step that only lengthens
 * its sequences is not planned, in other caches either; where the last one was
 * replayed, begin does not go through the tail's list as well.  Profiles
 * (profile.h) are refused. */
typedef struct rkv_graph {
    uint32_t struct_size;
    uint32_t first_site, n_sites;
    uint32_t n_ahead; /* tail tile-layers that it copies ahead, for its next replay */
    uint64_t key;
} rkv_graph;
#define RKV_GRAPH_INIT {.struct_size = sizeof(rkv_graph)}

/* Of the open step.  Errors: RKV_E_STATE (no step is open), RKV_E_UNSUPPORTED
 * (the cache was created without RKV_FLAG_GRAPHS), RKV_E_ARGUMENT. */
RKV_API rkv_status rkv_step_graph_key(const rkv_cache *cache, uint64_t *out_key);

/* Attends from here on are recorded on `stream`, which is being captured: those
 * of n_sites sites (0: all that are left) from `first_site` on.  The step must
 * have been started.  Errors: RKV_E_STATE,
 * RKV_E_ARGUMENT, RKV_E_UNSUPPORTED (without the flag; a prefill step whose tiles
 * leave the device within it; a tail in memory that could not be pinned),
 * RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_graph_capture(rkv_cache *cache, uint32_t first_site, uint32_t n_sites, void *stream);

/* The last call on the cache before the stream's capture ends: its own copies
 * join the stream.  Where this or a captured attend failed, the stream's capture
 * is of no use; the step goes on as if none had been begun.
 * Errors: RKV_E_STATE (no capture, or sites are missing: it is dropped), RKV_E_ARGUMENT,
 * RKV_E_UNSUPPORTED (without the flag), RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_graph_capture_end(rkv_cache *cache, void *stream, rkv_graph *out_graph);

/* The graph's sites are attended by the launch of the engine's graph, which must
 * come next on `stream`.  Queued.  Starts the step where it was not started.
 * Errors: RKV_E_STATE (another key, or its first site is not the next one),
 * RKV_E_ARGUMENT, RKV_E_UNSUPPORTED: the step goes on, and can be attended
 * eagerly.  RKV_E_DEVICE_CALL, RKV_E_HOST_MEMORY: it can only be aborted, as also
 * where the graph's launch itself fails. */
RKV_API rkv_status rkv_step_replay(rkv_cache *cache, const rkv_graph *graph, void *stream);

#ifdef __cplusplus
}
#endif
#endif
