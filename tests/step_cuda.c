/* SPDX-License-Identifier: MIT
 *
 * step_cuda.c: the GPU of step_fixture.h.
 *
 * One executor lives as long as the program: pinned memory and the engine's
 * stream are its, as an engine's would be apart from any cache's executor.
 */
#include "step_fixture.h"

#include "cuda_fixture.h"
#include "ops_cuda.h"

static rkvi_device *engine;

/* -------------------------------------------------------------- pinned memory */

/* Pinning takes long, and giving back waits for the whole device, which would
 * order what a test leaves unordered: so blocks are kept, by powers of two. */
#define HEAD_BYTES ((size_t)256) /* the kernels' alignment is kept */
#define CHUNK_BYTES ((size_t)64 << 20)
#define N_CLASSES 48u

typedef struct block {
    struct block *next;
    uint32_t size_class;
} block;

static block *unused[N_CLASSES];
static unsigned char *chunk;
static size_t chunk_left;

static void *carve(size_t bytes)
{
    void *p;
    if (bytes > chunk_left) {
        chunk_left = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        ok(rkvi_dev(host_alloc, engine, chunk_left, &p));
        chunk = p;
    }
    p = chunk;
    chunk += bytes;
    chunk_left -= bytes;
    return p;
}

static void *pinned_alloc(size_t bytes)
{
    uint32_t c = 9;
    while ((size_t)1 << c < bytes + HEAD_BYTES)
        c++;
    block *b = unused[c];
    if (b)
        unused[c] = b->next;
    else
        b = carve((size_t)1 << c);
    b->size_class = c;
    return (unsigned char *)b + HEAD_BYTES;
}

static void pinned_release(void *p)
{
    block *b = (block *)(void *)((unsigned char *)p - HEAD_BYTES);
    b->next = unused[b->size_class];
    unused[b->size_class] = b;
}

/* --------------------------------------------------------- executors, counted */

static struct watched {
    const rkvi_device *d;
    uint64_t copied_bytes[3];
} watched[8];

/* The executor's own table, and the one that counts. */
static const rkvi_device_vt *cuda_vt;
static rkvi_device_vt counting_vt;

static struct watched *watch_of(const rkvi_device *d)
{
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        if (watched[i].d == d)
            return &watched[i];
    fail_msg("not a device of this fixture, or too many");
    return NULL;
}

static rkv_status counted_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    const rkv_status s = cuda_vt->copy(d, copy, stream);
    if (s == RKV_OK)
        watch_of(d)->copied_bytes[copy->direction] += copy->rows * copy->width_bytes;
    return s;
}

static void counted_destroy(rkvi_device *d)
{
    watch_of(d)->d = NULL;
    cuda_vt->destroy(d);
}

static uint64_t copied_bytes(const rkvi_device *d, rkvi_direction direction)
{
    return watch_of(d)->copied_bytes[direction];
}

static void skip_unbuilt(const fx_model *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const rkv_kv_layer_params *l = &m->layers[i];
        const rkvi_geom g = {.type_k = l->type_k ? l->type_k : RKV_TYPE_F16,
                             .type_v = l->type_v ? l->type_v : RKV_TYPE_F16,
                             .dk = l->head_dim_k,
                             .dv = l->head_dim_v ? l->head_dim_v : l->head_dim_k};
        if (rkvk_find(&g))
            continue;
        print_message("%s/%s, dims %u/%u: not in this build, the test ends here\n", rkvi_type_name(g.type_k),
                      rkvi_type_name(g.type_v), g.dk, g.dv);
        skip();
    }
}

static rkvi_device *open_counted(const fx_model *m)
{
    const rkvi_device_cuda_settings cs = {0};
    rkvi_device *d = NULL;
    skip_unbuilt(m);
    fx_ok(rkvi_device_cuda_create(&cs, &d), "device_cuda");
    if (!cuda_vt) {
        cuda_vt = d->vt;
        counting_vt = *d->vt;
        counting_vt.copy = counted_copy;
        counting_vt.destroy = counted_destroy;
    }
    d->vt = &counting_vt;
    *watch_of(NULL) = (struct watched){.d = d};
    return d;
}

static void *engine_stream(void)
{
    static void *own;
    static uint32_t n;
    if (!own)
        ok(rkvi_dev(stream_create, engine, "engine", &own));
    return n++ % 2 ? NULL : own;
}

void fx_use_gpu(void)
{
    static const fx_gpu_calls calls = {.open = open_counted,
                                       .copied_bytes = copied_bytes,
                                       .alloc = pinned_alloc,
                                       .release = pinned_release,
                                       .engine_stream = engine_stream,
                                       .is_fake = FAKE_CUDA};
    gpu_or_skip();
    engine = gpu_open();
    fx_gpu = &calls;
}
