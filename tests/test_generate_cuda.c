/* SPDX-License-Identifier: MIT
 *
 * The example engine on a GPU, on a tiny random model: its logits against the host's, and the same
 * bits of all logits wherever the cache lies. Exits 77 without a GPU.
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

#include "engine.h"
#include "generate_file.h"
#include "sample.h"

enum { SEED = 11, PROMPT = 300, CHUNK = 64, TOKENS = 60, TILE = 16, SKIP = 77 };

static char model_path[] = "generate_cuda_XXXXXX";
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

static struct options options_for(enum generate_device device)
{
    return (struct options){.model_path = model_path,
                            .prompt = prompt,
                            .tokens = TOKENS,
                            .chunk = CHUNK,
                            .seed = 1,
                            .mode = GENERATE_RING,
                            .device = device,
                            .tile_cells = TILE,
                            .threads = 1,
                            .type_k = RKV_TYPE_F16,
                            .type_v = RKV_TYPE_F16,
                            .ignore_eos = true,
                            .quiet = true};
}

static void run(enum generate_device device, const struct run_settings *settings,
                struct run_result *out)
{
    const struct options o = options_for(device);
    struct engine e;
    struct gen_error err = {""};
    if (engine_open(&e, &o, &err) != 0)
        fail_msg("%s", err.text);
    assert_string_equal(e.backend.name, device == DEVICE_CUDA ? "cuda" : "host");
    if (engine_run(&e, settings, out, &err) != 0)
        fail_msg("%s: %s", settings->name, err.text);
    engine_close(&e);
}

static const struct run_settings resident = {.name = "resident", .mode = GENERATE_RESIDENT};

/* The GPU's weights and activations are f16, the host's f32: of logits up to about 5, a difference of
 * 0.012 was seen with the same roundings done on a CPU. */
static void test_logits_of_host(void **state)
{
    (void)state;
    struct run_result host, gpu;
    struct record_difference d;
    run(DEVICE_HOST, &resident, &host);
    run(DEVICE_CUDA,
        &(struct run_settings){.name = "forced", .mode = GENERATE_RESIDENT, .forced = &host.generated},
        &gpu);
    record_compare(&host.record, &gpu.record, &d);
    assert_int_equal(d.steps, host.record.steps);
    printf("largest difference of a logit: %g\n", d.largest);
    assert_true(d.largest > 0.0);
    if (!(d.largest < 0.05))
        fail_msg("a logit differs by %g", d.largest);
    run_result_free(&host);
    run_result_free(&gpu);
}

/* The token that a greedy step hands out is the highest of the logits that it hands out. */
static void test_best_token(void **state)
{
    (void)state;
    struct run_result r;
    run(DEVICE_CUDA, &resident, &r);
    const size_t prefill_steps = (PROMPT + CHUNK - 1) / CHUNK, n = r.record.vocabulary;
    assert_int_equal(r.generated.count, TOKENS);
    for (size_t i = 0; i < TOKENS; i++)
        assert_int_equal(r.generated.ids[i],
                         sample_highest(r.record.logits + (prefill_steps - 1 + i) * n, n));
    run_result_free(&r);
}

static void test_same_bits_in_all_modes(void **state)
{
    (void)state;
    static const struct run_settings cases[] = {
        {.name = "again", .mode = GENERATE_RESIDENT},
        {.name = "none", .mode = GENERATE_RING, .resident_cells = RKV_RESIDENT_NONE},
        {.name = "96", .mode = GENERATE_RING, .resident_cells = 96},
        {.name = "oplevel", .mode = GENERATE_OP_LEVEL, .resident_cells = 96},
    };
    struct run_result first;
    run(DEVICE_CUDA, &resident, &first);
    assert_int_equal(first.stats.streamed_bytes, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct run_settings s = cases[i];
        struct run_result r;
        struct record_difference d;
        s.forced = &first.generated;
        run(DEVICE_CUDA, &s, &r);
        record_compare(&first.record, &r.record, &d);
        assert_int_equal(d.steps, first.record.steps);
        if (d.different_steps != 0)
            fail_msg("%s: %zu of %zu steps differ, the first is %zu, by up to %g", s.name,
                     d.different_steps, d.steps, d.first_different, d.largest);
        assert_true(i == 0 || r.decode_streamed_bytes > 0);
        run_result_free(&r);
    }
    run_result_free(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_of_host),
        cmocka_unit_test(test_best_token),
        cmocka_unit_test(test_same_bits_in_all_modes),
    };
    if (backend_choose(DEVICE_AUTO) != DEVICE_CUDA) {
        printf("there is no GPU, or this build has no CUDA\n");
        return SKIP;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
