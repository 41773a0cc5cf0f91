/* SPDX-License-Identifier: MIT
 *
 * The ring against a simulation byte by byte: every launch finds its own
 * bytes, no copy overwrites what an earlier launch may still read, no launch
 * waits for ever.
 */
#include "core_random.h"
#include "ring.h"

#define ok(call) assert_int_equal(call, RKV_OK)

enum { RING_MAX = 1 << 14, LIST_MAX = 400, LAYERS_MAX = 4, SITES_MAX = 6, TILES_MAX = 60 };

typedef struct layer {
    uint64_t bytes, pitch; /* of tile-layers in host memory */
    uint64_t host;
    bool in_tail[TILES_MAX];
    uint64_t out_mark[TILES_MAX];
    uint32_t generation[TILES_MAX];
} layer;

typedef struct world {
    rkvi_ring ring;
    layer layers[LAYERS_MAX];
    uint32_t site_layer[SITES_MAX];
    uint64_t serial[TILES_MAX];
    uint32_t n_layers, n_sites, n_tiles;
    uint64_t largest, last_serial;
    uint64_t launched, in_mark;
    bool one_each; /* a launch a tile-layer, as in op-level mode */
    /* what the device would hold */
    uint64_t content[RING_MAX]; /* key of the item whose byte it is */
    uint64_t reader[RING_MAX];  /* newest launch that read the byte */
    bool issued[LIST_MAX * 2];
    uint64_t issued_bytes, read_bytes;
} world;

static world w;

/* ------------------------------------------------------------------- making */

static uint64_t key_of(const rkvi_ring_item *it, uint64_t byte)
{
    uint64_t h = it->serial * 0x9E3779B97F4A7C15u + it->site * 0x100000001B3u + it->layer * 7919u;
    return (h + it->generation) * 0xFF51AFD7ED558CCDu + byte;
}

static void make_layers(uint32_t unit)
{
    w.largest = 0;
    for (uint32_t l = 0; l < w.n_layers; l++) {
        layer *y = &w.layers[l];
        *y = (layer){.bytes = (uint64_t)unit * between(1, 5), .host = (uint64_t)(l + 1) << 24};
        y->pitch = one_in(3) ? y->bytes * 2 : y->bytes;
        for (uint32_t t = 0; t < w.n_tiles; t++) {
            y->in_tail[t] = !one_in(4);
            y->out_mark[t] = below(20);
        }
        w.largest = y->bytes > w.largest ? y->bytes : w.largest;
    }
}

static void make_world(uint32_t n_tiles)
{
    memset(&w, 0, sizeof w);
    const uint32_t unit = between(1, 9);
    w.n_layers = between(1, LAYERS_MAX);
    w.n_sites = between(w.n_layers, SITES_MAX);
    w.n_tiles = n_tiles;
    for (uint32_t t = 0; t < n_tiles; t++)
        w.serial[t] = ++w.last_serial;
    for (uint32_t s = 0; s < w.n_sites; s++)
        w.site_layer[s] = s < w.n_layers ? s : below(w.n_layers);
    make_layers(unit);
}

static void make_ring(uint64_t bytes, uint64_t copy_bytes, bool join)
{
    uint64_t smallest = w.largest;
    for (uint32_t l = 0; l < w.n_layers; l++)
        smallest = w.layers[l].bytes < smallest ? w.layers[l].bytes : smallest;
    assert_true(bytes <= RING_MAX && bytes >= w.largest);
    ok(rkvi_ring_init(&w.ring, bytes, copy_bytes, smallest, LIST_MAX));
    w.ring.join = join;
}

/* As plan cuts a site's list into launches; returns how many. */
static uint32_t cut(rkvi_ring_item *items, uint32_t n, uint64_t number)
{
    uint64_t most = w.one_each ? 0 : rkvi_ring_launch_bytes(w.ring.bytes, w.largest, w.ring.laps), total = 0, used = 0;
    uint32_t launch = 0;
    for (uint32_t i = 0; i < n; i++)
        total += items[i].bytes;
    const uint64_t group = w.ring.copy_bytes < most ? w.ring.copy_bytes : most;
    const uint64_t limit = total <= most ? total : group;
    for (uint32_t i = 0; i < n; i++) {
        if (used && used + items[i].bytes > limit) {
            launch++;
            used = 0;
        }
        used += items[i].bytes;
        items[i].launch = number + launch;
    }
    return launch + 1;
}

/* The list of a step that begins with launch `number`; *out_last is its last
 * launch (launches that read nothing from the ring are in between). */
static uint32_t make_list(rkvi_ring_item *items, uint64_t number, uint64_t *out_last)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < w.n_sites; s++) {
        layer *y = &w.layers[w.site_layer[s]];
        const uint32_t first = n;
        for (uint32_t t = 0; t < w.n_tiles; t++)
            if (y->in_tail[t])
                items[n++] = (rkvi_ring_item){.site = s,
                                              .layer = w.site_layer[s],
                                              .tile = t,
                                              .generation = y->generation[t],
                                              .serial = w.serial[t],
                                              .bytes = y->bytes,
                                              .host_addr = y->host + t * y->pitch,
                                              .out_mark = &y->out_mark[t]};
        assert_true(n <= LIST_MAX);
        number += cut(items + first, n - first, number);
    }
    *out_last = number - 1;
    return n;
}

/* ----------------------------------------------------------------- checking */

/* Pieces of one width, adjacent within a piece, at one pitch; none over the wrap. */
static void assert_joined(const rkvi_copy_group *g)
{
    const rkvi_ring *r = &w.ring;
    uint64_t at = 0, out_mark = 0, dep = 0;
    assert_true(g->n_items >= 1 && g->rows >= 1 && g->first + g->n_items <= r->n_items);
    assert_true(r->join || g->n_items == 1);
    assert_true(g->n_items == 1 || g->rows * g->width_bytes <= r->copy_bytes);
    assert_true(g->rows == 1 || g->pitch_bytes >= g->width_bytes);
    for (uint32_t i = g->first; i < g->first + g->n_items; i++) {
        const rkvi_ring_item *it = &r->items[i];
        const uint64_t row = at / g->width_bytes, in_row = at % g->width_bytes;
        assert_true(in_row + it->bytes <= g->width_bytes);
        assert_int_equal(it->host_addr, g->host_addr + (row ? row * g->pitch_bytes : 0) + in_row);
        assert_int_equal(it->at % r->bytes, g->offset + at);
        assert_true(g->offset + at + it->bytes <= r->bytes);
        assert_int_equal(it->in_mark, 0);
        out_mark = *it->out_mark > out_mark ? *it->out_mark : out_mark;
        dep = it->dep > dep ? it->dep : dep;
        at += it->bytes;
    }
    assert_int_equal(at, g->rows * g->width_bytes);
    assert_int_equal(g->out_mark, out_mark);
    assert_true(out_mark != RKVI_MARK_PENDING);
    assert_int_equal(g->dep, dep);
    assert_true(dep <= w.launched);
}

static void copy_in(const rkvi_copy_group *g)
{
    assert_joined(g);
    for (uint32_t i = g->first; i < g->first + g->n_items; i++) {
        const rkvi_ring_item *it = &w.ring.items[i];
        const uint64_t offset = it->at % w.ring.bytes;
        assert_true(it->dep < it->launch);
        assert_false(w.issued[i]);
        w.issued[i] = true;
        for (uint64_t b = 0; b < it->bytes; b++) {
            assert_true(w.reader[offset + b] <= g->dep);
            w.content[offset + b] = key_of(it, b);
        }
        w.issued_bytes += it->bytes;
    }
    rkvi_ring_issued(&w.ring, g, ++w.in_mark);
}

static void pump(uint64_t needed)
{
    rkvi_copy_group g;
    while (rkvi_ring_next_group(&w.ring, w.launched, needed, &g))
        copy_in(&g);
}

static void run_launch(uint64_t launch)
{
    pump(launch);
    for (uint32_t i = 0; i < w.ring.n_list; i++) {
        const rkvi_ring_item *it = &w.ring.items[i];
        if (it->launch != launch)
            continue;
        assert_true(it->in_mark != 0); /* else it would wait for ever */
        for (uint64_t b = 0; b < it->bytes; b++) {
            const uint64_t at = it->at % w.ring.bytes + b;
            if (w.content[at] != key_of(it, b))
                fail_msg("launch %llu: byte %llu of item %u is not its own", (unsigned long long)launch,
                         (unsigned long long)b, i);
            w.reader[at] = launch;
        }
        w.read_bytes += it->bytes;
    }
    w.launched = launch;
}

/* After plan or predict: every slot within the ring, dep before its launch. */
static void assert_laid_out(uint32_t from)
{
    for (uint32_t i = from; i < w.ring.n_items; i++) {
        const rkvi_ring_item *it = &w.ring.items[i];
        assert_true(it->at % w.ring.bytes + it->bytes <= w.ring.bytes);
        assert_true(it->in_mark || it->dep < it->launch);
        assert_true(i == 0 || i >= w.ring.n_list || it->launch >= w.ring.items[i - 1].launch);
        w.issued[i] = it->in_mark != 0;
    }
}

/* -------------------------------------------------------------------- steps */

/* The tail changes between steps; how wrong predictions are follows from it. */
static void change_world(uint32_t how)
{
    for (uint32_t i = 0; i < how; i++) {
        const uint32_t t = below(w.n_tiles), l = below(w.n_layers);
        switch (below(4)) {
        case 0: w.layers[l].in_tail[t] = !w.layers[l].in_tail[t]; break;
        case 1: w.layers[l].generation[t]++; break;
        case 2: w.serial[t] = ++w.last_serial; break; /* another tile in its place */
        default: w.layers[l].in_tail[w.n_tiles - 1 - below(3)] = true; break;
        }
    }
}

static void mark_pending(bool on)
{
    for (uint32_t l = 0; l < w.n_layers; l++)
        for (uint32_t t = 0; t < w.n_tiles; t++)
            if (w.layers[l].out_mark[t] == RKVI_MARK_PENDING)
                w.layers[l].out_mark[t] = below(20);
            else if (on && !w.layers[l].in_tail[t] && one_in(2)) {
                w.layers[l].out_mark[t] = RKVI_MARK_PENDING;
                w.layers[l].in_tail[t] = true; /* enters by the next step */
            }
}

static uint64_t plan(void)
{
    uint64_t last;
    const uint32_t n = make_list(rkvi_ring_new_items(&w.ring), w.launched + 1, &last);
    rkvi_ring_plan(&w.ring, n);
    assert_int_equal(w.ring.n_list, n);
    memset(w.issued, 0, sizeof w.issued);
    assert_laid_out(0);
    return last;
}

static void predict(uint64_t last)
{
    uint64_t unused;
    const uint32_t n = make_list(rkvi_ring_new_items(&w.ring), last + 1, &unused);
    rkvi_ring_predict(&w.ring, n, last);
    assert_true(w.ring.predict_cut || w.ring.n_items >= w.ring.n_list + n);
    assert_laid_out(w.ring.next > w.ring.n_list ? w.ring.next : w.ring.n_list);
}

typedef struct step_kind {
    uint32_t changes;
    bool predicts, hints, aborts;
} step_kind;

static void run_step(const step_kind *k)
{
    const uint64_t first = w.launched + 1;
    uint64_t last = plan();
    if (one_in(3))
        pump(0);
    if (k->predicts) {
        mark_pending(one_in(3));
        predict(last);
    }
    for (uint64_t launch = first; launch <= last; launch++) {
        if (one_in(2))
            pump(0);
        if (k->aborts && one_in(8)) {
            rkvi_ring_reset(&w.ring, w.launched);
            mark_pending(false);
            return;
        }
        run_launch(launch);
    }
    mark_pending(false);
    change_world(k->changes);
    if (k->hints)
        predict(w.launched);
    pump(0);
    change_world(k->changes / 2);
}

static void test_random(void **state)
{
    (void)state;
    start_random();
    for (uint32_t round = 0; round < rounds(1000, 10); round++) {
        make_world(between(3, one_in(4) ? TILES_MAX : 12));
        const uint64_t more = one_in(3) ? below(w.largest + 1) : below(w.largest * (one_in(2) ? 8 : 60));
        const uint64_t ring = w.largest + more < RING_MAX ? w.largest + more : RING_MAX;
        make_ring(ring, w.largest * between(1, 6), !one_in(3));
        w.one_each = one_in(8);
        step_kind k = {.predicts = !one_in(5), .hints = one_in(2), .aborts = one_in(3)};
        for (uint32_t i = 0; i < 12; i++) {
            k.changes = one_in(2) ? 0 : below(1 + w.n_tiles / 2);
            run_step(&k);
        }
        rkvi_ring_free(&w.ring);
    }
}

/* The same list again and again, predicted: nothing is copied twice. */
static void test_steady(void **state)
{
    (void)state;
    start_random();
    for (uint32_t round = 0; round < rounds(100, 20); round++) {
        make_world(between(2, 20));
        uint64_t list_bytes = 0;
        for (uint32_t s = 0; s < w.n_sites; s++)
            for (uint32_t t = 0; t < w.n_tiles; t++)
                list_bytes += w.layers[w.site_layer[s]].in_tail[t] * w.layers[w.site_layer[s]].bytes;
        make_ring(w.largest * between(1, 40) + below(5), w.largest * between(1, 6), one_in(2));
        for (uint32_t i = 0; i < 20; i++) {
            const uint64_t first = w.launched + 1, last = plan();
            pump(0);
            predict(last);
            for (uint64_t launch = first; launch <= last; launch++) {
                run_launch(launch);
                pump(0);
            }
            assert_int_equal(w.read_bytes, (i + 1) * list_bytes);
            assert_int_equal(w.issued_bytes - w.read_bytes, rkvi_ring_ahead_bytes(&w.ring, w.launched));
            assert_true(w.issued_bytes - w.read_bytes <= w.ring.bytes);
        }
        assert_int_equal(w.ring.predicted_wrong, 0);
        assert_int_equal(w.ring.discarded_bytes, 0);
        rkvi_ring_free(&w.ring);
    }
}

/* ------------------------------------------------------------- chosen cases */

/* One KV layer of 10-byte tile-layers, one site; all in the tail. */
static void make_simple(uint32_t n_tiles, uint64_t ring, uint64_t copy)
{
    memset(&w, 0, sizeof w);
    w.n_layers = w.n_sites = 1;
    w.n_tiles = n_tiles;
    w.largest = 10;
    w.layers[0] = (layer){.bytes = 10, .pitch = 10, .host = 4096};
    for (uint32_t t = 0; t < n_tiles; t++) {
        w.serial[t] = ++w.last_serial;
        w.layers[0].in_tail[t] = true;
    }
    make_ring(ring, copy, true);
}

/* What is predicted beyond the room: its last, short group waits for more. */
static void test_predict_cut(void **state)
{
    (void)state;
    rkvi_copy_group g;
    make_simple(8, 60, 30); /* launches of 3, 3 and 2 */
    const uint64_t last = plan();
    assert_int_equal(last, 3);
    predict(last);
    assert_true(w.ring.predict_cut); /* a seventh would cover the first predicted one */
    assert_int_equal(w.ring.n_items, 14);
    pump(0);
    assert_int_equal(w.ring.next, 6);
    run_launch(1);
    pump(0);
    assert_int_equal(w.ring.next, 8); /* 6 and 7: 8 is the first tile again, not adjacent */
    run_launch(2);
    pump(0);
    assert_int_equal(w.ring.next, 12);
    run_launch(3);
    assert_false(rkvi_ring_next_group(&w.ring, w.launched, 0, &g));
    plan(); /* the real list has its other entries: 12 and 13 go with them */
    assert_int_equal(w.ring.predicted_right, 4);
    assert_false(rkvi_ring_next_group(&w.ring, w.launched, 0, &g)); /* 6 goes where 0 lies */
    run_launch(4);
    assert_true(rkvi_ring_next_group(&w.ring, w.launched, 0, &g));
    assert_int_equal(g.first, 4);
    assert_int_equal(g.n_items, 3);
    assert_int_equal(g.dep, 4);
    rkvi_ring_free(&w.ring);
}

/* Predicted twice: what the first one copied is not copied again. */
static void test_predict_again(void **state)
{
    (void)state;
    make_simple(4, 100, 20);
    const uint64_t last = plan();
    predict(last);
    pump(0);
    assert_int_equal(w.ring.next, 8);
    run_launch(last);
    predict(last);
    pump(0);
    assert_int_equal(w.issued_bytes, 80);
    plan();
    assert_int_equal(w.ring.predicted_right, 4);
    assert_int_equal(w.ring.predicted_wrong, 0);
    rkvi_ring_free(&w.ring);

    make_simple(8, 60, 30); /* and what is not copied yet keeps its slot and its dep */
    plan();
    predict(3);
    assert_int_equal(w.ring.items[8].dep, 1);
    predict(3);
    assert_int_equal(w.ring.items[8].dep, 1);
    assert_int_equal(w.ring.n_items, 14);
    assert_true(w.ring.predict_cut);
    w.layers[0].generation[2]++; /* the third one, and those behind it, are laid out anew */
    predict(3);
    assert_int_equal(w.ring.items[9].dep, 2);
    assert_int_equal(w.ring.items[10].generation, 1);
    assert_int_equal(w.ring.n_items, 14);
    rkvi_ring_free(&w.ring);
}

/* A new entry in front of a full prediction: the one used last makes room. */
static void test_missing_in_front(void **state)
{
    (void)state;
    make_simple(12, 60, 10);
    w.layers[0].in_tail[0] = false;
    for (uint32_t t = 6; t < 12; t++)
        w.layers[0].in_tail[t] = false; /* 5 entries */
    uint64_t last = plan();
    for (uint64_t l = 1; l <= last; l++)
        run_launch(l);
    predict(last);
    pump(0);
    assert_int_equal(w.ring.next, 10);
    w.layers[0].in_tail[0] = true;
    w.layers[0].in_tail[6] = true;
    const uint64_t first = w.launched + 1;
    last = plan();
    assert_int_equal(w.ring.predicted_right, 5);
    assert_int_equal(w.ring.predicted_wrong, 0);
    assert_int_equal(w.ring.items[0].in_mark, 0);
    for (uint32_t i = 1; i <= 4; i++)
        assert_true(w.ring.items[i].in_mark != 0);
    for (uint64_t l = first; l <= last; l++)
        run_launch(l);
    rkvi_ring_free(&w.ring);
}

/* A copy-out that is planned only holds its entry back, and its group. */
static void test_pending(void **state)
{
    (void)state;
    rkvi_copy_group g;
    make_simple(4, 100, 20);
    const uint64_t last = plan();
    pump(0);
    w.layers[0].out_mark[1] = RKVI_MARK_PENDING;
    predict(last);
    assert_false(rkvi_ring_next_group(&w.ring, 0, 0, &g));
    w.layers[0].out_mark[1] = 3;
    pump(0);
    assert_int_equal(w.ring.next, 8);
    run_launch(last);
    w.layers[0].out_mark[1] = 9; /* matched all the same: the bytes are the generation's */
    plan();
    assert_int_equal(w.ring.predicted_right, 4);
    rkvi_ring_free(&w.ring);
}

/* Pieces at an equal pitch are one copy of several rows. */
static void test_pitch(void **state)
{
    (void)state;
    rkvi_copy_group g;
    make_simple(7, 200, 40);
    w.layers[0].pitch = 25;
    plan();
    assert_true(rkvi_ring_next_group(&w.ring, 0, 0, &g));
    assert_int_equal(g.n_items, 4);
    assert_int_equal(g.rows, 4);
    assert_int_equal(g.width_bytes, 10);
    assert_int_equal(g.pitch_bytes, 25);
    copy_in(&g);
    assert_true(rkvi_ring_next_group(&w.ring, 0, 0, &g));
    assert_int_equal(g.rows, 3);
    rkvi_ring_free(&w.ring);
}

static void test_empty(void **state)
{
    (void)state;
    rkvi_copy_group g;
    make_simple(3, 30, 10);
    rkvi_ring_plan(&w.ring, 0);
    rkvi_ring_predict(&w.ring, 0, 0);
    assert_false(rkvi_ring_next_group(&w.ring, 0, 5, &g));
    assert_int_equal(rkvi_ring_ahead_bytes(&w.ring, 0), 0);
    rkvi_ring_reset(&w.ring, 0);
    rkvi_ring_free(&w.ring);
    assert_int_equal(rkvi_ring_launch_bytes(19, 10, false), 0);
    assert_int_equal(rkvi_ring_launch_bytes(20, 10, false), 10);
}

static void test_absurd_size(void **state)
{
    (void)state;
    rkvi_ring r;
    assert_int_equal(rkvi_ring_init(&r, (uint64_t)1 << 50, 4096, 4096, 16), RKV_E_OVERFLOW);
    rkvi_ring_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_absurd_size),
        cmocka_unit_test(test_predict_cut),
        cmocka_unit_test(test_predict_again),
        cmocka_unit_test(test_missing_in_front),
        cmocka_unit_test(test_pending),
        cmocka_unit_test(test_pitch),
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
