/* SPDX-License-Identifier: MIT
 *
 * diag.c: see diag.h.  Nothing here allocates, so that an error can be told
 * when memory is short.
 */
#include "diag.h"

#include <pthread.h>
#include <stdio.h>

#define TEXT_BYTES 512

static _Thread_local char error_text[TEXT_BYTES];
_Thread_local const char *rkvi_call_site = "?";

/* The callback and its user pointer change together. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static rkvi_log_fn log_fn;
static void *log_user;

rkv_status (rkvi_fail)(rkv_status status, const char *format, ...)
{
    /* An argument may point into error_text (a cause that is passed on with
     * words around it), so the new text is built apart. */
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(error_text, sizeof error_text, "%s", text);
    return status;
}

const char *rkvi_error_text(void)
{
    return error_text;
}

void rkvi_error_clear(void)
{
    error_text[0] = 0;
}

const char *rkvi_status_name(rkv_status status)
{
#define CASE(name) \
    case name: return #name
    switch (status) {
        CASE(RKV_OK);
        CASE(RKV_E_ARGUMENT);
        CASE(RKV_E_UNSUPPORTED);
        CASE(RKV_E_STATE);
        CASE(RKV_E_SEQUENCE);
        CASE(RKV_E_BATCH);
        CASE(RKV_E_OVERFLOW);
        CASE(RKV_E_NO_DEVICE);
        CASE(RKV_E_DATA);
        CASE(RKV_E_CAPACITY);
        CASE(RKV_E_DEVICE_LIMIT);
        CASE(RKV_E_HOST_LIMIT);
        CASE(RKV_E_DEVICE_MEMORY);
        CASE(RKV_E_HOST_MEMORY);
        CASE(RKV_E_RING);
        CASE(RKV_E_SYSTEM);
        CASE(RKV_E_IO);
        CASE(RKV_E_DEVICE_CALL);
        CASE(RKV_E_POISONED);
    default: return "unknown status";
    }
#undef CASE
}

void rkvi_log_set(rkvi_log_fn fn, void *user)
{
    pthread_mutex_lock(&log_lock);
    log_fn = fn;
    log_user = user;
    pthread_mutex_unlock(&log_lock);
}

void rkvi_log(int32_t level, const char *format, ...)
{
    pthread_mutex_lock(&log_lock);
    const rkvi_log_fn fn = log_fn;
    void *const user = log_user;
    pthread_mutex_unlock(&log_lock);
    if (!fn)
        return;
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fn(user, level, text);
}
