/* SPDX-License-Identifier: MIT
 *
 * rollkv/library.h: version, error messages, log, settings, devices.
 * A part of rollkv.h, which has the conventions.
 */
#ifndef ROLLKV_LIBRARY_H
#define ROLLKV_LIBRARY_H

#include "types.h"
#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the library that runs: major * 10000 + minor * 100 + patch. */
RKV_API uint32_t rkv_version(void);
RKV_API const char *rkv_version_string(void);

/* How it was built: compiler, executors, instruction sets. */
RKV_API const char *rkv_build_info(void);

/* "RKV_E_ARGUMENT" and the like; "unknown status" for other values. */
RKV_API const char *rkv_status_name(rkv_status status);

/* The sentence that the last failed call on this thread recorded; "" if none.
 * Valid until the thread's next failing call. */
RKV_API const char *rkv_error_message(void);

/* The library prints nothing.  With a callback set, it tells what it decided
 * (level 2), what to know (1), and errors (0) as they happen, from any thread
 * that works for it.  NULL turns it off.  Process-wide. */
typedef void (*rkv_log_fn)(void *user, int32_t level, const char *message);
RKV_API void rkv_log_set(rkv_log_fn fn, void *user);

/* The environment variables that the library reads, and their values now.
 * RKV_E_ARGUMENT past the last one. */
typedef struct rkv_setting {
    uint32_t struct_size;
    const char *name;          /* ROLLKV_... */
    const char *type;          /* "string", "integer" */
    const char *default_value; /* as text */
    const char *value;         /* from the environment, or NULL */
    const char *help;
} rkv_setting;
RKV_API rkv_status rkv_setting_at(uint32_t index, rkv_setting *out_setting);

/* Devices.  0 .. n-1 are GPUs; the host executor is asked for by its constant
 * and is always there. */
enum { RKV_DEVICE_HOST = -1 };
typedef struct rkv_device_info {
    uint32_t struct_size;
    int32_t device;
    char name[64];
    uint64_t memory_bytes, memory_free_bytes;
    uint32_t n_workers; /* multiprocessors, or threads */
    int32_t numa_node;  /* -1: unknown */
} rkv_device_info;
RKV_API uint32_t rkv_device_count(void); /* GPUs; 0 without a driver */
/* Errors: RKV_E_NO_DEVICE, RKV_E_ARGUMENT, RKV_E_DEVICE_CALL. */
RKV_API rkv_status rkv_device_info_get(int32_t device, rkv_device_info *out_info);

#ifdef __cplusplus
}
#endif
#endif
