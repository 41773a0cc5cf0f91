/* plan_site.h: what the files that plan one site share.
 *
 *   plan_leaves   which leaves a stem's rows see, and with which launch each comes
 *   plan_items    leaves cut into work items, and room for their partials
 *   plan_nodes    slots of partials, merges between launches and the last one
 *   plan_site     all of it for one site, sorted by launch, in the mirror
 */
#ifndef RKVI_PLAN_SITE_H
#define RKVI_PLAN_SITE_H

#include "plan_work.h"

/* What the files of a site pass to each other. */
typedef struct rkvi_site_plan {
    rkvi_plan *p;
    const rkvi_plan_view *v;
    rkvi_plan_work *w;
    rkvi_plan_site *site;
    rkvi_plan_launch *launches;
    const rkvi_span *spans;      /* of the site's class */
    const uint64_t *span0;       /* [entry] */
    uint32_t class;
    const uint32_t *tile_launch; /* [base] */
    const uint8_t *leaf_turn;    /* [span]; NULL: the site's q is never turned */
    uint32_t n_rounds;           /* of a launch: launches[] and items count launches in rounds */
    uint64_t target;             /* decode items wanted of a launch */
    uint64_t slots_a_pair;       /* partial slots for each pair of launch and entry */
    bool in_order;               /* device leaves, else with launch 0 */
    bool decode_rounds;          /* decode leaves too come stretch by stretch */
    uint32_t most_k;             /* runs of at most 2^most_k leaves: least_room counts on it */
    uint64_t most_items;         /* until now */
    uint64_t n_padded;           /* items, with empty ones */
    uint64_t pad_unit;           /* fixed: launch 0 has this many items, or 2^i times as many */
    rkvi_merge_item *merges;     /* in the mirror */
    rkvi_node *nodes;
} rkvi_site_plan;

static inline uint32_t rkvi_leaf_turn(const rkvi_site_plan *sp, uint32_t e, uint64_t leaf)
{
    return sp->leaf_turn ? sp->leaf_turn[sp->span0[e] + leaf] : 0;
}

static inline rkvi_stem *rkvi_stem_at(const rkvi_site_plan *sp, uint32_t stem)
{
    return &sp->w->share.stems[stem];
}

static inline uint64_t rkvi_stem_leaf0(const rkvi_site_plan *sp, uint32_t stem)
{
    return rkvi_stem_at(sp, stem)->leaf0[sp->class];
}

static inline uint64_t rkvi_stem_leaf1(const rkvi_site_plan *sp, uint32_t stem)
{
    return rkvi_stem_at(sp, stem)->leaf1[sp->class];
}

static inline uint64_t rkvi_stem_n_leaves(const rkvi_site_plan *sp, uint32_t stem)
{
    return rkvi_stem_leaf1(sp, stem) - rkvi_stem_leaf0(sp, stem);
}

/* The stem's leaves are computed for these rows: none, of a prefill entry's. */
static inline bool rkvi_stem_has_rows(const rkvi_site_plan *sp, uint32_t stem)
{
    return rkvi_stem_at(sp, stem)->n_rows > 0;
}

/* Nothing comes behind the stem's leaves: no other stem, no token tree's node. */
static inline bool rkvi_stem_is_path_end(const rkvi_site_plan *sp, uint32_t stem)
{
    return rkvi_stem_at(sp, stem)->child == RKVI_NONE && sp->p->n_tree_rows == 0;
}

/* plan_leaves.c */
/* The leaves [a, z) of s[0, n) that hold a position in [lo, hi). */
void rkvi_leaves_seen(const rkvi_span *s, uint64_t n, int64_t lo, int64_t hi, uint64_t *out_a, uint64_t *out_z);
/* Launches of leaves [a, z) of an entry, into leaf_launch[span0 + leaf].  Leaves
 * on the device: launch 0, or (in_order) that of the tail leaf before them, so
 * that launches never fall along the leaves; *last is that launch. */
void rkvi_leaves_set_launches(rkvi_site_plan *sp, uint32_t e, uint64_t a, uint64_t z, bool in_order, uint32_t *last);
/* Launches along a stem go on where its parent's ended. */
void rkvi_stem_set_launches(rkvi_site_plan *sp, uint32_t stem, bool in_order);
/* The leaves [a, z) of a stem that any of its rows sees. */
void rkvi_stem_seen(const rkvi_site_plan *sp, uint32_t stem, uint64_t *out_a, uint64_t *out_z);

/* plan_items.c: false where tables or room for partials are too small. */
/* Decode leaves of each launch, those on the device with launch 0. */
void rkvi_site_count_leaves(rkvi_site_plan *sp);
/* Longest runs, which all launches together have room for. */
uint32_t rkvi_site_most_k(const rkvi_site_plan *sp);
/* Shares the slots behind the prefill states among the stems: the least for
 * each, the rest by rows. */
bool rkvi_site_share_slots(rkvi_site_plan *sp);
/* In order of stems and entries, not of launches yet. */
bool rkvi_site_all_items(rkvi_site_plan *sp);

/* plan_nodes.c: likewise. */
/* Slots for the items, in the mirror and sorted by launch; merges that make
 * room for a launch come after the launch before it. */
bool rkvi_site_give_slots(rkvi_site_plan *sp, rkvi_item *items);
/* The last merge: each decode entry's nodes, each prefill block's state. */
bool rkvi_site_final_merges(rkvi_site_plan *sp);

#endif
