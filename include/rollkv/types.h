/* SPDX-License-Identifier: MIT
 *
 * rollkv/types.h: status values, element types and masks.
 * Included by rollkv.h; compiles alone as C99 and C++11.
 */
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

/* Result of every call that can fail.  Values are fixed for ever and grouped
 * by what is lost:
 *
 *    0          done
 *   -1 ..  -19  the caller's mistake: nothing changed, the handle works on
 *  -20 ..  -39  out of a resource:    nothing changed, the handle works on
 *  -40 ..  -59  a device call failed: the call was taken back, the handle works on
 *  -60 ..  -79  the handle is poisoned: only rkv_cache_destroy is left
 *
 * rkv_error_message() holds the cause in a sentence. */
typedef int32_t rkv_status;
enum {
    RKV_OK = 0,
    RKV_E_ARGUMENT = -1,        /* a value out of its range, a null pointer, a bad struct_size */
    RKV_E_UNSUPPORTED = -2,     /* a combination that is not built; the message lists what is */
    RKV_E_STATE = -3,           /* not now: a step is open, none is, sites out of order */
    RKV_E_SEQUENCE = -4,        /* no such sequence, or a range of positions it does not hold */
    RKV_E_BATCH = -5,           /* a batch that contradicts itself or the parameters */
    RKV_E_OVERFLOW = -6,        /* a size that does not fit 64 bits, or above 2^62 */
    RKV_E_NO_DEVICE = -7,       /* no such device, or no driver for it */
    RKV_E_DATA = -8,            /* a saved state that is damaged, truncated, or of another cache */
    RKV_E_CAPACITY = -20,       /* the cache's capacity_cells are used up */
    RKV_E_DEVICE_LIMIT = -21,   /* device_limit_bytes does not hold what is asked; no device place is left */
    RKV_E_HOST_LIMIT = -22,     /* host_limit_bytes does not hold the tail */
    RKV_E_DEVICE_MEMORY = -23,  /* the device's allocator refused */
    RKV_E_HOST_MEMORY = -24,    /* the system's allocator refused */
    RKV_E_RING = -25,           /* the ring does not hold one tile-layer */
    RKV_E_SYSTEM = -26,         /* a thread or another system resource was refused */
    RKV_E_IO = -27,             /* reading or writing a state failed */
    RKV_E_DEVICE_CALL = -40,    /* a device call failed and was taken back */
    RKV_E_POISONED = -60        /* a device fault in an earlier call; the first one is in the message */
};

/* Element types.  0 means F16 wherever a type is asked for. */
typedef uint32_t rkv_type;
enum {
    RKV_TYPE_DEFAULT = 0,
    RKV_TYPE_F32 = 1,      /* tensors only (q, k, v, out) */
    RKV_TYPE_F16 = 2,      /* tensors and storage: IEEE binary16 */
    RKV_TYPE_BF16 = 3,     /* tensors and storage: upper half of binary32 */
    RKV_TYPE_FP8_E4M3 = 4, /* storage: OCP 8-bit e4m3fn, largest value 448, one scale per KV layer */
    RKV_TYPE_Q8_0 = 5,     /* storage: blocks of 32, 8-bit quants, one f16 scale (ggml's arithmetic) */
    RKV_TYPE_Q4_0 = 6      /* storage: blocks of 32, 4-bit quants, one f16 scale (ggml's arithmetic) */
};

/* Masks: each one is a range of positions that a row at position p may see,
 * always within its own sequence and never after p. */
typedef uint32_t rkv_mask;
enum {
    RKV_MASK_CAUSAL = 0,  /* [0, p] */
    RKV_MASK_SLIDING = 1, /* [p - width + 1, p]: the row itself and the width - 1 before it */
    RKV_MASK_CHUNKED = 2  /* [p - p % width, p] */
};

#ifdef __cplusplus
}
#endif
#endif
