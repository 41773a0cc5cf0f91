/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_device.h: the CUDA executor as the cliff bench uses it: with a
 * link that can be slowed, and with a clock around each operation on demand.
 *
 * Slowed: each H2D copy is followed by copies of other memory, so that so many
 * times its bytes cross in its place.  One bench runs at a time in a process.
 */
#ifndef CLIFF_CUDA_DEVICE_H
#define CLIFF_CUDA_DEVICE_H

#include "device.h"

/* repeat: how often a copy is carried out, 1 or more. */
rkv_status cliff_cuda_device_create(double repeat, rkvi_device **out);

/* Bandwidth of the best of a few plain copies of 256 MiB on it. */
rkv_status cliff_cuda_link(double repeat, double *out_bytes_per_s);

typedef enum {
    CLIFF_PROBE_IN,     /* H2D on the ring's stream */
    CLIFF_PROBE_TABLES, /* other H2D */
    CLIFF_PROBE_STORE, CLIFF_PROBE_ATTEND, CLIFF_PROBE_MERGE,
    CLIFF_PROBES
} cliff_probe;

typedef struct cliff_probed {
    double ns[CLIFF_PROBES];
    uint64_t bytes[CLIFF_PROBES], count[CLIFF_PROBES];
    bool is_part; /* there were more operations than events */
} cliff_probed;

/* From start to stop every operation has an event before and after it; stop
 * waits for all of them. */
rkv_status cliff_probe_start(void);
rkv_status cliff_probe_stop(cliff_probed *out);

/* Copies over the link, without a gap, for some `ns` from now on: what runs
 * meanwhile shares the device's memory with them.  stop waits for them. */
typedef struct cliff_busy cliff_busy;
rkv_status cliff_busy_start(int64_t ns, double link_bytes_per_s, cliff_busy **out);
void cliff_busy_stop(cliff_busy *b);

#endif
