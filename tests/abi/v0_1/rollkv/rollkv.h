/* SPDX-License-Identifier: MIT */
/* Headers of 0.1, without comments: what a program of that release was compiled with. */
#ifndef ROLLKV_ROLLKV_H
#define ROLLKV_ROLLKV_H
#include "types.h"
#include "version.h"
#ifdef __cplusplus
extern "C" {
#endif
RKV_API uint32_t rkv_version(void);
RKV_API const char *rkv_version_string(void);
RKV_API const char *rkv_build_info(void);
RKV_API const char *rkv_status_name(rkv_status status);
RKV_API const char *rkv_error_message(void);
typedef void (*rkv_log_fn)(void *user, int32_t level, const char *message);
RKV_API void rkv_log_set(rkv_log_fn fn, void *user);
typedef struct rkv_setting {
    uint32_t struct_size;
    const char *name;
    const char *type;
    const char *default_value;
    const char *value;
    const char *help;
} rkv_setting;
RKV_API rkv_status rkv_setting_at(uint32_t index, rkv_setting *out_setting);
enum { RKV_DEVICE_HOST = -1 };
typedef struct rkv_device_info {
    uint32_t struct_size;
    int32_t device;
    char name[64];
    uint64_t memory_bytes, memory_free_bytes;
    uint32_t n_workers;
    int32_t numa_node;
} rkv_device_info;
RKV_API uint32_t rkv_device_count(void);
RKV_API rkv_status rkv_device_info_get(int32_t device, rkv_device_info *out_info);
#define RKV_RESIDENT_AUTO ((uint64_t)0)
#define RKV_RESIDENT_ALL ((uint64_t)1 << 61)
#define RKV_RESIDENT_NONE (((uint64_t)1 << 61) - 1)
enum { RKV_V_OWN = 0, RKV_V_K_PREFIX = 1, RKV_V_NONE = 2 };
typedef struct rkv_rope_params {
    const float *frequencies;
    uint32_t n_frequencies;
    uint32_t pairing;
} rkv_rope_params;
enum {
    RKV_K_ROTATED = 0,
    RKV_K_PLAIN = 1,
    RKV_K_OTHER = 2
};
typedef struct rkv_kv_layer_params {
    uint32_t struct_size;
    uint32_t n_kv_heads;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    rkv_type type_k, type_v;
    uint32_t v_source;
    float k_scale, v_scale;
    uint64_t resident_cells;
    uint32_t k_form;
    uint32_t keep_all;
    rkv_rope_params rope;
} rkv_kv_layer_params;
#define RKV_KV_LAYER_PARAMS_INIT {.struct_size = sizeof(rkv_kv_layer_params)}
typedef struct rkv_site_params {
    uint32_t struct_size;
    uint32_t kv_layer;
    uint32_t n_q_heads;
    float scale;
    float softcap;
    rkv_mask mask;
    uint64_t mask_width;
    uint64_t gap_ns;
} rkv_site_params;
#define RKV_SITE_PARAMS_INIT {.struct_size = sizeof(rkv_site_params)}
typedef struct rkv_allocator {
    void *(*alloc)(void *user, uint64_t size_bytes);
    void (*free)(void *user, void *ptr, uint64_t size_bytes);
    void *user;
} rkv_allocator;
typedef void (*rkv_progress_fn)(void *user, const char *what, uint64_t done_bytes, uint64_t total_bytes);
typedef struct rkv_host_params {
    uint64_t link_bytes_per_s;
    uint64_t copy_cost_ns;
    uint64_t copy_latency_ns;
    uint32_t n_threads;
    uint32_t reserved;
    uint64_t memory_bytes;
} rkv_host_params;
enum {
    RKV_MODE_RING = 0,
    RKV_MODE_OP_LEVEL = 1
};
enum {
    RKV_FLAG_NO_JOIN = 1,
    RKV_FLAG_NO_PREDICT = 2,
    RKV_FLAG_NO_PROMOTE = 4,
    RKV_FLAG_NO_HUGE_PAGES = 8,
    RKV_FLAG_GRAPHS = 64
};
enum { RKV_NUMA_DEVICE = 0, RKV_NUMA_OFF = -1 };
#define RKV_DRAFT_NONE 0xffffffffu
#define RKV_TURNS_NONE 0xffffffffu
typedef struct rkv_cache_params {
    uint32_t struct_size;
    int32_t device;
    const rkv_kv_layer_params *kv_layers;
    const rkv_site_params *sites;
    uint32_t n_kv_layers, n_sites;
    uint64_t capacity_cells;
    uint32_t n_sequences;
    uint32_t max_rows;
    uint32_t tile_cells;
    uint32_t draft_rows;
    uint32_t steps_ahead;
    uint32_t mode;
    uint32_t flags;
    int32_t numa;
    uint64_t ring_bytes;
    uint64_t copy_bytes;
    uint64_t device_limit_bytes;
    uint64_t host_limit_bytes;
    uint64_t step_ns;
    uint64_t link_bytes_per_s;
    rkv_allocator device_allocator;
    rkv_rope_params rope;
    rkv_host_params host;
    rkv_progress_fn progress;
    void *progress_user;
    uint32_t max_turns;
    uint32_t reserved;
} rkv_cache_params;
#define RKV_CACHE_PARAMS_INIT {.struct_size = sizeof(rkv_cache_params)}
typedef struct rkv_estimate {
    uint32_t struct_size;
    uint32_t fits;
    uint64_t device_window_bytes;
    uint64_t device_ring_bytes;
    uint64_t device_active_bytes;
    uint64_t device_transit_bytes;
    uint64_t device_workspace_bytes;
    uint64_t device_bytes;
    uint64_t device_limit_bytes;
    uint64_t host_tail_bytes;
    uint64_t host_mirror_bytes;
    uint64_t host_limit_bytes;
    uint64_t capacity_cells;
    uint64_t largest_capacity_cells;
    uint64_t largest_resident_cells;
    uint64_t smallest_device_bytes;
    uint64_t free_zone_cells;
    uint64_t ring_rule_bytes;
    char advice[256];
} rkv_estimate;
RKV_API rkv_status rkv_cache_estimate(const rkv_cache_params *params, rkv_estimate *out_estimate);
typedef struct rkv_cache rkv_cache;
RKV_API rkv_status rkv_cache_create(const rkv_cache_params *params, rkv_cache **out_cache);
RKV_API void rkv_cache_destroy(rkv_cache *cache);
RKV_API rkv_status rkv_cache_clear(rkv_cache *cache);
RKV_API rkv_status rkv_cache_set_residency(rkv_cache *cache, uint32_t kv_layer, uint64_t resident_cells);
typedef struct rkv_cache_info {
    uint32_t struct_size;
    int32_t device;
    char device_name[64];
    char kernels[16];
    uint32_t n_kv_layers, n_sites, n_sequences, max_rows;
    uint32_t tile_cells, draft_rows, steps_ahead, mode, flags;
    int32_t numa_node;
    uint64_t capacity_cells;
    uint64_t capacity_tiles;
    uint64_t ring_bytes, copy_bytes;
    uint64_t device_limit_bytes, host_limit_bytes;
    uint64_t device_bytes;
    uint64_t device_window_bytes, device_ring_bytes, device_active_bytes, device_transit_bytes,
        device_workspace_bytes;
    uint64_t link_bytes_per_s;
    uint64_t ring_rule_bytes;
    uint64_t step_ns;
    uint32_t n_workers;
    uint32_t n_rope_frequencies, rope_pairing;
    uint32_t max_turns;
    uint64_t host_link_bytes_per_s, host_copy_cost_ns, host_copy_latency_ns;
} rkv_cache_info;
RKV_API rkv_status rkv_cache_info_get(const rkv_cache *cache, rkv_cache_info *out_info);
typedef struct rkv_kv_layer_info {
    uint32_t struct_size;
    uint32_t n_kv_heads, head_dim_k, head_dim_v;
    rkv_type type_k, type_v;
    float k_scale, v_scale;
    uint32_t leaf_cells;
    uint64_t resident_cells;
    uint64_t tile_layer_device_bytes, tile_layer_host_bytes;
    uint64_t window_tiles;
    uint64_t tail_tiles;
    uint64_t most_tiles;
    uint64_t freed_tiles;
    uint32_t has_tail;
    uint32_t keep_all;
} rkv_kv_layer_info;
RKV_API rkv_status rkv_kv_layer_info_get(const rkv_cache *cache, uint32_t kv_layer,
                                         rkv_kv_layer_info *out_info);
typedef struct rkv_site_info {
    uint32_t struct_size;
    uint32_t kv_layer, n_q_heads;
    uint32_t is_storing;
    float scale, softcap;
    rkv_mask mask;
    uint32_t reserved;
    uint64_t mask_width, gap_ns;
} rkv_site_info;
RKV_API rkv_status rkv_site_info_get(const rkv_cache *cache, uint32_t site, rkv_site_info *out_info);
typedef struct rkv_cache_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t steps, aborted_steps;
    uint64_t streamed_bytes;
    uint64_t streamed_tile_layers;
    uint64_t last_step_list_bytes;
    uint64_t brought_back_bytes;
    uint64_t demoted_bytes;
    uint64_t demoted_tile_layers;
    uint64_t demoted_free_tile_layers;
    uint64_t promoted_bytes;
    uint64_t promoted_tile_layers;
    uint64_t table_bytes;
    uint64_t copies_in, copies_out;
    uint64_t largest_copy_in_bytes;
    uint64_t launches;
    uint64_t extra_launches;
    uint64_t waits;
    uint64_t host_waits;
    uint64_t run_ahead_bytes;
    uint64_t predicted_right;
    uint64_t predicted_wrong;
    uint64_t discarded_bytes;
    uint64_t own_entries;
    uint64_t pinned_bytes, unpinned_bytes;
    uint64_t free_tail_places, used_tail_places;
    uint64_t shared_tiles;
    uint64_t used_tiles;
    uint64_t stored_cells;
    uint64_t dead_cells;
    uint64_t shared_copy_bytes;
    uint64_t free_device_places, used_device_places;
    uint64_t used_device_place_bytes;
    uint64_t parked_sequences;
} rkv_cache_stats;
RKV_API rkv_status rkv_cache_stats_get(const rkv_cache *cache, rkv_cache_stats *out_stats);
#define RKV_POS_END ((int64_t)1 << 62)
typedef struct rkv_pos_range {
    int64_t from, to;
} rkv_pos_range;
typedef struct rkv_sequence_state {
    uint32_t struct_size;
    uint32_t n_tiles;
    uint64_t n_cells;
    int64_t pos_begin, pos_end;
    uint64_t n_segments;
    uint32_t n_tree_cells;
    uint32_t reserved;
} rkv_sequence_state;
RKV_API rkv_status rkv_sequence_info(const rkv_cache *cache, uint32_t sequence,
                                     rkv_sequence_state *out_state);
RKV_API rkv_status rkv_sequence_ranges(const rkv_cache *cache, uint32_t sequence, rkv_pos_range *out_ranges,
                                       uint64_t room, uint64_t *out_n);
RKV_API rkv_status rkv_sequence_clear(rkv_cache *cache, uint32_t sequence);
RKV_API rkv_status rkv_sequence_keep(rkv_cache *cache, uint32_t sequence);
RKV_API rkv_status rkv_sequence_remove(rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to);
RKV_API rkv_status rkv_sequence_append_from(rkv_cache *cache, uint32_t dst, uint32_t src, int64_t from, int64_t to);
RKV_API rkv_status rkv_sequence_fork(rkv_cache *cache, uint32_t dst, uint32_t src);
RKV_API rkv_status rkv_sequence_park(rkv_cache *cache, uint32_t sequence);
RKV_API rkv_status rkv_sequence_fetch(rkv_cache *cache, uint32_t sequence);
RKV_API rkv_status rkv_sequence_shift(rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to, int64_t delta);
RKV_API rkv_status rkv_sequence_can_shift(const rkv_cache *cache, uint32_t sequence, int64_t from, int64_t to,
                                          int64_t delta);
RKV_API rkv_status rkv_sequence_compact(rkv_cache *cache, uint32_t sequence);
enum { RKV_REGIME_AUTO = 0, RKV_REGIME_DECODE = 1, RKV_REGIME_PREFILL = 2 };
#define RKV_DECODE_ROWS_MAX 16u
typedef struct rkv_batch_entry {
    uint32_t struct_size;
    uint32_t sequence;
    uint32_t n_rows;
    uint32_t n_new_cells;
    uint32_t regime;
    uint32_t reserved;
    const int64_t *positions;
    const rkv_pos_range *visible;
    const uint64_t *tree_mask;
} rkv_batch_entry;
#define RKV_BATCH_ENTRY_INIT {.struct_size = sizeof(rkv_batch_entry)}
typedef struct rkv_batch {
    uint32_t struct_size;
    uint32_t n_entries;
    const rkv_batch_entry *entries;
} rkv_batch;
#define RKV_BATCH_INIT {.struct_size = sizeof(rkv_batch)}
RKV_API rkv_status rkv_cache_check(const rkv_cache *cache, const rkv_batch *batches, uint32_t n_batches);
RKV_API rkv_status rkv_step_begin(rkv_cache *cache, const rkv_batch *batch);
RKV_API rkv_status rkv_step_start(rkv_cache *cache, void *stream);
typedef struct rkv_tensor {
    void *data;
    rkv_type type;
    uint32_t reserved;
    int64_t row_stride, head_stride;
} rkv_tensor;
typedef struct rkv_attend_params {
    uint32_t struct_size;
    uint32_t site;
    rkv_tensor q;
    rkv_tensor k, v;
    rkv_tensor out;
    float *lse;
    int64_t lse_row_stride;
    const float *sinks;
} rkv_attend_params;
#define RKV_ATTEND_PARAMS_INIT {.struct_size = sizeof(rkv_attend_params)}
RKV_API rkv_status rkv_step_attend(rkv_cache *cache, const rkv_attend_params *params, void *stream);
RKV_API rkv_status rkv_step_end(rkv_cache *cache, const rkv_batch *next, void *stream);
RKV_API rkv_status rkv_step_abort(rkv_cache *cache);
typedef struct rkv_graph {
    uint32_t struct_size;
    uint32_t first_site, n_sites;
    uint32_t n_ahead;
    uint64_t key;
} rkv_graph;
#define RKV_GRAPH_INIT {.struct_size = sizeof(rkv_graph)}
RKV_API rkv_status rkv_step_graph_key(const rkv_cache *cache, uint64_t *out_key);
RKV_API rkv_status rkv_graph_capture(rkv_cache *cache, uint32_t first_site, uint32_t n_sites, void *stream);
RKV_API rkv_status rkv_graph_capture_end(rkv_cache *cache, void *stream, rkv_graph *out_graph);
RKV_API rkv_status rkv_step_replay(rkv_cache *cache, const rkv_graph *graph, void *stream);
RKV_API rkv_status rkv_sequence_accept(rkv_cache *cache, uint32_t sequence, const uint32_t *cells, uint32_t n_cells,
                                       void *stream);
#ifdef __cplusplus
}
#endif
#endif
