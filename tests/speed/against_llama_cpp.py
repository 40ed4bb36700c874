#!/usr/bin/env python3
"""Prefill and decode speed side by side with llama.cpp, in one run.

usage: against_llama_cpp.py LLAMA_BENCH [--rounds N] [--threads N]

Both programs run the same weights as bf16 (exported from the cached SmolLM2 model), with the
same number of threads, in turns: ours, theirs, theirs, ours, ... Each round gives one pair; the
printed ratio is ours over theirs with a 95 % interval (paired t on logarithms). The exit code is
1 when a lower bound is below its goal.
"""
import argparse, json, math, os, subprocess, sys, tempfile

GOALS = {"pp512": 1.0, "tg64": 0.8}
# Student's t, 97.5 % quantile, by degrees of freedom.
T975 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
        11: 2.201, 14: 2.145, 19: 2.093}


def ours(model, threads):
    out = subprocess.run(["target/release/examples/speed", model, str(threads), "1"],
                         check=True, capture_output=True, text=True).stdout
    d = json.loads(out)
    return {"pp512": d["pp512_tps"][0], "tg64": d["tg64_tps"][0]}


def theirs(bench, model, threads):
    out = subprocess.run([bench, "-m", model, "-t", str(threads), "-p", "512", "-n", "64",
                          "-r", "1", "-o", "json"], check=True, capture_output=True, text=True).stdout
    speeds = {}
    for row in json.loads(out):
        speeds["pp512" if row["n_prompt"] else "tg64"] = row["avg_ts"]
    return speeds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("llama_bench")
    parser.add_argument("--rounds", type=int, default=8, choices=sorted(k + 1 for k in T975))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--example", "speed", "-p", "pb-core"],
                   check=True)
    subprocess.run(["cargo", "build", "--release"], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        model = os.path.join(scratch, "smollm2-bf16.gguf")
        subprocess.run(["target/release/prefillbench", "model", "export-bf16", "smollm2-135m",
                        model], check=True, stdout=subprocess.DEVNULL)
        pairs = {name: [] for name in GOALS}
        for round_ in range(args.rounds):
            first_ours = round_ % 2 == 0
            a = ours(model, args.threads) if first_ours else None
            b = theirs(args.llama_bench, model, args.threads)
            a = a or ours(model, args.threads)
            for name in GOALS:
                pairs[name].append((a[name], b[name]))
                print(f"round {round_ + 1} {name}: {a[name]:7.1f} against {b[name]:7.1f} tok/s",
                      file=sys.stderr)
    failed = False
    print(f"{'':6} {'ours':>9} {'llama.cpp':>9} {'ratio':>6}   95 % interval   goal")
    for name, goal in GOALS.items():
        logs = [math.log(a / b) for a, b in pairs[name]]
        n, mean = len(logs), sum(logs) / len(logs)
        sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
        half = T975[n - 1] * sd / math.sqrt(n)
        low, high = math.exp(mean - half), math.exp(mean + half)
        median = lambda side: sorted(p[side] for p in pairs[name])[n // 2]
        print(f"{name:6} {median(0):9.1f} {median(1):9.1f} {math.exp(mean):6.2f}   "
              f"[{low:.2f}, {high:.2f}]    >= {goal}")
        failed |= low < goal
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
