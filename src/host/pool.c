/* SPDX-License-Identifier: MIT
 *
 * pool.c: see pool.h.
 *
 * Free places are a bitmap, 64 to a word.  first_word only ever skips words
 * that hold no free place, so taking the lowest one scans each full word once
 * for every give below it.
 */
#include "pool.h"

#include <assert.h>
#include <stdlib.h>

enum { WORD_BITS = 64 };

static uint32_t word_count(uint32_t places)
{
    return places / WORD_BITS + (places % WORD_BITS != 0);
}

/* Places that the next extent holds. */
static uint64_t next_extent_places(const rkvi_pool *p)
{
    const uint64_t left = p->max_places > p->n_places ? p->max_places - p->n_places : 0;
    return left < p->extent_places ? left : p->extent_places;
}

/* A short extent stands in the way of one that is not: room for one more. */
static uint64_t extents_for(const rkvi_pool *p, uint32_t most)
{
    return (most - 1) / p->extent_places + 1 + (most > p->max_places);
}

rkv_status rkvi_pool_init(rkvi_pool *p, uint64_t place_bytes, uint32_t max_places, uint64_t extent_places,
                          uint32_t most)
{
    assert(place_bytes > 0 && (extent_places > 0 || max_places == 0) && most >= max_places);
    *p = (rkvi_pool){.place_bytes = place_bytes, .max_places = max_places};
    if (max_places == 0)
        return RKV_OK;
    assert(max_places != RKVI_NO_PLACE);
    p->extent_places = extent_places < max_places ? extent_places : max_places;
    uint64_t extent_bytes;
    if (__builtin_mul_overflow(p->extent_places, place_bytes, &extent_bytes))
        return rkvi_fail(RKV_E_OVERFLOW, "an extent of %llu places of %llu bytes does not fit 64 bits",
                         (unsigned long long)p->extent_places, (unsigned long long)place_bytes);
    const uint64_t n_extents = extents_for(p, most);
    if (n_extents * p->extent_places >= RKVI_NO_PLACE)
        return rkvi_fail(RKV_E_OVERFLOW, "%u places in extents of %llu can't be numbered", most,
                         (unsigned long long)p->extent_places);
    p->n_extents = (uint32_t)n_extents;
    p->free_bits = calloc(word_count((uint32_t)rkvi_pool_indices(p)), sizeof *p->free_bits);
    p->extents = calloc(n_extents, sizeof *p->extents);
    p->counts = calloc(n_extents, sizeof *p->counts);
    if (!p->free_bits || !p->extents || !p->counts) {
        rkvi_pool_free(p);
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the tables of %u places in %llu extents",
                         max_places, (unsigned long long)n_extents);
    }
    return RKV_OK;
}

uint64_t rkvi_pool_indices(const rkvi_pool *p)
{
    return p->n_extents * p->extent_places;
}

void rkvi_pool_set_max(rkvi_pool *p, uint32_t max_places)
{
    p->max_places = max_places;
}

void rkvi_pool_free(rkvi_pool *p)
{
    free(p->free_bits);
    free(p->extents);
    free(p->counts);
    *p = (rkvi_pool){0};
}

static inline bool is_there(const rkvi_pool *p, uint32_t place)
{
    const uint64_t e = place / p->extent_places;
    return e < p->n_extents && place % p->extent_places < p->counts[e];
}

/* Both a new place and one that comes back. */
static void mark_free(rkvi_pool *p, uint32_t place)
{
    const uint32_t word = place / WORD_BITS;
    const uint64_t bit = UINT64_C(1) << (place % WORD_BITS);
    assert(!(p->free_bits[word] & bit)); /* given back twice */
    p->free_bits[word] |= bit;
    if (word < p->first_word)
        p->first_word = word;
    p->n_free++;
}

void rkvi_pool_add(rkvi_pool *p, void *extent)
{
    uint32_t e = 0;
    while (p->counts[e])
        e++;
    assert(extent && p->n_places < p->max_places && e < p->n_extents);
    p->extents[e] = extent;
    p->counts[e] = (uint32_t)next_extent_places(p);
    for (uint32_t i = 0; i < p->counts[e]; i++)
        mark_free(p, (uint32_t)(e * p->extent_places) + i);
    p->n_places += p->counts[e];
}

uint64_t rkvi_pool_next_extent_bytes(const rkvi_pool *p)
{
    return next_extent_places(p) * p->place_bytes;
}

uint32_t rkvi_pool_take(rkvi_pool *p)
{
    if (p->n_free == 0)
        return RKVI_NO_PLACE;
    while (!p->free_bits[p->first_word])
        p->first_word++;
    uint64_t *const word = &p->free_bits[p->first_word];
    const uint32_t bit = (uint32_t)__builtin_ctzll(*word);
    *word &= *word - 1; /* its lowest bit */
    p->n_free--;
    return p->first_word * WORD_BITS + bit;
}

void rkvi_pool_give(rkvi_pool *p, uint32_t place)
{
    assert(is_there(p, place));
    mark_free(p, place);
}

bool rkvi_pool_take_at(rkvi_pool *p, uint32_t place)
{
    uint64_t *const word = &p->free_bits[place / WORD_BITS];
    const uint64_t bit = UINT64_C(1) << (place % WORD_BITS);
    if (!(*word & bit))
        return false;
    *word &= ~bit;
    p->n_free--;
    return true;
}

void rkvi_pool_drop(rkvi_pool *p, uint32_t extent)
{
    assert(p->counts[extent]);
    p->n_places -= p->counts[extent];
    p->counts[extent] = 0;
    p->extents[extent] = NULL;
}

/* Extents lie anywhere; within one, places are adjacent. */
void *rkvi_pool_at(const rkvi_pool *p, uint32_t place)
{
    assert(is_there(p, place));
    return p->extents[place / p->extent_places] + place % p->extent_places * p->place_bytes;
}

bool rkvi_pool_same_extent(const rkvi_pool *p, uint32_t a, uint32_t b)
{
    return a == b || (a != RKVI_NO_PLACE && b != RKVI_NO_PLACE && a / p->extent_places == b / p->extent_places);
}
