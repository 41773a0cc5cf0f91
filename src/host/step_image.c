/* SPDX-License-Identifier: MIT
 *
 * step_image.c: a step's tables at fixed places on the device, where the
 * launches of a captured step find them.  A step sends the pieces that changed
 * to its own upload room, long before it starts; start, on the caller's stream
 * and so behind the former readers, has a kernel put them into place. */
#include "step_types.h"

#include <stdlib.h>
#include <string.h>

#define PIECE RKVI_PIECE_BYTES
#define RUN_PIECES 16u /* of one rkvi_patch at most: a block's work */

rkv_status rkvi_step_image_init(rkv_cache *h)
{
    const uint64_t bytes = h->cfg.table_bytes, n = bytes / PIECE;
    rkvi_step_image *m = &h->image;
    m->host = calloc(1, bytes);
    m->spare = calloc(1, bytes);
    m->state = calloc(n, sizeof *m->state);
    m->changed = calloc(n, sizeof *m->changed);
    m->runs = calloc(n, sizeof *m->runs);
    if (m->host && m->spare && m->state && m->changed && m->runs)
        return RKV_OK;
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for images of %llu bytes of tables", (unsigned long long)bytes);
}

void rkvi_step_image_free(rkv_cache *h)
{
    rkvi_step_image *m = &h->image;
    free(m->host);
    free(m->spare);
    free(m->state);
    free(m->changed);
    free(m->runs);
}

static void piece_changed(rkvi_step_image *m, uint64_t piece)
{
    if (m->state[piece] & RKVI_PIECE_CHANGED)
        return;
    m->state[piece] = RKVI_PIECE_CHANGED; /* and unknown until it is sent */
    m->changed[m->n_changed++] = (uint32_t)piece;
}

/* Writes the changed pieces into the mirror, neighbours as one run. */
static void write_patch(rkv_cache *h)
{
    rkvi_step_image *m = &h->image;
    unsigned char *out = h->now->mirror.host;
    uint64_t at = 0;
    m->n_runs = 0;
    for (uint32_t i = 0, z; i < m->n_changed; i = z) {
        for (z = i + 1; z < m->n_changed && z < i + RUN_PIECES && m->changed[z] == m->changed[z - 1] + 1;)
            z++;
        m->runs[m->n_runs++] = (rkvi_patch){
            .to = (uint64_t)m->changed[i] * PIECE, .from = at, .bytes = (uint64_t)(z - i) * PIECE};
        at += (uint64_t)(z - i) * PIECE;
    }
    m->data_off = rkvi_align_up(m->n_runs * sizeof *m->runs, PIECE);
    m->upload_bytes = m->data_off + at;
    memcpy(out, m->runs, m->n_runs * sizeof *m->runs);
    for (uint32_t i = 0; i < m->n_runs; i++)
        memcpy(out + m->data_off + m->runs[i].from, m->host + m->runs[i].to, m->runs[i].bytes);
}

void rkvi_step_image_begin(rkv_cache *h)
{
    rkvi_step_image *m = &h->image;
    for (uint32_t i = 0; i < m->n_changed; i++) /* of a step that did not get as far as its start */
        m->state[m->changed[i]] &= (unsigned char)~RKVI_PIECE_CHANGED;
    m->n_changed = 0;
}

void rkvi_step_image_touch(rkv_cache *h, uint64_t off, uint64_t bytes)
{
    for (uint64_t i = off / PIECE; bytes && i <= (off + bytes - 1) / PIECE; i++)
        piece_changed(&h->image, i);
}

void rkvi_step_image_end(rkv_cache *h)
{
    write_patch(h);
}

void rkvi_step_image_update(rkv_cache *h)
{
    rkvi_step_image *m = &h->image;
    const unsigned char *next = m->spare;
    const uint64_t n = rkvi_div_up(h->plan.table_bytes, PIECE);
    rkvi_step_image_begin(h);
    for (uint64_t i = 0; i < n; i++)
        if (!(m->state[i] & RKVI_PIECE_KNOWN) || memcmp(m->host + i * PIECE, next + i * PIECE, PIECE) != 0)
            piece_changed(m, i);
    for (uint32_t i = 0; i < m->n_changed; i++)
        memcpy(m->host + (uint64_t)m->changed[i] * PIECE, next + (uint64_t)m->changed[i] * PIECE, PIECE);
    write_patch(h);
}

static void patch_ranges(rkv_cache *h, const rkvi_step_image *m)
{
    rkvi_launch_add_range(h, (void *)(uintptr_t)h->now->mirror.device_addr, m->upload_bytes, RKVI_READ);
    for (uint32_t i = 0; i < m->n_runs; i++)
        rkvi_launch_add_range(h, (unsigned char *)m->device + m->runs[i].to, m->runs[i].bytes, RKVI_WRITE);
}

rkv_status rkvi_step_image_patch(rkv_cache *h, void *stream)
{
    rkvi_step_image *m = &h->image;
    const unsigned char *from = (const unsigned char *)(uintptr_t)h->now->mirror.device_addr;
    const rkvi_patch_args args = {
        .dst = m->device, .src = from + m->data_off, .patches = (const rkvi_patch *)(const void *)from};
    rkvi_launch l = {.op = RKVI_OP_PATCH, .args_bytes = sizeof args, .args = &args, .grid = m->n_runs};
    patch_ranges(h, m);
    h->stats.extra_launches++;
    const rkv_status s = rkvi_launch_enqueue(h, &l, stream);
    if (s != RKV_OK)
        return s;
    for (uint32_t i = 0; i < m->n_changed; i++)
        m->state[m->changed[i]] = RKVI_PIECE_KNOWN;
    m->n_changed = 0;
    return RKV_OK;
}
