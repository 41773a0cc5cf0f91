/* SPDX-License-Identifier: MIT
 *
 * Made-up GGUF files in memory, for the tests of examples/generate.
 */
#ifndef GENERATE_FILE_H
#define GENERATE_FILE_H

#include <stddef.h>
#include <stdint.h>

struct made_bytes {
    uint8_t *bytes;
    size_t count;
};

struct made_file {
    struct made_bytes values, tensors, data;
    uint64_t value_count, tensor_count;
};

void made_append(struct made_bytes *b, const void *bytes, size_t count);
void made_u32(struct made_bytes *b, uint32_t v);
void made_u64(struct made_bytes *b, uint64_t v);
void made_string(struct made_bytes *b, const char *text);

/* Values. */
void made_value_u32(struct made_file *f, const char *key, uint32_t v);
void made_value_f32(struct made_file *f, const char *key, float v);
void made_value_bool(struct made_file *f, const char *key, int v);
void made_value_string(struct made_file *f, const char *key, const char *text);
void made_value_strings(struct made_file *f, const char *key, const char *const *texts, uint64_t count);
void made_value_i32s(struct made_file *f, const char *key, const int32_t *items, uint64_t count);

/* One tensor [rows][row_values]; rows 0 writes one dimension. */
struct made_tensor {
    const char *name;
    uint64_t row_values, rows;
    uint32_t type;
    const void *data;
    size_t bytes;
};
void made_tensor(struct made_file *f, const struct made_tensor *t);

/* The whole file, to be freed by the caller; the parts are freed. */
struct made_bytes made_finish(struct made_file *f);

/* A small llama model with random weights, all bytes in its vocabulary, and its shape. */
enum {
    TINY_LAYERS = 3,
    TINY_EMBEDDING = 64,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_HEAD_DIM = 64, /* the smallest that GPU kernels are built for */
    TINY_FEED_FORWARD = 96,
    TINY_POSITIONS = 1024,
    TINY_VOCABULARY = 320
};
struct made_bytes made_tiny_llama(uint64_t seed);

/* Uniform in [-1, 1). */
float made_random(uint64_t *state);

#endif
