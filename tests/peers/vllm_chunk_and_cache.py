#!/usr/bin/env python3
"""Runs the suite vllm-chunk-and-cache on real servers, beside `vllm bench serve`.

For each arm: start the arm's server, run `prefillbench bench` with proof of the cache state, run
`vllm bench serve` with the same endpoint, seed and lengths, stop the server. The run directories
and the other client's result files go to --out; a table of both goes to standard output.

Nothing is downloaded. Needs: the binary, an environment with vLLM, the model as a Hugging Face
folder, and for the llama.cpp arm its server and the GGUF file; a missing peer skips its arms.

    tests/peers/vllm_chunk_and_cache.py --vllm ENV --model HF_DIR --out results \
        [--llama-server FILE --gguf FILE] [--arm NAME ...] [--binary FILE] [--guard "CMD"]

--guard is a command put in front of the timed parts, for a machine that is shared. Two names
are no arms of the suite: `worked` runs both clients on the published worked stream of `prefillbench
mock`, where the truth is known; `agree` runs both on vLLM without a cache, one request in flight,
chats and completions, so that neither arrivals nor queues can differ.
"""

import argparse
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE = ROOT / "workloads/suites/vllm-chunk-and-cache.toml"
# vLLM on a CPU: cache size, no pinning, nothing sent home.
VLLM_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # An idle server would spin on the core of the client.
    "VLLM_SLEEP_WHEN_IDLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
START_S = 600


def main():
    args = arguments()
    suite = tomllib.loads(SUITE.read_text())
    names = args.arm or ["worked", "agree"] + list(suite["arms"])
    args.out.mkdir(parents=True, exist_ok=True)
    known = {name: arm | {"name": name} for name, arm in suite["arms"].items()}
    for name in names:
        if name == "worked":
            worked(args)
        elif name == "agree":
            agree(args, known["chunk-2048-cache-off"])
        elif name in known:
            run_arm(args, suite["bench"], known[name])
        else:
            sys.exit(f"--arm {name}: not in {SUITE.name}; it has {', '.join(known)}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vllm", type=pathlib.Path, required=True, help="virtual environment")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="Hugging Face folder")
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--llama-server", type=pathlib.Path)
    parser.add_argument("--binary", default=str(ROOT / "target/release/prefillbench"))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--arm", action="append")
    parser.add_argument("--port", type=int, default=18200)
    parser.add_argument("--running", action="append", default=[], metavar="NAME=URL",
                        help="the server of an arm that runs already; it is left running")
    parser.add_argument("--dtype", default="float32",
                        help="of vLLM; bfloat16 is slow without AVX-512 or AMX")
    # A server that shares its core with the client makes the client late and the run void.
    parser.add_argument("--guard", default="taskset -c 1",
                        help="command in front of the clients")
    parser.add_argument("--server-guard", default="taskset -c 0",
                        help="command in front of the servers")
    return parser.parse_args()


def run_arm(args, common, arm):
    """One server, both clients."""
    name = arm["name"]
    command = server_command(args, arm)
    if command is None:
        print(f"{name}: skipped, its server is not given")
        return
    bench = common | arm.get("bench", {})
    log = args.out / f"{name}.server.log"
    running = dict(pair.split("=", 1) for pair in args.running)
    url = running.get(name, f"http://127.0.0.1:{args.port}")
    start = None if name in running else command
    with serving(start, VLLM_ENV | arm.get("env", {}), log, url):
        ours = args.out / name
        own = [args.binary, "bench", "--suite", str(SUITE), "--arm", name, "--base-url", url,
               "--out", str(ours), "--json", "--scrape-interval-ms", "5000"]
        timed(args, own, args.out / f"{name}.stdout.json")
        theirs = args.out / f"{name}.vllm-bench.json"
        if arm["start"][0] == "vllm":
            # The other client's prompts must meet the state that ours met, as near as it can.
            reset(url)
        peer = vllm_bench(args, url, bench, theirs)
        timed(args, peer, args.out / f"{name}.vllm-bench.log")
    table(name, ours / "bench.json", theirs)


def server_command(args, arm):
    """The arm's command on this machine, or None."""
    given = arm["start"]
    values = {"{model}": str(args.model), "{gguf}": str(args.gguf), "8000": str(args.port),
              "{dtype}": args.dtype}
    words = [values.get(word, word) for word in given]
    if given[0] == "vllm":
        python = args.vllm / "bin/python"
        cli = [str(python), "-m", "vllm.entrypoints.cli.main"]
        return guarded(args, cli + words[1:]) if python.exists() else None
    if args.llama_server is None or args.gguf is None:
        return None
    return guarded(args, [str(args.llama_server)] + words[1:])


def guarded(args, command):
    return shlex.split(args.server_guard) + command


class serving:
    """A server while the block runs; without a command one that runs already."""

    def __init__(self, command, env, log, url):
        self.command, self.env, self.log, self.url = command, env, log, url

    def __enter__(self):
        if self.command is None:
            return self
        out = open(self.log, "w")
        self.child = subprocess.Popen(self.command, env=os.environ | self.env, stdout=out,
                                      stderr=subprocess.STDOUT, start_new_session=True)
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.child.poll() is not None:
                sys.exit(f"the server ended: see {self.log}")
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).read()
                return self
            except OSError:
                time.sleep(1)
        self.__exit__()
        sys.exit(f"the server did not start in {START_S} s: see {self.log}")

    def __exit__(self, *_):
        if self.command is None:
            return
        for kind, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
            try:
                os.killpg(self.child.pid, kind)
                self.child.wait(wait_s)
                return
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                return


def reset(url):
    request = urllib.request.Request(url + "/reset_prefix_cache", method="POST")
    try:
        urllib.request.urlopen(request, timeout=30).read()
    except OSError as error:
        print(f"no reset: {error}")


def vllm_bench(args, url, bench, result):
    """`vllm bench serve` with the same endpoint, seed and lengths."""
    python = args.vllm / "bin/python"
    same = {
        "--num-prompts": bench["num_prompts"],
        "--request-rate": bench["request_rate"],
        "--seed": bench["seed"],
        "--num-warmups": bench["warmup"],
        "--prefix-repetition-prefix-len": bench["prefix_repetition_prefix_len"],
        "--prefix-repetition-suffix-len": bench["prefix_repetition_suffix_len"],
        "--prefix-repetition-num-prefixes": bench["prefix_repetition_num_prefixes"],
        "--prefix-repetition-output-len": bench["prefix_repetition_output_len"],
    }
    flags = [word for flag, value in same.items() for word in (flag, str(value))]
    return [str(python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--base-url", url,
            "--model", "smollm2", "--tokenizer", str(args.model), "--dataset-name",
            "prefix_repetition", "--ignore-eos", "--temperature", "0", "--percentile-metrics",
            "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--save-result",
            "--save-detailed", "--result-dir", str(result.parent), "--result-filename",
            result.name, "--disable-tqdm"] + flags


def timed(args, command, log):
    """Runs a client; its exit code is shown, not judged: a void run is a result too."""
    whole = shlex.split(args.guard) + command
    with open(log, "w") as out:
        done = subprocess.run(whole, stdout=out, stderr=subprocess.PIPE, text=True,
                              env=os.environ | VLLM_ENV)
    print(f"exit {done.returncode}: {shlex.join(command[:4])} ... -> {log.name}")
    if done.returncode not in (0, 1, 3):
        print(done.stderr[-2000:], file=sys.stderr)


def value(document, *path):
    for key in path:
        if document is None:
            return None
        document = document.get(key)
    return document


def table(name, ours, theirs):
    """Both clients' numbers, one row each; what they mean is in docs/AGAINST_VLLM.md."""
    if not (ours.exists() and theirs.exists()):
        print(f"{name}: no table, a result is missing")
        return
    own, peer = json.loads(ours.read_text()), json.loads(theirs.read_text())
    rows = [("completed", value(own, "counts", "ok"), peer.get("completed")),
            ("output tokens", value(own, "tokens", "output"), peer.get("total_output_tokens")),
            ("input tokens", value(own, "tokens", "input_served"), peer.get("total_input_tokens")),
            ("req/s", value(own, "rates", "achieved_rps"), peer.get("request_throughput")),
            ("output tok/s", value(own, "rates", "output_tps"), peer.get("output_throughput"))]
    for ours_name, theirs_name in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"),
                                   ("e2e", "e2el")):
        for statistic, key in (("mean", "mean"), ("p50", "median"), ("p99", "p99")):
            rows.append((f"{ours_name} {statistic} ms", value(own, f"{ours_name}_ms", statistic),
                         peer.get(f"{key}_{theirs_name}_ms")))
    print(f"\n{name}: cache {json.dumps(own.get('cache'))}")
    print(f"{'':<16}{'prefillbench':>14}{'vllm bench':>14}")
    for label, a, b in rows:
        print(f"{label:<16}{shown(a):>14}{shown(b):>14}")
    print(f"validity {json.dumps(own.get('validity'))}\n")


def shown(number):
    if number is None:
        return "-"
    return f"{number:.2f}" if isinstance(number, float) else str(number)


def pair(args, name, url, sizes, chat):
    """Both clients with one request in flight and the same lengths, and their table."""
    count, input_len, output_len = sizes
    same = ["--num-prompts", str(count), "--max-concurrency", "1", "--random-input-len",
            str(input_len), "--random-output-len", str(output_len), "--ignore-eos", "--seed", "1"]
    ours = args.out / name
    own = [args.binary, "bench", "--base-url", url, "--model", "smollm2", "--out", str(ours),
           "--json"] + same + (["--api", "chat"] if chat else [])
    timed(args, own, args.out / f"{name}.stdout.json")
    theirs = args.out / f"{name}.vllm-bench.json"
    route = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"] if chat else []
    peer = [str(args.vllm / "bin/python"), "-m", "vllm.entrypoints.cli.main", "bench", "serve",
            "--base-url", url, "--model", "smollm2", "--tokenizer", str(args.model),
            "--dataset-name", "random", "--temperature", "0", "--percentile-metrics",
            "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--save-result",
            "--save-detailed", "--result-dir", str(args.out), "--result-filename", theirs.name,
            "--disable-tqdm"] + same + route
    timed(args, peer, args.out / f"{name}.vllm-bench.log")
    table(name, ours / "bench.json", theirs)


def agree(args, arm):
    """Both clients on a server without a cache: nothing but definitions can differ."""
    command = server_command(args, arm)
    if command is None:
        print("agree: skipped, its server is not given")
        return
    running = dict(one.split("=", 1) for one in args.running)
    url = running.get("agree", f"http://127.0.0.1:{args.port}")
    start = None if "agree" in running else command
    with serving(start, VLLM_ENV | arm.get("env", {}), args.out / "agree.server.log", url):
        pair(args, "agree-completions", url, (8, 256, 24), chat=False)
        pair(args, "agree-chat", url, (8, 256, 24), chat=True)


def worked(args):
    """The published worked stream: both clients on the mock, where the truth is known."""
    script = args.out / "worked_stream.json"
    events = [(50, {"role": "assistant"}), (200, {"content": "A"}),
              (300, {"content": "BCD", "tokens": 3}), (400, {"content": "E"}),
              (410, {"content": "", "finish": "stop"}), (415, {"usage": {
                  "prompt_tokens": 9, "completion_tokens": 5}}), (416, {"done": True})]
    stream = [{"at_ms": at, **what} for at, what in events]
    script.write_text(json.dumps({"streams": [{"events": stream}]}))
    url = f"http://127.0.0.1:{args.port}"
    mock = [args.binary, "mock", "--port", str(args.port), "--model", "smollm2", "--script",
            str(script)]
    with serving(mock, {}, args.out / "worked.server.log", url):
        pair(args, "worked", url, (10, 16, 5), chat=True)


if __name__ == "__main__":
    main()
