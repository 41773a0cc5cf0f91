#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks what documents point to: files that links and paths name, the tests that docs/faults.md names, and
names of the library's (rkv_sequence_fork, `cpu_wait_ns`) that the sources must have.

docs/decisions.md is history: its names may be gone."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
TEST = re.compile(r"`([a-z0-9_]+):([a-z0-9_]+)`")
INCLUDE = re.compile(r'#include "([a-z_]+\.c)"')
FILE = re.compile(r"(?<![\w./-])(?:src|include|tests|tools|bench|examples|abi|docs)/[\w.+-]+(?:/[\w.+-]+)*(?![\w<*])")
NAME = re.compile(r"\b(?:rkv|rkvi|rkvk|RKV|RKVI|RKVK|ROLLKV)_\w+")
FIELD = re.compile(r"`([a-z]\w*_\w+)`")
SOURCES = ("src", "include", "tests", "tools", "bench", "examples")
ENDINGS = (".c", ".h", ".cu", ".cuh", ".in", ".sh", ".py", ".build", ".cpp", ".hpp")


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


def words_of_sources():
    """All identifiers of the sources, names of their files and of Meson's options."""
    files = [p for folder in SOURCES for p in (ROOT / folder).rglob("*") if p.suffix in ENDINGS or p.name == "meson.build"]
    text = "".join(p.read_text() for p in [*files, ROOT / "meson_options.txt"])
    return set(re.findall(r"\w+", text)) | {p.stem for p in files}


def unknown_names(path, words):
    """Paths and names that are not there. A name that ends in _ stands for all that begin with it."""
    text, where = path.read_text(), path.relative_to(ROOT)
    for target in sorted(set(FILE.findall(text))):
        if not target.rsplit("/", 1)[-1].isupper() and not (ROOT / target.rstrip(".")).exists():  # tests/FILE
            yield f"{where}: there is no {target}"
    names = set(NAME.findall(text))
    if where.parent.name == "docs" and where.name != "faults.md":
        names |= set(FIELD.findall(text))
    for name in sorted(names - words):
        if not (name.endswith("_") and any(w.startswith(name) for w in words)):
            yield f"{where}: the sources have no {name}"


def main():
    documents = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench/results").rglob("*.md")])
    problems = [p for path in documents for p in broken_links(path)]
    problems += missing_tests(ROOT / "docs/faults.md")
    words = words_of_sources()
    problems += [p for path in documents if path.name != "decisions.md" for p in unknown_names(path, words)]
    for line in problems:
        print(line)
    print(f"{len(documents)} documents, {len(problems)} problems")
    return 1 if problems or not documents else 0


if __name__ == "__main__":
    sys.exit(main())
