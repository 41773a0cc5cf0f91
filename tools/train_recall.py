#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small llama model that can do one thing: recall, over up to 16,384 positions.

Its texts are lowercase filler with records in between, two capitals and two digits:

    ...qv wcabl XK42 tmo rr QP07 ujc...

Wherever two capitals come again, the same two digits follow, however far back the first time was.
So the needle test (gates/needle.py) can ask for a fact at any depth of a long context, and fails when
the cache loses or garbles it. A token is a byte. The GGUF file holds f16 weights, and a tokenizer with
one merge, of two zero bytes, since readers want some.

Lengths grow from phase to phase: a phase ends when the model has learned its length, or its share of
the time is over. Needs torch and gguf, and minutes on a large GPU.
"""
import argparse
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

KEY, VALUE = 2, 2
RECORD = KEY + VALUE
N_KEYS = 26**KEY
BYTES = 256
VOCABULARY = BYTES + 1
QUERIES = 16  # at the end of each text, of records before them
ROPE_BASE, EPSILON = 1e6, 1e-5


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="the GGUF file to write")
    p.add_argument("--minutes", type=float, default=4.0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--feed-forward", type=int, default=512)
    p.add_argument("--positions", type=int, default=16384)
    p.add_argument("--lengths", default="256,1024,4096,16384")
    p.add_argument("--shares", default="0.30,0.15,0.20,0.35", help="of the time, for each length")
    p.add_argument("--step-tokens", type=int, default=131072)
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--least-recall", type=float, default=0.97, help="below it, exit status 1")
    return p.parse_args()


# ---------------------------------------------------------------------------------------------- texts


def filler(shape, device):
    """Lowercase letters, a space in six."""
    letters = torch.randint(ord("a"), ord("z") + 1, shape, device=device)
    return torch.where(torch.rand(shape, device=device) < 1 / 6, ord(" "), letters)


def spell_keys(keys):
    return torch.stack([ord("A") + keys // 26**(KEY - 1 - i) % 26 for i in range(KEY)], -1)


def spell_values(values):
    return torch.stack([ord("0") + values // 10**(VALUE - 1 - i) % 10 for i in range(VALUE)], -1)


KEY_STEPS = [n for n in range(1, N_KEYS) if math.gcd(n, N_KEYS) == 1]


def distinct_keys(rows, slots, device):
    """Each row's own keys: steps of a size that meets every key before it meets one twice."""
    sizes = torch.tensor(KEY_STEPS, device=device)
    size = sizes[torch.randint(len(sizes), (rows, 1), device=device)]
    begin = torch.randint(N_KEYS, (rows, 1), device=device)
    return (begin + size * torch.arange(slots, device=device)) % N_KEYS


def pick_records(rows, slots, device):
    """Which slots of a row hold a record, and which of the row's own records it is. Rows differ
    widely in how many they hold; a row's last slots ask again for what came before."""
    least = min(1.0, 8 / slots)
    density = torch.exp(torch.rand(rows, 1, device=device) * math.log(least))
    used = torch.rand(rows, slots, device=device) < density
    count = used.sum(1, keepdim=True)
    own = 2 + (count * (0.2 + 0.6 * torch.rand(rows, 1, device=device))).long()
    own = own.clamp(max=min(slots, N_KEYS))
    which = (torch.rand(rows, slots, device=device) * own).long()
    asks = min(QUERIES, slots // 4)
    used[:, -asks:] = True
    return used, which


def texts(rows, length, device):
    """tokens [rows][length], and targets: -100 but where a value can be known."""
    cell = RECORD + int(torch.randint(1, 9, ()).item())
    slots = length // cell
    used, which = pick_records(rows, slots, device)
    keys = distinct_keys(rows, slots, device).gather(1, which)
    values = torch.randint(0, 10**VALUE, (rows, slots), device=device).gather(1, which)
    at = torch.where(used, torch.arange(slots, device=device), slots)
    first = torch.full((rows, slots), slots, device=device).scatter_reduce(1, which, at, "amin")
    known = used & (torch.arange(slots, device=device) > first.gather(1, which))

    tokens = filler((rows, length), device)
    cells = tokens[:, :slots * cell].view(rows, slots, cell)
    records = torch.cat([spell_keys(keys), spell_values(values)], -1)
    cells[..., 1:1 + RECORD] = torch.where(used[..., None], records, cells[..., 1:1 + RECORD])
    targets = torch.full_like(tokens, -100)
    wanted = targets[:, :slots * cell].view(rows, slots, cell)
    wanted[..., KEY:KEY + VALUE] = torch.where(known[..., None], records[..., KEY:], -100)
    return tokens, targets


# ---------------------------------------------------------------------------------------------- model


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), EPSILON).to(x.dtype)


def rotate(x, cos, sin):
    """Pairs (0, 1), (2, 3), ... as in GGUF files of this architecture. x: [..., positions, dim]"""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv_heads, self.dim = a.heads, a.kv_heads, a.width // a.heads
        self.attn_norm, self.ffn_norm = Norm(a.width), Norm(a.width)
        self.attn_q = nn.Linear(a.width, a.heads * self.dim, bias=False)
        self.attn_k = nn.Linear(a.width, a.kv_heads * self.dim, bias=False)
        self.attn_v = nn.Linear(a.width, a.kv_heads * self.dim, bias=False)
        self.attn_output = nn.Linear(a.heads * self.dim, a.width, bias=False)
        self.ffn_gate = nn.Linear(a.width, a.feed_forward, bias=False)
        self.ffn_up = nn.Linear(a.width, a.feed_forward, bias=False)
        self.ffn_down = nn.Linear(a.feed_forward, a.width, bias=False)

    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, self.dim).transpose(1, 2)

    def forward(self, x, cos, sin):
        n = self.attn_norm(x)
        q = rotate(self.split(self.attn_q(n), self.heads), cos, sin)
        k = rotate(self.split(self.attn_k(n), self.kv_heads), cos, sin)
        v = self.split(self.attn_v(n), self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(o.transpose(1, 2).flatten(2))
        n = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(n)) * self.ffn_up(n))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.token_embd = nn.Embedding(VOCABULARY, a.width)
        self.blk = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.output_norm = Norm(a.width)
        self.output = nn.Linear(a.width, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=1.0 if "embd" in name else p.shape[1]**-0.5)
        dim = a.width // a.heads
        steps = ROPE_BASE**(-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        turns = torch.arange(a.positions, dtype=torch.float64)[:, None] * steps
        self.register_buffer("cos", turns.cos().float(), persistent=False)
        self.register_buffer("sin", turns.sin().float(), persistent=False)

    def forward(self, tokens, wanted):
        """Logits at the positions that `wanted` selects."""
        x = self.token_embd(tokens)
        cos, sin = self.cos[:tokens.shape[1]], self.sin[:tokens.shape[1]]
        for layer in self.blk:
            x = layer(x, cos, sin)
        return self.output(self.output_norm(x[wanted]))


def run(model, rows, length, device):
    """Loss, and the share of values' digits that come out right."""
    tokens, targets = texts(rows, length, device)
    wanted = targets >= 0
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(tokens, wanted).float()
    loss = F.cross_entropy(logits, targets[wanted])
    return loss, (logits.argmax(1) == targets[wanted]).float().mean()


# ------------------------------------------------------------------------------------------- training


class Trainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.model = Model(args).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.rate, betas=(0.9, 0.98),
                                           weight_decay=0.01, fused=device.type == "cuda")
        self.started, self.step = time.monotonic(), 0

    def seconds(self):
        return time.monotonic() - self.started

    def advance(self, length, rate):
        rows = max(1, self.args.step_tokens // length)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * min(1.0, (self.step + 1) / 200)
        loss, right = run(self.model, rows, length, self.device)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss, right

    def phase(self, length, end_seconds, is_last):
        """The last one's rate falls to a tenth, and it uses its time up; others end once they can."""
        begin, rate, shown = self.seconds(), self.args.rate, self.seconds()
        while True:
            loss, right = self.advance(length, rate)
            if self.step % 20 != 0:
                continue
            now = self.seconds()
            if is_last:
                rate = self.args.rate * max(0.1, 1.0 - (now - begin) / max(1e-9, end_seconds - begin))
            recall = right.item()
            if now - shown > 5:
                shown = now
                print(f"{now:6.0f} s  step {self.step:6}  length {length:6}  loss {loss.item():.4f}  "
                      f"recall {recall:.4f}", flush=True)
            if now > end_seconds or (not is_last and recall > 0.995):
                return

    def train(self):
        lengths = [int(n) for n in self.args.lengths.split(",")]
        shares = [float(n) for n in self.args.shares.split(",")]
        total = 0.0
        for i, (length, share) in enumerate(zip(lengths, shares)):
            total += share
            self.phase(length, 60 * self.args.minutes * total, i + 1 == len(lengths))

    @torch.no_grad()
    def recall(self, length):
        results = [run(self.model, 4, length, self.device)[1] for _ in range(8)]
        return torch.stack(results).mean().item()


# --------------------------------------------------------------------------------------------- file


def byte_letters():
    """How byte-level BPE writes bytes in its tokens: visible ones as they are, others from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in visible else chr(next(hidden)) for b in range(256)]


def write(model, args):
    import gguf

    w = gguf.GGUFWriter(args.out, "llama")
    w.add_name("rollkv recall")
    w.add_block_count(args.layers)
    w.add_context_length(args.positions)
    w.add_embedding_length(args.width)
    w.add_feed_forward_length(args.feed_forward)
    w.add_head_count(args.heads)
    w.add_head_count_kv(args.kv_heads)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_layer_norm_rms_eps(EPSILON)
    w.add_tokenizer_model("gpt2")
    letters = byte_letters()
    w.add_token_list(letters + [letters[0] * 2])
    w.add_token_types([gguf.TokenType.NORMAL] * VOCABULARY)
    w.add_token_merges([letters[0] + " " + letters[0]])
    for name, tensor in model.state_dict().items():
        kind = torch.float32 if tensor.dim() == 1 else torch.float16
        w.add_tensor(name, tensor.detach().to("cpu", kind).numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(args, device)
    count = sum(p.numel() for p in trainer.model.parameters())
    print(f"seed {args.seed}, {count} parameters, on {device}", flush=True)
    trainer.train()
    write(trainer.model, args)
    recall = trainer.recall(args.positions)
    print(f"{trainer.step} steps in {trainer.seconds():.0f} s; recall over {args.positions} positions: "
          f"{recall:.4f}; wrote {args.out}")
    sys.exit(0 if recall >= args.least_recall else 1)


if __name__ == "__main__":
    main()
