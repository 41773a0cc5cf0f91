/* SPDX-License-Identifier: MIT */
#include "dump.h"

#include <errno.h>
#include <string.h>

int dump_open(struct dump *d, const char *path, size_t vocabulary, struct gen_error *err)
{
    const uint32_t head[2] = {1, (uint32_t)vocabulary};
    d->vocabulary = vocabulary;
    d->file = fopen(path, "wb");
    if (d->file == NULL)
        return gen_fail(err, "Can't write '%s': %s.", path, strerror(errno));
    fwrite("RKVLOGIT", 1, 8, d->file);
    fwrite(head, sizeof head, 1, d->file);
    return 0;
}

int dump_rows(struct dump *d, size_t first_position, const int32_t *tokens, const float *logits,
              size_t rows, struct gen_error *err)
{
    for (size_t r = 0; r < rows; r++) {
        const int32_t head[2] = {(int32_t)(first_position + r), tokens[r]};
        fwrite(head, sizeof head, 1, d->file);
        fwrite(logits + r * d->vocabulary, sizeof *logits, d->vocabulary, d->file);
    }
    return ferror(d->file) ? gen_fail(err, "Logits can't be written: %s.", strerror(errno)) : 0;
}

int dump_close(struct dump *d, struct gen_error *err)
{
    FILE *file = d->file;
    d->file = NULL;
    if (file != NULL && fclose(file) != 0)
        return gen_fail(err, "Logits can't be written: %s.", strerror(errno));
    return 0;
}
