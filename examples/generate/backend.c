/* SPDX-License-Identifier: MIT */
#include "backend.h"

#ifdef GENERATE_HAVE_CUDA
#include "gpu_backend.h"
#endif

static int run_host(void *self, const struct attention *attention, const struct forward_step *step,
                    struct gen_error *err)
{
    return forward_run(self, attention, step, err);
}

static void destroy_host(void *self)
{
    forward_destroy(self);
}

static int open_host(struct backend *out, const struct backend_settings *s, struct gen_error *err)
{
    struct forward *f = forward_create(s->model, s->max_rows, s->positions, err);
    if (f == NULL)
        return -1;
    *out = (struct backend){.name = "host",
                            .device = RKV_DEVICE_HOST,
                            .out_type = RKV_TYPE_F32,
                            .self = f,
                            .run = run_host,
                            .destroy = destroy_host};
    return 0;
}

#ifdef GENERATE_HAVE_CUDA
static bool has_gpu(void)
{
    return rkv_device_count() > 0;
}
#else
static bool has_gpu(void)
{
    return false;
}

static int gpu_backend_open(struct backend *out, const struct backend_settings *s,
                            struct gen_error *err)
{
    (void)out;
    (void)s;
    return gen_fail(err, "This program was built without CUDA; --device host runs.");
}
#endif

enum generate_device backend_choose(enum generate_device wanted)
{
    if (wanted != DEVICE_AUTO)
        return wanted;
    return has_gpu() ? DEVICE_CUDA : DEVICE_HOST;
}

int backend_open(struct backend *out, enum generate_device device,
                 const struct backend_settings *settings, struct gen_error *err)
{
    return backend_choose(device) == DEVICE_CUDA ? gpu_backend_open(out, settings, err)
                                                 : open_host(out, settings, err);
}

void backend_close(struct backend *backend)
{
    if (backend->destroy != NULL)
        backend->destroy(backend->self);
    *backend = (struct backend){0};
}
