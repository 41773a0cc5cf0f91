/* diag.h: errors, the log, call sites.  The lowest part: everything may use it. */
#ifndef RKVI_DIAG_H
#define RKVI_DIAG_H

#include "rollkv/types.h"

#include <stdarg.h>

/* Records the thread's error text and returns `status`, so that the first
 * function that knows the cause writes `return rkvi_fail(RKV_E_..., "...")`.
 * The sentence says cause, value, limit and what to do.  Callers pass the
 * status on and record nothing. */
rkv_status rkvi_fail(rkv_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__
/* The analyzer reads one file at a time: what comes back is what was given. */
#define rkvi_fail(status, ...) ((void)rkvi_fail(status, __VA_ARGS__), (status))
#endif

const char *rkvi_error_text(void);
void rkvi_error_clear(void);
const char *rkvi_status_name(rkv_status status);

/* Levels of the log callback: 0 error, 1 warning, 2 info, 3 debug. */
enum { RKVI_LOG_ERROR = 0, RKVI_LOG_WARNING = 1, RKVI_LOG_INFO = 2, RKVI_LOG_DEBUG = 3 };
typedef void (*rkvi_log_fn)(void *user, int32_t level, const char *message);
void rkvi_log_set(rkvi_log_fn fn, void *user);
void rkvi_log(int32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The source line of the device call that this thread is making: "file:line".
 * device_check reports it.  Set by the macros of device.h. */
extern _Thread_local const char *rkvi_call_site;
#define RKVI_STR2(x) #x
#define RKVI_STR(x) RKVI_STR2(x)
#define RKVI_HERE __FILE__ ":" RKVI_STR(__LINE__)

#endif
