#!/usr/bin/env python3
"""What KV transfers take of a request's time, with and without streaming.

usage: kv_exposed.py [--program FILE] [--model NAME] [--lengths N,...] [--budget N]
                     [--repeats N] [--json FILE]

Two routers, each with a prefill and a decode worker of one thread: one sends KV when the prompt is
computed (`--kv-granularity bulk`), the other block by block while it is (`chunk`, and
`--kv-stream-min-tokens 0`). Both get the same prompts one after the other, in turns whose order is
reversed in every second repeat. Times are the workers' own, from /transfers: *exposed* is from the
end of the prefill to the acknowledgement, the router's part included. Two prompts of each length
come before those that count.

Printed for each length: the median of both arms, the mean of the paired differences with its 95 %
t interval, and the share of bytes that had been sent when the prefill ended. Then the least length
from which on every interval lies below zero.
"""
import argparse, json, os, random, statistics, subprocess, sys, threading, urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# Student's t, 97.5 % quantile, by degrees of freedom.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
        10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 19: 2.093}
WARM_UP = 2


class Arm:
    """A router with its workers, and the rows of its transfers."""

    def __init__(self, program, model, budget, flags):
        words = [program, "router", "--port", "0", "--until-stdin-closes", "--topology", "1P1D",
                 "--policy", "round-robin", "--", "--model", model, "--threads", "1",
                 "--prefix-cache", "none", "--max-batched-tokens", str(budget),
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
    arms = {
        "bulk": Arm(args.program, args.model, args.budget, ["--kv-granularity", "bulk"]),
        "stream": Arm(args.program, args.model, args.budget,
                      ["--kv-granularity", "chunk", "--kv-stream-min-tokens", "0"]),
    }
    draw, table = random.Random(1), []
    print(f"{'tokens':>7} {'MiB':>7} {'bulk ms':>9} {'stream ms':>9} {'stream - bulk ms (95 %)':>27} "
          f"{'sent early':>10}")
    for length in map(int, args.lengths.split(",")):
        rows = {name: [] for name in arms}
        for repeat in range(WARM_UP + args.repeats):
            prompt = [draw.randrange(10, 250) for _ in range(length)]
            order = list(arms) if repeat % 2 == 0 else list(arms)[::-1]
            texts = set()
            for name in order:
                row, text = arms[name].ask(prompt)
                texts.add(text)
                if repeat >= WARM_UP:
                    rows[name].append(row)
            if len(texts) != 1:
                sys.exit(f"two answers to one prompt of {length} tokens: {texts}")
        exposed = {name: [row["exposed_ns"] / 1e6 for row in rows[name]] for name in arms}
        mean, half = interval([s - b for s, b in zip(exposed["stream"], exposed["bulk"])])
        early = [row["early_bytes"] / row["bytes"] for row in rows["stream"]]
        one = {
            "tokens": length, "bytes": rows["bulk"][0]["bytes"], "exposed_ms": exposed,
            "total_ms": {name: [row["total_ns"] / 1e6 for row in rows[name]] for name in arms},
            "difference_ms": [mean - half, mean, mean + half], "early_share": early,
        }
        table.append(one)
        print(f"{length:7} {one['bytes'] / 2**20:7.2f} {statistics.median(exposed['bulk']):9.2f} "
              f"{statistics.median(exposed['stream']):9.2f} "
              f"{f'{mean:.2f} ({mean - half:.2f} .. {mean + half:.2f})':>27} "
              f"{statistics.median(early):10.0%}", flush=True)
    for arm in arms.values():
        arm.close()
    gains = [one["difference_ms"][2] < 0 for one in table]
    first = next((table[i]["tokens"] for i in range(len(gains)) if all(gains[i:])), None)
    print(f"streaming exposes less from {first} tokens on" if first else
          "streaming exposes less at no length from which on it always does")
    if args.json:
        document = {"model": args.model, "max_batched_tokens": args.budget,
                    "repeats": args.repeats, "from_tokens": first, "lengths": table}
        with open(args.json, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
