#!/usr/bin/env python3
"""Checks a trace against the Trace Event Format and against the rows that it was made of.

usage: perfetto_check.py TRACE ROWS

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
Exits with 1 and a message at the first thing that is wrong.
"""
import json
import sys
from collections import defaultdict
from decimal import Decimal

REQUIRED = {"ph", "ts", "pid", "tid", "name"}
PHASES = {"B", "E", "b", "e", "C", "M", "s", "f"}


def fail(text):
    sys.exit(f"trace: {text}")


def expect(found, wanted, what):
    if found != wanted:
        fail(f"{what}: {found!r} instead of {wanted!r}")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        trace = json.load(file, parse_float=Decimal)
    with open(sys.argv[2], encoding="utf-8") as file:
        rows = json.load(file)
    origin = int(trace["otherData"]["origin_ns"])

    def ns(event):
        exact = event["ts"] * 1000
        if exact != int(exact) or exact < 0:
            fail(f"ts {event['ts']} is no whole number of nanoseconds from the origin")
        return int(exact) + origin

    names, stacks, last = {}, defaultdict(list), {}
    slices, counters = [], defaultdict(list)
    open_async, requests, flows = defaultdict(list), {}, defaultdict(list)
    for event in trace["traceEvents"]:
        lacking = REQUIRED - event.keys()
        if lacking:
            fail(f"{event} lacks {sorted(lacking)}")
        phase, at, track = event["ph"], ns(event), (event["pid"], event["tid"])
        if phase not in PHASES:
            fail(f"unknown phase {phase}")
        if phase == "M" and event["name"] == "process_name":
            arm, block = event["args"]["name"].rsplit(", block ", 1)
            names[event["pid"]] = (arm, int(block))
        if phase in "BE":
            if at < last.get(track, 0):
                fail(f"ts goes back on {track}: {event}")
            last[track] = at
        if phase == "B":
            stacks[track].append((event, at, []))
        if phase == "E":
            if not stacks[track]:
                fail(f"an end without a begin: {event}")
            begin, start, children = stacks[track].pop()
            expect(event["name"], begin["name"], "name of an end")
            done = (begin, start, at, children)
            if stacks[track]:
                stacks[track][-1][2].append(done)
            else:
                slices.append(done)
        if phase in "be":
            key = (event["pid"], event["cat"], event["id"])
            if phase == "b":
                open_async[key].append((event, at))
                if len(open_async[key]) == 1:
                    requests[key] = {"args": event["args"], "from": at, "parts": []}
            else:
                if not open_async[key]:
                    fail(f"an async end without a begin: {event}")
                begin, start = open_async[key].pop()
                expect(event["name"], begin["name"], "name of an async end")
                if open_async[key]:
                    requests[key]["parts"].append((begin["name"], start, at))
                else:
                    requests[key]["to"] = at
        if phase == "C":
            counters[(event["pid"], event["name"])].append((at, event["args"]))
        if phase in "sf":
            flows[event["id"]].append((phase, at))
    for track, stack in stacks.items():
        if stack:
            fail(f"{len(stack)} begins without an end on {track}")
    for key, stack in open_async.items():
        if stack:
            fail(f"async {key} is never ended")
    for ident, ends in flows.items():
        expect([phase for phase, _ in ends], ["s", "f"], f"flow {ident}")
        if ends[0][1] > ends[1][1]:
            fail(f"flow {ident} goes back in time")
    check_steps(rows, names, slices, counters)
    check_requests(rows, names, requests)
    print(f"{len(rows['steps'])} steps, {len(rows['requests'])} requests, {len(flows)} flows")


def check_steps(rows, names, slices, counters):
    found = {}
    for begin, start, end, children in slices:
        if begin.get("cat") == "step":
            key = (*names[begin["pid"]], begin["args"]["step"])
            found[key] = (begin, start, end, children)
    expect(len(found), len(rows["steps"]), "number of steps")
    for row in rows["steps"]:
        begin, start, end, children = found[(row["arm"], row["block"], row["step"])]
        what = f"step {row['step']} of {row['arm']}"
        expect(start, row["start"], f"start of {what}")
        expect(end - start, row["duration"], f"duration of {what}")
        if row["kernel"] is not None:
            kernel = sum(c[2] - c[1] for c in children if c[0]["cat"] == "kernel")
            expect(kernel, row["kernel"], f"kernel time of {what}")
            total = sum(c[2] - c[1] for c in children)
            expect(total, row["duration"], f"parts of {what}")
        pid = begin["pid"]
        buckets = [a for at, a in counters[(pid, "KV blocks")] if at == end]
        wanted = dict(zip(("active", "reclaimable", "free"), row["buckets"]))
        if wanted not in buckets:
            fail(f"blocks after {what}: {wanted} is not in {buckets}")
        queue = [a for at, a in counters[(pid, "requests")] if at == end]
        if dict(zip(("running", "waiting"), row["queue"])) not in queue:
            fail(f"queue after {what}")


def check_requests(rows, names, requests):
    found = {}
    for (pid, _, _), request in requests.items():
        found[(*names[pid], request["args"]["request"])] = request
    expect(len(found), len(rows["requests"]), "number of requests")
    for row in rows["requests"]:
        request = found[(row["arm"], row["block"], row["request"])]
        what = f"request {row['request']} of {row['arm']}"
        expect(request["from"], row["intended"], f"arrival of {what}")
        wanted = []
        if row["sent"] is not None:
            wanted.append(("queue of the client", row["intended"], row["sent"]))
            if row["first"] is not None:
                wanted.append(("queue of the server and prefill", row["sent"], row["first"]))
                if row["last"] is not None:
                    wanted.append(("decode", row["first"], row["last"]))
        expect(request["parts"], wanted, f"parts of {what}")
        ends = [row["closed"]] if row["closed"] is not None else []
        ends = ends or [wanted[-1][2] if wanted else row["intended"]]
        expect(request["to"], max(ends), f"end of {what}")


main()
