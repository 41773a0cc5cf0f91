/* SPDX-License-Identifier: MIT
 *
 * Merging inside one piece: a linked list of symbols, and a heap of the pairs that may be merged,
 * lowest rank first, then leftmost. An entry is out of date when its symbols have changed since,
 * and is then dropped. Time grows with n log n, so that a piece as long as the text does no harm.
 */
#include <stdlib.h>

#include "bpe.h"

struct symbol {
    int32_t id; /* -1: joined into the symbol before it */
    int64_t before, after;
};

struct candidate {
    uint32_t rank;
    int32_t left_id, right_id, joined;
    int64_t at;
};

struct work {
    const struct bpe *bpe;
    struct symbol *symbols;
    struct candidate *heap; /* each merge adds at most two entries, so 3 n are enough */
    size_t heap_count;
};

static int is_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct work *w, struct candidate c)
{
    size_t i = w->heap_count++;
    while (i > 0 && is_before(&c, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = c;
}

static struct candidate heap_pop(struct work *w)
{
    const struct candidate top = w->heap[0], last = w->heap[--w->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= w->heap_count)
            break;
        if (child + 1 < w->heap_count && is_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!is_before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static void offer_pair(struct work *w, int64_t at)
{
    const int64_t after = at < 0 ? -1 : w->symbols[at].after;
    if (after < 0)
        return;
    const int32_t left = w->symbols[at].id, right = w->symbols[after].id;
    const struct bpe_merge *m = bpe_find_merge(w->bpe, left, right);
    if (m != NULL)
        heap_push(w, (struct candidate){m->rank, left, right, m->joined, at});
}

static void merge_all(struct work *w)
{
    while (w->heap_count > 0) {
        const struct candidate c = heap_pop(w);
        struct symbol *left = &w->symbols[c.at];
        const int64_t after = left->after;
        if (left->id != c.left_id || after < 0 || w->symbols[after].id != c.right_id)
            continue;
        left->id = c.joined;
        left->after = w->symbols[after].after;
        w->symbols[after].id = -1;
        if (left->after >= 0)
            w->symbols[left->after].before = c.at;
        offer_pair(w, left->before);
        offer_pair(w, c.at);
    }
}

int64_t bpe_encode_piece(const struct bpe *bpe, const char *text, size_t length, int32_t *ids,
                         struct gen_error *err)
{
    struct work w = {bpe, malloc(length * sizeof *w.symbols), malloc(3 * length * sizeof *w.heap), 0};
    int64_t count = -1;
    if (w.symbols == NULL || w.heap == NULL) {
        gen_fail(err, "No memory to tokenize a piece of %zu bytes.", length);
        goto done;
    }
    const int64_t n = (int64_t)length;
    for (int64_t i = 0; i < n; i++) {
        const unsigned byte = (unsigned char)text[i];
        w.symbols[i] = (struct symbol){bpe->byte_ids[byte], i - 1, i + 1 < n ? i + 1 : -1};
        if (bpe->byte_ids[byte] < 0) {
            gen_fail(err, "The vocabulary has no token for byte 0x%02x.", byte);
            goto done;
        }
    }
    for (int64_t i = 0; i < n; i++)
        offer_pair(&w, i);
    merge_all(&w);
    count = 0;
    for (int64_t i = 0; i >= 0 && i < n; i = w.symbols[i].after)
        ids[count++] = w.symbols[i].id;
done:
    free(w.symbols);
    free(w.heap);
    return count;
}
