/* SPDX-License-Identifier: MIT */
#include "compare.h"

#include <stdio.h>
#include <stdlib.h>

static const enum generate_mode order[] = {GENERATE_RESIDENT, GENERATE_OP_LEVEL, GENERATE_RING};
enum { RUNS = sizeof order / sizeof order[0] };

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The median: a step that the machine interrupted doesn't spoil it. Sorts the times. */
static double median_ms(uint64_t *times_ns, size_t count)
{
    if (count == 0)
        return 0.0;
    qsort(times_ns, count, sizeof *times_ns, by_size);
    return (double)times_ns[count / 2] * 1e-6;
}

static double decode_ms(const struct run_result *r)
{
    return median_ms(r->decode_ns, r->decode_steps);
}

static double attend_ms(const struct run_result *r)
{
    return median_ms(r->attend_ns, r->decode_steps);
}

static double link_ms(const struct engine *e, const struct run_result *r)
{
    const uint64_t speed = e->options->link_bytes_per_s;
    if (speed == 0 || r->decode_steps == 0)
        return 0.0;
    return (double)r->decode_streamed_bytes / (double)r->decode_steps / (double)speed * 1e3;
}

static void print_head(const struct engine *e, size_t steps)
{
    const struct options *o = e->options;
    const struct model_shape *s = &e->model.shape;
    printf(
        "\n%zu layers, %zu query heads, %zu KV heads, head dim %zu; K %s, V %s; prompt %zu tokens in "
        "chunks of %zu, then %zu tokens (times are of the median step)\n",
        s->layers, s->heads, s->kv_heads, s->head_dim, options_type_name(o->type_k),
        options_type_name(o->type_v), e->prompt.count, o->chunk, steps);
    if (o->link_bytes_per_s != 0)
        printf("No GPU is used: this is the host executor, %d threads, its link set to %.2f GB/s each "
               "way\n",
               e->threads, (double)o->link_bytes_per_s * 1e-9);
    else
        printf("No GPU is used: this is the host executor, %d threads, its link as fast as memory "
               "copies\n",
               e->threads);
}

/* Hidden: the part of the copies' time by which attention did not take longer than in resident. */
static void print_row(const struct engine *e, const struct run_result *r,
                      const struct run_result *resident, enum generate_mode mode)
{
    const double copy_ms = link_ms(e, r), longer_ms = attend_ms(r) - attend_ms(resident);
    char copy[32] = "-", hidden[32] = "-";
    if (copy_ms > 0) {
        snprintf(copy, sizeof copy, "%.1f", copy_ms);
        snprintf(hidden, sizeof hidden, "%.0f %%", 100.0 * (1.0 - longer_ms / copy_ms));
    }
    printf("%-9s %9.1f %9.1f %9.1f %10.1f %11.1f %11.2f %9s %8s %9.1f %8.1f\n", options_mode_name(mode),
           (double)e->prompt.count / r->prefill_seconds, 1e3 / decode_ms(r), decode_ms(r), attend_ms(r),
           (double)r->prefill_streamed_bytes * 1e-6,
           r->decode_steps == 0 ? 0.0
                                : (double)r->decode_streamed_bytes * 1e-6 / (double)r->decode_steps,
           copy, hidden, (double)r->info.device_bytes * 1e-6, (double)r->info.ring_bytes * 1e-6);
}

static void print_table(const struct engine *e, const struct run_result *results)
{
    const rkv_cache_info *all = &results[0].info;
    print_head(e, results[0].decode_steps);
    printf(
        "K and V of all positions take %.1f MB in resident; the limit of device memory for oplevel and "
        "ring, for all that they need, is %.1f MB\n",
        (double)(all->device_window_bytes + all->device_active_bytes) * 1e-6,
        (double)results[RUNS - 1].info.device_limit_bytes * 1e-6);
    const char head[] = "%-9s %9s %9s %9s %10s %11s %11s %9s %8s %9s %8s\n";
    printf("\n");
    printf(head, "", "prefill", "decode", "decode", "attention", "streamed", "streamed", "copies",
           "of them", "device", "of it");
    printf(head, "mode", "tokens/s", "tokens/s", "ms/token", "ms/token", "prefill MB", "MB/token",
           "ms/token", "hidden", "MB", "ring MB");
    for (int i = 0; i < RUNS; i++)
        print_row(e, &results[i], &results[0], order[i]);
    const double compute = decode_ms(&results[0]), copy = link_ms(e, &results[RUNS - 1]);
    if (copy > 0)
        printf("bound     max(compute, copies) = %.1f ms/token, their sum = %.1f\n",
               compute > copy ? compute : copy, compute + copy);
    printf("hidden: the share of the copies' time by which attention did not take longer than in "
           "resident\n");
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

static int run_one(struct engine *e, int i, struct run_result *results, struct gen_error *err)
{
    const struct options *o = e->options;
    struct run_settings s = {.name = options_mode_name(order[i]), .mode = order[i], .prints = i == 0};
    if (i > 0) {
        /* The same tokens again, so that a difference in one step doesn't spoil all later ones. */
        s.forced = &results[0].generated;
        s.resident_cells = o->resident_cells;
        s.device_limit_bytes = o->device_limit_bytes;
        s.step_ns = (uint64_t)(decode_ms(&results[0]) * 1e6);
        if (s.device_limit_bytes == 0 && s.resident_cells == RKV_RESIDENT_AUTO &&
            set_default_limit(e, &s, err) != 0)
            return -1;
    }
    if (!o->quiet)
        fprintf(stderr, "%smode %s\n", i == 0 ? "" : "\n", s.name);
    const int rc = engine_run(e, &s, &results[i], err);
    if (rc == 0 && s.prints)
        printf("\n");
    fflush(stdout);
    return rc;
}

int compare_modes(struct engine *e, struct gen_error *err)
{
    struct run_result results[RUNS] = {0};
    int rc = 0, done = 0;
    while (done < RUNS && (rc = run_one(e, done, results, err)) == 0)
        done++;
    if (rc == 0) {
        print_table(e, results);
        rc = print_equality(results);
    }
    for (int i = 0; i < done; i++)
        run_result_free(&results[i]);
    return rc;
}
