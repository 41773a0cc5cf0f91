/* SPDX-License-Identifier: MIT
 *
 * rkvk_decode.cuh: decode's shapes, shared memory and state (attend_decode.cuh).
 */
#ifndef RKVK_DECODE_CUH
#define RKVK_DECODE_CUH

#include "rkvk_leaves.cuh"

template <rkv_type TYPE_K, rkv_type TYPE_V, int DIM_K, int DIM_V>
struct rkvk_decode_shape {
    static constexpr rkv_type TK = TYPE_K, TV = TYPE_V;
    static constexpr int DK = DIM_K, DV = DIM_V;
    static constexpr int D = rkvk_max(DK, DV);
    static constexpr int BC = D <= 128 ? 64 : D <= 256 ? 32 : 16;
    static constexpr int MT = BC / 16;           /* tiles of cells */
    static constexpr int PARTS = RKVK_WARPS / MT; /* of the dims of a score */
    static constexpr int STEPS = DK / 16;
    static constexpr int PART_STEPS = STEPS / PARTS;
    static constexpr int V_TILES = DV / 16;
    static constexpr int VT = (V_TILES + RKVK_WARPS - 1) / RKVK_WARPS; /* of a warp */
    /* Chunks of 8 columns at a time: bounded by registers (O) and shared memory. */
    static constexpr int NC_MAX = D <= 192 ? 4 : D <= 256 ? 2 : 1;

    static constexpr int K_ROW = rkvk_row_bytes(TK, DK), V_ROW = rkvk_row_bytes(TV, DV);
    static constexpr int K_PITCH = rkvk_pitch(K_ROW), V_PITCH = rkvk_pitch(V_ROW);
    static constexpr int K_SCALE = rkvk_scale_bytes(TK, DK), V_SCALE = rkvk_scale_bytes(TV, DV);
    static constexpr int V_AT = BC * K_PITCH;
    static constexpr int K_SCALE_AT = V_AT + BC * V_PITCH;
    static constexpr int V_SCALE_AT = K_SCALE_AT + BC * K_SCALE;
    static constexpr int STAGE = V_SCALE_AT + BC * V_SCALE;
    static constexpr int BLOCKS = STAGE > 24 * 1024 ? 2 : 3; /* of a multiprocessor: registers suffice */

    static_assert(DK % 16 == 0 && DV % 16 == 0 && STEPS % PARTS == 0, "head dims");
    static_assert(!rkvk_has_scales(TK) || (DK % 32 == 0 && PART_STEPS % 2 == 0), "blocks of 32");
};

/* What a device's shared memory is divided into: not a matter of bits. */
#define RKVK_STAGES_MAX 6u
#define RKVK_STACK_MIN (12 * 1024)
#define RKVK_STACK_MAX (32 * 1024)

struct rkvk_decode_room {
    uint32_t stages, stack_floats;
    uint32_t bytes; /* in all; 0: not prepared */
};

struct rkvk_decode_args {
    rkvi_attend_args a;
    rkvk_decode_room room;
};

/* Followed by the stack of pending nodes, then by the stages. */
template <typename S>
struct rkvk_decode_smem {
    alignas(16) uint2 q[S::STEPS * S::NC_MAX * 32];       /* [step][column chunk][lane] */
    alignas(16) uint2 p[S::MT * S::NC_MAX * 32];          /* [tile of cells][column chunk][lane] */
    alignas(16) float4 s[S::PARTS > 1 ? S::PARTS * S::MT * S::NC_MAX * 32 : 1]; /* [part][tile][chunk][lane] */
    float top[S::MT][S::NC_MAX * 8];                      /* maxima of a block's scores */
    float sum[S::MT][S::NC_MAX * 8];                      /* l of a leaf */
    rkvk_reach reach[S::NC_MAX * 8];                      /* of each column */
    rkvk_queue queue;
    alignas(16) uint64_t stack_leaf[64];
};

/* What all threads know of their work. */
struct rkvk_decode_work {
    const rkvi_item *item;
    rkvk_walk walk;
    uint32_t group;
    uint32_t column0, n_columns; /* of rows x group: this pass */
    int tile0, tile1;            /* of a warp's tiles of dims: this pass */
    float *stack;
    uint8_t *stages;
    uint32_t n_stages;
};

/* A thread's share of the state of a leaf.  Columns of chunk n: 8n + 2t and the
 * next one.  m and l's factor are alike in all warps; l holds the lane's cells. */
template <typename S, int NC>
struct rkvk_decode_state {
    float o[NC][S::VT][4];
    float m[NC][2], l[NC][2];
    uint32_t sees[NC][2]; /* c0 | c1 << 16 of the current leaf */
};

#endif
