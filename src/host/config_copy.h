/* SPDX-License-Identifier: MIT
 *
 * config_copy.h: size-first structs, into the library and out of it.
 *
 * In:  a smaller struct (an older caller's) is zero-filled; a larger one (a
 *      newer caller's) is accepted when all that we don't know of is zero.
 * Out: the smaller of the two sizes is filled; the caller's struct_size stays.
 */
#ifndef RKVI_CONFIG_COPY_H
#define RKVI_CONFIG_COPY_H

#include "rollkv/types.h"

/* What is copied in: `name` is for the error's sentence. */
typedef struct rkvi_copy_spec {
    const char *name;  /* of the struct */
    size_t size_bytes; /* as this library knows it */
    size_t min_bytes;  /* a struct below it can't be meant */
} rkvi_copy_spec;

#define RKVI_COPY_SIZE_MAX 65536u /* a larger struct_size is a mistake, and isn't read */

/* The struct at `src`, whose first field is its struct_size. */
rkv_status rkvi_copy_in(const rkvi_copy_spec *spec, const void *src, void *dst);

/* Element `index` of an array with the stride array[0].struct_size.  Each
 * element's own struct_size is either that stride or not set. */
rkv_status rkvi_copy_in_at(const rkvi_copy_spec *spec, const void *array, uint64_t index, void *dst);

/* The size that the caller set, or a failure: NULL, or too small. */
rkv_status rkvi_copy_out_check(const rkvi_copy_spec *spec, const void *dst);
/* After a check that passed. */
void rkvi_copy_out(const rkvi_copy_spec *spec, const void *src, void *dst);

#endif
