#!/usr/bin/env python3
"""Writes the *.json files beside it: quantised blocks and what gguf-py's numpy code decodes them to.

Needs the PyPI packages gguf and numpy. Scales are random but finite; codes are random bytes.
Values are stored as the bit patterns of f32, so that a comparison can be exact.
"""
import json
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

# Type, bytes in a block, byte offsets of its f16 fields.
TYPES = [
    (T.Q4_0, 18, [0]),
    (T.Q4_1, 20, [0, 2]),
    (T.Q8_0, 34, [0]),
    (T.Q4_K, 144, [0, 2]),
    (T.Q6_K, 210, [208]),
    (T.BF16, 2, None),
    (T.F16, 2, [0]),
]
rng = np.random.default_rng(20240607)
for kind, width, halves in TYPES:
    blocks = 24 if width == 2 else 3
    raw = rng.integers(0, 256, size=(blocks, width), dtype=np.uint8)
    for at in halves or []:
        scale = (rng.standard_normal(blocks) * 0.05).astype(np.float16)
        raw[:, at : at + 2] = scale.reshape(blocks, 1).view(np.uint8)
    if kind == T.BF16:
        raw = (rng.standard_normal(blocks).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
        raw = raw.reshape(blocks, 1).view(np.uint8)
    flat = raw.reshape(-1)
    values = flat.view(np.float16).astype(np.float32) if kind == T.F16 else quants.dequantize(flat, kind)
    out = {
        "type": kind.name,
        "bytes": flat.tobytes().hex(),
        "f32_bits": np.asarray(values, dtype=np.float32).reshape(-1).view(np.uint32).tolist(),
    }
    path = pathlib.Path(__file__).with_name(f"{kind.name.lower()}.json")
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(path.name, len(out["f32_bits"]))
