/* SPDX-License-Identifier: MIT */
#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "quants.h"

/* Arrays may hold arrays; no file needs more levels than this, and a made-up one could overflow
 * the stack. */
enum { MAX_ARRAY_DEPTH = 4 };

struct reader {
    const uint8_t *base;
    size_t at;
    size_t end;
    struct gen_error *err;
};

/* NULL when the file ends before. */
static const uint8_t *take(struct reader *r, size_t bytes)
{
    if (bytes > r->end - r->at) {
        gen_fail(r->err, "The GGUF file ends at byte %zu, in the middle of %zu bytes from %zu on.",
                 r->end, bytes, r->at);
        return NULL;
    }
    const uint8_t *p = r->base + r->at;
    r->at += bytes;
    return p;
}

static int read_u32(struct reader *r, uint32_t *out)
{
    const uint8_t *p = take(r, sizeof *out);
    if (p == NULL)
        return -1;
    memcpy(out, p, sizeof *out);
    return 0;
}

static int read_u64(struct reader *r, uint64_t *out)
{
    const uint8_t *p = take(r, sizeof *out);
    if (p == NULL)
        return -1;
    memcpy(out, p, sizeof *out);
    return 0;
}

static int read_string(struct reader *r, struct gguf_string *out)
{
    uint64_t length = 0;
    if (read_u64(r, &length) != 0)
        return -1;
    const uint8_t *p = take(r, length);
    if (p == NULL)
        return -1;
    *out = (struct gguf_string){(const char *)p, length};
    return 0;
}

static size_t scalar_bytes(uint32_t type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL: return 1;
    case GGUF_U16:
    case GGUF_I16: return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32: return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64: return 8;
    default: return 0;
    }
}

/* Moves over `count` items of one type, checking that they lie in the file. */
static int skip_items(struct reader *r, uint32_t type, uint64_t count, int depth)
{
    const size_t item_bytes = scalar_bytes(type);
    if (item_bytes != 0) {
        size_t bytes;
        if (__builtin_mul_overflow(count, item_bytes, &bytes))
            return gen_fail(r->err, "A GGUF array at byte %zu claims %llu items.", r->at,
                            (unsigned long long)count);
        return take(r, bytes) != NULL ? 0 : -1;
    }
    if (type != GGUF_STRING && type != GGUF_ARRAY)
        return gen_fail(r->err, "Unknown GGUF value type %u at byte %zu.", type, r->at);
    if (depth >= MAX_ARRAY_DEPTH)
        return gen_fail(r->err, "GGUF arrays are nested more than %d deep at byte %zu.",
                        MAX_ARRAY_DEPTH, r->at);
    /* Each turn takes at least 8 bytes or fails, so a false count ends at the file's end. */
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_string s;
        uint32_t inner = 0;
        uint64_t inner_count = 0;
        if (type == GGUF_STRING ? read_string(r, &s) != 0
                                : read_u32(r, &inner) != 0 || read_u64(r, &inner_count) != 0 ||
                                      skip_items(r, inner, inner_count, depth + 1) != 0)
            return -1;
    }
    return 0;
}

static int read_value(struct reader *r, struct gguf_value *v)
{
    if (read_string(r, &v->key) != 0 || read_u32(r, &v->type) != 0)
        return -1;
    v->item_type = v->type;
    v->count = 1;
    if (v->type == GGUF_ARRAY && (read_u32(r, &v->item_type) != 0 || read_u64(r, &v->count) != 0))
        return -1;
    v->data = r->base + r->at;
    return skip_items(r, v->item_type, v->count, 0);
}

static int read_tensor(struct reader *r, struct gguf_tensor *t)
{
    if (read_string(r, &t->name) != 0 || read_u32(r, &t->dim_count) != 0)
        return -1;
    const int shown = t->name.length > 64 ? 64 : (int)t->name.length;
    if (t->dim_count == 0 || t->dim_count > 4)
        return gen_fail(r->err, "Tensor '%.*s' has %u dimensions; 1 to 4 are supported.", shown,
                        t->name.text, t->dim_count);
    for (uint32_t d = 0; d < 4; d++)
        t->dims[d] = 1;
    for (uint32_t d = 0; d < t->dim_count; d++) {
        if (read_u64(r, &t->dims[d]) != 0)
            return -1;
        if (t->dims[d] == 0 || t->dims[d] > INT32_MAX)
            return gen_fail(r->err, "Tensor '%.*s' has a dimension of %llu.", shown, t->name.text,
                            (unsigned long long)t->dims[d]);
    }
    if (__builtin_mul_overflow(t->dims[1], t->dims[2], &t->rows) ||
        __builtin_mul_overflow(t->rows, t->dims[3], &t->rows))
        return gen_fail(r->err, "Tensor '%.*s' is too large.", shown, t->name.text);
    if (read_u32(r, &t->type) != 0 || read_u64(r, &t->offset) != 0)
        return -1;
    return 0;
}

/* A tensor of an unknown type is left without data: only whoever needs it has to complain. */
static int place_tensor(const struct reader *r, struct gguf_tensor *t, size_t data_at)
{
    const struct quant_info *info = quant_find(t->type);
    if (info == NULL)
        return 0;
    const int shown = t->name.length > 64 ? 64 : (int)t->name.length;
    if (t->dims[0] % info->block_values != 0)
        return gen_fail(r->err, "Rows of tensor '%.*s' are %llu long, no multiple of %u (%s).", shown,
                        t->name.text, (unsigned long long)t->dims[0], info->block_values, info->name);
    const size_t row_bytes = t->dims[0] / info->block_values * info->block_bytes;
    const size_t room = data_at <= r->end ? r->end - data_at : 0;
    if (__builtin_mul_overflow(row_bytes, t->rows, &t->bytes) || t->offset > room ||
        t->bytes > room - t->offset)
        return gen_fail(r->err, "The GGUF file ends at byte %zu, before the end of tensor '%.*s'.",
                        r->end, shown, t->name.text);
    t->data = r->base + data_at + t->offset;
    return 0;
}

static int read_counts(struct reader *r, struct gguf *file)
{
    uint64_t tensors = 0, values = 0;
    const uint8_t *magic = take(r, 4);
    if (magic == NULL)
        return -1;
    if (memcmp(magic, "GGUF", 4) != 0)
        return gen_fail(r->err, "This is no GGUF file: it doesn't begin with 'GGUF'.");
    if (read_u32(r, &file->version) != 0)
        return -1;
    if (file->version != 2 && file->version != 3)
        return gen_fail(r->err, "GGUF version %u is not supported; 2 and 3 are.", file->version);
    if (read_u64(r, &tensors) != 0 || read_u64(r, &values) != 0)
        return -1;
    /* An entry takes at least this much, so false counts are found before memory is asked for. */
    const size_t least_tensor_bytes = 8 + 4 + 8 + 4 + 8, least_value_bytes = 8 + 4 + 1;
    if (tensors > r->end / least_tensor_bytes || values > r->end / least_value_bytes)
        return gen_fail(r->err, "The GGUF file claims %llu tensors and %llu values in %zu bytes.",
                        (unsigned long long)tensors, (unsigned long long)values, r->end);
    file->values = calloc(values + 1, sizeof *file->values);
    file->tensors = calloc(tensors + 1, sizeof *file->tensors);
    if (file->values == NULL || file->tensors == NULL)
        return gen_fail(r->err, "No memory for the entries of the GGUF file.");
    file->value_count = values;
    file->tensor_count = tensors;
    return 0;
}

static int read_all(struct reader *r, struct gguf *file)
{
    if (read_counts(r, file) != 0)
        return -1;
    for (size_t i = 0; i < file->value_count; i++)
        if (read_value(r, &file->values[i]) != 0)
            return -1;
    for (size_t i = 0; i < file->tensor_count; i++)
        if (read_tensor(r, &file->tensors[i]) != 0)
            return -1;
    uint64_t alignment = 32;
    gguf_get_u64(file, "general.alignment", &alignment);
    if (alignment == 0 || alignment > (1u << 20) || (alignment & (alignment - 1)) != 0)
        return gen_fail(r->err, "A GGUF alignment of %llu is not supported.",
                        (unsigned long long)alignment);
    const size_t data_at = (r->at + alignment - 1) & ~(size_t)(alignment - 1);
    for (size_t i = 0; i < file->tensor_count; i++)
        if (place_tensor(r, &file->tensors[i], data_at) != 0)
            return -1;
    return 0;
}

int gguf_parse(struct gguf *file, const void *bytes, size_t size_bytes, struct gen_error *err)
{
    *file = (struct gguf){0};
    struct reader r = {bytes, 0, size_bytes, err};
    if (read_all(&r, file) == 0)
        return 0;
    gguf_close(file);
    return -1;
}

int gguf_open(struct gguf *file, const char *path, struct gen_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return gen_fail(err, "Can't open '%s': %s.", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0) {
        close(fd);
        return gen_fail(err, "'%s' is empty or no plain file.", path);
    }
    const size_t bytes = (size_t)st.st_size;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return gen_fail(err, "Can't map '%s': %s.", path, strerror(errno));
    if (gguf_parse(file, map, bytes, err) != 0) {
        munmap(map, bytes);
        return -1;
    }
    file->map = map;
    file->map_bytes = bytes;
    return 0;
}

void gguf_close(struct gguf *file)
{
    free(file->values);
    free(file->tensors);
    if (file->map != NULL)
        munmap((void *)(uintptr_t)file->map, file->map_bytes);
    *file = (struct gguf){0};
}
