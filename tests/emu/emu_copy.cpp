/* SPDX-License-Identifier: MIT
 *
 * emu_copy.cpp: asynchronous copies into shared memory.
 *
 * A group's copies are made at once, or when they are waited for: which of the two
 * is drawn for each group of a thread.
 */
#include "emu_core.hpp"

#include <stdlib.h>
#include <string.h>

void emu_copy_reset(emu_thread *t)
{
    t->first = t->end = t->n_groups = 0;
    t->is_late = emu_random() % 2;
}

static void push(emu_thread *t, emu_copy c)
{
    if (t->end == t->room) {
        t->room = t->room ? 2 * t->room : 64;
        t->queue = (emu_copy *)realloc(t->queue, t->room * sizeof *t->queue);
        if (!t->queue)
            emu_fail("no memory for copies");
    }
    c.group = t->n_groups;
    t->queue[t->end++] = c;
}

static void carry_out(const emu_copy &c)
{
    if (c.bar)
        emu_bar_arrive(c.bar);
    else if (c.from)
        memcpy(c.to, c.from, 16);
    else
        memset(c.to, 0, 16);
}

static void pop(emu_thread *t)
{
    const emu_copy c = t->queue[t->first++];
    if (t->first == t->end)
        t->first = t->end = 0;
    carry_out(c);
}

void emu_copy_16(uint32_t to, const void *from, bool valid)
{
    emu_thread *t = emu_self;
    if ((uintptr_t)from % 16 != 0)
        emu_fail("a copy of 16 bytes from %p: unaligned", from);
    const emu_copy c = {emu_smem_at(to, 16), valid ? from : nullptr, nullptr, 0};
    if (t->is_late)
        push(t, c);
    else
        carry_out(c);
}

void emu_copy_commit(void)
{
    emu_self->n_groups++;
    emu_self->is_late = emu_random() % 2;
}

void emu_copy_wait(uint32_t but)
{
    emu_thread *t = emu_self;
    while (t->first != t->end && t->n_groups - t->queue[t->first].group > but)
        pop(t);
}

/* Behind all copies of the thread so far, committed or not. */
void emu_copy_arrive(uint32_t bar)
{
    uint64_t *at = (uint64_t *)emu_smem_at(bar, 8);
    if (emu_self->first != emu_self->end)
        push(emu_self, {nullptr, nullptr, at, 0});
    else
        emu_bar_arrive(at);
}

bool emu_copy_any(emu_thread *threads, uint32_t n)
{
    const uint32_t from = (uint32_t)(emu_random() % n);
    for (uint32_t i = 0; i < n; i++) {
        emu_thread *t = &threads[(from + i) % n];
        if (t->first == t->end)
            continue;
        while (t->first != t->end) {
            const bool arrives = t->queue[t->first].bar;
            pop(t);
            if (arrives)
                break;
        }
        return true;
    }
    return false;
}
