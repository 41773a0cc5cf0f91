/* SPDX-License-Identifier: MIT
 *
 * cpu_job.c: see cpu_job.h. */
#include "cpu_job.h"

#define PART_CELLS 32u /* least of a part: what a thread does besides is a tenth */

/* Leaves of the least aligned block that holds all of the item's. */
static uint64_t block_leaves(const rkvi_item *item)
{
    const uint64_t differ = item->leaf1 > item->leaf0 ? item->leaf0 ^ (item->leaf1 - 1) : 0;
    return differ ? (uint64_t)2 << (63 - __builtin_clzll(differ)) : 1;
}

static uint64_t n_parts(const rkvi_cpu_job *j, const rkvi_item *item)
{
    if (j->part_leaves == 0)
        return 1;
    const uint64_t n = block_leaves(item) * j->leaf_parts >> __builtin_ctz(j->part_leaves); /* a power of two */
    return n ? n : 1;
}

static uint64_t all_parts(const rkvi_cpu_job *j, uint64_t *most)
{
    uint64_t all = 0;
    *most = 0;
    for (uint64_t i = 0; i < j->n_items; i++) {
        const uint64_t n = n_parts(j, &j->args.items[i]);
        *most = n > *most ? n : *most;
        all += n;
    }
    return all;
}

uint64_t rkvi_cpu_job_units(const rkvi_cpu_job *j)
{
    uint64_t most;
    return (j->part_leaves ? all_parts(j, &most) : j->n_items) * j->args.geom.n_heads;
}

/* Twice as many parts; false: there are as many as can be. */
static bool cut_finer(rkvi_cpu_job *j, uint64_t room)
{
    rkvi_cpu_job finer = *j;
    uint64_t most;
    if (finer.part_leaves > 1)
        finer.part_leaves /= 2;
    else
        finer.leaf_parts *= 2;
    const uint64_t slot_bytes = j->args.q_heads * ((uint64_t)j->args.geom.dv + 2) * sizeof(float);
    const uint64_t slots = (j->n_items + all_parts(&finer, &most)) * j->args.max_rows;
    const uint64_t cells = (uint64_t)j->args.geom.leaf_cells * finer.part_leaves / finer.leaf_parts;
    if (cells < PART_CELLS || most > RKVI_CPU_PARTS_MOST || slots * slot_bytes > room)
        return false;
    *j = finer;
    return true;
}

void rkvi_cpu_job_divide(rkvi_cpu_job *j, uint64_t wanted, uint64_t room)
{
    uint64_t longest = 1;
    j->leaf_parts = 1;
    j->part_leaves = 0;
    if (rkvi_cpu_job_units(j) >= wanted)
        return;
    for (uint64_t i = 0; i < j->n_items; i++) {
        const uint64_t n = block_leaves(&j->args.items[i]);
        longest = n > longest ? n : longest;
    }
    if (longest > UINT32_MAX / 2)
        return;
    j->part_leaves = (uint32_t)longest;
    while (rkvi_cpu_job_units(j) < wanted && cut_finer(j, room))
        ;
    if (j->part_leaves == longest && j->leaf_parts == 1)
        j->part_leaves = 0;
}

/* ------------------------------------------------------------------------ units */

/* One KV head of one part. */
typedef struct unit {
    const rkvi_item *item;
    uint64_t index, slot; /* of the item; where its parts' slots begin */
    uint64_t part, n_parts;
    uint32_t head;
} unit;

/* Item by item, head by head: units that lie side by side are parts of one head, so that
 * a thread which has several of them reads on, and merges what it has. */
static unit find_unit(const rkvi_cpu_job *j, uint64_t number)
{
    const uint32_t heads = j->args.geom.n_heads;
    unit u = {.n_parts = 1};
    uint64_t before = 0;
    if (j->part_leaves == 0) {
        u.index = number / heads;
        number %= heads;
    }
    for (; j->part_leaves; u.index++, before += u.n_parts, number -= u.n_parts * heads) {
        u.n_parts = n_parts(j, &j->args.items[u.index]);
        if (number < u.n_parts * heads)
            break;
    }
    u.head = (uint32_t)(number / u.n_parts);
    u.part = number % u.n_parts;
    u.item = &j->args.items[u.index];
    u.slot = (j->n_items + before) * j->args.max_rows;
    return u;
}

/* The part's leaves, or none. */
static void leaves_of(const rkvi_cpu_job *j, const unit *u, rkvi_item *out)
{
    const uint64_t block = u->item->leaf0 & ~(block_leaves(u->item) - 1);
    const uint64_t from = block + u->part * j->part_leaves / j->leaf_parts;
    const uint64_t to = from + (j->leaf_parts > 1 ? 1 : j->part_leaves);
    out->leaf0 = from > out->leaf0 ? from : out->leaf0;
    out->leaf1 = to < out->leaf1 ? to : out->leaf1;
    if (out->leaf0 > out->leaf1)
        out->leaf0 = out->leaf1;
}

/* A part of a leaf is a leaf of its own, in an entry that has no other. */
static void compute_cells(const rkvi_cpu_job *j, const unit *u, rkvi_item *item, rkvi_attend_args *args)
{
    rkvi_entry entry = args->entries[item->entry];
    rkvi_span span = {0};
    if (item->leaf0 < item->leaf1) {
        const uint32_t cells = j->args.geom.leaf_cells / j->leaf_parts;
        const uint32_t at = (uint32_t)(u->part % j->leaf_parts) * cells;
        span = args->spans[entry.span0 + item->leaf0];
        span.pos += at;
        span.first = (uint16_t)(span.first + at);
        span.count = (uint16_t)(span.count <= at ? 0 : span.count - at < cells ? span.count - at : cells);
    }
    entry.span0 = 0;
    entry.n_spans = 1;
    item->entry = 0;
    item->leaf0 = 0;
    item->leaf1 = span.count > 0;
    args->entries = &entry;
    args->spans = &span;
    j->decode(args, u->head);
}

static void compute(const rkvi_cpu_job *j, const unit *u)
{
    rkvi_item item = *u->item;
    rkvi_attend_args args = j->args;
    args.items = &item;
    item.slot = u->n_parts > 1 ? u->slot + u->part * args.max_rows : u->index * args.max_rows;
    if (u->n_parts > 1)
        leaves_of(j, u, &item);
    if (u->n_parts > 1 && j->leaf_parts > 1)
        compute_cells(j, u, &item, &args);
    else
        j->decode(&args, u->head);
}

static void merge_parts(const rkvi_cpu_job *j, const unit *u)
{
    rkvi_node nodes[RKVI_CPU_PARTS_MOST];
    const rkvi_merge_item item = {.entry = u->item->entry, .n_rows = u->item->n_rows, .n_nodes = (uint32_t)u->n_parts,
                                  .dst = u->index * j->args.max_rows};
    const rkvi_merge_args args = {.entries = j->args.entries, .items = &item, .nodes = nodes,
                                  .partials = j->args.partials, .q_heads = j->args.q_heads, .dv = j->args.geom.dv};
    const uint32_t group = j->args.q_heads / j->args.geom.n_heads;
    for (uint64_t i = 0; i < u->n_parts; i++)
        nodes[i] = (rkvi_node){.leaf0 = i, .slot = u->slot + i * j->args.max_rows};
    for (uint32_t i = 0; i < group; i++)
        j->merge(&args, (uint64_t)u->head * group + i);
}

void rkvi_cpu_job_run(const rkvi_cpu_job *j, uint64_t number, _Atomic uint32_t *over, bool is_wanted)
{
    const unit u = find_unit(j, number);
    _Atomic uint32_t *count = &over[u.index * j->args.geom.n_heads + u.head];
    if (is_wanted)
        compute(j, &u);
    if (u.n_parts == 1 || atomic_fetch_add(count, 1) + 1 < u.n_parts)
        return;
    atomic_store(count, 0);
    if (is_wanted)
        merge_parts(j, &u);
}
