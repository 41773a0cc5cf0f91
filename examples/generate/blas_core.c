/* SPDX-License-Identifier: MIT */
#include "blas_core.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *better_core(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

void blas_core_check(char **argv)
{
    static const char variable[] = "OPENBLAS_CORETYPE";
    const char *better = better_core();
    if (better == NULL || getenv(variable) != NULL || strcmp(openblas_get_corename(), "Prescott") != 0)
        return;
    /* Now that the variable is set, the next start doesn't come here again. */
    if (setenv(variable, better, 0) == 0)
        execv("/proc/self/exe", argv);
}
