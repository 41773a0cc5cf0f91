/* SPDX-License-Identifier: MIT
 *
 * emu_launch.cpp: launches, blocks, and which thread runs next.
 */
#include "emu_core.hpp"
#include "emu_fibre.hpp"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

emu_thread *emu_self;
emu_index emu_block_index, emu_block_dim, emu_grid_dim;
uint8_t *emu_smem;
uint32_t emu_smem_bytes;

/* A barrier of some warps, or of all. */
struct barrier {
    uint32_t n_here, of;
    uint32_t waiting[EMU_WARPS]; /* lanes, by warp */
};

/* The block that runs. */
static struct {
    const void *kernel;
    emu_go go;
    const void *args;
    uint64_t n;
    emu_thread thread[EMU_WARPS * EMU_LANES];
    emu_warp warp[EMU_WARPS];
    barrier barriers[EMU_BARRIERS];
    uint32_t n_threads, n_warps, n_live;
    uint32_t ready_warps;
    uint64_t number;
} block;

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static uint64_t seed, state;
static uint64_t n_launches;

/* ---------------------------------------------------------------------- draws */

uint64_t emu_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void seed_launch(void)
{
    if (!seed) {
        const char *text = getenv("ROLLKV_EMU_SEED");
        seed = text ? strtoull(text, nullptr, 0) : 20261129;
        seed = seed ? seed : 1;
        printf("emulated kernels: sm_%u, seed %llu (ROLLKV_EMU_ARCH, ROLLKV_EMU_SEED)\n", emu_arch(),
               (unsigned long long)seed);
    }
    state = (seed + n_launches++) * 0x9E3779B97F4A7C15ull | 1;
    for (int i = 0; i < 4; i++)
        emu_random();
}

void emu_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "emulated kernel: ");
    vfprintf(stderr, format, args);
    va_end(args);
    if (emu_self)
        fprintf(stderr, "; block %llu, thread %u,%u", (unsigned long long)block.number, emu_self->index.x,
                emu_self->index.y);
    fprintf(stderr, "; seed %llu, launch %llu\n", (unsigned long long)seed, (unsigned long long)n_launches);
    abort();
}

/* ------------------------------------------------------------------ scheduling */

static void wake(emu_warp *w, uint32_t lanes)
{
    w->ready |= lanes;
    if (w->ready)
        block.ready_warps |= 1u << w->number;
}

static void stop(emu_warp *w, uint32_t lanes)
{
    w->ready &= ~lanes;
    if (!w->ready)
        block.ready_warps &= ~(1u << w->number);
}

/* A new order of lanes: an odd step goes through all of them. */
static void shuffle_lanes(emu_warp *w)
{
    const uint64_t r = emu_random();
    w->at = (uint32_t)r % EMU_LANES;
    w->step = (uint32_t)(r >> 8) % EMU_LANES | 1;
}

static void deadlock(void)
{
    fflush(stdout);
    fprintf(stderr, "emulated kernel: no thread can go on\n");
    for (uint32_t i = 0; i < block.n_warps; i++) {
        const emu_warp *w = &block.warp[i];
        fprintf(stderr, "  warp %u: %u lanes at instruction %u, lanes %#x wait for an mbarrier", i, w->n_here, w->op,
                w->on_bar);
        for (uint32_t b = 0; b < EMU_BARRIERS; b++)
            if (block.barriers[b].waiting[i])
                fprintf(stderr, ", %#x at barrier %u (%u of %u are there)", block.barriers[b].waiting[i], b,
                        block.barriers[b].n_here, block.barriers[b].of);
        fprintf(stderr, "\n");
    }
    emu_fail("deadlock");
}

static emu_warp *some_warp(void)
{
    const uint32_t r = (uint32_t)emu_random() % EMU_WARPS, all = block.ready_warps;
    const uint32_t turned = r ? all >> r | all << (32 - r) : all;
    return &block.warp[((uint32_t)__builtin_ctz(turned) + r) % EMU_WARPS];
}

static void switch_to(emu_thread *t)
{
    emu_thread *from = emu_self;
    if (from == t)
        return;
    emu_self = t;
    emu_fibre_switch(from ? from->fibre : nullptr, t->fibre, false);
    emu_self = from;
}

/* The next thread that can run, of this warp if there is one. */
static emu_thread *next_thread(emu_warp *w)
{
    while (!w->ready) {
        if (block.ready_warps)
            w = some_warp();
        else if (!emu_copy_any(block.thread, block.n_threads))
            deadlock();
    }
    do
        w->at = (w->at + w->step) % EMU_LANES;
    while (!(w->ready >> w->at & 1));
    return &w->thread[w->at];
}

/* The thread can't go on; returns when it can. */
static void go_on(void)
{
    switch_to(next_thread(emu_self->warp));
}

/* Now and then another warp's turn comes. */
static void maybe_another(void)
{
    if (emu_random() % 8 == 0)
        switch_to(next_thread(some_warp()));
}

/* -------------------------------------------------------------------- meetings */

void emu_meet(emu_op op, void *slot)
{
    emu_warp *w = emu_self->warp;
    if (w->n_here == 0)
        w->op = op;
    else if (w->op != (uint32_t)op)
        emu_fail("lanes of a warp at different instructions, %u and %u", w->op, op);
    w->slot[emu_self->lane] = slot;
    if (++w->n_here < w->n_lanes) {
        stop(w, 1u << emu_self->lane);
        go_on();
        return;
    }
    if (w->n_lanes != EMU_LANES && op != EMU_SYNC)
        emu_fail("an instruction of a whole warp in a part of one");
    w->n_here = 0;
    emu_warp_do(w);
    wake(w, w->n_lanes == EMU_LANES ? 0xffffffffu : (1u << w->n_lanes) - 1);
    shuffle_lanes(w);
    maybe_another();
}

void emu_barrier(uint32_t id, uint32_t threads, bool waits)
{
    if (id >= EMU_BARRIERS)
        emu_fail("barrier %u", id);
    barrier *b = &block.barriers[id];
    if (b->n_here == 0)
        b->of = threads;
    else if (b->of != threads)
        emu_fail("barrier %u of %u threads, then of %u", id, b->of, threads);
    emu_warp *w = emu_self->warp;
    const bool last = ++b->n_here == b->of;
    if (!last && waits) {
        b->waiting[w->number] |= 1u << emu_self->lane;
        stop(w, 1u << emu_self->lane);
        go_on();
    } else if (last) {
        for (uint32_t i = 0; i < block.n_warps; i++) {
            wake(&block.warp[i], b->waiting[i]);
            b->waiting[i] = 0;
        }
        b->n_here = 0;
        maybe_another();
    }
}

void emu_wait_bar(void)
{
    emu_warp *w = emu_self->warp;
    if (emu_random() % 4 == 0 && emu_copy_any(block.thread, block.n_threads))
        return;
    w->on_bar |= 1u << emu_self->lane;
    stop(w, 1u << emu_self->lane);
    go_on();
}

/* ------------------------------------------------------------------- mbarriers */

/* In the 64 bits: arrivals still to come, arrivals of a phase, the phase's number,
 * and a mark that it has been made. */
enum { TO_COME = 0, OF_PHASE = 16, PHASE = 32, MARK = 48, MADE = 0xbaab };

static uint64_t *bar_at(uint32_t address)
{
    uint64_t *bar = (uint64_t *)emu_smem_at(address, 8);
    if (*bar >> MARK != MADE)
        emu_fail("an mbarrier that was not initialised");
    return bar;
}

void emu_bar_arrive(uint64_t *bar)
{
    const uint64_t of = *bar >> OF_PHASE & 0xffff;
    if ((*bar & 0xffff) == 0)
        emu_fail("an mbarrier with more arrivals than it was made for");
    if ((--*bar & 0xffff) != 0)
        return;
    const uint64_t phase = ((*bar >> PHASE) + 1) & 0xffff;
    *bar = (uint64_t)MADE << MARK | phase << PHASE | of << OF_PHASE | of;
    for (uint32_t i = 0; i < block.n_warps; i++) {
        wake(&block.warp[i], block.warp[i].on_bar);
        block.warp[i].on_bar = 0;
    }
}

void rkvk_bar_init(uint32_t address, uint32_t arrivals)
{
    *(uint64_t *)emu_smem_at(address, 8) = (uint64_t)MADE << MARK | (uint64_t)arrivals << OF_PHASE | arrivals;
}

void rkvk_bar_arrive(uint32_t address)
{
    emu_bar_arrive(bar_at(address));
}

void rkvk_bar_wait(uint32_t address, uint32_t parity)
{
    const uint64_t *bar = bar_at(address);
    while ((*bar >> PHASE & 1) == parity)
        emu_wait_bar();
}

/* ---------------------------------------------------------------------- blocks */

static void run_thread(void)
{
    block.go(block.kernel, block.args, block.n);
    emu_thread *t = emu_self;
    emu_warp *w = t->warp;
    if (w->n_here)
        emu_fail("a thread ends while others of its warp wait for it");
    stop(w, 1u << t->lane);
    block.n_live--;
    emu_thread *next = block.n_live ? next_thread(w) : nullptr;
    emu_self = next;
    emu_fibre_switch(t->fibre, next ? next->fibre : nullptr, true);
}

static void set_up_thread(uint32_t i, const emu_shape &shape)
{
    emu_thread *t = &block.thread[i];
    const uint32_t x = shape.block.x, y = shape.block.y;
    t->index = {i % x, i / x % y, i / x / y};
    t->lane = i % EMU_LANES;
    t->warp = &block.warp[i / EMU_LANES];
    t->fibre = emu_fibre_at(i);
    t->waited = false;
    emu_copy_reset(t);
    emu_fibre_reset(t->fibre, run_thread);
}

static void set_up_warp(uint32_t i)
{
    emu_warp *w = &block.warp[i];
    const uint32_t left = block.n_threads - i * EMU_LANES;
    w->thread = &block.thread[i * EMU_LANES];
    w->number = i;
    w->n_lanes = left < EMU_LANES ? left : (uint32_t)EMU_LANES;
    w->n_here = w->on_bar = w->ready = 0;
    emu_wgmma_reset(w);
    wake(w, w->n_lanes == EMU_LANES ? 0xffffffffu : (1u << w->n_lanes) - 1);
    shuffle_lanes(w);
}

/* Static shared memory of all kernels (__shared__); absent where no kernel has some. */
extern "C" uint8_t __start_emu_shared[] __attribute__((weak)), __stop_emu_shared[] __attribute__((weak));

static void make_noise(uint8_t *p, size_t bytes)
{
    if (emu_random() % 2) {
        memset(p, 0xff, bytes); /* NaNs of every type */
        return;
    }
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        const uint64_t r = emu_random();
        memcpy(p + i, &r, 8);
    }
}

static void run_block(uint64_t number, const emu_shape &shape)
{
    block.number = number;
    emu_block_index = {(unsigned)(number % shape.grid.x), (unsigned)(number / shape.grid.x % shape.grid.y),
                       (unsigned)(number / shape.grid.x / shape.grid.y)};
    block.ready_warps = 0;
    memset(block.barriers, 0, sizeof block.barriers);
    make_noise(emu_smem, shape.smem_bytes);
    if (__start_emu_shared)
        make_noise(__start_emu_shared, (size_t)(__stop_emu_shared - __start_emu_shared));
    for (uint32_t i = 0; i < block.n_threads; i++)
        set_up_thread(i, shape);
    for (uint32_t i = 0; i < block.n_warps; i++)
        set_up_warp(i);
    block.n_live = block.n_threads;
    emu_self = nullptr;
    switch_to(next_thread(some_warp()));
    emu_self = nullptr;
    for (uint32_t i = 0; i < block.n_threads; i++) {
        emu_fibre_check(block.thread[i].fibre);
        if (block.thread[i].first != block.thread[i].end)
            emu_fail("thread %u of block %llu left copies that nobody waits for", i, (unsigned long long)number);
        if (shape.is_early && !block.thread[i].waited)
            emu_fail("thread %u of block %llu did not wait for the kernel before", i, (unsigned long long)number);
    }
}

/* Blocks in a drawn order; of very many, from a drawn one on. */
static void run_blocks(const emu_shape &shape)
{
    const uint64_t n = (uint64_t)shape.grid.x * shape.grid.y * shape.grid.z;
    if (n > 1u << 20) {
        const uint64_t from = emu_random() % n;
        for (uint64_t i = 0; i < n; i++)
            run_block((from + i) % n, shape);
        return;
    }
    uint32_t *order = (uint32_t *)malloc(n * sizeof *order);
    if (!order)
        emu_fail("no memory for %llu blocks", (unsigned long long)n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = (uint32_t)(emu_random() % (i + 1));
        order[i] = order[k];
        order[k] = i;
    }
    for (uint64_t i = 0; i < n; i++)
        run_block(order[i], shape);
    free(order);
}

void emu_launch(const void *kernel, emu_go go, const emu_shape &shape, void *const *params)
{
    pthread_mutex_lock(&one_at_a_time);
    seed_launch();
    block.kernel = kernel;
    block.go = go;
    block.args = params[0];
    memcpy(&block.n, params[1], sizeof block.n);
    block.n_threads = shape.block.x * shape.block.y * shape.block.z;
    block.n_warps = (block.n_threads + EMU_LANES - 1) / EMU_LANES;
    emu_block_dim = shape.block;
    emu_grid_dim = shape.grid;
    emu_fibres(block.n_threads);
    /* Its own allocation, so that what lies beyond is found by ASan. */
    void *smem = nullptr;
    if (posix_memalign(&smem, 1024, shape.smem_bytes ? shape.smem_bytes : 1) != 0)
        emu_fail("no shared memory");
    emu_smem = (uint8_t *)smem;
    emu_smem_bytes = (uint32_t)shape.smem_bytes;
    run_blocks(shape);
    free(smem);
    pthread_mutex_unlock(&one_at_a_time);
}
