#!/usr/bin/env python3
"""What load generators measure, beside what a scripted server really sent.

usage: fidelity.py [--streams 1,100,500,1000,2000] [--rates 500,1000,...] [--vllm DIR]
                   [--vllm-rs FILE] [--guidellm FILE] [--aiperf FILE] [--tokenizer DIR]

Each run starts `prefillbench mock` in a process of its own (first token after 50 ms, 100 tokens
10 ms apart), lets one client hold so many streams, and compares what the client says with the
server's log of every write. All clients take turns; a client that is not there is a skipped row.

Closed loop: mean and p99 of the client's TTFT minus those of the truth, and the standard deviation
and p99 of its gaps beside the truth's. The truth counts from the arrival of a request's first byte
at the server's kernel to the write of its first token, so it holds no client at all. For this
client, whose stamps are of the same clock as the log, the error of each single token is told too.

Open loop: constant arrivals at a rate. Only the server's log is used, for every client alike: the
k-th arrival should come k / rate after the first one's schedule, which is put where the earliest
arrival is on time. p99 of the delays below 1 ms is what counts.

The exit code is 1 when this client's error at 1,000 streams is more than a fifth of the best
other one's, 0 otherwise.
"""
import argparse, csv, json, math, os, re, shutil, subprocess, sys, tempfile, time

TTFT_MS, ITL_MS = 50, 10


def percentile(values, p):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)] if ordered else None


def mean(values):
    return sum(values) / len(values) if values else None


def std(values):
    if len(values) < 2:
        return None
    m = mean(values)
    return math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1))


class Mock:
    """A mock server with a log."""

    def __init__(self, binary, scratch, *flags):
        self.log = os.path.join(scratch, "mock.csv")
        command = [binary, "mock", "--port", "0", "--tokenizer", "words", "--log", self.log,
                   "--until-stdin-closes", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.url = re.search(r"http://\S+", line).group(0)

    def stop(self):
        """Requests of the log: id, arrival and token instants (ns); the server's own lateness."""
        _, said = self.process.communicate()
        requests, late = {}, []
        with open(self.log, newline="") as file:
            for row in csv.DictReader(file):
                key = int(row["request"])
                if key not in requests:
                    requests[key] = {"id": row["x_request_id"], "at": int(row["first_byte_ns"]),
                                     "ending": row["ending"], "tokens": [], "end": 0}
                if not row["written_ns"]:
                    continue
                written = int(row["written_ns"])
                late.append((written - int(row["due_ns"])) / 1e6)
                requests[key]["end"] = written
                if int(row["tokens"]) > 0:
                    requests[key]["tokens"].append(written)
        return list(requests.values()), late, said.strip()


def quiet(command, timeout=200, env=None):
    """Runs a client; its standard output."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                            env={**os.environ, **(env or {})})
    if result.returncode != 0:
        raise RuntimeError((result.stderr or result.stdout).strip()[-400:])
    return result.stdout


# Clients: each returns {"ttft": [ms], "gaps": [ms] or None, ...} of a closed loop, and runs an
# open loop of constant arrivals.

class Ours:
    name = "prefillbench"

    def __init__(self, args):
        self.binary = args.client

    def closed(self, url, streams, requests, tokens, scratch):
        out = os.path.join(scratch, "ours.csv")
        report = json.loads(quiet([self.binary, "closed", "--url", url, "--streams", str(streams),
                                   "--requests", str(requests), "--tokens", str(tokens),
                                   "--out", out]))
        rows, ttft, gaps, lag = {}, [], [], []
        with open(out, newline="") as file:
            for row in csv.DictReader(file):
                instants = [int(x) for x in row["token_ns"].split()]
                if row["fail"] or not instants:
                    continue
                rows[f"/0/{row['id']}"] = instants
                ttft.append((instants[0] - int(row["sent_ns"])) / 1e6)
                lag.append((int(row["sent_ns"]) - int(row["intended_ns"])) / 1e6)
                gaps += [(b - a) / 1e6 for a, b in zip(instants, instants[1:])]
        events = report["events"] or 1
        return {"ttft": ttft, "gaps": gaps, "rows": rows, "lag": lag,
                "cpu_us_per_event": 1e3 * report["cpu_ms"] / events,
                "read_lag": report["summary"]["read_lag"]}

    def open(self, url, rate, count, scratch):
        quiet([self.binary, "open", "--url", url, "--rate", str(rate), "--count", str(count),
               "--arrival", "constant", "--tokens", "2",
               "--connections", str(connections(rate))])


def connections(rate):
    """What the answers of an open loop keep busy, twice."""
    return min(4000, max(32, rate // 10))


class VllmLike:
    """`bench serve` of vLLM, in Python or in Rust: the same flags and result file."""

    def __init__(self, args):
        self.tokenizer = args.tokenizer

    def command(self, url, scratch, more):
        host, port = url.split("//")[1].split(":")
        return [*self.program, "bench", "serve", "--backend", "openai", "--host", host,
                "--port", port, "--endpoint", "/v1/completions", "--model", "mock",
                "--tokenizer", self.tokenizer, "--dataset-name", "random",
                "--random-input-len", "8", "--ignore-eos", "--disable-tqdm",
                "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--save-detailed",
                "--result-dir", scratch, "--result-filename", "theirs.json", *more]

    def closed(self, url, streams, requests, tokens, scratch):
        quiet(self.command(url, scratch, ["--max-concurrency", str(streams), "--num-prompts",
                                          str(requests), "--random-output-len", str(tokens)]),
              env=OFFLINE)
        with open(os.path.join(scratch, "theirs.json")) as file:
            result = json.load(file)
        gaps = [1e3 * gap for gaps in result["itls"] for gap in gaps]
        return {"ttft": [1e3 * t for t in result["ttfts"] if t], "gaps": gaps}

    def open(self, url, rate, count, scratch):
        quiet(self.command(url, scratch, ["--request-rate", str(rate), "--burstiness", "1000000",
                                          "--num-prompts", str(count), "--random-output-len",
                                          "2"]), env=OFFLINE)


OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
           "TOKENIZERS_PARALLELISM": "false"}


class Vllm(VllmLike):
    name = "vllm bench serve"

    def __init__(self, args):
        super().__init__(args)
        self.binary = args.vllm and os.path.join(args.vllm, "bin", "vllm")
        self.program = [self.binary]


class VllmRs(VllmLike):
    name = "vllm-rs bench serve"

    def __init__(self, args):
        super().__init__(args)
        self.binary = args.vllm_rs
        self.program = [self.binary]


class GuideLlm:
    name = "GuideLLM"

    def __init__(self, args):
        self.binary, self.tokenizer = args.guidellm, args.tokenizer

    def run(self, url, profile, requests, tokens, scratch):
        out = os.path.join(scratch, "guidellm.json")
        quiet([self.binary, "run", "--backend", f"kind=openai_http,target={url},model=mock,"
               "request_format=/v1/completions", "--profile", profile,
               "--constraint", f"kind=max_requests,count={requests}",
               "--tokenizer", f"kind=huggingface_auto,model={self.tokenizer}",
               "--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={tokens}",
               "--output", f"kind=json,path={out}", "--disable-console"], env=OFFLINE)
        with open(out) as file:
            return json.load(file)

    def closed(self, url, streams, requests, tokens, scratch):
        result = self.run(url, f"kind=concurrent,streams={streams}", requests, tokens, scratch)
        done = result["benchmarks"][0]["requests"]["successful"]
        ttft = [r["time_to_first_token_ms"] for r in done if r.get("time_to_first_token_ms")]
        return {"ttft": ttft, "gaps": None}

    def open(self, url, rate, count, scratch):
        self.run(url, f"kind=constant,rate={rate}", count, 2, scratch)


class AiPerf:
    name = "AIPerf"

    def __init__(self, args):
        self.binary, self.tokenizer = args.aiperf, args.tokenizer

    def run(self, url, load, requests, tokens, scratch):
        out = os.path.join(scratch, "aiperf")
        quiet([self.binary, "profile", "--model", "mock", "--url", url, "--endpoint-type",
               "completions", "--streaming", "--tokenizer", self.tokenizer, *load,
               "--request-count", str(requests), "--isl", "8", "--osl", str(tokens),
               "--extra-inputs", "ignore_eos:true", "--ui", "none", "--output-artifact-dir", out,
               "--no-gpu-telemetry", "--no-server-metrics"])
        return out

    def closed(self, url, streams, requests, tokens, scratch):
        out = self.run(url, ["--concurrency", str(streams)], requests, tokens, scratch)
        ttft, gaps = [], []
        with open(os.path.join(out, "profile_export.jsonl")) as file:
            for line in file:
                metrics = json.loads(line)["metrics"]
                if "time_to_first_token" in metrics:
                    ttft.append(metrics["time_to_first_token"]["value"])
                gaps += metrics.get("inter_chunk_latency", {}).get("value", [])
        return {"ttft": ttft, "gaps": gaps or None}

    def open(self, url, rate, count, scratch):
        self.run(url, ["--request-rate", str(rate), "--arrival-pattern", "constant"], count, 2,
                 scratch)


def closed_row(args, client, streams):
    requests = max(10, streams)
    with tempfile.TemporaryDirectory() as scratch:
        mock = Mock(args.mock, scratch, "--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS))
        try:
            said = client.closed(mock.url, streams, requests, args.tokens, scratch)
        finally:
            log, late, _ = mock.stop()
        truth = [r for r in log if len(r["tokens"]) == args.tokens]
        row = {"client": client.name, "streams": streams, "requests": len(truth),
               "most_in_flight": in_flight(truth),
               "mock_late_p99_ms": percentile(late, 99)}
        true_ttft = [(r["tokens"][0] - r["at"]) / 1e6 for r in truth]
        true_gaps = [(b - a) / 1e6 for r in truth for a, b in zip(r["tokens"], r["tokens"][1:])]
        row["ttft_error_mean_ms"] = mean(said["ttft"]) - mean(true_ttft)
        row["ttft_error_p99_ms"] = percentile(said["ttft"], 99) - percentile(true_ttft, 99)
        row["ttft_mean_ms"] = mean(said["ttft"])
        row["true_itl_std_ms"], row["true_itl_p99_ms"] = std(true_gaps), percentile(true_gaps, 99)
        if said["gaps"]:
            row["itl_std_ms"], row["itl_p99_ms"] = std(said["gaps"]), percentile(said["gaps"], 99)
        if "rows" in said:
            errors = [(a - b) / 1e6 for r in truth for a, b in
                      zip(said["rows"].get(r["id"], []), r["tokens"])]
            row["token_error_mean_ms"], row["token_error_p99_ms"] = \
                mean(errors), percentile(errors, 99)
            row["token_error_most_ms"] = max(errors, default=None)
            row["cpu_us_per_event"] = said["cpu_us_per_event"]
            row["read_lag"] = said["read_lag"]
        return row


def in_flight(requests):
    """Most requests at the server at once."""
    edges = sorted([(r["at"], 1) for r in requests] + [(r["end"], -1) for r in requests])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


def open_row(args, client, rate):
    count = min(20000, max(200, 3 * rate))
    with tempfile.TemporaryDirectory() as scratch:
        mock = Mock(args.mock, scratch, "--ttft-ms", "5", "--itl-ms", "5")
        try:
            client.open(mock.url, rate, count, scratch)
        finally:
            log, _, _ = mock.stop()
        # Requests before the run (a check that the server is there) come long before it.
        arrivals = sorted(r["at"] for r in log)[-count:]
        offsets = [(at - arrivals[0]) / 1e6 - 1e3 * k / rate for k, at in enumerate(arrivals)]
        lags = [offset - min(offsets) for offset in offsets]
        return {"client": client.name, "rate": rate, "requests": len(arrivals),
                "lag_p99_ms": percentile(lags, 99), "lag_most_ms": max(lags)}


def table(rows, columns):
    def text(value):
        return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
    lines = ["| " + " | ".join(title for _, title in columns) + " |",
             "|" + "---|" * len(columns)]
    for row in rows:
        if "skipped" in row:
            lines.append(f"| {row['client']} | {row.get('streams', row.get('rate', ''))} | "
                         + row["skipped"].replace("|", "/").replace("\n", " ")
                         + " |" * (len(columns) - 2))
        else:
            lines.append("| " + " | ".join(text(row.get(key)) for key, _ in columns) + " |")
    return "\n".join(lines)


CLOSED = [("client", "client"), ("streams", "streams"), ("most_in_flight", "in flight"),
          ("ttft_error_mean_ms", "TTFT error mean ms"), ("ttft_error_p99_ms", "TTFT error p99 ms"),
          ("itl_std_ms", "ITL std ms"), ("true_itl_std_ms", "true ITL std ms"),
          ("itl_p99_ms", "ITL p99 ms"), ("true_itl_p99_ms", "true ITL p99 ms"),
          ("token_error_p99_ms", "token error p99 ms"), ("cpu_us_per_event", "CPU us/event"),
          ("mock_late_p99_ms", "mock late p99 ms")]
OPEN = [("client", "client"), ("rate", "rate 1/s"), ("requests", "requests"),
        ("lag_p99_ms", "send lag p99 ms"), ("lag_most_ms", "most ms")]


def verdict(rows):
    """This client's errors at 1,000 streams over the best other one's."""
    at = [r for r in rows if r.get("streams") == 1000 and "skipped" not in r]
    ours = [r for r in at if r["client"] == Ours.name]
    others = [r for r in at if r["client"] != Ours.name]
    if not ours or not others:
        return None
    def excess(row):
        """Standard deviation that the client adds to the truth's."""
        if row.get("itl_std_ms") is None:
            return None
        return math.sqrt(max(0.0, row["itl_std_ms"] ** 2 - row["true_itl_std_ms"] ** 2))
    ratios = {}
    for name, of in [("ttft_error_mean_ms", lambda r: abs(r["ttft_error_mean_ms"])),
                     ("ttft_error_p99_ms", lambda r: abs(r["ttft_error_p99_ms"])),
                     ("itl_std_ms", lambda r: r.get("itl_std_ms")), ("itl_std_added_ms", excess)]:
        best = min((v for v in map(of, others) if v is not None), default=None)
        mine = mean([of(r) for r in ours])
        if best:
            ratios[name] = {"ours": mine, "best_other": best, "ratio": mine / best}
    return ratios


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), "")
    return {"cpus": os.cpu_count(), "cpu": model, "kernel": os.uname().release}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mock", default="target/release/prefillbench")
    parser.add_argument("--client", default="target/release/examples/streams")
    parser.add_argument("--vllm", help="virtual environment with vllm")
    parser.add_argument("--vllm-rs", help="the program vllm-rs")
    parser.add_argument("--guidellm", help="the program guidellm")
    parser.add_argument("--aiperf", help="the program aiperf")
    parser.add_argument("--tokenizer", help="directory of a tokenizer for the other clients")
    parser.add_argument("--streams", default="1,100,500,1000,2000")
    parser.add_argument("--rates", default="")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=1e9, help="start no run after this")
    parser.add_argument("--out", help="directory for fidelity.json and fidelity.md; rows of an "
                                      "earlier call for other settings are kept")
    args = parser.parse_args()
    clients = [Ours(args), VllmRs(args), Vllm(args), GuideLlm(args), AiPerf(args)]
    started, closed, opened = time.monotonic(), [], []
    numbers = lambda text: [int(x) for x in text.split(",") if x]
    jobs = [("closed", s) for s in numbers(args.streams)] + [("open", r) for r in
                                                            numbers(args.rates)]
    given_up = set()
    for round_ in range(args.rounds):
        for kind, setting in jobs:
            order = clients if round_ % 2 == 0 else clients[::-1]
            for client in order:
                rows, key = (closed, "streams") if kind == "closed" else (opened, "rate")
                row = {"client": client.name, key: setting}
                if not client.binary or not shutil.which(client.binary):
                    row["skipped"] = "not given" if not client.binary else "not there"
                elif time.monotonic() - started > args.budget_s or (client.name, kind) in given_up:
                    continue
                else:
                    try:
                        of = closed_row if kind == "closed" else open_row
                        row = of(args, client, setting)
                        if kind == "open" and row["lag_p99_ms"] > 50:
                            # It is far beyond its limit: higher rates only take time.
                            given_up.add((client.name, kind))
                    except (RuntimeError, subprocess.TimeoutExpired, OSError, KeyError) as error:
                        row["skipped"] = f"failed: {error}"
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    document = {"machine": machine(), "tokens": args.tokens, "ttft_ms": TTFT_MS, "itl_ms": ITL_MS,
                "closed": closed, "open": opened}
    if args.out:
        document = merged(args.out, document)
    document["verdict_1000_streams"] = verdict(document["closed"])
    text = "\n\n".join(table(document[kind], columns) for kind, columns in
                       [("closed", CLOSED), ("open", OPEN)] if document[kind])
    print(text)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
        with open(os.path.join(args.out, "fidelity.json"), "w") as file:
            json.dump(document, file, indent=1)
        with open(os.path.join(args.out, "fidelity.md"), "w") as file:
            file.write(text + "\n")
    ratios = document["verdict_1000_streams"]
    for name, values in (ratios or {}).items():
        print(f"1,000 streams, {name}: {values['ours']:.3f} against {values['best_other']:.3f}, "
              f"ratio {values['ratio']:.3f}")
    judged = [ratios[name]["ratio"] for name in ("ttft_error_mean_ms", "itl_std_ms")
              if ratios and name in ratios]
    return 1 if any(ratio > 0.2 for ratio in judged) else 0


def merged(out, document):
    """Rows of an earlier call whose client and setting were not run again."""
    try:
        with open(os.path.join(out, "fidelity.json")) as file:
            before = json.load(file)
    except FileNotFoundError:
        return document
    for kind, key in [("closed", "streams"), ("open", "rate")]:
        run = {(row["client"], row[key]) for row in document[kind] if "skipped" not in row}
        kept = [row for row in before[kind] if (row["client"], row[key]) not in run
                and "skipped" not in row]
        have = {(row["client"], row[key]) for row in kept}
        fresh = [row for row in document[kind]
                 if "skipped" not in row or (row["client"], row[key]) not in have]
        document[kind] = sorted(kept + fresh, key=lambda row: (row[key], row["client"]))
    return document


if __name__ == "__main__":
    sys.exit(main())
