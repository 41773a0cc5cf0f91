/* SPDX-License-Identifier: MIT
 *
 * core_random.h: seeded randomness for the tests of the core parts.
 *
 * ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_FULL=1 asks for the long run.
 */
#ifndef RKVT_CORE_RANDOM_H
#define RKVT_CORE_RANDOM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 1;

/* splitmix64: one seed gives one run everywhere. */
static inline uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* In [0, n). */
static inline uint32_t below(uint64_t n)
{
    return (uint32_t)(next_random() % n);
}

/* In [lo, hi]. */
static inline uint32_t between(uint32_t lo, uint32_t hi)
{
    return lo + below((uint64_t)hi - lo + 1);
}

static inline bool one_in(uint32_t n)
{
    return below(n) == 0;
}

static inline uint64_t test_seed(void)
{
    const char *s = getenv("ROLLKV_TEST_SEED");
    return s ? strtoull(s, NULL, 0) : 1;
}

static inline void start_random(void)
{
    random_state = test_seed();
    print_message("seed %llu\n", (unsigned long long)random_state);
}

/* Rounds of a random test: `quick`, or `times` as many on request. */
static inline uint32_t rounds(uint32_t quick, uint32_t times)
{
    const char *full = getenv("ROLLKV_TEST_FULL");
    return full && *full == '1' ? quick * times : quick;
}

#endif
