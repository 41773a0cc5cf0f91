/* SPDX-License-Identifier: MIT
 *
 * The example engine's command line, and its record of logits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "options.h"
#include "record.h"

enum { MOST_ARGS = 12 };

static int parse(const char *line, struct options *o, struct gen_error *err)
{
    static char copy[256];
    static char name[] = "rollkv-generate";
    char *argv[MOST_ARGS + 1] = {name};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL && argc < MOST_ARGS; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_parse(o, argc, argv, err);
}

static void test_values(void **state)
{
    (void)state;
    struct options o;
    struct gen_error err;
    assert_int_equal(parse("--model m --prompt p", &o, &err), 0);
    assert_string_equal(o.model_path, "m");
    assert_string_equal(o.prompt, "p");
    assert_int_equal(o.tokens, 64);
    assert_int_equal(o.chunk, 256);
    assert_int_equal(o.mode, GENERATE_RING);
    assert_int_equal(o.resident_cells, RKV_RESIDENT_AUTO);
    assert_int_equal(parse("--model m --prompt-file f --mode oplevel --tokens 7 --chunk 100", &o, &err),
                     0);
    assert_string_equal(o.prompt_path, "f");
    assert_int_equal(o.mode, GENERATE_OP_LEVEL);
    assert_int_equal(o.tokens, 7);
    assert_int_equal(o.chunk, 100);
    assert_int_equal(
        parse("--model m --prompt p --kv-type q8_0 --v-type q4_0 --resident-cells none", &o, &err), 0);
    assert_int_equal(o.type_k, RKV_TYPE_Q8_0);
    assert_int_equal(o.type_v, RKV_TYPE_Q4_0);
    assert_int_equal(o.resident_cells, RKV_RESIDENT_NONE);
    assert_int_equal(
        parse("--model m --prompt p --ring-mb 1.5 --link-gbs 6.4 --device-limit-mb 64", &o, &err), 0);
    assert_int_equal(o.ring_bytes, 1500000);
    assert_int_equal(o.link_bytes_per_s, 6400000000);
    assert_int_equal(o.device_limit_bytes, 64000000);
    /* The link's speed is stated where modes are compared, and free elsewhere. */
    assert_int_equal(parse("--model m --prompt p", &o, &err), 0);
    assert_int_equal(o.link_bytes_per_s, 0);
    assert_int_equal(parse("--model m --prompt p --compare", &o, &err), 0);
    assert_int_equal(o.link_bytes_per_s, 4000000000);
    assert_int_equal(parse("--model m --prompt p --compare --link-gbs 0", &o, &err), 0);
    assert_int_equal(o.link_bytes_per_s, 0);
    /* The link is the host's, and so is the plain loop. */
    assert_int_equal(parse("--model m --prompt p", &o, &err), 0);
    assert_int_equal(o.device, DEVICE_AUTO);
    assert_int_equal(parse("--model m --prompt p --device cuda --decode-last 3", &o, &err), 0);
    assert_int_equal(o.device, DEVICE_CUDA);
    assert_int_equal(o.decode_last, 3);
    assert_int_equal(parse("--model m --prompt p --link-gbs 2", &o, &err), 0);
    assert_int_equal(o.device, DEVICE_HOST);
    assert_int_equal(parse("--model m --prompt p --attention naive", &o, &err), 0);
    assert_int_equal(o.device, DEVICE_HOST);
    assert_int_equal(parse("--which-device", &o, &err), 0);
    assert_true(o.which_device);
    assert_int_equal(parse("--help", &o, &err), 0);
    assert_true(o.help);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"", "--model FILE is missing"},
        {"--model m", "--prompt"},
        {"--model m --prompt p --prompt-file f", "Either"},
        {"--model m --prompt p --tokens 0", "--tokens 0"},
        {"--model m --prompt p --tokens -1", "--tokens -1"},
        {"--model m --prompt p --tokens 1.5", "whole"},
        {"--model m --prompt p --tokens nan", "number"},
        {"--model m --prompt p --tokens 3x", "number"},
        {"--model m --prompt p --chunk 5000", "4096"},
        {"--model m --prompt p --mode fast", "resident, ring and oplevel"},
        {"--model m --prompt p --device gpu", "'host'"},
        {"--model m --prompt p --device cuda --link-gbs 1", "host executor"},
        {"--model m --prompt p --device cuda --attention naive", "on the host"},
        {"--model m --prompt p --compare --dump-logits f", "--compare"},
        {"--model m --prompt p --kv-type f32", "q8_0"},
        {"--model m --prompt p --attention other", "naive"},
        {"--model m --prompt p --attention naive --compare", "--compare"},
        {"--model m --prompt p --unknown", "--unknown"},
        {"--model m --prompt p word", "'word'"},
        {"--model m --prompt", "lacks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct options o;
        struct gen_error err = {""};
        assert_int_equal(parse(cases[i].line, &o, &err), -1);
        if (strstr(err.text, cases[i].part) == NULL)
            fail_msg("'%s' gave '%s'", cases[i].line, err.text);
    }
}

static void fill(struct record *r, float last_value)
{
    struct gen_error err;
    assert_int_equal(record_init(r, 4, 3, &err), 0);
    for (int step = 0; step < 3; step++) {
        float *logits = record_next(r);
        for (int i = 0; i < 4; i++)
            logits[i] = (float)(4 * step + i);
        if (step == 1)
            logits[3] = last_value;
        record_done(r);
    }
}

static void test_record(void **state)
{
    (void)state;
    struct record a, b, c;
    struct record_difference d;
    fill(&a, 7.0f);
    fill(&b, 7.0f);
    fill(&c, 7.5f);
    record_compare(&a, &b, &d);
    assert_int_equal(d.steps, 3);
    assert_int_equal(d.bytewise_steps, 3);
    assert_int_equal(d.logits, 12);
    assert_int_equal(d.different_steps, 0);
    assert_true(record_hash(&a) == record_hash(&b));
    record_compare(&a, &c, &d);
    assert_int_equal(d.different_steps, 1);
    assert_int_equal(d.first_different, 1);
    assert_true(d.largest == 0.5);
    assert_true(record_hash(&a) != record_hash(&c));
    /* By their hashes alone, as in runs too long to keep. */
    a.kept_steps = 0;
    record_compare(&a, &c, &d);
    assert_int_equal(d.bytewise_steps, 0);
    assert_int_equal(d.different_steps, 1);
    record_free(&a);
    record_free(&b);
    record_free(&c);
}

/* 0 and -0 are equal as numbers, but not the same bits. */
static void test_record_sees_bits(void **state)
{
    (void)state;
    struct record a, b;
    struct record_difference d;
    fill(&a, 0.0f);
    fill(&b, -0.0f);
    record_compare(&a, &b, &d);
    assert_int_equal(d.different_steps, 1);
    assert_true(d.largest == 0.0);
    record_free(&a);
    record_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_record_sees_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
