#include "geometry.h"

#include "diag.h"

bool rkvi_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out) && *out <= RKVI_SIZE_MAX;
}

bool rkvi_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out) && *out <= RKVI_SIZE_MAX;
}

uint64_t rkvi_div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

uint64_t rkvi_align_up(uint64_t a, uint64_t align)
{
    return rkvi_div_up(a, align) * align;
}

const char *rkvi_type_name(rkv_type type)
{
    static const char *const names[] = {"default", "f32", "f16", "bf16", "fp8_e4m3", "q8_0", "q4_0"};
    return type < sizeof names / sizeof *names ? names[type] : "unknown";
}

bool rkvi_type_is_storage(rkv_type type)
{
    return type >= RKV_TYPE_F16 && type <= RKV_TYPE_Q4_0;
}

bool rkvi_type_is_tensor(rkv_type type)
{
    return type >= RKV_TYPE_F32 && type <= RKV_TYPE_BF16;
}

bool rkvi_type_is_quantised(rkv_type type)
{
    return type == RKV_TYPE_Q8_0 || type == RKV_TYPE_Q4_0;
}

uint32_t rkvi_tensor_type_bytes(rkv_type type)
{
    return type == RKV_TYPE_F32 ? 4 : 2;
}

/* A leaf of K and V fits the shared memory of the smallest GPUs (99 KB) in
 * f16 with room for stages.  Bits depend on this table: it never changes. */
uint32_t rkvi_leaf_cells(uint32_t tile_cells, uint32_t dk, uint32_t dv)
{
    uint32_t d = dk > dv ? dk : dv;
    uint32_t leaf = d <= 128 ? 256 : d <= 256 ? 128 : 64;
    return tile_cells < leaf ? tile_cells : leaf;
}

static uint32_t cell_bytes(rkv_type type, uint32_t dim)
{
    switch (type) {
    case RKV_TYPE_F16:
    case RKV_TYPE_BF16: return 2 * dim;
    case RKV_TYPE_Q4_0: return dim / 2;
    default: return dim; /* fp8, q8_0 */
    }
}

static uint32_t scale_bytes(rkv_type type, uint32_t dim)
{
    return rkvi_type_is_quantised(type) ? dim / RKVI_BLOCK * 2 : 0;
}

static rkv_status check_plane(const char *name, rkv_type type, uint32_t dim)
{
    if (!rkvi_type_is_storage(type))
        return rkvi_fail(RKV_E_UNSUPPORTED,
                         "type %u is no storage type for %s; use f16, bf16, fp8_e4m3, q8_0 or q4_0",
                         type, name);
    if (dim == 0 || dim > RKVI_HEAD_DIM_MAX || dim % 8 != 0)
        return rkvi_fail(RKV_E_ARGUMENT, "head dim %u of %s must be a multiple of 8 from 8 to %u", dim,
                         name, RKVI_HEAD_DIM_MAX);
    if (rkvi_type_is_quantised(type) && dim % RKVI_BLOCK != 0)
        return rkvi_fail(RKV_E_UNSUPPORTED,
                         "head dim %u of %s is no multiple of %u and has no %s form; use f16, bf16 or "
                         "fp8_e4m3",
                         dim, name, RKVI_BLOCK, rkvi_type_name(type));
    return RKV_OK;
}

rkv_status rkvi_geom_init(rkvi_geom *g)
{
    rkv_status s = check_plane("K", g->type_k, g->dk);
    if (s == RKV_OK)
        s = check_plane("V", g->type_v, g->dv);
    if (s != RKV_OK)
        return s;
    const uint64_t t = g->tile_cells;
    g->leaf_cells = rkvi_leaf_cells(g->tile_cells, g->dk, g->dv);
    g->k_cell_bytes = cell_bytes(g->type_k, g->dk);
    g->v_cell_bytes = cell_bytes(g->type_v, g->dv);
    g->k_scale_cell_bytes = scale_bytes(g->type_k, g->dk);
    g->v_scale_cell_bytes = scale_bytes(g->type_v, g->dv);
    g->k_off = 0;
    g->k_scale_off = g->k_off + t * g->k_cell_bytes;
    g->v_off = g->k_scale_off + t * g->k_scale_cell_bytes;
    g->v_scale_off = g->v_off + t * g->v_cell_bytes;
    g->head_bytes = g->v_scale_off + t * g->v_scale_cell_bytes;
    if (!rkvi_mul(g->head_bytes, g->n_heads, &g->bytes))
        return rkvi_fail(RKV_E_OVERFLOW, "%u KV heads of %llu bytes a tile exceed 2^62 bytes", g->n_heads,
                         (unsigned long long)g->head_bytes);
    g->bytes = rkvi_align_up(g->bytes, RKVI_PLACE_ALIGN);
    return RKV_OK;
}
