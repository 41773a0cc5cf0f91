/* SPDX-License-Identifier: MIT
 *
 * config_copy.c: see config_copy.h.  Elements of an array may lie at any
 * address that the caller's stride gives, so everything goes through memcpy.
 */
#include "config_copy.h"

#include "diag.h"

#include <string.h>

static uint32_t size_at(const void *src)
{
    uint32_t size;
    memcpy(&size, src, sizeof size);
    return size;
}

static rkv_status check_size(const rkvi_copy_spec *spec, uint32_t size)
{
    if (size >= spec->min_bytes && size <= RKVI_COPY_SIZE_MAX)
        return RKV_OK;
    return rkvi_fail(
        RKV_E_ARGUMENT,
        "struct_size of %s is %u; this library knows %zu bytes (at least %zu must be given): "
        "set it to sizeof, as its INIT macro does",
        spec->name, size, spec->size_bytes, spec->min_bytes);
}

/* Copies `size` bytes of a caller's struct; struct_size becomes ours. */
static rkv_status copy_bytes(const rkvi_copy_spec *spec, const unsigned char *src, size_t size,
                             void *dst)
{
    const size_t known = size < spec->size_bytes ? size : spec->size_bytes;
    for (size_t i = known; i < size; i++)
        if (src[i])
            return rkvi_fail(RKV_E_ARGUMENT,
                             "%s has %zu bytes, this library knows %zu, and byte %zu is not zero: the "
                             "caller asks for what a newer library offers",
                             spec->name, size, spec->size_bytes, i);
    memset(dst, 0, spec->size_bytes);
    memcpy(dst, src, known);
    const uint32_t ours = (uint32_t)spec->size_bytes;
    memcpy(dst, &ours, sizeof ours);
    return RKV_OK;
}

rkv_status rkvi_copy_in(const rkvi_copy_spec *spec, const void *src, void *dst)
{
    return rkvi_copy_in_at(spec, src, 0, dst);
}

rkv_status rkvi_copy_in_at(const rkvi_copy_spec *spec, const void *array, uint64_t index, void *dst)
{
    if (!array)
        return rkvi_fail(RKV_E_ARGUMENT, "%s is NULL", spec->name);
    const uint32_t stride = size_at(array);
    const rkv_status s = check_size(spec, stride);
    if (s != RKV_OK)
        return s;
    const unsigned char *at = (const unsigned char *)array + index * stride;
    const uint32_t own = size_at(at);
    if (own != stride && own != 0)
        return rkvi_fail(
            RKV_E_ARGUMENT,
            "struct_size of %s %llu is %u, that of element 0 is %u: an array has one stride",
            spec->name, (unsigned long long)index, own, stride);
    return copy_bytes(spec, at, stride, dst);
}

rkv_status rkvi_copy_out_check(const rkvi_copy_spec *spec, const void *dst)
{
    if (!dst)
        return rkvi_fail(RKV_E_ARGUMENT, "the %s to fill is NULL", spec->name);
    return check_size(spec, size_at(dst));
}

void rkvi_copy_out(const rkvi_copy_spec *spec, const void *src, void *dst)
{
    const size_t size = size_at(dst), head = sizeof(uint32_t);
    const size_t known = size < spec->size_bytes ? size : spec->size_bytes;
    memcpy((unsigned char *)dst + head, (const unsigned char *)src + head, known - head);
}
