/* SPDX-License-Identifier: MIT
 *
 * api_world.h: two caches alike, driven step by step.  One is given mistakes
 * between its calls, the other is not: both must go on with the same bits.
 *
 * A step: sequence 0 adds 3 cells, sequence 1 adds 20, sequence 2 adds 1, but
 * for every third step, in which it only asks.
 */
#ifndef API_WORLD_H
#define API_WORLD_H

#include "rollkv/host.h"

#define WORLD_SITES 3u /* of 2 KV layers; the last site only reads */
#define WORLD_SEQUENCES 3u
#define WORLD_CAPACITY 256u /* cells */
#define WORLD_MAX_ROWS 300u
#define WORLD_TILE 16u
#define WORLD_ROWS 24u /* of a step */
#define WORLD_Q_HEADS 4u
#define WORLD_KV_HEADS 2u
#define WORLD_DIM 64u

typedef struct world_rows {
    float q[WORLD_ROWS * WORLD_Q_HEADS * WORLD_DIM];
    float k[WORLD_ROWS * WORLD_KV_HEADS * WORLD_DIM], v[WORLD_ROWS * WORLD_KV_HEADS * WORLD_DIM];
    float out[WORLD_ROWS * WORLD_Q_HEADS * WORLD_DIM];
} world_rows;

/* A cache and the tensors of its current step. */
typedef struct world {
    rkv_cache *cache;
    uint64_t step;
    rkv_batch_entry entries[3];
    rkv_batch batch;
    world_rows sites[WORLD_SITES];
    float lse[WORLD_SITES][WORLD_ROWS * WORLD_Q_HEADS];
} world;

/* When a mistake is made. */
typedef enum {
    WORLD_IDLE,    /* before begin */
    WORLD_BEGUN,   /* after begin */
    WORLD_SITE_1,  /* after the first site */
    WORLD_SITE_2,  /* after the second one */
    WORLD_ATTENDED /* after all sites */
} world_stage;
typedef void (*world_hook)(world *w, world_stage stage, void *arg);

typedef struct world_params {
    rkv_kv_layer_params layers[2];
    rkv_site_params sites[WORLD_SITES];
    rkv_cache_params params;
} world_params;

void world_params_init(world_params *p); /* p must stay where it is */
void world_create(world *w);
void world_destroy(world *w);
/* Site `site` of the current step, as it should be called. */
rkv_attend_params world_attend(world *w, uint32_t site);
/* One step; fails the test when a call fails.  hook may be NULL. */
void world_step(world *w, world_hook hook, void *arg);
/* Sequences, outputs and what was streamed are the same in both. */
void world_compare(const world *a, const world *b);

#endif
