/* SPDX-License-Identifier: MIT
 *
 * bits_setups.h: setups over all residencies, rings, batches and flags, and
 * the comparison of a run with a reference; for the programs that try them on
 * their executors.
 */
#ifndef BITS_SETUPS_H
#define BITS_SETUPS_H

#include "bits_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const rkv_type pairs[][2] = {
    {RKV_TYPE_F16, RKV_TYPE_F16},           {RKV_TYPE_BF16, RKV_TYPE_BF16},
    {RKV_TYPE_FP8_E4M3, RKV_TYPE_FP8_E4M3}, {RKV_TYPE_Q8_0, RKV_TYPE_Q8_0},
    {RKV_TYPE_Q4_0, RKV_TYPE_Q4_0},         {RKV_TYPE_Q8_0, RKV_TYPE_Q4_0},
    {RKV_TYPE_F16, RKV_TYPE_Q8_0},          {RKV_TYPE_BF16, RKV_TYPE_Q8_0},
    {RKV_TYPE_F16, RKV_TYPE_Q4_0},
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static uint64_t brought_back_bytes, promoted_bytes, merged_early; /* over all runs */

static uint64_t largest_tile_layer(const bits_text *t, bits_executor executor)
{
    bits_setup s = {
        .executor = executor,
        .resident = {RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL}};
    bits_text small = *t;
    bits_result r;
    memset(small.n_ops, 0, sizeof small.n_ops);
    memset(small.n_rows, 0, sizeof small.n_rows);
    uint64_t most = 0;
    assert_int_equal(bits_run(&small, &s, &r), RKV_OK);
    for (uint32_t l = 0; l < BITS_LAYERS; l++)
        most = r.layers[l].tile_layer_host_bytes > most ? r.layers[l].tile_layer_host_bytes : most;
    bits_result_free(&r);
    return most;
}

/* All of it on the device. */
static void reference(const bits_text *t, bits_executor executor, bits_result *r)
{
    const bits_setup s = {
        .executor = executor,
        .seed = 3,
        .resident = {RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL}};
    const rkv_status st = bits_run(t, &s, r);
    if (st != RKV_OK)
        print_error("reference: %s\n", rkv_error_message());
    assert_int_equal(st, RKV_OK);
    assert_int_equal(r->stats.streamed_bytes, 0);
    assert_int_equal(r->stats.demoted_bytes, 0);
}

static void compare(const bits_text *t, const bits_result *want, const bits_setup *s)
{
    char text[400], where[200];
    bits_result got;
    bits_setup_print(s, text, sizeof text);
    if (getenv("ROLLKV_TEST_VERBOSE"))
        print_message("%s\n", text);
    const rkv_status st = bits_run(t, s, &got);
    if (st != RKV_OK)
        print_error("%s\n%s\n", text, rkv_error_message());
    assert_int_equal(st, RKV_OK);
    if (got.reports)
        print_error("%s\n%llu reports, first: %s\n", text, (unsigned long long)got.reports, got.report);
    assert_int_equal(got.reports, 0);
    if (!bits_same(t, want, &got, where, sizeof where)) {
        print_error("%s\n%s\n", text, where);
        fail();
    }
    if (s->resident[0] == RKV_RESIDENT_NONE) {
        assert_true(got.stats.streamed_bytes > 0);
        assert_true(got.stats.demoted_bytes > 0);
    }
    brought_back_bytes += got.stats.brought_back_bytes;
    promoted_bytes += got.stats.promoted_bytes;
    merged_early += got.stats.extra_launches;
    bits_result_free(&got);
}

/* Residency i of 6. */
static void set_resident(bits_setup *s, const bits_text *t, uint32_t i)
{
    const uint64_t half = t->max_cells / 2;
    const uint64_t table[6][BITS_LAYERS] = {
        {RKV_RESIDENT_NONE, RKV_RESIDENT_NONE, RKV_RESIDENT_NONE, RKV_RESIDENT_NONE},
        {t->tile_cells, t->tile_cells, t->tile_cells, t->tile_cells},
        {half, half, half, half},
        {RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL},
        {RKV_RESIDENT_NONE, RKV_RESIDENT_ALL, half, t->tile_cells},
        {RKV_RESIDENT_ALL, RKV_RESIDENT_NONE, 3 * t->tile_cells, RKV_RESIDENT_NONE},
    };
    memcpy(s->resident, table[i], sizeof s->resident);
}

/* Ring size i of 6, from the smallest legal one up. */
static uint64_t ring_size(uint64_t largest, uint32_t i)
{
    const uint64_t sizes[6] = {
        largest, largest + 256, 2 * largest, 5 * largest / 2 / 256 * 256, 7 * largest, 0};
    return sizes[i];
}

static bits_setup random_setup(const bits_text *t, bits_executor executor, uint64_t largest,
                               uint64_t *r)
{
    bits_setup s = {.seed = bits_random(r)};
    s.executor = executor;
    set_resident(&s, t, (uint32_t)(bits_random(r) % 6));
    s.ring_bytes = ring_size(largest, (uint32_t)(bits_random(r) % 6));
    s.copy_bytes = bits_random(r) % 2 ? 0 : (1 + bits_random(r) % 4) * largest;
    if (s.ring_bytes && s.copy_bytes > s.ring_bytes)
        s.copy_bytes = 0;
    s.flags = (uint32_t)(bits_random(r) % 8);
    s.mode = bits_random(r) % 6 == 0 ? RKV_MODE_OP_LEVEL : RKV_MODE_RING;
    s.draft_rows = bits_random(r) % 3 == 0 ? RKV_DRAFT_NONE : (uint32_t)(bits_random(r) % 40);
    s.steps_ahead = (uint32_t)(bits_random(r) % 4);
    s.max_rows = 16 + (uint32_t)(bits_random(r) % 180);
    s.target_runs = (uint32_t)(bits_random(r) % 3 ? bits_random(r) % 40 : 0);
    s.aborts = bits_random(r) % 2;
    s.rare_sync = bits_random(r) % 2;
    return s;
}

#endif
