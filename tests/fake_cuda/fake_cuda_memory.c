/* SPDX-License-Identifier: MIT
 *
 * fake_cuda_memory.c: device memory and pinned host memory.
 */
#include "fake_cuda_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Fresh memory holds 0xFF bytes, NaN in every type, up to this size. */
#define FILL_BYTES ((size_t)64 << 20)

fake_block *fake_block_of(const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    for (fake_block *b = fake.blocks; b; b = b->next)
        if (at >= (uintptr_t)b->at && at - (uintptr_t)b->at < b->bytes)
            return b;
    return NULL;
}

bool fake_holds(const void *p, size_t bytes)
{
    const fake_block *b = fake_block_of(p);
    return b && bytes <= b->bytes - (size_t)((uintptr_t)p - (uintptr_t)b->at);
}

bool fake_holds_device(const void *p, size_t bytes)
{
    const fake_block *b = fake_block_of(p);
    return b && b->is_device && fake_holds(p, bytes);
}

/* Changing it takes long: once open, it is closed by one call in so many. */
#define CLOSE_IN 512u

void fake_access(bool open)
{
    if (fake.is_open == open || (!open && ++fake.n_leaves % CLOSE_IN != 0))
        return;
    fake.is_open = open;
    for (fake_block *b = fake.blocks; b; b = b->next)
        if (b->is_device && mprotect(b->at, b->mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            fake_wrong("mprotect of %zu bytes", b->mapped);
}

static size_t device_bytes(void)
{
    size_t sum = 0;
    for (const fake_block *b = fake.blocks; b; b = b->next)
        sum += b->is_device ? b->mapped : 0;
    return sum;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Of the pages that lie in it, whole or in part. */
static size_t pages_of(const void *p, size_t bytes)
{
    const uintptr_t page = page_bytes(), first = (uintptr_t)p / page;
    if (bytes == 0)
        return 0;
    return (((uintptr_t)p + bytes - 1) / page - first + 1) * page;
}

size_t fake_pinned_bytes(void)
{
    size_t sum = 0;
    for (const fake_block *b = fake.blocks; b; b = b->next)
        sum += b->is_device ? 0 : pages_of(b->at, b->bytes);
    return sum;
}

void fake_cuda_obey_memlock(bool on)
{
    pthread_mutex_lock(&fake.lock);
    fake.obeys_memlock = on;
    fake.unlimited_bytes = fake_pinned_bytes();
    pthread_mutex_unlock(&fake.lock);
}

static bool can_pin(const void *p, size_t bytes)
{
    struct rlimit r;
    if (!fake.obeys_memlock || getrlimit(RLIMIT_MEMLOCK, &r) || r.rlim_cur == RLIM_INFINITY)
        return true;
    const size_t now = fake_pinned_bytes(), counted = now > fake.unlimited_bytes ? now - fake.unlimited_bytes : 0;
    return pages_of(p, bytes) <= r.rlim_cur && counted <= r.rlim_cur - pages_of(p, bytes);
}

static fake_block *map_block(size_t bytes, bool is_device, struct CUctx_st *ctx)
{
    const size_t page = page_bytes(), mapped = (bytes + page - 1) / page * page;
    void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    fake_block *b = fake_alloc(sizeof *b);
    *b = (fake_block){.next = fake.blocks, .at = at, .bytes = bytes, .mapped = mapped, .is_device = is_device,
                      .ctx = ctx};
    if (is_device && bytes <= FILL_BYTES)
        memset(at, 0xff, mapped);
    if (is_device && !fake.is_open)
        mprotect(at, mapped, PROT_NONE);
    fake.blocks = b;
    return b;
}

static void drop_block(fake_block *gone)
{
    fake_block **at = &fake.blocks;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    if (!gone->is_registered)
        munmap(gone->at, gone->mapped);
    free(gone);
}

static cudaError_t allocate(void **out, size_t bytes, bool is_device)
{
    struct CUctx_st *ctx;
    cudaError_t e = fake_enter_unsafe(&ctx);
    if (e != cudaSuccess)
        return fake_leave(e);
    if (!out)
        return fake_leave(cudaErrorInvalidValue);
    if (bytes > FAKE_DEVICE_BYTES || (is_device && bytes > FAKE_DEVICE_BYTES - device_bytes()) ||
        (!is_device && !can_pin(NULL, bytes)))
        return fake_leave(cudaErrorMemoryAllocation);
    fake_block *b = map_block(bytes, is_device, ctx);
    if (b)
        *out = b->at;
    return fake_leave(b ? cudaSuccess : cudaErrorMemoryAllocation);
}

/* What a faulted context held counts as given back. */
static cudaError_t release(void *p, bool is_device, bool is_registered, cudaError_t absent)
{
    struct CUctx_st *ctx;
    const cudaError_t e = fake_enter_unsafe(&ctx);
    if (e != cudaSuccess && e != ctx->fault)
        return fake_leave(e);
    fake_block *b = fake_block_of(p);
    if (b && b->at == p && b->is_device == is_device && b->is_registered == is_registered)
        drop_block(b);
    else if (e == cudaSuccess)
        return fake_leave(absent);
    return fake_leave(e);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    return allocate(out, bytes, true);
}

cudaError_t cudaFree(void *p)
{
    return release(p, true, false, cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(out, bytes, false);
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, false, false, cudaErrorInvalidValue);
}

/* Mapped at all?  Of the first and the last page. */
static bool is_mapped(const void *p, size_t bytes)
{
    const uintptr_t page = page_bytes(), first = (uintptr_t)p & ~(page - 1);
    const uintptr_t last = ((uintptr_t)p + bytes - 1) & ~(page - 1);
    unsigned char in_core;
    return mincore((void *)first, page, &in_core) == 0 && mincore((void *)last, page, &in_core) == 0;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    struct CUctx_st *ctx;
    (void)flags;
    const cudaError_t e = fake_enter_unsafe(&ctx);
    if (e != cudaSuccess)
        return fake_leave(e);
    if (!p || bytes == 0 || !is_mapped(p, bytes))
        return fake_leave(cudaErrorInvalidValue);
    for (const fake_block *b = fake.blocks; b; b = b->next)
        if ((uintptr_t)p < (uintptr_t)b->at + b->bytes && (uintptr_t)b->at < (uintptr_t)p + bytes)
            return fake_leave(cudaErrorHostMemoryAlreadyRegistered);
    if (!can_pin(p, bytes))
        return fake_leave(cudaErrorMemoryAllocation);
    fake_block *b = fake_alloc(sizeof *b);
    *b = (fake_block){.next = fake.blocks, .at = p, .bytes = bytes, .mapped = bytes, .is_registered = true,
                      .ctx = ctx};
    fake.blocks = b;
    return fake_leave(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *p)
{
    return release(p, false, true, cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_total)
{
    struct CUctx_st *ctx;
    const cudaError_t e = fake_enter(&ctx);
    *out_total = FAKE_DEVICE_BYTES;
    *out_free = FAKE_DEVICE_BYTES - device_bytes();
    return fake_leave(e);
}
