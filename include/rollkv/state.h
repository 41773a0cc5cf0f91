/* SPDX-License-Identifier: MIT
 *
 * rollkv/state.h: sequences saved and loaded again.
 *
 * A state holds one sequence or the whole cache: segments with positions and
 * turns, and the cells in their stored form, each tile once however many
 * sequences share it.  It depends on what is stored (geometry, types, tile
 * size), not on where: loaded into a cache of another residency, ring or
 * device of the same executor kind, a sequence goes on with the same bits.
 * docs/state-format.md describes the bytes.  What a KV layer has freed, since no
 * later row sees it, is not in the state; a cache that keeps such cells (keep_all)
 * refuses it, and one that frees does not take them from a state that has them.
 *
 *   save:   rkv_state_size -> rkv_state_save(write)      or rkv_state_save_file
 *   load:   rkv_state_load(read)                         or rkv_state_load_file
 *
 * What a load refuses, it refuses before the cache changes: the header and the
 * description are checked against the cache before any cell is read; cells go
 * into fresh tiles, each with its checksum, and the sequences change only when
 * all of them have been read.  So a load needs room for what is loaded beside
 * what the sequence holds: clear it first where there is no room for both.
 *
 * All calls block: they wait for the cache's enqueued work, on all streams that
 * it was given.  Legal between steps only.  Built without libxxhash, all of
 * them give RKV_E_UNSUPPORTED.
 *
 * Since 0.1 unless a declaration says otherwise.
 */
#ifndef ROLLKV_STATE_H
#define ROLLKV_STATE_H

#include "rollkv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In place of a sequence: the whole cache. */
#define RKV_STATE_ALL 0xffffffffu

/* Takes or gives exactly size_bytes, in order, on the calling thread; another
 * value than 0 stops the call, which then gives RKV_E_IO with that value in the
 * message.  They must not call the cache. */
typedef int32_t (*rkv_write_fn)(void *user, const void *data, uint64_t size_bytes);
typedef int32_t (*rkv_read_fn)(void *user, void *data, uint64_t size_bytes);

typedef struct rkv_state_params {
    uint32_t struct_size;
    uint32_t sequence;        /* which one is saved, or replaced; RKV_STATE_ALL: the whole cache */
    uint64_t size_bytes;      /* load: what there is to read, so that a state of another size is
                               * refused at once; 0: not known, or a file */
    rkv_write_fn write;       /* save; NULL for a file */
    rkv_read_fn read;         /* load; NULL for a file */
    void *user;               /* of write and read */
    rkv_progress_fn progress; /* NULL, or told of the bytes done and in all */
    void *progress_user;
} rkv_state_params;
#define RKV_STATE_PARAMS_INIT {.struct_size = sizeof(rkv_state_params)}

/* The bytes that saving would write now.  Does not wait for enqueued work.
 * Errors: RKV_E_SEQUENCE, RKV_E_STATE (a step is open), RKV_E_ARGUMENT,
 * RKV_E_HOST_MEMORY, RKV_E_UNSUPPORTED. */
RKV_API rkv_status rkv_state_size(rkv_cache *cache, uint32_t sequence, uint64_t *out_bytes);

/* Writes size bytes by params->write.  Cells of a shared tile that the sequence
 * does not hold are written as zeros, as are removed ones.  The cache does not
 * change.  Takes pinned host memory of 16 MiB, or one tile-layer where that is
 * larger, until it returns.
 * Errors: as rkv_state_size, and RKV_E_IO, RKV_E_DEVICE_CALL, RKV_E_POISONED. */
RKV_API rkv_status rkv_state_save(rkv_cache *cache, const rkv_state_params *params);

/* Replaces the sequence, or (RKV_STATE_ALL) all sequences: those beyond the
 * state's are empty then.  A state of one sequence is loaded into any one
 * sequence, a state of a whole cache by RKV_STATE_ALL alone.
 * Tile-layers join the window while their KV layer's budget has room, the others
 * go into host memory.
 * RKV_E_CAPACITY also says that all sequences together would have more runs of
 * positions than extra_segments allows, which steps count for a batch alone.
 * Errors: RKV_E_DATA (damaged, truncated, oversized, or of a cache of another
 * geometry, type or tile size: the message says what differs), RKV_E_IO,
 * RKV_E_CAPACITY, RKV_E_DEVICE_LIMIT, RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY, RKV_E_SEQUENCE,
 * RKV_E_STATE, RKV_E_ARGUMENT, RKV_E_UNSUPPORTED, RKV_E_DEVICE_CALL: the cache is
 * as before, but that host memory which was added for the tail stays added
 * (rkv_cache_stats), for what comes next.  RKV_E_POISONED. */
RKV_API rkv_status rkv_state_load(rkv_cache *cache, const rkv_state_params *params);

/* The same to and from a file.  Saving writes a temporary file in the same
 * folder (readable by its owner alone), syncs it and renames it to `path`: the
 * file is the old one or the whole new one.  params' write, read and user must
 * be NULL.  Errors besides: RKV_E_IO, with the system's reason (a long path is
 * shortened in the message). */
RKV_API rkv_status rkv_state_save_file(rkv_cache *cache, const rkv_state_params *params,
                                       const char *path);
RKV_API rkv_status rkv_state_load_file(rkv_cache *cache, const rkv_state_params *params,
                                       const char *path);

#ifdef __cplusplus
}
#endif
#endif
