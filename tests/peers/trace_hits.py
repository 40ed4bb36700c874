#!/usr/bin/env python3
"""Does a server find exactly the blocks that a Mooncake trace shares?

Replays conversations of a trace (rows that share their first two names, at most six of each, in
the file's order, until there are --rows), one request after the other, with lengths scaled so that
a name of 512 tokens becomes --name-tokens, by default one block of the server. The cached tokens of
each request, as the server's usage says, are compared with what the file's names say. The
expectation is worked out here from the trace file alone. The server must keep blocks of
--block-size tokens and be empty at the start (`--cache cold` proves it), for example:

    prefillbench serve --model smollm2-135m --block-size 16 --port 8000
    vllm serve MODEL --port 8000 --block-size 32 --enable-prompt-tokens-details

vLLM's CPU build refuses blocks of 16 tokens: its attention takes multiples of 32.

    tests/peers/trace_hits.py --base-url http://127.0.0.1:8000 --model NAME --trace FILE \
        --out DIR [--rows 60] [--binary FILE] [--record FILE]

Exit code 0: every request found exactly the planned tokens; 1: some did not.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Tokens that a name of the trace stands for.
NAMED = 512


def main():
    args = arguments()
    lines = conversations(args.trace.read_text().splitlines(), args.rows)
    # Beside the run directory, which must be new.
    chosen = args.out.with_name(args.out.name + ".trace.jsonl")
    chosen.parent.mkdir(parents=True, exist_ok=True)
    chosen.write_text("\n".join(lines) + "\n")
    planned = expectation(lines, args.name_tokens or args.block_size, args.block_size)
    rows = replay(args, chosen, len(lines))
    found = {int(row["request"]): row for row in rows if row["arm"] != "warmup"}
    first = min(found)
    wrong = []
    for at, (length, hit) in enumerate(planned):
        row = found.get(first + at)
        said = None if row is None or row["cached_tokens"] == "" else int(row["cached_tokens"])
        served = None if row is None or row["prompt_tokens"] == "" else int(row["prompt_tokens"])
        if said != hit or served != length:
            wrong.append(f"row {at}: planned {hit} of {length}, found {said} of {served}")
    summary = {
        "trace": args.trace.name,
        "rows": len(planned),
        "prompt_tokens": sum(length for length, _ in planned),
        "planned_hit_tokens": sum(hit for _, hit in planned),
        "rows_with_hits": sum(hit > 0 for _, hit in planned),
        "rows_that_differ": len(wrong),
    }
    print(json.dumps(summary))
    print("\n".join(wrong[:20]))
    if args.record:
        args.record.write_text(json.dumps(summary | {"differences": wrong}, indent=1) + "\n")
    sys.exit(1 if wrong else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--trace", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--block-size", type=int, default=16, help="of the server, in tokens")
    parser.add_argument("--name-tokens", type=int, help="of a name after scaling")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="run directory to create")
    parser.add_argument("--binary", default=str(ROOT / "target/release/prefillbench"))
    parser.add_argument("--record", type=pathlib.Path, help="file for the summary")
    return parser.parse_args()


def conversations(lines, count):
    """Lines of the trace that come in conversations of at least three."""
    by_start = {}
    for at, line in enumerate(lines):
        start = tuple(json.loads(line)["hash_ids"][:2])
        if len(start) == 2:
            by_start.setdefault(start, []).append(at)
    chosen = []
    for rows in by_start.values():
        if len(rows) >= 3 and len(chosen) < count:
            chosen += rows[:6]
    return [lines[at] for at in sorted(chosen[:count])]


def expectation(lines, name, block):
    """Prompt length and planned hit of each row, from the names alone."""
    seen, rows = set(), []
    for row in map(json.loads, lines):
        full, tail = divmod(row["input_length"], NAMED)
        # Half a token rounds up; a partial block stays partial.
        tail = 0 if tail == 0 else min(max(1, int(tail * name / NAMED + 0.5)), name - 1)
        length = full * name + tail
        leading = 0
        for known in row["hash_ids"]:
            if known not in seen:
                break
            leading += 1
        seen.update(row["hash_ids"])
        # Whole blocks that end before the last token.
        rows.append((length, min(leading * name, length - 1) // block * block))
    return rows


def replay(args, trace, count):
    """The rows of one closed-loop run with one request in flight."""
    name = args.name_tokens or args.block_size
    command = [args.binary, "bench", "--base-url", args.base_url, "--model", args.model,
               "--dataset-name", "trace", "--dataset-path", str(trace), "--scale-length",
               str(name / NAMED), "--num-prompts", str(count), "--arrival", "closed",
               "--max-concurrency", "1", "--cache", "cold", "--block-size", str(args.block_size),
               "--no-calibration", "--max-model-len", "8192", "--out", str(args.out), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"bench ended with {done.returncode}")
    document = json.loads(done.stdout)
    print("cache", json.dumps(document["cache"]), "validity", json.dumps(document["validity"]))
    with open(args.out / "requests.csv", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
