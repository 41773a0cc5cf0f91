/* SPDX-License-Identifier: MIT
 *
 * A long document with facts in it, and questions about them, in the language of the recall model:
 * lowercase filler, and records of two capitals and two digits. Where the capitals come again, the
 * digits are to follow.
 */
#ifndef FACTS_H
#define FACTS_H

#include <stddef.h>

enum { FACTS = 12, KEY_LETTERS = 2, ANSWER_LETTERS = 2 };

struct facts {
    char *text; /* ends with a zero byte, not counted in length */
    size_t length;
    char keys[FACTS]
             [KEY_LETTERS + 1]; /* by depth: fact i stands at about (i + 1/2) / FACTS of the text */
    char answers[FACTS][ANSWER_LETTERS + 1];
};

/* False where there is no memory. The same length gives the same text. */
int facts_make(struct facts *facts, size_t length);
void facts_free(struct facts *facts);

/* Some filler, then the key: room for FACTS_QUESTION bytes. */
enum { FACTS_QUESTION = 32 };
void facts_question(const struct facts *facts, size_t fact, unsigned number, char *out);

#endif
