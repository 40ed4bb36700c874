#!/usr/bin/env python3
"""Shows why transformers' "float64" values differ from numpy's by 1e-6.

usage: check_transformers.py DIR_WITH_THE_GGUF      (needs torch, transformers, gguf)

transformers converts to float32 inside LlamaRMSNorm and in the attention softmax, whatever the
model's type. As shipped it gives golden/logits; with these two conversions taken out it gives
golden/logits_f64. Both to about 5e-13.
"""
import json, pathlib, sys
import numpy as np, torch
import transformers.models.llama.modeling_llama as llama
from transformers import AutoModelForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = ["single_token", "chat_sky", "austen_b_64"]
here = pathlib.Path(__file__).parent
model = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], gguf_file=FILE, dtype=torch.float32, attn_implementation="eager").double().eval()
inv_freq = 1.0 / (100000.0 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64))


def rotary(x, position_ids, *_, **__):
    angle = position_ids[:, :, None].double() * inv_freq
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


model.model.rotary_emb.forward = rotary


def compare(title):
    for name in NAMES:
        stored = json.loads((here / "logits" / f"{name}.json").read_text())
        exact = json.loads((here / "logits_f64" / f"{name}.json").read_text())
        with torch.no_grad():
            logits = model(torch.tensor([stored["tokens"]])).logits[0]
        logprobs = torch.log_softmax(logits, -1).numpy()
        rows = np.arange(len(logprobs))[:, None]
        top = logprobs[rows, stored["topk_ids"]]
        print(f"{title:24} {name:14} against logits {np.abs(top - stored['topk_logprobs']).max():.1e}"
              f"   against logits_f64 {np.abs(top - exact['topk_logprobs']).max():.1e}")


compare("as shipped")
llama.LlamaRMSNorm.forward = lambda self, x: self.weight * (
    x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
compare("norm in float64")
softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim=None, dtype=None, **_: softmax(x, dim=dim)
compare("norm, softmax in float64")
