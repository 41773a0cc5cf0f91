#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_layout.py BASELINE NOW: compares the layout of public structs in two files made by abidw.

Every field of the baseline keeps its place. A struct that begins with struct_size may grow; any other
one keeps its size. It stands beside abidiff, whose rule for appended fields also lets pass a struct whose
fields moved because one that lies inside it grew.
"""
import sys
import xml.etree.ElementTree as ElementTree


def read_structs(path):
    """name -> (size, {field: offset in bits}), in the order of the fields; of the API's own structs."""
    structs = {}
    for node in ElementTree.parse(path).iter("class-decl"):
        if node.get("is-declaration-only") == "yes" or not node.get("name").startswith("rkv_"):
            continue
        fields = {member.find("var-decl").get("name"): int(member.get("layout-offset-in-bits"))
                  for member in node.iter("data-member")
                  if member.find("var-decl") is not None}
        structs[node.get("name")] = (int(node.get("size-in-bits")), fields)
    return structs


def compare(name, old, new):
    """Sentences on what moved in one struct."""
    old_size, old_fields = old
    new_size, new_fields = new
    for field, offset in old_fields.items():
        if field not in new_fields:
            yield f"{name}: {field} is gone"
        elif new_fields[field] != offset:
            yield f"{name}: {field} moved from bit {offset} to {new_fields[field]}"
    may_grow = next(iter(old_fields), None) == "struct_size"
    if new_size < old_size or (new_size > old_size and not may_grow):
        yield f"{name}: its size went from {old_size} to {new_size} bits"


def main():
    baseline, now = read_structs(sys.argv[1]), read_structs(sys.argv[2])
    problems = [f"{name}: is gone" for name in baseline if name not in now]
    for name in baseline:
        if name in now:
            problems.extend(compare(name, baseline[name], now[name]))
    for line in problems:
        print(line)
    print(f"{len(baseline)} structs compared, {len(problems)} problems")
    return 1 if problems or not baseline else 0


if __name__ == "__main__":
    sys.exit(main())
