/* SPDX-License-Identifier: MIT
 *
 * emu_core.hpp: CUDA kernels on a CPU, for tests: the machine that runs them.
 *
 * The kernels' own sources are compiled by the host's C++ compiler behind
 * emu_cuda.hpp (the language) and emu_ptx.hpp (the instructions).  A thread of a
 * block is a fibre: it runs until it meets others, in this order of its own:
 *
 *   launch   blocks one after another, in a drawn order
 *   block    warps by turns, drawn each time that one can't go on, and now and then
 *   warp     lanes in an order drawn anew after each meeting
 *
 * Meetings: instructions of a whole warp (shuffles, votes, matrices), barriers of a
 * block or of some warps, mbarriers.  What one thread writes before a meeting that it
 * forgot, another one so may or may not see, as the draw falls.  What is copied
 * asynchronously arrives at once or as late as it may, by draw.  Shared memory begins
 * as NaNs or as noise.  The number of multiprocessors is drawn each time that it is
 * asked for.  The draws follow from a seed (ROLLKV_EMU_SEED), which is
 * printed; the same seed is the same run.
 *
 * What is wrong for certain ends the program with a sentence: lanes of a warp at
 * different instructions, a deadlock, addresses out of shared memory or unaligned,
 * a launch that its device would refuse.
 */
#ifndef EMU_CORE_HPP
#define EMU_CORE_HPP

#include <stddef.h>
#include <stdint.h>

enum { EMU_LANES = 32, EMU_WARPS = 32, EMU_BARRIERS = 16 };

/* What the lanes of a warp meet for. */
enum emu_op {
    EMU_SYNC,
    EMU_SHUFFLE,
    EMU_BALLOT,
    EMU_LDMATRIX,
    EMU_MOVMATRIX,
    EMU_MMA,
    EMU_WGMMA,
    EMU_WGMMA_COMMIT,
    EMU_WGMMA_WAIT,
};

struct emu_index {
    unsigned x, y, z;
};

/* A copy into shared memory under way, or an arrival that waits for those before it. */
struct emu_copy {
    uint8_t *to;
    const void *from; /* null: zeros */
    uint64_t *bar;    /* not null: an arrival */
    uint32_t group;
};

struct emu_warp;
struct emu_fibre;

struct emu_thread {
    emu_index index;
    uint32_t lane;
    emu_warp *warp;
    emu_fibre *fibre;
    /* cp.async: queue[first ..] wait; groups are counted. */
    emu_copy *queue;
    uint32_t first, end, room;
    uint32_t n_groups; /* committed */
    bool is_late;      /* of the group being filled */
    bool waited;       /* for the kernel before (rkvk_wait_before) */
};

struct emu_wgmma_queue;

struct emu_warp {
    emu_thread *thread; /* of lane 0 */
    void *slot[EMU_LANES]; /* each lane's operands of the meeting */
    uint32_t op, n_here, n_lanes;
    uint32_t ready;     /* lanes that can run */
    uint32_t on_bar;    /* lanes that wait for an mbarrier's phase */
    uint32_t at, step;  /* the order of lanes */
    uint32_t number;
    emu_wgmma_queue *wgmma;
};

extern emu_thread *emu_self;
extern emu_index emu_block_index, emu_block_dim, emu_grid_dim;
extern uint8_t *emu_smem;
extern uint32_t emu_smem_bytes;

/* A sentence, the seed, and the end. */
[[noreturn]] void emu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t emu_random(void);

/* ------------------------------------------------------------------ meetings */

/* The warp's lanes meet; the last one to come carries out `op` on all slots. */
void emu_meet(emu_op op, void *slot);

/* `threads` come to barrier `id`; those that don't wait go on. */
void emu_barrier(uint32_t id, uint32_t threads, bool waits);

/* The thread can't go on until someone completes a phase of an mbarrier. */
void emu_wait_bar(void);
/* An arrival; wakes those who wait. */
void emu_bar_arrive(uint64_t *bar);

/* What a meeting does (emu_warp.cpp, emu_tensor.cpp). */
void emu_warp_do(emu_warp *w);
void emu_tensor_do(emu_warp *w);

/* An address of shared memory, as kernels have it in 32 bits. */
static inline uint32_t emu_smem_address(const void *p)
{
    const uint64_t at = (uint64_t)((const uint8_t *)p - emu_smem);
    if (at >= emu_smem_bytes)
        emu_fail("an address that is not in the block's shared memory");
    return (uint32_t)at;
}

static inline uint8_t *emu_smem_at(uint32_t address, uint32_t bytes)
{
    if (address > emu_smem_bytes || bytes > emu_smem_bytes - address || address % bytes != 0)
        emu_fail("%u bytes at %u of shared memory, which has %u", bytes, address, emu_smem_bytes);
    return emu_smem + address;
}

/* --------------------------------------------------------------- async copies */

void emu_copy_16(uint32_t to, const void *from, bool valid);
void emu_copy_commit(void);
void emu_copy_wait(uint32_t but);
void emu_copy_arrive(uint32_t bar);
/* Something under way arrives, of some thread; false: there is nothing. */
bool emu_copy_any(emu_thread *threads, uint32_t n);
void emu_copy_reset(emu_thread *t);
/* Of all wgmma under way. */
void emu_wgmma_reset(emu_warp *w);

/* ------------------------------------------------------------------- launches */

typedef void (*emu_go)(const void *kernel, const void *args, uint64_t n);

/* A kernel's entry becomes known, with what calls it. */
void emu_register(const void *kernel, emu_go go);

struct emu_shape {
    emu_index grid, block;
    size_t smem_bytes;
    bool is_early; /* each thread must wait for the kernel before */
};

/* Runs all blocks; args as cudaLaunchKernel has them: {Args *, uint64_t *}. */
void emu_launch(const void *kernel, emu_go go, const emu_shape &shape, void *const *params);

/* 80, 86, 90, ..: what the device says it is (ROLLKV_EMU_ARCH). */
uint32_t emu_arch(void);

#endif
