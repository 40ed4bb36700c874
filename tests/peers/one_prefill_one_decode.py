#!/usr/bin/env python3
"""Do a prefill and a decode worker behind a router answer as one process does?

Starts `prefillbench serve` alone, and a router before one prefill and one decode worker that move
KV by --transport. Both get the same requests, several at a time: prompts around block boundaries,
greedy and drawn, half of them streamed. The tokens of each answer must be equal, every request
must have been handed over, none computed again, and no block may be left in use. Exact numerics,
so that equal means equal. With --plant the first token of each prompt is altered on its way to the
router; then the script must end with 1.

    tests/peers/one_prefill_one_decode.py --transport nixl|mooncake|tcp|shm
        [--model synthetic-tiny] [--requests 48] [--binary FILE] [--json FILE] [--plant]

For nixl, PB_NIXL_LIBRARY and NIXL_PLUGIN_DIR name the library and its plugins; for mooncake,
PB_MOONCAKE_PYTHON names the Python that has it. Exit code 0: all equal; 1: something differs.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY = "listening on "
# Prompt lengths about blocks of 16 tokens, and some of many blocks.
LENGTHS = [1, 15, 16, 17, 31, 48, 49, 160]
MAX_TOKENS = 24
AT_ONCE = 4


def main():
    args = arguments()
    bodies = requests(args.requests)
    servers = []
    try:
        alone = start(args, servers, "serve", *model(args))
        way = ["--kv-transport", args.transport, "--kv-failure", "fail"]
        prefill = start(args, servers, "serve", *model(args), "--role", "prefill", *way)
        decode = start(args, servers, "serve", *model(args), "--role", "decode", *way)
        router = start(args, servers, "router", "--prefill", prefill, "--decode", decode)
        expected = [ask(alone, body) for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            sent = [planted(body) for body in bodies] if args.plant else bodies
            found = list(pool.map(lambda body: ask(router, body), sent))
        summary = {
            "transport": get(decode, "/worker")["kv_transport"],
            "model": args.model,
            "requests": len(bodies),
            "tokens": sum(map(len, expected)),
            "answers_that_differ": sum(a != b for a, b in zip(expected, found)),
            **moved(prefill, decode, len(bodies)),
        }
    finally:
        for process in reversed(servers):
            process.stdin.close()
            process.wait(30)
    print(json.dumps(summary))
    if args.json:
        args.json.write_text(json.dumps(summary, indent=2) + "\n")
    wrong = problems(summary, args.transport)
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong else 0


def problems(summary, transport):
    """What is not as it must be."""
    wrong = []
    if summary["answers_that_differ"]:
        wrong.append(f"{summary['answers_that_differ']} answers differ")
    if summary["transport"] != transport:
        wrong.append(f"KV was moved by {summary['transport']}")
    if summary["acknowledged"] != summary["requests"]:
        wrong.append(f"{summary['acknowledged']} of {summary['requests']} requests were handed over")
    if summary["blocks_left"]:
        wrong.append(f"{summary['blocks_left']} blocks are still in transfer")
    return wrong


def moved(prefill, decode, count):
    """What the workers say of their transfers."""
    for _ in range(200):
        left = sum(get(worker, "/worker")["blocks_in_transfer"] for worker in (prefill, decode))
        if left == 0:
            break
        time.sleep(0.05)
    rows = []
    # A stream without an end.
    with urllib.request.urlopen(prefill + "/transfers?from=0", timeout=5) as stream:
        try:
            while len(rows) < count:
                rows.append(json.loads(stream.readline()))
        except TimeoutError:
            pass
    ended = [row for row in rows if row["ended"] == "acknowledged"]
    return {
        "acknowledged": len(ended),
        "bytes": sum(row["bytes"] for row in ended),
        "exposed_ms_median": median([row["exposed_ns"] / 1e6 for row in ended]),
        "blocks_left": left,
    }


def median(values):
    return round(sorted(values)[len(values) // 2], 3) if values else None


def requests(count):
    """The same in every run."""
    bodies = []
    for number in range(count):
        length = LENGTHS[number % len(LENGTHS)]
        drawn = number // len(LENGTHS) % 2 == 1
        bodies.append({
            "prompt": [10 + (at * 37 + number * 101) % 240 for at in range(length)],
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
            "temperature": 1.0 if drawn else 0.0,
            "seed": number,
            "stream": number % 2 == 1,
        })
    return bodies


def planted(body):
    """The request with its first token altered."""
    first = 10 + (body["prompt"][0] - 9) % 240
    return body | {"prompt": [first] + body["prompt"][1:]}


def ask(server, body):
    """The tokens of an answer."""
    text = fetch(server, "/v1/completions", body)
    if not body["stream"]:
        return json.loads(text)["choices"][0]["token_ids"]
    tokens = []
    for line in text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            for choice in json.loads(line[6:])["choices"]:
                tokens += choice.get("token_ids") or []
    return tokens


def get(server, path):
    return json.loads(fetch(server, path))


def fetch(server, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(server + path, data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def model(args):
    return ["--model", args.model, "--numerics", "exact", "--threads", "1"]


def start(args, servers, *words):
    """Starts a server and returns its address."""
    command = [args.binary, *words, "--port", "0", "--until-stdin-closes"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    servers.append(process)
    line = process.stdout.readline()
    if READY not in line:
        sys.exit(f"{' '.join(map(str, words))}: it did not start")
    return line.split(READY)[1].split()[0]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transport", required=True)
    parser.add_argument("--model", default="synthetic-tiny")
    parser.add_argument("--requests", type=int, default=48)
    binary = ROOT / "target/release/prefillbench"
    parser.add_argument("--binary", type=pathlib.Path, default=binary)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--plant", action="store_true", help="alter prompts: must end with 1")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
