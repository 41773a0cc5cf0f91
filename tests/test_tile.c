/* SPDX-License-Identifier: MIT
 *
 * The tile table: its state machine by table; records and serials.
 */
#include "core_random.h"
#include "tile.h"

#define ok(call) assert_int_equal(call, RKV_OK)
#define N_STATES 6

/* As drawn in tile.h: {from, event, to}; what is not listed is illegal. */
static const struct arrow {
    rkvi_tile_state from;
    rkvi_tile_event event;
    rkvi_tile_state to;
} arrows[] = {
    {RKVI_ABSENT, RKVI_TILE_OPEN, RKVI_ON_DEVICE},
    {RKVI_ON_DEVICE, RKVI_TILE_KEEP, RKVI_IN_WINDOW},
    {RKVI_IN_WINDOW, RKVI_TILE_KEEP, RKVI_IN_WINDOW},
    {RKVI_ON_DEVICE, RKVI_TILE_LEAVE, RKVI_LEAVING},
    {RKVI_IN_WINDOW, RKVI_TILE_LEAVE, RKVI_LEAVING},
    {RKVI_LEAVING, RKVI_TILE_ENTER, RKVI_IN_TAIL},
    {RKVI_LEAVING, RKVI_TILE_REOPEN, RKVI_ON_DEVICE},
    {RKVI_ON_DEVICE, RKVI_TILE_REOPEN, RKVI_ON_DEVICE},
    {RKVI_IN_WINDOW, RKVI_TILE_REOPEN, RKVI_IN_WINDOW},
    {RKVI_IN_TAIL, RKVI_TILE_BRING_BACK, RKVI_ON_DEVICE},
    {RKVI_IN_TAIL, RKVI_TILE_PROMOTE, RKVI_IN_WINDOW},
    {RKVI_ABSENT, RKVI_TILE_RELEASE, RKVI_ABSENT},
    {RKVI_ON_DEVICE, RKVI_TILE_RELEASE, RKVI_ABSENT},
    {RKVI_IN_WINDOW, RKVI_TILE_RELEASE, RKVI_ABSENT},
    {RKVI_LEAVING, RKVI_TILE_RELEASE, RKVI_ABSENT},
    {RKVI_IN_TAIL, RKVI_TILE_RELEASE, RKVI_ABSENT},
    {RKVI_ON_DEVICE, RKVI_TILE_FREE, RKVI_FREED},
    {RKVI_IN_WINDOW, RKVI_TILE_FREE, RKVI_FREED},
    {RKVI_LEAVING, RKVI_TILE_FREE, RKVI_FREED},
    {RKVI_IN_TAIL, RKVI_TILE_FREE, RKVI_FREED},
    {RKVI_FREED, RKVI_TILE_RELEASE, RKVI_ABSENT},
};

static const struct arrow *arrow_of(rkvi_tile_state from, rkvi_tile_event event)
{
    for (size_t i = 0; i < sizeof arrows / sizeof arrows[0]; i++)
        if (arrows[i].from == from && arrows[i].event == event)
            return &arrows[i];
    return NULL;
}

static void test_machine(void **state)
{
    (void)state;
    for (int from = 0; from < N_STATES; from++)
        for (int event = 0; event < RKVI_TILE_EVENTS; event++) {
            const struct arrow *a = arrow_of((rkvi_tile_state)from, (rkvi_tile_event)event);
            rkvi_tile_state to = (rkvi_tile_state)77;
            assert_int_equal(rkvi_tile_next((rkvi_tile_state)from, (rkvi_tile_event)event, &to), a != NULL);
            assert_int_equal(to, a ? (int)a->to : 77);
            if (!a)
                continue;
            rkvi_tile_layer l = {.state = (uint8_t)from, .generation = 9, .host_addr = 4096};
            rkvi_tile_apply(&l, (rkvi_tile_event)event);
            assert_int_equal(l.state, a->to);
            assert_int_equal(l.generation, 9);
            assert_int_equal(l.host_addr, 4096);
        }
}

static void assert_fresh(const rkvi_tiles *t, uint32_t tile)
{
    assert_int_equal(t->tiles[tile].refs, 1);
    for (uint32_t layer = 0; layer < t->n_layers; layer++) {
        const rkvi_tile_layer *l = rkvi_tile_layer_at(t, tile, layer);
        assert_int_equal(l->state, RKVI_ABSENT);
        assert_int_equal(l->device_place, RKVI_NO_PLACE);
        assert_int_equal(l->host_place, RKVI_NO_PLACE);
        assert_int_equal(l->device_addr, 0);
        assert_int_equal(l->host_addr, 0);
        assert_int_equal(l->generation, 0);
        assert_int_equal(l->out_mark, 0);
        assert_int_equal(l->enter_step, 0);
        assert_false(l->host_valid);
        assert_false(l->promoting);
    }
}

static void make_dirty(const rkvi_tiles *t, uint32_t tile)
{
    for (uint32_t layer = 0; layer < t->n_layers; layer++)
        *rkvi_tile_layer_at(t, tile, layer) = (rkvi_tile_layer){.device_addr = 1,
                                                               .host_addr = 2,
                                                               .out_mark = 3,
                                                               .enter_step = 4,
                                                               .generation = 5,
                                                               .state = RKVI_IN_TAIL,
                                                               .host_valid = true,
                                                               .promoting = true};
}

/* Records are used again, serials never. */
static void test_records(void **state)
{
    enum { N = 37, LAYERS = 3 };
    (void)state;
    start_random();
    rkvi_tiles t;
    uint64_t last = 0;
    uint32_t taken[N], n = 0;
    bool used[N] = {false};
    ok(rkvi_tiles_init(&t, N, LAYERS));
    for (uint32_t i = 0; i < rounds(20000, 50); i++) {
        if (below(N) >= n) {
            const uint32_t tile = rkvi_tiles_take(&t);
            assert_true(tile < N);
            assert_false(used[tile]);
            assert_true(t.tiles[tile].serial > last);
            assert_fresh(&t, tile);
            make_dirty(&t, tile);
            last = t.tiles[tile].serial;
            used[tile] = true;
            taken[n++] = tile;
        } else {
            const uint32_t k = below(n), tile = taken[k];
            taken[k] = taken[--n];
            t.tiles[tile].refs = 0;
            rkvi_tiles_give(&t, tile);
            used[tile] = false;
            assert_int_equal(t.tiles[tile].serial, 0);
        }
        assert_int_equal(t.n_free, N - n);
    }
    while (n < N)
        n += rkvi_tiles_take(&t) != UINT32_MAX;
    assert_int_equal(t.n_free, 0);
    assert_int_equal(rkvi_tiles_take(&t), UINT32_MAX);
    rkvi_tiles_free(&t);
}

static void test_references(void **state)
{
    (void)state;
    rkvi_tiles t;
    ok(rkvi_tiles_init(&t, 2, 1));
    const uint32_t a = rkvi_tiles_take(&t), b = rkvi_tiles_take(&t);
    assert_int_equal(t.n_shared, 0);
    rkvi_tiles_ref(&t, a);
    rkvi_tiles_ref(&t, a);
    rkvi_tiles_ref(&t, b);
    assert_int_equal(t.n_shared, 2);
    assert_int_equal(rkvi_tiles_unref(&t, a), 2);
    assert_int_equal(rkvi_tiles_unref(&t, b), 1);
    assert_int_equal(t.n_shared, 1);
    assert_int_equal(rkvi_tiles_unref(&t, a), 1);
    assert_int_equal(t.n_shared, 0);
    assert_int_equal(rkvi_tiles_unref(&t, a), 0);
    rkvi_tiles_give(&t, a);
    assert_int_equal(t.n_free, 1);
    rkvi_tiles_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
