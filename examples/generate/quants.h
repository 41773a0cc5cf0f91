/* SPDX-License-Identifier: MIT
 *
 * Tensor types of GGUF files that the engine can turn into f32. The block formats are those that
 * the GGUF specification names: a block of values with one or two f16 scales.
 */
#ifndef QUANTS_H
#define QUANTS_H

#include <stddef.h>
#include <stdint.h>

struct quant_info {
    uint32_t type; /* number in the file */
    const char *name;
    uint32_t block_values;
    uint32_t block_bytes;
    void (*block_to_f32)(const uint8_t *block, float *out); /* block_values values */
};

/* NULL for a type that is not supported. */
const struct quant_info *quant_find(uint32_t type);

/* `count` values (a multiple of block_values) from `data`. */
void quant_to_f32(const struct quant_info *info, const uint8_t *data, size_t count, float *out);

/* The names of all supported types, for messages. */
const char *quant_names(void);

float quant_f16_to_f32(uint16_t bits);

#endif
