/* SPDX-License-Identifier: MIT */
/* Headers of 0.1, without comments: what a program of that release was compiled with. */
#ifndef ROLLKV_TYPES_H
#define ROLLKV_TYPES_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(_WIN32)
#define RKV_API
#else
#define RKV_API __attribute__((visibility("default")))
#endif
typedef int32_t rkv_status;
enum {
    RKV_OK = 0,
    RKV_E_ARGUMENT = -1,
    RKV_E_UNSUPPORTED = -2,
    RKV_E_STATE = -3,
    RKV_E_SEQUENCE = -4,
    RKV_E_BATCH = -5,
    RKV_E_OVERFLOW = -6,
    RKV_E_NO_DEVICE = -7,
    RKV_E_DATA = -8,
    RKV_E_CAPACITY = -20,
    RKV_E_DEVICE_LIMIT = -21,
    RKV_E_HOST_LIMIT = -22,
    RKV_E_DEVICE_MEMORY = -23,
    RKV_E_HOST_MEMORY = -24,
    RKV_E_RING = -25,
    RKV_E_SYSTEM = -26,
    RKV_E_IO = -27,
    RKV_E_DEVICE_CALL = -40,
    RKV_E_POISONED = -60
};
typedef uint32_t rkv_type;
enum {
    RKV_TYPE_DEFAULT = 0,
    RKV_TYPE_F32 = 1,
    RKV_TYPE_F16 = 2,
    RKV_TYPE_BF16 = 3,
    RKV_TYPE_FP8_E4M3 = 4,
    RKV_TYPE_Q8_0 = 5,
    RKV_TYPE_Q4_0 = 6
};
typedef uint32_t rkv_mask;
enum {
    RKV_MASK_CAUSAL = 0,
    RKV_MASK_SLIDING = 1,
    RKV_MASK_CHUNKED = 2
};
#ifdef __cplusplus
}
#endif
#endif
