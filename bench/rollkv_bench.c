/* SPDX-License-Identifier: MIT
 *
 * rollkv_bench.c: `rollkv-bench COMMAND ...`.  Measures, and never asserts.
 */
#include "cliff.h"
#include "cpu_model.h"
#include "overheads.h"
#include "prefill.h"
#include "shared.h"
#include "sizing.h"

#include <string.h>

typedef struct command {
    const char *name, *help;
    int (*main)(int argc, char **argv);
} command;

static const command commands[] = {
    {"shared", "N sequences on a shared prefix: step time and bytes streamed", shared_main},
    {"sizing", "the rule for ring bytes and copy size against a sweep, simulated", sizing_main},
    {"cpu-model", "the rule for the CPU's share against a sweep, simulated", cpu_model_main},
#ifdef BENCH_HAS_CUDA
    {"overheads", "what a cache costs beyond its bytes and copies, on a GPU", overheads_main},
    {"prefill", "chunks of a prompt, three quarters of the cache in the tail", prefill_main},
#endif
    {"cliff", "step time against tail bytes, beside copies op by op and the bound", cliff_main},
};

static bool is_for_gpu(const char *name)
{
    return strcmp(name, "overheads") == 0 || strcmp(name, "prefill") == 0;
}

static void usage(FILE *f)
{
    fputs("usage: rollkv-bench COMMAND [OPTIONS]\n\n", f);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\nrollkv-bench COMMAND --help lists a command's options.\n", f);
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].main(argc - 1, argv + 1);
    if (is_for_gpu(argv[1])) {
        fprintf(stderr,
                "rollkv-bench: '%s' measures on a GPU, and this build is without: configure with -Dcuda=enabled\n",
                argv[1]);
        return 2;
    }
    fprintf(stderr, "rollkv-bench: no command '%s'\n\n", argv[1]);
    usage(stderr);
    return 2;
}
