#!/usr/bin/env python3
"""Scripts of scheduler calls answered by vLLM's own V1 scheduler and KV-cache manager.

usage: make_vllm.py check FILE...                    answer recorded scripts again and compare
       make_vllm.py make DIR [--count N] [--seed S] [--harsh] [--rules]    write random scripts

Runs under a Python that can import vLLM 0.32.0; no GPU, model or network is used. The scheduler is
driven as its engine drives it with synchronous scheduling: `schedule`, then `update_from_output`
with one token for every request whose tokens are all computed.
"""
import argparse, json, logging, os, random, sys, tempfile

SOURCE = "vLLM 0.32.0 V1 scheduler and KV-cache manager"


def make_config():
    """A configuration of the real classes; `Program` sets what a script sets."""
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                       "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1,
                       "num_hidden_layers": 1, "num_key_value_heads": 1, "vocab_size": 1024,
                       "max_position_embeddings": 8192, "torch_dtype": "float32"}, file)
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32",
                            max_model_len=8192)
    scheduler = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=128, max_model_len=8192,
                                is_encoder_decoder=False, enable_chunked_prefill=True,
                                async_scheduling=False)
    cache = CacheConfig(block_size=16, enable_prefix_caching=True)
    return VllmConfig(model_config=model, scheduler_config=scheduler, cache_config=cache,
                      device_config=DeviceConfig(device="cpu"))


class Program:
    """One scheduler, answering the lines of a script."""
    config = None

    def __init__(self, line):
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager
        if Program.config is None:
            Program.config = make_config()
        config, size = Program.config, line["block_size"]
        config.model_config.max_model_len = line["max_model_len"]
        config.cache_config.block_size = size
        config.cache_config.num_gpu_blocks = line["num_blocks"]
        scheduler = config.scheduler_config
        scheduler.max_num_batched_tokens = line["max_batched_tokens"]
        scheduler.max_num_seqs = line["max_num_seqs"]
        scheduler.long_prefill_token_threshold = line.get("long_prefill_token_threshold", 0)
        scheduler.enable_chunked_prefill = line.get("chunked", True)
        scheduler.policy = line.get("queue", "fcfs")
        scheduler.scheduler_reserve_full_isl = line.get("reserve_full_prompt", True)
        # A fraction there, which is rounded down to blocks.
        scheduler.watermark = (line.get("watermark_blocks", 0) + 0.5) / line["num_blocks"]
        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1,
                                 dtype=torch.float32)
        memory = KVCacheConfig(num_blocks=line["num_blocks"], kv_cache_tensors=[],
                               kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.scheduler = Scheduler(config, memory, StructuredOutputManager(config), size)
        self.hasher = get_request_block_hasher(size, sha256)
        self.added = 0

    def answer(self, line):
        return getattr(self, line["op"])(line)

    def add(self, line):
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request
        adapter = line.get("adapter")
        sampling = SamplingParams(max_tokens=line["max_tokens"], ignore_eos=True)
        self.added += 1
        self.scheduler.add_request(Request(line["id"], line["tokens"], sampling, None,
                                           arrival_time=self.added,
                                           cache_salt=line.get("salt"),
                                           lora_request=adapter and LoRARequest(
                                               adapter, ord(adapter[0]), "/nowhere"),
                                           priority=line.get("priority", 0),
                                           block_hasher=self.hasher))
        return {}

    def abort(self, line):
        from vllm.v1.request import RequestStatus
        self.scheduler.finish_requests(line["id"], RequestStatus.FINISHED_ABORTED)
        return {}

    def reset_prefix_cache(self, line):
        return {"ok": self.scheduler.reset_prefix_cache()}

    def step(self, line):
        from vllm.v1.outputs import ModelRunnerOutput
        scheduler = self.scheduler
        plan = scheduler.schedule()
        starts = {r.req_id: r.num_computed_tokens for r in plan.scheduled_new_reqs}
        first, cached = set(starts), plan.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens))
        rows = []
        for name, count in plan.num_scheduled_tokens.items():
            row = {"id": name, "start": starts[name], "count": count}
            rows.append(row | {"hit_tokens": starts[name]} if name in first else row)
        names = list(plan.num_scheduled_tokens)
        live = {name: scheduler.requests[name] for name in names}
        sampled = [[] if r.num_computed_tokens < r.num_tokens else [line["sample"][name]]
                   for name, r in live.items()]
        scheduler.update_from_output(plan, ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled))
        done = [{"id": name, "output": list(request.output_token_ids)}
                for name, request in live.items() if request.is_finished()]
        return {"scheduled": rows, "preempted": sorted(plan.preempted_req_ids or ()),
                "finished": done}

    def state(self, line):
        manager = self.scheduler.kv_cache_manager
        pool = manager.block_pool
        free = pool.free_block_queue.get_all_free_blocks()
        reclaimable = sum(block.block_hash is not None for block in free)
        active = sum(block.ref_cnt > 0 and not block.is_null for block in pool.blocks)
        requests = {name: {"computed": request.num_computed_tokens,
                           "blocks": list(manager.get_block_ids(name)[0])}
                    for name, request in self.scheduler.requests.items()}
        return {"buckets": {"active": active, "reclaimable": reclaimable,
                            "free": len(free) - reclaimable},
                "free_queue": [block.block_id for block in free], "requests": requests}


def random_config(rng, harsh, rules):
    size = rng.choice([1, 2, 3, 4, 8, 16] if harsh else [4, 8, 16])
    blocks = rng.choice([3, 4, 5, 7, 9, 12, 17, 32] if harsh else [7, 9, 12, 16, 24, 48])
    budgets = [1, 2, 3, 5, 7, 8, 17, 64] if harsh else [4, 8, 16, 17, 32, 64, 256]
    line = {"op": "config", "preset": "vllm-v1", "block_size": size, "num_blocks": blocks,
            "cache": "hash_chain", "policy": "token_budget",
            "max_batched_tokens": rng.choice(budgets),
            "max_num_seqs": rng.choice([1, 2, 3, 8, 16] if harsh else [1, 2, 4, 8])}
    line["max_model_len"] = (blocks - 1) * size
    if harsh:
        cut = rng.choice([0, 0, rng.randrange(size + 1)])
        line["max_model_len"] = max(2, line["max_model_len"] - cut)
    if rng.random() < 0.35:
        line["long_prefill_token_threshold"] = (rng.choice([1, 2, size, 3 * size]) if harsh
                                                else rng.choice([size, 2 * size]))
    if rules:
        line |= {"chunked": rng.random() < 0.5, "queue": rng.choice(["fcfs", "priority"]),
                 "reserve_full_prompt": rng.random() < 0.5,
                 "watermark_blocks": rng.choice([0, 0, 1, 2])}
        if not line["chunked"]:
            # Without chunks a prompt must fit in one step.
            line["max_batched_tokens"] = max(line["max_model_len"], line["max_batched_tokens"])
            line.pop("long_prefill_token_threshold", None)
    return line


class Generator:
    """Draws lines; what it may say depends on which requests it has added."""

    def __init__(self, rng, config, harsh):
        self.rng, self.harsh, self.config = rng, harsh, config
        self.longest = config["max_model_len"]
        # A crowd of short prompts with long outputs outgrows the pool again and again.
        self.crowd = harsh and rng.random() < 0.5
        self.prefixes = [self.tokens(rng.randint(1, max(1, self.longest * 2 // 3)))
                         for _ in range(rng.randint(1, 3))]
        self.prompts, self.names, self.aborted = [], [], set()

    def tokens(self, count):
        return [self.rng.randrange(10_000) for _ in range(count)]

    def add(self):
        rng, size, longest = self.rng, self.config["block_size"], self.longest
        prompt = list(rng.choice(self.prefixes))
        if rng.random() < 0.4:
            prompt = prompt[:rng.randrange(len(prompt) + 1)]
        if self.prompts and rng.random() < (0.4 if self.harsh else 0.15):
            prompt = list(rng.choice(self.prompts))
        prompt = prompt + self.tokens(rng.randint(0, 2 * size))
        if self.crowd:
            prompt = prompt[-rng.randint(1, 3 * size):]
        elif self.harsh and rng.random() < 0.3:
            # Near the limits: whole blocks, or all that fits.
            prompt += self.tokens(longest)
            prompt = prompt[:rng.choice([longest - 1, max(1, longest // size * size - size)])]
        prompt = prompt[:longest - 1] or self.tokens(1)
        self.prompts.append(prompt)
        most = longest - len(prompt)
        max_tokens = rng.randint(1, max(1, min(5 * size, most)))
        if self.harsh:
            # The last is cut short by the model's length.
            max_tokens = rng.choice([most, most, max_tokens] if self.crowd else
                                    [1, most, max_tokens, min(2, most), most + size])
        line = {"op": "add", "id": f"r{len(self.prompts) - 1}", "tokens": prompt,
                "max_tokens": max_tokens}
        if self.harsh and self.aborted and rng.random() < 0.3:
            # A name may be used again once its request has ended.
            line["id"] = rng.choice(sorted(self.aborted))
            self.aborted.remove(line["id"])
        self.names.append(line["id"])
        if rng.random() < 0.25:
            line["salt"] = rng.choice("st")
        if self.config.get("queue") == "priority":
            line["priority"] = rng.randint(-1, 2)
        if "queue" in self.config and rng.random() < 0.2:
            line["adapter"] = rng.choice("xy")
        return line

    def step(self, position, most):
        sample = {f"r{i}": 20_000 + 100 * position + i for i in range(most)}
        if self.harsh and self.rng.random() < 0.5:
            # Tokens that other requests may sample or bring as prompts too.
            pool = self.prompts[-1] if self.prompts else [1]
            sample = {name: pool[position % len(pool)] for name in sample}
        return {"op": "step", "sample": sample}

    def lines(self):
        rng = self.rng
        most = rng.randint(6, 24 if self.harsh else 14)
        weights = {"step": rng.uniform(3, 8), "add": rng.uniform(1, 4),
                   "abort": rng.choice([0, 0.3, 1]), "state": 1,
                   "reset_prefix_cache": rng.choice([0, 0, 0.3] if self.crowd else [0, 0.2, 0.5])}
        for position in range(rng.randint(60, 160 if self.harsh else 100)):
            op = rng.choices(list(weights), list(weights.values()))[0]
            if op == "step":
                yield self.step(position, most)
            elif op == "add":
                if len(self.prompts) < most:
                    yield self.add()
            elif op == "abort":
                if self.names:
                    name = rng.choice(self.names)
                    self.aborted.add(name)
                    yield {"op": op, "id": name}
            else:
                yield {"op": op}
        for position in range(200, 245):
            yield self.step(position, most)
            if self.harsh and rng.random() < 0.2:
                yield {"op": "state" if self.crowd else rng.choice(["state", "reset_prefix_cache"])}
        yield {"op": "state"}


def make(folder, count, seed, harsh, rules):
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        config = random_config(rng, harsh, rules)
        ops = [config, *Generator(rng, config, harsh).lines()]
        script = {"source": SOURCE, "ops": ops, "results": answers(ops)}
        name = f"vllm_{seed}_{number:03}{'_harsh' if harsh else ''}{'_rules' if rules else ''}.json"
        with open(os.path.join(folder, name), "w") as file:
            json.dump(script, file)


def answers(ops):
    program = Program(ops[0])
    return [{}, *(program.answer(line) for line in ops[1:])]


def check(files):
    """Answers every script again; the number of files that differ."""
    wrong = 0
    for name in files:
        with open(name) as file:
            script = json.load(file)
        for number, (line, said) in enumerate(zip(answers(script["ops"]), script["results"])):
            if line != said:
                print(f"{name} line {number}: {line}\nrecorded: {said}")
                wrong += 1
                break
    print(f"{len(files)} scripts, {wrong} differ")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check").add_argument("files", nargs="+")
    verb = verbs.add_parser("make")
    verb.add_argument("folder")
    verb.add_argument("--count", type=int, default=16)
    verb.add_argument("--seed", type=int, default=1)
    verb.add_argument("--harsh", action="store_true",
                      help="odd block sizes, tiny pools and budgets, prompts at the limit")
    verb.add_argument("--rules", action="store_true",
                      help="priorities, adapters, whole prompts, watermarks, no reservation")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if args.verb == "check":
        sys.exit(bool(check(args.files)))
    os.makedirs(args.folder, exist_ok=True)
    make(args.folder, args.count, args.seed, args.harsh, args.rules)


if __name__ == "__main__":
    main()
