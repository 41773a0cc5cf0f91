/* SPDX-License-Identifier: MIT
 *
 * ops_cuda.c: which kernel serves what.  The list of attention's variants is
 * generated (rkvk_table.h).
 */
#include "ops_cuda.h"

#include "rkvk_table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CUDA_INVALID_VALUE 1 /* cudaErrorInvalidValue */

#define DECLARE(name, type_k, type_v, dk, dv) \
    int rkvk_decode_##name(const rkvi_attend_args *a, uint64_t grid, void *stream); \
    int rkvk_decode_##name##_prepare(void); \
    int rkvk_prefill_##name(const rkvi_attend_args *a, uint64_t grid, void *stream); \
    int rkvk_prefill_##name##_prepare(void);
RKVK_VARIANTS(DECLARE)

#define ENTRY(name, type_k, type_v, dk, dv) \
    {type_k, type_v, dk, dv, rkvk_decode_##name, rkvk_prefill_##name, rkvk_decode_##name##_prepare, \
     rkvk_prefill_##name##_prepare},
static const rkvk_variant variants[] = {RKVK_VARIANTS(ENTRY)};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

const rkvk_variant *rkvk_find(const rkvi_geom *g)
{
    for (uint32_t i = 0; i < N_VARIANTS; i++) {
        const rkvk_variant *v = &variants[i];
        if (v->type_k == g->type_k && v->type_v == g->type_v && v->dk == g->dk && v->dv == g->dv)
            return v;
    }
    return NULL;
}

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t bytes, const char *format, ...)
{
    const size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, bytes - at, format, args);
    va_end(args);
}

/* The list is ordered by types, so that each pair is named once. */
void rkvk_variants_text(char *text, size_t bytes)
{
    text[0] = 0;
    for (uint32_t i = 0; i < N_VARIANTS; i++) {
        const rkvk_variant *v = &variants[i], *last = i ? v - 1 : NULL;
        if (!last || last->type_k != v->type_k || last->type_v != v->type_v) {
            append(text, bytes, "%s%s", last ? "; " : "", rkvi_type_name(v->type_k));
            if (v->type_v != v->type_k)
                append(text, bytes, "/%s", rkvi_type_name(v->type_v));
        }
        append(text, bytes, " %u", v->dk);
        if (v->dv != v->dk)
            append(text, bytes, ":%u", v->dv);
    }
}

const char *rkvk_archs(void)
{
    return RKVK_ARCHS;
}

int rkvk_launch_decode(const rkvi_attend_args *a, uint64_t grid, void *stream)
{
    const rkvk_variant *v = rkvk_find(&a->geom);
    return v ? v->decode(a, grid, stream) : CUDA_INVALID_VALUE;
}

int rkvk_launch_prefill(const rkvi_attend_args *a, uint64_t grid, void *stream)
{
    const rkvk_variant *v = rkvk_find(&a->geom);
    return v ? v->prefill(a, grid, stream) : CUDA_INVALID_VALUE;
}

int rkvk_launch(uint32_t op, const void *args, uint64_t grid, void *stream)
{
    switch (op) {
    case RKVI_OP_OPEN: return rkvk_launch_open(args, grid, stream);
    case RKVI_OP_STORE: return rkvk_launch_store(args, grid, stream);
    case RKVI_OP_DECODE: return rkvk_launch_decode(args, grid, stream);
    case RKVI_OP_PREFILL: return rkvk_launch_prefill(args, grid, stream);
    case RKVI_OP_MERGE: return rkvk_launch_merge(args, grid, stream);
    case RKVI_OP_PATCH: return rkvk_launch_patch(args, grid, stream);
    case RKVI_OP_ROTATE: return rkvk_launch_rotate(args, grid, stream);
    case RKVI_OP_TREE: return rkvk_launch_tree(args, grid, stream);
    case RKVI_OP_PUBLISH: return rkvk_launch_publish(args, grid, stream);
    case RKVI_OP_AWAIT: return rkvk_launch_await(args, grid, stream);
    case RKVI_OP_TAKE: return rkvk_launch_take(args, grid, stream);
    case RKVI_OP_MOVE: return rkvk_launch_move(args, grid, stream);
    case RKVI_OP_UPLOAD: return rkvk_launch_upload(args, grid, stream);
    default: return CUDA_INVALID_VALUE;
    }
}

int rkvk_prepare(void)
{
    int e = rkvk_prepare_store();
    e = e ? e : rkvk_prepare_merge();
    e = e ? e : rkvk_prepare_rotate();
    e = e ? e : rkvk_prepare_desk();
    return e ? e : rkvk_prepare_tree();
}

int rkvk_prepare_geom(const rkvi_geom *g)
{
    const rkvk_variant *v = rkvk_find(g);
    if (!v)
        return CUDA_INVALID_VALUE;
    const int e = v->decode_prepare();
    return e ? e : v->prefill_prepare();
}
