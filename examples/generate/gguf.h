/* SPDX-License-Identifier: MIT
 *
 * A reader of GGUF files, versions 2 and 3, little-endian.
 *
 *   | magic, version, tensor count, value count | values | tensor entries | pad | tensor data |
 *
 * The file is mapped and checked once: every length, offset and product of dimensions lies inside
 * the file when gguf_open succeeds, so later reads need no checks. Nothing is copied; pointers
 * point into the map and live until gguf_close.
 */
#ifndef GGUF_H
#define GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gen_error.h"

enum gguf_value_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12
};

/* Not terminated by a zero byte. */
struct gguf_string {
    const char *text;
    size_t length;
};

struct gguf_value {
    struct gguf_string key;
    uint32_t type;      /* enum gguf_value_type */
    uint32_t item_type; /* of an array's items; the same as type otherwise */
    uint64_t count;     /* items; 1 for what is no array */
    const uint8_t *data;
};

struct gguf_tensor {
    struct gguf_string name;
    uint32_t dim_count;
    uint64_t dims[4]; /* dims[0] is the row's length, the one that lies together; unused ones are 1 */
    uint32_t type;    /* see quants.h */
    uint64_t rows;    /* product of dims[1..3] */
    uint64_t offset;  /* in the data part */
    size_t bytes;     /* 0: a type that quants.h doesn't know, data is NULL then */
    const uint8_t *data;
};

struct gguf {
    const uint8_t *map;
    size_t map_bytes;
    uint32_t version;
    struct gguf_value *values;
    size_t value_count;
    struct gguf_tensor *tensors;
    size_t tensor_count;
};

/* Both give 0, or -1 with a sentence in err and nothing to close. gguf_parse reads from memory that
 * the caller keeps until gguf_close (which then leaves it alone). */
int gguf_open(struct gguf *file, const char *path, struct gen_error *err);
int gguf_parse(struct gguf *file, const void *bytes, size_t size_bytes, struct gen_error *err);
void gguf_close(struct gguf *file);

/* Each gives NULL when there is no such key or tensor. */
const struct gguf_value *gguf_find(const struct gguf *file, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name);

/* False when the key is missing or of another kind; *out is left alone then. */
bool gguf_get_u64(const struct gguf *file, const char *key, uint64_t *out);
bool gguf_get_f32(const struct gguf *file, const char *key, float *out);
bool gguf_get_bool(const struct gguf *file, const char *key, bool *out);
bool gguf_get_string(const struct gguf *file, const char *key, struct gguf_string *out);

/* Reads the string at *cursor and moves the cursor to the next one: for arrays of strings. */
struct gguf_string gguf_next_string(const uint8_t **cursor);
/* Item i of an array of whole numbers. */
int64_t gguf_item_i64(const struct gguf_value *array, uint64_t i);

bool gguf_string_is(struct gguf_string s, const char *text);

#endif
