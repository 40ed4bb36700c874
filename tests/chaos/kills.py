#!/usr/bin/env python3
"""Kills, stops and cuts at random moments, in real processes.

usage: kills.py [--events N] [--seed N] [--policy recompute|fail] [--plant FAULT]
                [--kv-granularity bulk|chunk|layer]

Starts a router, two prefill and two decode workers (generated model, exact arithmetic), and sends
it a steady mix of requests whose answers one server has given before. Meanwhile workers are killed
and started again, or stopped for a while, and the connections that carry KV are cut, frozen, or
have a bit flipped. What happens, to whom, and after what pause is drawn from the seed.

With `--kv-granularity` both prefill workers have that granularity, and with `chunk` and `layer`
they stream prompts of two blocks and more, which takes several steps: KV is lost while it is
computed. Without it one sends in bulk and one by layers, from 256 tokens on while it computes.

Checked for both policies, exit code 1 otherwise:

- Every request ends: with the tokens of one server, or with an error. Tokens that came before an
  error are right as well.
- An error has a cause. A request that is not streamed has none, because it can be started again.
  Of a streamed one the worker that the error names was killed meanwhile; under `fail` its KV may
  also have been lost with a worker or a link that something happened to meanwhile.
- Afterwards no worker has a block in transfer, a request or a block less than at its start; no
  thread has panicked; the router has no request on any worker's account; all requests once more
  are all answered right, and in two parts.
- The events were hard enough: requests were started again, and transfers failed; where prompts are
  streamed, also transfers that had begun while their prompt was computed.

`--plant` puts in a fault that the check must find: `token` (another token in an answer), `gap` (a
part of an answer is missing), `hang` (an answer stops), `hold` (KV that nobody fetches).
"""
import argparse, asyncio, collections, math, os, random, re, sys, tempfile, time

import load
from rig import Front, Link, Process, Worker, free_ports, get, get_json, rows_of

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
POLICIES = ["recompute", "fail"]
CLIENTS, BODIES = 16, 54
LEASE_S = 2.0
# What a worker waits for a peer (not an option): a stop that is longer fails transfers by itself.
PATIENCE_S = 10.0
SERVE = ["--numerics", "exact", "--threads", "1", "--model"]
# How often each kind comes.
KINDS = {"kill": 26, "stop": 14, "long stop": 3, "cut": 14, "cut in a transfer": 22,
         "flipped bit": 14, "frozen link": 9}
# Where prompts are streamed: from so many tokens on, and so many in a step. A larger model computes
# them, so that a prompt takes longer than its claim.
STREAM = ["--kv-stream-min-tokens", "32", "--max-batched-tokens", "16"]
# The router asks a worker so often whether it is up (with some time for the answer).
POLL_S = 0.3
# What is left must be gone after that: stopped workers, their peers' patience, leases.
REST_S = PATIENCE_S + LEASE_S + 15


def streams(args):
    return args.kv_granularity in ("chunk", "layer")


def model(args):
    return "synthetic" if streams(args) else "synthetic-tiny"


class Event:
    """Something that happens to a worker, or to the link of one."""

    def __init__(self, kind, worker):
        self.kind, self.worker = kind, worker
        self.begin, self.end = time.monotonic(), math.inf

    def over(self):
        self.end = time.monotonic()

    def meets(self, row):
        return self.begin <= row.finish and row.begin - POLL_S <= self.end


class Run:
    """One policy, from the start to the verdict."""

    def __init__(self, args, policy, folder, expected):
        self.args, self.policy, self.folder, self.expected = args, policy, folder, expected
        self.rng = random.Random(f"{args.seed} {policy} events")
        self.bodies = load.bodies(args.seed, BODIES)
        self.rows, self.events, self.acted, self.bad = [], [], [], []
        self.later, self.over, self.planted = set(), False, False
        self.counted = {}
        self.granularity, self.early = args.kv_granularity, collections.Counter()
        self.streams = streams(args)

    async def set_up(self):
        ports = free_ports(13)
        serve = [self.args.binary, "serve", "--until-stdin-closes", *SERVE, model(self.args),
                 "--num-blocks", "128", "--kv-failure", self.policy, "--kv-lease-ms", str(int(LEASE_S * 1e3))]
        roles = ["prefill", "prefill", "decode", "decode"]
        # One of each way to move KV.
        ways = [["--kv-mode", "pull"], ["--kv-mode", "push"]]
        if self.granularity:
            ways = [way + ["--kv-granularity", self.granularity] for way in ways]
        else:
            ways[1] += ["--kv-granularity", "layer"]
        if self.streams:
            ways = [way + STREAM for way in ways]
        ways += [[], []]
        self.workers = [Worker(f"{role}-{n}", role, ports[2 * n:2 * n + 2], serve + way,
                               self.folder) for n, (role, way) in enumerate(zip(roles, ways))]
        self.links, names = {}, {}
        for worker, port in zip(self.workers[:2], ports[8:10]):
            self.links[worker.name] = link = Link(port, worker.kv_port)
            names[worker.kv_port] = port
            link.on_act = lambda kind, n=self.workers.index(worker): self.acts(kind, n)
            await link.open()
        for worker, port in zip(self.workers[2:], ports[10:12]):
            worker.front = Front(port, worker.port, names, self.spoil())
        await asyncio.gather(*(worker.start() for worker in self.workers))
        url = "http://127.0.0.1:{}".format
        words = [self.args.binary, "router", "--until-stdin-closes", "--port", str(ports[12]),
                 "--prefill", *(url(w.port) for w in self.workers[:2]),
                 "--decode", *(url(w.front.port) for w in self.workers[2:]),
                 "--hold-max-ms", "500", "--max-retries", "20"]
        self.router, self.port = Process("router", words, self.folder), ports[12]
        await self.router.start()
        states = [await get_json(worker.port, "/worker") for worker in self.workers]
        self.free = [state["blocks_free"] for state in states]

    def spoil(self):
        """The planted fault of an answer, in the middle of the run."""
        def once(fault):
            def spoiled(piece):
                at = piece.find(b'"token_ids":[') + 13
                if self.planted or len(self.events) < 5 or at < 13 or piece[at:at + 1] == b"]":
                    return piece
                self.planted = True
                return fault(piece, at)
            return spoiled
        digit = lambda piece, at: b"1" if piece[at:at + 1] != b"1" else b"2"
        faults = {"token": lambda piece, at: piece[:at] + digit(piece, at) + piece[at + 1:],
                  "gap": lambda piece, at: piece[:at] + piece[piece.index(b"]", at):],
                  "hang": lambda piece, at: None}
        fault = faults.get(self.args.plant)
        return fault and once(fault)

    async def client(self, number):
        rng = random.Random(f"{self.args.seed} {self.policy} client {number}")
        while not self.over:
            n = rng.randrange(BODIES)
            leave = rng.uniform(0.01, 0.2) if rng.random() < 0.05 else None
            row = await load.ask(self.port, n, self.bodies[n], rng.random() < 0.5,
                                 self.expected[n], leave)
            self.rows.append(row)
            # A client of a router without workers must not spin.
            await asyncio.sleep(0.02 if row.end == "error" else 0)

    def after(self, seconds, act, event):
        async def wait():
            await asyncio.sleep(seconds)
            try:
                result = act()
                if asyncio.iscoroutine(result):
                    await result
            except RuntimeError as error:
                self.bad.append(str(error))
            event.over()
        task = asyncio.create_task(wait())
        self.later.add(task)
        task.add_done_callback(self.later.discard)

    def happen(self):
        """One event, to a worker that is well or to a link."""
        kind = self.rng.choices(list(KINDS), KINDS.values())[0]
        well = [worker for worker in self.workers if worker.well]
        pick, seconds = self.rng.random(), self.rng.uniform(0.05, 0.8)
        reach = int(10 ** self.rng.uniform(1, 5))
        if not well:
            return
        if kind in ("kill", "stop", "long stop"):
            worker = well[int(pick * len(well))]
        else:
            worker = self.workers[int(pick * len(self.links))]
            link = self.links[worker.name]
        event = Event(kind, self.workers.index(worker))
        self.events.append(event)
        if kind == "kill":
            worker.kill()
            self.after(seconds, worker.start, event)
        elif kind in ("stop", "long stop"):
            worker.pause()
            stop = PATIENCE_S + 2 if kind == "long stop" else 2 * seconds
            self.after(stop, worker.resume, event)
        elif kind == "cut":
            link.cut()
            event.over()
        elif kind == "frozen link":
            link.flowing.clear()
            self.after(3 * seconds, link.flowing.set, event)
        else:
            # Comes to pass later, or not at all when another comes first.
            link.arm("flip_at" if kind == "flipped bit" else "cut_at", reach)

    def acts(self, kind, worker):
        """Something that was armed comes to pass."""
        event = Event(kind, worker)
        event.over()
        self.acted.append(event)

    async def chaos(self):
        clients = [asyncio.create_task(self.client(n)) for n in range(CLIENTS)]
        await asyncio.sleep(1)
        while len(self.events) < self.args.events:
            self.happen()
            await asyncio.sleep(self.rng.uniform(0.05, 0.45))
        while self.later:
            await asyncio.sleep(0.1)
        self.over = True
        await asyncio.gather(*clients)

    async def check_rest(self):
        """What is left when nobody asks for anything any more."""
        end = time.monotonic() + REST_S
        while True:
            if self.args.plant == "hold":
                body = self.bodies[7] | {"kv_transfer_params": {"do_remote_decode": True}}
                await load.ask(self.workers[0].port, 7, body, False, None)
            left = await self.left_over()
            if not left or time.monotonic() > end:
                break
            await asyncio.sleep(0.3)
        self.bad += left
        for process in [*self.workers, self.router]:
            with open(process.log, errors="replace") as log:
                self.bad += [f"{process.name}: {line.strip()}" for line in log if "panick" in line]

    async def left_over(self):
        left = []
        for worker, free in zip(self.workers, self.free):
            state = await get_json(worker.port, "/worker")
            if state is None:
                left.append(f"{worker.name} does not answer")
                continue
            due = {"running": 0, "waiting": 0, "blocks_in_transfer": 0, "blocks_free": free}
            left += [f"{worker.name}: {key} is {state[key]}, was {value}"
                     for key, value in due.items() if state[key] != value]
        page = await get(self.port, "/metrics") or ""
        names = ["live_requests", "queue_depth", "held_depth", "worker_prefills",
                 "worker_prefill_tokens", "worker_kept", "worker_decodes", "worker_blocks"]
        for line in page.splitlines():
            name = line.split("{")[0].split(" ")[0].removeprefix("prefillbench_router_")
            if name in names and float(line.split()[-1]) != 0:
                left.append(f"router: {line}")
            if name == "worker_up" and float(line.split()[-1]) != 1:
                left.append(f"router: {line}")
        return left if page else left + ["the router does not answer"]

    async def once_more(self):
        """Every request again, in peace."""
        for n, body in enumerate(self.bodies):
            row = await load.ask(self.port, n, body, n % 2 == 0, self.expected[n])
            if (row.end, row.route) != ("ok", "split"):
                self.bad.append(f"in peace, request {n}: {row.end}, {row.route}: {row.detail}")

    def check_rows(self):
        for row in self.rows:
            what = f"request {row.number} ({'' if row.stream else 'not '}streamed): {row.detail}"
            if row.end in ("wrong", "lost"):
                self.bad.append(f"{row.end}: {what}")
            elif row.end == "error" and not row.stream:
                self.bad.append(f"could have been started again: {what}")
            elif row.end == "error" and not self.has_cause(row):
                self.bad.append(f"an error without a cause: {what}; "
                                f"meanwhile: {sorted(self.met(row)) or 'nothing'}")

    def met(self, row):
        """What happened during a request, and to which workers."""
        return {(event.worker, event.kind) for event in self.events + self.acted
                if event.meets(row)}

    def has_cause(self, row):
        """Whether something happened meanwhile to those whose fault the error is said to be."""
        met = self.met(row)
        named = re.search(r"worker (\d) (answered 503)?", row.detail)
        if named and named[2]:
            # The decode worker says that KV did not come from whichever prefill worker it was, or
            # that it is gone: then it may have gone with another decode worker that had claimed it.
            due = {0, 1, int(named[1])} | ({2, 3} if "nothing is held" in row.detail else set())
            return self.policy == "fail" and any(worker in due for worker, _ in met)
        at = [int(named[1])] if named else [2, 3]
        return all((worker, "kill") in met for worker in at)

    async def watch(self):
        """What decode workers count, before it dies with them."""
        while not self.over:
            for worker in self.workers[2:]:
                if worker.well:
                    pid = worker.child.pid
                    page = await get(worker.port, "/metrics") or ""
                    for line in page.splitlines():
                        if line.startswith("prefillbench_kv_transfers_"):
                            name, value = line.rsplit(" ", 1)
                            self.counted[pid, name] = int(float(value))
            await asyncio.sleep(0.2)

    async def follow(self):
        """How transfers ended that had begun while their prompt was computed."""
        async for row in rows_of(self.port, "/transfers?from=0"):
            if row.get("early_bytes"):
                self.early[row["ended"]] += 1

    def total(self, name):
        """A sum over all processes that there were; what a killed one counted last is missing."""
        return sum(value for (_, line), value in self.counted.items()
                   if line.split("{")[0] == f"prefillbench_kv_transfers_{name}_total")

    def check_hard(self):
        """A run that hits nothing proves nothing."""
        found = {"starts again": sum(row.retries for row in self.rows),
                 "failed transfers": self.total("failed"),
                 "received transfers": self.total("received")}
        if self.policy == "recompute":
            found["recomputed prompts"] = self.total("recomputed")
        if self.streams:
            found["transfers begun early"] = self.early.total()
            found["of them lost"] = self.early.total() - self.early["acknowledged"]
        if self.args.events >= 100:
            self.bad += [f"too tame: no {name}" for name, value in found.items() if not value]
        return found

    def table(self, found):
        kinds = collections.Counter(event.kind for event in self.events)
        acted = collections.Counter(event.kind for event in self.acted)
        how = f", {self.granularity}" if self.granularity else ""
        print(f"\npolicy {self.policy}, seed {self.args.seed}{how}: {len(self.events)} events in "
              f"{self.events[-1].begin - self.events[0].begin:.0f} s")
        print("  " + ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS))
        print(f"  came to pass: {acted['cut in a transfer']} cuts in a transfer, "
              f"{acted['flipped bit']} flipped bits")
        print(f"  {'':14}{'requests':>9}{'right':>7}{'error':>7}{'left':>6}{'wrong':>7}{'lost':>6}"
              f"{'in two parts':>14}{'started again':>15}")
        for stream, name in [(False, "not streamed"), (True, "streamed")]:
            rows = [row for row in self.rows if row.stream == stream]
            ends = collections.Counter(row.end for row in rows)
            print(f"  {name:14}{len(rows):>9}" + "".join(
                f"{ends[end]:>{width}}" for end, width in
                [("ok", 7), ("error", 7), ("left", 6), ("wrong", 7), ("lost", 6)])
                + f"{sum(row.route == 'split' for row in rows):>14}"
                + f"{sum(row.retries > 0 for row in rows):>15}")
        print("  " + ", ".join(f"{value} {name}" for name, value in found.items()))
        errors = collections.Counter(re.sub(r"worker \d", "a worker", row.detail)
                                     for row in self.rows if row.end == "error")
        for line, count in errors.most_common():
            print(f"  {count:>5} {line}")
        for line, count in collections.Counter(self.bad).most_common(20):
            print(f"  NOT MET: {line}" + (f" ({count} times)" if count > 1 else ""))

    async def go(self):
        await self.set_up()
        try:
            watching = asyncio.create_task(self.watch())
            following = asyncio.create_task(self.follow())
            await self.chaos()
            await watching
            self.check_rows()
            await self.check_rest()
            if self.args.plant != "hold":
                await self.once_more()
                await self.check_rest()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        finally:
            await self.stop()
        self.table(self.check_hard())
        return not self.bad

    async def stop(self):
        for process in [*self.workers, self.router]:
            if process.ready:
                process.resume()
                process.kill()
        for link in self.links.values():
            link.close()
        # Connections end by themselves now.
        await asyncio.sleep(0.2)


async def alone(args, folder):
    """What one server answers, which is what is right."""
    port = free_ports(1)[0]
    server = Process("alone", [args.binary, "serve", "--until-stdin-closes", *SERVE, model(args),
                               "--port", str(port)], folder)
    await server.start()
    try:
        rows = [await load.ask(port, n, body, False, None)
                for n, body in enumerate(load.bodies(args.seed, BODIES))]
    finally:
        server.kill()
    for row in rows:
        if row.end != "ok":
            raise SystemExit(f"one server alone: request {row.number}: {row.end}: {row.detail}")
    return [row.tokens for row in rows]


async def run(args):
    args.binary = os.path.abspath(args.binary)
    met = True
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        expected = await alone(args, folder)
        for policy in [args.policy] if args.policy else POLICIES:
            one = os.path.join(folder, policy)
            os.mkdir(one)
            met &= await Run(args, policy, one, expected).go()
    print("\n" + ("all met" if met else "NOT MET"))
    return 0 if met else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", choices=POLICIES, help="one of the two")
    parser.add_argument("--plant", choices=["token", "gap", "hang", "hold"],
                        help="a fault to be found")
    parser.add_argument("--kv-granularity", choices=["bulk", "chunk", "layer"],
                        help="of both prefill workers; chunk and layer also stream prompts")
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "prefillbench"))
    args = parser.parse_args()
    if not os.path.exists(args.binary):
        raise SystemExit("build it first: cargo build --release -p prefillbench")
    return asyncio.run(run(args))


if __name__ == "__main__":
    sys.exit(main())
