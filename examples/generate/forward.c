/* SPDX-License-Identifier: MIT */
#include "forward.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
};

/* Rounded up to whole cache lines, as aligned_alloc wants it. */
static float *alloc_floats(size_t count)
{
    return aligned_alloc(64, (count * sizeof(float) + 63) & ~(size_t)63);
}

/* Pair i turns by position * base^(-2i / head_dim). */
static void fill_turns(float *turns, const struct model_shape *s, size_t positions)
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
    if (!f->x || !f->normed || !f->qkv || !f->attended || !f->gate_up || !f->turns) {
        forward_destroy(f);
        gen_fail(err, "No memory for the forward pass.");
        return NULL;
    }
    fill_turns(f->turns, s, positions);
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
    free(f);
}

/* y[rows][outputs] = x[rows][inputs] * w[outputs][inputs]^T, plus y itself if keep is 1. */
struct product {
    const float *w, *x;
    float *y;
    size_t outputs, inputs, x_stride;
    float keep;
};

static void multiply(const struct product *p, size_t rows)
{
    const blasint outputs = (blasint)p->outputs, inputs = (blasint)p->inputs;
    if (rows == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, outputs, inputs, 1.0f, p->w, inputs, p->x, 1, p->keep,
                    p->y, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, outputs, inputs, 1.0f, p->x,
                    (blasint)p->x_stride, p->w, inputs, p->keep, p->y, outputs);
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
static void rope_rows(const struct forward *f, size_t rows, size_t first_position)
{
    const struct model_shape *s = &f->model->shape;
    const size_t stride = (s->heads + 2 * s->kv_heads) * s->head_dim;
    for (size_t r = 0; r < rows; r++) {
        const float *turn = f->turns + (first_position + r) * s->head_dim;
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

static int attention_block(struct forward *f, const struct attention *attention, size_t layer,
                           const struct forward_step *step, struct gen_error *err)
{
    const struct model_shape *s = &f->model->shape;
    const struct model_layer *w = &f->model->layers[layer];
    const size_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, stride = q + 2 * kv;
    norm_rows(f, w->attention_norm, step->rows);
    multiply(&(struct product){w->qkv, f->normed, f->qkv, stride, s->embedding, s->embedding, 0.0f},
             step->rows);
    rope_rows(f, step->rows, step->first_position);
    const struct attention_rows rows = {.q = f->qkv,
                                        .k = f->qkv + q,
                                        .v = f->qkv + q + kv,
                                        .out = f->attended,
                                        .rows = step->rows,
                                        .qkv_stride = stride,
                                        .out_stride = q};
    if (attention->attend(attention->self, layer, &rows, err) != 0)
        return -1;
    multiply(&(struct product){w->attention_out, f->attended, f->x, s->embedding, q, q, 1.0f},
             step->rows);
    return 0;
}

static void feed_forward_block(struct forward *f, size_t layer, size_t rows)
{
    const struct model_shape *s = &f->model->shape;
    const struct model_layer *w = &f->model->layers[layer];
    const size_t n = s->feed_forward;
    norm_rows(f, w->ffn_norm, rows);
    multiply(
        &(struct product){w->gate_up, f->normed, f->gate_up, 2 * n, s->embedding, s->embedding, 0.0f},
        rows);
    swiglu_rows(f, rows);
    multiply(&(struct product){w->down, f->gate_up, f->x, s->embedding, n, 2 * n, 1.0f}, rows);
}

static int check_step(const struct forward *f, const struct forward_step *step, struct gen_error *err)
{
    if (step->rows == 0 || step->rows > f->max_rows)
        return gen_fail(err, "A step of %zu rows; 1 to %zu are allowed.", step->rows, f->max_rows);
    if (step->first_position > f->positions || step->rows > f->positions - step->first_position)
        return gen_fail(err, "Position %zu is beyond the %zu that were set up.",
                        step->first_position + step->rows - 1, f->positions);
    for (size_t r = 0; r < step->rows; r++)
        if (step->tokens[r] < 0 || (size_t)step->tokens[r] >= f->model->shape.vocabulary)
            return gen_fail(err, "Token %d is not in the vocabulary of %zu.", step->tokens[r],
                            f->model->shape.vocabulary);
    return 0;
}

int forward_run(struct forward *f, const struct attention *attention, const struct forward_step *step,
                struct gen_error *err)
{
    const struct model *m = f->model;
    const size_t n = m->shape.embedding;
    if (check_step(f, step, err) != 0 || attention->begin(attention->self, step->rows, err) != 0)
        return -1;
    for (size_t r = 0; r < step->rows; r++)
        memcpy(f->x + r * n, m->token_embedding + (size_t)step->tokens[r] * n, n * sizeof *f->x);
    for (size_t layer = 0; layer < m->shape.layers; layer++) {
        if (attention_block(f, attention, layer, step, err) != 0)
            return -1;
        feed_forward_block(f, layer, step->rows);
    }
    if (attention->end(attention->self, err) != 0)
        return -1;
    if (step->logits != NULL) {
        rms_norm(f->x + (step->rows - 1) * n, m->output_norm, n, m->shape.norm_epsilon, f->normed);
        multiply(&(struct product){m->output, f->normed, step->logits, m->shape.vocabulary, n, n, 0.0f},
                 1);
    }
    return 0;
}
