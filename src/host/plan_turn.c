/* SPDX-License-Identifier: MIT
 *
 * plan_turn.c: which rows of q are turned back, and by which angles.
 *
 * A turn is an entry's: its q of turn t lies in the t-th part of the room for
 * turned q, in the entry's rows.  A step has a pair for each entry and turn; the
 * angles of a pair stay in the plan from step to step, as sines in f64 cost more
 * than the rest of a step's planning.
 */
#include "plan_work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TWO_PI 6.283185307179586476925286766559

static uint64_t pair_floats(const rkvi_config *cfg)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < cfg->n_ropes; i++)
        n += 2 * (uint64_t)cfg->ropes[i].n;
    return n;
}

static uint32_t max_pairs(const rkvi_config *cfg)
{
    return cfg->max_turns * (cfg->active_sequences < cfg->max_rows ? cfg->active_sequences : cfg->max_rows);
}

bool rkvi_plan_turns_init(rkvi_plan_turns *t, const rkvi_config *cfg)
{
    const uint32_t pairs = max_pairs(cfg), entries = cfg->n_sequences;
    t->n = calloc(entries, sizeof *t->n);
    t->turns = calloc((size_t)entries * cfg->max_turns + 1, sizeof *t->turns);
    t->kept_turn = calloc(pairs + 1u, sizeof *t->kept_turn);
    t->kept_angles = calloc(pairs * pair_floats(cfg) + 1, sizeof(float));
    t->angles_off = calloc(cfg->n_ropes + 1u, sizeof *t->angles_off);
    bool ok = t->n && t->turns && t->kept_turn && t->kept_angles && t->angles_off;
    for (uint32_t c = 0; c < cfg->n_leaf_classes; c++) {
        t->leaf_turn[c] = calloc(cfg->max_turns ? cfg->max_spans : 1, 1);
        ok = ok && t->leaf_turn[c];
    }
    return ok;
}

void rkvi_plan_turns_free(rkvi_plan_turns *t)
{
    free(t->n);
    free(t->turns);
    free(t->kept_turn);
    free(t->kept_angles);
    free(t->angles_off);
    for (uint32_t c = 0; c < RKVI_LEAF_CLASSES_MAX; c++)
        free(t->leaf_turn[c]);
}

void rkvi_plan_turns_of(rkvi_plan *p, const rkvi_plan_view *v)
{
    rkvi_plan_turns *t = &p->turns;
    p->n_rounds = 1;
    p->n_turned_rows = 0;
    t->n_pairs = 0;
    if (v->cfg->turned_floats == 0)
        return; /* no site turns its q */
    for (uint32_t e = 0; e < v->batch->n_entries; e++) {
        const rkvi_batch_entry *be = &v->batch->entries[e];
        const rkvi_seq *s = &v->seqs[be->sequence];
        t->n[e] = rkvi_seq_turns(s, v->cfg->max_turns, t->turns + (size_t)e * v->cfg->max_turns);
        if (t->n[e] == 0)
            continue;
        const uint32_t stretches = rkvi_seq_n_stretches(s);
        p->n_rounds = stretches > p->n_rounds ? stretches : p->n_rounds;
        p->n_turned_rows += (uint64_t)t->n[e] * be->n_rows;
        t->n_pairs += t->n[e];
    }
}

/* cos and sin of -turn * frequency.  The product of a whole number below 2^29
 * and an f32 is exact in f64, and so is the remainder. */
static void angles_of(const rkvi_config *cfg, int64_t turn, float *out)
{
    for (uint32_t i = 0; i < cfg->n_ropes; i++)
        for (uint32_t k = 0; k < cfg->ropes[i].n; k++) {
            const double angle = remainder(-(double)turn * (double)cfg->ropes[i].frequencies[k], TWO_PI);
            *out++ = (float)cos(angle);
            *out++ = (float)sin(angle);
        }
}

/* The pair's angles, from an earlier step where it had the same turn. */
static const float *kept_angles(rkvi_plan_turns *t, const rkvi_config *cfg, uint32_t pair, int64_t turn)
{
    float *kept = t->kept_angles + pair * pair_floats(cfg);
    if (t->kept_turn[pair] != turn)
        angles_of(cfg, turn, kept);
    t->kept_turn[pair] = turn;
    return kept;
}

static bool write_angles(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m)
{
    rkvi_plan_turns *t = &p->turns;
    const rkvi_config *cfg = v->cfg;
    for (uint32_t i = 0; i < cfg->n_ropes; i++)
        if (!rkvi_mirror_room(p, m, t->n_pairs, 2 * sizeof(float) * cfg->ropes[i].n, &t->angles_off[i]))
            return false;
    uint32_t pair = 0;
    for (uint32_t e = 0; e < v->batch->n_entries; e++)
        for (uint32_t k = 0; k < t->n[e]; k++, pair++) {
            const float *from = kept_angles(t, cfg, pair, t->turns[(size_t)e * cfg->max_turns + k]);
            for (uint32_t i = 0; i < cfg->n_ropes; i++) {
                const uint64_t bytes = 2 * sizeof(float) * cfg->ropes[i].n;
                memcpy(m->host + t->angles_off[i] + pair * bytes, from, bytes);
                from += 2 * cfg->ropes[i].n;
            }
        }
    return true;
}

bool rkvi_plan_write_turned(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m)
{
    const rkvi_plan_turns *t = &p->turns;
    uint32_t pair = 0;
    if (p->n_turned_rows == 0)
        return true;
    if (!rkvi_mirror_room(p, m, p->n_turned_rows, sizeof(rkvi_turned_row), &p->turned_off) || !write_angles(p, v, m))
        return false;
    rkvi_turned_row *out = (rkvi_turned_row *)(m->host + p->turned_off);
    for (uint32_t e = 0; e < v->batch->n_entries; e++)
        for (uint32_t k = 0; k < t->n[e]; k++, pair++)
            for (uint32_t r = 0; r < v->batch->entries[e].n_rows; r++)
                *out++ = (rkvi_turned_row){.row = v->batch->entries[e].row0 + r, .turn = k, .angles = pair};
    return true;
}
