/* step_cpu.c: see step_cpu.h. */
#include "step_types.h"

#include "settings.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------- create, destroy */

static rkv_status alloc_books(rkv_cache *h)
{
    rkvi_step_cpu *c = &h->cpu;
    const rkvi_config *cfg = &h->cfg;
    c->books = calloc((size_t)cfg->steps_ahead + 1, cfg->table_bytes);
    c->book_plan = calloc((size_t)cfg->steps_ahead + 1, sizeof *c->book_plan);
    c->book_of = calloc(cfg->steps_ahead, sizeof *c->book_of);
    if (!c->books || !c->book_plan || !c->book_of)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for tables of the CPU's share, %u times %llu bytes",
                         cfg->steps_ahead + 1, (unsigned long long)cfg->table_bytes);
    for (uint32_t i = 0; i < cfg->steps_ahead; i++)
        c->book_of[i] = i;
    c->spare = cfg->steps_ahead;
    return RKV_OK;
}

static rkv_status alloc_turns(rkv_cache *h)
{
    rkvi_step_cpu *c = &h->cpu;
    const rkvi_config *cfg = &h->cfg;
    uint32_t heads = 0;
    if (cfg->turned_floats == 0)
        return RKV_OK;
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        heads = cfg->layers[i].geom.n_heads > heads ? cfg->layers[i].geom.n_heads : heads;
    c->turns = calloc(((size_t)cfg->steps_ahead + 1) * cfg->n_sites, sizeof *c->turns);
    c->turn_state = calloc((size_t)cfg->max_turns * heads, sizeof *c->turn_state);
    c->turned = calloc(cfg->max_turns, cfg->turned_floats * sizeof *c->turned);
    if (c->turns && c->turn_state && c->turned)
        return RKV_OK;
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the turned q of the CPU's share, %u times %llu bytes",
                     cfg->max_turns, (unsigned long long)(cfg->turned_floats * sizeof *c->turned));
}

static rkv_status alloc_pinned(rkv_cache *h)
{
    rkvi_step_cpu *c = &h->cpu;
    rkvi_desk *words = NULL;
    rkv_status s = rkvi_dev(host_alloc, h->dev, h->cfg.cpu_q_bytes, (void **)&c->q);
    if (s == RKV_OK)
        s = rkvi_dev(host_alloc, h->dev, c->partial_bytes, (void **)&c->partials);
    if (s == RKV_OK)
        s = rkvi_dev(host_alloc, h->dev, sizeof *words, (void **)&words);
    if (s != RKV_OK)
        return s;
    const rkvi_range range = {.ptr = words, .bytes = sizeof *words, .rows = 1, .access = RKVI_WRITE};
    h->dev->vt->host_access(h->dev, &range, 1);
    memset(words, 0, sizeof *words);
    return rkvi_cpu_desk_init(&c->desk, words, h->cfg.steps_ahead + 1, h->cfg.n_sites, h->cfg.cpu_threads);
}

static rkv_status alloc_state(rkv_cache *h)
{
    rkv_status s = rkvi_handle_alloc(h, RKVI_CPU_DEVICE_BYTES, (void **)&h->cpu.state);
    if (s != RKV_OK)
        return s;
    h->cpu.late_items = (rkvi_item *)(void *)((unsigned char *)h->cpu.state + RKVI_CPU_STATE_BYTES);
    s = rkvi_dev(fill, h->dev, h->cpu.state, 0, RKVI_CPU_DEVICE_BYTES, h->table_stream);
    return s == RKV_OK ? rkvi_dev(stream_sync, h->dev, h->table_stream) : s;
}

rkv_status rkvi_step_cpu_init(rkv_cache *h, int32_t numa_node)
{
    rkvi_step_cpu *c = &h->cpu;
    const rkvi_config *cfg = &h->cfg;
    rkvi_ops_best(&c->ops, rkvi_setting_text(RKVI_SETTING_KERNELS));
    c->partial_bytes = cfg->cpu_partial_bytes;
    rkv_status s = alloc_books(h);
    if (s == RKV_OK)
        s = alloc_turns(h);
    if (s == RKV_OK)
        s = alloc_pinned(h);
    if (s == RKV_OK)
        s = alloc_state(h);
    if (s == RKV_OK) /* none of its threads hands over: one more than work */
        s = rkvi_cpu_team_create(cfg->cpu_threads + 1, numa_node, &c->team);
    if (s != RKV_OK)
        return s;
    c->watch = (rkvi_cpu_watch){.look = rkvi_cpu_desk_look, .is_due = rkvi_cpu_desk_is_due, .arg = &c->desk};
    rkvi_cpu_team_watch(c->team, &c->watch);
    return RKV_OK;
}

void rkvi_step_cpu_free(rkv_cache *h)
{
    rkvi_step_cpu *c = &h->cpu;
    rkvi_cpu_team_destroy(c->team);
    rkvi_handle_free(h, c->state, RKVI_CPU_DEVICE_BYTES);
    void *const pinned[] = {c->q, c->partials, c->desk.words};
    for (uint32_t i = 0; i < 3; i++)
        if (pinned[i])
            rkvi_dev(host_free, h->dev, pinned[i]);
    rkvi_cpu_desk_free(&c->desk);
    free(c->books);
    free(c->book_plan);
    free(c->book_of);
    free(c->turns);
    free((void *)c->turn_state);
    free(c->turned);
}

bool rkvi_step_cpu_can(const rkv_cache *h)
{
    rkvi_arena_counters arena = {0};
    if (!h->cpu.team || h->is_profiled)
        return false;
    if (h->arena)
        rkvi_arena_counters_get(h->arena, &arena);
    return arena.unpinned_bytes == 0; /* a GPU may have to read what the CPU can't take */
}

void rkvi_step_cpu_stats(const rkv_cache *h, rkv_cache_stats *out)
{
    const rkvi_desk *words = h->cpu.desk.words;
    if (!h->cpu.team)
        return;
    out->cpu_ns = atomic_load(&h->cpu.desk.busy_ns);
    out->cpu_late_bytes = __atomic_load_n(&words->late_bytes, __ATOMIC_RELAXED);
    out->cpu_late_jobs = __atomic_load_n(&words->n_late, __ATOMIC_RELAXED);
}

/* ----------------------------------------------------------------------- jobs */

static const rkvi_plan_launch *launch_of(const rkv_cache *h, const rkvi_site_call *c)
{
    return &h->plan.launches[(c->plan->launch0 + c->plan->cpu_launch) * h->plan.n_rounds];
}

static uint64_t slot_floats(const rkvi_site_call *c)
{
    return (uint64_t)c->site->n_q_heads * (c->layer->geom.dv + 2);
}

/* Follows from what a graph's key tells. */
bool rkvi_step_cpu_hands(const rkv_cache *h, const rkvi_site_call *c)
{
    if (!h->cpu.team || c->plan->cpu_launch == RKVI_NO_LAUNCH)
        return false;
    const rkvi_plan_launch *l = launch_of(h, c);
    return !c->plan->cpu_is_mixed && l->n_decode && l->grid_decode <= RKVI_CPU_ITEMS &&
           l->grid_decode * l->decode_rows * slot_floats(c) * sizeof(float) <= h->cpu.partial_bytes;
}

bool rkvi_step_cpu_is_late_launch(const rkv_cache *h, const rkvi_site_call *c, uint64_t decode0)
{
    return rkvi_step_cpu_hands(h, c) && launch_of(h, c)->decode0 == decode0;
}

uint64_t rkvi_step_cpu_ticket(const rkv_cache *h)
{
    return h->cpu.team ? rkvi_cpu_desk_ticket(&h->cpu.desk, h->cpu.serial, h->cpu.book_of[h->now - h->tables]) : 0;
}

void rkvi_step_cpu_take_book(rkv_cache *h)
{
    rkvi_step_cpu *c = &h->cpu;
    if (!c->team)
        return;
    uint32_t *book = &c->book_of[h->now - h->tables], held = *book;
    c->serial++;
    if (rkvi_cpu_desk_is_held(&c->desk, held)) {
        *book = c->spare;
        c->spare = held;
    }
}

static rkvi_site_call call_of(const rkv_cache *h, uint32_t site)
{
    const rkvi_site_config *s = &h->cfg.sites[site];
    return (rkvi_site_call){.site = s, .layer = &h->cfg.layers[s->kv_layer], .plan = &h->plan.sites[site]};
}

/* The job's leaves may want a turned q. */
static void put_turn(rkv_cache *h, uint32_t site, const unsigned char *m, rkvi_cpu_job *job)
{
    const rkvi_site_call c = call_of(h, site);
    const uint64_t index = (uint64_t)h->cpu.book_of[h->now - h->tables] * h->cfg.n_sites + site;
    if (h->plan.n_turned_rows == 0 || !rkvi_site_turns(&h->cfg, site))
        return;
    const rkvi_rope *rope = &h->cfg.ropes[c.layer->rope];
    h->cpu.turns[index] = (rkvi_cpu_turn){
        .rotate = {.q = job->args.q,
                   .rows = (const rkvi_turned_row *)(const void *)(m + h->plan.turned_off),
                   .angles = (const float *)(const void *)(m + h->plan.turns.angles_off[c.layer->rope]),
                   .turned = h->cpu.turned,
                   .turned_stride = h->cfg.turned_floats,
                   .q_heads = c.site->n_q_heads,
                   .dk = c.layer->geom.dk,
                   .n_pairs = rope->n,
                   .pairing = rope->pairing},
        .n_rows = h->plan.n_turned_rows,
        .ticket = rkvi_step_cpu_ticket(h) + site,
        .state = h->cpu.turn_state,
        .rotate_fn = h->cpu.ops.fn[RKVI_OP_ROTATE],
        .decode = job->decode};
    job->args.turned = (const float *)(const void *)&h->cpu.turns[index];
    job->decode = rkvi_cpu_turn_decode;
}

static void put_job(rkv_cache *h, uint32_t site, const unsigned char *m)
{
    const rkvi_site_call c = call_of(h, site);
    const rkvi_plan_class *pc = &h->plan.classes[c.layer->leaf_class];
    const rkvi_plan_launch *l = launch_of(h, &c);
    const uint32_t q_heads = c.site->n_q_heads, dk = c.layer->geom.dk;
    rkvi_cpu_job job = {
        .args = {.geom = c.layer->geom,
                 .entries = (const rkvi_entry *)(const void *)(m + pc->entries_off),
                 .rows = (const rkvi_row *)(const void *)(m + h->plan.rows_off),
                 .spans = (const rkvi_span *)(const void *)(m + pc->spans_off),
                 .bases = (const uint64_t *)(const void *)(m + c.plan->bases_off),
                 .items = (const rkvi_item *)(const void *)(m + c.plan->items_off) + l->decode0,
                 .partials = h->cpu.partials,
                 .q = {h->cpu.q, (int64_t)q_heads * dk, dk, RKV_TYPE_F32},
                 .row_map = h->plan.is_mapped ? (const uint32_t *)(const void *)(m + h->plan.row_map_off) : NULL,
                 .mask = c.site->mask,
                 .q_heads = q_heads,
                 .scale = c.site->scale,
                 .softcap = c.site->softcap,
                 .max_rows = l->decode_rows},
        .decode = h->cpu.ops.fn[RKVI_OP_DECODE],
    };
    put_turn(h, site, m, &job);
    rkvi_cpu_desk_put(&h->cpu.desk, rkvi_step_cpu_ticket(h) + site, &job,
                      (uint32_t)(l->n_decode * c.layer->geom.n_heads));
}

/* The step's tables change before threads are through with them where steps run
 * ahead.  A book of the same plan differs in rows alone, as far as jobs read it: what
 * else a step changes is of leaves on the device. */
static void write_book(rkv_cache *h)
{
    const uint32_t number = h->cpu.book_of[h->now - h->tables];
    unsigned char *book = h->cpu.books + number * h->cfg.table_bytes;
    const unsigned char *tables = rkvi_step_tables_host(h);
    if (h->cpu.book_plan[number] == h->steady.plan) {
        memcpy(book + h->plan.rows_off, tables + h->plan.rows_off, h->batch.n_rows * sizeof(rkvi_row));
        return;
    }
    memcpy(book, tables, h->plan.table_bytes);
    h->cpu.book_plan[number] = h->steady.plan;
}

void rkvi_step_cpu_write_book(rkv_cache *h)
{
    rkvi_step_cpu *c = &h->cpu;
    uint64_t last = 0;
    for (uint32_t site = 0; c->team && site < h->cfg.n_sites; site++) {
        const rkvi_site_call call = call_of(h, site);
        if (!rkvi_step_cpu_hands(h, &call))
            continue;
        if (last == 0)
            write_book(h);
        put_job(h, site, c->books + c->book_of[h->now - h->tables] * h->cfg.table_bytes);
        last = rkvi_step_cpu_ticket(h) + site;
    }
    if (last == 0)
        return;
    atomic_store(&c->desk.expected, last);
    rkvi_cpu_team_wake(c->team);
}

/* No more of the step's sites will be passed, but for those enqueued. */
void rkvi_step_cpu_abort(rkv_cache *h)
{
    if (h->cpu.team)
        atomic_store(&h->cpu.desk.expected, h->cpu.awaited);
}

/* -------------------------------------------------------------------- ranges */

static void add_state(rkv_cache *h, uint32_t access)
{
    rkvi_launch_add_range(h, h->cpu.state, RKVI_CPU_STATE_BYTES, access);
}

static const void *ticket0_at(const rkv_cache *h)
{
    return (const void *)(uintptr_t)(rkvi_step_tables_at(h) + h->plan.ticket0_off);
}

/* What threads read of the tail, from publish to await. */
static void add_tail(rkv_cache *h, const rkvi_site_call *c, uint32_t site)
{
    const uint32_t *marks = h->plan.tile_launch + (uint64_t)site * h->plan.n_bases;
    const uint64_t *bases = (const uint64_t *)(const void *)(rkvi_step_tables_host(h) + c->plan->bases_off);
    for (uint64_t b = 0; b < h->plan.n_bases; b++)
        if (marks[b] == c->plan->cpu_launch)
            rkvi_launch_add_range(h, (const void *)(uintptr_t)bases[b], rkvi_geom_cells_bytes(&c->layer->geom),
                                  RKVI_READ);
}

static uint64_t q_bytes(const rkv_cache *h, const rkvi_site_call *c)
{
    return (uint64_t)h->batch.n_rows * c->site->n_q_heads * c->layer->geom.dk * sizeof(float);
}

static void publish_ranges(rkv_cache *h, const rkvi_site_call *c)
{
    const uint32_t dk = c->layer->geom.dk;
    const rkvi_tensor *q = &c->a->q;
    const uint64_t size = rkvi_tensor_type_bytes(q->type);
    for (uint32_t r = 0; r < h->batch.n_rows; r++)
        for (uint32_t i = 0; i < c->site->n_q_heads; i++)
            rkvi_launch_add_range(
                h, (const char *)q->data + ((int64_t)r * q->row_stride + (int64_t)i * q->head_stride) * (int64_t)size,
                dk * size, RKVI_READ);
    rkvi_launch_add_range(h, h->cpu.q, q_bytes(h, c), RKVI_WRITE);
    rkvi_launch_add_range(h, ticket0_at(h), sizeof(uint64_t), RKVI_READ);
    rkvi_launch_add_range(h, h->cpu.desk.words, sizeof *h->cpu.desk.words, RKVI_WRITE);
    add_state(h, RKVI_READ | RKVI_WRITE);
    add_tail(h, c, c->a->site);
}

static const rkvi_item *items_at(const rkv_cache *h, const rkvi_site_call *c)
{
    return (const rkvi_item *)(uintptr_t)(rkvi_step_tables_at(h) + c->plan->items_off) + launch_of(h, c)->decode0;
}

static uint64_t room_floats(const rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_plan_launch *l = launch_of(h, c);
    return l->n_decode * l->decode_rows * slot_floats(c);
}

static void await_ranges(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_plan_launch *l = launch_of(h, c);
    rkvi_launch_add_range(h, h->cpu.q, q_bytes(h, c), RKVI_READ);
    rkvi_launch_add_range(h, h->cpu.partials, room_floats(h, c) * sizeof(float), RKVI_WRITE);
    rkvi_launch_add_range(h, ticket0_at(h), (1 + (uint64_t)h->cfg.n_sites) * sizeof(uint64_t), RKVI_READ);
    rkvi_launch_add_range(h, h->cpu.desk.words, sizeof *h->cpu.desk.words, RKVI_READ | RKVI_WRITE);
    rkvi_launch_add_range(h, items_at(h, c), l->grid_decode * sizeof(rkvi_item), RKVI_READ);
    rkvi_launch_add_range(h, h->cpu.late_items, l->grid_decode * sizeof(rkvi_item), RKVI_WRITE);
    add_state(h, RKVI_READ | RKVI_WRITE);
    add_tail(h, c, c->a->site);
}

static void take_ranges(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_plan_launch *l = launch_of(h, c);
    const rkvi_item *items =
        (const rkvi_item *)(const void *)(rkvi_step_tables_host(h) + c->plan->items_off) + l->decode0;
    const uint64_t floats = slot_floats(c);
    rkvi_launch_add_range(h, h->cpu.partials, room_floats(h, c) * sizeof(float), RKVI_READ);
    rkvi_launch_add_range(h, items_at(h, c), l->grid_decode * sizeof(rkvi_item), RKVI_READ);
    add_state(h, RKVI_READ);
    for (uint64_t i = 0; i < l->n_decode; i++)
        rkvi_launch_add_range(h, (float *)h->partials + items[i].slot * floats,
                              items[i].n_rows * floats * sizeof(float), RKVI_WRITE);
}

void rkvi_step_cpu_ranges(rkv_cache *h, const rkvi_site_call *c, uint32_t op)
{
    if (!h->dev->wants_ranges)
        return;
    if (op == RKVI_OP_PUBLISH)
        publish_ranges(h, c);
    else if (op == RKVI_OP_AWAIT)
        await_ranges(h, c);
    else
        take_ranges(h, c);
}

/* --------------------------------------------------------------------- enqueueing */

static rkv_status run(rkv_cache *h, const rkvi_site_call *c, rkvi_launch *l)
{
    rkvi_step_cpu_ranges(h, c, l->op);
    rkvi_capture_note(h, c, l, 0, 0);
    h->stats.extra_launches++;
    return rkvi_launch_enqueue(h, l, c->stream);
}

/* A job whose step was given up between the two: nothing else knows whether threads
 * are through with it. */
static rkv_status await_given_up(rkv_cache *h, void *stream)
{
    const rkvi_await_args args = {.desk = h->cpu.desk.words, .state = h->cpu.state, .limit_ns = h->cfg.cpu_wait_ns};
    rkvi_launch l = {.op = RKVI_OP_AWAIT, .args_bytes = sizeof args, .args = &args, .grid = 1};
    if (!h->cpu.is_out)
        return RKV_OK;
    rkvi_launch_add_range(h, h->cpu.desk.words, sizeof *h->cpu.desk.words, RKVI_READ | RKVI_WRITE);
    add_state(h, RKVI_READ | RKVI_WRITE);
    h->stats.extra_launches++;
    const rkv_status s = rkvi_launch_enqueue(h, &l, stream);
    h->cpu.is_out = s != RKV_OK;
    return s;
}

static rkv_status publish(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_publish_args args = {.q = c->a->q,
                                    .to = h->cpu.q,
                                    .n = (uint64_t)h->batch.n_rows * c->site->n_q_heads,
                                    .desk = h->cpu.desk.words,
                                    .state = h->cpu.state,
                                    .ticket0 = ticket0_at(h),
                                    .site = c->a->site,
                                    .heads = c->site->n_q_heads,
                                    .dim = c->layer->geom.dk};
    rkvi_launch l = {.op = RKVI_OP_PUBLISH, .args_bytes = sizeof args, .args = &args, .grid = args.n};
    return run(h, c, &l);
}

static rkv_status await(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_await_args args = {.desk = h->cpu.desk.words,
                                  .state = h->cpu.state,
                                  .ticket0 = ticket0_at(h),
                                  .items = items_at(h, c),
                                  .late_items = h->cpu.late_items,
                                  .n_items = launch_of(h, c)->grid_decode,
                                  .limit_ns = h->cfg.cpu_wait_ns,
                                  .site = c->a->site};
    rkvi_launch l = {.op = RKVI_OP_AWAIT, .args_bytes = sizeof args, .args = &args, .grid = 1};
    return run(h, c, &l);
}

static rkv_status take(rkv_cache *h, const rkvi_site_call *c)
{
    const rkvi_plan_launch *p = launch_of(h, c);
    const rkvi_take_args args = {.from = h->cpu.partials,
                                 .partials = h->partials,
                                 .items = items_at(h, c),
                                 .state = h->cpu.state,
                                 .floats = (uint32_t)slot_floats(c),
                                 .item_rows = p->decode_rows};
    rkvi_launch l = {
        .op = RKVI_OP_TAKE, .args_bytes = sizeof args, .args = &args, .grid = p->grid_decode * p->decode_rows};
    return run(h, c, &l);
}

/* The site's job is enqueued, by an attend or in a graph that follows. */
static void count(rkv_cache *h, uint32_t site)
{
    const rkvi_site_call c = call_of(h, site);
    h->stats.cpu_bytes += c.plan->n_cpu * c.layer->geom.bytes;
    h->cpu.awaited = rkvi_step_cpu_ticket(h) + site;
}

rkv_status rkvi_step_cpu_begin(rkv_cache *h, const rkvi_site_call *c)
{
    rkv_status s = RKV_OK;
    h->cpu.is_running = false;
    if (c->plan->cpu_launch == RKVI_NO_LAUNCH)
        return RKV_OK;
    if (!h->capture.is_on) /* who replays has waited */
        s = rkvi_timeline_wait(&h->out, c->plan->cpu_out_mark, c->stream, &h->compute_seen.out);
    if (s != RKV_OK || !rkvi_step_cpu_hands(h, c)) /* its launch reads the tail where it lies */
        return s;
    if (!h->capture.is_on)
        s = await_given_up(h, c->stream);
    if (s == RKV_OK)
        s = publish(h, c);
    h->cpu.is_running = s == RKV_OK;
    h->cpu.is_out = h->cpu.is_out || (s == RKV_OK && !h->capture.is_on);
    return s;
}

rkv_status rkvi_step_cpu_finish(rkv_cache *h, const rkvi_site_call *c)
{
    rkv_status s = await(h, c);
    h->cpu.is_running = false;
    if (s == RKV_OK && !h->capture.is_on) {
        h->cpu.is_out = false;
        count(h, c->a->site);
    }
    if (s == RKV_OK)
        s = take(h, c);
    return s == RKV_OK ? rkvi_launch_late(h, c, launch_of(h, c)) : s;
}

rkv_status rkvi_step_cpu_replay(rkv_cache *h, uint32_t first_site, uint32_t end_site, void *stream)
{
    rkv_status s = RKV_OK;
    for (uint32_t site = first_site; site < end_site && s == RKV_OK; site++) {
        const rkvi_site_call c = call_of(h, site);
        if (!rkvi_step_cpu_hands(h, &c))
            continue;
        s = await_given_up(h, stream); /* but for the first one, nothing */
        if (s == RKV_OK)
            count(h, site);
    }
    return s;
}
