/* plan_work.h: what the files of plan share: scratch of one planning. */
#ifndef RKVI_PLAN_WORK_H
#define RKVI_PLAN_WORK_H

#include "plan.h"

/* A partial of all rows of a stem, waiting to be merged: a node. */
typedef struct rkvi_live_node {
    uint64_t leaf0;
    uint32_t place; /* of the stem's */
} rkvi_live_node;

/* Where a stem's partials lie: `room` places of n_rows slots each.
 *
 *   place:  never used -> live -> (read by a merge) free -> live -> ...
 */
typedef struct rkvi_stem_nodes {
    uint64_t slot0;       /* of place 0 */
    uint64_t room;
    uint64_t n_items;     /* of the site: no more than room, or merges make room between launches */
    uint64_t tail_end;    /* leaves from here on come with launch 0, if any do */
    uint64_t n_live, n_free, n_used;
    rkvi_live_node *live; /* [room] */
    uint32_t *free;       /* [room] */
} rkvi_stem_nodes;

/* The CPU's part of a step, from site to site. */
typedef struct rkvi_cpu_cut {
    double part;       /* of the sites' shares: what lies beyond the free bytes; 0: no share in this step */
    double owed_bytes; /* that sites before have left to those that follow */
} rkvi_cpu_cut;

typedef struct rkvi_plan_work {
    rkvi_share share;
    uint32_t n_masks;
    uint32_t *mask_of;           /* [site] sites of one mask see the same */
    rkvi_site_mask *masks;
    uint32_t *tail_base;         /* of a site's tail tile-layers */
    bool *seen;                  /* [mask * max_bases + base] */
    uint64_t *span0[RKVI_LEAF_CLASSES_MAX]; /* [entry] what its leaf 0 has or would have for an index */
    rkvi_item *items;            /* of one site, in order of stems and entries */
    uint32_t *item_launch;
    uint32_t *item_stem;         /* RKVI_NONE: of a prefill entry */
    uint32_t *sorted_stem;       /* of the items in order of launches */
    uint64_t n_items;
    bool *block_seen;            /* [row0 of a prefill block]: it has an item */
    rkvi_stem_nodes *nodes;      /* [stem] */
    rkvi_live_node *live;        /* of all stems: a partial slot each at most */
    uint32_t *free;
    uint64_t n_merges, n_nodes;  /* written for this site */
    rkvi_cpu_cut cpu;
} rkvi_plan_work;

/* Room in the mirror, 256-byte aligned, as an offset.  plan_tables checked the
 * total against the mirror's size before (config's maxima hold). */
bool rkvi_mirror_room(rkvi_plan *p, const rkvi_mirror *m, uint64_t n, uint64_t item_bytes, uint64_t *out_off);

/* plan_turn.c */
bool rkvi_plan_turns_init(rkvi_plan_turns *t, const rkvi_config *cfg);
void rkvi_plan_turns_free(rkvi_plan_turns *t);
void rkvi_plan_turns_of(rkvi_plan *p, const rkvi_plan_view *v); /* and rounds */
bool rkvi_plan_write_turned(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m);

/* plan_cpu.c */
void rkvi_plan_cpu_open(const rkvi_plan_view *v, uint64_t tail_bytes, rkvi_cpu_cut *out);
/* Of the tail tile-layers of a site, in order of bases, the first one that the CPU
 * takes; n: none. */
uint32_t rkvi_plan_cpu_first(const rkvi_config *cfg, rkvi_cpu_cut *cut, uint32_t site, const uint32_t *bases,
                             uint32_t n);
/* Decode items wanted of a launch that the CPU takes, of n_leaves. */
uint64_t rkvi_plan_cpu_items(const rkvi_plan_view *v, uint32_t site, uint64_t n_leaves);

/* plan_tree.c */
bool rkvi_plan_write_trees(rkvi_plan *p, const rkvi_plan_view *v, rkvi_mirror *m);

/* plan_site.c: the launches, items, merges and nodes of one site. */
rkv_status rkvi_plan_site_items(rkvi_plan *p, const rkvi_plan_view *v, uint32_t site, rkvi_mirror *m);

#endif
