#!/usr/bin/env python3
"""Writes golden/logits_f64: SmolLM2 reference values in float64 throughout, by numpy alone.

usage: make_f64.py SmolLM2-135M-Instruct.Q4_1.gguf      (needs the packages numpy and gguf)

The files in golden/logits come from transformers, whose RMSNorm and attention softmax round to
float32 whatever the model's type is: they carry noise of about 1e-6 in every log-probability.
This program computes the same prompts with no float32 anywhere (dequantisation of these weights
is exact in float32), so that the f64 mode can be held to 1e-8. It shares no code with the engine:
the weights are dequantised by the gguf package, the rotary embedding is GGUF's interleaved form.
"""
import json, pathlib, sys
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

NAMES = ["single_token", "chat_sky", "austen_b_64", "austen_a_337", "austen_c_512", "jargon_1031"]
HEADS, KV_HEADS, D, LAYERS, THETA = 9, 3, 64, 30, 100000.0
here = pathlib.Path(__file__).parent


def load(path):
    reader = GGUFReader(path)
    eps = float(reader.fields["llama.attention.layer_norm_rms_epsilon"].contents())
    weights = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    return weights, eps


def rope(x):
    """Interleaved rotary embedding of [tokens, heads, D]."""
    pos = np.arange(x.shape[0], dtype=np.float64)[:, None]
    angle = pos * THETA ** (-np.arange(0, D, 2, dtype=np.float64) / D)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


def forward(w, eps, tokens):
    n = len(tokens)
    norm = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * g
    x = w["token_embd.weight"][tokens]
    future = np.triu(np.ones((n, n), bool), 1)
    for layer in range(LAYERS):
        p = lambda name: w[f"blk.{layer}.{name}.weight"]
        h = norm(x, p("attn_norm"))
        q = rope((h @ p("attn_q").T).reshape(n, HEADS, D))
        k = rope((h @ p("attn_k").T).reshape(n, KV_HEADS, D))
        v = (h @ p("attn_v").T).reshape(n, KV_HEADS, D)
        out = np.empty((n, HEADS, D))
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            score = q[:, head] @ k[:, group].T / np.sqrt(D)
            score[future] = -np.inf
            score = np.exp(score - score.max(-1, keepdims=True))
            out[:, head] = score / score.sum(-1, keepdims=True) @ v[:, group]
        x = x + out.reshape(n, -1) @ p("attn_output").T
        h = norm(x, p("ffn_norm"))
        gate = h @ p("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ p("ffn_up").T)) @ p("ffn_down").T
    return norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


def main():
    w, eps = load(sys.argv[1])
    target = here / "logits_f64"
    target.mkdir(exist_ok=True)
    for name in NAMES:
        golden = json.loads((here / "logits" / f"{name}.json").read_text())
        logits = forward(w, eps, golden["tokens"])
        top = logits.max(-1, keepdims=True)
        logprobs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        rows = np.arange(len(logprobs))[:, None]
        topk = logprobs[rows, golden["topk_ids"]]
        following = logprobs[rows[:-1, 0], golden["tokens"][1:]]
        worst = np.abs(topk - golden["topk_logprobs"]).max()
        print(f"{name}: differs from transformers by at most {worst:.1e}")
        document = {"name": name, "model_sha256": golden["model_sha256"],
                    "method": "numpy float64 throughout, golden/make_f64.py",
                    "topk_logprobs": [[round(v, 12) for v in row] for row in topk.tolist()],
                    "next_token_logprob": [round(v, 12) for v in following.tolist()],
                    "last_top_logits": [round(v, 12) for v in logits[-1, golden["topk_ids"][-1]].tolist()]}
        (target / f"{name}.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
