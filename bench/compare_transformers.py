#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decode steps of a Qwen2.5-14B-shaped model (random weights) with transformers' offloaded cache, beside
the cliff bench's step of the same shape at the same cache size, on the same GPU in one run.

compare_transformers.py --bench BUILD/bench/rollkv-bench [--gib 6,12] [--steps N] [--json FILE]
                        [--commit TEXT]

Theirs: the model's forward pass with DynamicCache(offloading=True), f16, sdpa attention, one token a step,
the host waiting for each step, as to sample.  The cache is filled through its own update() with random
cells.  Ours: the bench's synthetic step (real products and attention, no norms, rotation or activation),
one tile a layer in the window, the host waiting for each step too.  GB/s is the cache's bytes over the
step; the offloaded cache also copies each layer back, which is not counted.
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

try:
    import torch
except ImportError as missing:
    if not {"-h", "--help"} & set(sys.argv):
        sys.exit(f"compare_transformers.py: needs PyTorch with CUDA, pip install torch transformers ({missing})")

GIB = 1 << 30
LAYERS, KV_HEADS, DIM = 48, 8, 128
CELL_BYTES = LAYERS * KV_HEADS * DIM * 4
WARM_STEPS = 2


def make_model():
    from transformers import AutoModelForCausalLM, Qwen2Config
    config = Qwen2Config(vocab_size=152064, hidden_size=5120, intermediate_size=13824, num_hidden_layers=LAYERS,
                         num_attention_heads=40, num_key_value_heads=KV_HEADS, max_position_embeddings=1 << 17,
                         tie_word_embeddings=False)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float16, attn_implementation="sdpa").eval()


def fill(cache, cells):
    for layer in range(LAYERS):
        k, v = (torch.randn(1, KV_HEADS, cells, DIM, device="cuda", dtype=torch.float16) for _ in range(2))
        cache.update(k, v, layer)
        torch.cuda.synchronize()


def step(model, cache, token):
    t = time.perf_counter()
    logits = model(input_ids=token, past_key_values=cache, use_cache=True).logits
    token = logits[:, -1:].argmax(-1)
    torch.cuda.synchronize()
    return token, time.perf_counter() - t


def theirs(model, cells, steps):
    from transformers import DynamicCache
    cache = DynamicCache(config=model.config, offloading=True)
    fill(cache, cells)
    token, times = torch.zeros(1, 1, dtype=torch.long, device="cuda"), []
    for _ in range(WARM_STEPS + steps):
        token, t = step(model, cache, token)
        times.append(t)
    return sorted(times[WARM_STEPS:])


def ours(bench, gib, steps):
    """The ring's row at the largest tail."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "ours.json")
        tail = gib - 2 * 256 * CELL_BYTES / GIB  # one tile in the window, one active
        subprocess.run([bench, "cliff", "--executor", "cuda", "--shape", "qwen14b", "--points", "1000", "--tail-gib",
                        f"{tail:.4f}", "--window-tiles", "1", "--no-op-level", "--wait", "--steps", str(steps),
                        "--json", file], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(file, encoding="utf-8") as f:
            return json.load(f)


def early(p, o):
    """What can be said before anything is measured; the sizes, and the file for the figures."""
    try:
        sizes = [float(x) for x in o.gib.split(",")]
    except ValueError:
        p.error(f"--gib {o.gib}: give numbers with commas between")
    if min(sizes) <= 0 or o.steps < 1:
        p.error("--gib has to be above 0, --steps at least 1")
    if o.bench and not shutil.which(o.bench):
        p.error(f"--bench {o.bench}: there is no such program")
    try:
        return sizes, open(o.json, "w", encoding="utf-8") if o.json else None
    except OSError as e:
        sys.exit(f"compare_transformers.py: '{o.json}' can't be written: {e.strerror}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bench", help="rollkv-bench of a build with CUDA")
    p.add_argument("--gib", default="6,12", help="cache sizes")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--json")
    p.add_argument("--commit", help="to be written into the file (that of the bench's build)")
    o = p.parse_args()
    sizes, out = early(p, o)
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    import transformers
    rows = {g: {"cache_bytes": int(g * GIB)} for g in sizes}
    result = {"bench": "compare_transformers", "commit": o.commit,
              "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "device": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__, "sizes": list(rows.values())}
    print(f"{result['device']}, torch {result['torch']}, transformers {result['transformers']}")
    for g in sizes if o.bench else []:
        curve = ours(o.bench, g, o.steps)
        row = curve["rows"][-1]
        result["commit"] = result["commit"] or curve.get("commit")
        rows[g].update(link_bytes_per_s=curve["link_bytes_per_s"], ours=row)
    with torch.inference_mode():
        model = make_model()
        for g in sizes:
            times = theirs(model, int(g * GIB) // CELL_BYTES, o.steps)
            rows[g].update(offloaded_ms=statistics.median(times) * 1e3, offloaded_least_ms=times[0] * 1e3,
                           offloaded_most_ms=times[-1] * 1e3)
    print(f"{'GiB':>5} {'offloaded ms':>13} {'least':>8} {'most':>8} {'GB/s':>6} {'ours ms':>9} {'GB/s':>6} "
          f"{'link ms':>8} {'faster':>7}")
    for g, r in rows.items():
        text = (f"{g:5.1f} {r['offloaded_ms']:13.1f} {r['offloaded_least_ms']:8.1f} {r['offloaded_most_ms']:8.1f} "
                f"{r['cache_bytes'] / r['offloaded_ms'] * 1e-6:6.1f}")
        if "ours" in r:
            ms = r["ours"]["ring"]["step_ns"] * 1e-6
            r["ours_ms"], r["link_ms"] = ms, r["cache_bytes"] / r["link_bytes_per_s"] * 1e3
            text += (f" {ms:9.1f} {r['cache_bytes'] / ms * 1e-6:6.1f} {r['link_ms']:8.1f} "
                     f"{r['offloaded_ms'] / ms:7.2f}")
        print(text)
    result["commit"] = result["commit"] or "unknown"
    if out:
        with out:
            json.dump(result, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
