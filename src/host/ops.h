/* ops.h: the kernel table and what its kernels are given.
 *
 * A kernel is a function over independent work items; an executor runs items
 * [0, grid) in any order and in parallel.  The plain C reference (ops_ref)
 * fills the table first; ops_<isa> overwrite entries.  All pointers in the
 * argument structs are device pointers.
 *
 * How attention is laid out.  A step's batch has entries (one sequence each);
 * an entry has rows.  The cells of a sequence are spans, one per leaf, in the
 * order of the sequence: the number of a leaf is its index in its entry's
 * spans.  `bases` holds, for one site, the device address of each of the
 * entry's tile-layers: a window place or a ring slot alike; 0 where no row of
 * the entry sees the tile (its leaves give empty partials).
 *
 *   leaf partial   of one row and one query head over the cells of a leaf that
 *                  the row sees: m = max of scores, l = sum of exp(score - m),
 *                  o = sum of exp(score - m) * V (unnormalised), all f32,
 *                  natural logarithm.  No cell seen: m = -inf, l = 0, o = 0.
 *   score          scale * dot(q, K), then softcap (c * tanh(s / c)) if c != 0.
 *   merge(a, b)    m = max(a.m, b.m); o = a.o * exp(a.m - m) + b.o * exp(b.m - m),
 *                  l alike; when one of them is empty, the other one, bit by bit.
 *   decode         an item reduces an aligned run of 2^k leaves by the binary
 *                  tree fixed by leaf number: node(level, i) = merge(node(level-1,
 *                  2i), node(level-1, 2i+1)); a leaf that does not exist is empty.
 *                  Two neighbours a before b in a list of disjoint nodes meet at
 *                  the level of the highest bit in which their first leaf
 *                  numbers differ: so a list of nodes is reduced with a stack.
 *   prefill        an item goes on with f32 states through leaves in order:
 *                  state = merge(state, leaf partial), starting from empty.
 *                  (On another executor the fold may go cell block by cell block;
 *                  bits are compared within one executor.)
 *
 * A row's bits depend on the row's q, its visible cells and the leaf numbers
 * alone: not on how many rows, heads or entries share an item or a launch.
 * Cells outside a row's visible range must have no influence whatever their
 * bytes hold (NaN and infinity included): reference and ISA kernels do not
 * touch them for that row, or select them away before any product.
 */
#ifndef RKVI_OPS_H
#define RKVI_OPS_H

#include "geometry.h"

typedef enum {
    RKVI_OP_OPEN,    /* zero tile-layers that are being opened (invariant 11) */
    RKVI_OP_STORE,   /* quantise and store new cells */
    RKVI_OP_DECODE,  /* partials of aligned runs of leaves */
    RKVI_OP_PREFILL, /* states of rows, leaves in order */
    RKVI_OP_MERGE,   /* nodes of a row to one node, or to the output */
    RKVI_OP_PATCH,   /* pieces of the step's tables that changed, into place */
    RKVI_OP_ROTATE,  /* q turned back, for leaves whose positions were shifted */
    RKVI_OP_TREE,    /* partials over an entry's own new cells, under a mask */
    RKVI_OP_MOVE,    /* accepted cells of a token tree to their places */
    RKVI_OP_UPLOAD,  /* a step's tables from pinned memory to the device */
    RKVI_OP_PUBLISH, /* q and a ticket to host memory, for the CPU's share */
    RKVI_OP_AWAIT,   /* until the CPU is through with it, or too late */
    RKVI_OP_TAKE,    /* partials back, if it came */
    RKVI_OP_COUNT
} rkvi_op;

/* One leaf of one entry: 16 bytes. */
typedef struct rkvi_span {
    int64_t pos;    /* position of its first cell; the others follow by one */
    uint32_t tile;  /* index into the entry's bases */
    uint16_t first; /* first cell within the tile */
    uint16_t count; /* 1 to L cells */
} rkvi_span;

typedef struct rkvi_entry {
    uint64_t span0;   /* its first span */
    uint64_t n_spans; /* leaves of the sequence, the step's new cells included */
    uint64_t base0;   /* its first index in the site's bases */
    uint32_t row0;    /* its first row in q, out and `rows` */
    uint32_t n_rows;
} rkvi_entry;

/* Accepted counts that only the GPU knows yet.  A step that verifies drafts and
 * is followed by another one before the host has read how many were accepted
 * needs positions and lengths that follow from a count on the device.  Room is
 * kept for that: one u32 an entry, all of them behind its class's entries, from
 * which a small kernel at the step's start would set rows[].pos, the last spans'
 * counts and the new cells' places, all of them in tables that the device may
 * write.  Kernels of attention would not change.  Nothing writes or reads these
 * words yet. */
#define RKVI_ENTRY_ROOM (sizeof(rkvi_entry) + sizeof(uint32_t))

/* A row sees cell at position x when lo <= x < hi, lo and hi being the site's
 * mask applied to pos, cut by [from, to).  rkvi_visible() below. */
typedef struct rkvi_row {
    int64_t pos;
    int64_t from, to;
} rkvi_row;

/* An item's rows are `rows` [entry.row0 + row + r], unless the arguments have a
 * row map: then row r is the step's row row_map[row + r], and may belong to
 * another entry that shares the item's leaves (same tiles, positions and leaf
 * numbers).  The entry says where the cells lie in either case.
 *
 * Work item of decode and prefill.  grid = n_items * KV heads, index =
 * item * n_heads + head; all query heads of the KV head's group are computed
 * together, so that each K and V row is loaded once.
 * decode:  rows [row, row + n_rows) of the entry; leaves [leaf0, leaf1) within
 *          one aligned run; result of row r in partial slot + r - row.
 * prefill: the same, leaves in order, state of row r in slot + r - row;
 *          RKVI_ITEM_FIRST starts from empty instead of reading the state;
 *          with RKVI_ITEM_LAST the state is the row's one node: it goes to the
 *          output as the merge would put it, and what its slot holds is undefined. */
typedef struct rkvi_item {
    uint32_t entry;
    uint32_t row; /* counted within the entry */
    uint32_t n_rows;
    uint32_t flags;
    uint64_t leaf0, leaf1;
    uint64_t slot;
} rkvi_item;
#define RKVI_PREFILL_ROWS 128u /* most rows of a prefill item */
enum {
    RKVI_ITEM_FIRST = 1,
    RKVI_ITEM_LAST = 2, /* of prefill */
    RKVI_ITEM_TURN_SHIFT = 8 /* flags >> 8: which turned q its leaves want; 0: q as it is */
};

/* Merge of the nodes [node0, node0 + n_nodes), ascending in leaf0, of rows
 * [row, row + n_rows) of an entry (row r reads slot + r - row of each node)
 * into partial dst + r - row, or, when dst is RKVI_TO_OUT, into the output.
 * grid = n_items * query heads, index = item * q_heads + head. */
typedef struct rkvi_merge_item {
    uint32_t entry;
    uint32_t row;
    uint32_t n_rows;
    uint32_t n_nodes; /* 0: the row sees nothing: zeros, lse of the sink or -inf */
    uint64_t node0;
    uint64_t dst;
} rkvi_merge_item;
#define RKVI_TO_OUT UINT64_MAX

typedef struct rkvi_node {
    uint64_t leaf0;
    uint64_t slot;
} rkvi_node;

/* q, k, v, out: element (row, head, i) at data + row*row_stride + head*head_stride + i,
 * strides in elements. */
typedef struct rkvi_tensor {
    void *data;
    int64_t row_stride, head_stride;
    rkv_type type; /* F32, F16, BF16 */
} rkvi_tensor;

typedef struct rkvi_site_mask {
    rkv_mask kind;
    int64_t width;
} rkvi_site_mask;

typedef struct rkvi_merge_args {
    const rkvi_entry *entries;
    const rkvi_merge_item *items;
    const rkvi_node *nodes;
    float *partials;
    rkvi_tensor out;
    float *lse;             /* NULL, or f32: lse[row * lse_row_stride + head] = m + log(l), natural */
    int64_t lse_row_stride; /* elements */
    const float *sinks;     /* NULL, or one f32 logit per query head: l += exp(sink - m) once, here */
    uint32_t q_heads, dv;
    uint32_t max_rows; /* about as many as an item of this launch has, at most: for speed alone; 0: not said */
} rkvi_merge_args;

/* A partial of slot s, query head h: partials + s * q_heads * (dv + 2):
 *   o of head h at [h * dv], m of head h at [q_heads * dv + h],
 *   l of head h at [q_heads * dv + q_heads + h]. */
typedef struct rkvi_attend_args {
    rkvi_geom geom;
    const rkvi_entry *entries;
    const rkvi_row *rows; /* row0-based: rows[entry.row0 + r] */
    const rkvi_span *spans;
    const uint64_t *bases; /* this site's */
    const rkvi_item *items;
    float *partials;
    rkvi_tensor q;
    const uint32_t *row_map; /* NULL: items' rows are their entry's */
    const float *turned;     /* q rotated back, dense f32: [turn - 1][row of the step][q head][dk] */
    uint64_t turned_stride;  /* floats from one turn to the next */
    rkvi_site_mask mask;
    uint32_t q_heads; /* a whole multiple of geom.n_heads; head h uses KV head h / (q_heads / n_heads) */
    float scale;
    float softcap; /* 0: none */
    uint32_t max_rows;    /* of an item of this launch: picks the fastest kernel, not bits; 0: not said */
    uint32_t mean_leaves; /* likewise; of the items that have some, rounded up */
    rkvi_merge_args merge; /* of it out, lse and sinks: where rows of items with RKVI_ITEM_LAST go */
} rkvi_attend_args;

/* New cell i (row i of k and v) goes to cell `cell` of the tile-layer at
 * bases[base].  grid = n_cells * KV heads, index = cell * n_heads + head.
 * Storing saturates: f16 to +-65504, bf16 to its largest finite value, fp8 to
 * +-448 after division by the scale; a block's f16 scale of q8_0 and q4_0 to
 * 65504; NaN is stored as 0.  Rounding to nearest, ties to even for f16, bf16,
 * fp8; q8_0: d = amax/127, q = round(x * (1/d)) half away from zero; q4_0: d =
 * value of largest magnitude / -8, q = min(15, (int)(x * (1/d) + 8.5)), as
 * ggml, with d not yet rounded to f16. */
typedef struct rkvi_new_cell {
    uint64_t base;
    uint32_t cell;
    uint32_t row; /* its row in k and v */
} rkvi_new_cell;

typedef struct rkvi_store_args {
    rkvi_geom geom;
    const uint64_t *bases;
    const rkvi_new_cell *cells;
    rkvi_tensor k, v;
} rkvi_store_args;

/* grid = number of tile-layers; zeroes all their bytes. */
typedef struct rkvi_open_args {
    const uint64_t *bases;
    const uint64_t *base_index; /* which of them */
    uint64_t bytes;             /* of a tile-layer */
} rkvi_open_args;

/* Piece i: `bytes` (a multiple of 16) from src + from to dst + to.  grid = number
 * of pieces, none of which overlap. */
typedef struct rkvi_patch {
    uint64_t to, from, bytes;
} rkvi_patch;

typedef struct rkvi_patch_args {
    unsigned char *dst;
    const unsigned char *src;
    const rkvi_patch *patches;
} rkvi_patch_args;
/* Item i: the bytes from i * RKVI_UPLOAD_BYTES on.  src is pinned memory of the
 * host's that the device reads by itself: no copy engine, so that tables don't
 * queue behind the tail's copies.  Both are aligned to 16, `bytes` is a multiple
 * of it.  grid = pieces. */
#define RKVI_UPLOAD_BYTES 4096u
typedef struct rkvi_upload_args {
    unsigned char *dst;
    const unsigned char *src;
    uint64_t bytes;
} rkvi_upload_args;

/* A row of q as the leaves of one turn want it: rotated by -turn. */
typedef struct rkvi_turned_row {
    uint32_t row;    /* of the step */
    uint32_t turn;   /* where it goes: turned + turn * turned_stride, row `row` */
    uint32_t angles; /* which of `angles` */
    uint32_t reserved;
} rkvi_turned_row;

/* grid = rows of `rows` * query heads, index = i * q_heads + head.  Element i of
 * a pair, j its other one, c and s the pair's angles: i becomes i * c - j * s,
 * j becomes i * s + j * c, each product and sum rounded to f32.  Elements of no
 * pair are copied.  Executors give the same bits. */
typedef struct rkvi_rotate_args {
    rkvi_tensor q;
    const rkvi_turned_row *rows;
    const float *angles; /* [which][pair]: cos, sin of -turn * frequency */
    float *turned;       /* as in rkvi_attend_args */
    uint64_t turned_stride;
    uint32_t q_heads, dk;
    uint32_t n_pairs; /* 2 * n_pairs <= dk */
    uint32_t pairing; /* 0: i with i + n_pairs, 1: 2i with 2i + 1 */
} rkvi_rotate_args;

/* A row of a token tree.  Its entry's spans end before the step's new cells, so
 * decode and prefill don't see them; this op does, with cells as one further
 * node, which comes last. */
#define RKVI_TREE_CELLS_MAX 64u
typedef struct rkvi_tree_item {
    uint64_t mask;    /* bit j: sees the entry's new cell j, if its range of positions has it */
    uint64_t slot;    /* of its partial */
    uint32_t row0;    /* the entry's first row: row row0 + j of the step is that of new cell j */
    uint32_t row;     /* its own: row0 + row */
    uint32_t cell0;   /* the entry's first one in `cells` */
    uint32_t n_cells; /* at most RKVI_TREE_CELLS_MAX */
} rkvi_tree_item;

/* grid = n_items * query heads, index = item * q_heads + head. */
typedef struct rkvi_tree_args {
    rkvi_geom geom;
    const rkvi_row *rows;
    const uint64_t *bases;
    const rkvi_new_cell *cells;
    const rkvi_tree_item *items;
    float *partials;
    rkvi_tensor q;
    rkvi_site_mask mask;
    uint32_t q_heads;
    float scale, softcap;
} rkvi_tree_args;

/* Cells first .. of successive tile-layers, which a token tree took: cell
 * from[i] of them becomes cell i, i rising, from[i] >= i and rising too.
 * grid = KV heads; an index moves its head's cells in order. */
#define RKVI_MOVE_TILES_MAX (RKVI_TREE_CELLS_MAX / RKVI_TILE_MIN + 1)
typedef struct rkvi_move_args {
    rkvi_geom geom;
    uint64_t tiles[RKVI_MOVE_TILES_MAX];
    uint32_t first; /* the tree's cell 0, counted from tiles[0]'s */
    uint32_t n;
    uint8_t from[RKVI_TREE_CELLS_MAX];
} rkvi_move_args;

/* The CPU's share: threads compute a launch's items in host memory, and kernels
 * and threads tell each other by words in pinned memory, the desk.
 *
 *   stream    PUBLISH | other launches of the site ... | AWAIT | TAKE | DECODE | merge
 *              q, sent                                   ^ done
 *   threads         +--> partials of all units ----------+
 *
 * A job has a ticket, which rises from job to job.  One job is out at a time, and
 * so one room for q and one for partials suffice: PUBLISH puts a job on the desk
 * only where all threads are through with the one before.
 *
 *   state->is:   [ FREE ] --PUBLISH--> [ OUT ] --AWAIT: done in time--> [ FREE ]
 *                   ^                     | AWAIT: not in time
 *                   +-- AWAIT: done ---[ LATE ]   PUBLISH does nothing here
 *
 * AWAIT alone decides, once for each job, whether it came.  What did not come (late,
 * or not sent as another was late) is computed by the DECODE behind it: AWAIT gives it
 * its items, or as many empty ones.  So a thread that never comes costs one limit, and
 * one that comes late has its results thrown away: nothing reads them before `done`,
 * and behind `closed` it computes no further unit. */
typedef struct rkvi_desk {
    /* written by the device, each at system scope */
    uint64_t sent;   /* ticket of the newest job; its q lies there */
    uint64_t closed; /* nobody waits for jobs up to this one any more */
    uint64_t passed; /* ticket of the newest site whose AWAIT is over, sent or not */
    uint64_t n_late, late_bytes; /* so far: not by the CPU in spite of its share */
    uint64_t of_device[3];       /* a line each for device and host */
    /* written by the host */
    uint64_t done; /* ticket of the newest job that no thread touches any more */
    uint64_t of_host[7];
} rkvi_desk;

enum { RKVI_DESK_FREE = 0, RKVI_DESK_OUT, RKVI_DESK_LATE };
typedef struct rkvi_desk_state { /* device memory, all 0 at first */
    uint64_t out;         /* ticket of the newest job sent */
    uint64_t n_published; /* pieces of its q so far */
    uint64_t n_late, late_bytes;
    uint32_t is;
    uint32_t came;        /* the last AWAIT's job */
} rkvi_desk_state;

/* grid = rows * heads: row r, head i of q goes to row r * heads + i of `to`.  The
 * last one sends the job of ticket *ticket0 + site. */
typedef struct rkvi_publish_args {
    rkvi_tensor q;
    float *to; /* dense, rows of `dim` */
    uint64_t n; /* the grid */
    rkvi_desk *desk;
    rkvi_desk_state *state;
    const uint64_t *ticket0; /* of the step: in its tables */
    uint32_t site, heads, dim;
} rkvi_publish_args;

/* grid = 1.  Waits for the job that is out, at most limit_ns by the device's clock.
 * Came: late_items become empty; else they are those of `items`. */
typedef struct rkvi_await_args {
    rkvi_desk *desk;
    rkvi_desk_state *state;
    const uint64_t *ticket0; /* followed by the bytes of K and V of each site's share, for late_bytes.  NULL: the
                              * job of a step that was given up; nothing is passed, no items */
    const rkvi_item *items;
    rkvi_item *late_items;
    uint64_t n_items;
    uint64_t limit_ns;
    uint32_t site;
} rkvi_await_args;

/* grid = items * item_rows, where the last AWAIT's job came; else nothing.  Row r of
 * item x, `floats` long, goes from row x * item_rows + r of `from` to partial
 * items[x].slot + r; those from items[x].n_rows on are left. */
typedef struct rkvi_take_args {
    const float *from;
    float *partials;
    const rkvi_item *items;
    const rkvi_desk_state *state;
    uint32_t floats, item_rows;
} rkvi_take_args;

typedef void (*rkvi_op_fn)(const void *args, uint64_t index);
typedef struct rkvi_ops {
    rkvi_op_fn fn[RKVI_OP_COUNT];
    const char *name; /* "ref", "avx2", "avx512", "avx512vnni" */
} rkvi_ops;

/* Decode of so many columns (rows x query heads of a KV head) has, on a GPU, a kernel
 * of which a multiprocessor holds one block, not two.  It says how to cut, no bits. */
static inline bool rkvi_decode_is_wide(uint64_t columns, uint32_t dk, uint32_t dv)
{
    return columns > 8 && dk <= 192 && dv <= 192;
}

/* The step's row that row r of an item is. */
static inline uint64_t rkvi_item_row(const uint32_t *row_map, const rkvi_entry *entry, const rkvi_item *item,
                                     uint32_t r)
{
    return row_map ? row_map[(uint64_t)item->row + r] : (uint64_t)entry->row0 + item->row + r;
}

/* The q that an item's leaves are scored with. */
static inline rkvi_tensor rkvi_item_q(const rkvi_attend_args *a, const rkvi_item *item)
{
    const uint32_t turn = item->flags >> RKVI_ITEM_TURN_SHIFT;
    rkvi_tensor q = a->q;
    if (turn) {
        q.data = (void *)(uintptr_t)(a->turned + (turn - 1) * a->turned_stride);
        q.type = RKV_TYPE_F32;
        q.head_stride = a->geom.dk;
        q.row_stride = (int64_t)a->q_heads * a->geom.dk;
    }
    return q;
}

/* The positions [*lo, *hi) that a row sees under a mask. */
static inline void rkvi_visible(const rkvi_row *row, rkvi_site_mask mask, int64_t *lo, int64_t *hi)
{
    int64_t a = 0;
    if (mask.kind == RKV_MASK_SLIDING && row->pos >= mask.width)
        a = row->pos - mask.width + 1;
    if (mask.kind == RKV_MASK_CHUNKED)
        a = row->pos - row->pos % mask.width;
    *lo = a > row->from ? a : row->from;
    *hi = row->pos + 1 < row->to ? row->pos + 1 : row->to;
}

/* The cells [*c0, *c1) of a span that lie in positions [lo, hi), counted from
 * the span's first cell; *c0 >= *c1 when none does. */
static inline void rkvi_span_visible(const rkvi_span *s, int64_t lo, int64_t hi, uint32_t *c0, uint32_t *c1)
{
    const int64_t end = s->pos + s->count;
    const int64_t a = lo > s->pos ? lo : s->pos, b = hi < end ? hi : end;
    *c0 = (uint32_t)(a - s->pos);
    *c1 = b > a ? (uint32_t)(b - s->pos) : *c0;
}

void rkvi_ops_ref(rkvi_ops *ops);    /* fills all entries */
bool rkvi_ops_avx2(rkvi_ops *ops);   /* overwrites entries; false: not on this CPU */
bool rkvi_ops_avx512(rkvi_ops *ops); /* likewise */
bool rkvi_ops_avx512vnni(rkvi_ops *ops);
/* ref, then the fastest that the CPU runs; `limit` "ref", "avx2", "avx512",
 * "avx512vnni" or NULL holds it back. */
void rkvi_ops_best(rkvi_ops *ops, const char *limit);

#endif
