/* SPDX-License-Identifier: MIT */
#include "generate_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "gguf.h"
#include "unicode.h"

enum { ALIGNMENT = 32 };

void made_append(struct made_bytes *b, const void *bytes, size_t count)
{
    b->bytes = realloc(b->bytes, b->count + count + 1);
    if (b->bytes == NULL)
        abort();
    if (count > 0)
        memcpy(b->bytes + b->count, bytes, count);
    b->count += count;
}

void made_u32(struct made_bytes *b, uint32_t v)
{
    made_append(b, &v, sizeof v);
}

void made_u64(struct made_bytes *b, uint64_t v)
{
    made_append(b, &v, sizeof v);
}

void made_string(struct made_bytes *b, const char *text)
{
    made_u64(b, strlen(text));
    made_append(b, text, strlen(text));
}

static void key_and_type(struct made_file *f, const char *key, uint32_t type)
{
    made_string(&f->values, key);
    made_u32(&f->values, type);
    f->value_count++;
}

void made_value_u32(struct made_file *f, const char *key, uint32_t v)
{
    key_and_type(f, key, GGUF_U32);
    made_u32(&f->values, v);
}

void made_value_f32(struct made_file *f, const char *key, float v)
{
    key_and_type(f, key, GGUF_F32);
    made_append(&f->values, &v, sizeof v);
}

void made_value_bool(struct made_file *f, const char *key, int v)
{
    const uint8_t byte = v != 0;
    key_and_type(f, key, GGUF_BOOL);
    made_append(&f->values, &byte, 1);
}

void made_value_string(struct made_file *f, const char *key, const char *text)
{
    key_and_type(f, key, GGUF_STRING);
    made_string(&f->values, text);
}

void made_value_strings(struct made_file *f, const char *key, const char *const *texts, uint64_t count)
{
    key_and_type(f, key, GGUF_ARRAY);
    made_u32(&f->values, GGUF_STRING);
    made_u64(&f->values, count);
    for (uint64_t i = 0; i < count; i++)
        made_string(&f->values, texts[i]);
}

void made_value_i32s(struct made_file *f, const char *key, const int32_t *items, uint64_t count)
{
    key_and_type(f, key, GGUF_ARRAY);
    made_u32(&f->values, GGUF_I32);
    made_u64(&f->values, count);
    made_append(&f->values, items, count * sizeof *items);
}

static void pad(struct made_bytes *b)
{
    static const uint8_t zeros[ALIGNMENT];
    made_append(b, zeros, (ALIGNMENT - b->count % ALIGNMENT) % ALIGNMENT);
}

void made_tensor(struct made_file *f, const struct made_tensor *t)
{
    pad(&f->data);
    made_string(&f->tensors, t->name);
    made_u32(&f->tensors, t->rows == 0 ? 1 : 2);
    made_u64(&f->tensors, t->row_values);
    if (t->rows != 0)
        made_u64(&f->tensors, t->rows);
    made_u32(&f->tensors, t->type);
    made_u64(&f->tensors, f->data.count);
    made_append(&f->data, t->data, t->bytes);
    f->tensor_count++;
}

struct made_bytes made_finish(struct made_file *f)
{
    struct made_bytes out = {0};
    made_append(&out, "GGUF", 4);
    made_u32(&out, 3);
    made_u64(&out, f->tensor_count);
    made_u64(&out, f->value_count);
    made_append(&out, f->values.bytes, f->values.count);
    made_append(&out, f->tensors.bytes, f->tensors.count);
    pad(&out);
    made_append(&out, f->data.bytes, f->data.count);
    free(f->values.bytes);
    free(f->tensors.bytes);
    free(f->data.bytes);
    *f = (struct made_file){0};
    return out;
}

float made_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*state >> 32)) * 0x1p-31f;
}

/* Of the sizes that trained weights have: outputs about as large as inputs. */
static void random_matrix(struct made_file *f, const char *name, size_t inputs, size_t outputs,
                          uint64_t *state)
{
    const size_t count = inputs * (outputs == 0 ? 1 : outputs);
    float *values = malloc(count * sizeof *values);
    if (values == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        values[i] = outputs == 0 ? 1.0f + 0.2f * made_random(state)
                                 : made_random(state) * sqrtf(3.0f / (float)inputs);
    made_tensor(f, &(struct made_tensor){name, inputs, outputs, 0, values, count * sizeof *values});
    free(values);
}

/* Tokens 0 to 255 are the bytes, then two special ones, then unused ones. */
static void tiny_tokens(struct made_file *f)
{
    static char spelled[TINY_VOCABULARY][16];
    static const char *texts[TINY_VOCABULARY];
    static int32_t types[TINY_VOCABULARY];
    for (unsigned i = 0; i < TINY_VOCABULARY; i++) {
        texts[i] = spelled[i];
        types[i] = i < 256 ? 1 : i < 258 ? 3 : 5;
        if (i < 256)
            spelled[i][unicode_encode(bpe_byte_to_code_point(i), spelled[i])] = '\0';
        else
            snprintf(spelled[i], sizeof spelled[i], "<|%u|>", i);
    }
    made_value_string(f, "tokenizer.ggml.model", "gpt2");
    made_value_strings(f, "tokenizer.ggml.tokens", texts, TINY_VOCABULARY);
    made_value_i32s(f, "tokenizer.ggml.token_type", types, TINY_VOCABULARY);
    made_value_strings(f, "tokenizer.ggml.merges", NULL, 0);
    made_value_u32(f, "tokenizer.ggml.eos_token_id", 256);
}

struct made_bytes made_tiny_llama(uint64_t seed)
{
    struct made_file f = {0};
    enum { Q = TINY_HEADS * TINY_HEAD_DIM, KV = TINY_KV_HEADS * TINY_HEAD_DIM };
    made_value_string(&f, "general.architecture", "llama");
    made_value_u32(&f, "llama.block_count", TINY_LAYERS);
    made_value_u32(&f, "llama.context_length", TINY_POSITIONS);
    made_value_u32(&f, "llama.embedding_length", TINY_EMBEDDING);
    made_value_u32(&f, "llama.feed_forward_length", TINY_FEED_FORWARD);
    made_value_u32(&f, "llama.attention.head_count", TINY_HEADS);
    made_value_u32(&f, "llama.attention.head_count_kv", TINY_KV_HEADS);
    made_value_u32(&f, "llama.attention.key_length", TINY_HEAD_DIM);
    made_value_f32(&f, "llama.rope.freq_base", 10000.0f);
    made_value_f32(&f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_tokens(&f);
    random_matrix(&f, "token_embd.weight", TINY_EMBEDDING, TINY_VOCABULARY, &seed);
    random_matrix(&f, "output_norm.weight", TINY_EMBEDDING, 0, &seed);
    static const struct {
        const char *name;
        size_t inputs, outputs;
    } parts[] = {{"attn_norm", TINY_EMBEDDING, 0},
                 {"attn_q", TINY_EMBEDDING, Q},
                 {"attn_k", TINY_EMBEDDING, KV},
                 {"attn_v", TINY_EMBEDDING, KV},
                 {"attn_output", Q, TINY_EMBEDDING},
                 {"ffn_norm", TINY_EMBEDDING, 0},
                 {"ffn_gate", TINY_EMBEDDING, TINY_FEED_FORWARD},
                 {"ffn_up", TINY_EMBEDDING, TINY_FEED_FORWARD},
                 {"ffn_down", TINY_FEED_FORWARD, TINY_EMBEDDING}};
    for (int layer = 0; layer < TINY_LAYERS; layer++)
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[p].name);
            random_matrix(&f, name, parts[p].inputs, parts[p].outputs, &seed);
        }
    return made_finish(&f);
}
