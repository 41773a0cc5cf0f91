/* SPDX-License-Identifier: MIT
 *
 * The example engine's forward pass on a tiny random model: against the same formulas written out
 * in f64, one position at a time; cut into chunks in several ways; and its errors.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "forward.h"
#include "generate_file.h"
#include "naive.h"
#include "sample.h"

enum {
    SEED = 20240611,
    ROWS = 40,
    E = TINY_EMBEDDING,
    D = TINY_HEAD_DIM,
    Q = TINY_HEADS * D,
    KV = TINY_KV_HEADS * D,
    F = TINY_FEED_FORWARD
};

static struct model model;
static int32_t tokens[ROWS];

static int setup(void **state)
{
    (void)state;
    struct made_bytes m = made_tiny_llama(SEED);
    struct gguf g;
    struct gen_error err;
    uint64_t random = SEED;
    printf("seed %d\n", SEED);
    if (gguf_parse(&g, m.bytes, m.count, &err) != 0 || model_load(&model, &g, NULL, NULL, &err) != 0) {
        printf("%s\n", err.text);
        return -1;
    }
    gguf_close(&g);
    free(m.bytes);
    for (int i = 0; i < ROWS; i++)
        tokens[i] = (int32_t)(128 + 127 * made_random(&random));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_free(&model);
    return 0;
}

static void norm64(const double *x, const float *weight, double *out)
{
    double sum = 0;
    for (int i = 0; i < E; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < E; i++)
        out[i] = x[i] / sqrt(sum / E + 1e-5) * (double)weight[i];
}

static void multiply64(const float *w, const double *x, int outputs, int inputs, double *y)
{
    for (int o = 0; o < outputs; o++) {
        y[o] = 0;
        for (int i = 0; i < inputs; i++)
            y[o] += (double)w[o * inputs + i] * x[i];
    }
}

static void rope64(double *x, int heads, int position)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < D / 2; i++) {
            const double angle = position * pow(10000.0, -2.0 * i / D);
            double *pair = x + h * D + 2 * i;
            const double a = pair[0], b = pair[1];
            pair[0] = a * cos(angle) - b * sin(angle);
            pair[1] = a * sin(angle) + b * cos(angle);
        }
}

static double keys[TINY_LAYERS][ROWS][KV], values[TINY_LAYERS][ROWS][KV];

static void attend64(int layer, int position, const double *q, double *out)
{
    for (int h = 0; h < TINY_HEADS; h++) {
        const int base = h / (TINY_HEADS / TINY_KV_HEADS) * D;
        double weights[ROWS], sum = 0;
        for (int p = 0; p <= position; p++) {
            double dot = 0;
            for (int d = 0; d < D; d++)
                dot += q[h * D + d] * keys[layer][p][base + d];
            sum += weights[p] = exp(dot / sqrt(D));
        }
        for (int d = 0; d < D; d++) {
            out[h * D + d] = 0;
            for (int p = 0; p <= position; p++)
                out[h * D + d] += weights[p] / sum * values[layer][p][base + d];
        }
    }
}

static void forward64(int position, double *logits)
{
    double x[E], n[E], qkv[Q + 2 * KV], attended[Q], added[E], gate_up[2 * F];
    for (int i = 0; i < E; i++)
        x[i] = (double)model.token_embedding[tokens[position] * E + i];
    for (int layer = 0; layer < TINY_LAYERS; layer++) {
        const struct model_layer *w = &model.layers[layer];
        norm64(x, w->attention_norm, n);
        multiply64(w->qkv, n, Q + 2 * KV, E, qkv);
        rope64(qkv, TINY_HEADS + TINY_KV_HEADS, position);
        memcpy(keys[layer][position], qkv + Q, sizeof keys[layer][position]);
        memcpy(values[layer][position], qkv + Q + KV, sizeof values[layer][position]);
        attend64(layer, position, qkv, attended);
        multiply64(w->attention_out, attended, E, Q, added);
        for (int i = 0; i < E; i++)
            x[i] += added[i];
        norm64(x, w->ffn_norm, n);
        multiply64(w->gate_up, n, 2 * F, E, gate_up);
        for (int i = 0; i < F; i++)
            gate_up[i] *= gate_up[F + i] / (1 + exp(-gate_up[i]));
        multiply64(w->down, gate_up, E, F, added);
        for (int i = 0; i < E; i++)
            x[i] += added[i];
    }
    norm64(x, model.output_norm, n);
    multiply64(model.output, n, TINY_VOCABULARY, E, logits);
}

/* Runs the tokens in steps of at most `chunk` rows; logits of the last row of each are kept. */
static void run_in_chunks(size_t chunk, float (*logits)[TINY_VOCABULARY])
{
    struct gen_error err;
    struct naive *naive = naive_create(&model.shape, ROWS, &err);
    struct forward *f = forward_create(&model, chunk, ROWS, &err);
    assert_non_null(naive);
    assert_non_null(f);
    const struct attention attention = naive_attention(naive);
    for (size_t at = 0; at < ROWS; at += chunk) {
        const size_t rows = ROWS - at < chunk ? ROWS - at : chunk;
        const struct forward_step step = {
            .tokens = tokens + at, .rows = rows, .first_position = at, .logits = logits[at + rows - 1]};
        assert_int_equal(forward_run(f, &attention, &step, &err), 0);
    }
    forward_destroy(f);
    naive_destroy(naive);
}

static float got[ROWS][TINY_VOCABULARY];

static void test_against_f64(void **state)
{
    (void)state;
    run_in_chunks(1, got);
    for (int p = 0; p < ROWS; p++) {
        double expected[TINY_VOCABULARY], largest = 0;
        forward64(p, expected);
        for (int i = 0; i < TINY_VOCABULARY; i++) {
            largest = fmax(largest, fabs(expected[i]));
            if (fabs((double)got[p][i] - expected[i]) > 2e-4)
                fail_msg("position %d, logit %d: %g instead of %g", p, i, (double)got[p][i],
                         expected[i]);
        }
        assert_true(largest > 0.5); /* the test would see a wrong value */
    }
}

static void test_chunks(void **state)
{
    (void)state;
    static const size_t chunks[] = {2, 7, 16, 39, 40};
    static float other[ROWS][TINY_VOCABULARY];
    run_in_chunks(1, got);
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        run_in_chunks(chunks[c], other);
        for (size_t at = 0; at < ROWS; at += chunks[c]) {
            const size_t last = (at + chunks[c] < ROWS ? at + chunks[c] : ROWS) - 1;
            for (int i = 0; i < TINY_VOCABULARY; i++)
                assert_true(fabsf(other[last][i] - got[last][i]) < 1e-4f);
        }
    }
}

/* Twice the same steps: the same bits. */
static void test_repeats(void **state)
{
    (void)state;
    static float again[ROWS][TINY_VOCABULARY];
    memset(got, 0, sizeof got);
    run_in_chunks(9, got);
    run_in_chunks(9, again);
    assert_memory_equal(got, again, sizeof got);
}

/* Rows apart have the bits of steps of one row; positions may be given. */
static void test_rows_apart(void **state)
{
    (void)state;
    static float apart[ROWS][TINY_VOCABULARY];
    static int64_t positions[ROWS];
    struct gen_error err;
    struct naive *naive = naive_create(&model.shape, ROWS, &err);
    struct forward *f = forward_create(&model, ROWS, ROWS, &err);
    assert_non_null(naive);
    assert_non_null(f);
    for (int i = 0; i < ROWS; i++)
        positions[i] = i;
    const struct attention attention = naive_attention(naive);
    struct forward_step step = {.tokens = tokens,
                                .rows = ROWS,
                                .all_logits = apart[0],
                                .positions = positions,
                                .rows_apart = true};
    run_in_chunks(1, got);
    assert_int_equal(forward_run(f, &attention, &step, &err), 0);
    assert_memory_equal(got, apart, sizeof got);
    positions[ROWS - 1] = ROWS;
    assert_int_equal(forward_run(f, &attention, &step, &err), -1);
    assert_non_null(strstr(err.text, "Position 40 is not below the 40"));
    forward_destroy(f);
    naive_destroy(naive);
}

static void test_step_errors(void **state)
{
    (void)state;
    struct gen_error err;
    struct naive *naive = naive_create(&model.shape, 8, &err);
    struct forward *f = forward_create(&model, 4, 8, &err);
    const struct attention attention = naive_attention(naive);
    const int32_t bad = TINY_VOCABULARY, negative = -1;
    assert_int_equal(
        forward_run(f, &attention,
                    &(struct forward_step){.tokens = tokens, .rows = 0, .first_position = 0}, &err),
        -1);
    assert_int_equal(
        forward_run(f, &attention,
                    &(struct forward_step){.tokens = tokens, .rows = 5, .first_position = 0}, &err),
        -1);
    assert_int_equal(
        forward_run(f, &attention,
                    &(struct forward_step){.tokens = tokens, .rows = 2, .first_position = 7}, &err),
        -1);
    assert_int_equal(forward_run(f, &attention,
                                 &(struct forward_step){.tokens = &bad, .rows = 1, .first_position = 0},
                                 &err),
                     -1);
    assert_non_null(strstr(err.text, "vocabulary of 320"));
    assert_int_equal(
        forward_run(f, &attention,
                    &(struct forward_step){.tokens = &negative, .rows = 1, .first_position = 0}, &err),
        -1);
    assert_int_equal(
        forward_run(f, &attention,
                    &(struct forward_step){.tokens = tokens, .rows = 2, .first_position = 0}, &err),
        0);
    forward_destroy(f);
    naive_destroy(naive);
}

/* A model with one byte changed at a time: refused with a sentence, or loaded; never a crash. */
static void test_damaged_model(void **state)
{
    (void)state;
    struct made_bytes m = made_tiny_llama(SEED);
    size_t refused = 0;
    for (size_t at = 0; at < 12000; at += 7) {
        const uint8_t before = m.bytes[at];
        struct gguf g;
        struct model damaged;
        struct gen_error err = {""};
        m.bytes[at] ^= 0x11;
        if (gguf_parse(&g, m.bytes, m.count, &err) == 0) {
            if (model_load(&damaged, &g, NULL, NULL, &err) == 0)
                model_free(&damaged);
            else
                refused++;
            gguf_close(&g);
        }
        m.bytes[at] = before;
    }
    assert_true(refused > 20);
    free(m.bytes);
}

static void test_sampling(void **state)
{
    (void)state;
    const float logits[] = {0.0f, logf(3.0f), -INFINITY, logf(3.0f)};
    double weights[4];
    struct sampler greedy = {.temperature = 0, .state = 1, .weights = weights};
    assert_int_equal(sample_next(&greedy, logits, 4), 1);
    /* At temperature 1: 1/7, 3/7, 0, 3/7. */
    struct sampler random = {.temperature = 1, .state = SEED, .weights = weights};
    int counts[4] = {0};
    for (int i = 0; i < 70000; i++)
        counts[sample_next(&random, logits, 4)]++;
    assert_in_range(counts[0], 9600, 10400);
    assert_in_range(counts[1], 29500, 30500);
    assert_int_equal(counts[2], 0);
    struct sampler a = {.temperature = 2, .state = 5, .weights = weights}, b = a;
    for (int i = 0; i < 100; i++)
        assert_int_equal(sample_next(&a, logits, 4), sample_next(&b, logits, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_f64), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_repeats),     cmocka_unit_test(test_rows_apart),
        cmocka_unit_test(test_step_errors), cmocka_unit_test(test_damaged_model),
        cmocka_unit_test(test_sampling),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
