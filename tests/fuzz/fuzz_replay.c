/* SPDX-License-Identifier: MIT
 *
 * fuzz_replay.c: a plain main for a fuzzer: runs the files, or all files of the
 * folders, that it is given.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t n_runs;

static int run_file(const char *path)
{
    static uint8_t bytes[1 << 17];
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    fprintf(stderr, "%s\n", path); /* the last one is that which failed */
    LLVMFuzzerTestOneInput(bytes, n);
    n_runs++;
    return 0;
}

static int run_path(const char *path)
{
    char file[4096];
    DIR *folder = opendir(path);
    int failed = 0;
    if (!folder)
        return run_file(path);
    for (struct dirent *e; (e = readdir(folder));)
        if (e->d_name[0] != '.') {
            snprintf(file, sizeof file, "%s/%s", path, e->d_name);
            failed |= run_file(file);
        }
    closedir(folder);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= run_path(argv[i]);
    printf("%u files\n", n_runs);
    return failed || n_runs == 0;
}
