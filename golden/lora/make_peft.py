#!/usr/bin/env python3
"""Writes golden/lora: two LoRA adapters saved by PEFT, and SmolLM2's logits with each.

usage: make_peft.py SmolLM2-135M-Instruct.Q4_1.gguf   (needs torch, transformers, gguf and peft)

The adapters are random (seeded), small and different in what a loader can get wrong: one lists all
seven projections and three layers and is stored in bf16, one has a pattern, rank-stabilised scaling
and f16. transformers rounds to float32 in its norm, softmax and rotary angles whatever the model's
type is; those three are replaced here, so that the values are float64 throughout.
"""
import hashlib, json, os, pathlib, sys
import torch
import transformers.models.llama.modeling_llama as llama
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
PROMPT, TOKENS, TOP = "austen_b_64", 24, 8
ADAPTERS = {
    "all": (torch.bfloat16, dict(
        r=2, lora_alpha=5, layers_to_transform=[0, 13, 29],
        target_modules=[f"{p}_proj" for p in ("q", "k", "v", "o", "gate", "up", "down")])),
    "pattern": (torch.float16, dict(
        r=3, lora_alpha=4, use_rslora=True,
        target_modules=r".*\.(3|21)\.(self_attn\.(q|v)|mlp\.down)_proj")),
}


def norm(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def rotary(self, x, position_ids):
    d, base = self.config.head_dim, self.config.rope_parameters["rope_theta"]
    angle = position_ids[..., None].double() * base ** (-torch.arange(0, d, 2).double() / d)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def softmax(x, dim, dtype=None):
    assert x.dtype == torch.float64
    return torch.softmax(x, dim)


def load(path):
    folder, name = os.path.split(os.path.abspath(path))
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager")
    return model.double().eval()


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def rows(out):
    ids = out.topk(TOP).indices
    values = out.gather(1, ids).tolist()
    return {"ids": ids.tolist(), "logits": [[round(v, 12) for v in row] for row in values]}


def adapted(path, name, dtype, options, tokens):
    torch.manual_seed(len(name))
    model = get_peft_model(load(path), LoraConfig(task_type="CAUSAL_LM", **options))
    parameters = [p for n, p in model.named_parameters() if "lora_" in n]
    for p in parameters:
        p.data = (torch.randn_like(p) * (0.2 if p.shape[1] == options["r"] else 0.05)).to(dtype)
    model.peft_config["default"].base_model_name_or_path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    model.save_pretrained(HERE / name)
    (HERE / name / "README.md").unlink()
    for p in parameters:
        p.data = p.data.double()
    return logits(model, tokens)


def main():
    llama.LlamaRMSNorm.forward, llama.LlamaRotaryEmbedding.forward = norm, rotary
    torch.nn.functional.softmax = softmax
    path = sys.argv[1]
    tokens = json.loads((HERE / "../logits" / f"{PROMPT}.json").read_text())["tokens"][:TOKENS]
    document = {"model_sha256": hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest(),
                "method": "transformers and peft in float64 throughout, golden/lora/make_peft.py",
                "tokens": tokens}
    base = logits(load(path), tokens)
    document["base"] = rows(base)
    for name, (dtype, options) in ADAPTERS.items():
        out = adapted(path, name, dtype, options, tokens)
        print(f"{name}: changes logits by at most {(out - base).abs().max():.2f}")
        document[name] = rows(out)
    (HERE / "logits.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
