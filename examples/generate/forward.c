/* SPDX-License-Identifier: MIT */
#include "forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "products.h"
#include "sample.h"

struct forward {
    const struct model *model;
    size_t max_rows, positions;
    /* All are [max_rows][...]. */
    float *x;        /* [embedding] */
    float *normed;   /* [embedding] */
    float *qkv;      /* [(heads + 2 kv_heads) head_dim] */
    float *attended; /* [heads head_dim] */
    float *gate_up;  /* [2 feed_forward] */
    float *turns;    /* [positions][head_dim]: cosine and sine of each pair */
    float *logits;   /* [vocabulary], for a step that only wants the best token */
};

/* Rounded up to whole cache lines, as aligned_alloc wants it. */
static float *alloc_floats(size_t count)
{
    return aligned_alloc(64, (count * sizeof(float) + 63) & ~(size_t)63);
}

/* Pair i turns by position * base^(-2i / head_dim). */
void forward_fill_turns(float *turns, const struct model_shape *s, size_t positions)
{
    for (size_t i = 0; i < s->head_dim / 2; i++) {
        const double step = pow(s->rope_base, -2.0 * (double)i / (double)s->head_dim);
        for (size_t p = 0; p < positions; p++) {
            turns[p * s->head_dim + 2 * i] = (float)cos((double)p * step);
            turns[p * s->head_dim + 2 * i + 1] = (float)sin((double)p * step);
        }
    }
}

struct forward *forward_create(const struct model *model, size_t max_rows, size_t positions,
                               struct gen_error *err)
{
    const struct model_shape *s = &model->shape;
    struct forward *f = calloc(1, sizeof *f);
    if (f == NULL) {
        gen_fail(err, "No memory for the forward pass.");
        return NULL;
    }
    f->model = model;
    f->max_rows = max_rows;
    f->positions = positions;
    f->x = alloc_floats(max_rows * s->embedding);
    f->normed = alloc_floats(max_rows * s->embedding);
    f->qkv = alloc_floats(max_rows * (s->heads + 2 * s->kv_heads) * s->head_dim);
    f->attended = alloc_floats(max_rows * s->heads * s->head_dim);
    f->gate_up = alloc_floats(max_rows * 2 * s->feed_forward);
    f->turns = alloc_floats(positions * s->head_dim);
    f->logits = alloc_floats(s->vocabulary);
    if (!f->x || !f->normed || !f->qkv || !f->attended || !f->gate_up || !f->turns || !f->logits) {
        forward_destroy(f);
        gen_fail(err, "No memory for the forward pass.");
        return NULL;
    }
    forward_fill_turns(f->turns, s, positions);
    return f;
}

void forward_destroy(struct forward *f)
{
    if (f == NULL)
        return;
    free(f->x);
    free(f->normed);
    free(f->qkv);
    free(f->attended);
    free(f->gate_up);
    free(f->turns);
    free(f->logits);
    free(f);
}

static void rms_norm(const float *x, const float *weight, size_t n, float epsilon, float *out)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    const float factor = (float)(1.0 / sqrt(sum / (double)n + (double)epsilon));
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * factor * weight[i];
}

static void norm_rows(const struct forward *f, const float *weight, size_t rows)
{
    const size_t n = f->model->shape.embedding;
    for (size_t r = 0; r < rows; r++)
        rms_norm(f->x + r * n, weight, n, f->model->shape.norm_epsilon, f->normed + r * n);
}

/* Turns the pairs (0, 1), (2, 3), ... of each Q and K head; the file's rows are ordered for that. */
static void rope_rows(const struct forward *f, const struct forward_step *step)
{
    const struct model_shape *s = &f->model->shape;
    const size_t stride = (s->heads + 2 * s->kv_heads) * s->head_dim;
    for (size_t r = 0; r < step->rows; r++) {
        const float *turn = f->turns + forward_position(step, r) * s->head_dim;
        for (size_t h = 0; h < s->heads + s->kv_heads; h++) {
            float *x = f->qkv + r * stride + h * s->head_dim;
            for (size_t d = 0; d < s->head_dim; d += 2) {
                const float a = x[d], b = x[d + 1];
                x[d] = a * turn[d] - b * turn[d + 1];
                x[d + 1] = a * turn[d + 1] + b * turn[d];
            }
        }
    }
}

/* The product is written over the gate. */
static void swiglu_rows(const struct forward *f, size_t rows)
{
    const size_t n = f->model->shape.feed_forward;
    for (size_t r = 0; r < rows; r++) {
        float *gate = f->gate_up + r * 2 * n;
        const float *up = gate + n;
        for (size_t i = 0; i < n; i++)
            gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
}

static void multiply(const struct product *p, const struct forward_step *step)
{
    struct product one = *p;
    if (!step->rows_apart) {
        products_multiply(p, step->rows);
        return;
    }
    for (size_t r = 0; r < step->rows; r++, one.x += p->x_stride, one.y += p->outputs)
        products_multiply(&one, 1);
}

static int attention_block(struct forward *f, const struct attention *attention, size_t layer,
                           const struct forward_step *step, struct gen_error *err)
{
    const struct model_shape *s = &f->model->shape;
    const struct model_layer *w = &f->model->layers[layer];
    const size_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, stride = q + 2 * kv;
    norm_rows(f, w->attention_norm, step->rows);
    multiply(&(struct product){w->qkv, f->normed, f->qkv, stride, s->embedding, s->embedding, 0.0f},
             step);
    rope_rows(f, step);
    const struct attention_rows rows = {.q = f->qkv,
                                        .k = f->qkv + q,
                                        .v = f->qkv + q + kv,
                                        .out = f->attended,
                                        .rows = step->rows,
                                        .qkv_stride = stride,
                                        .out_stride = q};
    if (attention->attend(attention->self, layer, &rows, err) != 0)
        return -1;
    multiply(&(struct product){w->attention_out, f->attended, f->x, s->embedding, q, q, 1.0f}, step);
    return 0;
}

static void feed_forward_block(struct forward *f, size_t layer, const struct forward_step *step)
{
    const struct model_shape *s = &f->model->shape;
    const struct model_layer *w = &f->model->layers[layer];
    const size_t n = s->feed_forward;
    norm_rows(f, w->ffn_norm, step->rows);
    multiply(
        &(struct product){w->gate_up, f->normed, f->gate_up, 2 * n, s->embedding, s->embedding, 0.0f},
        step);
    swiglu_rows(f, step->rows);
    multiply(&(struct product){w->down, f->gate_up, f->x, s->embedding, n, 2 * n, 1.0f}, step);
}

int forward_check_step(const struct forward_limits *limits, const struct forward_step *step,
                       struct gen_error *err)
{
    if (step->rows == 0 || step->rows > limits->max_rows)
        return gen_fail(err, "A step of %zu rows; 1 to %zu are allowed.", step->rows, limits->max_rows);
    if (step->positions == NULL && (step->first_position > limits->positions ||
                                    step->rows > limits->positions - step->first_position))
        return gen_fail(err, "Position %zu is beyond the %zu that were set up.",
                        step->first_position + step->rows - 1, limits->positions);
    for (size_t r = 0; step->positions != NULL && r < step->rows; r++)
        if (step->positions[r] < 0 || (uint64_t)step->positions[r] >= limits->positions)
            return gen_fail(err, "Position %lld is not below the %zu that were set up.",
                            (long long)step->positions[r], limits->positions);
    for (size_t r = 0; r < step->rows; r++)
        if (step->tokens[r] < 0 || (size_t)step->tokens[r] >= limits->vocabulary)
            return gen_fail(err, "Token %d is not in the vocabulary of %zu.", step->tokens[r],
                            limits->vocabulary);
    return 0;
}

static void logits_of_row(struct forward *f, size_t row, float *out)
{
    const struct model *m = f->model;
    const size_t n = m->shape.embedding;
    rms_norm(f->x + row * n, m->output_norm, n, m->shape.norm_epsilon, f->normed);
    products_multiply(&(struct product){m->output, f->normed, out, m->shape.vocabulary, n, n, 0.0f}, 1);
}

static void output(struct forward *f, const struct forward_step *step)
{
    const size_t vocabulary = f->model->shape.vocabulary;
    float *logits = step->logits != NULL ? step->logits : f->logits;
    if (step->all_logits != NULL) {
        const struct model *m = f->model;
        const size_t n = m->shape.embedding;
        norm_rows(f, m->output_norm, step->rows);
        multiply(&(struct product){m->output, f->normed, step->all_logits, vocabulary, n, n, 0.0f},
                 step);
    }
    if (step->logits != NULL || step->best != NULL)
        logits_of_row(f, step->rows - 1, logits);
    if (step->best != NULL)
        *step->best = (int32_t)sample_highest(logits, vocabulary);
}

int forward_run(struct forward *f, const struct attention *attention, const struct forward_step *step,
                struct gen_error *err)
{
    const struct model *m = f->model;
    const size_t n = m->shape.embedding;
    const struct forward_limits limits = {f->max_rows, f->positions, m->shape.vocabulary};
    if (forward_check_step(&limits, step, err) != 0 ||
        attention->begin(attention->self, step->rows, err) != 0)
        return -1;
    for (size_t r = 0; r < step->rows; r++)
        memcpy(f->x + r * n, m->token_embedding + (size_t)step->tokens[r] * n, n * sizeof *f->x);
    for (size_t layer = 0; layer < m->shape.layers; layer++) {
        if (attention_block(f, attention, layer, step, err) != 0)
            return -1;
        feed_forward_block(f, layer, step);
    }
    if (attention->end(attention->self, err) != 0)
        return -1;
    output(f, step);
    return 0;
}
