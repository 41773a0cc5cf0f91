/* SPDX-License-Identifier: MIT */
#include "unicode.h"

struct range {
    uint32_t first, last;
};

#include "unicode_ranges.inc"

static bool in_ranges(const struct range *ranges, size_t count, uint32_t code_point)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (ranges[middle].last < code_point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low].first <= code_point;
}

uint32_t unicode_decode(const char *text, size_t length, size_t *used)
{
    const unsigned char *p = (const unsigned char *)text;
    const size_t bytes = p[0] < 0x80   ? 1
                         : p[0] < 0xc2 ? 0
                         : p[0] < 0xe0 ? 2
                         : p[0] < 0xf0 ? 3
                         : p[0] < 0xf5 ? 4
                                       : 0;
    *used = 1;
    if (bytes == 1)
        return p[0];
    if (bytes == 0 || bytes > length)
        return 0xfffd;
    uint32_t code_point = p[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0xfffd;
        code_point = (code_point << 6) | (p[i] & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code_point < least[bytes] || code_point > 0x10ffff || (code_point >> 11) == 0x1b)
        return 0xfffd;
    *used = bytes;
    return code_point;
}

size_t unicode_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    const size_t bytes = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = bytes - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)(lead[bytes] | cp);
    return bytes;
}

bool unicode_is_letter(uint32_t cp)
{
    if (cp < 0x80)
        return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    return in_ranges(letters, sizeof letters / sizeof letters[0], cp);
}

bool unicode_is_number(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    return in_ranges(numbers, sizeof numbers / sizeof numbers[0], cp);
}

bool unicode_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}
