/* SPDX-License-Identifier: MIT
 *
 * Copies between host slabs and the device, pinned and through the bounce
 * buffer: random shapes, both directions, every byte compared, gaps included.
 */
#include "arena_fixture.h"
#include "device_sim.h"

enum { HOST = 0, DEVICE = 1 };

typedef struct fixture {
    rkvi_device *d;
    rkvi_arena *a;
    void *in, *out; /* a stream for each direction */
    uint64_t bytes; /* of each of what follows */
    unsigned char *mem[2], *model[2];
} fixture;

static unsigned seed = 1357;

static uint64_t below(uint64_t n)
{
    return (((uint64_t)rand_r(&seed) << 31) + (uint64_t)rand_r(&seed)) % n;
}

static void scramble(unsigned char *p, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)rand_r(&seed);
}

/* Device memory can't be written by the test: it goes there by a copy. */
static void set_device(fixture *f)
{
    void *staging;
    ok(rkvi_dev(host_alloc, f->d, f->bytes, &staging));
    memcpy(staging, f->model[DEVICE], f->bytes);
    const rkvi_copy c = {RKVI_H2D, f->mem[DEVICE], staging, f->bytes, 1, 0, 0};
    ok(rkvi_dev(copy, f->d, &c, f->in));
    ok(rkvi_dev(stream_sync, f->d, f->in));
    ok(rkvi_dev(host_free, f->d, staging));
}

static fixture make(rkvi_device *d, uint64_t slab, uint64_t bounce, uint64_t bytes)
{
    fixture f = {.d = d, .bytes = bytes};
    const rkvi_arena_settings s = {.dev = f.d,
                                   .limit_bytes = MIB,
                                   .total_bytes = MIB,
                                   .slab_bytes = slab,
                                   .bounce_bytes = bounce,
                                   .numa_node = -1};
    ok(rkvi_arena_create(&s, &f.a));
    ok(rkvi_dev(stream_create, f.d, "in", &f.in));
    ok(rkvi_dev(stream_create, f.d, "out", &f.out));
    f.mem[HOST] = take(f.a, bytes);
    void *p;
    ok(rkvi_dev(mem_alloc, f.d, bytes, &p));
    f.mem[DEVICE] = p;
    for (uint32_t i = 0; i < 2; i++) {
        f.model[i] = malloc(bytes);
        assert_non_null(f.model[i]);
        scramble(f.model[i], bytes);
    }
    memcpy(f.mem[HOST], f.model[HOST], bytes);
    set_device(&f);
    return f;
}

static void end(fixture *f)
{
    ok(rkvi_dev(stream_destroy, f->d, f->in));
    ok(rkvi_dev(stream_destroy, f->d, f->out));
    ok(rkvi_dev(mem_free, f->d, f->mem[DEVICE]));
    rkvi_arena_destroy(f->a);
    end_device(f->d);
    free(f->model[HOST]);
    free(f->model[DEVICE]);
}

static void compare(fixture *f)
{
    ok(rkvi_dev(stream_sync, f->d, f->in));
    ok(rkvi_dev(stream_sync, f->d, f->out));
    assert_memory_equal(f->mem[HOST], f->model[HOST], f->bytes);
    void *staging;
    ok(rkvi_dev(host_alloc, f->d, f->bytes, &staging));
    const rkvi_copy c = {RKVI_D2H, staging, f->mem[DEVICE], f->bytes, 1, 0, 0};
    ok(rkvi_dev(copy, f->d, &c, f->out));
    ok(rkvi_dev(stream_sync, f->d, f->out));
    assert_memory_equal(staging, f->model[DEVICE], f->bytes);
    ok(rkvi_dev(host_free, f->d, staging));
}

/* The arena's copy, and the same in the model. */
static void copy(fixture *f, rkvi_copy c, uint64_t dst_offset, uint64_t src_offset)
{
    const uint32_t dst = c.direction == RKVI_H2D ? DEVICE : HOST;
    c.dst = f->mem[dst] + dst_offset;
    c.src = f->mem[!dst] + src_offset;
    ok(rkvi_arena_copy(f->a, &c, c.direction == RKVI_H2D ? f->in : f->out));
    for (size_t row = 0; row < c.rows; row++)
        memcpy(f->model[dst] + dst_offset + row * c.dst_pitch_bytes,
               f->model[!dst] + src_offset + row * c.src_pitch_bytes, c.width_bytes);
}

/* A shape that fits `bytes` on both sides. */
static void copy_random(fixture *f, rkvi_direction direction)
{
    rkvi_copy c = {.direction = direction};
    c.rows = below(3) ? 1 + below(40) : 1;
    c.width_bytes = 1 + below(f->bytes / c.rows);
    const uint64_t gap_max = c.rows > 1 ? (f->bytes - c.rows * c.width_bytes) / (c.rows - 1) : 0;
    c.dst_pitch_bytes = c.width_bytes + below(gap_max + 1);
    c.src_pitch_bytes = below(4) ? c.width_bytes + below(gap_max + 1) : c.dst_pitch_bytes;
    const uint64_t dst_span = (c.rows - 1) * c.dst_pitch_bytes + c.width_bytes;
    const uint64_t src_span = (c.rows - 1) * c.src_pitch_bytes + c.width_bytes;
    copy(f, c, below(f->bytes - dst_span + 1), below(f->bytes - src_span + 1));
}

static void check_random(rkvi_device *d, uint64_t bounce, bool is_pinned)
{
    print_message("seed %u, bounce buffer of %llu bytes, %s\n", seed, (unsigned long long)bounce,
                  is_pinned ? "pinned" : "unpinned");
    fixture f = make(d, MIB, bounce, 512 * KIB);
    assert_int_equal(counters(f.a).unpinned_bytes > 0, !is_pinned);
    for (uint32_t i = 0; i < 60; i++) {
        /* a burst on one stream, so that pieces queue up behind each other */
        const rkvi_direction direction = below(2) ? RKVI_H2D : RKVI_D2H;
        for (uint64_t n = 1 + below(4); n > 0; n--)
            copy_random(&f, direction);
        ok(rkvi_dev(stream_sync, f.d, direction == RKVI_H2D ? f.in : f.out));
        if (i % 10 == 9)
            compare(&f);
    }
    rkvi_device_usage usage;
    rkvi_device_usage_get(f.d, &usage);
    assert_int_equal(usage.pageable_copies, 0);
    end(&f);
}

static const rkvi_device_limits small_pins = {.register_max_bytes = 400 * KIB,
                                              .host_alloc_max_bytes = 600 * KIB};

static void test_pinned(void **state)
{
    (void)state;
    check_random(make_device(NULL), 0, true);
}

static void test_bounce(void **state)
{
    (void)state;
    /* 4 KiB: most rows are longer than the buffer */
    check_random(make_device(&small_pins), 4 * KIB, false);
    check_random(make_device(&small_pins), 64 * KIB, false);
    check_random(make_device(&small_pins), 200 * KIB, false);
}

/* What the pieces declare is all that they touch, and FIFO order is enough. */
static void test_bounce_in_sim(void **state)
{
    (void)state;
    for (uint64_t sim_seed = 1; sim_seed <= 4; sim_seed++) {
        const rkvi_device_sim_settings s = {.order = RKVI_SIM_SEEDED,
                                            .seed = sim_seed,
                                            .poison = RKVI_SIM_POISON_ALL,
                                            .limits = small_pins};
        rkvi_device *d;
        ok(rkvi_device_sim_create(&s, &no_ops, &d));
        check_random(d, sim_seed * 16 * KIB, false);
    }
}

/* Both directions at once, in different halves of the memory: each has a
 * bounce buffer of its own. */
static void check_both_ways(rkvi_device *d)
{
    fixture f = make(d, MIB, 16 * KIB, 512 * KIB);
    const uint64_t half = 256 * KIB;
    for (uint32_t i = 0; i < 10; i++) {
        for (uint32_t k = 0; k < 4; k++) {
            const uint64_t bytes = 1 + below(half);
            const rkvi_copy in = {RKVI_H2D, NULL, NULL, bytes, 1, 0, 0};
            copy(&f, in, below(half - bytes + 1), below(half - bytes + 1));
            const rkvi_copy out = {RKVI_D2H, NULL, NULL, bytes, 1, 0, 0};
            copy(&f, out, half + below(half - bytes + 1), half + below(half - bytes + 1));
        }
        compare(&f);
    }
    end(&f);
}

static void test_both_ways(void **state)
{
    (void)state;
    check_both_ways(make_device(&small_pins));
    for (uint64_t sim_seed = 1; sim_seed <= 8; sim_seed++) {
        const rkvi_device_sim_settings s = {
            .order = RKVI_SIM_SEEDED, .seed = sim_seed, .limits = small_pins};
        rkvi_device *d;
        ok(rkvi_device_sim_create(&s, &no_ops, &d));
        check_both_ways(d);
    }
}

/* Nothing can be pinned: the executor copies as it is. */
static void test_no_bounce(void **state)
{
    (void)state;
    rkvi_device *d =
        make_device(&(rkvi_device_limits){.register_max_bytes = 1, .host_alloc_max_bytes = 64 * KIB});
    const rkvi_arena_settings s = {.dev = d, .limit_bytes = MIB, .total_bytes = MIB, .numa_node = -1};
    rkvi_arena *a;
    ok(rkvi_arena_create(&s, &a));
    assert_int_equal(counters(a).bounce_bytes, 0);
    unsigned char *p = take(a, MIB);
    memset(p, 5, MIB);
    void *stream, *mem;
    ok(rkvi_dev(stream_create, d, "s", &stream));
    ok(rkvi_dev(mem_alloc, d, MIB, &mem));
    const rkvi_copy in = {RKVI_H2D, mem, p, MIB, 1, 0, 0};
    ok(rkvi_arena_copy(a, &in, stream));
    ok(rkvi_dev(stream_sync, d, stream));
    memset(p, 6, MIB);
    const rkvi_copy out = {RKVI_D2H, p, mem, MIB, 1, 0, 0};
    ok(rkvi_arena_copy(a, &out, stream));
    ok(rkvi_dev(stream_sync, d, stream));
    for (uint64_t i = 0; i < MIB; i++)
        assert_int_equal(p[i], 5);
    ok(rkvi_dev(mem_free, d, mem));
    ok(rkvi_dev(stream_destroy, d, stream));
    rkvi_arena_destroy(a);
    end_device(d);
}

/* Rows in different slabs, some pinned and some not: each goes its own way. */
static void test_over_slabs(void **state)
{
    (void)state;
    enum { ROWS = 6 };
    const uint64_t row = 64 * KIB;
    rkvi_device *d = make_device(&(rkvi_device_limits){.register_total_bytes = 260 * KIB});
    const rkvi_arena_settings s = {.dev = d,
                                   .limit_bytes = ROWS * row,
                                   .total_bytes = ROWS * row,
                                   .slab_bytes = row,
                                   .bounce_bytes = 16 * KIB,
                                   .numa_node = -1};
    rkvi_arena *a;
    ok(rkvi_arena_create(&s, &a));
    unsigned char *at[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        at[i] = take(a, row);
        scramble(at[i], row);
    }
    assert_int_equal(counters(a).pinned_bytes, 3 * row);
    assert_int_equal(counters(a).unpinned_bytes, 3 * row);
    void *stream, *mem, *back;
    ok(rkvi_dev(stream_create, d, "s", &stream));
    ok(rkvi_dev(mem_alloc, d, 2 * row, &mem));
    back = malloc(2 * row);
    assert_non_null(back);
    for (uint32_t i = 0; i + 1 < ROWS; i++) {
        /* the lower one first: a pitch is not negative */
        unsigned char *low = at[i] < at[i + 1] ? at[i] : at[i + 1];
        unsigned char *high = at[i] < at[i + 1] ? at[i + 1] : at[i];
        assert_false(rkvi_arena_same_slab(a, low, high));
        const rkvi_copy in = {RKVI_H2D, mem, low, row, 2, row, (size_t)(high - low)};
        ok(rkvi_arena_copy(a, &in, stream));
        const rkvi_copy out = {RKVI_D2H, back, mem, 2 * row, 1, 0, 0};
        ok(rkvi_dev(copy, d, &out, stream));
        ok(rkvi_dev(stream_sync, d, stream));
        assert_memory_equal(back, low, row);
        assert_memory_equal((unsigned char *)back + row, high, row);
    }
    free(back);
    ok(rkvi_dev(mem_free, d, mem));
    ok(rkvi_dev(stream_destroy, d, stream));
    rkvi_arena_destroy(a);
    end_device(d);
}

/* Each call that a bounced copy makes fails in turn; the next copy is right. */
static void test_failing_calls(void **state)
{
    (void)state;
    fixture f = make(make_device(&small_pins), MIB, 16 * KIB, 512 * KIB);
    const rkvi_copy c = {RKVI_H2D, f.mem[DEVICE], f.mem[HOST], 64 * KIB, 1, 0, 0};
    for (uint64_t nth = 1; nth <= 4; nth++) {
        rkvi_device_fail_call(f.d, RKVI_CALL_HOST_CALL, nth, RKV_E_DEVICE_CALL);
        assert_int_equal(rkvi_arena_copy(f.a, &c, f.in), RKV_E_DEVICE_CALL);
        rkvi_device_fail_call(f.d, RKVI_CALL_COPY, nth, RKV_E_DEVICE_CALL);
        assert_int_equal(rkvi_arena_copy(f.a, &c, f.in), RKV_E_DEVICE_CALL);
    }
    copy(&f, c, 0, 0);
    compare(&f);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pinned),        cmocka_unit_test(test_bounce),
        cmocka_unit_test(test_bounce_in_sim), cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_no_bounce),     cmocka_unit_test(test_over_slabs),
        cmocka_unit_test(test_failing_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
