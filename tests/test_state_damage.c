/* SPDX-License-Identifier: MIT
 *
 * States that were damaged or made up are refused, and the cache is as before;
 * a file of this format's first version loads for ever (tests/data/state_v1.bin).
 */
#include "state_fixture.h"

#include "state_hash.h"
#include "state_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const float frequencies[3] = {1.0f, 0.25f, 0.0625f};

/* The model of the stored file: never changed. */
static fx_model small_model(fx_executor executor)
{
    fx_model m = fx_model_make(16, 0, 96);
    m.executor = executor;
    m.params.n_sequences = 2;
    m.params.max_rows = 32;
    m.params.rope = (rkv_rope_params){.frequencies = frequencies, .n_frequencies = 3, .pairing = 1};
    fx_add_layer(&m, 1, 32, 32, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 2, 32, 32, 16);
    m.layers[1].type_k = RKV_TYPE_Q8_0;
    m.layers[1].type_v = RKV_TYPE_Q4_0;
    return m;
}

static void small_text(fx *w)
{
    fx_append(w, 0, 37, RKV_REGIME_PREFILL, 100);
    fx_append(w, 0, 3, RKV_REGIME_DECODE, 200);
    fx_append(w, 1, 5, RKV_REGIME_PREFILL, 300);
}

/* A cache with a text, and a state of its sequence 0. */
static void open_small(fx *w, fx_bytes *state)
{
    const fx_model m = small_model(FX_HOST);
    fx_open(w, &m);
    small_text(w);
    fx_save(w, 0, state);
}

static void close_small(fx *w, fx_bytes *state)
{
    fx_compare_fresh(w, 0, 3);
    fx_compare_fresh(w, 1, 2);
    fx_check_empty(w);
    fx_bytes_free(state);
    fx_close(w);
}

static uint64_t description_end(const fx_bytes *b)
{
    rkvi_get g = {b->at + 24, b->at + 32, 0, 0};
    return 64 + rkvi_get_u64(&g) + 8;
}

static void test_every_byte_counts(void **state)
{
    (void)state;
    fx w;
    fx_bytes b;
    open_small(&w, &b);
    const uint64_t dense = description_end(&b), step = fx_is_full() ? 1 : 61;
    for (uint64_t i = 0; i < b.n; i += i < dense ? 1 : step) {
        const uint8_t was = b.at[i];
        b.at[i] = (uint8_t)(was ^ 1 << i % 8);
        const rkv_status s = fx_load(&w, 1, &b, i % 2);
        if (s != RKV_E_DATA && s != RKV_E_CAPACITY)
            fail_msg("byte %llu: status %d", (unsigned long long)i, s);
        b.at[i] = was;
    }
    fx_ok(fx_load(&w, 0, &b, true), "the whole one");
    close_small(&w, &b);
}

static void test_truncated(void **state)
{
    (void)state;
    fx w;
    fx_bytes b;
    open_small(&w, &b);
    const uint64_t whole = b.n, dense = description_end(&b);
    for (uint64_t n = 1; n < whole; n += n < dense ? 1 : fx_is_full() ? 8 : 200) {
        b.n = n;
        assert_int_equal(fx_load(&w, 1, &b, true), RKV_E_DATA); /* the size tells */
        assert_int_equal(fx_load(&w, 1, &b, false), RKV_E_IO);  /* reading ends */
    }
    b.n = whole - 1;
    assert_int_equal(fx_load(&w, 1, &b, false), RKV_E_IO);
    b.n = whole;
    b.read = 0;
    const rkv_state_params p = {.struct_size = sizeof p,
                                .sequence = 1,
                                .size_bytes = whole + 8,
                                .read = fx_read_bytes,
                                .user = &b};
    assert_int_equal(rkv_state_load(w.cache, &p), RKV_E_DATA);
    assert_non_null(strstr(rkv_error_message(), "followed by something else"));
    close_small(&w, &b);
}

static void seal(fx_bytes *b)
{
    rkvi_put p = {b->at + 56};
    rkvi_put_u64(&p, rkvi_state_hash(b->at, 56, 0));
    const uint64_t end = description_end(b);
    if (end > b->n || end < 72)
        return;
    p.at = b->at + end - 8;
    rkvi_put_u64(&p, rkvi_state_hash(b->at + 64, end - 72, 0));
}

/* Nothing in the cache may be out of order after a load that was accepted. */
static void accepted(fx *w)
{
    rkv_sequence_state info = {.struct_size = sizeof info};
    fx_ok(rkv_sequence_info(w->cache, 1, &info), "info");
    fx_ok(rkv_sequence_clear(w->cache, 1), "clear");
    w->n_cells[1] = 0;
}

/* Made up, with checksums that fit: refused, or a sequence as good as any. */
static void test_made_up(void **state)
{
    (void)state;
    fx w;
    fx_bytes b;
    uint64_t random = fx_seed(), n_accepted = 0;
    open_small(&w, &b);
    uint8_t *was = malloc(b.n);
    memcpy(was, b.at, b.n);
    const uint64_t end = description_end(&b);
    fx_ok(rkv_sequence_clear(w.cache, 1), "clear");
    w.n_cells[1] = 0;
    for (uint64_t i = 8; i < end - 8; i++)
        for (uint32_t way = 0; way < 3; way++) {
            memcpy(b.at, was, b.n);
            if (way == 0)
                b.at[i] ^= (uint8_t)(1 << i % 8);
            else if (way == 1)
                b.at[i] = 0xff;
            else
                for (uint32_t k = 0; k < 4; k++)
                    b.at[8 + fx_random(&random) % (end - 16)] = (uint8_t)fx_random(&random);
            seal(&b);
            const rkv_status s = fx_load(&w, 1, &b, i % 2);
            if (s == RKV_OK) {
                accepted(&w);
                n_accepted++;
            } else if (s != RKV_E_DATA && s != RKV_E_CAPACITY && s != RKV_E_IO) {
                fail_msg("byte %llu: status %d, %s", (unsigned long long)i, s, rkv_error_message());
            }
        }
    assert_true(n_accepted > 0); /* other positions, frequencies: as good as any */
    memcpy(b.at, was, b.n);
    free(was);
    fx_ok(fx_load(&w, 1, &b, true), "the whole one");
    fx_copy_record(&w, 1, &w, 0);
    close_small(&w, &b);
}

/* Bytes that must be 0, and a tile that must not be left out, in a state that is whole: each is
 * refused by name. */
static void test_reserved(void **state)
{
    (void)state;
    fx w;
    fx_bytes b;
    open_small(&w, &b);
    const uint64_t n_layers = w.model.n_layers, seq = 64 + 64 * (1 + n_layers) + 16; /* three frequencies */
    rkvi_get g = {b.at + seq, b.at + b.n, 0, 0};
    const uint32_t n_segments = rkvi_get_u32(&g), n_tiles = rkvi_get_u32(&g);
    const uint64_t segments = seq + 16 + rkvi_state_pad(4 * (uint64_t)n_tiles);
    const uint64_t at[] = {64 + 28, 64 + 63, segments + 28, segments + 32 * (uint64_t)(n_segments - 1) + 31,
                           segments - 1, seq - 1};
    assert_true(n_tiles % 2 == 1); /* padded */
    for (uint32_t i = 0; i < sizeof at / sizeof *at; i++) {
        assert_int_equal(b.at[at[i]], 0);
        b.at[at[i]] = 1;
        seal(&b);
        assert_int_equal(fx_load(&w, 1, &b, true), RKV_E_DATA);
        assert_non_null(strstr(rkv_error_message(), "reserved bytes that are set"));
        b.at[at[i]] = 0;
    }
    assert_int_equal(b.at[segments + 32 + 16], 1); /* the second segment's tile */
    b.at[segments + 32 + 16] = 2;
    seal(&b);
    assert_int_equal(fx_load(&w, 1, &b, true), RKV_E_DATA);
    assert_non_null(strstr(rkv_error_message(), "it skips a tile"));
    b.at[segments + 32 + 16] = 1;
    seal(&b);
    fx_ok(fx_load(&w, 1, &b, true), "the whole one");
    fx_copy_record(&w, 1, &w, 0);
    close_small(&w, &b);
}

/* ------------------------------------------------------------ the stored file */

static void read_file(const char *path, fx_bytes *out)
{
    FILE *f = fopen(path, "rb");
    uint8_t buffer[4096];
    *out = (fx_bytes){0};
    assert_non_null(f);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
        fx_write_bytes(out, buffer, n);
    fclose(f);
}

/* ROLLKV_TEST_MAKE=1 makes the file anew: for a new version of the format. */
static void test_first_version(void **state)
{
    (void)state;
    const char *path = ROLLKV_TEST_DATA "/state_v1.bin";
    fx w, v;
    fx_bytes want, have;
    const fx_model m = small_model(FX_CHECK);
    fx_open(&w, &m);
    fx_open(&v, &m);
    small_text(&w);
    fx_save(&w, RKV_STATE_ALL, &want);
    if (getenv("ROLLKV_TEST_MAKE")) {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(want.at, 1, want.n, f), want.n);
        assert_int_equal(fclose(f), 0);
    }
    read_file(path, &have);
    assert_int_equal(have.n, want.n);
    assert_memory_equal(have.at, want.at, want.n);
    fx_ok(fx_load(&v, RKV_STATE_ALL, &have, true), "load");
    for (uint32_t s = 0; s < 2; s++)
        fx_copy_record(&v, s, &w, s);
    close_small(&w, &want);
    close_small(&v, &have);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_made_up),
        cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_first_version),
    };
    if (rkvi_state_hash_built() != RKV_OK)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
