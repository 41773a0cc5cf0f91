#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Gate (c): facts at many depths of a long context, asked for at its end.

The text is lowercase filler with records in between, two capitals and two digits (the language of
train_recall.py). At its end come the capitals of some records again; the model must give their digits.
The end goes in token by token, so decode reads the whole cache for each. Run for several lengths and
storage types, with all of the cache on the device and with most of it in the tail:

  - what is found, by depth, must reach a bound;
  - spilled, all logits must have the same bits as resident;
  - the same text without the facts must fail: so the gate can tell.
"""
import argparse
import filecmp
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import logit_dump

CAPITALS, LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
KEY, VALUE = 2, 2
RECORD = KEY + VALUE
DEPTHS = 16
GAP = 3  # filler between the questions


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True, help="rollkv-generate")
    p.add_argument("--model", required=True, help="GGUF file written by train_recall.py")
    p.add_argument("--report", help="where to write the figures as JSON")
    p.add_argument("--lengths", default="4096,16000")
    p.add_argument("--types", default="f16,q8_0,q4_0")
    p.add_argument("--device", default="auto")
    p.add_argument("--resident-cells", default="512", help="per layer, in the spilled runs")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--bounds", default="f16=16,q8_0=16,q4_0=12", help="least facts found, of 16")
    p.add_argument("--most-control", type=int, default=3, help="most facts found without facts, of 16")
    p.add_argument("--generate-arguments", default="", help="more of them, for rollkv-generate")
    return p.parse_args()


class Text:
    """The text of `length` bytes, its facts by depth, and the positions that ask for their digits."""

    def __init__(self, length, seed):
        rng = random.Random(seed)
        ask_bytes = DEPTHS * (RECORD + GAP)
        body = length - ask_bytes
        self.bytes = bytearray(self.filler(rng, length))
        keys = self.distinct_keys(rng, DEPTHS + length // 200)
        self.depths = [(i + 0.5) / DEPTHS for i in range(DEPTHS)]
        self.facts = [keys.pop() + f"{rng.randrange(100):02}" for _ in range(DEPTHS)]
        self.begins = [int(d * (body - RECORD)) for d in self.depths]
        for begin, fact in zip(self.begins, self.facts):
            self.put(begin, fact)
        self.add_others(rng, keys, body)
        self.questions = {}  # fact number -> position of the question
        order = rng.sample(range(DEPTHS), DEPTHS)
        for i, number in enumerate(order):
            self.questions[number] = body + i * (RECORD + GAP) + GAP
            self.put(self.questions[number], self.facts[number])
        self.ask_bytes = ask_bytes

    @staticmethod
    def filler(rng, length):
        return bytes(ord(" " if rng.random() < 1 / 6 else rng.choice(LOWER)) for _ in range(length))

    @staticmethod
    def distinct_keys(rng, count):
        numbers = rng.sample(range(26**KEY), count)
        return ["".join(CAPITALS[n // 26**i % 26] for i in range(KEY)) for n in numbers]

    def put(self, at, record):
        self.bytes[at:at + len(record)] = record.encode()

    def add_others(self, rng, keys, body):
        """Records that nobody asks for, one in 200 bytes, apart from the facts."""
        for key in keys:
            at = rng.randrange(body - RECORD)
            around = self.bytes[max(0, at - 1):at + RECORD + 1]
            if not any(65 <= b <= 90 or 48 <= b <= 57 for b in around):
                self.put(at, key + f"{rng.randrange(100):02}")

    def without_facts(self, seed):
        rng, text = random.Random(seed), bytearray(self.bytes)
        for begin in self.begins:
            text[begin:begin + RECORD] = self.filler(rng, RECORD)
        return text


def run(args, folder, text, ask_bytes, kind, spilled):
    """The dump's path, and the megabytes that were streamed."""
    prompt, dump = os.path.join(folder, "prompt"), os.path.join(folder, f"dump-{spilled}")
    with open(prompt, "wb") as f:
        f.write(text)
    mode = ["--mode", "ring", "--resident-cells", args.resident_cells] if spilled else ["--mode", "resident"]
    command = [args.program, "--model", args.model, "--prompt-file", prompt, "--tokens", "1", "--device",
               args.device, "--kv-type", kind, "--decode-last", str(ask_bytes), "--dump-logits", dump,
               *mode, *args.generate_arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    streamed = re.search(r"streamed ([\d.]+) MB", done.stderr)
    return dump, float(streamed.group(1)) if streamed else 0.0


def found(text, dump):
    """For each fact, by depth: whether each of its digits was the likeliest."""
    _, tokens, logits = logit_dump.read(dump)
    results = []
    for number in range(DEPTHS):
        at = text.questions[number] + KEY
        assert bytes(tokens[at - KEY:at + VALUE].astype("uint8")).decode() == text.facts[number]
        results.append(all(logits[at - 1 + i].argmax() == tokens[at + i] for i in range(VALUE)))
    return results


def one_case(args, folder, length, kind, least):
    text = Text(length, args.seed + length)
    resident, _ = run(args, folder, text.bytes, text.ask_bytes, kind, False)
    spilled, streamed_mb = run(args, folder, text.bytes, text.ask_bytes, kind, True)
    here, there = found(text, resident), found(text, spilled)
    same = filecmp.cmp(resident, spilled, shallow=False)
    passed = sum(here) >= least and sum(there) >= least and same and streamed_mb > 0
    marks = "".join("x" if hit else "." for hit in there)
    print(f"{length:>7} {kind:>6} {sum(here):>9} {sum(there):>8}  [{marks}] {streamed_mb:>10.1f}  "
          f"{'same bits' if same else 'DIFFERENT'}  {'passed' if passed else 'FAILED'}", flush=True)
    return {"length": length, "type": kind, "found_resident": sum(here), "found_spilled": sum(there),
            "by_depth_spilled": there, "of": DEPTHS, "least": least, "streamed_mb": streamed_mb,
            "same_bits": same, "passed": passed}


def control(args, folder, length):
    text = Text(length, args.seed + length)
    dump, _ = run(args, folder, text.without_facts(args.seed), text.ask_bytes, "f16", True)
    count = sum(found(text, dump))
    passed = count <= args.most_control
    print(f"{length:>7}    f16 without the facts: {count} of {DEPTHS}, at most {args.most_control} may be "
          f"guessed: {'passed' if passed else 'FAILED'}", flush=True)
    return {"length": length, "control": True, "found": count, "of": DEPTHS, "passed": passed}


def main():
    args = arguments()
    bounds = {k: int(v) for k, v in (b.split("=") for b in args.bounds.split(","))}
    results = []
    print(f"seed {args.seed}; {DEPTHS} facts, found in all digits; depths from the start (left) to the end")
    print(f"{'length':>7} {'type':>6} {'resident':>9} {'spilled':>8}  [{'by depth':<16}] {'streamed MB':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for length in (int(n) for n in args.lengths.split(",")):
            results += [one_case(args, folder, length, kind, bounds.get(kind, DEPTHS))
                        for kind in args.types.split(",")]
            results.append(control(args, folder, length))
    failed = sum(not r["passed"] for r in results)
    if args.report:
        with open(args.report, "w") as f:
            json.dump({"seed": args.seed, "results": results}, f, indent=1)
    print("gate (c):", f"FAILED, {failed} of {len(results)} cases" if failed else f"passed, {len(results)} cases")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
