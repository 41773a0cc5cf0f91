/* SPDX-License-Identifier: MIT
 *
 * device_check against a plain model, which keeps every operation and compares
 * byte by byte, on random programs.
 */
#include "device_check.h"
#include "device_kernels.h"
#include "device_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ok(call) assert_int_equal(call, RKV_OK)
#define PART_BYTES 4096u /* device_check keeps a block's history in such parts */
#define MODEL_BYTES 64
#define MODEL_OPS 60
#define MODEL_STREAMS 3

/* Which operations come before each other, and what they touch, in full. */
typedef struct model_op {
    int lane;               /* stream, or MODEL_STREAMS for the host */
    uint64_t before;        /* bit k: operation k comes before this one */
    uint64_t reads, writes; /* bit per byte */
} model_op;

typedef struct model {
    model_op ops[MODEL_OPS];
    int n;
    uint64_t known[MODEL_STREAMS + 1]; /* what comes before the lane's next operation */
    uint64_t event;
    uint64_t defined;
} model;

static rkvi_device *make_checked_sim(void)
{
    const rkvi_device_sim_settings s = {.order = RKVI_SIM_TIME};
    rkvi_device *sim, *d;
    ok(rkvi_device_sim_create(&s, &test_ops, &sim));
    ok(rkvi_device_check_create(sim, NULL, &d));
    return d;
}

static uint64_t rng_state;

static uint64_t rnd(uint64_t n)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (rng_state >> 33) % n;
}

static uint64_t bits(const rkvi_range *r, const unsigned char *base)
{
    uint64_t b = 0;
    for (size_t row = 0; row < (r->rows ? r->rows : 1); row++)
        for (size_t i = 0; i < r->bytes; i++)
            b |= (uint64_t)1 << ((size_t)((const unsigned char *)r->ptr - base) + row * r->pitch_bytes +
                                 i);
    return b;
}

static rkvi_range random_range(unsigned char *base)
{
    rkvi_range r = {.bytes = 1 + rnd(12), .rows = 1 + rnd(3)};
    r.pitch_bytes = r.bytes + rnd(6);
    const size_t extent = (r.rows - 1) * r.pitch_bytes + r.bytes;
    r.ptr = base + rnd(MODEL_BYTES - extent + 1);
    r.access = (uint32_t)(1 + rnd(3));
    return r;
}

/* Adds an operation; whether it races with an earlier one. */
static bool model_add(model *m, int lane, const rkvi_range *r, size_t n, const unsigned char *base,
                      bool *out_undefined)
{
    model_op *op = &m->ops[m->n];
    *op = (model_op){.lane = lane, .before = m->known[lane] | m->known[MODEL_STREAMS]};
    for (size_t i = 0; i < n; i++) {
        op->reads |= r[i].access & RKVI_READ ? bits(&r[i], base) : 0;
        op->writes |= r[i].access & RKVI_WRITE ? bits(&r[i], base) : 0;
    }
    bool races = false;
    for (int k = 0; k < m->n; k++) {
        const model_op *o = &m->ops[k];
        const bool conflict = (o->writes & (op->reads | op->writes)) || (o->reads & op->writes);
        races = races || (conflict && !(op->before >> k & 1));
    }
    *out_undefined = (op->reads & ~m->defined) != 0;
    m->defined |= op->writes;
    m->known[lane] = op->before | (uint64_t)1 << m->n;
    m->n++;
    return races;
}

/* One random program, up to its first race: both must name the same operation. */
static bool run_random_program(uint64_t seed)
{
    rkvi_device *d = make_checked_sim();
    void *streams[MODEL_STREAMS], *p;
    rkvi_event *e;
    model m = {0};
    bool races = false;
    rng_state = seed;
    const uint64_t skip_in = 2 + rnd(200); /* how rarely an edge is left out */
    ok(rkvi_dev(mem_alloc, d, 2 * PART_BYTES, &p));
    p = (char *)p + PART_BYTES - MODEL_BYTES / 2; /* over a part's edge */
    ok(rkvi_dev(event_create, d, &e));
    for (int i = 0; i < MODEL_STREAMS; i++)
        ok(rkvi_dev(stream_create, d, "s", &streams[i]));
    unsigned char *base = p, other[MODEL_BYTES];
    while (m.n < MODEL_OPS && !races) {
        const int lane = (int)rnd(MODEL_STREAMS + 1);
        const bool is_host = lane == MODEL_STREAMS;
        for (int t = 0; t < MODEL_STREAMS; t++) {
            if (rnd(skip_in) > 0) { /* else the event's former record is waited for */
                ok(rkvi_dev(event_record, d, e, streams[t]));
                m.known[t] |= m.known[MODEL_STREAMS];
                m.event = m.known[t];
            }
            if (is_host)
                ok(rkvi_dev(event_sync, d, e));
            else
                ok(rkvi_dev(stream_wait, d, streams[lane], e));
            m.known[lane] |= m.event;
        }
        bool undefined;
        const rkvi_range r[2] = {random_range(base), random_range(base)};
        const add_args args = {.dst = (uint32_t *)(void *)other};
        const rkvi_launch launch = {.op = OP_COUNT_UP,
                                    .args = &args,
                                    .args_bytes = sizeof args,
                                    .grid = 1,
                                    .ranges = r,
                                    .n_ranges = 2};
        if (is_host)
            rkvi_dev(host_access, d, r, 2);
        else
            ok(rkvi_dev(launch, d, &launch, streams[lane]));
        races = model_add(&m, lane, r, 2, base, &undefined);
        bool said_race = false, said_undefined = false;
        for (size_t i = 0; i < rkvi_device_check_count(d); i++) {
            said_race |= rkvi_device_check_report(d, i)->kind == RKVI_CHECK_RACE;
            said_undefined |= rkvi_device_check_report(d, i)->kind == RKVI_CHECK_UNDEFINED;
        }
        if (races != said_race || undefined != said_undefined)
            fail_msg("seed %u, operation %d: race %d, said %d; undefined %d, said %d", (unsigned)seed,
                     m.n - 1, races, said_race, undefined, said_undefined);
        rkvi_device_check_clear(d);
    }
    ok(rkvi_dev(event_destroy, d, e));
    rkvi_dev_destroy(d);
    return races;
}

static void test_against_a_plain_model(void **state)
{
    (void)state;
    unsigned n_races = 0, n = 400;
    for (unsigned seed = 0; seed < n; seed++)
        n_races += run_random_program(seed);
    printf("random programs, seeds 0 to %u: %u with a race, %u without\n", n - 1, n_races, n - n_races);
    assert_true(n_races > n / 10 && n_races < n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
