/* SPDX-License-Identifier: MIT
 *
 * emu_warp.cpp: instructions of a warp that move bits between its lanes.
 */
#include "emu_ptx.hpp"

static void shuffle(emu_warp *w)
{
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        emu_shuffle *s = (emu_shuffle *)w->slot[i];
        s->result = ((const emu_shuffle *)w->slot[s->from])->value;
    }
}

static void ballot(emu_warp *w)
{
    uint32_t votes = 0;
    for (uint32_t i = 0; i < EMU_LANES; i++)
        votes |= (uint32_t)((const emu_ballot *)w->slot[i])->vote << i;
    for (uint32_t i = 0; i < EMU_LANES; i++)
        ((emu_ballot *)w->slot[i])->result = votes;
}

/* Matrix k: its rows at the addresses of lanes 8k .. 8k + 7. */
static void ldmatrix(emu_warp *w)
{
    const emu_ldmatrix *lanes[EMU_LANES];
    for (uint32_t i = 0; i < EMU_LANES; i++)
        lanes[i] = (const emu_ldmatrix *)w->slot[i];
    const uint32_t n = lanes[0]->n;
    for (uint32_t k = 0; k < n; k++) {
        uint16_t m[8][8];
        for (uint32_t row = 0; row < 8; row++)
            memcpy(m[row], emu_smem_at(lanes[k * 8 + row]->address, 16), 16);
        for (uint32_t i = 0; i < EMU_LANES; i++) {
            const uint32_t g = i / 4, t = i % 4;
            if (lanes[i]->n != n || lanes[i]->trans != lanes[0]->trans)
                emu_fail("lanes of a warp at different ldmatrix");
            lanes[i]->r[k] = lanes[i]->trans ? m[2 * t][g] | (uint32_t)m[2 * t + 1][g] << 16
                                             : m[g][2 * t] | (uint32_t)m[g][2 * t + 1] << 16;
        }
    }
}

static void movmatrix(emu_warp *w)
{
    uint16_t m[8][8];
    for (uint32_t i = 0; i < EMU_LANES; i++)
        memcpy(&m[i / 4][i % 4 * 2], w->slot[i], 4);
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        const uint32_t g = i / 4, t = i % 4;
        *(uint32_t *)w->slot[i] = m[2 * t][g] | (uint32_t)m[2 * t + 1][g] << 16;
    }
}

void emu_warp_do(emu_warp *w)
{
    switch (w->op) {
    case EMU_SYNC: break;
    case EMU_SHUFFLE: shuffle(w); break;
    case EMU_BALLOT: ballot(w); break;
    case EMU_LDMATRIX: ldmatrix(w); break;
    case EMU_MOVMATRIX: movmatrix(w); break;
    default: emu_tensor_do(w);
    }
}
