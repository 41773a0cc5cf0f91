/* SPDX-License-Identifier: MIT
 *
 * cpu_turn.c: see cpu_turn.h.
 */
#include "cpu_turn.h"

#include <sched.h>

static void turn_back(const rkvi_cpu_turn *t, uint32_t turn, uint64_t head0, uint64_t n_heads)
{
    for (uint64_t i = 0; i < t->n_rows; i++)
        for (uint64_t head = head0; head < head0 + n_heads && t->rotate.rows[i].turn == turn; head++)
            t->rotate_fn(&t->rotate, i * t->rotate.q_heads + head);
}

static void need(const rkvi_cpu_turn *t, uint32_t turn, uint64_t head, uint32_t n_kv_heads)
{
    const uint64_t claimed = 2 * t->ticket, turned = claimed + 1, group = t->rotate.q_heads / n_kv_heads;
    _Atomic uint64_t *state = &t->state[(uint64_t)turn * n_kv_heads + head];
    uint64_t was = atomic_load(state);
    if (was != claimed && was != turned && atomic_compare_exchange_strong(state, &was, claimed)) {
        turn_back(t, turn, head * group, group);
        atomic_store(state, turned);
    }
    while (atomic_load(state) != turned)
        sched_yield();
}

void rkvi_cpu_turn_decode(const void *args, uint64_t index)
{
    const rkvi_attend_args *given = args;
    const rkvi_cpu_turn *t = (const rkvi_cpu_turn *)(const void *)given->turned;
    const uint32_t turn = given->items->flags >> RKVI_ITEM_TURN_SHIFT;
    rkvi_attend_args a = *given;
    a.turned = t->rotate.turned;
    a.turned_stride = t->rotate.turned_stride;
    if (turn)
        need(t, turn - 1, index, a.geom.n_heads);
    t->decode(&a, index);
}
