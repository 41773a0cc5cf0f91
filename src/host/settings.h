/* SPDX-License-Identifier: MIT
 *
 * settings.h: the environment variables that the library reads, in one table.
 * Parameters of a call come before them: a variable only fills in what a
 * caller left to the library.
 */
#ifndef RKVI_SETTINGS_H
#define RKVI_SETTINGS_H

#include "rollkv/types.h"

typedef enum {
    RKVI_SETTING_KERNELS, /* "ref", "avx2", "avx512", "avx512vnni": the fastest kernel set to use */
    RKVI_SETTING_THREADS, /* of the host executor, where host.n_threads is 0 */
    RKVI_SETTING_THREAD_NAMES, /* 1: threads carry names */
    RKVI_SETTING_COUNT
} rkvi_setting_id;

typedef struct rkvi_setting {
    const char *name, *type, *default_value, *help;
} rkvi_setting;

const rkvi_setting *rkvi_setting_get(rkvi_setting_id id);
/* The variable's text, or NULL where it is not set or empty. */
const char *rkvi_setting_text(rkvi_setting_id id);
/* A number up to `most`; 0 where the variable is not set. */
rkv_status rkvi_setting_number(rkvi_setting_id id, uint32_t most, uint32_t *out);
/* An index into `words` (n of them), or n where the variable is not set. */
rkv_status rkvi_setting_word(rkvi_setting_id id, const char *const *words, uint32_t n, uint32_t *out);

#endif
