/* SPDX-License-Identifier: MIT */
#include "products.h"

/* Eight sums side by side, which compilers turn into vector instructions. */
static float dot(const float *a, const float *b, size_t count)
{
    float sums[8] = {0};
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (size_t j = 0; j < 8; j++)
            sums[j] += a[i + j] * b[i + j];
    for (; i < count; i++)
        sums[0] += a[i] * b[i];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* Rows innermost: a row of w is read once from memory. */
void products_multiply(const struct product *p, size_t rows)
{
    for (size_t o = 0; o < p->outputs; o++)
        for (size_t r = 0; r < rows; r++) {
            float *y = p->y + r * p->outputs + o;
            const float sum = dot(p->x + r * p->x_stride, p->w + o * p->inputs, p->inputs);
            *y = p->keep != 0.0f ? *y * p->keep + sum : sum;
        }
}

void products_set_threads(int threads)
{
    (void)threads;
}

const char *products_name(void)
{
    return "plain loops on one thread (built without OpenBLAS: slow)";
}

void products_start(char **argv)
{
    (void)argv;
}
