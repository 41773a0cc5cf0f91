/* SPDX-License-Identifier: MIT
 *
 * ops_cuda.h: the C interface between the executor (device_cuda, C11) and the
 * kernels (.cu, CUDA C++).
 *
 * The kernels' contract is ops.h: the same argument structs, all pointers in
 * them device pointers, `grid` work items.  The structs themselves are host
 * memory, valid during the call, and become kernel parameters by value.
 *
 * A launcher enqueues on `stream` (a cudaStream_t, possibly in capture, of the
 * current device) and returns a cudaError_t as int (0: done).  It never
 * synchronises, allocates, copies, sets attributes or touches the runtime's last
 * error (rkvk_launch.cuh has a helper): what a kernel needs once
 * per device (dynamic shared memory above 48 KB, loading its module, which is
 * illegal during a capture) is done by its `prepare`, which the executor calls
 * at creation.  grid is any 64-bit number above 0: launchers split or loop
 * where it exceeds the hardware's 2^31 - 1.
 *
 * Attention is compiled for a list of variants (storage types x head dims),
 * which is in meson.build alone.  From it come the .cu files, one a variant and
 * regime, and the list of rkvk_table.h (generated).  A
 * combination that is not in the table is refused at creation of a cache.
 */
#ifndef RKVK_OPS_CUDA_H
#define RKVK_OPS_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "ops.h"

typedef int (*rkvk_attend_fn)(const rkvi_attend_args *a, uint64_t grid, void *stream);
typedef int (*rkvk_prepare_fn)(void); /* on the current device; a cudaError_t */

typedef struct rkvk_variant {
    rkv_type type_k, type_v;
    uint32_t dk, dv;
    rkvk_attend_fn decode, prefill;
    rkvk_prepare_fn decode_prepare, prefill_prepare;
} rkvk_variant;

/* Generated .cu files consist of the include and one of these lines (the
 * macros are in attend_stream.cuh and attend_prefill.cuh; type as RKV_TYPE_F16):
 *
 *   RKVK_STREAM_VARIANT(name, type_k, type_v, dk, dv)
 *   RKVK_PREFILL_VARIANT(name, type_k, type_v, dk, dv)
 *
 * which define, with C linkage,
 *
 *   int rkvk_decode_<name>(const rkvi_attend_args *a, uint64_t grid, void *stream);
 *   int rkvk_decode_<name>_prepare(void);
 *
 * (prefill alike), name being <type_k>_<type_v>_d<dk> or ..._d<dk>_<dv>. */

/* Which variant serves this geometry?  NULL: none.  The one function that
 * decides, for 'supported?' and 'which kernel?' alike. */
const rkvk_variant *rkvk_find(const rkvi_geom *g);

/* All variants as text, K:V where they differ: "f16 64 128 192:128; q8_0/q4_0 128". */
void rkvk_variants_text(char *text, size_t bytes);

/* The architectures that this build has machine code for: "80 90", and whether
 * there is intermediate code for later ones: "80 90 and later". */
const char *rkvk_archs(void);

/* args: the struct of the op in ops.h.  A geometry without a variant gives
 * cudaErrorInvalidValue. */
int rkvk_launch(uint32_t op, const void *args, uint64_t grid, void *stream);

/* Loads what every cache needs (all but attention); then, for one
 * geometry, its attention. */
int rkvk_prepare(void);
int rkvk_prepare_geom(const rkvi_geom *g);

int rkvk_launch_open(const rkvi_open_args *a, uint64_t grid, void *stream);
int rkvk_launch_store(const rkvi_store_args *a, uint64_t grid, void *stream);
int rkvk_launch_patch(const rkvi_patch_args *a, uint64_t grid, void *stream);
int rkvk_launch_upload(const rkvi_upload_args *a, uint64_t grid, void *stream);
int rkvk_launch_decode(const rkvi_attend_args *a, uint64_t grid, void *stream);
int rkvk_launch_prefill(const rkvi_attend_args *a, uint64_t grid, void *stream);
int rkvk_launch_merge(const rkvi_merge_args *a, uint64_t grid, void *stream);
int rkvk_launch_rotate(const rkvi_rotate_args *a, uint64_t grid, void *stream);
int rkvk_launch_tree(const rkvi_tree_args *a, uint64_t grid, void *stream);
int rkvk_launch_publish(const rkvi_publish_args *a, uint64_t grid, void *stream);
int rkvk_launch_await(const rkvi_await_args *a, uint64_t grid, void *stream);
int rkvk_launch_take(const rkvi_take_args *a, uint64_t grid, void *stream);
int rkvk_launch_move(const rkvi_move_args *a, uint64_t grid, void *stream);
/* One thread that spins until `ns` have passed. */
int rkvk_launch_delay(int64_t ns, void *stream);
int rkvk_prepare_store(void); /* open, store, patch, upload, delay */
int rkvk_prepare_merge(void);
int rkvk_prepare_rotate(void);
int rkvk_prepare_desk(void); /* publish, await, take */
int rkvk_prepare_tree(void); /* tree, move */

#ifdef __cplusplus
}
#endif
#endif
