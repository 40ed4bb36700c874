"""PyTorch's scaled_dot_product_attention, asked line by line on standard input.

Started by `prefillbench kernels --torch`. Each question and each answer is one line of JSON:

  {"device": "cpu", "threads": 2}              -> {"torch": "2.13.0"}
  {"dtype": ..., "q_heads": ..., "kv_heads": ..., "d": ..., "len": ..., "prefix": ...,
   "q": [...], "k": [...], "v": [...]}         -> {"way": "expanded", "out": [...]}
  {"run": true}                                -> {"ns": 81250}

q is [len][q_heads][d], k and v are [prefix + len][kv_heads][d], out is as q. Tensors are laid out
as PyTorch has them, [1][heads][tokens][d], masks are made and heads repeated before anything is
timed. `run` overwrites the caches and then times one call.
"""

import json
import math
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

SCRUB_BYTES = 256 << 20
TRIES = 3


class Asked:
    def __init__(self, device, threads):
        self.device = torch.device(device)
        torch.set_num_threads(threads)
        self.scrub = torch.zeros(SCRUB_BYTES, dtype=torch.uint8, device=self.device)
        self.count = 0
        self.call = None

    def place(self, case):
        """Takes a problem and the faster way to put it: grouped heads, or keys repeated."""
        d, length, prefix = case["d"], case["len"], case["prefix"]
        dtype = getattr(torch, case["dtype"])

        def tensor(name, heads):
            rows = torch.tensor(case[name], dtype=torch.float32).view(1, -1, heads, d)
            return rows.transpose(1, 2).to(dtype).contiguous().to(self.device)

        q = tensor("q", case["q_heads"])
        k, v = tensor("k", case["kv_heads"]), tensor("v", case["kv_heads"])
        group = case["q_heads"] // case["kv_heads"]
        options = {}
        if length > 1 and prefix == 0:
            options["is_causal"] = True
        elif length > 1:
            visible = torch.ones(length, prefix + length, dtype=torch.bool).tril(prefix)
            options["attn_mask"] = visible.to(self.device)
        wide = [x.repeat_interleave(group, 1).contiguous() for x in (k, v)]
        ways = {
            "expanded": lambda: sdpa(q, *wide, **options),
            "grouped": lambda: sdpa(q, k, v, enable_gqa=True, **options),
        }
        times = {}
        for name, self.call in ways.items():
            try:
                times[name] = min(self.run() for _ in range(TRIES))
            except RuntimeError as error:
                print(f"sdpa.py: {name}: {error}", file=sys.stderr)
        if not times:
            raise RuntimeError("no way to call scaled_dot_product_attention works here")
        way = min(times, key=times.get)
        self.call = ways[way]
        out = self.call().transpose(1, 2).to(torch.float32).flatten().cpu()
        # JSON has no NaN.
        return {"way": way, "out": [x if math.isfinite(x) else None for x in out.tolist()]}

    def run(self):
        self.count += 1
        self.scrub.fill_(self.count % 256)
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.call()
            end.record()
            end.synchronize()
            return int(begin.elapsed_time(end) * 1e6)
        begin = time.perf_counter_ns()
        self.call()
        return time.perf_counter_ns() - begin


def main():
    asked = None
    for line in sys.stdin:
        question = json.loads(line)
        if "threads" in question:
            asked = Asked(question["device"], question["threads"])
            answer = {"torch": torch.__version__}
        elif "run" in question:
            answer = {"ns": asked.run()}
        else:
            answer = asked.place(question)
        print(json.dumps(answer), flush=True)


with torch.inference_mode():
    main()
