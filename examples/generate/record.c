/* SPDX-License-Identifier: MIT */
#include "record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t room_bytes = (size_t)1 << 28;

int record_init(struct record *r, size_t vocabulary, size_t max_steps, struct gen_error *err)
{
    const size_t step_bytes = vocabulary * sizeof(float);
    size_t kept = room_bytes / step_bytes;
    if (kept > max_steps)
        kept = max_steps;
    *r = (struct record){.vocabulary = vocabulary, .max_steps = max_steps, .kept_steps = kept};
    r->hashes = calloc(max_steps, sizeof *r->hashes);
    /* One step more: where logits go that are not kept. Aligned, so that products run alike. */
    r->logits = aligned_alloc(64, ((kept + 1) * step_bytes + 63) & ~(size_t)63);
    if (r->hashes != NULL && r->logits != NULL)
        return 0;
    record_free(r);
    return gen_fail(err, "No memory for the logits of %zu steps.", max_steps);
}

void record_free(struct record *r)
{
    free(r->hashes);
    free(r->logits);
    *r = (struct record){0};
}

float *record_next(struct record *r)
{
    const size_t at = r->steps < r->kept_steps ? r->steps : r->kept_steps;
    return r->logits + at * r->vocabulary;
}

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

/* Four chains side by side, since a step waits for this. */
void record_done(struct record *r)
{
    const float *logits = record_next(r);
    uint64_t h[4] = {1, 2, 3, 4};
    size_t i = 0;
    for (; i + 8 <= r->vocabulary; i += 8)
        for (size_t j = 0; j < 4; j++) {
            uint64_t bits;
            memcpy(&bits, logits + i + 2 * j, sizeof bits);
            h[j] = mix(h[j], bits);
        }
    for (; i < r->vocabulary; i++) {
        uint32_t bits;
        memcpy(&bits, logits + i, sizeof bits);
        h[0] = mix(h[0], bits);
    }
    r->hashes[r->steps++] = mix(mix(mix(h[0], h[1]), h[2]), h[3]);
}

uint64_t record_hash(const struct record *r)
{
    uint64_t h = 1;
    for (size_t i = 0; i < r->steps; i++)
        h = mix(h, r->hashes[i]);
    return h;
}

static double largest_difference(const float *a, const float *b, size_t count)
{
    double largest = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)a[i] - (double)b[i]));
    return largest;
}

void record_compare(const struct record *a, const struct record *b, struct record_difference *out)
{
    const size_t steps = a->steps < b->steps ? a->steps : b->steps, n = a->vocabulary;
    *out = (struct record_difference){.steps = steps, .logits = steps * n};
    for (size_t i = 0; i < steps; i++) {
        const int is_kept = i < a->kept_steps && i < b->kept_steps;
        int differs = a->hashes[i] != b->hashes[i];
        if (is_kept) {
            const float *x = a->logits + i * n, *y = b->logits + i * n;
            differs |= memcmp(x, y, n * sizeof *x) != 0;
            out->largest = fmax(out->largest, largest_difference(x, y, n));
            out->bytewise_steps++;
        }
        if (differs && out->different_steps++ == 0)
            out->first_different = i;
    }
}
