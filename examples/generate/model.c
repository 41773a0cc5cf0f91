/* SPDX-License-Identifier: MIT */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

#include "quants.h"

/* Every matrix begins on a cache line, so that products run alike wherever malloc puts them. */
enum { ALIGN_FLOATS = 16 };

struct loader {
    const struct gguf *file;
    struct model *model;
    float *next; /* NULL while sizes are only counted */
    size_t count;
    struct gen_error *err;
};

static int read_size(const struct loader *l, const char *key, size_t *out)
{
    uint64_t number;
    if (!gguf_get_u64(l->file, key, &number) || number == 0 || number > (1u << 24))
        return gen_fail(l->err, "The file has no usable value %s.", key);
    *out = number;
    return 0;
}

static int check_shape(const struct model_shape *s, struct gen_error *err)
{
    if (s->heads % s->kv_heads != 0)
        return gen_fail(err, "%zu query heads can't be shared out over %zu KV heads.", s->heads,
                        s->kv_heads);
    if (s->head_dim % 2 != 0 || s->head_dim > 4096)
        return gen_fail(err, "A head dim of %zu is not supported.", s->head_dim);
    return 0;
}

/* What would change the arithmetic and isn't built is refused. */
static int refuse_unsupported(const struct loader *l, size_t head_dim)
{
    struct gguf_string name;
    uint64_t number;
    if (!gguf_get_string(l->file, "general.architecture", &name) || !gguf_string_is(name, "llama"))
        return gen_fail(l->err, "The file's architecture is not supported; 'llama' is.");
    if (gguf_get_string(l->file, "llama.rope.scaling.type", &name) && !gguf_string_is(name, "none"))
        return gen_fail(l->err, "RoPE scaling '%.*s' is not supported.",
                        name.length > 32 ? 32 : (int)name.length, name.text);
    if (gguf_find_tensor(l->file, "rope_freqs.weight") != NULL)
        return gen_fail(l->err, "RoPE frequencies in a tensor are not supported.");
    if (gguf_find_tensor(l->file, "blk.0.attn_q.bias") != NULL)
        return gen_fail(l->err, "Biases at attention are not supported.");
    if (gguf_get_u64(l->file, "llama.expert_count", &number) && number > 0)
        return gen_fail(l->err, "Models with experts are not supported.");
    if (gguf_get_u64(l->file, "llama.rope.dimension_count", &number) && number != head_dim)
        return gen_fail(l->err, "RoPE over %llu of %zu dims is not supported.",
                        (unsigned long long)number, head_dim);
    return 0;
}

static int read_shape(const struct loader *l)
{
    struct model_shape *s = &l->model->shape;
    if (read_size(l, "llama.block_count", &s->layers) != 0 ||
        read_size(l, "llama.context_length", &s->positions) != 0 ||
        read_size(l, "llama.embedding_length", &s->embedding) != 0 ||
        read_size(l, "llama.feed_forward_length", &s->feed_forward) != 0 ||
        read_size(l, "llama.attention.head_count", &s->heads) != 0)
        return -1;
    s->kv_heads = s->heads;
    s->head_dim = s->embedding / s->heads;
    if (gguf_find(l->file, "llama.attention.head_count_kv") != NULL &&
        read_size(l, "llama.attention.head_count_kv", &s->kv_heads) != 0)
        return -1;
    if (gguf_find(l->file, "llama.attention.key_length") != NULL &&
        read_size(l, "llama.attention.key_length", &s->head_dim) != 0)
        return -1;
    uint64_t v_dim = s->head_dim;
    if (gguf_get_u64(l->file, "llama.attention.value_length", &v_dim) && v_dim != s->head_dim)
        return gen_fail(l->err, "Unlike head dims of K and V are not supported.");
    s->rope_base = 10000.0f;
    gguf_get_f32(l->file, "llama.rope.freq_base", &s->rope_base);
    if (!gguf_get_f32(l->file, "llama.attention.layer_norm_rms_epsilon", &s->norm_epsilon))
        return gen_fail(l->err, "The file has no value llama.attention.layer_norm_rms_epsilon.");
    const struct gguf_tensor *embedding = gguf_find_tensor(l->file, "token_embd.weight");
    if (embedding == NULL)
        return gen_fail(l->err, "The file has no tensor token_embd.weight.");
    s->vocabulary = embedding->dims[1];
    return check_shape(s, l->err);
}

/* Room for one tensor, and its values once there is memory. */
static int load(struct loader *l, const char *name, size_t inputs, size_t outputs)
{
    const struct gguf_tensor *t = gguf_find_tensor(l->file, name);
    if (t == NULL)
        return gen_fail(l->err, "The file has no tensor %s.", name);
    if (t->dims[0] != inputs || t->rows != outputs)
        return gen_fail(l->err, "Tensor %s is %llu x %llu; %zu x %zu is needed.", name,
                        (unsigned long long)t->dims[0], (unsigned long long)t->rows, inputs, outputs);
    if (t->data == NULL)
        return gen_fail(l->err, "Tensor %s has type %u; supported are %s.", name, t->type,
                        quant_names());
    if (l->next != NULL) {
        quant_to_f32(quant_find(t->type), t->data, inputs * outputs, l->next);
        l->next += inputs * outputs;
    }
    l->count += inputs * outputs;
    return 0;
}

/* Where the next matrix begins. */
static const float *align(struct loader *l)
{
    const size_t pad = (ALIGN_FLOATS - l->count % ALIGN_FLOATS) % ALIGN_FLOATS;
    l->count += pad;
    if (l->next != NULL)
        l->next += pad;
    return l->next;
}

static int load_layer(struct loader *l, size_t index)
{
    const struct model_shape *s = &l->model->shape;
    struct model_layer *layer = &l->model->layers[index];
    const size_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        size_t inputs, outputs;
        const float **begins; /* NULL: more rows of the matrix before */
    } parts[] = {
        {"attn_norm", s->embedding, 1, &layer->attention_norm},
        {"attn_q", s->embedding, q, &layer->qkv},
        {"attn_k", s->embedding, kv, NULL},
        {"attn_v", s->embedding, kv, NULL},
        {"attn_output", q, s->embedding, &layer->attention_out},
        {"ffn_norm", s->embedding, 1, &layer->ffn_norm},
        {"ffn_gate", s->embedding, s->feed_forward, &layer->gate_up},
        {"ffn_up", s->embedding, s->feed_forward, NULL},
        {"ffn_down", s->feed_forward, s->embedding, &layer->down},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%zu.%s.weight", index, parts[p].name);
        if (parts[p].begins != NULL)
            *parts[p].begins = align(l);
        if (load(l, name, parts[p].inputs, parts[p].outputs) != 0)
            return -1;
    }
    return 0;
}

static int load_all(struct loader *l, model_progress *progress, void *user)
{
    struct model *m = l->model;
    const struct model_shape *s = &m->shape;
    m->token_embedding = align(l);
    if (load(l, "token_embd.weight", s->embedding, s->vocabulary) != 0)
        return -1;
    m->output_norm = align(l);
    if (load(l, "output_norm.weight", s->embedding, 1) != 0)
        return -1;
    m->output = m->token_embedding;
    if (gguf_find_tensor(l->file, "output.weight") != NULL) {
        m->output = align(l);
        if (load(l, "output.weight", s->embedding, s->vocabulary) != 0)
            return -1;
    }
    for (size_t i = 0; i < s->layers; i++) {
        if (load_layer(l, i) != 0)
            return -1;
        if (progress != NULL && l->next != NULL)
            progress(user, i + 1, s->layers);
    }
    return 0;
}

int model_load(struct model *model, const struct gguf *file, model_progress *progress, void *user,
               struct gen_error *err)
{
    struct loader l = {file, model, NULL, 0, err};
    *model = (struct model){0};
    if (read_shape(&l) != 0 || refuse_unsupported(&l, model->shape.head_dim) != 0)
        return -1;
    model->layers = calloc(model->shape.layers, sizeof *model->layers);
    if (model->layers == NULL)
        return gen_fail(err, "No memory for %zu layers.", model->shape.layers);
    /* The first pass checks all tensors and counts, the second one fills. */
    if (load_all(&l, progress, user) != 0)
        goto free_model;
    align(&l);
    model->weight_count = l.count;
    model->weights = aligned_alloc(ALIGN_FLOATS * sizeof(float), l.count * sizeof(float));
    if (model->weights == NULL) {
        gen_fail(err, "No memory for weights of %zu MB.", l.count * sizeof(float) / 1000000);
        goto free_model;
    }
    l.next = model->weights;
    l.count = 0;
    if (load_all(&l, progress, user) != 0)
        goto free_model;
    return 0;

free_model:
    model_free(model);
    return -1;
}

void model_free(struct model *model)
{
    free(model->layers);
    free(model->weights);
    *model = (struct model){0};
}
