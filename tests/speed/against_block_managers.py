#!/usr/bin/env python3
"""Host cost of the block bookkeeping, side by side with the block managers of Python engines.

usage: against_block_managers.py [--vllm PYTHON] [--nano PYTHON] [--rounds N] [--hash NAME]

PYTHON is an interpreter that can import the peer: `vllm` (its V1 KVCacheManager and the Request
that hashes for it) or `nanovllm` with xxhash and numpy (its BlockManager and Sequence; from the
package nano-vllm-fork, torch is not needed).

All sides replay the same seeded script: 2,000 requests of 24 shared prefixes, 64 at a time, each
added (its blocks are hashed), allocated with its hit, extended token by token and freed, in a pool
too small to keep every prefix. Each side is one process that replays the whole script once a
round on an empty pool; rounds alternate (ours, theirs, theirs, ours, ...). vLLM has the same
rules as ours, so its hit tokens must be equal, else nothing is compared; nano-vllm forgets a
block when its last user goes, so its hits are printed. The printed ratio is ours over theirs in
operations a second with a 95 % interval (paired t on logarithms).
"""
import argparse, json, math, os, random, subprocess, sys, tempfile, time

BLOCK_SIZE, NUM_BLOCKS = 16, 6001
REQUESTS, CONCURRENT, PREFIXES = 2000, 64, 24
KINDS = ["add", "allocate", "append", "free"]
ROWS = {"all": KINDS, "add + allocate": ["add", "allocate"], "append": ["append"],
        "free": ["free"]}
# Student's t, 97.5 % quantile, by degrees of freedom.
T975 = {2: 4.303, 9: 2.262, 11: 2.201, 14: 2.145, 19: 2.093}


def make_script(seed):
    """Requests in a closed loop of CONCURRENT; one tick is one step of a scheduler."""
    rng = random.Random(seed)
    tokens = lambda count: [rng.randrange(50_000) for _ in range(count)]
    prefixes = [tokens(rng.randrange(256, 1024)) for _ in range(PREFIXES)]
    ticks, running, added = [], {}, 0
    while added < REQUESTS or running:
        tick = {"add": [], "allocate": [], "append": [], "free": []}
        while added < REQUESTS and len(running) < CONCURRENT:
            prompt = rng.choice(prefixes) + tokens(rng.randrange(32, 256))
            tick["add"].append([added, prompt])
            tick["allocate"].append(added)
            running[added] = rng.randrange(32, 128)
            added += 1
        for request in list(running):
            tick["append"].append([request, rng.randrange(50_000)])
            running[request] -= 1
            if running[request] == 0:
                del running[request]
                tick["free"].append(request)
        ticks.append(tick)
    return {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS, "ticks": ticks}


class Vllm:
    def __init__(self, script):
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request
        size = script["block_size"]
        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1,
                                 dtype=torch.float32)
        self.kv = KVCacheManager(
            KVCacheConfig(num_blocks=script["num_blocks"], kv_cache_tensors=[],
                          kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
            max_model_len=8192, scheduler_block_size=size, hash_block_size=size)
        self.request, self.hasher = Request, get_request_block_hasher(size, sha256)
        self.sampling = SamplingParams(max_tokens=4096)
        self.live, self.hit_tokens = {}, 0

    def add(self, operation):
        request, prompt = operation
        self.live[request] = self.request(str(request), prompt, self.sampling, None,
                                          block_hasher=self.hasher)

    def allocate(self, request):
        request = self.live[request]
        blocks, cached, _ = self.kv.get_computed_blocks(request)
        self.hit_tokens += cached
        new = request.num_tokens - cached
        assert self.kv.allocate_slots(request, new, cached, blocks) is not None
        request.num_computed_tokens = request.num_tokens

    def append(self, operation):
        request, token = operation
        request = self.live[request]
        request.append_output_token_ids(token)
        assert self.kv.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1

    def free(self, request):
        self.kv.free(self.live.pop(request))


class Nano:
    def __init__(self, script):
        # The package's __init__ imports the model, which needs torch; its engine folder does not.
        import importlib.util, types
        if "nanovllm" not in sys.modules:
            package = types.ModuleType("nanovllm")
            package.__path__ = importlib.util.find_spec("nanovllm").submodule_search_locations
            sys.modules["nanovllm"] = package
        from nanovllm.engine.block_manager import BlockManager
        from nanovllm.engine.sequence import Sequence
        Sequence.block_size = script["block_size"]
        self.kv = BlockManager(script["num_blocks"] - 1, script["block_size"])
        self.sequence, self.live, self.hit_tokens = Sequence, {}, 0

    def add(self, operation):
        request, prompt = operation
        self.live[request] = self.sequence(prompt)

    def allocate(self, request):
        sequence = self.live[request]
        assert self.kv.can_allocate(sequence)
        self.kv.allocate(sequence)
        self.hit_tokens += sequence.num_cached_tokens

    def append(self, operation):
        request, token = operation
        sequence = self.live[request]
        sequence.append_token(token)
        assert self.kv.can_append(sequence)
        self.kv.may_append(sequence)

    def free(self, request):
        self.kv.deallocate(self.live.pop(request))


def serve(peer, path):
    """Replays the script once for every line on standard input."""
    with open(path) as file:
        script = json.load(file)
    make = {"vllm": Vllm, "nano": Nano}[peer]
    for _ in sys.stdin:
        side, clock = make(script), time.perf_counter_ns
        spent = dict.fromkeys(KINDS, 0)
        for tick in script["ticks"]:
            for kind in KINDS:
                do, start = getattr(side, kind), clock()
                for operation in tick[kind]:
                    do(operation)
                spent[kind] += clock() - start
        result = {f"{kind}_ns": spent[kind] for kind in KINDS} | {"hit_tokens": side.hit_tokens}
        print("replayed " + json.dumps(result), flush=True)


class Side:
    """A process that replays on request. Peers may log: only their marked lines count."""

    def __init__(self, command):
        environment = dict(os.environ, PYTHONHASHSEED="0", VLLM_LOGGING_LEVEL="ERROR")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment)

    def replay(self):
        print("go", file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            line = line.removeprefix("replayed ")
            if line.startswith("{"):
                return json.loads(line)
        sys.exit(f"{self.process.args}: ended without a result")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def interval(logs):
    """Geometric mean and 95 % interval from logarithms of paired ratios."""
    n, mean = len(logs), sum(logs) / len(logs)
    half = T975[n - 1] * math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1) / n)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compare(name, ours, theirs, rounds, operations):
    pairs = []
    for round_ in range(rounds + 1):
        first_ours = round_ % 2 == 0
        a = ours.replay() if first_ours else None
        b = theirs.replay()
        a = a or ours.replay()
        if round_ > 0:  # the first one warms both up
            pairs.append((a, b))
    hits = f"hit tokens {a['hit_tokens']} against {b['hit_tokens']}"
    if name == "vllm" and a["hit_tokens"] != b["hit_tokens"]:
        sys.exit(f"vllm: {hits}: the two did not do the same work")
    print(f"{name}: {rounds} rounds, {hits}")
    print(f"{'':16} {'ours':>12} {'theirs':>12}   ratio   95 % interval")
    for row, kinds in ROWS.items():
        count = sum(operations[kind] for kind in kinds)
        rate = lambda side: count * 1e9 / sum(side[f"{kind}_ns"] for kind in kinds)
        ratio, low, high = interval([math.log(rate(a) / rate(b)) for a, b in pairs])
        median = lambda at: sorted(rate(pair[at]) for pair in pairs)[len(pairs) // 2]
        print(f"{row:16} {median(0):10,.0f}/s {median(1):10,.0f}/s   {ratio:5.1f}   "
              f"[{low:.1f}, {high:.1f}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter that can import vllm")
    parser.add_argument("--nano", metavar="PYTHON", help="interpreter that can import nanovllm")
    parser.add_argument("--rounds", type=int, default=10, choices=sorted(k + 1 for k in T975))
    parser.add_argument("--hash", default="blake3", choices=["blake3", "sha256", "xxh3"],
                        help="our digest; vLLM's is sha256, nano-vllm's xxh64")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    peers = {name: getattr(args, name) for name in ("vllm", "nano") if getattr(args, name)}
    if not peers:
        parser.error("give --vllm, --nano or both")
    subprocess.run(["cargo", "build", "--release", "--example", "replay_speed", "-p", "pb-kv"],
                   check=True)
    script = make_script(args.seed)
    operations = {kind: sum(len(tick[kind]) for tick in script["ticks"]) for kind in KINDS}
    print(f"script: seed {args.seed}, {operations}, blocks of {BLOCK_SIZE}, pool of {NUM_BLOCKS}; "
          f"our digest is {args.hash}")
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "script.json")
        with open(path, "w") as file:
            json.dump(script, file)
        ours = Side(["target/release/examples/replay_speed", path, args.hash])
        for name, python in peers.items():
            theirs = Side([python, os.path.abspath(__file__), "--serve", name, path])
            compare(name, ours, theirs, args.rounds, operations)
            theirs.close()
        ours.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.exit(serve(sys.argv[2], sys.argv[3]))
    sys.exit(main())
