# SPDX-License-Identifier: MIT
"""Reads what `rollkv-generate --dump-logits` wrote (examples/generate/dump.h has the layout)."""
import numpy


def read(path):
    """Positions [n], tokens [n] and logits [n][vocabulary], the last one mapped from the file."""
    head = open(path, "rb").read(16)
    if head[:8] != b"RKVLOGIT":
        raise SystemExit(f"{path} is no dump of logits")
    version, vocabulary = numpy.frombuffer(head[8:], "<u4")
    if version != 1:
        raise SystemExit(f"{path} has version {version}; 1 is known")
    row = numpy.dtype([("position", "<i4"), ("token", "<i4"), ("logits", "<f4", (int(vocabulary),))])
    rows = numpy.memmap(path, row, mode="r", offset=16)
    return numpy.array(rows["position"]), numpy.array(rows["token"]), rows["logits"]
