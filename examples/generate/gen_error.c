/* SPDX-License-Identifier: MIT */
#include "gen_error.h"

#include <stdarg.h>
#include <stdio.h>

int gen_fail(struct gen_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return -1;
}
