/* SPDX-License-Identifier: MIT
 *
 * rollkv-generate: continues a text with a language model whose KV cache is kept by librollkv.
 */
#include <stdio.h>

#include "compare.h"
#include "engine.h"
#include "options.h"
#include "products.h"

static double mb(uint64_t bytes)
{
    return (double)bytes * 1e-6;
}

static void print_device(const struct engine *e, const struct run_result *r)
{
    char link[64] = "as fast as memory copies";
    if (!engine_is_host(e)) {
        fprintf(stderr, "GPU: %s, kernels %s\n", r->info.device_name, r->info.kernels);
        return;
    }
    if (e->options->link_bytes_per_s != 0)
        snprintf(link, sizeof link, "set to %.2f GB/s each way",
                 (double)e->options->link_bytes_per_s * 1e-9);
    fprintf(stderr,
            "no GPU is used: this is the host executor, kernels %s, its link %s; products by %s\n",
            r->info.kernels, link, products_name());
}

static void print_figures(const struct engine *e, const struct run_result *r)
{
    const double prefill = r->prefill_seconds, decode = r->decode_seconds;
    fprintf(stderr, "\nprompt: %zu tokens, %.1f per second; generated: %zu, %.1f per second\n",
            e->prompt.count, (double)e->prompt.count / prefill, r->generated.count,
            r->decode_steps == 0 ? 0.0 : (double)r->decode_steps / decode);
    if (e->options->naive)
        return;
    const rkv_cache_stats *s = &r->stats;
    print_device(e, r);
    fprintf(stderr, "cache: %.1f MB on the device, %.1f of it ring; tail %.1f MB pinned, %.1f not\n",
            mb(r->info.device_bytes), mb(r->info.ring_bytes), mb(s->pinned_bytes),
            mb(s->unpinned_bytes));
    fprintf(stderr,
            "demoted %.1f MB, promoted %.1f MB; streamed %.1f MB in %llu copies, %.2f MB per token\n",
            mb(s->demoted_bytes), mb(s->promoted_bytes), mb(s->streamed_bytes),
            (unsigned long long)s->copies_in,
            r->decode_steps == 0 ? 0.0 : mb(r->decode_streamed_bytes) / (double)r->decode_steps);
    fprintf(
        stderr,
        "guessed tile-layers of next steps: %llu right, %llu wrong; waits: %llu, of the host %llu\n",
        (unsigned long long)s->predicted_right, (unsigned long long)s->predicted_wrong,
        (unsigned long long)s->waits, (unsigned long long)s->host_waits);
}

static int generate(struct engine *e, struct gen_error *err)
{
    const struct options *o = e->options;
    const struct run_settings settings = {.name = options_mode_name(o->mode),
                                          .mode = o->mode,
                                          .device_limit_bytes = o->device_limit_bytes,
                                          .resident_cells = o->resident_cells,
                                          .prints = true,
                                          .keeps_no_logits = !o->logits_hash};
    struct run_result result;
    if (engine_run(e, &settings, &result, err) != 0)
        return -1;
    if (dump_close(&e->dump, err) != 0) {
        run_result_free(&result);
        return -1;
    }
    printf("\n");
    if (o->logits_hash)
        printf("hash of all logits: %016llx\n", (unsigned long long)record_hash(&result.record));
    fflush(stdout);
    if (!o->quiet)
        print_figures(e, &result);
    run_result_free(&result);
    return 0;
}

int main(int argc, char **argv)
{
    struct options options;
    struct engine engine;
    struct gen_error err;
    if (options_parse(&options, argc, argv, &err) != 0) {
        fprintf(stderr, "rollkv-generate: %s\n", err.text);
        return 2;
    }
    if (options.help) {
        options_print_help(argv[0]);
        return 0;
    }
    if (options.which_device) {
        printf("%s\n", backend_choose(options.device) == DEVICE_CUDA ? "cuda" : "host");
        return 0;
    }
    products_start(argv);
    int rc = engine_open(&engine, &options, &err);
    if (rc == 0) {
        rc = options.compare ? compare_modes(&engine, &err) : generate(&engine, &err);
        engine_close(&engine);
    }
    if (rc < 0)
        fprintf(stderr, "rollkv-generate: %s\n", err.text);
    return rc == 0 ? 0 : 1;
}
