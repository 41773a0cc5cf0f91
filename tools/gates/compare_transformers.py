#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Gate (a): the example engine's logits against an independent engine on the same weights.

Reads dumps of `rollkv-generate --dump-logits`, gives their tokens to transformers, which loads the
same GGUF file, and compares the two distributions at every position:

  KL         of the engine's distribution from transformers' (f32), in nats
  top-1      how often both take the same token
  top-10     how many of the ten likeliest tokens are the same, on average
  perplexity of the text under each, which a mistake common to all positions would move

As a yardstick transformers runs once more in f16, as the engine's weights and activations are: the
engine has to be about as near to f32 as that. Exit status 1 where a bound is broken.
Needs torch, transformers and gguf.
"""
import argparse
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
import numpy
import torch
import transformers

import logit_dump

CHUNK = 256
transformers.utils.logging.disable_progress_bar()


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="the GGUF file")
    p.add_argument("--dump", required=True, action="append", help="NAME=FILE, may be given again")
    p.add_argument("--also", default=[], action="append", help="likewise, but held to no bound")
    p.add_argument("--report", help="where to write the figures as JSON")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--no-yardstick", action="store_true")
    p.add_argument("--least-positions", type=int, default=4000)
    p.add_argument("--most-mean-kl", type=float, default=1e-3)
    p.add_argument("--least-top1", type=float, default=0.98)
    p.add_argument("--least-top10", type=float, default=9.7)
    return p.parse_args()


@torch.inference_mode()
def reference_logits(path, tokens, dtype, device):
    """[n][vocabulary], f32, on the device."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.dirname(os.path.abspath(path)), gguf_file=os.path.basename(path), dtype=dtype)
    model = model.to(device).eval()
    ids = torch.from_numpy(tokens.astype(numpy.int64)).to(device)
    hidden = model.model(ids[None]).last_hidden_state[0]
    pieces = [model.lm_head(hidden[i:i + CHUNK]).float() for i in range(0, len(ids), CHUNK)]
    return torch.cat(pieces)


def compare(reference, logits, tokens):
    """Figures of `logits`, an iterable over pieces of CHUNK rows, against the reference."""
    kl, top1, top10, nll, nll_reference, largest = [], [], [], [], [], 0.0
    following = torch.from_numpy(tokens.astype(numpy.int64)).to(reference.device)
    for at in range(0, len(tokens), CHUNK):
        r = reference[at:at + CHUNK]
        x = logits(at, at + len(r)).to(r.device)
        log_r, log_x = r.double().log_softmax(1), x.double().log_softmax(1)
        kl.append((log_r.exp() * (log_r - log_x)).sum(1))
        ten_r, ten_x = r.topk(10).indices, x.topk(10).indices
        top1.append(ten_r[:, 0] == ten_x[:, 0])
        top10.append((ten_r[:, :, None] == ten_x[:, None, :]).any(2).sum(1))
        largest = max(largest, (r - x).abs().max().item())
        target = following[at + 1:at + 1 + len(r)]
        rows = torch.arange(len(target), device=r.device)
        nll.append(-log_x[rows, target])
        nll_reference.append(-log_r[rows, target])
    kl = torch.cat(kl)
    return {
        "positions": len(kl),
        "mean_kl": kl.mean().item(),
        "p99_kl": kl.quantile(0.99).item(),
        "max_kl": kl.max().item(),
        "top1_same": torch.cat(top1).double().mean().item(),
        "top10_common": torch.cat(top10).double().mean().item(),
        "perplexity": torch.cat(nll).mean().exp().item(),
        "perplexity_transformers_f32": torch.cat(nll_reference).mean().exp().item(),
        "largest_logit_difference": largest,
    }


def show(name, f):
    print(f"{name:<24} {f['positions']:>9} {f['mean_kl']:>10.2e} {f['p99_kl']:>10.2e} {f['max_kl']:>10.2e} "
          f"{100 * f['top1_same']:>8.2f} {f['top10_common']:>7.3f} {f['perplexity']:>10.4f} "
          f"{f['perplexity_transformers_f32']:>10.4f} {f['largest_logit_difference']:>9.4f}")


def broken_bounds(name, f, args):
    bounds = [
        (f["positions"] >= args.least_positions, f"{f['positions']} positions, {args.least_positions} are asked"),
        (f["mean_kl"] <= args.most_mean_kl, f"mean KL {f['mean_kl']:.2e} is above {args.most_mean_kl:.0e}"),
        (f["top1_same"] >= args.least_top1, f"top-1 {f['top1_same']:.4f} is below {args.least_top1}"),
        (f["top10_common"] >= args.least_top10, f"top-10 {f['top10_common']:.3f} is below {args.least_top10}"),
    ]
    return [f"{name}: {text}" for holds, text in bounds if not holds]


def main():
    args = arguments()
    figures, broken, reference, tokens = {}, [], None, None
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, on {args.device}")
    print(f"{'':<24} {'positions':>9} {'mean KL':>10} {'p99 KL':>10} {'max KL':>10} {'top-1 %':>8} "
          f"{'top-10':>7} {'perplexity':>10} {'its own':>10} {'logit +-':>9}")
    for argument in args.dump + args.also:
        name, path = argument.split("=", 1)
        positions, these, logits = logit_dump.read(path)
        if not (positions == numpy.arange(len(positions))).all():
            raise SystemExit(f"{path}: positions are not 0 to n - 1")
        if reference is None or not numpy.array_equal(these, tokens):
            tokens = these
            reference = reference_logits(args.model, tokens, torch.float32, args.device)
        figures[name] = compare(reference, lambda a, b: torch.from_numpy(numpy.array(logits[a:b])), tokens)
        show(name, figures[name])
        if argument not in args.also:
            broken += broken_bounds(name, figures[name], args)
    if not args.no_yardstick:
        half = reference_logits(args.model, tokens, torch.float16, args.device)
        figures["transformers f16"] = compare(reference, lambda a, b: half[a:b], tokens)
        show("transformers f16", figures["transformers f16"])
    if args.report:
        with open(args.report, "w") as f:
            json.dump({"bounds_broken": broken, "figures": figures}, f, indent=1)
    for text in broken:
        print(text)
    print("gate (a):", "FAILED" if broken else "passed")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
