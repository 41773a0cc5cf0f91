/* SPDX-License-Identifier: MIT
 *
 * The example engine end to end on a tiny random model: the library's attention against the plain
 * loop, and the same bits of all logits in all modes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "compare.h"
#include "engine.h"
#include "generate_file.h"
#include "sample.h"

enum { SEED = 7, PROMPT = 300, CHUNK = 64, TOKENS = 60, TILE = 16 };

static char model_path[] = "generate_modes_XXXXXX";
static char prompt[PROMPT + 1];

static int setup(void **state)
{
    (void)state;
    struct made_bytes m = made_tiny_llama(SEED);
    uint64_t random = SEED;
    const int fd = mkstemp(model_path);
    printf("seed %d\n", SEED);
    if (fd < 0 || write(fd, m.bytes, m.count) != (ssize_t)m.count)
        return -1;
    close(fd);
    free(m.bytes);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (char)('a' + (int)(13 + 12.9f * made_random(&random)));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(model_path);
    return 0;
}

static struct options base_options(void)
{
    return (struct options){.model_path = model_path,
                            .prompt = prompt,
                            .tokens = TOKENS,
                            .chunk = CHUNK,
                            .seed = 1,
                            .mode = GENERATE_RING,
                            .device = DEVICE_HOST,
                            .tile_cells = TILE,
                            .threads = 1,
                            .type_k = RKV_TYPE_F16,
                            .type_v = RKV_TYPE_F16,
                            .ignore_eos = true,
                            .quiet = true};
}

static void run(const struct options *o, const struct run_settings *settings, struct run_result *out)
{
    struct engine e;
    struct gen_error err = {""};
    if (engine_open(&e, o, &err) != 0 || engine_run(&e, settings, out, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(out->prefill_steps, (PROMPT + CHUNK - 1) / CHUNK);
    assert_int_equal(out->generated.count, TOKENS);
    assert_int_equal(out->decode_steps, TOKENS - 1);
    assert_int_equal(out->record.steps, out->prefill_steps + out->decode_steps);
    engine_close(&e);
}

static void test_library_against_plain_loop(void **state)
{
    (void)state;
    struct options o = base_options();
    struct run_result naive, rollkv;
    struct record_difference d;
    o.naive = true;
    run(&o, &(struct run_settings){.name = "naive"}, &naive);
    o.naive = false;
    run(&o,
        &(struct run_settings){.name = "rollkv", .mode = GENERATE_RESIDENT, .forced = &naive.generated},
        &rollkv);
    record_compare(&naive.record, &rollkv.record, &d);
    assert_int_equal(d.logits, naive.record.steps * TINY_VOCABULARY);
    assert_int_equal(d.bytewise_steps, d.steps);
    /* K and V are stored with 11 bits, so not the same, but near. */
    assert_true(d.different_steps > 0);
    if (!(d.largest < 0.02))
        fail_msg("a logit differs by %g", d.largest);
    run_result_free(&naive);
    run_result_free(&rollkv);
}

static void test_same_bits_in_all_modes(void **state)
{
    (void)state;
    static const struct {
        enum generate_mode mode;
        uint64_t resident_cells;
        rkv_type type;
    } cases[] = {{GENERATE_RING, RKV_RESIDENT_NONE, RKV_TYPE_F16},
                 {GENERATE_RING, 96, RKV_TYPE_F16},
                 {GENERATE_OP_LEVEL, 96, RKV_TYPE_F16},
                 {GENERATE_RING, 32, RKV_TYPE_Q8_0}};
    struct run_result resident = {0};
    rkv_type type = RKV_TYPE_DEFAULT;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct options o = base_options();
        struct run_result r;
        struct record_difference d;
        o.type_k = o.type_v = cases[i].type;
        if (cases[i].type != type) {
            run_result_free(&resident);
            run(&o, &(struct run_settings){.name = "resident", .mode = GENERATE_RESIDENT}, &resident);
            assert_int_equal(resident.stats.streamed_bytes, 0);
            type = cases[i].type;
        }
        run(&o,
            &(struct run_settings){.name = "other",
                                   .mode = cases[i].mode,
                                   .resident_cells = cases[i].resident_cells,
                                   .forced = &resident.generated},
            &r);
        record_compare(&resident.record, &r.record, &d);
        assert_int_equal(d.steps, resident.record.steps);
        if (d.different_steps != 0)
            fail_msg("case %zu: %zu of %zu steps differ, the first is %zu, by up to %g", i,
                     d.different_steps, d.steps, d.first_different, d.largest);
        assert_true(record_hash(&resident.record) == record_hash(&r.record));
        assert_true(r.decode_streamed_bytes > 0);
        run_result_free(&r);
    }
    run_result_free(&resident);
}

/* The table goes to stdout with a text of random bytes before it, so it is caught in a file. */
static void test_compare(void **state)
{
    (void)state;
    static char printed[1 << 16];
    struct options o = base_options();
    struct engine e;
    struct gen_error err = {""};
    o.compare = true;
    o.resident_cells = 64;
    o.link_bytes_per_s = 1000000000;
    assert_int_equal(engine_open(&e, &o, &err), 0);
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int terminal = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    const int rc = compare_modes(&e, &err);
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    engine_close(&e);
    if (rc != 0)
        fail_msg("compare gave %d: %s", rc, err.text);

    rewind(file);
    const size_t count = fread(printed, 1, sizeof printed - 1, file);
    fclose(file);
    for (size_t i = 0; i < count; i++)
        if (printed[i] == '\0')
            printed[i] = '?';
    const char *const steps =
        "logits of 64 steps compared (64 steps byte by byte), all have the same bits";
    const char *first = strstr(printed, steps);
    assert_non_null(first);
    assert_non_null(strstr(first + 1, steps));
    assert_non_null(strstr(printed, "host executor, 1 threads, its link set to 1.00 GB/s"));
    assert_null(strstr(printed, "DIFFERENT"));
}

/* The layout of dump.h, with the end of the prompt read token by token. */
static void test_dump(void **state)
{
    (void)state;
    static char path[] = "generate_dump_XXXXXX";
    enum { ALONE = 5, ROWS = PROMPT + TOKENS - 1, N = TINY_VOCABULARY };
    static struct row {
        int32_t position, token;
        float logits[N];
    } rows[ROWS + 1];
    char head[16];
    uint32_t numbers[2];
    struct options o = base_options();
    struct engine e;
    struct run_result r;
    struct gen_error err = {""};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    o.dump_path = path;
    o.decode_last = ALONE;
    assert_int_equal(engine_open(&e, &o, &err), 0);
    const struct run_settings resident = {.name = "resident", .mode = GENERATE_RESIDENT};
    assert_int_equal(engine_run(&e, &resident, &r, &err), 0);
    assert_int_equal(dump_close(&e.dump, &err), 0);
    assert_int_equal(r.prefill_steps, (PROMPT - ALONE + CHUNK - 1) / CHUNK + ALONE);

    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof head, file), sizeof head);
    assert_int_equal(fread(rows, sizeof rows[0], ROWS + 1, file), ROWS);
    fclose(file);
    unlink(path);
    memcpy(numbers, head + 8, sizeof numbers);
    assert_memory_equal(head, "RKVLOGIT", 8);
    assert_int_equal(numbers[0], 1);
    assert_int_equal(numbers[1], N);
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(rows[i].position, i);
        assert_int_equal(rows[i].token, i < PROMPT ? e.prompt.ids[i] : r.generated.ids[i - PROMPT]);
    }
    /* What a step's last row gave, within rounding: the dump's product is over all rows. */
    const float *last = r.record.logits + (r.record.steps - 1) * N;
    for (int i = 0; i < N; i++)
        assert_true(fabsf(rows[ROWS - 1].logits[i] - last[i]) < 1e-4f);
    assert_int_equal(sample_highest(rows[PROMPT - 1].logits, N), r.generated.ids[0]);
    run_result_free(&r);
    engine_close(&e);
}

static void test_errors(void **state)
{
    (void)state;
    struct options o = base_options();
    struct engine e;
    struct gen_error err = {""};
    o.tokens = TINY_POSITIONS;
    assert_int_equal(engine_open(&e, &o, &err), -1);
    assert_non_null(strstr(err.text, "--max-prompt-tokens"));
    o = base_options();
    o.prompt = "";
    assert_int_equal(engine_open(&e, &o, &err), -1);
    assert_non_null(strstr(err.text, "empty"));
    o = base_options();
    o.prompt = NULL;
    o.prompt_path = "no such file";
    assert_int_equal(engine_open(&e, &o, &err), -1);
    assert_non_null(strstr(err.text, "No such file"));

    /* What the library refuses comes through with its sentence. */
    struct run_result r;
    o = base_options();
    assert_int_equal(engine_open(&e, &o, &err), 0);
    const struct run_settings tight = {
        .name = "tight", .mode = GENERATE_RING, .device_limit_bytes = 1000};
    assert_int_equal(engine_run(&e, &tight, &r, &err), -1);
    assert_non_null(strstr(err.text, "RKV_E_"));
    engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library_against_plain_loop),
        cmocka_unit_test(test_same_bits_in_all_modes),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_dump),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
