/* plan.h: what a step will do, worked out on the host.  Pure: sequences,
 * residency and a batch in, work items and a list out; no device, no change to
 * the cache.
 *
 *   rkvi_plan_list     which tail tile-layers each site reads, in order of use,
 *                      and with which launch of its site
 *   (ring lays the list out: every slot has its address)
 *   rkvi_plan_tables   the step's device tables, written into a mirror
 *
 * A site runs one launch if its tail fits half the ring, else one per group of
 * tile-layers (in steps with prefill, per quarter of the ring); the first launch
 * takes what lies on the device as well.  Each launch is cut into about
 * target_runs work items, whatever its size.  Merges between launches make
 * room for partials where there is none left.  Where that does not suffice, device
 * leaves between those of the tail are computed in
 * order, with the launch of the tail leaf before them, so that pending partials
 * stay few (rkvi_pending_nodes).
 *
 * What several entries have alike is listed once, and computed once for the rows
 * of all of them (plan_share.h).
 *
 *   site  launch 0          launch 1          launch 2
 *         device leaves     tail leaves       tail leaves      merge
 *         + group 0         group 1           group 2         -> out
 */
#ifndef RKVI_PLAN_H
#define RKVI_PLAN_H

#include "batch.h"
#include "config.h"
#include "plan_share.h"
#include "ring.h"

/* What plan sees of the cache. */
typedef struct rkvi_plan_view {
    const rkvi_config *cfg;
    const rkvi_tiles *tiles;
    const rkvi_seq *seqs;      /* with the batch's cells appended */
    const rkvi_batch *batch;
    uint64_t step;             /* number of the step that is planned */
    uint64_t launch_base;      /* number of its first launch */
    uint64_t launch_bytes;     /* most that a launch reads from the ring; 0: one tile-layer */
    uint64_t group_bytes;      /* what a launch reads when the site takes several */
    uint32_t target_runs;      /* decode items x KV heads wanted per launch, all entries together */
    uint32_t wide_runs;        /* the same where decode is wide (rkvi_decode_is_wide); 0: no other number */
    bool no_cpu;               /* no share for the CPU in this step */
    uint64_t ticket0;          /* of the CPU's job at site 0, the others follow */
    bool predict;              /* the step after: what enters the tail by then has entered */
    bool fixed;                /* for graphs: tables keep their places from step to step, and launches
                                * their sizes, as far as rkvi_plan_hash tells no other */
} rkvi_plan_view;

/* One launch of a site: its part of the tables.  Where the sequences of a step
 * have cells of several turns, a launch has rounds, which run one after another:
 * round r has what the r-th stretch of one turn takes (a prefill state goes on
 * from stretch to stretch; decode needs rounds only where partials of all
 * stretches don't have room at once). */
typedef struct rkvi_plan_launch {
    uint64_t decode0, n_decode;   /* items, counted from the site's item table */
    uint64_t grid_decode;         /* these and the empty ones behind them */
    uint32_t decode_rows;         /* most rows of one of them */
    uint64_t decode_leaves;       /* of all of them */
    uint64_t prefill0, n_prefill;
    uint64_t merge0, n_merge;     /* pending partials brought together after it */
    uint64_t cost_bytes;          /* K and V that it reads */
    uint64_t n_leaves;            /* of decode entries, those on the device with launch 0 */
} rkvi_plan_launch;

typedef struct rkvi_plan_site {
    uint32_t launch0, n_launches; /* launch g's round r: launches[(launch0 + g) * n_rounds + r] */
    uint64_t number0;             /* number of the first */
    uint32_t list0, n_list;       /* in the ring's list */
    uint32_t cpu_launch;          /* that reads the tail where it lies (plan_cpu.c); RKVI_NO_LAUNCH */
    uint64_t n_cpu, cpu_out_mark; /* its tile-layers, and the newest copy-out of them */
    bool cpu_is_mixed;            /* its launch has leaves on the device too: not for the CPU */
    uint64_t merge0, n_merge;     /* the last merge, to the output */
    /* device tables, offsets into the mirror */
    uint64_t bases_off, items_off, merges_off, nodes_off;
} rkvi_plan_site;

typedef struct rkvi_plan_class {
    uint64_t entries_off, spans_off;
} rkvi_plan_class;

/* plan_turn.c: turns of the step's entries. */
typedef struct rkvi_plan_turns {
    uint32_t *n;           /* [entry] how many */
    int64_t *turns;        /* [entry * max_turns] */
    uint8_t *leaf_turn[RKVI_LEAF_CLASSES_MAX]; /* [span] 0, or 1 + which of its entry's */
    uint32_t n_pairs;      /* of an entry and a turn */
    int64_t *kept_turn;    /* [pair] whose angles are kept; 0: none */
    float *kept_angles;
    uint64_t *angles_off;  /* [rope] */
} rkvi_plan_turns;

typedef struct rkvi_plan {
    rkvi_plan_site *sites;
    rkvi_plan_launch *launches;
    uint32_t n_launches, n_rounds, launches_room;
    rkvi_plan_class classes[RKVI_LEAF_CLASSES_MAX];
    uint64_t rows_off, cells_off, open_off;
    uint64_t ticket0_off;        /* with the CPU's share; bytes of each site's follow */
    uint64_t row_map_off, n_mapped_rows; /* of decode items, where is_mapped */
    bool is_mapped;
    uint64_t n_new_cells, n_open;
    rkvi_plan_turns turns;
    uint64_t trees_off, n_tree_rows;    /* 0: no token trees */
    uint64_t *tree_slot0;               /* [entry] partial of its first row */
    uint64_t turned_off, n_turned_rows; /* 0: no leaf wants a turned q */
    uint64_t table_bytes;        /* used of the mirror */
    uint64_t n_bases;            /* tiles of all entries, each once (plan_share.h) */
    uint64_t list_bytes;
    uint64_t own_entries;        /* list items that repeat a tile-layer */
    /* scratch */
    uint32_t *tile_launch;       /* [site * n_bases + base]: launch, or a mark below */
    uint32_t *leaf_launch;
    struct rkvi_plan_work *work;
} rkvi_plan;

#define RKVI_NO_LAUNCH (UINT32_MAX - 2) /* and no mark below */

/* In tile_launch. */
#define RKVI_TILE_UNSEEN UINT32_MAX
#define RKVI_TILE_DEVICE (UINT32_MAX - 1)

rkv_status rkvi_plan_init(rkvi_plan *p, const rkvi_config *cfg);
void rkvi_plan_free(rkvi_plan *p);

/* Writes the list's items (room for n_sites * max_bases) and, unless
 * predicting, the sites' launches.  RKV_E_CAPACITY with a sentence. */
rkv_status rkvi_plan_list(rkvi_plan *p, const rkvi_plan_view *v, rkvi_ring_item *items, uint32_t *out_n);

/* Where the tables are written and what they will be on the device. */
typedef struct rkvi_mirror {
    unsigned char *host;
    uint64_t device_addr;
    uint64_t bytes;
} rkvi_mirror;

/* Items are the ring's, laid out; ring_addr is the device address of the ring.
 * RKV_E_CAPACITY with a sentence when a table would be too small. */
rkv_status rkvi_plan_tables(rkvi_plan *p, const rkvi_plan_view *v, const rkvi_ring_item *items,
                            uint64_t ring_addr, uint64_t ring_bytes, rkvi_mirror *m);

/* Does any row of the batch see a cell of the entry's tile at a site?  What
 * plan_list uses, for cache and tests. */
void rkvi_plan_range(const rkvi_batch *b, const rkvi_batch_entry *e, rkvi_site_mask mask, int64_t *out_lo,
                     int64_t *out_hi);

/* The first leaf that holds a cell behind pos; n when none does. */
uint64_t rkvi_plan_leaf_after(const rkvi_span *spans, uint64_t n, int64_t pos);

/* The bases of tables that were written already: the ring has laid the same list out anew. */
void rkvi_plan_ring_bases(const rkvi_plan *p, const rkvi_config *cfg, const rkvi_ring_item *items, uint64_t ring_addr,
                          rkvi_mirror *m);

/* Fixed plans: a hash of all that a capture of the step's launches would hold
 * of the plan, for sizes and places of tables. */
uint64_t rkvi_plan_hash(const rkvi_plan *p, const rkvi_config *cfg, const rkvi_batch *b);

/* Prints the plan, a line per launch (tests, debugging). */
void rkvi_plan_print(const rkvi_plan *p, const rkvi_config *cfg, void (*line)(void *, const char *), void *user);

#endif
