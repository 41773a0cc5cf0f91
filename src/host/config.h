/* config.h: parameters made effective: checked, defaults filled, sizes worked out.
 *
 * Made once from rkv_cache_params by rkvi_config_init (allocates only the two
 * arrays), read by all parts above geometry, never changed afterwards but for
 * the windows of a live cache, by rkvi_config_set_window between steps.  The
 * same numbers serve rkv_cache_estimate and rkv_cache_create, so they can't
 * disagree.
 */
#ifndef RKVI_CONFIG_H
#define RKVI_CONFIG_H

#include "geometry.h"
#include "ops.h"
#include "rollkv/rollkv.h"

/* What the CPU's share follows from; 0: not known. */
typedef struct rkvi_cpu_rates {
    uint64_t step_ns;            /* C: a step without the tail's copies */
    uint64_t link_bytes_per_s;   /* B: while the threads are idle, */
    uint64_t beside_bytes_per_s; /* and while they work */
    uint64_t cpu_bytes_per_s;    /* R: theirs, beside copies */
    uint64_t handover_ns;        /* of a site: q out, partials in */
} rkvi_cpu_rates;

/* One list of rotary frequencies; KV layers of the same one share it. */
typedef struct rkvi_rope {
    float *frequencies; /* [n], radians per position */
    uint32_t n, pairing;
} rkvi_rope;
#define RKVI_NO_ROPE UINT32_MAX

typedef struct rkvi_layer_config {
    rkvi_geom geom;
    uint32_t leaf_class;     /* index into leaf_cells[]: layers of one L share spans */
    uint32_t first_site;     /* stores */
    uint32_t last_site;      /* reads last */
    uint32_t n_sites;        /* that read it */
    uint32_t k_form;         /* RKV_K_ */
    uint32_t rope;           /* index into ropes[], or RKVI_NO_ROPE */
    bool frees;              /* what no later row can see is given up: no causal site, no keep_all */
    bool has_tail;           /* window_tiles < most_tiles */
    uint64_t resident_cells; /* as given */
    uint64_t most_tiles;     /* that it holds at once: capacity_tiles, or what the masks can see */
    uint64_t window_tiles;   /* effective budget; this and the next lines change with set_residency */
    uint64_t device_places;  /* window + active and lagging; at most most_tiles */
    uint64_t host_places;    /* at full capacity; 0 without a tail */
    uint64_t extent_places;  /* host places allocated together, adjacent */
    uint64_t extra_places;   /* device places beyond the window that any window needs */
    uint64_t device_extent_places; /* device places allocated, and given back, together */
    uint64_t first_window_tiles;   /* window_tiles at creation */
} rkvi_layer_config;

typedef struct rkvi_site_config {
    uint32_t kv_layer;
    uint32_t n_q_heads;
    float scale, softcap;
    rkvi_site_mask mask;
    bool stores; /* the first site of its KV layer */
    uint64_t gap_ns;
    uint32_t cpu_share;       /* sixteenths of its tail, beyond what is hidden; changes with set_cpu_share */
    double cpu_part;          /* what a step has of it: the same, evened out between sites alike */
    uint64_t cpu_bytes_per_s; /* of the threads, in its geometry; 0: the cache's */
} rkvi_site_config;

#define RKVI_LEAF_CLASSES_MAX 4
#define RKVI_SEGMENTS_EXTRA 4096u   /* extra_segments, unless asked otherwise */
#define RKVI_RUN_SLOTS 1024u        /* partials for parallel runs, besides the pending ones */
#define RKVI_GRAPH_ITEMS 2048u      /* empty work items of a launch that can be captured */
#define RKVI_CPU_ITEMS 4096u        /* most items of a launch that is the CPU's */
#define RKVI_CPU_STATE_BYTES 256u   /* rkvi_desk_state */
#define RKVI_CPU_DEVICE_BYTES (RKVI_CPU_STATE_BYTES + RKVI_CPU_ITEMS * sizeof(rkvi_item))
#define RKVI_PIECE_BYTES 256u       /* tables are compared and sent in such pieces, where graphs read them */

/* Partials that a decode row over so many leaves needs when its launches come
 * in order of leaves, besides whole runs.  With b = bits of the number:
 *   b   are pending between launches: one subtree per level,
 *   2b  come from a launch: its two ends are cut into aligned runs,
 *   b   are written by a merge while those that it reads are still there. */
static inline uint32_t rkvi_bit_width(uint64_t n)
{
    return n ? 64u - (uint32_t)__builtin_clzll(n) : 0;
}
static inline uint64_t rkvi_pending_nodes(uint64_t n_leaves)
{
    return 4 * (uint64_t)rkvi_bit_width(n_leaves);
}

typedef struct rkvi_config {
    int32_t device;
    rkvi_layer_config *layers;
    rkvi_site_config *sites;
    uint32_t n_layers, n_sites;
    uint32_t leaf_cells[RKVI_LEAF_CLASSES_MAX];
    uint32_t n_leaf_classes;

    uint64_t capacity_cells;
    uint64_t capacity_tiles; /* ceil(capacity / T) + n_sequences - 1: ragged ends */
    uint32_t n_sequences, max_rows, tile_cells, draft_rows, steps_ahead, mode, flags;
    uint32_t active_sequences; /* of a step at most, and that device places are made for */
    int32_t numa; /* as given */

    uint64_t ring_bytes;        /* 0 when no KV layer has a tail */
    uint64_t copy_bytes;
    uint64_t largest_tile_layer_bytes; /* with a tail */
    uint64_t link_bytes_per_s, step_ns, ring_rule_bytes;
    bool link_is_unknown;  /* as asked: nothing is assumed, nor measured */
    bool link_is_measured; /* by the library */

    /* Room on the device, each a line of the estimate. */
    uint64_t window_bytes;
    uint64_t active_bytes;      /* device_places beyond the budgets */
    uint64_t transit_bytes;     /* ring of transit + dedicated room, see below */
    uint64_t transit_ring_bytes;/* the part that KV layers with one site share */
    uint64_t transit_tiles;     /* new tiles that can pass through one step: max_rows / T */
    uint64_t partial_slots;     /* rows x nodes: partials of one row, all query heads */
    uint64_t partial_bytes;
    uint64_t table_bytes;       /* of one step's device tables */
    uint64_t upload_bytes;      /* a step's tables, or what changed in them: steps_ahead of these */
    uint64_t device_table_bytes;/* all of them, and the fixed ones that graphs read */
    uint64_t device_bytes;      /* the sum */
    uint64_t device_limit_bytes, host_limit_bytes;
    uint64_t device_extent_bytes; /* least memory of a KV layer that is allocated at a time */
    uint64_t asked_device_limit_bytes; /* above the device's memory, which then is the limit; else 0 */
    uint64_t host_tail_bytes;   /* at full capacity, whole extents */

    /* Most entries of each table (all sites together where it says so). */
    uint64_t max_bases;         /* tiles of a batch; twice those that sequences have in different orders */
    uint32_t extra_segments;    /* beyond one a tile, over a batch's sequences */
    uint64_t max_spans;         /* per leaf class */
    uint64_t max_items_site;    /* decode + prefill, one site */
    uint64_t max_nodes_site;
    uint64_t max_merges_site;

    rkv_allocator allocator;
    rkv_host_params host;
    rkv_progress_fn progress;
    void *progress_user;
    rkvi_rope *ropes;           /* copied; the cache's first, if has_rope */
    uint32_t n_ropes;
    bool has_rope;

    /* The CPU's share (config_cpu.c). */
    uint32_t cpu_threads, cpu_share; /* 0: none; sixteenths, the mean of the sites that have a tail */
    uint64_t cpu_free_bytes;         /* of a step's tail: hidden, so the link has it whole */
    uint64_t cpu_least_bytes;        /* of a site's share, to be worth the hand-over */
    uint64_t cpu_q_bytes, cpu_partial_bytes; /* pinned; 0 without threads */
    uint64_t cpu_slot_bytes;         /* a partial of one row, at the site where it is largest */
    rkvi_cpu_rates cpu_rates;        /* as given, or as the share was last chosen by */
    bool cpu_is_chosen;              /* by the rates, not by the caller */
    uint64_t cpu_wait_ns;            /* most that a step waits for the CPU at a site */

    /* Shifting and token trees. */
    uint32_t max_turns;         /* runs of cells of a sequence with a turn; 0: positions can't be shifted */
    uint64_t turned_floats;     /* of one turn: max_rows x query heads x dk, of the largest site; 0: none */
    uint64_t turned_bytes;      /* max_turns of them */
    uint64_t tree_slots;        /* partials of token trees, behind partial_slots: rows of them in a step */
} rkvi_config;

/* Compute of a step: as hinted, or the sum of the sites' gaps; 0: no hints. */
uint64_t rkvi_config_step_ns(const rkvi_config *cfg);

#define RKVI_CPU_PARTS 16u
#define RKVI_CPU_HANDOVER_NS 50000u /* where it was neither given nor measured */
/* The model: time of a step with a share x of its tail on the CPU. */
double rkvi_config_cpu_step_s(double x, double compute_s, double bytes, double link_bytes_per_s,
                              double cpu_bytes_per_s);
/* The sites' shares, and what stays with the link, by the rates in cfg and the
 * sites' own: all but cpu_bytes_per_s and link_bytes_per_s may be 0. */
void rkvi_config_cpu_choose(rkvi_config *cfg);
/* Both have a tail, and take threads as long a byte. */
bool rkvi_sites_alike(const rkvi_config *cfg, uint32_t a, uint32_t b);
/* Sixteenths of a site's tail where all sites like it want `share`: they differ from
 * site to site, so that their mean is near it.  0 without a tail. */
uint32_t rkvi_config_cpu_parts(const rkvi_config *cfg, uint32_t site, double share);
/* The same share for all sites; shares[site] each, where given. */
void rkvi_config_cpu_set(rkvi_config *cfg, uint32_t share, const uint32_t *shares, uint64_t free_bytes);
static inline bool rkvi_site_streams(const rkvi_config *cfg, uint32_t site)
{
    return cfg->layers[cfg->sites[site].kv_layer].has_tail;
}

/* The cache's own rotary frequencies; none: n is 0. */
static inline rkvi_rope rkvi_config_rope(const rkvi_config *cfg)
{
    return cfg->has_rope ? cfg->ropes[0] : (rkvi_rope){0};
}
/* RKV_OK, or why no position can be shifted. */
rkv_status rkvi_config_can_shift(const rkvi_config *cfg);
/* A site's leaves want a turned q where their turn is not 0. */
static inline bool rkvi_site_turns(const rkvi_config *cfg, uint32_t site)
{
    return cfg->layers[cfg->sites[site].kv_layer].rope != RKVI_NO_ROPE;
}

/* What a device grants: from rkvi_device_info. */
typedef struct rkvi_machine {
    uint64_t device_memory_bytes; /* free now */
    uint64_t host_memory_bytes;   /* of the machine */
    uint64_t link_bytes_per_s;    /* 0: unknown */
    bool link_is_measured;        /* by step_link.c */
    bool is_host;                 /* host executor: no limit given means all resident */
} rkvi_machine;

/* Checks every parameter (each mistake has its own sentence), fills defaults,
 * chooses windows and the ring.  RKV_E_DEVICE_LIMIT, RKV_E_HOST_LIMIT and
 * RKV_E_RING are reported only after all sizes are filled, so that an estimate
 * can be given: *out_fit gets that status, the return value is RKV_OK then.
 * On another failure nothing is left allocated. */
rkv_status rkvi_config_init(rkvi_config *cfg, const rkv_cache_params *params, const rkvi_machine *machine,
                            rkv_status *out_fit);
void rkvi_config_free(rkvi_config *cfg);

/* The places that a KV layer with a tail has with a window of so many tiles, at
 * most most_tiles: on the device, before whole extents are made of them, and in
 * host memory. */
uint64_t rkvi_config_device_places(const rkvi_layer_config *layer, uint64_t window_tiles);
uint64_t rkvi_config_host_places(const rkvi_config *cfg, const rkvi_layer_config *layer, uint64_t window_tiles);
/* The window of a live cache, with the places that it has come to have. */
void rkvi_config_set_window(rkvi_config *cfg, uint32_t layer, uint64_t window_tiles, uint64_t device_places);

#endif
