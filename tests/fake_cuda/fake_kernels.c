/* SPDX-License-Identifier: MIT
 *
 * fake_kernels.c: ops_cuda.h's launchers, which enqueue the host's kernels on
 * the fake runtime's streams.  ops_cuda.c, which chooses among them, is compiled
 * unchanged.
 */
#include "fake_cuda_impl.h"

#include "ops_cuda.h"
#include "rkvk_table.h"

#include <stdlib.h>
#include <string.h>

static int enqueue(const fake_work *w, void *stream)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter(&ctx);
    struct CUstream_st *s = fake_stream(ctx, stream, &e);
    if (!s)
        return (int)fake_leave(e);
    return (int)fake_leave(fake_enqueue(s, fake_work_clone(w)));
}

static int launch(rkvi_op op, const void *args, size_t args_bytes, uint64_t grid, void *stream)
{
    void *copy = fake_alloc(args_bytes);
    memcpy(copy, args, args_bytes);
    const fake_work w = {.kind = FAKE_KERNEL, .u.kernel = {(uint32_t)op, grid, copy, args_bytes}};
    const int e = enqueue(&w, stream);
    free(copy);
    return e;
}

#define LAUNCHER(name, OP) \
    int rkvk_launch_##name(const rkvi_##name##_args *a, uint64_t grid, void *stream) \
    { \
        return launch(RKVI_OP_##OP, a, sizeof *a, grid, stream); \
    }
LAUNCHER(open, OPEN)
LAUNCHER(store, STORE)
LAUNCHER(patch, PATCH)
LAUNCHER(upload, UPLOAD)
LAUNCHER(merge, MERGE)
LAUNCHER(rotate, ROTATE)
LAUNCHER(tree, TREE)
LAUNCHER(publish, PUBLISH)
LAUNCHER(await, AWAIT)
LAUNCHER(take, TAKE)
LAUNCHER(move, MOVE)

#define VARIANT(name, type_k, type_v, dk, dv) \
    int rkvk_decode_##name(const rkvi_attend_args *a, uint64_t grid, void *stream); \
    int rkvk_decode_##name##_prepare(void); \
    int rkvk_prefill_##name(const rkvi_attend_args *a, uint64_t grid, void *stream); \
    int rkvk_prefill_##name##_prepare(void); \
    int rkvk_decode_##name(const rkvi_attend_args *a, uint64_t grid, void *stream) \
    { \
        return launch(RKVI_OP_DECODE, a, sizeof *a, grid, stream); \
    } \
    int rkvk_decode_##name##_prepare(void) \
    { \
        return cudaSuccess; \
    } \
    int rkvk_prefill_##name(const rkvi_attend_args *a, uint64_t grid, void *stream) \
    { \
        return launch(RKVI_OP_PREFILL, a, sizeof *a, grid, stream); \
    } \
    int rkvk_prefill_##name##_prepare(void) \
    { \
        return cudaSuccess; \
    }
RKVK_VARIANTS(VARIANT)

int rkvk_launch_delay(int64_t ns, void *stream)
{
    return enqueue(&(fake_work){.kind = FAKE_DELAY, .u.delay_ns = ns}, stream);
}

#define PREPARE(name) \
    int rkvk_prepare_##name(void) \
    { \
        return cudaSuccess; \
    }
PREPARE(store)
PREPARE(merge)
PREPARE(rotate)
PREPARE(desk)
PREPARE(tree)

/* ------------------------------------------------------- pointers of kernels */

/* In device or pinned memory; NULL is what the op makes of it. */
static bool all_held(const void *const *pointers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (pointers[i] && !fake_holds(pointers[i], 1))
            return false;
    return true;
}
#define HELD(...) \
    all_held((const void *const[]){__VA_ARGS__}, sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))

static bool open_holds(const rkvi_open_args *a, uint64_t grid)
{
    if (!HELD(a->bases, a->base_index))
        return false;
    for (uint64_t i = 0; i < grid; i++)
        if (!fake_holds_device((const void *)(uintptr_t)a->bases[a->base_index[i]], a->bytes))
            return false;
    return true;
}

static bool store_holds(const rkvi_store_args *a, uint64_t grid)
{
    if (!HELD(a->bases, a->cells, a->k.data, a->v.data))
        return false;
    for (uint64_t i = 0; i < grid / a->geom.n_heads; i++)
        if (!fake_holds_device((const void *)(uintptr_t)a->bases[a->cells[i].base], a->geom.bytes))
            return false;
    return true;
}

static bool attend_holds(const rkvi_attend_args *a)
{
    return HELD(a->entries, a->rows, a->spans, a->bases, a->items, a->partials, a->q.data, a->row_map, a->turned,
                a->merge.out.data, a->merge.lse, a->merge.sinks);
}

static bool merge_holds(const rkvi_merge_args *a)
{
    return HELD(a->entries, a->items, a->nodes, a->partials, a->out.data, a->lse, a->sinks);
}

static bool rotate_holds(const rkvi_rotate_args *a)
{
    return HELD(a->q.data, a->rows, a->angles, a->turned);
}

static bool tree_holds(const rkvi_tree_args *a)
{
    return HELD(a->rows, a->bases, a->cells, a->items, a->partials, a->q.data);
}

static bool move_holds(const rkvi_move_args *a)
{
    for (uint32_t i = 0; i < RKVI_MOVE_TILES_MAX; i++)
        if (a->tiles[i] && !fake_holds_device((const void *)(uintptr_t)a->tiles[i], a->geom.bytes))
            return false;
    return true;
}

static bool await_holds(const rkvi_await_args *a)
{
    return HELD(a->desk, a->state) && (!a->ticket0 || HELD(a->ticket0, a->items, a->late_items));
}

static bool holds(uint32_t op, const void *args, uint64_t grid)
{
    const rkvi_patch_args *patch = args;
    const rkvi_upload_args *upload = args;
    const rkvi_publish_args *publish = args;
    const rkvi_take_args *take = args;
    switch ((rkvi_op)op) {
    case RKVI_OP_OPEN: return open_holds(args, grid);
    case RKVI_OP_STORE: return store_holds(args, grid);
    case RKVI_OP_DECODE:
    case RKVI_OP_PREFILL: return attend_holds(args);
    case RKVI_OP_MERGE: return merge_holds(args);
    case RKVI_OP_PATCH: return HELD(patch->dst, patch->src, patch->patches);
    case RKVI_OP_ROTATE: return rotate_holds(args);
    case RKVI_OP_TREE: return tree_holds(args);
    case RKVI_OP_MOVE: return move_holds(args);
    case RKVI_OP_UPLOAD: return fake_holds(upload->dst, upload->bytes) && fake_holds(upload->src, upload->bytes);
    case RKVI_OP_PUBLISH:
        return HELD(publish->q.data, publish->to, publish->desk, publish->state, publish->ticket0);
    case RKVI_OP_AWAIT: return await_holds(args);
    case RKVI_OP_TAKE: return HELD(take->from, take->partials, take->items, take->state);
    case RKVI_OP_COUNT: break;
    }
    return false;
}

bool fake_kernel_run(uint32_t op, const void *args, uint64_t grid)
{
    static rkvi_ops ops;
    if (!ops.name)
        rkvi_ops_best(&ops, NULL);
    if (!holds(op, args, grid))
        return false;
    for (uint64_t i = 0; i < grid; i++)
        ops.fn[op](args, i);
    return true;
}
