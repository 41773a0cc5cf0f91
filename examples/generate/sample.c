/* SPDX-License-Identifier: MIT */
#include "sample.h"

#include <math.h>

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

size_t sample_highest(const float *logits, size_t count)
{
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

int32_t sample_next(struct sampler *s, const float *logits, size_t count)
{
    const size_t best = sample_highest(logits, count);
    if (s->temperature <= 0.0f)
        return (int32_t)best;
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        s->weights[i] = exp(((double)logits[i] - (double)logits[best]) / (double)s->temperature);
        sum += s->weights[i];
    }
    double left = (double)(next_random(&s->state) >> 11) * 0x1p-53 * sum;
    for (size_t i = 0; i < count; i++) {
        left -= s->weights[i];
        if (left < 0.0)
            return (int32_t)i;
    }
    return (int32_t)best; /* rounding used the last weight up */
}
