/* SPDX-License-Identifier: MIT
 *
 * fuzz_common.h: what the fuzzers share: a byte string read as numbers, and a
 * cache on the simulating executor (every order that the edges allow, by seed)
 * or on the checking one.  A finding ends the program.
 */
#ifndef FUZZ_COMMON_H
#define FUZZ_COMMON_H

#include "api_internal.h"
#include "device_check.h"
#include "device_sim.h"
#include "rollkv/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(x) ((x) ? (void)0 : fuzz_fail(#x, __FILE__, __LINE__))
static inline void fuzz_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s\nlast message: %s\n", file, line, what, rkv_error_message());
    abort();
}

/* Past its end the string is zeros. */
typedef struct fuzz_bytes {
    const uint8_t *at, *end;
} fuzz_bytes;

static inline uint8_t fuzz_u8(fuzz_bytes *b)
{
    return b->at < b->end ? *b->at++ : 0;
}

/* A small number, or (one byte in eight) any 64 bits. */
static inline int64_t fuzz_number(fuzz_bytes *b)
{
    const uint8_t x = fuzz_u8(b);
    if (x < 224)
        return x;
    uint64_t wide = 0;
    for (int i = 0; i < 8; i++)
        wide = wide << 8 | fuzz_u8(b);
    return (int64_t)wide;
}

/* The executor below (out_core fails calls on demand) and the one to use. */
static inline rkvi_device *fuzz_device(uint64_t seed, bool is_checked, rkvi_device **out_core)
{
    static rkvi_ops ops;
    const rkvi_device_sim_settings s = {.order = RKVI_SIM_SEEDED, .seed = seed};
    rkvi_device *d = NULL;
    if (!ops.name)
        rkvi_ops_best(&ops, NULL);
    FUZZ_CHECK(rkvi_device_sim_create(&s, &ops, out_core) == RKV_OK);
    if (!is_checked)
        return *out_core;
    FUZZ_CHECK(rkvi_device_check_create(*out_core, NULL, &d) == RKV_OK);
    return d;
}

/* A checker's report is a finding. */
static inline void fuzz_no_reports(rkvi_device *d, bool is_checked)
{
    if (!is_checked || rkvi_device_check_count(d) == 0)
        return;
    fprintf(stderr, "%s\n", rkvi_device_check_report(d, 0)->text);
    FUZZ_CHECK(!"ordering");
}

#endif
