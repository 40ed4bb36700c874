#!/usr/bin/env python3
"""Schedules worked out apart from the code under test, from the published algorithms alone.

    python3 workloads/tests/golden/make_golden.py

writes ramp.json and shared_prefix.json beside itself. No package is needed. The random stream is
ChaCha with 8 rounds (Bernstein 2008; 64-bit block counter, no nonce) under the key that
harness/contract/src/rng.rs documents; arrivals on a ramp are found by bisection on the integral of
the rate, not by the closed form.
"""

import json
import math
import pathlib

MASK = (1 << 64) - 1


def fnv1a_64(basis, data):
    h = 0xCBF29CE484222325 ^ ((basis * 0x9E3779B97F4A7C15) & MASK)
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def rotl(x, n):
    return ((x << n) | (x >> (32 - n))) & 0xFFFFFFFF


def quarter(s, a, b, c, d):
    for x, y, z, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[x] = (s[x] + s[y]) & 0xFFFFFFFF
        s[z] = rotl(s[z] ^ s[x], n)


def chacha8_block(key, counter):
    words = [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *words]
    start += [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    s = list(start)
    for _ in range(4):
        for a, b, c, d in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            quarter(s, a, b, c, d)
        for a, b, c, d in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter(s, a, b, c, d)
    return [(x + y) & 0xFFFFFFFF for x, y in zip(s, start)]


class Stream:
    def __init__(self, seed, label):
        lanes = [fnv1a_64(i + 1, label.encode()) for i in range(3)]
        self.key = b"".join(x.to_bytes(8, "little") for x in [seed, *lanes])
        self.counter, self.words = 0, []

    def u64(self):
        if not self.words:
            self.words = chacha8_block(self.key, self.counter)
            self.counter += 1
        low, high = self.words.pop(0), self.words.pop(0)
        return low | high << 32

    def unit(self):
        return (self.u64() >> 11) / (1 << 53)

    def below(self, n):
        zone = MASK - (MASK - n + 1) % n
        while True:
            x = self.u64()
            if x <= zone:
                return x % n

    def shuffle(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]


def ramp(seed, legs):
    """Poisson arrivals at a rate that changes: (from, to, seconds) a leg."""
    end = sum(leg[2] for leg in legs)

    def due_by(t):
        area = 0.0
        for low, high, seconds in legs:
            part = min(max(t, 0.0), seconds)
            area += low * part + (high - low) / seconds * part * part / 2
            t -= seconds
        return area

    stream, unit, offsets = Stream(seed, "load/arrivals"), 0.0, []
    while True:
        unit -= math.log(1.0 - stream.unit())
        if unit > due_by(end):
            return offsets
        low, high = 0.0, end
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if due_by(middle) < unit else (low, middle)
        offsets.append(round(high * 1e9))


def shared_prefix(seed, groups, per_group, system, question, output, ratio, block):
    """SGLang's generated-shared-prefix: lengths, order, and what a cold cache finds in order."""
    stream = Stream(seed, "shared-prefix/lengths")

    def lengths(full, count):
        low = max(math.floor(full * ratio), 1)
        return [low + stream.below(full - low + 1) for _ in range(count)]

    systems = lengths(system, groups)
    questions = lengths(question, groups * per_group)
    outputs = lengths(output, groups * per_group)
    order = list(range(groups * per_group))
    Stream(seed, "shared-prefix/order").shuffle(order)
    seen, rows = set(), []
    for prompt in order:
        group = prompt // per_group
        tokens = systems[group] + questions[prompt]
        # Full blocks of the system prompt; the last token of a prompt is always computed.
        found = min(systems[group], tokens - 1) // block * block if group in seen else 0
        seen.add(group)
        rows.append([group, tokens, outputs[prompt], found])
    return rows


def write(name, value):
    path = pathlib.Path(__file__).with_name(name)
    path.write_text(json.dumps(value, separators=(",", ":")).replace("],[", "],\n[") + "\n")


LEGS = [[2, 20, 5], [5, 5, 5], [0, 8, 4], [30, 0, 3]]
GSP = dict(groups=5, per_group=7, system=90, question=40, output=12, ratio=0.5, block=16)

write("ramp.json", {"seed": 7, "legs": LEGS, "offsets_ns": ramp(7, LEGS)})
write("shared_prefix.json", {"seed": 11, **GSP, "rows": shared_prefix(11, **GSP)})
