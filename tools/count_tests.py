#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the cases in a Meson test log: count_tests.py BUILD/meson-logs/testlog.json

Prints 'passed failed skipped' on the first line, then a line for each program or case that failed or
was skipped. CMocka reports cases; a program that reports none counts as one case. A program that fails
without a failed case (crash, time-out, a sanitizer's report at exit) counts as one failure.
"""
import json
import re
import sys

RUN = re.compile(r"^\[  PASSED  \] (\d+) test", re.M)
SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) test", re.M)
FAILED = re.compile(r"^\[  FAILED  \] (\d+) test", re.M)
ONE_SKIPPED = re.compile(r"^\[  SKIPPED \] (\w+)$", re.M)
ONE_FAILED = re.compile(r"^\[  FAILED  \] (\w+)$", re.M)


def count_program(test):
    """(passed, failed, skipped) cases of one program."""
    text = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
    passed, failed, skipped = (sum(map(int, r.findall(text))) for r in (RUN, FAILED, SKIPPED))
    result = test["result"]
    if result == "SKIP":
        return 0, 0, 1
    if result in ("OK", "EXPECTEDFAIL"):
        return (passed, failed, skipped) if passed + failed + skipped else (1, 0, 0)
    return passed, max(failed, 1), skipped


def describe(test):
    """Lines on what of this program failed or was skipped."""
    text = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
    name, result = test["name"].split(" / ")[-1], test["result"]
    if result == "SKIP":
        last = [line for line in text.splitlines() if line.strip()][-1:]
        yield f"skipped: {name}: {last[0] if last else 'no reason given'}"
    for case in sorted(set(ONE_SKIPPED.findall(text))):
        yield f"skipped: {name}: {case}"
    if result not in ("OK", "SKIP", "EXPECTEDFAIL"):
        cases = ", ".join(sorted(set(ONE_FAILED.findall(text))))
        yield f"failed: {name}: {cases or result.lower()}"


def main():
    totals, lines = [0, 0, 0], []
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        for line in log:
            test = json.loads(line)
            totals = [a + b for a, b in zip(totals, count_program(test))]
            lines.extend(describe(test))
    print(*totals)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
