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

A process of a shared machine waits some ms for its turn now and then, which no prediction has. So
all of it runs with a real-time priority where the system allows that; and where less than LEAST_MS
is predicted, time is stretched until it is that much: the rate is divided by the stretch, the
prefill's pace multiplied by it, and what is measured divided by it. The link and the prefill do
what they do, slower; what processors do weighs less by that factor, as it does by SCALE. Rows with
a delay are not stretched.

Checked, exit code 1 otherwise: a bulk transfer within 15 % of payload / bandwidth + delay; what
layer-wise streaming exposes after the prefill within 25 % of max(all layers' slices less the
compute of all layers but one, one slice) + delay, where there is no loss; every byte right; a link
that is cut ends both sides.

Reported: from which prompt on streaming gives the first token earlier. Here the prefill is a busy
thread that seals and posts by itself, so what a post costs delays the layers behind it; that cost
is measured, and stretched as all times are. By hand: with c for a layer's compute, p for a post and
s for a layer's slice on the link, bulk takes 32 c + 32 s, and streaming 32 c + 31 p and then the
larger of s and 32 s - 31 (c + p). The heads of frames and packets are not in it, and SCALE makes
them weigh 64 times too much: streaming, with 32 frames for one, looks worse than it is.
"""
import argparse, contextlib, json, math, os, shutil, statistics, subprocess, sys, time

from link import Forwarder, tun

SCALE = 64
LEAST_MS = 10
# Of a cross-over: what is compared is some tens of microseconds.
STRETCH, PAIRS = 16, 17
LAYERS, CELL_BYTES, BLOCK_TOKENS = 32, 1024, 16
LAYER_NS_PER_TOKEN = 2000
MTU = 9000
# The kernel lets two packets pass at once, which must be little of the shortest prompt.
SHORT_MTU = 1500
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

    def __init__(self, gbps, delay_ms=0.0, jitter_ms=0.0, loss=0.0, forward=False, stretch=1,
                 mtu=MTU):
        self.gbps, self.delay_ms, self.jitter_ms, self.loss = gbps, delay_ms, jitter_ms, loss
        self.stretch = stretch
        self.mtu = mtu
        self.bps = gbps * 1e9 / SCALE / stretch
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
            sh("ip", "-n", name, "link", "set", "link0", "mtu", str(self.mtu), "up")

    def shaped(self):
        a, b = self.names
        sh("ip", "-n", a, "link", "add", "link0", "type", "veth", "peer", "name", "link0",
           "netns", b)
        for name in self.names:
            # The queue holds more than a socket's buffer, so tbf delays and never drops.
            sh("tc", "-n", name, "qdisc", "add", "dev", "link0", "root", "tbf", "rate",
               f"{self.bps:.0f}bit", "burst", str(max(2 * self.mtu, int(self.bps / 8 / 4000))),
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
        self.stretch = link.stretch

        def start(name, *words):
            return subprocess.Popen(["ip", "netns", "exec", name, PROGRAM, *words, *SHAPE],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.sink = start(link.names[1], "sink", "at=10.77.0.2:7000", f"stall_ms={stall_ms}")
        self.sink.stdout.readline()
        self.source = start(link.names[0], "source", "to=10.77.0.2:7000",
                            f"connections={connections}", f"lease_ms={lease_ms}",
                            f"stall_ms={stall_ms}")

    def begin(self, how, blocks, layer_ns, *stretch):
        print(how, blocks, int(layer_ns), *stretch, file=self.source.stdin, flush=True)

    def run(self, how, blocks, posts=False):
        """Times of one transfer in ms of the full size, from the source's and the sink's lines.
        With `posts` the prefill's thread posts."""
        layer_ns = LAYER_NS_PER_TOKEN * BLOCK_TOKENS * blocks * self.stretch
        self.begin(how, blocks, layer_ns, *[self.stretch] * posts)
        source = json.loads(self.source.stdout.readline())
        sink = json.loads(self.sink.stdout.readline())
        if source["ended"] != "acknowledged" or not sink.get("right"):
            raise SystemExit(f"a transfer went wrong: {source}, {sink}")
        ms = lambda name: (sink["started_ns"] - source[name]) / 1e6 / self.stretch
        return {"first_token": ms("begin_ns"), "exposed": ms("prefill_end_ns"),
                "post_ns": source["post_ns"]}

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


def middle(values):
    """The median, and the order statistics that enclose that of the population in 95 %."""
    values, n = sorted(values), len(values)
    below, tail = 0, 0.0
    while tail + math.comb(n, below) / 2**n <= 0.025:
        tail += math.comb(n, below) / 2**n
        below += 1
    below = max(below - 1, 0)
    return statistics.median(values), values[below], values[n - 1 - below]


def slice_ms(gbps, blocks):
    """A layer of the full size on the link."""
    return CELL_BYTES * blocks * SCALE * 8 / (gbps * 1e6)


def layer_ms(blocks):
    return LAYER_NS_PER_TOKEN * BLOCK_TOKENS * blocks / 1e6


def predicted_ms(gbps, delay_ms, how, blocks):
    """payload / bandwidth + delay; what remains of the slices, or one of them, + delay."""
    one = slice_ms(gbps, blocks)
    streamed = max(LAYERS * one - (LAYERS - 1) * layer_ms(blocks), one)
    return (LAYERS * one if how == "bulk" else streamed) + delay_ms


def stretch_for(gbps, blocks):
    """So that a wait of a process is small against what is predicted."""
    least = min(predicted_ms(gbps, 0, how, blocks) for how in ("bulk", "layer"))
    return max(1, math.ceil(LEAST_MS / least))


def exposed(link, pair, blocks, repeats):
    rows, times = [], {"bulk": [], "layer": []}
    pair.run("bulk", blocks)  # Buffers and windows grow.
    for repeat in range(repeats):
        for how in sorted(times, reverse=repeat % 2 == 1):
            times[how].append(pair.run(how, blocks)["exposed"])
    for how, values in times.items():
        mean, low, high = interval(values)
        expected = predicted_ms(link.gbps, link.delay_ms, how, blocks)
        rows.append({"gbps": link.gbps, "delay_ms": link.delay_ms, "loss": link.loss,
                     "jitter_ms": link.jitter_ms, "stretch": link.stretch, "how": how,
                     "tokens": blocks * BLOCK_TOKENS,
                     "payload_bytes": LAYERS * CELL_BYTES * blocks * SCALE,
                     "predicted_ms": expected, "exposed_ms": values, "mean_ms": mean,
                     "low_ms": low, "high_ms": high, "ratio": mean / expected})
    return rows


def gain_ms(gbps, blocks, post_ms):
    """First token with streaming less first token with bulk, by hand."""
    one, paced = slice_ms(gbps, blocks), layer_ms(blocks) + post_ms
    posts = (LAYERS - 1) * post_ms
    return posts + max(one, LAYERS * one - (LAYERS - 1) * paced) - LAYERS * one


def crossover(link, pair, prompts, pairs):
    """By prompt, first token with streaming less first token with bulk, ms, and a post's cost."""
    rows = []
    pair.run("bulk", prompts[-1], posts=True)
    for blocks in prompts:
        differences, posts = [], []
        for n in range(pairs):
            order = ["bulk", "layer"] if n % 2 == 0 else ["layer", "bulk"]
            got = {how: pair.run(how, blocks, posts=True) for how in order}
            differences.append(got["layer"]["first_token"] - got["bulk"]["first_token"])
            posts.append((got["layer"]["post_ns"] - got["bulk"]["post_ns"]) / (LAYERS - 1) / 1e6)
        median, low, high = middle(differences)
        post_ms = max(statistics.median(posts), 0)
        rows.append({"gbps": link.gbps, "tokens": blocks * BLOCK_TOKENS, "median_ms": median,
                     "low_ms": low, "high_ms": high, "post_us": post_ms * 1e3,
                     "predicted_ms": gain_ms(link.gbps, blocks, post_ms)})
    return rows


def pays_from(rows, high):
    """The shortest prompt from which on all gain, by a key of the rows."""
    pays = None
    for row in reversed(rows):
        if row[high] >= 0:
            break
        pays = row["tokens"]
    return pays


def crossing(rows):
    """What the prompts say about where streaming begins to pay."""
    pays, first = pays_from(rows, "high_ms"), rows[0]
    loses = [row["tokens"] for row in rows if row["low_ms"] > 0]
    by_hand = pays_from(rows, "predicted_ms")
    words = f"streaming pays from {pays} tokens on" if pays else "streaming was not shown to pay"
    if loses:
        words += f" and loses up to {max(loses)}"
    elif pays == first["tokens"]:
        words += ", the shortest prompt: no cross-over"
    elif pays:
        words += "; for shorter prompts the difference is within the noise"
    words += f"; by hand from {by_hand} on" if by_hand else "; by hand never"
    return {"pays_from_tokens": pays, "loses_up_to_tokens": max(loses, default=None),
            "pays_by_hand_from_tokens": by_hand, "words": words, "prompts": rows}


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


def go_first():
    """Real-time priority for this process and what it starts: others have what is left."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    except OSError as error:
        print(f"without real-time priority: {error}", file=sys.stderr)


def show(rows, crossings, cuts):
    bad = []
    print(f"{'link':>9} {'delay ms':>12} {'loss':>6} {'tokens':>6} {'payload':>8} {'how':>6} "
          f"{'stretch':>7} {'predicted':>9} {'exposed ms (95 %)':>26} {'ratio':>6}")
    for row in rows:
        delay = f"{row['delay_ms']:g}"
        if row["jitter_ms"]:
            delay += f" +- {row['jitter_ms']:g}"
        print(f"{row['gbps']:>4} Gb/s {delay:>12} {row['loss']:>6.1%} {row['tokens']:>6} "
              f"{row['payload_bytes'] / 2**20:>4.0f} MiB {row['how']:>6} {row['stretch']:>7} "
              f"{row['predicted_ms']:>9.2f} "
              f"{row['mean_ms']:>8.2f} ({row['low_ms']:>6.2f} .. {row['high_ms']:>6.2f}) "
              f"{row['ratio']:>6.3f}")
        margin = 0.15 if row["how"] == "bulk" else 0.25
        if not row["loss"] and abs(row["ratio"] - 1) > margin:
            bad.append(f"{row['gbps']} Gb/s, {row['tokens']} tokens, {row['how']}: "
                       f"{row['ratio']:.3f} of what was predicted")
    print("\nfirst token, streaming less bulk, ms (median, 95 %), and what a post costs:")
    for crossing in crossings:
        print(f"  {crossing['prompts'][0]['gbps']} Gb/s: {crossing['words']}")
        for row in crossing["prompts"]:
            print(f"    {row['tokens']:>6} tokens {row['median_ms']:>9.3f} "
                  f"({row['low_ms']:>8.3f} .. {row['high_ms']:>8.3f}), by hand "
                  f"{row['predicted_ms']:>8.3f} with posts of {row['post_us']:.1f} us")
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
    go_first()
    rows, crossings = [], []
    plan = {1: [32, 128], 10: [128, 512], 100: [128, 512]}
    for gbps, prompts in ({100: [128]} if args.quick else plan).items():
        for blocks in prompts:
            link = Link(gbps, stretch=stretch_for(gbps, blocks))
            with on(link) as pair:
                rows += exposed(link, pair, blocks, args.repeats)
        link = Link(gbps, stretch=STRETCH if gbps == 100 else 1, mtu=SHORT_MTU)
        with on(link) as pair:
            lengths = [1, 2, 3, 4, 6, 8, 16][: 4 if gbps == 1 else 7]
            crossings.append(crossing(crossover(link, pair, lengths, PAIRS)))
        print(f"{gbps} Gb/s done", file=sys.stderr)
    for delay, jitter, loss in [(5, 0, 0), (20, 2, 0), (5, 0, 0.005)][: 1 if args.quick else 3]:
        link = Link(10, delay, jitter, loss, forward=True)
        with on(link) as pair:
            rows += exposed(link, pair, 128, args.repeats)
        print(f"delay {delay} ms done", file=sys.stderr)
    cuts = cut(Link(10, 5, forward=True))
    met = show(rows, crossings, cuts)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"scale": SCALE, "exposed": rows, "cut": cuts, "first_token": crossings},
                      out, indent=1)
            out.write("\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
