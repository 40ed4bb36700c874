#!/usr/bin/env python3
"""Fits the three-term cost model of a step to LLMServingSim 2.0's kernel profiles.

    fit_cost.py PROFILE_DIR LAYERS > cost_llama31_8b_rtxpro6000.toml

PROFILE_DIR holds attention.csv, dense.csv and per_sequence.csv of one model and GPU (github
casys-kaist/LLMServingSim @ 5daddb21, perf/RTXPRO6000/meta-llama/Llama-3.1-8B/tp1): microseconds
of one layer, measured with vLLM 0.19.0. A step is LAYERS times (dense kernels + attention), the
embedding, the last norm, the output head and the sampler. The fit minimises relative squared
error over the prompt-only and the decode-only rows of attention.csv. No package is needed.
"""
import csv
import sys

ONCE = {"embedding", "final_layernorm"}
TWICE = {"layernorm"}


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def series(rows, key):
    out = {}
    for row in rows:
        out.setdefault(row["layer"], []).append((int(row[key]), float(row["time_us"])))
    return {layer: sorted(points) for layer, points in out.items()}


def at(points, x):
    """Linear interpolation; beyond the last point in proportion."""
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1:
            return y0 + (y1 - y0) * max(0.0, x - x0) / (x1 - x0)
    return points[-1][1] * x / points[-1][0]


def solve(rows):
    """Least squares for three coefficients, each row weighted by 1 / value."""
    m = [[0.0] * 4 for _ in range(3)]
    for features, value in rows:
        scaled = [f / value for f in features]
        for i in range(3):
            for j in range(3):
                m[i][j] += scaled[i] * scaled[j]
            m[i][3] += scaled[i]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda r: abs(m[r][i]))
        m[i], m[pivot] = m[pivot], m[i]
        for r in range(3):
            if r != i:
                factor = m[r][i] / m[i][i]
                m[r] = [a - factor * b for a, b in zip(m[r], m[i])]
    return [m[i][3] / m[i][i] for i in range(3)]


def main():
    folder, layers = sys.argv[1], int(sys.argv[2])
    dense = series(table(f"{folder}/dense.csv"), "tokens")
    heads = series(table(f"{folder}/per_sequence.csv"), "sequences")

    def step_ns(tokens, sequences, attention_us):
        per_layer = attention_us
        rest = sum(at(points, sequences) for points in heads.values())
        for layer, points in dense.items():
            if layer in ONCE:
                rest += at(points, tokens)
            else:
                per_layer += at(points, tokens) * (2 if layer in TWICE else 1)
        return 1000.0 * (layers * per_layer + rest)

    prefill, decode = [], []
    for row in table(f"{folder}/attention.csv"):
        n, context = int(row["prefill_chunk"]), int(row["kv_prefill"])
        batch, kv = int(row["n_decode"]), int(row["kv_decode"])
        us = float(row["time_us"])
        if n and not batch:
            pairs = n * context + n * (n + 1) / 2
            prefill.append(((1.0, n, pairs), step_ns(n, 1, us)))
        elif batch and not n:
            decode.append(((1.0, batch * kv, batch), step_ns(batch, batch, us)))
    for name, rows, keys in (
        ("prefill", prefill, ("step_ns", "token_ns", "pair_ns")),
        ("decode", decode, ("step_ns", "context_token_ns", "sequence_ns")),
    ):
        fit = solve(rows)
        errors = sorted(
            abs(sum(c * f for c, f in zip(fit, features)) / value - 1) for features, value in rows
        )
        print(f"\n[{name}]  # {len(rows)} rows, relative error: median "
              f"{errors[len(errors) // 2]:.1%}, 90th percentile {errors[len(errors) * 9 // 10]:.1%}")
        for key, value in zip(keys, fit):
            print(f"{key} = {value:.6g}")


main()
