#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks what documents point to: files that links name, and the tests that docs/faults.md names."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
TEST = re.compile(r"`([a-z0-9_]+):([a-z0-9_]+)`")
INCLUDE = re.compile(r'#include "([a-z_]+\.c)"')


def broken_links(path):
    for target in LINK.findall(path.read_text()):
        if "://" not in target and not (path.parent / target).exists():
            yield f"{path.relative_to(ROOT)}: {target} is not there"


def source_of(program):
    """A test program's text, with the file that it includes as its own; None: there is no such program."""
    path = ROOT / "tests" / f"test_{program}.c"
    if not path.is_file():
        return None
    text = path.read_text()
    return text + "".join((ROOT / "tests" / name).read_text() for name in INCLUDE.findall(text))


def missing_tests(path):
    for program, name in sorted(set(TEST.findall(path.read_text()))):
        text = source_of(program)
        if text is None or f"test_{name}(" not in text:
            yield f"{path.relative_to(ROOT)}: there is no test {program}:{name}"


def main():
    documents = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench/results").rglob("*.md")])
    problems = [p for path in documents for p in broken_links(path)]
    problems += missing_tests(ROOT / "docs/faults.md")
    for line in problems:
        print(line)
    print(f"{len(documents)} documents, {len(problems)} problems")
    return 1 if problems or not documents else 0


if __name__ == "__main__":
    sys.exit(main())
