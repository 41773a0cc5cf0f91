/* SPDX-License-Identifier: MIT */
/* Look-ups in a file that gguf_open or gguf_parse has checked. */
#include <string.h>

#include "gguf.h"

bool gguf_string_is(struct gguf_string s, const char *text)
{
    return strlen(text) == s.length && memcmp(s.text, text, s.length) == 0;
}

const struct gguf_value *gguf_find(const struct gguf *file, const char *key)
{
    for (size_t i = 0; i < file->value_count; i++)
        if (gguf_string_is(file->values[i].key, key))
            return &file->values[i];
    return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name)
{
    for (size_t i = 0; i < file->tensor_count; i++)
        if (gguf_string_is(file->tensors[i].name, name))
            return &file->tensors[i];
    return NULL;
}

/* Values are packed without alignment, hence the copies. */
static bool whole_number(uint32_t type, const uint8_t *data, int64_t *out)
{
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL: *out = data[0]; return true;
    case GGUF_I8:
        memcpy(&i8, data, sizeof i8);
        *out = i8;
        return true;
    case GGUF_U16:
        memcpy(&u16, data, sizeof u16);
        *out = u16;
        return true;
    case GGUF_I16:
        memcpy(&i16, data, sizeof i16);
        *out = i16;
        return true;
    case GGUF_U32:
        memcpy(&u32, data, sizeof u32);
        *out = u32;
        return true;
    case GGUF_I32:
        memcpy(&i32, data, sizeof i32);
        *out = i32;
        return true;
    case GGUF_U64:
    case GGUF_I64: memcpy(out, data, sizeof *out); return true;
    default: return false;
    }
}

bool gguf_get_u64(const struct gguf *file, const char *key, uint64_t *out)
{
    const struct gguf_value *v = gguf_find(file, key);
    int64_t number;
    if (v == NULL || !whole_number(v->type, v->data, &number) || number < 0)
        return false;
    *out = (uint64_t)number;
    return true;
}

bool gguf_get_f32(const struct gguf *file, const char *key, float *out)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (v == NULL || v->type != GGUF_F32)
        return false;
    memcpy(out, v->data, sizeof *out);
    return true;
}

bool gguf_get_bool(const struct gguf *file, const char *key, bool *out)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (v == NULL || v->type != GGUF_BOOL)
        return false;
    *out = v->data[0] != 0;
    return true;
}

struct gguf_string gguf_next_string(const uint8_t **cursor)
{
    uint64_t length;
    memcpy(&length, *cursor, sizeof length);
    const struct gguf_string s = {(const char *)*cursor + sizeof length, length};
    *cursor += sizeof length + length;
    return s;
}

bool gguf_get_string(const struct gguf *file, const char *key, struct gguf_string *out)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (v == NULL || v->type != GGUF_STRING)
        return false;
    const uint8_t *cursor = v->data;
    *out = gguf_next_string(&cursor);
    return true;
}

int64_t gguf_item_i64(const struct gguf_value *array, uint64_t i)
{
    static const uint8_t item_bytes[] = {1, 1, 2, 2, 4, 4, 0, 1, 0, 0, 8, 8};
    int64_t number = 0;
    if (i < array->count && array->item_type < sizeof item_bytes)
        whole_number(array->item_type, array->data + i * item_bytes[array->item_type], &number);
    return number;
}
