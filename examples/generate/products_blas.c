/* SPDX-License-Identifier: MIT */
#include "products.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void products_multiply(const struct product *p, size_t rows)
{
    const blasint outputs = (blasint)p->outputs, inputs = (blasint)p->inputs;
    if (rows == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, outputs, inputs, 1.0f, p->w, inputs, p->x, 1, p->keep,
                    p->y, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, outputs, inputs, 1.0f, p->x,
                    (blasint)p->x_stride, p->w, inputs, p->keep, p->y, outputs);
}

void products_set_threads(int threads)
{
    openblas_set_num_threads(threads);
}

const char *products_name(void)
{
    return "OpenBLAS";
}

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

/*
 * OpenBLAS picks its kernels by the CPU's model number when it is loaded, and takes plain SSE3 ones
 * for a model that is newer than itself: products then run at an eighth of the speed. Where that
 * happened although the CPU has AVX2 or AVX-512, the program starts itself again with
 * OPENBLAS_CORETYPE set (which is left alone if the user has set it).
 */
void products_start(char **argv)
{
    static const char variable[] = "OPENBLAS_CORETYPE";
    const char *better = better_core();
    if (better == NULL || getenv(variable) != NULL || strcmp(openblas_get_corename(), "Prescott") != 0)
        return;
    /* Now that the variable is set, the next start doesn't come here again. */
    if (setenv(variable, better, 0) == 0)
        execv("/proc/self/exe", argv);
}
