/* SPDX-License-Identifier: MIT
 *
 * Merge on a GPU: outputs, lse and merged nodes, bit by bit, against the plain C
 * reference, over made-up nodes: any number, gaps, empty ones, unlike sizes.
 */
#include "cuda_fixture.h"

#include <math.h>

#define ITEMS 5u
#define ROWS_MAX 21u
#define NODES_MAX 200u

static rkvi_device *gpu;
static rkvi_ops ref;
static uint64_t seed;

typedef struct merge_case {
    uint32_t q_heads, dv;
    rkv_type type;
    bool to_out, sinks, lse;
    uint64_t first_leaf, leaf_step; /* leaves of a row rise by 1 to leaf_step */
} merge_case;

static float normal(uint64_t *r, float size)
{
    return size * (float)((int64_t)(gpu_random(r) >> 40) - (1 << 23)) / (float)(1 << 22);
}

/* Partials of all slots; of each eighth, all heads are empty. */
static void fill_partials(float *p, uint64_t slots, const merge_case *c, uint64_t *r)
{
    const uint64_t n = (uint64_t)c->q_heads * (c->dv + 2);
    for (uint64_t s = 0; s < slots; s++)
        for (uint32_t h = 0; h < c->q_heads; h++) {
            float *at = p + s * n, *m = at + (uint64_t)c->q_heads * c->dv + h;
            const bool empty = gpu_random(r) % 8 == 0;
            *m = empty ? -INFINITY : normal(r, gpu_random(r) % 4 ? 3.0f : 60.0f);
            m[c->q_heads] = empty ? 0 : 1 + fabsf(normal(r, 20));
            for (uint32_t i = 0; i < c->dv; i++)
                at[(uint64_t)h * c->dv + i] = empty ? 0 : normal(r, 5);
        }
}

typedef struct merge_data {
    rkvi_entry entries[ITEMS];
    rkvi_merge_item items[ITEMS];
    rkvi_node nodes[ITEMS * NODES_MAX];
    uint64_t n_nodes, n_slots;
    uint32_t n_rows;
} merge_data;

/* Items of different entries, the nodes of each in rising order. */
static void make_items(merge_data *x, const merge_case *c, uint64_t *r)
{
    static const uint32_t counts[] = {0, 1, 2, 3, 7, 64, NODES_MAX};
    for (uint32_t i = 0; i < ITEMS; i++) {
        const uint32_t n = counts[gpu_random(r) % (sizeof counts / sizeof *counts)];
        const uint32_t rows = 1 + (uint32_t)(gpu_random(r) % ROWS_MAX);
        uint64_t leaf = c->first_leaf + gpu_random(r) % 5;
        x->entries[i] = (rkvi_entry){.row0 = x->n_rows, .n_rows = rows + 1};
        x->items[i] =
            (rkvi_merge_item){.entry = i, .row = 1, .n_rows = rows, .n_nodes = n, .node0 = x->n_nodes};
        x->n_rows += rows + 1;
        for (uint32_t k = 0; k < n; k++) {
            x->nodes[x->n_nodes++] = (rkvi_node){.leaf0 = leaf, .slot = x->n_slots};
            x->n_slots += rows;
            leaf += 1 + gpu_random(r) % c->leaf_step;
        }
        /* a merged node may take the place of the row's own first one */
        x->items[i].dst = c->to_out    ? RKVI_TO_OUT
                          : n && i % 2 ? x->nodes[x->items[i].node0].slot
                                       : x->n_slots;
        x->n_slots += rows;
    }
}

static void check_merge(const merge_case *c, uint64_t *r)
{
    merge_data *x = calloc(1, sizeof *x);
    make_items(x, c, r);
    const size_t floats = (size_t)x->n_slots * c->q_heads * (c->dv + 2);
    const int64_t head_stride = c->dv + 3, row_stride = head_stride * c->q_heads + 9;
    const size_t out_bytes = (size_t)row_stride * x->n_rows * rkvi_tensor_type_bytes(c->type);
    const int64_t lse_stride = c->q_heads + 2;
    const size_t lse_bytes = (size_t)lse_stride * x->n_rows * sizeof(float);
    float *partials = malloc(floats * sizeof *partials), *got = malloc(floats * sizeof *got);
    uint8_t *out = malloc(out_bytes), *got_out = malloc(out_bytes);
    float *lse = malloc(lse_bytes), *got_lse = malloc(lse_bytes), sinks[64];
    fill_partials(partials, x->n_slots, c, r);
    memset(out, 0xA5, out_bytes);
    memset(lse, 0xA5, lse_bytes);
    for (uint32_t h = 0; h < c->q_heads; h++)
        sinks[h] = h % 5 == 4 ? -INFINITY : normal(r, 40);
    rkvi_merge_args a = {
        .entries = x->entries,
        .items = x->items,
        .nodes = x->nodes,
        .partials = partials,
        .out = {.data = out, .row_stride = row_stride, .head_stride = head_stride, .type = c->type},
        .lse = c->lse ? lse : NULL,
        .lse_row_stride = lse_stride,
        .sinks = c->sinks ? sinks : NULL,
        .q_heads = c->q_heads,
        .dv = c->dv,
        .max_rows = (uint32_t)(gpu_random(r) % 10)};
    rkvi_merge_args b = a;
    b.entries = gpu_put(gpu, x->entries, sizeof x->entries);
    b.items = gpu_put(gpu, x->items, sizeof x->items);
    b.nodes = gpu_put(gpu, x->nodes, sizeof x->nodes);
    b.partials = gpu_put(gpu, partials, floats * sizeof *partials);
    b.out.data = gpu_put(gpu, out, out_bytes);
    float *gpu_lse = gpu_put(gpu, lse, lse_bytes), *gpu_sinks = gpu_put(gpu, sinks, sizeof sinks);
    b.lse = c->lse ? gpu_lse : NULL;
    b.sinks = c->sinks ? gpu_sinks : NULL;
    for (uint64_t i = 0; i < ITEMS * c->q_heads; i++)
        ref.fn[RKVI_OP_MERGE](&a, i);
    gpu_launch(gpu, RKVI_OP_MERGE, &b, sizeof b, ITEMS * c->q_heads);
    gpu_get(gpu, got, b.partials, floats * sizeof *got);
    gpu_get(gpu, got_out, b.out.data, out_bytes);
    gpu_get(gpu, got_lse, gpu_lse, lse_bytes);
    assert_memory_equal(got, partials, floats * sizeof *got);
    assert_memory_equal(got_out, out, out_bytes);
    assert_memory_equal(got_lse, lse, lse_bytes);
    void *all[] = {(void *)b.entries, (void *)b.items, (void *)b.nodes, b.partials,
                   b.out.data,        gpu_lse,         gpu_sinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_free(gpu, all[i]);
    void *mine[] = {x, partials, got, out, got_out, lse, got_lse};
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        free(mine[i]);
}

static void test_merge(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 40, 64, 80, 96, 112, 128, 192, 256, 320, 512, 1024};
    uint64_t r = seed;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (uint32_t k = 0; k < 12; k++) {
            const merge_case c = {.q_heads = 1 + (uint32_t)(gpu_random(&r) % 7),
                                  .dv = dims[i],
                                  .type = RKV_TYPE_F32 + k % 3,
                                  .to_out = k % 4 != 3,
                                  .sinks = k % 2,
                                  .lse = k % 6 != 5,
                                  .first_leaf = k % 5 ? gpu_random(&r) % 100 : ((uint64_t)1 << 33) - 20,
                                  .leaf_step = k % 3 == 0   ? 1
                                               : k % 3 == 1 ? 4
                                                            : 100000};
            if (!gpu_leaves_out())
                check_merge(&c, &r);
        }
}

int main(void)
{
    gpu_or_skip();
    seed = gpu_seed();
    gpu = gpu_open();
    rkvi_ops_ref(&ref);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_merge)};
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    rkvi_dev_destroy(gpu);
    return n_failed;
}
