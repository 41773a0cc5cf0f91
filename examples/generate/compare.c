/* SPDX-License-Identifier: MIT */
#include "compare.h"

#include <stdio.h>
#include <stdlib.h>

#include "products.h"

static const enum generate_mode order[] = {GENERATE_RESIDENT, GENERATE_OP_LEVEL, GENERATE_RING};
enum { RUNS = sizeof order / sizeof order[0] };

/* Times of a run's decode steps. The median stands for them: a step that the machine interrupted
 * doesn't spoil it. The least and the most show how noisy it was. */
struct spread {
    double median_ms, least_ms, most_ms;
    double middle_ms; /* by how much the middle half of them differ */
};

struct comparison {
    struct engine *engine;
    uint64_t link_bytes_per_s; /* 0: not known */
    struct run_result results[RUNS];
    struct {
        struct spread step, attend;
    } times[RUNS];
};

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the times. */
static struct spread spread_of(uint64_t *times_ns, size_t count)
{
    if (count == 0)
        return (struct spread){0};
    qsort(times_ns, count, sizeof *times_ns, by_size);
    return (struct spread){.median_ms = (double)times_ns[count / 2] * 1e-6,
                           .least_ms = (double)times_ns[0] * 1e-6,
                           .most_ms = (double)times_ns[count - 1] * 1e-6,
                           .middle_ms = (double)(times_ns[3 * count / 4] - times_ns[count / 4]) * 1e-6};
}

/* Of all copies of a step, were nothing else to do. */
static double link_ms(const struct comparison *c, const struct run_result *r)
{
    if (c->link_bytes_per_s == 0 || r->decode_steps == 0)
        return 0.0;
    return (double)r->decode_streamed_bytes / (double)r->decode_steps / (double)c->link_bytes_per_s *
           1e3;
}

static void print_device(const struct comparison *c)
{
    const struct engine *e = c->engine;
    const rkv_cache_info *info = &c->results[0].info;
    if (!engine_is_host(e)) {
        printf("GPU: %s, kernels %s; a plain copy of 64 MB to it runs at %.1f GB/s\n",
               info->device_name, info->kernels, (double)c->link_bytes_per_s * 1e-9);
        return;
    }
    printf("No GPU is used: this is the host executor, %d threads, its link ", e->threads);
    if (c->link_bytes_per_s != 0)
        printf("set to %.2f GB/s each way; products by %s\n", (double)c->link_bytes_per_s * 1e-9,
               products_name());
    else
        printf("as fast as memory copies; products by %s\n", products_name());
}

static void print_head(const struct comparison *c)
{
    const struct engine *e = c->engine;
    const struct options *o = e->options;
    const struct model_shape *s = &e->model.shape;
    const rkv_cache_info *all = &c->results[0].info;
    printf(
        "\n%zu layers, %zu query heads, %zu KV heads, head dim %zu; K %s, V %s; prompt %zu tokens in "
        "chunks of %zu, then %zu tokens\n",
        s->layers, s->heads, s->kv_heads, s->head_dim, options_type_name(o->type_k),
        options_type_name(o->type_v), e->prompt.count, o->chunk, c->results[0].decode_steps);
    print_device(c);
    printf(
        "K and V of all positions take %.1f MB in resident; the limit of device memory for oplevel and "
        "ring, for all that they need, is %.1f MB\n",
        (double)(all->device_window_bytes + all->device_active_bytes) * 1e-6,
        (double)c->results[RUNS - 1].info.device_limit_bytes * 1e-6);
}

/* What tells how much of the copies' time is exposed. On the host attention alone, since the rest of
 * a step has the same work and more noise; a GPU is not waited for there. */
static const struct spread *exposed(const struct comparison *c, int i)
{
    return engine_is_host(c->engine) ? &c->times[i].attend : &c->times[i].step;
}

/* Of the copies' time. Where resident's own times differ by more than that, it can't be told. */
static void print_hidden(const struct comparison *c, int i, double copy_ms, char text[static 32])
{
    const struct spread *resident = exposed(c, 0);
    const double longer_ms = exposed(c, i)->median_ms - resident->median_ms;
    if (copy_ms <= 0)
        snprintf(text, 32, "-");
    else if (resident->middle_ms > copy_ms)
        snprintf(text, 32, "noise");
    else
        snprintf(text, 32, "%.0f %%", 100.0 * (1.0 - longer_ms / copy_ms));
}

static void print_row(const struct comparison *c, int i)
{
    const struct run_result *r = &c->results[i];
    const struct spread *t = &c->times[i].step;
    const double copy_ms = link_ms(c, r), steps = (double)r->decode_steps;
    char copy[32] = "-", hidden[32];
    if (copy_ms > 0)
        snprintf(copy, sizeof copy, "%.2f", copy_ms);
    print_hidden(c, i, copy_ms, hidden);
    printf("%-9s %9.1f %9.1f %8.2f %8.2f %8.2f %8.2f %9.1f %9.2f %8s %7s %8.1f %8.1f\n",
           options_mode_name(order[i]), (double)c->engine->prompt.count / r->prefill_seconds,
           1e3 / t->median_ms, t->median_ms, t->least_ms, t->most_ms, c->times[i].attend.median_ms,
           (double)r->prefill_streamed_bytes * 1e-6,
           steps > 0 ? (double)r->decode_streamed_bytes * 1e-6 / steps : 0.0, copy, hidden,
           (double)r->info.device_bytes * 1e-6, (double)r->info.ring_bytes * 1e-6);
}

/* What a perfect overlap would give, from resident's median and the ring's bytes. */
static void print_bound(const struct comparison *c)
{
    const double compute = c->times[0].step.median_ms, copy = link_ms(c, &c->results[RUNS - 1]);
    const double bound = compute > copy ? compute : copy;
    if (copy <= 0)
        return;
    printf("%-9s %9s %9.1f %8.2f %44s  max(compute, copies); their sum is %.2f ms\n", "bound", "",
           1e3 / bound, bound, "", compute + copy);
}

static void print_notes(const struct comparison *c)
{
    const bool is_host = engine_is_host(c->engine);
    printf("decode tokens/s: of the median step, with its logits' way to the host\n");
    printf(is_host ? "attent.: median time in the library, with waiting for it\n"
                   : "library: median time of the host in its calls, which don't wait for the GPU\n");
    printf("hidden: the share of the copies' time by which %s did not take longer than in resident;\n"
           "noise: the middle half of resident's own times differ by more than the copies take\n",
           is_host ? "attention" : "a step");
}

static void print_table(const struct comparison *c)
{
    const char head[] = "%-9s %9s %9s %8s %8s %8s %8s %9s %9s %8s %7s %8s %8s\n";
    print_head(c);
    printf("\n");
    printf(head, "", "prefill", "decode", "ms/token", "", "",
           engine_is_host(c->engine) ? "attent." : "library", "streamed", "streamed", "copies",
           "of them", "device", "of it");
    printf(head, "mode", "tokens/s", "tokens/s", "median", "min", "max", "ms/token", "prompt MB",
           "MB/token", "ms/token", "hidden", "MB", "ring MB");
    for (int i = 0; i < RUNS; i++)
        print_row(c, i);
    print_bound(c);
    if (c->results[RUNS - 1].stats.streamed_bytes == 0)
        printf("NOTHING WAS STREAMED: all of the cache fits; use a smaller --device-limit-mb or "
               "--resident-cells\n");
    print_notes(c);
}

static int print_equality(const struct run_result *results)
{
    int differs = 0;
    printf("\n");
    for (int i = 1; i < RUNS; i++) {
        struct record_difference d;
        record_compare(&results[0].record, &results[i].record, &d);
        const bool is_short = results[i].record.steps != results[0].record.steps;
        if (d.different_steps == 0 && !is_short) {
            printf("%s and %s: %zu logits of %zu steps compared (%zu steps byte by byte), all have the "
                   "same "
                   "bits\n",
                   options_mode_name(order[0]), options_mode_name(order[i]), d.logits, d.steps,
                   d.bytewise_steps);
            continue;
        }
        differs = 1;
        printf("%s and %s: DIFFERENT in %zu of %zu steps, first in step %zu, by up to %g\n",
               options_mode_name(order[0]), options_mode_name(order[i]), d.different_steps, d.steps,
               d.first_different, d.largest);
    }
    printf("hash of all logits: %016llx\n", (unsigned long long)record_hash(&results[0].record));
    return differs;
}

/* Where the user gives no sizes: a window of an eighth of the cells, and the device memory that the
 * library estimates for it. */
static int set_default_limit(const struct engine *e, struct run_settings *s, struct gen_error *err)
{
    rkv_estimate estimate;
    s->resident_cells = e->positions < 8 ? 1 : e->positions / 8;
    const struct kv_settings settings = engine_kv_settings(e, s);
    if (kv_estimate(&e->model.shape, &settings, &estimate, err) != 0)
        return -1;
    s->device_limit_bytes = estimate.device_bytes;
    return 0;
}

static int run_one(struct comparison *c, int i, struct gen_error *err)
{
    const struct options *o = c->engine->options;
    struct run_result *r = &c->results[i];
    struct run_settings s = {.name = options_mode_name(order[i]), .mode = order[i], .prints = i == 0};
    if (i > 0) {
        /* The same tokens again, so that a difference in one step doesn't spoil all later ones. */
        s.forced = &c->results[0].generated;
        s.resident_cells = o->resident_cells;
        s.device_limit_bytes = o->device_limit_bytes;
        s.step_ns = (uint64_t)(c->times[0].step.median_ms * 1e6);
        if (s.device_limit_bytes == 0 && s.resident_cells == RKV_RESIDENT_AUTO &&
            set_default_limit(c->engine, &s, err) != 0)
            return -1;
    }
    if (!o->quiet)
        fprintf(stderr, "%smode %s\n", i == 0 ? "" : "\n", s.name);
    if (engine_run(c->engine, &s, r, err) != 0)
        return -1;
    c->times[i].step = spread_of(r->decode_ns, r->decode_steps);
    c->times[i].attend = spread_of(r->attend_ns, r->decode_steps);
    if (s.prints)
        printf("\n");
    fflush(stdout);
    return 0;
}

int compare_modes(struct engine *e, struct gen_error *err)
{
    struct comparison c = {.engine = e, .link_bytes_per_s = e->options->link_bytes_per_s};
    struct backend *b = &e->backend;
    int rc = 0, done = 0;
    if (!engine_is_host(e))
        rc = b->measure_link(b->self, &c.link_bytes_per_s, err);
    while (rc == 0 && done < RUNS && (rc = run_one(&c, done, err)) == 0)
        done++;
    if (rc == 0) {
        print_table(&c);
        rc = print_equality(c.results);
    }
    for (int i = 0; i < done; i++)
        run_result_free(&c.results[i]);
    return rc;
}
