#!/usr/bin/env python3
"""Scripts of cache calls answered by SGLang's own RadixCache.

usage: make_sglang.py check SGLANG FILE...           answer recorded scripts again and compare
       make_sglang.py make SGLANG DIR [--count N] [--seed S] [--harsh]    write random scripts

SGLANG is the unpacked wheel of SGLang 0.5.23 (`pip download sglang==0.5.23 --no-deps`, unzip); it
is not installed. Python needs torch only: every module of SGLang but those of the cache is
replaced by an empty one. Time is a count of the readings, so the order of events is the program's
and not the machine's.
"""
import argparse, importlib, importlib.abc, importlib.machinery, importlib.util
import itertools, json, os, random, sys, types
from array import array

SOURCE = "SGLang 0.5.23 RadixCache"
CACHE = "sglang.srt.mem_cache."
REAL = {CACHE + name for name in ("base_prefix_cache", "cache_init_params", "events",
                                  "evict_policy", "radix_cache", "utils")}


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the cache's modules in the wheel and makes up all others of the package."""

    def __init__(self, wheel):
        self.wheel = wheel

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] != "sglang":
            return None
        if name in REAL:
            place = os.path.join(self.wheel, *name.split(".")) + ".py"
            return importlib.util.spec_from_file_location(name, place)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: self.made_up(module, name)
        return module

    def made_up(self, module, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
        return getattr(module, name)

    def exec_module(self, module):
        pass


def load(wheel):
    sys.meta_path.insert(0, Stubs(os.path.abspath(wheel)))
    return importlib.import_module(CACHE + "radix_cache")


class NoMemory:
    """The tree frees its pages to an allocator; here there is none behind it."""
    device = "cpu"

    def free_segment(self, value, start_pos):
        pass


class Program:
    """One radix cache, answering the lines of a script."""

    def __init__(self, module, line):
        reading = itertools.count(1)
        module.time = types.SimpleNamespace(monotonic=lambda: next(reading),
                                            perf_counter=lambda: 0.0)
        self.module = module
        self.tree = module.RadixCache(module.CacheInitParams(
            disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=NoMemory(),
            page_size=line["page_size"], eviction_policy=line["eviction"]))
        self.locks = {}

    def answer(self, line):
        return getattr(self, line["op"].replace("cache.", ""))(line)

    def key(self, line):
        return self.module.RadixKey(array("q", line["tokens"]), line.get("extra_key"))

    def match(self, line):
        found = self.tree.match_prefix(self.module.MatchPrefixParams(key=self.key(line)))
        if "lock" in line:
            self.tree.inc_lock_ref(found.last_device_node)
            self.locks[line["lock"]] = found.last_device_node
        return {"hit_tokens": found.device_prefix_len}

    def insert(self, line):
        params = self.module.InsertParams(key=self.key(line), priority=line.get("priority", 0))
        return {"already_present": self.tree.insert(params).prefix_len}

    def unlock(self, line):
        self.tree.dec_lock_ref(self.locks.pop(line["lock"]))
        return {}

    def evict(self, line):
        gone = self.tree.evict(self.module.EvictParams(num_tokens=line["tokens"]))
        return {"evicted_tokens": gone.num_tokens_evicted}

    def state(self, line):
        nodes, pending = [], [(self.tree.root_node, 0)]
        while pending:
            parent, depth = pending.pop()
            for node in parent.children.values():
                pending.append((node, depth + len(node.key)))
                nodes.append({"extra_key": node.key.extra_key, "depth": depth,
                              "len": len(node.key), "locks": node.lock_ref,
                              "first": node.key.token_ids[0]})
        nodes.sort(key=lambda node: (node["extra_key"] or "", node["depth"], node["first"],
                                     node["len"], node["locks"]))
        return {"radix": {"evictable": self.tree.evictable_size(),
                          "protected": self.tree.protected_size(), "nodes": nodes}}


class Generator:
    """Draws lines whose runs of tokens share prefixes with earlier ones."""

    def __init__(self, rng, config, harsh):
        self.rng, self.page, self.harsh = rng, config["page_size"], harsh
        self.priorities = config["eviction"] == "priority"
        self.alphabet = rng.choice([2, 3, 60]) if harsh else 60
        self.known, self.locks, self.serial = [], [], 0

    def run(self):
        rng, page = self.rng, self.page
        base = list(rng.choice(self.known)) if self.known and rng.random() < 0.7 else []
        if base and rng.random() < 0.7:
            base = base[:rng.randrange(1, len(base) + 1)]
        tail = rng.randint(0 if base or self.harsh else 1, {1: 14, 4: 30}.get(page, 4 * page))
        base += [rng.randint(1, self.alphabet) for _ in range(tail)]
        base = base[:(30 if page == 1 else 8 * page)]
        self.known.append(base)
        line = {"tokens": base}
        if rng.random() < 0.2:
            line["extra_key"] = rng.choice("ab")
        return line

    def line(self):
        rng = self.rng
        op = rng.choices(["match", "insert", "evict", "state", "unlock"], [5, 5, 3, 3, 2])[0]
        if op == "match":
            line = {"op": "cache.match"} | self.run()
            if rng.random() < 0.35:
                line["lock"] = f"h{self.serial}"
                self.locks.append(line["lock"])
                self.serial += 1
            return line
        if op == "insert":
            line = {"op": "cache.insert"} | self.run()
            if self.priorities and rng.random() < 0.6:
                line["priority"] = rng.randint(-2, 3)
            return line
        if op == "evict":
            return {"op": "cache.evict", "tokens": rng.randint(0 if self.harsh else 1,
                                                               8 + 5 * self.page)}
        if op == "unlock" and self.locks:
            return {"op": "cache.unlock", "lock": self.locks.pop(rng.randrange(len(self.locks)))}
        return {"op": "state"}

    def lines(self):
        for _ in range(self.rng.randint(30, 300 if self.harsh else 110)):
            yield self.line()
        for lock in self.locks:
            yield {"op": "cache.unlock", "lock": lock}
        yield {"op": "state"}
        yield {"op": "cache.evict", "tokens": 1_000_000}
        yield {"op": "state"}


def make(module, folder, count, seed, harsh, policies):
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        config = {"op": "config", "layer": "cache", "cache": "radix", "preset": "sglang",
                  "page_size": rng.choice([1, 2, 4, 16] if harsh else [1, 4, 16]),
                  "eviction": rng.choice(policies)}
        ops = [config, *Generator(rng, config, harsh).lines()]
        script = {"source": SOURCE, "ops": ops, "results": answers(module, ops)}
        name = f"radix_{seed}_{number:03}{'_harsh' if harsh else ''}.json"
        with open(os.path.join(folder, name), "w") as file:
            json.dump(script, file)


def answers(module, ops):
    program = Program(module, ops[0])
    return [{}, *(program.answer(line) for line in ops[1:])]


def check(module, files):
    """Answers every script again; the number of files that differ."""
    wrong = 0
    for name in files:
        with open(name) as file:
            script = json.load(file)
        again = answers(module, script["ops"])
        for number, (line, said) in enumerate(zip(again, script["results"])):
            if line != said:
                print(f"{name} line {number}: {line}\nrecorded: {said}")
                wrong += 1
                break
    print(f"{len(files)} scripts, {wrong} differ")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("check")
    verb.add_argument("sglang")
    verb.add_argument("files", nargs="+")
    verb = verbs.add_parser("make")
    verb.add_argument("sglang")
    verb.add_argument("folder")
    verb.add_argument("--count", type=int, default=12)
    verb.add_argument("--seed", type=int, default=1)
    verb.add_argument("--eviction", nargs="+", default=["lru"],
                      choices=["lru", "lfu", "fifo", "priority"])
    verb.add_argument("--harsh", action="store_true",
                      help="few distinct tokens, page size 2, empty runs, longer scripts")
    args = parser.parse_args()
    module = load(args.sglang)
    if args.verb == "check":
        sys.exit(bool(check(module, args.files)))
    os.makedirs(args.folder, exist_ok=True)
    make(module, args.folder, args.count, args.seed, args.harsh, args.eviction)


if __name__ == "__main__":
    main()
