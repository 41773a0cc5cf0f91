/* SPDX-License-Identifier: MIT
 *
 * test_overlap.c: how well copies hide behind compute, in virtual time, with
 * the cost per copy and per launch of a measured H200 on PCIe 5 x16.
 *
 * The step's time is held against
 *
 *   max(resident step + further launches * launch_ns, tail bytes / link)
 *
 * where `link` is the bandwidth of a plain copy of 64 MiB: launches that the
 * ring adds are counted as compute, so they must hide behind copies too once
 * the link is what limits.  Op-level is held against the sum of the resident
 * step and its copies, each of one tile-layer, at what such a copy costs.
 */
#include "cliff_shape.h"
#include "diag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define SEED 20u
#define WINDOW_TILES 4u
#define MIB ((uint64_t)1 << 20)

/* Measured steps. */
enum { ALIKE = 2, FEW = 4, MANY = 16 };

static void ok_at(rkv_status s, int line)
{
    if (s != RKV_OK)
        fail_msg("line %d: %s: %s", line, rkvi_status_name(s), rkvi_error_text());
}
#define ok(call) ok_at((call), __LINE__)

static cliff_shape shape_named(const char *name)
{
    cliff_shape shape;
    assert_true(cliff_shape_named(name, &shape));
    return shape;
}

static cliff_setup setup_of(const cliff_shape *shape, uint64_t link_bytes_per_s)
{
    cliff_setup setup = {
        .shape = shape, .machine = cliff_machine_h200(CLIFF_SIM), .window_tiles = WINDOW_TILES};
    if (link_bytes_per_s)
        setup.machine.link_bytes_per_s = link_bytes_per_s;
    return setup;
}

/* Tail tiles of a streaming site whose bytes cross in x times the compute. */
static uint64_t tiles_at(const cliff_setup *setup, double x, double link_bytes_per_s)
{
    const double tile_ns = (double)cliff_tile_bytes(setup->shape) * 1e9 / link_bytes_per_s;
    const double tiles = x * (double)setup->shape->compute_ns / tile_ns / cliff_streaming_sites(setup->shape);
    return tiles < 1 ? 1 : (uint64_t)(tiles + 0.5);
}

static cliff_world *make(const cliff_setup *setup, cliff_mode mode)
{
    cliff_setup s = *setup;
    cliff_world *w = NULL;
    s.mode = mode;
    ok(cliff_world_create(&s, &w));
    return w;
}

/* Virtual time is exact and repeats: resident and op-level steps are all
 * alike; the ring's differ with where the wrap falls, less so where many rounds
 * of it make a step. */
static cliff_result measure(cliff_world *w, uint64_t tiles, uint32_t steps)
{
    cliff_result r;
    ok(cliff_world_grow(w, tiles));
    ok(cliff_world_measure(w, steps > ALIKE ? 5 : 3, steps, &r));
    return r;
}

/* The ring's step over what it is held against. */
static double over_bound(const cliff_setup *setup, const cliff_result *resident, const cliff_result *ring,
                         double link_bytes_per_s)
{
    const double extra = (ring->launches - resident->launches) * (double)setup->machine.launch_ns;
    const double compute_ns = resident->step_ns + extra;
    const double tail_ns = (double)ring->list_bytes * 1e9 / link_bytes_per_s;
    return ring->step_ns / (compute_ns > tail_ns ? compute_ns : tail_ns);
}

static double over_sum(const cliff_setup *setup, const cliff_result *resident, const cliff_result *op_level)
{
    const cliff_machine *m = &setup->machine;
    const uint64_t bytes = cliff_tile_bytes(setup->shape);
    const double copy_ns = (double)bytes * 1e9 / (double)m->link_bytes_per_s + (double)m->copy_cost_ns;
    return op_level->step_ns / (resident->step_ns + copy_ns * (double)(op_level->list_bytes / bytes));
}

/* ------------------------------------------------------------------ the curve */

static const double points[] = {0.25, 0.5, 0.7, 0.8,  0.85, 0.9, 0.95, 1, 1.05,
                                1.1,  1.2, 1.3, 1.45, 1.6,  2,   3,    4, 8};
enum { N_POINTS = sizeof points / sizeof *points };

static void check_op_level(const cliff_setup *setup, cliff_world *w, uint64_t tiles, const cliff_result *resident)
{
    const cliff_result op_level = measure(w, tiles, ALIKE);
    const double sum = over_sum(setup, resident, &op_level);
    assert_int_equal(op_level.list_bytes, tiles * cliff_tile_bytes(setup->shape) * cliff_streaming_sites(setup->shape));
    if (sum < 0.9 || sum > 1.1)
        fail_msg("%llu tiles: resident %.3f ms, op-level %.3f, %.3f of the sum", (unsigned long long)tiles,
                 resident->step_ns * 1e-6, op_level.step_ns * 1e-6, sum);
}

/* Returns the ring's step over its bound.  w[CLIFF_OP_LEVEL] may be NULL. */
static double check_point(const cliff_setup *setup, cliff_world *const w[CLIFF_MODES], uint64_t tiles,
                          uint32_t steps, double link)
{
    const cliff_result resident = measure(w[CLIFF_RESIDENT], tiles, ALIKE);
    const cliff_result ring = measure(w[CLIFF_RING], tiles, steps);
    const double bound = over_bound(setup, &resident, &ring, link);
    assert_int_equal(resident.list_bytes, 0);
    assert_int_equal(ring.list_bytes, tiles * cliff_tile_bytes(setup->shape) * cliff_streaming_sites(setup->shape));
    if (bound < 0.999 || bound > 1.02)
        fail_msg("%llu tiles: resident %.3f ms, ring %.3f, %.4f of the bound", (unsigned long long)tiles,
                 resident.step_ns * 1e-6, ring.step_ns * 1e-6, bound);
    if (w[CLIFF_OP_LEVEL])
        check_op_level(setup, w[CLIFF_OP_LEVEL], tiles, &resident);
    return bound;
}

typedef enum { PLAIN, WAITS, GRAPHS } curve_kind;

static void check_curve(const cliff_shape *shape, curve_kind kind)
{
    cliff_setup setup = setup_of(shape, 0);
    cliff_world *w[CLIFF_MODES];
    double link, worst = 0;
    setup.waits = kind == WAITS;
    setup.graphs = kind == GRAPHS;
    ok(cliff_link_measure(&setup.machine, &link));
    assert_true(link > 55e9 && link < 56e9);
    setup.most_tail_tiles = tiles_at(&setup, points[N_POINTS - 1], link);
    for (uint32_t m = 0; m < CLIFF_MODES; m++)
        w[m] = kind != PLAIN && m == CLIFF_OP_LEVEL ? NULL : make(&setup, (cliff_mode)m);
    uint64_t done = 0;
    for (uint32_t i = 0; i < N_POINTS; i++) {
        const uint64_t tiles = tiles_at(&setup, points[i], link);
        const uint32_t steps = points[i] > 2 ? FEW : MANY;
        const double bound = tiles > done ? check_point(&setup, w, tiles, steps, link) : 0;
        worst = bound > worst ? bound : worst;
        done = tiles;
    }
    print_message("%s: at worst %.4f of the bound\n", shape->name, worst);
    for (uint32_t m = 0; m < CLIFF_MODES; m++)
        cliff_world_destroy(w[m]);
}

static void test_few_sites(void **state)
{
    (void)state;
    const cliff_shape shape = shape_named("gemma-a4b");
    assert_int_equal(shape.n_sites, 30);
    assert_int_equal(cliff_streaming_sites(&shape), 5);
    check_curve(&shape, PLAIN);
}

static void test_all_sites(void **state)
{
    (void)state;
    const cliff_shape shape = shape_named("qwen14b");
    assert_int_equal(shape.n_sites, 48);
    assert_int_equal(cliff_streaming_sites(&shape), 48);
    check_curve(&shape, PLAIN);
}

/* An engine that waits for a step's end to choose the next token begins the
 * next step late; what the ring prefetched by then keeps the link's lead. */
static void test_waiting_host(void **state)
{
    (void)state;
    const cliff_shape few = shape_named("gemma-a4b"), all = shape_named("qwen14b");
    check_curve(&few, WAITS);
    check_curve(&all, WAITS);
}

/* A whole step as one graph, whose copies end with it: what it copies ahead for the
 * next one must keep the link at work, the output head's time included. */
static void test_graphs(void **state)
{
    (void)state;
    cliff_shape few = shape_named("gemma-a4b"), all = shape_named("qwen14b");
    few.compute_ns = 2500000; /* as measured */
    few.head_share = 0.19;
    check_curve(&few, GRAPHS);
    few.jitter = 0.5;
    few.seed = SEED;
    check_curve(&few, GRAPHS);
    all.head_share = 0.06;
    check_curve(&all, GRAPHS);
}

/* ------------------------------------------------------------------- the rule */

/* 14 ms, five sites of 30: between two of them the link carries 18 MB at
 * 6.4 GB/s and 157 MB at 56 GB/s; two copy groups come on top, smaller ones
 * where the link is slower. */
static void test_ring_rule(void **state)
{
    (void)state;
    static const struct {
        uint64_t link_bytes_per_s;
        uint64_t gap_mb, copy_bytes;
    } table[] = {{6400000000u, 18, 2 * MIB}, {56000000000u, 157, 16 * MIB}};
    const cliff_shape shape = shape_named("gemma-a4b");
    for (uint32_t i = 0; i < 2; i++) {
        cliff_setup setup = setup_of(&shape, table[i].link_bytes_per_s);
        cliff_sizes sizes;
        setup.most_tail_tiles = 400;
        ok(cliff_sizes_get(&setup, &sizes));
        assert_int_equal((sizes.rule_bytes - 2 * table[i].copy_bytes + 500000) / 1000000, table[i].gap_mb);
        assert_in_range(sizes.ring_bytes, sizes.rule_bytes, sizes.rule_bytes + 255);
        assert_int_equal(sizes.copy_bytes, table[i].copy_bytes);
    }
}

static double ring_at(const cliff_setup *setup, uint64_t ring_bytes, uint64_t tiles, double link)
{
    cliff_setup s = *setup;
    s.most_tail_tiles = tiles;
    s.ring_bytes = ring_bytes;
    cliff_world *resident = make(&s, CLIFF_RESIDENT), *ring = make(&s, CLIFF_RING);
    const cliff_result a = measure(resident, tiles, ALIKE), b = measure(ring, tiles, MANY);
    cliff_world_destroy(resident);
    cliff_world_destroy(ring);
    return over_bound(setup, &a, &b, link);
}

/* A ring by the rule is enough around the knee; a quarter of it is not. */
static void check_rule(const cliff_setup *setup)
{
    static const double near_knee[] = {0.9, 1, 1.1};
    double link;
    cliff_sizes sizes;
    ok(cliff_link_measure(&setup->machine, &link));
    cliff_setup s = *setup;
    s.most_tail_tiles = tiles_at(setup, 2, link);
    ok(cliff_sizes_get(&s, &sizes));
    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t tiles = tiles_at(setup, near_knee[i], link);
        const double whole = ring_at(setup, sizes.ring_bytes, tiles, link);
        const double quarter = ring_at(setup, sizes.rule_bytes / 4, tiles, link);
        if (whole < 0.999 || whole > 1.02 || quarter < 1.1)
            fail_msg("%.1f GB/s, %llu tiles: %.4f of the bound with a ring of %llu bytes, %.4f with a quarter",
                     link * 1e-9, (unsigned long long)tiles, whole, (unsigned long long)sizes.rule_bytes, quarter);
    }
}

static void test_rule_suffices(void **state)
{
    (void)state;
    const cliff_shape shape = shape_named("gemma-a4b");
    cliff_setup slow = setup_of(&shape, 6400000000u);
    const cliff_setup fast = setup_of(&shape, 56000000000u);
    check_rule(&slow);
    check_rule(&fast);
    slow.waits = true;
    check_rule(&slow);
}

/* Sites of unlike compute, and much of it after the last attention: the
 * longest gap lies over the step's edge. */
static void test_uneven(void **state)
{
    (void)state;
    cliff_shape shape = shape_named("gemma-a4b");
    shape.head_share = 0.1;
    shape.jitter = 0.5;
    shape.seed = SEED;
    print_message("seed %u\n", SEED);
    const cliff_setup fast = setup_of(&shape, 0);
    check_rule(&fast);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_sites), cmocka_unit_test(test_all_sites),
        cmocka_unit_test(test_waiting_host), cmocka_unit_test(test_graphs), cmocka_unit_test(test_ring_rule),
        cmocka_unit_test(test_rule_suffices), cmocka_unit_test(test_uneven),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
