/* SPDX-License-Identifier: MIT
 *
 * fake_cuda.h: a CUDA runtime without a GPU, for tests of src/cuda, whose C
 * files are compiled unchanged against the headers beside this one.
 *
 * What is enqueued becomes a graph of operations that lie in wait; edges are
 * streams' orders, events, and a captured graph's own.  They run when the host
 * waits or asks, on the calling thread, in a seeded order out of those that the
 * edges allow (some seeds run one stream far ahead, some starve one, some run
 * operations as they are enqueued), so that a missing edge shows as wrong bytes
 * under some seed.  Kernels are the host's, by the contract of ops.h.
 *
 * Device memory is most often mapped without access while no operation runs, so
 * that host code that touches it ends the program.  What
 * CUDA leaves undefined (memory given back twice or while work on it is
 * pending, a stream or an event used once destroyed, a copy beyond its memory)
 * prints a sentence and aborts.  What CUDA refuses is refused as by CUDA; where
 * its documents leave a choice, the stricter way is taken: calls that it calls
 * unsafe break other threads' global-mode captures, all that is not
 * enqueueing counts as unsafe, and cudaEventQuery's 'not ready' stays behind as
 * the last error.
 *
 * A fault (a kernel's pointer into no memory, or fake_cuda_fault_op) stays with
 * its context: every later call gives its error, nothing enqueued runs any
 * more, and cudaGetLastError does not clear it.
 *
 * Environment: FAKE_CUDA_SEED, the order; FAKE_CUDA_CALLBACKS=thread, host
 * functions run on a thread of their own, beside what other streams do.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_cuda_held {
    uint64_t device_blocks, pinned_blocks, streams, events, graphs, execs;
    uint64_t pinned_bytes;    /* registered ones too, in whole pages */
    uint64_t pageable_copies; /* enqueued so far */
    uint64_t operations;      /* run so far */
} fake_cuda_held;

/* Now.  What was given back after a fault counts as given back. */
fake_cuda_held fake_cuda_holds(void);
/* The nth operation that runs from now on faults; 0: none. */
void fake_cuda_fault_op(uint64_t nth, int error);
/* Another order of operations, from now on. */
void fake_cuda_seed(uint64_t seed);
/* Host memory that is pinned from now on counts against the process's limit of
 * locked memory (RLIMIT_MEMLOCK, the soft one, looked at in each call), and is
 * refused beyond it.  Off at first. */
void fake_cuda_obey_memlock(bool on);
/* After a fault: contexts answer again.  What they held is gone. */
void fake_cuda_heal(void);

#endif
