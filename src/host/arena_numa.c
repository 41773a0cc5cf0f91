/* SPDX-License-Identifier: MIT
 *
 * arena_numa.c: which nodes there are, and binding to one.
 */
#include "arena_numa.h"
#include "diag.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The most that Linux can be built for; the kernel refuses shorter masks. */
enum { NODES_MOST = 1024, WORD_BITS = 8 * sizeof(unsigned long) };

typedef struct node_mask {
    unsigned long words[NODES_MOST / WORD_BITS];
} node_mask;

static bool has_node(const node_mask *m, int32_t node)
{
    return node < NODES_MOST && m->words[node / WORD_BITS] >> node % WORD_BITS & 1;
}

/* The node is preferred, not enforced: with a strict binding a full node would
 * end the process while the others have room. */
static bool prefer(int32_t node, void *base, uint64_t bytes)
{
    node_mask mask = {{0}};
    mask.words[node / WORD_BITS] = 1ul << node % WORD_BITS;
    /* + 1: mbind counts one bit less than it is told. */
    return syscall(SYS_mbind, base, (unsigned long)bytes, (unsigned long)MPOL_PREFERRED, mask.words,
                   (unsigned long)NODES_MOST + 1, 0ul) == 0;
}

int32_t rkvi_arena_numa_usable(int32_t node)
{
    node_mask allowed = {{0}};
    if (node < 0)
        return -1;
    /* Absent from kernels without NUMA, and forbidden in many containers; binding nothing shows whether
     * binding is. */
    if (syscall(SYS_get_mempolicy, NULL, allowed.words, (unsigned long)NODES_MOST, NULL,
                (unsigned long)MPOL_F_MEMS_ALLOWED) ||
        (has_node(&allowed, node) && !prefer(node, NULL, 0))) {
        rkvi_log(RKVI_LOG_INFO, "host memory is not bound to NUMA node %d: the system has no NUMA support (%s)",
                 (int)node, strerror(errno));
        return -1;
    }
    if (!has_node(&allowed, node)) {
        rkvi_log(RKVI_LOG_WARNING,
                 "host memory is not bound to NUMA node %d: there is no such node, or this process may not use it",
                 (int)node);
        return -1;
    }
    return node;
}

void rkvi_arena_numa_bind(int32_t node, void *base, uint64_t bytes)
{
    if (node >= 0 && !prefer(node, base, bytes))
        rkvi_log(RKVI_LOG_WARNING, "%llu bytes of host memory could not be bound to NUMA node %d: %s",
                 (unsigned long long)bytes, (int)node, strerror(errno));
}
