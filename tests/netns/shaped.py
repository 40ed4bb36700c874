#!/usr/bin/env python3
"""Transfers over shaped links: two processes in two network namespaces.

usage: shaped.py [--repeats N] [--json FILE] [--quick]

Needs root, `ip`, `tc` and /dev/net/tun; without them it says so and exits with 0. Bandwidth is
the kernel's (veth and tbf). Kernels without netem cannot delay or lose packets, so a forwarder of
this script's own, between two tun devices, does (link.py).

Payloads and rates are divided by SCALE alike, so the link's times are those of the full size: a
model with 32 layers and 64 KiB per layer and block of 16 tokens (8B, 8 KV heads, bf16) has 1 KiB
here, and 1, 10 and 100 Gb/s are 15.6, 156 and 1562 Mb/s. The prefill is a clock that seals a layer
of the whole prompt every 2 us per token.

Checked, exit code 1 otherwise: a bulk transfer within 15 % of payload / bandwidth + delay; what
layer-wise streaming exposes after the prefill within 25 % of max(all layers' slices less the
compute of all layers but one, one slice) + delay, where there is no loss and 2 ms or more are
predicted; every byte right; a link that is cut ends both sides. Reported: from which prompt on streaming gives the first token earlier.
"""
import argparse, contextlib, json, math, os, shutil, subprocess, sys, time

from link import Forwarder, tun

SCALE = 64
LAYERS, CELL_BYTES, BLOCK_TOKENS = 32, 1024, 16
LAYER_NS_PER_TOKEN = 2000
MTU = 9000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAM = os.path.join(ROOT, "target", "release", "examples", "shaped")
SHAPE = [f"layers={LAYERS}", "heads=1", "d_head=16", "blocks=512"]
# Student's t, 97.5 % quantile, by degrees of freedom.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
        10: 2.228}


def sh(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class Link:
    """Two namespaces, and what joins them."""

    def __init__(self, gbps, delay_ms=0.0, jitter_ms=0.0, loss=0.0, forward=False):
        self.gbps, self.delay_ms, self.jitter_ms, self.loss = gbps, delay_ms, jitter_ms, loss
        self.bps = gbps * 1e9 / SCALE
        self.forwarder = None
        self.names = [f"pb{os.getpid()}{side}" for side in "ab"]
        try:
            self.build(forward)
        except BaseException:
            self.close()
            raise

    def build(self, forward):
        for name in self.names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
            # The same control loop everywhere (the only one that no kernel restricts), and one
            # that does not start again after each pause.
            for key in ("tcp_congestion_control=reno", "tcp_slow_start_after_idle=0"):
                sh("ip", "netns", "exec", name, "sysctl", "-w", f"net.ipv4.{key}")
        if forward:
            self.forwarded()
        else:
            self.shaped()
        for name, last in zip(self.names, "12"):
            sh("ip", "-n", name, "addr", "add", f"10.77.0.{last}/24", "dev", "link0")
            sh("ip", "-n", name, "link", "set", "link0", "mtu", str(MTU), "up")

    def shaped(self):
        a, b = self.names
        sh("ip", "-n", a, "link", "add", "link0", "type", "veth", "peer", "name", "link0",
           "netns", b)
        for name in self.names:
            # The queue holds more than a socket's buffer, so tbf delays and never drops.
            sh("tc", "-n", name, "qdisc", "add", "dev", "link0", "root", "tbf", "rate",
               f"{self.bps:.0f}bit", "burst", str(max(18_000, int(self.bps / 8 / 4000))),
               "limit", str(16 << 20))

    def forwarded(self):
        files = []
        for name in self.names:
            file = tun(name)
            files.append(file)
            sh("ip", "link", "set", name, "netns", name)
            sh("ip", "-n", name, "link", "set", name, "name", "link0")
        self.forwarder = Forwarder(files, self.bps, self.delay_ms / 1e3, self.jitter_ms / 1e3,
                                   self.loss)

    def close(self):
        if self.forwarder:
            self.forwarder.stop()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


class Pair:
    """A source and a sink on a link."""

    def __init__(self, link, connections=1, lease_ms=120_000, stall_ms=120_000):
        def start(name, *words):
            return subprocess.Popen(["ip", "netns", "exec", name, PROGRAM, *words, *SHAPE],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.sink = start(link.names[1], "sink", "at=10.77.0.2:7000", f"stall_ms={stall_ms}")
        self.sink.stdout.readline()
        self.source = start(link.names[0], "source", "to=10.77.0.2:7000",
                            f"connections={connections}", f"lease_ms={lease_ms}", f"stall_ms={stall_ms}")

    def begin(self, how, blocks, layer_ns):
        print(how, blocks, int(layer_ns), file=self.source.stdin, flush=True)

    def run(self, how, blocks, layer_ns=None):
        """Times of one transfer in ms, from the source's and the sink's lines."""
        if layer_ns is None:
            layer_ns = LAYER_NS_PER_TOKEN * BLOCK_TOKENS * blocks
        self.begin(how, blocks, layer_ns)
        source = json.loads(self.source.stdout.readline())
        sink = json.loads(self.sink.stdout.readline())
        if source["ended"] != "acknowledged" or not sink.get("right"):
            raise SystemExit(f"a transfer went wrong: {source}, {sink}")
        started = sink["started_ns"]
        return {"first_token": (started - source["begin_ns"]) / 1e6,
                "exposed": (started - source["prefill_end_ns"]) / 1e6, "bytes": source["bytes"],
                "frames": source["frames"], "descriptors": source["descriptors"]}

    def close(self):
        for process in (self.source, self.sink):
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in (self.source, self.sink):
            process.wait(timeout=60)


@contextlib.contextmanager
def on(link, **options):
    try:
        pair = Pair(link, **options)
        try:
            yield pair
        finally:
            pair.close()
    finally:
        link.close()


def interval(values):
    n = len(values)
    mean = sum(values) / n
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    reach = T975[n - 1] * math.sqrt(variance / n)
    return mean, mean - reach, mean + reach


def predicted_ms(link, how, blocks):
    """payload / bandwidth + delay; what remains of the slices, or one of them, + delay."""
    payload = LAYERS * CELL_BYTES * blocks
    bulk = payload * 8 / link.bps * 1e3
    compute = LAYER_NS_PER_TOKEN * BLOCK_TOKENS * blocks / 1e6
    rest = bulk if how == "bulk" else max(bulk - (LAYERS - 1) * compute, bulk / LAYERS)
    return rest + link.delay_ms


def exposed(link, pair, prompts, repeats):
    rows = []
    pair.run("bulk", prompts[0])  # Buffers and windows grow.
    for blocks in prompts:
        times = {"bulk": [], "layer": []}
        for repeat in range(repeats):
            for how in sorted(times, reverse=repeat % 2 == 1):
                times[how].append(pair.run(how, blocks)["exposed"])
        for how, values in times.items():
            mean, low, high = interval(values)
            expected = predicted_ms(link, how, blocks)
            rows.append({"gbps": link.gbps, "delay_ms": link.delay_ms, "loss": link.loss,
                         "jitter_ms": link.jitter_ms, "how": how, "tokens": blocks * BLOCK_TOKENS,
                         "payload_bytes": LAYERS * CELL_BYTES * blocks * SCALE,
                         "predicted_ms": expected, "exposed_ms": values, "mean_ms": mean,
                         "low_ms": low, "high_ms": high, "ratio": mean / expected})
    return rows


def crossover(link, pair, prompts, repeats):
    """By prompt, first token with streaming less first token with bulk, ms."""
    rows = []
    pair.run("bulk", prompts[-1])
    for blocks in prompts:
        differences = []
        for repeat in range(repeats):
            order = ["bulk", "layer"] if repeat % 2 == 0 else ["layer", "bulk"]
            times = {how: pair.run(how, blocks)["first_token"] for how in order}
            differences.append(times["layer"] - times["bulk"])
        mean, low, high = interval(differences)
        rows.append({"gbps": link.gbps, "tokens": blocks * BLOCK_TOKENS, "mean_ms": mean,
                     "low_ms": low, "high_ms": high})
    pays = None
    for row in reversed(rows):
        if row["high_ms"] >= 0:
            break
        pays = row["tokens"]
    return rows, pays


def cut(link):
    """The link is cut in the middle of a transfer; both sides must end by themselves."""
    with on(link, lease_ms=1_500, stall_ms=700) as pair:
        pair.run("bulk", 16)
        pair.begin("bulk", 512, 1000)
        time.sleep(0.15)
        link.forwarder.cut()
        sink = json.loads(pair.sink.stdout.readline())
        source = json.loads(pair.source.stdout.readline())
        # Nothing reaches the other side any more, so closing one does not end the other.
        for process in (pair.source, pair.sink):
            process.kill()
    return {"sink": sink.get("cause"), "source": source["ended"], "source_cause": source["cause"]}


def missing():
    if os.geteuid() != 0:
        return "root"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"`{tool}` (iproute2)"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun"
    name = f"pb{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        return "the privilege to make network namespaces"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def show(rows, crossings, cuts):
    bad = []
    print(f"{'link':>9} {'delay ms':>12} {'loss':>6} {'tokens':>6} {'payload':>8} {'how':>6} "
          f"{'predicted':>10} {'exposed ms (95 %)':>26} {'ratio':>6}")
    for row in rows:
        delay = f"{row['delay_ms']:g}"
        if row["jitter_ms"]:
            delay += f" +- {row['jitter_ms']:g}"
        print(f"{row['gbps']:>4} Gb/s {delay:>12} {row['loss']:>6.1%} {row['tokens']:>6} "
              f"{row['payload_bytes'] / 2**20:>4.0f} MiB {row['how']:>6} {row['predicted_ms']:>10.2f} "
              f"{row['mean_ms']:>8.2f} ({row['low_ms']:>6.2f} .. {row['high_ms']:>6.2f}) "
              f"{row['ratio']:>6.3f}")
        margin = 0.15 if row["how"] == "bulk" else 0.25
        if not row["loss"] and abs(row["ratio"] - 1) > margin:
            bad.append(f"{row['gbps']} Gb/s, {row['tokens']} tokens, {row['how']}: "
                       f"{row['ratio']:.3f} of what was predicted")
    print("\nfirst token, streaming less bulk, ms (95 %):")
    for rows, pays in crossings:
        gbps = rows[0]["gbps"]
        print(f"  {gbps} Gb/s: " + (f"streaming pays from {pays} tokens on" if pays else
                                    "streaming does not pay up to the longest prompt"))
        for row in rows:
            print(f"    {row['tokens']:>6} tokens {row['mean_ms']:>9.3f} "
                  f"({row['low_ms']:>8.3f} .. {row['high_ms']:>8.3f})")
    print(f"\ncut in the middle: {json.dumps(cuts)}")
    if cuts["sink"] not in ("stalled", "link_down") or cuts["source"] not in ("expired",
                                                                            "peer_dead"):
        bad.append(f"a cut ended otherwise: {cuts}")
    for line in bad:
        print(f"not met: {line}")
    return not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, choices=sorted(k + 1 for k in T975))
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="one link, to try the script")
    args = parser.parse_args()
    lacks = missing()
    if lacks:
        print(f"skipped: shaped links need {lacks}")
        return 0
    if not os.path.exists(PROGRAM):
        raise SystemExit("build it first: cargo build --release -p pb-transfer --example shaped")
    rows, crossings = [], []
    plan = {1: [32, 128], 10: [128, 512], 100: [128, 512]}
    lengths = [1, 2, 4, 8, 16, 32, 64]
    for gbps, prompts in ({10: [64]} if args.quick else plan).items():
        link = Link(gbps)
        with on(link) as pair:
            rows += exposed(link, pair, prompts, args.repeats)
        link = Link(gbps)
        with on(link) as pair:
            crossings.append(crossover(link, pair, lengths[: 5 if gbps == 1 else 7],
                                       args.repeats))
        print(f"{gbps} Gb/s done", file=sys.stderr)
    for delay, jitter, loss in [(5, 0, 0), (20, 2, 0), (5, 0, 0.005)][: 1 if args.quick else 3]:
        link = Link(10, delay, jitter, loss, forward=True)
        with on(link) as pair:
            rows += exposed(link, pair, [128], args.repeats)
        print(f"delay {delay} ms done", file=sys.stderr)
    cuts = cut(Link(10, 5, forward=True))
    met = show(rows, crossings, cuts)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"scale": SCALE, "exposed": rows, "cut": cuts,
                       "first_token": [{"pays_from_tokens": pays, "prompts": prompts}
                                       for prompts, pays in crossings]}, out, indent=1)
            out.write("\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
