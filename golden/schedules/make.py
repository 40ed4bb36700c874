#!/usr/bin/env python3
"""Makes interference_seed_7.jsonl without any of the project's code.

ChaCha8, the gamma transform, the text source and the canonical form are written again here from
their definitions, so that the committed schedule is evidence and not an echo. Offsets go through
the platform's logarithm and may differ from the project's own in the last nanosecond on an
unusual one.

    python3 golden/schedules/make.py        # rewrites the files beside it
"""
import hashlib
import json
import math
import pathlib
import struct

MASK = (1 << 64) - 1


def chacha8(key):
    """The ChaCha8 keystream of a 32-byte key, 64-bit counter, stream 0, as 64-bit words."""
    constants = struct.unpack("<4I", b"expand 32-byte k")
    counter = 0
    while True:
        start = [*constants, *struct.unpack("<8I", key), counter & 0xFFFFFFFF, counter >> 32, 0, 0]
        x = list(start)

        def quarter(a, b, c, d):
            for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[p] = (x[p] + x[q]) & 0xFFFFFFFF
                v = x[r] ^ x[p]
                x[r] = ((v << turn) | (v >> (32 - turn))) & 0xFFFFFFFF

        for _ in range(4):
            for i in range(4):
                quarter(i, 4 + i, 8 + i, 12 + i)
            for i in range(4):
                quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
        words = [(a + b) & 0xFFFFFFFF for a, b in zip(x, start)]
        for low, high in zip(words[::2], words[1::2]):
            yield low | high << 32
        counter += 1


class Stream:
    def __init__(self, seed, label):
        key = struct.pack("<Q", seed)
        for basis in (1, 2, 3):
            h = 0xCBF29CE484222325 ^ (basis * 0x9E3779B97F4A7C15 & MASK)
            for byte in label.encode():
                h = ((h ^ byte) * 0x100000001B3) & MASK
            key += struct.pack("<Q", h)
        self.words, self.spare = chacha8(key), None

    def below(self, n):
        zone = MASK - (MASK - n + 1) % n
        while (x := next(self.words)) > zone:
            pass
        return x % n

    def unit(self):
        return (next(self.words) >> 11) / (1 << 53)

    def normal(self):
        if self.spare is not None:
            z, self.spare = self.spare, None
            return z
        radius = math.sqrt(-2.0 * math.log(1.0 - self.unit()))
        angle = 2.0 * math.pi * self.unit()
        self.spare = radius * math.sin(angle)
        return radius * math.cos(angle)

    def gamma(self, shape, scale):
        """Marsaglia and Tsang, for shapes of at least 1."""
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if 1.0 + c * x <= 0.0:
                continue
            u = 1.0 - self.unit()
            if math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v * scale


class Text:
    """Prompts of an 8-token nonce (4 digits of the prompt's number, 4 of the run's) and a slice."""

    def __init__(self, tokens, run_nonce):
        self.tokens, self.alphabet = tokens, sorted(set(tokens))
        self.run_nonce, self.made = run_nonce, 0

    def prompt(self, length, stream):
        base, nonce = len(self.alphabet), []
        for value in (self.made, self.run_nonce):
            for _ in range(4):
                nonce.append(self.alphabet[value % base])
                value //= base
        self.made += 1
        start = stream.below(len(self.tokens))
        count = len(self.tokens)
        return nonce + [self.tokens[(start + i) % count] for i in range(length - 8)]


def body(kind, prompt, max_tokens):
    digest = hashlib.sha256(struct.pack(f"<{len(prompt)}I", *prompt)).hexdigest()
    return {"class": kind, "prompt_tokens": len(prompt), "prompt_sha256": digest,
            "max_tokens": max_tokens, "cache_salt": None}


def interference(seed):
    second = 10**9
    text = Text([(i * 7919 + i * i) % 2**32 % 4093 for i in range(20_000)], 1)
    horizon, drain, warm_up = 12 * second, 20 * second, second
    stream = Stream(seed, "interference background prompts")
    background = [body("background", text.prompt(32, stream), 128) for _ in range(4)]
    gaps = Stream(seed, "interference arrivals")
    offsets, at = [], 0.0
    while True:
        at += gaps.gamma(4.0, 1.0 / ((1.0 / 1.5) * 4.0))
        if round(at * 1e9) >= horizon - warm_up:
            break
        offsets.append(warm_up + round(at * 1e9))
    lengths = Stream(seed, "interference prompt lengths")
    prompts = Stream(seed, "interference long prompts")
    long = []
    for index, offset in enumerate(offsets):
        length = 1024 + lengths.below(1920 - 1024 + 1)
        long.append({"id": 4 + index, "offset_ns": offset,
                     **body("long_prompt", text.prompt(length, prompts), 4)})
    lines = [{"prefillbench_schedule": 1, "horizon_ns": horizon, "drain_ns": drain,
              "open": len(long), "closed": 1}, *long, {"streams": 2, "requests": 4}]
    lines += [{"id": index, **entry} for index, entry in enumerate(background)]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


here = pathlib.Path(__file__).parent
name = "interference_seed_7.jsonl"
data = interference(7).encode()
(here / name).write_bytes(data)
(here / "sha256sums.txt").write_text(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
