/* SPDX-License-Identifier: MIT
 *
 * batch.c: see batch.h.
 */
#include "batch.h"

#include <string.h>

void rkvi_batch_copy(rkvi_batch *to, const rkvi_batch *from)
{
    to->n_entries = from->n_entries;
    to->n_rows = from->n_rows;
    to->most_rows = from->most_rows;
    memcpy(to->entries, from->entries, from->n_entries * sizeof *to->entries);
    memcpy(to->rows, from->rows, from->n_rows * sizeof *to->rows);
    for (uint32_t e = 0; e < from->n_entries; e++) {
        const rkvi_batch_entry *be = &from->entries[e];
        for (uint32_t i = be->row0; be->is_tree && i < be->row0 + be->n_rows; i++) {
            to->stored[i] = from->stored[i];
            to->masks[i] = from->masks[i];
        }
    }
}

uint64_t rkvi_batch_print(const rkvi_batch *b)
{
    uint64_t x = 0xcbf29ce484222325u;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        x = (x ^ b->entries[e].sequence) * 0x100000001b3u;
        x = (x ^ (b->entries[e].n_new != 0)) * 0x100000001b3u;
    }
    return x;
}
