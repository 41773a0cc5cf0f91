/* plan_share.h: what the sequences of a batch have in common.
 *
 * Bases.  Every tile of the batch has one base, however many entries have it:
 * an index into each site's table of addresses, and its place in the list.
 * Bases are numbered so that those of an entry rise along its sequence:
 *
 *    A  [a1][D1][D2][D3][a2]          A reads a1 first, then what it shares
 *    B      [D1][D2][D3][b1]
 *    bases   0  1   2   3   4  5      of  a1 D1 D2 D3 a2 b1
 *
 * An entry whose tiles come in an order that contradicts the entries before it
 * gets bases of its own, and so list entries of its own.
 *
 * Stems.  Decode entries that begin with the same cells (same tiles, positions
 * and turns) have the same leaves, by number: these are computed by one item,
 * for the rows of all of them.  The entries are the paths of a forest, and a
 * stem is a piece of path that the same entries share:
 *
 *    entries A B C     stem 0 (A B C)  leaves [0, 40)
 *                      +- stem 1 (A B) leaves [40, 52)
 *                      |  +- stem 3 (A)   +- stem 4 (B)
 *                      +- stem 2 (C)   leaves [40, 45)
 *
 * A stem's spans are those of the first entry that has it.  Rows are listed
 * in the forest's order, so that those of a stem follow one another. */
#ifndef RKVI_PLAN_SHARE_H
#define RKVI_PLAN_SHARE_H

#include "batch.h"
#include "config.h"
#include "seq.h"
#include "tile.h"

#define RKVI_NONE UINT32_MAX

typedef struct rkvi_stem {
    uint32_t entry;               /* whose spans */
    uint32_t parent;              /* RKVI_NONE: a root */
    uint32_t child, sibling;      /* first child, next one of the same parent */
    uint32_t segment;             /* of the sequence: the first that the stem has cells of */
    uint64_t segment_cells;       /* cells of the sequence before that segment */
    uint64_t cells1;              /* cells of the sequence up to the stem's end */
    bool is_cut;                  /* there, entries differ within a segment: only whole blocks before it are alike */
    uint64_t leaf0[RKVI_LEAF_CLASSES_MAX], leaf1[RKVI_LEAF_CLASSES_MAX];
    uint32_t row0, n_rows;        /* in the row map; no rows: a prefill entry's */
    uint32_t last_launch;         /* plan_site's: of its last tail leaf */
} rkvi_stem;

typedef struct rkvi_share {
    const rkvi_config *cfg;
    /* stems */
    rkvi_stem *stems;             /* room for 2 an entry */
    uint32_t n_stems, root;       /* the first root */
    rkvi_seq *leaf_seqs;          /* [entry] its sequence without a token tree's cells, which are no leaves */
    uint32_t *entry_stem;         /* [entry] the last one of its path */
    uint64_t *shared_leaves[RKVI_LEAF_CLASSES_MAX]; /* [entry] leading ones whose spans are other entries' */
    uint32_t *row_at;             /* [decode entry] where its rows begin in the map */
    uint32_t *row_map;            /* [n_decode_rows] rows of the step */
    bool is_mapped;               /* a stem has several entries; else rows are their entries' own */
    /* bases */
    uint32_t n_bases;
    uint32_t *base_tile;          /* [base] */
    bool *base_repeats;           /* [base] its tile has another base too */
    bool has_repeats;
    uint32_t *tile_base;          /* [tile] */
    uint32_t *own_base;           /* [entry] first of its own, or RKVI_NONE */
    uint64_t n_spans[RKVI_LEAF_CLASSES_MAX];
    /* scratch: nodes of the list before they are numbered */
    uint32_t n_nodes, head, tail;
    uint32_t *node_tile, *node_next, *node_prev;
    uint64_t *node_label;         /* rises along the list */
    uint64_t *tile_entry;         /* [tile] number of the last entry that was looked at and has it */
    uint64_t n_looked;
} rkvi_share;

rkv_status rkvi_share_init(rkvi_share *s, const rkvi_config *cfg);
void rkvi_share_free(rkvi_share *s);

/* Bases of a batch; false: more than the tables hold. */
bool rkvi_share_bases(rkvi_share *s, const rkvi_batch *b, const rkvi_seq *seqs, const rkvi_tiles *tiles);
/* Stems, rows and spans; after bases. */
void rkvi_share_stems(rkvi_share *s, const rkvi_batch *b, const rkvi_seq *seqs, const rkvi_tiles *tiles);

/* The base of tile item t of the entry's sequence. */
static inline uint32_t rkvi_share_base(const rkvi_share *s, uint32_t e, const rkvi_seq *seq, uint32_t t)
{
    return s->own_base[e] == RKVI_NONE ? s->tile_base[seq->tiles[t]] : s->own_base[e] + t;
}

#endif
