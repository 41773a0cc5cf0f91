/* profile_mass.h: attention mass by distance, from the partials of decode
 * items.  Pure. */
#ifndef RKVI_PROFILE_MASS_H
#define RKVI_PROFILE_MASS_H

#include "config.h"
#include "ops.h"
#include "rollkv/profile.h"

/* Mass by bit width of the distance: bucket b holds [2^(b-1), 2^b). */
typedef struct rkvi_mass {
    uint64_t n_rows;
    double recent[RKV_PROFILE_EDGES], first[RKV_PROFILE_EDGES];
} rkvi_mass;

/* A decode item and where its m and l lie in sums[]: of row r first m of all
 * query heads, then l. */
typedef struct rkvi_mass_run {
    rkvi_item item;
    uint64_t sums0;
} rkvi_mass_run;

typedef struct rkvi_profile {
    rkvi_mass *mass; /* [layer * most_heads + KV head] */
    uint32_t n_layers, most_heads;
    /* the site that is running */
    rkvi_mass_run *runs;
    float *sums;
    uint64_t n_runs, runs_room, n_sums, sums_room;
    float *row_m; /* [row * most_q_heads + q head] */
    double *row_l;
    uint32_t most_q_heads, max_rows;
    bool is_short; /* memory was refused: the site's rows are left out */
} rkvi_profile;

/* What the items of a site refer to: host copies of the step's tables. */
typedef struct rkvi_mass_tables {
    const rkvi_entry *entries;
    const rkvi_row *rows;
    const rkvi_span *spans;
    const uint32_t *row_map;
    const int64_t *begin; /* [row] its sequence's first position; an item's spans are its own alone */
    uint32_t layer, q_heads, kv_heads;
    rkvi_site_mask mask;
} rkvi_mass_tables;

rkv_status rkvi_profile_init(rkvi_profile *p, const rkvi_config *cfg);
void rkvi_profile_free(rkvi_profile *p);

void rkvi_profile_site(rkvi_profile *p); /* a new site: nothing so far */
/* The partials of n items: of slot s at sums + (s - slot0) * 2 * q_heads. */
void rkvi_profile_add(rkvi_profile *p, const rkvi_item *items, uint64_t n, const float *sums,
                      uint64_t slot0, uint32_t q_heads);
/* All items of the site were added. */
void rkvi_profile_finish(rkvi_profile *p, const rkvi_mass_tables *t);

/* Shares below each edge, of one KV head or all of them. */
void rkvi_profile_shares(const rkvi_profile *p, uint32_t layer, uint32_t head, rkv_profile_mass *out);

#endif
