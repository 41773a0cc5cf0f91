/* SPDX-License-Identifier: MIT
 *
 * settings.c: see settings.h.
 */
#include "settings.h"

#include "diag.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const rkvi_setting settings[RKVI_SETTING_COUNT] = {
    [RKVI_SETTING_KERNELS] =
        {"ROLLKV_KERNELS", "string", "",
         "the fastest set of CPU kernels to use: ref, avx2, avx512 or avx512vnni; empty: "
         "what the CPU runs.  Of the host executor, and of the CPU's share"},
    [RKVI_SETTING_THREADS] =
        {"ROLLKV_THREADS", "integer", "0",
         "threads of the host executor, for caches that leave host.n_threads at 0; 0: "
         "one per core"},
    [RKVI_SETTING_THREAD_NAMES] =
        {"ROLLKV_THREAD_NAMES", "integer", "0",
         "1: threads that the library starts are called rkv-stream, rkv-arena and the like, for debuggers and "
         "profilers; 0: they keep the name of the program's thread"},
};

const rkvi_setting *rkvi_setting_get(rkvi_setting_id id)
{
    return &settings[id];
}

const char *rkvi_setting_text(rkvi_setting_id id)
{
    const char *text = getenv(settings[id].name);
    return text && text[0] ? text : NULL;
}

rkv_status rkvi_setting_number(rkvi_setting_id id, uint32_t most, uint32_t *out)
{
    const char *text = rkvi_setting_text(id);
    char *end;
    *out = 0;
    if (!text)
        return RKV_OK;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9' || value > most)
        return rkvi_fail(RKV_E_ARGUMENT, "%s is \"%.32s\"; it must be a number from 0 to %u",
                         settings[id].name, text, most);
    *out = (uint32_t)value;
    return RKV_OK;
}

rkv_status rkvi_setting_word(rkvi_setting_id id, const char *const *words, uint32_t n, uint32_t *out)
{
    const char *text = rkvi_setting_text(id);
    *out = n;
    if (!text)
        return RKV_OK;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return RKV_OK;
        }
    return rkvi_fail(RKV_E_ARGUMENT, "%s is \"%.32s\", which is unknown; it is %s", settings[id].name,
                     text, settings[id].help);
}
