#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Attention of this library beside PyTorch's backends, on the same GPU in one run.

compare_torch.py --bench BUILD/bench/bench_cuda_attend [--only decode|prefill] [--seconds S]
                 [--rest S] [--json FILE] [--shapes TEXT] [--commit TEXT]

decode   one row against so many cells: GB/s of stored K and V (f16).  Rivals see the query heads of a KV
         head as rows of one head (no mask is needed for one row), or as grouped heads; the faster counts.
prefill  a chunk of rows at the end of the cells, causal aligned to the end: TFLOP/s of unmasked pairs.
         cuDNN's mask is aligned to the start here, so its chunk is two calls, earlier cells without a
         mask and the chunk itself with one; what would merge the two is left out, in its favour.

Inputs rotate over at least four times the L2 cache, for all alike.  Rivals' calls are replayed from a CUDA
graph, so that no launch is waited for.  Before each figure, ours and theirs, the GPU rests: under a power limit,
long tensor work lowers the clock for what comes next.  Times are medians, with the spread between quartiles.  FlashInfer
and flash_attn take part where they can be imported.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention as sdpa
except ImportError as missing:
    if not {"-h", "--help"} & set(sys.argv):
        sys.exit(f"compare_torch.py: needs PyTorch 2.5 or newer with CUDA, pip install torch ({missing})")

K = 1024
ROTATED_BYTES = 4 * 64 * K * K
DECODE = [(40, 8, 128, 256 * K), (40, 8, 128, 64 * K), (16, 2, 256, 128 * K), (9, 3, 64, 128 * K),
          (64, 8, 128, 32 * K), (32, 32, 128, 32 * K), (8, 1, 512, 64 * K)]
HEADS = [(40, 8, 128), (9, 3, 64), (16, 8, 256)]
CHUNKS = [(512, 8 * K), (2 * K, 8 * K), (2 * K, 32 * K), (8 * K, 32 * K), (512, 128 * K), (2 * K, 128 * K)]


class Inputs:
    """q, k and v of a shape, several of each."""

    def __init__(self, heads, kv_heads, dim, cells, rows):
        self.heads, self.kv_heads, self.dim, self.cells, self.rows = heads, kv_heads, dim, cells, rows
        self.bytes = cells * kv_heads * dim * 4
        n = max(2, -(-ROTATED_BYTES // self.bytes))
        make = lambda h, c: torch.randn(1, h, c, dim, device="cuda", dtype=torch.float16) * 0.2
        self.sets = [(make(heads, rows), make(kv_heads, cells), make(kv_heads, cells)) for _ in range(n)]


def graph_of(call, sets):
    """A graph that calls each set once, after a call outside it; raises what the call raises."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for s in sets[:2]:
            call(*s)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        for s in sets:
            call(*s)
    return graph


def time_of(call, sets, seconds, rest):
    """Median and spread of a call, in seconds."""
    graph = graph_of(call, sets)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples, total = [], 0.0
    torch.cuda.synchronize()
    time.sleep(rest)
    graph.replay()
    while len(samples) < 7 or (total < seconds and len(samples) < 400):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        t = begin.elapsed_time(end) * 1e-3
        total += t
        samples.append(t / len(sets))
    samples.sort()
    return statistics.median(samples), samples[len(samples) * 3 // 4] - samples[len(samples) // 4]


def by_backend(backend, function):
    def call(q, k, v):
        with sdpa_kernel([backend]):
            return function(q, k, v)
    return call


def rows_of_group(x):
    """Query heads of a KV head as rows of one head."""
    return lambda q, k, v: sdpa(q.view(1, x.kv_heads, x.heads // x.kv_heads, x.dim), k, v)


def grouped(q, k, v):
    return sdpa(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def grouped_at_end(q, k, v):
    bias = causal_lower_right(q.shape[2], k.shape[2])
    return sdpa(q, k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1])


def in_two_calls(q, k, v):
    rows, gqa = q.shape[2], q.shape[1] != k.shape[1]
    past = k.shape[2] - rows
    if past:
        sdpa(q, k[:, :, :past], v[:, :, :past], enable_gqa=gqa)
    return sdpa(q, k[:, :, past:], v[:, :, past:], is_causal=True, enable_gqa=gqa)


def flash_attn_calls(rows):
    """Further rivals that may not be there."""
    calls = {}
    try:
        from flash_attn import flash_attn_func
        calls["flash_attn"] = lambda q, k, v: flash_attn_func(q.transpose(1, 2), k.transpose(1, 2),
                                                              v.transpose(1, 2), causal=rows > 1)
    except ImportError:
        pass
    try:
        import flashinfer
        if rows == 1:
            calls["flashinfer"] = lambda q, k, v: flashinfer.single_decode_with_kv_cache(
                q[0, :, 0], k[0], v[0], kv_layout="HND", use_tensor_cores=True)
        else:
            calls["flashinfer"] = lambda q, k, v: flashinfer.single_prefill_with_kv_cache(
                q[0].transpose(0, 1), k[0], v[0], causal=True, kv_layout="HND")
    except ImportError:
        pass
    return calls


def rivals(x):
    """Name -> ways to call it."""
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    if x.rows == 1:
        ways = [rows_of_group(x), grouped]
        named = {"cudnn": [by_backend(cudnn, w) for w in ways], "flash": [by_backend(flash, w) for w in ways]}
    else:
        named = {"cudnn": [by_backend(cudnn, in_two_calls)], "flash": [by_backend(flash, grouped_at_end)]}
    named.update({name: [call] for name, call in flash_attn_calls(x.rows).items()})
    return named


def measure(x, seconds, rest):
    """Name -> {seconds, spread} or {error}."""
    out = {}
    for name, ways in rivals(x).items():
        for way in ways:
            try:
                t, spread = time_of(way, x.sets, seconds, rest)
                if "seconds" not in out.get(name, {}) or t < out[name]["seconds"]:
                    out[name] = {"seconds": t, "spread": spread}
            except Exception as e:  # a backend that refuses the shape says so in many ways
                torch.cuda.synchronize()
                out.setdefault(name, {"error": str(e).split("\n")[0][:100]})
    return out


def ours(path, regime, seconds, rest):
    """The commit, and (heads, kv heads, dim, cells, rows) -> what the bench measured, f16."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "ours.json")
        subprocess.run([path, "--only", regime, "--variant", "f16_f16", "--seconds", str(seconds),
                        "--rest-ms", str(round(rest * 1e3)), "--json", file], check=True, stdout=subprocess.DEVNULL)
        with open(file, encoding="utf-8") as f:
            measured = json.load(f)
    return measured.get("commit"), {(r["q_heads"], r["kv_heads"], r["dim"], r["cells"], r["rows"]): r
                                    for r in measured["attention"] if r["k"] == "f16" and r["v"] == "f16"}


def pairs(rows, cells):
    return rows * (cells - rows) + rows * (rows + 1) / 2


def row_of(x, mine, seconds, rest):
    """What the table and JSON say of a shape."""
    theirs = measure(x, seconds, rest)
    if x.rows == 1:
        scale, unit = x.bytes * 1e-9, "GB/s"
    else:
        scale, unit = 4 * x.dim * x.heads * pairs(x.rows, x.cells) * 1e-12, "TFLOP/s"
    row = {"q_heads": x.heads, "kv_heads": x.kv_heads, "dim": x.dim, "cells": x.cells, "rows": x.rows,
           "unit": unit, "rivals": theirs}
    for r in theirs.values():
        if "seconds" in r:
            r["rate"] = scale / r["seconds"]
    if mine:
        what = "attend_out" if "attend_out_us" in mine else "attend_merge"
        t = mine[what + "_us"] * 1e-6
        row["ours"] = {"seconds": t, "spread": mine[what + "_spread_us"] * 1e-6, "rate": scale / t,
                       "attend_rate": scale * 1e6 / mine["attend_us"]}
        if "read_us" in mine:
            row["plain_read"] = scale * 1e6 / mine["read_us"]
    best = max((r["rate"] for r in theirs.values() if "rate" in r), default=None)
    if best and mine:
        row["of_best_rival"] = row["ours"]["rate"] / best
    return row


def text_of(row, names):
    shape = f"{row['q_heads']}/{row['kv_heads']}/{row['dim']}"
    rate = lambda r: f"{r['rate']:8.0f}" if r and "rate" in r else "       -"
    spread = lambda r: f"{100 * r['spread'] / r['seconds']:4.1f}" if r and "rate" in r else "   -"
    columns = "".join(f" {rate(row['rivals'].get(n))} {spread(row['rivals'].get(n))}" for n in names)
    read = f"{row['plain_read']:8.0f}" if "plain_read" in row else "        "
    of = f"{row['of_best_rival']:7.3f}" if "of_best_rival" in row else "      -"
    return (f"{shape:>10} {row['cells']:>7} {row['rows']:>5} {read} {rate(row.get('ours'))} "
            f"{spread(row.get('ours'))}{columns} {of}")


def run(regime, shapes, options):
    commit, mine = ours(options.bench, regime, options.seconds, options.rest) if options.bench else (None, {})
    options.commit = options.commit or commit
    names, rows = None, []
    for shape in shapes:
        if options.shapes and options.shapes not in "{}/{}/{}/{}/{}".format(*shape):
            continue
        x = Inputs(*shape)
        row = row_of(x, mine.get(shape), options.seconds, options.rest)
        if names is None:
            names = list(row["rivals"])
            print(f"{regime}: {row['unit']}, spread in %\n{'heads/D':>10} {'cells':>7} {'rows':>5} {'read':>8} "
                  f"{'ours':>8}     " + "".join(f" {n:>8}     " for n in names) + " of best")
        print(text_of(row, names), flush=True)
        rows.append(row)
        del x
        torch.cuda.empty_cache()
    for row in rows:
        for name, r in row["rivals"].items():
            if "error" in r:
                print(f"  {name} at {row['q_heads']}/{row['kv_heads']}/{row['dim']}: {r['error']}")
    return rows


def early(p, options):
    """What can be said before anything is measured; the file for the figures."""
    if options.seconds <= 0 or options.rest < 0:
        p.error("--seconds has to be above 0, --rest at least 0")
    if options.bench and not shutil.which(options.bench):
        p.error(f"--bench {options.bench}: there is no such program")
    all_shapes = [s + (1,) for s in DECODE] * (options.only != "prefill")
    all_shapes += [h + (c, r) for h in HEADS for r, c in CHUNKS] * (options.only != "decode")
    if options.shapes and not any(options.shapes in "/".join(map(str, s)) for s in all_shapes):
        p.error(f"--shapes {options.shapes}: no shape has that in heads/kv/dim/cells/rows")
    try:
        return open(options.json, "w", encoding="utf-8") if options.json else None
    except OSError as e:
        sys.exit(f"compare_torch.py: '{options.json}' can't be written: {e.strerror}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bench", help="bench_cuda_attend of a build")
    p.add_argument("--only", choices=["decode", "prefill"])
    p.add_argument("--seconds", type=float, default=0.1, help="of samples for each figure")
    p.add_argument("--rest", type=float, default=0.02, help="seconds of rest before each figure, ours and theirs")
    p.add_argument("--json")
    p.add_argument("--shapes", help="only those with this text in heads/kv/dim/cells/rows")
    p.add_argument("--commit", help="to be written into the file (that of the bench's build)")
    options = p.parse_args()
    out = early(p, options)
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    torch.manual_seed(1)
    warnings.simplefilter("ignore")  # each backend says why it refuses a shape; the table shows a dash
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", flush=True)
    result = {"bench": "compare_torch", "commit": None, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version()}
    if options.only != "prefill":
        result["decode"] = run("decode", [s + (1,) for s in DECODE], options)
    if options.only != "decode":
        result["prefill"] = run("prefill", [h + (c, r) for h in HEADS for r, c in CHUNKS], options)
    result["commit"] = options.commit or "unknown"
    if out:
        with out:
            json.dump(result, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
