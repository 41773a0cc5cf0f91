#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes unicode_ranges.inc: the code points above ASCII in the categories L and N."""
import unicodedata


def ranges(kind):
    out = []
    for cp in range(0x80, 0x110000):
        if unicodedata.category(chr(cp))[0] != kind:
            continue
        if out and out[-1][1] == cp - 1:
            out[-1][1] = cp
        else:
            out.append([cp, cp])
    return out


print(f"/* Written by unicode_ranges.py from Unicode {unicodedata.unidata_version}. */")
for name, kind in (("letters", "L"), ("numbers", "N")):
    print(f"static const struct range {name}[] = {{")
    cells = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(kind)]
    for i in range(0, len(cells), 5):
        print("    " + " ".join(cells[i:i + 5]))
    print("};")
