/* SPDX-License-Identifier: MIT */
#include "pretoken.h"

#include <string.h>

#include "unicode.h"

enum char_class { CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE, CLASS_OTHER, CLASS_END };

static enum char_class class_at(const char *text, size_t length, size_t at, size_t *used)
{
    if (at >= length) {
        *used = 0;
        return CLASS_END;
    }
    const uint32_t cp = unicode_decode(text + at, length - at, used);
    return unicode_is_letter(cp)   ? CLASS_LETTER
           : unicode_is_number(cp) ? CLASS_NUMBER
           : unicode_is_space(cp)  ? CLASS_SPACE
                                   : CLASS_OTHER;
}

static size_t contraction(const char *text, size_t length)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        const size_t bytes = strlen(endings[i]);
        if (bytes <= length && memcmp(text, endings[i], bytes) == 0)
            return bytes;
    }
    return 0;
}

/* White space from the start on. One blank is left for the piece behind it, unless the run ends
 * the text or (with single digits) a number follows, which takes no blank. */
static size_t space_run(const char *text, size_t length, bool single_digits)
{
    size_t at = 0, last = 0, used;
    enum char_class next;
    while ((next = class_at(text, length, at, &used)) == CLASS_SPACE) {
        last = at;
        at += used;
    }
    const bool ends = next == CLASS_END || (single_digits && next == CLASS_NUMBER);
    return ends || last == 0 ? at : last;
}

size_t pretoken_next(const char *text, size_t length, bool single_digits)
{
    size_t used;
    const size_t short_form = contraction(text, length);
    if (short_form != 0)
        return short_form;
    size_t at = text[0] == ' ' ? 1 : 0;
    const enum char_class first = class_at(text, length, at, &used);
    if (first == CLASS_SPACE || first == CLASS_END ||
        (single_digits && at == 1 && first == CLASS_NUMBER))
        return space_run(text, length, single_digits);
    at += used;
    if (single_digits && first == CLASS_NUMBER)
        return at;
    while (class_at(text, length, at, &used) == first)
        at += used;
    return at;
}
