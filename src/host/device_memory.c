/* SPDX-License-Identifier: MIT
 *
 * device_memory.c: device memory, pinned memory and registrations of the core.
 *
 * Device memory is mapped apart from the heap: whole pages, so that it is
 * aligned for every use, given back to the system when freed, and that large
 * blocks cost nothing until they are touched.
 */
#include "device_core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static rkvi_core *core_of(rkvi_device *d)
{
    return (rkvi_core *)d;
}

/* Index of the first block whose end lies beyond ptr. */
static size_t block_index(const rkvi_blocks *blocks, const void *ptr)
{
    size_t lo = 0, hi = blocks->n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const rkvi_block *b = &blocks->at[mid];
        if ((uintptr_t)b->ptr + b->bytes <= (uintptr_t)ptr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The block that holds the byte at ptr, or NULL. */
const rkvi_block *rkvi_block_of(const rkvi_blocks *blocks, const void *ptr)
{
    const size_t i = block_index(blocks, ptr);
    if (i == blocks->n || (uintptr_t)ptr < (uintptr_t)blocks->at[i].ptr)
        return NULL;
    return &blocks->at[i];
}

bool rkvi_block_holds(const rkvi_blocks *blocks, const void *ptr, uint64_t bytes)
{
    const rkvi_block *b = rkvi_block_of(blocks, ptr);
    return b && bytes <= b->bytes - (uint64_t)((const unsigned char *)ptr - b->ptr);
}

static bool overlaps(const rkvi_blocks *blocks, const void *ptr, uint64_t bytes)
{
    const size_t i = block_index(blocks, ptr);
    return i < blocks->n && (uintptr_t)blocks->at[i].ptr < (uintptr_t)ptr + bytes;
}

static bool add_block(rkvi_blocks *blocks, rkvi_block block)
{
    if (blocks->n == blocks->cap) {
        const size_t cap = blocks->cap ? 2 * blocks->cap : 32;
        rkvi_block *at = realloc(blocks->at, cap * sizeof *at);
        if (!at)
            return false;
        blocks->at = at;
        blocks->cap = cap;
    }
    const size_t i = block_index(blocks, block.ptr);
    memmove(&blocks->at[i + 1], &blocks->at[i], (blocks->n - i) * sizeof *blocks->at);
    blocks->at[i] = block;
    blocks->n++;
    blocks->bytes += block.bytes;
    return true;
}

static bool take_block(rkvi_blocks *blocks, const void *ptr, bool is_alloc, rkvi_block *out)
{
    const rkvi_block *b = rkvi_block_of(blocks, ptr);
    if (!b || b->ptr != ptr || b->is_alloc != is_alloc)
        return false;
    *out = *b;
    const size_t i = (size_t)(b - blocks->at);
    memmove(&blocks->at[i], &blocks->at[i + 1], (blocks->n - i - 1) * sizeof *blocks->at);
    blocks->n--;
    blocks->bytes -= out->bytes;
    return true;
}

static uint64_t page_round(uint64_t bytes)
{
    return rkvi_align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
}

static void *map(size_t bytes)
{
    void *ptr = mmap(NULL, page_round(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return ptr == MAP_FAILED ? NULL : ptr;
}

void rkvi_block_unmap(const rkvi_block *b)
{
    munmap(b->ptr, page_round(b->bytes));
}

static void tell_new(rkvi_core *c, const rkvi_block *b, bool is_device)
{
    if (c->backend->block_added)
        c->backend->block_added(c, b, is_device);
}

static void release(rkvi_core *c, const rkvi_block *b, bool is_device)
{
    const bool is_ours = !c->backend->block_gone || c->backend->block_gone(c, b, is_device);
    if (is_ours && b->is_alloc)
        rkvi_block_unmap(b);
}

/* Maps and notes a block. */
static rkv_status new_block(rkvi_core *c, bool is_device, size_t bytes, void **out)
{
    const rkv_status short_of = is_device ? RKV_E_DEVICE_MEMORY : RKV_E_HOST_MEMORY;
    void *ptr = bytes <= RKVI_SIZE_MAX ? map(bytes) : NULL;
    if (!ptr)
        return rkvi_fail(short_of, "the system refused to map %zu bytes", bytes);
    const rkvi_block block = {.ptr = ptr, .bytes = bytes, .is_alloc = true};
    if (!add_block(is_device ? &c->device_blocks : &c->pinned_blocks, block)) {
        munmap(ptr, page_round(bytes));
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the table of blocks");
    }
    tell_new(c, &block, is_device);
    *out = ptr;
    return RKV_OK;
}

rkv_status rkvi_core_mem_alloc(rkvi_device *d, size_t bytes, void **out)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_MEM_ALLOC);
    if (st)
        return st;
    const uint64_t left = c->limits.memory_bytes - c->device_blocks.bytes;
    st = rkvi_capture_refuse(c, "mem_alloc");
    if (!st && bytes == 0)
        st = rkvi_fail(RKV_E_ARGUMENT, "mem_alloc of 0 bytes");
    if (!st && bytes > left)
        st = rkvi_fail(RKV_E_DEVICE_MEMORY, "mem_alloc of %zu bytes: %llu of %llu are left", bytes,
                       (unsigned long long)left, (unsigned long long)c->limits.memory_bytes);
    if (!st)
        st = new_block(c, true, bytes, out);
    return rkvi_core_leave(c, st);
}

rkv_status rkvi_core_mem_free(rkvi_device *d, void *ptr)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_MEM_FREE);
    if (st)
        return st;
    rkvi_block block;
    st = rkvi_capture_refuse(c, "mem_free");
    if (!st && ptr && !take_block(&c->device_blocks, ptr, true, &block))
        st = rkvi_fail(RKV_E_ARGUMENT, "mem_free of %p, which is no block of mem_alloc", ptr);
    if (!st && ptr)
        release(c, &block, true);
    return rkvi_core_leave_poisoned(c, st);
}

static rkv_status check_pin(rkvi_core *c, const char *call, size_t bytes, uint64_t max)
{
    const uint64_t total = c->limits.register_total_bytes;
    if (bytes == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "%s of 0 bytes", call);
    if (max && bytes > max)
        return rkvi_fail(RKV_E_HOST_MEMORY, "%s of %zu bytes: at most %llu in one call", call, bytes,
                         (unsigned long long)max);
    if (total && (c->pinned_blocks.bytes > total || bytes > total - c->pinned_blocks.bytes))
        return rkvi_fail(RKV_E_HOST_MEMORY, "%s of %zu bytes: %llu of %llu are pinned already", call,
                         bytes, (unsigned long long)c->pinned_blocks.bytes, (unsigned long long)total);
    return RKV_OK;
}

rkv_status rkvi_core_host_register(rkvi_device *d, void *ptr, size_t bytes)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_HOST_REGISTER);
    if (st)
        return st;
    const rkvi_block block = {.ptr = ptr, .bytes = bytes, .is_alloc = false};
    st = rkvi_capture_refuse(c, "host_register");
    if (!st)
        st = check_pin(c, "host_register", bytes, c->limits.register_max_bytes);
    if (!st && (!ptr || bytes > UINTPTR_MAX - (uintptr_t)ptr))
        st = rkvi_fail(RKV_E_ARGUMENT, "host_register of %zu bytes at %p", bytes, ptr);
    if (!st && (overlaps(&c->pinned_blocks, ptr, bytes) || overlaps(&c->device_blocks, ptr, bytes)))
        st = rkvi_fail(RKV_E_ARGUMENT, "host_register of %zu bytes at %p: registered already", bytes,
                       ptr);
    if (!st && !add_block(&c->pinned_blocks, block))
        st = rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the table of blocks");
    if (!st)
        tell_new(c, &block, false);
    return rkvi_core_leave(c, st);
}

rkv_status rkvi_core_host_unregister(rkvi_device *d, void *ptr)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_HOST_UNREGISTER);
    if (st)
        return st;
    rkvi_block block;
    st = rkvi_capture_refuse(c, "host_unregister");
    if (!st && !take_block(&c->pinned_blocks, ptr, false, &block))
        st = rkvi_fail(RKV_E_ARGUMENT, "host_unregister of %p, which was not registered", ptr);
    if (!st)
        release(c, &block, false);
    return rkvi_core_leave_poisoned(c, st);
}

rkv_status rkvi_core_host_alloc(rkvi_device *d, size_t bytes, void **out)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_HOST_ALLOC);
    if (st)
        return st;
    st = rkvi_capture_refuse(c, "host_alloc");
    if (!st)
        st = check_pin(c, "host_alloc", bytes, c->limits.host_alloc_max_bytes);
    if (!st)
        st = new_block(c, false, bytes, out);
    return rkvi_core_leave(c, st);
}

rkv_status rkvi_core_host_free(rkvi_device *d, void *ptr)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_HOST_FREE);
    if (st)
        return st;
    rkvi_block block;
    st = rkvi_capture_refuse(c, "host_free");
    if (!st && ptr && !take_block(&c->pinned_blocks, ptr, true, &block))
        st = rkvi_fail(RKV_E_ARGUMENT, "host_free of %p, which is no block of host_alloc", ptr);
    if (!st && ptr)
        release(c, &block, false);
    return rkvi_core_leave_poisoned(c, st);
}

static void drop(rkvi_core *c, rkvi_blocks *blocks, bool is_device)
{
    for (size_t i = 0; i < blocks->n; i++)
        release(c, &blocks->at[i], is_device);
    free(blocks->at);
    *blocks = (rkvi_blocks){0};
}

/* All that its users left behind, as a device's reset does. */
void rkvi_core_memory_drop(rkvi_core *c)
{
    drop(c, &c->device_blocks, true);
    drop(c, &c->pinned_blocks, false);
}
