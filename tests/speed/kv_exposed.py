#!/usr/bin/env python3
"""What KV transfers take of a request's time, with and without streaming.

usage: kv_exposed.py [--program FILE] [--model NAME] [--lengths N,...] [--budget N]
                     [--repeats N] [--json FILE]

Three routers, each with a prefill and a decode worker of one thread: one sends KV when the prompt
is computed (`--kv-granularity bulk`), the others while it is (`--kv-stream-min-tokens 0`), `chunk`
after each step and `layer` after each layer of a step. All get the same prompts one after the
other, in turns whose order is reversed in every second repeat. Times are the workers' own, from
/transfers: *exposed* is from the end of the prefill to the acknowledgement, the router's part
included. Two prompts of each length come before those that count.

Printed for each length: the median of each arm; the mean of the paired differences to bulk, and of
layer to chunk, with their 95 % t intervals; and the share of bytes that had been sent when the
prefill ended. Beside that what is expected of these two if the link keeps up with the computation:

- left when the prefill ends: with `chunk` the blocks of the last step, with `layer` the last block
  and at most the last layer of the last step's other blocks;
- the time that those bytes take at the rate at which the bulk arm moves its own, from the first
  request for cells to the acknowledgement. It has nothing else in it: no look every millisecond
  whether there is more, no acknowledgement.

Then for each streaming arm the least length from which on every interval lies below zero.
"""
import argparse, json, os, random, statistics, subprocess, sys, threading, urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# Student's t, 97.5 % quantile, by degrees of freedom.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
        10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 19: 2.093}
WARM_UP = 2
BLOCK_TOKENS = 16
STREAMING = ["chunk", "layer"]
# What is compared with what.
PAIRS = [("chunk", "bulk"), ("layer", "bulk"), ("layer", "chunk")]


class Arm:
    """A router with its workers, and the rows of its transfers."""

    def __init__(self, program, model, budget, flags):
        words = [program, "router", "--port", "0", "--until-stdin-closes", "--topology", "1P1D",
                 "--policy", "round-robin", "--", "--model", model, "--threads", "1",
                 "--prefix-cache", "none", "--block-size", str(BLOCK_TOKENS),
                 "--max-batched-tokens", str(budget),
                 "--kv-failure", "fail", *flags]
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True)
        line = self.child.stdout.readline()
        if not line.startswith("listening on "):
            sys.exit("the router did not start: " + " ".join(words))
        self.url = line.split()[2]
        self.rows, self.came = [], threading.Condition()
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        with urllib.request.urlopen(self.url + "/transfers?from=0") as stream:
            for line in stream:
                with self.came:
                    self.rows.append(json.loads(line))
                    self.came.notify()

    def ask(self, prompt):
        """Sends a prompt and gives the row of its transfer."""
        body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            text = json.load(answer)["choices"][0]["text"]
        with self.came:
            if not self.came.wait_for(lambda: self.rows, timeout=30):
                sys.exit("no row of a transfer came in 30 s")
            row = self.rows.pop(0)
        if row.get("ended") != "acknowledged" or row["tokens"] != len(prompt):
            sys.exit(f"not the transfer of this prompt: {row}")
        return row, text

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def interval(values):
    """Mean, and half the width of its 95 % t interval."""
    n = len(values)
    return statistics.mean(values), T975[n - 1] * statistics.stdev(values) / n ** 0.5


def left(name, row, budget):
    """Bytes that are still to be sent when the prefill ends, if the link keeps up."""
    blocks, layers = row["blocks"], row["cells"] // row["blocks"]
    before = (row["tokens"] - 1) // budget * budget // BLOCK_TOKENS
    cells = {"bulk": row["cells"], "chunk": (blocks - before) * layers,
             "layer": layers + blocks - before - 1}[name]
    return cells * row["bytes"] // row["cells"]


def measure(arms, draw, length, repeats):
    """The rows of each arm for prompts of one length."""
    rows = {name: [] for name in arms}
    for repeat in range(WARM_UP + repeats):
        prompt = [draw.randrange(10, 250) for _ in range(length)]
        order = list(arms) if repeat % 2 == 0 else list(arms)[::-1]
        texts = set()
        for name in order:
            row, text = arms[name].ask(prompt)
            texts.add(text)
            if repeat >= WARM_UP:
                rows[name].append(row)
        if len(texts) != 1:
            sys.exit(f"different answers to one prompt of {length} tokens: {texts}")
    return rows


def summary(rows, length, budget):
    """What the rows of one length say."""
    exposed = {name: [row["exposed_ns"] / 1e6 for row in of] for name, of in rows.items()}
    rate = statistics.median(row["bytes"] / (row["total_ns"] - row["queue_wait_ns"])
                             for row in rows["bulk"])
    difference = {}
    for name, other in PAIRS:
        mean, half = interval([a - b for a, b in zip(exposed[name], exposed[other])])
        difference[f"{name} - {other}"] = [mean - half, mean, mean + half]
    late = {name: left(name, rows[name][0], budget) for name in rows}
    return {
        "tokens": length, "bytes": rows["bulk"][0]["bytes"], "exposed_ms": exposed,
        "total_ms": {name: [row["total_ns"] / 1e6 for row in of] for name, of in rows.items()},
        "difference_ms": difference,
        "early_share": {name: [row["early_bytes"] / row["bytes"] for row in rows[name]]
                        for name in STREAMING},
        "expected_early_share": {name: 1 - late[name] / rows[name][0]["bytes"]
                                 for name in STREAMING},
        "bulk_bytes_per_ns": rate,
        "expected_ms": {name: late[name] / rate / 1e6 for name in rows},
    }


def show(one):
    median = {name: statistics.median(values) for name, values in one["exposed_ms"].items()}
    print(f"{one['tokens']} tokens, {one['bytes'] / 2**20:.2f} MiB")
    for name in median:
        line = f"  {name:6} {median[name]:9.2f} ms, its bytes alone {one['expected_ms'][name]:8.2f}"
        if name in STREAMING:
            early = statistics.median(one["early_share"][name])
            line += f"; sent early {early:5.0%}, expected {one['expected_early_share'][name]:5.0%}"
        print(line)
    for name, (low, mean, high) in one["difference_ms"].items():
        print(f"  {name:14} {mean:8.2f} ms ({low:.2f} .. {high:.2f})", flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--program", default=os.path.join(ROOT, "target", "release", "prefillbench"))
    args.add_argument("--model", default="synthetic")
    args.add_argument("--lengths", default="16,64,128,256,512,1024,2048")
    args.add_argument("--budget", type=int, default=128)
    args.add_argument("--repeats", type=int, default=8)
    args.add_argument("--json")
    args = args.parse_args()
    if args.repeats - 1 not in T975:
        sys.exit("--repeats: 2 to 16 or 20")
    flags = {"bulk": []} | {name: ["--kv-stream-min-tokens", "0"] for name in STREAMING}
    arms = {name: Arm(args.program, args.model, args.budget, ["--kv-granularity", name, *more])
            for name, more in flags.items()}
    draw, table = random.Random(1), []
    for length in map(int, args.lengths.split(",")):
        rows = measure(arms, draw, length, args.repeats)
        table.append(summary(rows, length, args.budget))
        show(table[-1])
    for arm in arms.values():
        arm.close()
    first = {}
    for name in STREAMING:
        gains = [one["difference_ms"][f"{name} - bulk"][2] < 0 for one in table]
        first[name] = next((table[i]["tokens"] for i in range(len(gains)) if all(gains[i:])), None)
        print(f"{name} exposes less than bulk from {first[name]} tokens on" if first[name] else
              f"{name} exposes less than bulk at no length from which on it always does")
    if args.json:
        document = {"model": args.model, "max_batched_tokens": args.budget,
                    "repeats": args.repeats, "from_tokens": first, "lengths": table}
        with open(args.json, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
