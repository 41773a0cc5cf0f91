/* SPDX-License-Identifier: MIT
 *
 * device_poison.c: see device_poison.h.
 */
#include "device_poison.h"

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif

#ifdef HAVE_ASAN
#include <sanitizer/asan_interface.h>

bool rkvi_poison_is_exact(void)
{
    return true;
}

void rkvi_poison_close(const rkvi_block *b)
{
    __asan_poison_memory_region(b->ptr, b->bytes);
}

void rkvi_poison_open(const rkvi_block *b)
{
    __asan_unpoison_memory_region(b->ptr, b->bytes);
}

static void open_piece(const rkvi_block *b, const unsigned char *from, const unsigned char *to,
                       uint32_t access)
{
    (void)b, (void)access;
    __asan_unpoison_memory_region(from, (size_t)(to - from));
}

#else /* pages */

bool rkvi_poison_is_exact(void)
{
    return false;
}

static uintptr_t page_bytes(void)
{
    return (uintptr_t)sysconf(_SC_PAGESIZE);
}

/* The whole pages within a block.  What the core mapped owns its last page. */
static void inner_pages(const rkvi_block *b, uintptr_t *from, uintptr_t *to)
{
    const uintptr_t page = page_bytes(), start = (uintptr_t)b->ptr, end = start + b->bytes;
    *from = (start + page - 1) / page * page;
    *to = b->is_alloc ? (end + page - 1) / page * page : end / page * page;
}

static void protect(uintptr_t from, uintptr_t to, int prot)
{
    if (from < to)
        mprotect((void *)from, to - from, prot);
}

void rkvi_poison_close(const rkvi_block *b)
{
    uintptr_t from, to;
    inner_pages(b, &from, &to);
    protect(from, to, PROT_NONE);
}

void rkvi_poison_open(const rkvi_block *b)
{
    uintptr_t from, to;
    inner_pages(b, &from, &to);
    protect(from, to, PROT_READ | PROT_WRITE);
}

static void open_piece(const rkvi_block *b, const unsigned char *from, const unsigned char *to,
                       uint32_t access)
{
    const uintptr_t page = page_bytes();
    uintptr_t lo, hi, first = (uintptr_t)from / page * page;
    uintptr_t last = ((uintptr_t)to + page - 1) / page * page;
    inner_pages(b, &lo, &hi);
    protect(first > lo ? first : lo, last < hi ? last : hi,
            access & RKVI_WRITE ? PROT_READ | PROT_WRITE : PROT_READ);
}
#endif

static void open_part(const rkvi_blocks *blocks, const unsigned char *ptr, size_t bytes,
                      uint32_t access)
{
    const rkvi_block *b = rkvi_block_of(blocks, ptr);
    if (!b || bytes == 0)
        return;
    const unsigned char *end = b->ptr + b->bytes;
    open_piece(b, ptr, bytes < (size_t)(end - ptr) ? ptr + bytes : end, access);
}

static void open_range(const rkvi_blocks *blocks, const rkvi_range *r)
{
    const unsigned char *ptr = r->ptr;
    const size_t rows = r->rows ? r->rows : 1;
    for (size_t row = 0; row < rows; row++)
        open_part(blocks, ptr + row * r->pitch_bytes, r->bytes, r->access);
}

/* Reads first: where both fall on one page, writing wins. */
void rkvi_poison_open_ranges(const rkvi_blocks *blocks, const rkvi_range *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(ranges[i].access & RKVI_WRITE))
            open_range(blocks, &ranges[i]);
    for (size_t i = 0; i < n; i++)
        if (ranges[i].access & RKVI_WRITE)
            open_range(blocks, &ranges[i]);
}
