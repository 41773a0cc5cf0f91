/* SPDX-License-Identifier: MIT */
#ifndef GPU_BACKEND_H
#define GPU_BACKEND_H

#include "backend.h"

/* The forward pass on the first GPU; as backend_open. */
int gpu_backend_open(struct backend *out, const struct backend_settings *settings,
                     struct gen_error *err);

#endif
