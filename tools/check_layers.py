#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that each part of the library includes only what stands below it.

The table is the order of the parts in the design, from top to bottom. A file belongs to the part with
the longest name that its own name starts with ("device_host_link.c" belongs to "device_host").
A file of no part is an error, so that a new file must be given its place here.
With --self-test: that it finds what it should.
"""
import pathlib
import re
import sys
import tempfile

# Part -> the parts that its files may include, apart from their own. BASE may be included by all.
BASE = ["geometry", "diag", "marks", "thread", "build"]
# Parameters and batch made effective: plain values that the parts above the executors read.
VALUES = ["config", "batch"]
OPS = ["ops"]
STORES = ["arena", "pool"]
EXECUTORS = ["device_host", "device_sim", "device_check", "device_cuda"]
TABLE = {
    "api": ["trace", "step", "cache", "estimate", "state", "cells", "profile", "plan", "ring", "seq", "tile", *STORES, "device", *EXECUTORS,
            "settings", *VALUES, *OPS],
    "step": ["timeline", "cpu", "cache", "state", "cells", "profile", "plan", "ring", "seq", "tile", *STORES, "device", "settings", *VALUES,
             *OPS],
    "estimate": ["plan", "ring", "seq", "tile", *STORES, "device", *VALUES, *OPS],
    "cache": ["plan", "ring", "seq", "tile", *STORES, "device", *VALUES, *OPS],
    # Pure: no device, and so no memory that belongs to one.
    "plan": ["ring", "seq", "tile", *VALUES, *OPS],
    # Pure as well: cells as others write them; what a saved state says.
    "cells": OPS,
    "profile": [*VALUES, *OPS],
    "state": ["seq", "tile", "pool", *VALUES, *OPS],
    "ring": [],
    "seq": ["tile", *VALUES, *OPS],
    "tile": ["pool", "config"],
    # Numbered marks on streams: just above the interface to executors.
    "timeline": ["device"],
    "settings": [],
    # Threads that compute in host memory.
    "cpu": OPS,
    "arena": ["pool", "device", "config"],
    "pool": ["arena", "device", "config"],
    "batch": ["config", *OPS],
    "config": ["ring", *OPS],
    "device": OPS,
    **{executor: ["device", *OPS] for executor in EXECUTORS},
    "device_cuda": ["device", "ops_cuda", *OPS],
    "ops": [],
    "ops_ref": ["ops"],
    "ops_avx2": ["ops", "ops_ref"],
    "ops_avx512": ["ops", "ops_ref"],
    "ops_avx512vnni": ["ops", "ops_ref"],
    # Kernels of CUDA, from top to bottom: one file an op or variant, what they share, their interface.
    "attend": ["rkvk", "ops_cuda", "ops"],
    "ops_store": ["rkvk", "ops_cuda", "ops"],
    "ops_merge": ["rkvk", "ops_cuda", "ops"],
    "ops_rotate": ["rkvk", "ops_cuda", "ops"],
    "ops_tree": ["rkvk", "ops_cuda", "ops"],
    "ops_desk": ["rkvk", "ops_cuda", "ops"],
    "rkvk": ["ops_cuda", "ops"],
    "ops_cuda": ["ops"],
    "geometry": ["diag", "build"],
    "diag": ["build"],
    "marks": [],
    "trace": [],
    "thread": [],
    "build": [],
}
# What a part must not reach through headers of others either.
NEVER = {"plan": {"device", *EXECUTORS}, "state": {"device", *EXECUTORS}}
# Public headers that each part may use: types everywhere, the API itself where it is carried out.
PUBLIC_EVERYWHERE = {"version.h", "types.h"}
PUBLIC_WHOLE_API = {"api", "cells", "profile", "step", "cache", "estimate", "arena", "config", "diag"}
# System headers that only one part may use.
SYSTEM_ONLY_IN = {"numa.h": set(), "numaif.h": set(), "linux/mempolicy.h": {"arena"}, "cuda_runtime.h": {"rkvk"},
                  "cuda_runtime_api.h": {"device_cuda"}, "cuda.h": {"device_cuda"}, "xxhash.h": {"state"}, "nvtx3/nvToolsExt.h": {"trace"}}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


def part_of(name):
    """The part of a file name, or None."""
    stem = name.rsplit(".", 1)[0]
    if name in ("rkvi_config.h", "rkvk_table.h"):  # written by Meson
        return "build"
    fitting = [p for p in TABLE if stem == p or stem.startswith(p + "_")]
    return max(fitting, key=len) if fitting else None


def check_include(part, quote, target):
    """A sentence on what is wrong with this include, or None."""
    if target.startswith("rollkv/") or target == "rollkv.h":
        name = target.split("/")[-1]
        if name in PUBLIC_EVERYWHERE or part in PUBLIC_WHOLE_API:
            return None
        return f"part '{part}' must not know the public API"
    if quote == "<":
        owners = SYSTEM_ONLY_IN.get(target)
        return None if owners is None or part in owners else f"only {sorted(owners)} may use it"
    other = part_of(target.split("/")[-1])
    if other is None:
        return "it belongs to no part in the table"
    if other == part or other in TABLE[part] or (other in BASE and part not in BASE):
        return None
    return f"part '{part}' must not know '{other}'"


def check_internal(path, problems):
    part = part_of(path.name)
    if part is None:
        problems.append(f"{path}: belongs to no part; give it a place in tools/check_layers.py")
        return
    for quote, target in INCLUDE.findall(path.read_text()):
        wrong = check_include(part, quote, target)
        if wrong:
            problems.append(f"{path}: includes {target}: {wrong}")


def reached(path, seen):
    """All internal headers that a file includes, directly or not."""
    for quote, target in INCLUDE.findall(path.read_text()):
        header = path.parent / target
        if quote == '"' and header.is_file() and header not in seen:
            seen.add(header)
            reached(header, seen)
    return seen


def check_reached(path, problems):
    forbidden = NEVER.get(part_of(path.name), set())
    for header in sorted(reached(path, set())) if forbidden else []:
        if part_of(header.name) in forbidden:
            problems.append(f"{path}: reaches {header.name} through other headers")


def check_public(path, problems):
    """Public headers know standard headers and each other only."""
    standard = {"stddef.h", "stdint.h", "stdbool.h"}
    for _, target in INCLUDE.findall(path.read_text()):
        is_sibling = (path.parent / target.split("/")[-1]).is_file()
        if target not in standard and not is_sibling:
            problems.append(f"{path}: public headers include only {sorted(standard)} and each other")


def check_table(problems):
    """No two parts may know each other, except where they are one level of the design."""
    same_level = {frozenset(("arena", "pool"))}
    for part, below in TABLE.items():
        for other in below:
            if other not in TABLE:
                problems.append(f"table: '{part}' names '{other}', which is no part")
            elif part in TABLE[other] and frozenset((part, other)) not in same_level:
                problems.append(f"table: '{part}' and '{other}' know each other")


def problems_of(root):
    """What is wrong below a folder, and how many files and headers were looked at."""
    problems = []
    check_table(problems)
    files = sorted(p for folder in ("src/host", "src/cuda") for p in (root / folder).rglob("*")
                   if p.suffix in (".c", ".h", ".inc", ".cu", ".cuh"))
    headers = sorted((root / "include").rglob("*.h"))
    for path in files:
        check_internal(path, problems)
        check_reached(path, problems)
    for path in headers:
        check_public(path, problems)
    names = {}
    for path in files + headers:
        if path.name in names:
            problems.append(f"{path}: {names[path.name]} has the same name")
        names[path.name] = path
    return problems, len(files), len(headers)


# Trees with one violation each: {file: text}, and words of the sentence about it.
VIOLATIONS = [
    ({"src/host/ring.c": '#include "cache.h"', "src/host/cache.h": ""}, "'ring' must not know 'cache'"),
    ({"src/host/seq.c": '#include "device.h"', "src/host/device.h": ""}, "'seq' must not know 'device'"),
    ({"src/host/plan.c": '#include "seq.h"', "src/host/seq.h": '#include "tile.h"', "src/host/tile.h": '#include "pool.h"',
      "src/host/pool.h": '#include "device.h"', "src/host/device.h": ""}, "reaches device.h through other headers"),
    ({"src/host/device_host.c": '#include "device_sim.h"', "src/host/device_sim.h": ""},
     "'device_host' must not know 'device_sim'"),
    ({"src/host/tile.c": "#include <rollkv/rollkv.h>"}, "must not know the public API"),
    ({"src/host/step.c": "#include <cuda_runtime_api.h>"}, "only ['device_cuda'] may use it"),
    ({"src/host/queue.c": ""}, "belongs to no part"),
    ({"src/host/ops.h": "", "src/cuda/ops.h": ""}, "has the same name"),
    ({"include/rollkv/rollkv.h": "#include <cuda.h>"}, "public headers include only"),
]


def self_test():
    """Each violation is found, and nothing else."""
    failed = 0
    for tree, words in VIOLATIONS:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in tree.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text + "\n")
            problems, _, _ = problems_of(root)
        if len(problems) != 1 or words not in problems[0]:
            print(f"{list(tree)}: {problems}, not one with: {words}")
            failed += 1
    print(f"{len(VIOLATIONS)} violations, {failed} not found as they should be")
    return 1 if failed else 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    problems, n_files, n_headers = problems_of(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    for line in problems:
        print(line)
    print(f"{n_files} files and {n_headers} public headers, {len(problems)} problems")
    return 1 if problems or not n_files else 0


if __name__ == "__main__":
    sys.exit(main())
