/* SPDX-License-Identifier: MIT
 *
 * Who runs the forward pass: OpenBLAS (or plain loops) on the host, or cuBLAS and a few kernels on a
 * GPU. The library is called with pointers and a stream of the same device, so a backend also says
 * how. Above this file nothing knows which one runs.
 */
#ifndef BACKEND_H
#define BACKEND_H

#include <rollkv/rollkv.h>

#include "attention.h"
#include "forward.h"
#include "model.h"
#include "options.h"

struct backend_settings {
    const struct model *model; /* must live on */
    size_t max_rows, positions;
    bool all_logits; /* steps may ask for the logits of all their rows */
};

struct backend {
    const char *name;  /* "host", "cuda" */
    int32_t device;    /* as rkv_cache_params has it */
    void *stream;      /* what the library is to work on; NULL: the cache's default stream */
    rkv_type out_type; /* of attention's output */
    void *self;
    int (*run)(void *self, const struct attention *attention, const struct forward_step *step,
               struct gen_error *err);
    void (*destroy)(void *self);
    /* Bytes per second of a plain large copy from host to device; NULL: not to be had. */
    int (*measure_link)(void *self, uint64_t *out, struct gen_error *err);
};

/* The device that `wanted` comes to: DEVICE_AUTO takes a GPU where there is one and this program can
 * use it. */
enum generate_device backend_choose(enum generate_device wanted);

/* 0, or -1 with a sentence in err and nothing to close. */
int backend_open(struct backend *out, enum generate_device device,
                 const struct backend_settings *settings, struct gen_error *err);
void backend_close(struct backend *backend);

#endif
