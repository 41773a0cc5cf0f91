/* SPDX-License-Identifier: MIT
 *
 * A list that comes again: rkvi_ring_plan_again and _predict_again, in place and
 * with a part of the list, against the same list written anew.  Both rings give
 * the same copies at the same times, into the same slots.
 */
#include "core_random.h"
#include "ring.h"

enum { ITEMS_MAX = 300, STEPS = 6 };

/* Launch numbers count from 0. */
static uint32_t make_list(rkvi_ring_item *items, uint64_t *out_launches, uint64_t unit, uint64_t most_bytes)
{
    static const uint64_t copied_out = 1;
    const uint32_t n_sites = between(1, 4), n_tiles = between(1, ITEMS_MAX / 4);
    uint64_t number = 0, pitch = between(1, 2);
    uint32_t n = 0;
    for (uint32_t s = 0; s < n_sites; s++, number++) {
        const uint64_t bytes = unit * (s % 2 + 1);
        uint64_t used = 0;
        for (uint32_t t = 0; t < n_tiles; t++) {
            if (used && used + bytes > most_bytes) {
                number++;
                used = 0;
            }
            used += bytes;
            items[n++] = (rkvi_ring_item){.site = s,
                                          .layer = s,
                                          .tile = t,
                                          .serial = t / (one_in(40) ? 2 : 1) + 1, /* some come twice */
                                          .bytes = bytes,
                                          .host_addr = ((uint64_t)(s + 1) << 32) + t * bytes * pitch,
                                          .out_mark = &copied_out,
                                          .launch = number};
        }
    }
    *out_launches = number;
    return n;
}

static void write_list(rkvi_ring *r, const rkvi_ring_item *items, uint32_t n, uint64_t base)
{
    rkvi_ring_item *p = rkvi_ring_new_items(r);
    for (uint32_t i = 0; i < n; i++) {
        p[i] = items[i];
        p[i].launch += base;
    }
}

/* Both give the same groups, which are copied. */
static void pump(rkvi_ring *a, rkvi_ring *b, uint64_t launched, uint64_t needed, uint64_t *mark)
{
    rkvi_copy_group x = {0}, y = {0};
    for (;;) {
        const bool more = rkvi_ring_next_group(a, launched, needed, &x);
        assert_int_equal(rkvi_ring_next_group(b, launched, needed, &y), more);
        if (!more)
            break;
        assert_true(x.first == y.first && x.n_items == y.n_items && x.offset == y.offset &&
                    x.host_addr == y.host_addr && x.width_bytes == y.width_bytes && x.rows == y.rows &&
                    x.dep == y.dep && (x.rows == 1 || x.pitch_bytes == y.pitch_bytes));
        rkvi_ring_issued(a, &x, ++*mark);
        rkvi_ring_issued(b, &y, *mark);
    }
    assert_int_equal(rkvi_ring_ahead_bytes(a, launched), rkvi_ring_ahead_bytes(b, launched));
}

static void run(bool laps)
{
    static rkvi_ring_item items[2 * ITEMS_MAX];
    const uint64_t unit = between(1, 9), bytes = unit * between(10, 60);
    rkvi_ring a, b;
    uint64_t n_launches, mark = 0, base = 1;
    const uint64_t copy_bytes = unit * between(2, 20);
    assert_int_equal(rkvi_ring_init(&a, bytes, copy_bytes, unit, ITEMS_MAX), RKV_OK);
    assert_int_equal(rkvi_ring_init(&b, bytes, copy_bytes, unit, ITEMS_MAX), RKV_OK);
    a.laps = b.laps = laps;
    a.largest_bytes = b.largest_bytes = 2 * unit;
    const uint32_t n = make_list(items, &n_launches, unit, rkvi_ring_launch_bytes(bytes, 2 * unit, laps));
    for (uint32_t step = 0; step < STEPS; step++, base += n_launches) {
        write_list(&a, items, n, base);
        rkvi_ring_plan(&a, n);
        if (step == 0) {
            write_list(&b, items, n, base);
            rkvi_ring_plan(&b, n);
        } else {
            rkvi_ring_plan_again(&b, n, n_launches);
        }
        assert_int_equal(a.n_list, b.n_list);
        write_list(&a, items, n, base + n_launches);
        rkvi_ring_predict(&a, n, base + n_launches - 1);
        rkvi_ring_predict_again(&b, n_launches, base + n_launches - 1);
        assert_int_equal(a.n_items, b.n_items);
        assert_int_equal(a.predict_cut, b.predict_cut);
        for (uint64_t launch = base; launch < base + n_launches; launch++) {
            pump(&a, &b, launch - 1, launch, &mark);
            pump(&a, &b, launch, 0, &mark);
        }
        if (one_in(5)) {
            rkvi_ring_reset(&a, base + n_launches - 1);
            rkvi_ring_reset(&b, base + n_launches - 1);
        }
        assert_int_equal(a.predicted_right, b.predicted_right);
        assert_int_equal(a.discarded_bytes, b.discarded_bytes);
    }
    rkvi_ring_free(&a);
    rkvi_ring_free(&b);
}

static void test_again(void **state)
{
    (void)state;
    start_random();
    for (uint32_t i = 0; i < 300; i++)
        run(false);
}

static void test_again_in_laps(void **state)
{
    (void)state;
    start_random();
    for (uint32_t i = 0; i < 300; i++)
        run(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_again_in_laps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
