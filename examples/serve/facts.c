/* SPDX-License-Identifier: MIT */
#include "facts.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t next(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33);
}

/* A space in six. */
static void fill(char *out, size_t length, uint64_t *random)
{
    for (size_t i = 0; i < length; i++)
        out[i] = (char)(next(random) % 6 == 0 ? ' ' : 'a' + next(random) % 26);
}

int facts_make(struct facts *f, size_t length)
{
    uint64_t random = 1;
    *f = (struct facts){.text = malloc(length + 1), .length = length};
    if (f->text == NULL)
        return 0;
    fill(f->text, length, &random);
    f->text[length] = '\0';
    for (uint32_t i = 0; i < FACTS; i++) {
        /* 47 is prime to 26 * 26, so that no key comes twice. */
        const uint32_t key = (i * 47 + 5) % (26 * 26), answer = next(&random) % 100;
        snprintf(f->keys[i], sizeof f->keys[i], "%c%c", 'A' + (char)(key / 26), 'A' + (char)(key % 26));
        snprintf(f->answers[i], sizeof f->answers[i], "%02u", answer % 100u);
        char *at = f->text + (2 * i + 1) * (length - KEY_LETTERS - ANSWER_LETTERS) / (2 * FACTS);
        memcpy(at, f->keys[i], KEY_LETTERS);
        memcpy(at + KEY_LETTERS, f->answers[i], ANSWER_LETTERS);
    }
    return 1;
}

void facts_free(struct facts *f)
{
    free(f->text);
    *f = (struct facts){0};
}

void facts_question(const struct facts *f, size_t fact, unsigned number, char *out)
{
    uint64_t random = 1000u * (fact + 1) + number;
    const size_t filler = 13 + next(&random) % 12;
    fill(out, filler, &random);
    memcpy(out + filler, f->keys[fact], KEY_LETTERS + 1);
}
