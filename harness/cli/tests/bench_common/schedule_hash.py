"""The hash of a small schedule, made without the program.

Three requests of `--dataset-name random`, all due at once, as
`bench --num-prompts 3 --random-input-len 20 --random-output-len 4 --seed 7` plans them. The rules:
the content's key is splitmix64 of FNV-1a of the settings as JSON; a prompt's own name is mixed from
the key and its number; each mixed name gives two token ids; the canonical form of a schedule is
JSON lines, hashed with sha256 (docs/BENCH.md).

Run it without arguments; it prints the hash that `row_45_...` in bench_rows.rs expects.
"""

import hashlib
import json

MASK = (1 << 64) - 1


def mix(value):
    z = (value + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def prompt(key, number, first, count, tokens):
    unnamed = 0x756E6E616D656421
    name = mix(mix(mix(key) ^ unnamed) ^ number)
    ids = []
    for pair in range((tokens + 1) // 2):
        drawn = mix((name + pair) & MASK)
        for half in (drawn & 0xFFFFFFFF, drawn >> 32):
            ids.append(first + ((half * count) >> 32))
    return ids[:tokens]


def main():
    seed, requests, input_len, output_len = 7, 3, 20, 4
    first, end = 1000, 16000
    dataset = {
        "dataset_name": "random",
        "input_len": input_len,
        "output_len": output_len,
        "range_ratio": 0.0,
        "prefix_len": 0,
    }
    shape = {
        "arrival": None,
        "request_rate": None,
        "burstiness": 1.0,
        "max_concurrency": None,
        "num_prompts": requests,
        "duration_s": None,
        "ramp": None,
    }
    key = mix(fnv1a(compact([dataset, shape, seed, 0]).encode()))
    lines = [
        {
            "prefillbench_schedule": 1,
            "horizon_ns": HORIZON_NS,
            "drain_ns": 600 * 10**9,
            "open": requests,
            "closed": 0,
        }
    ]
    for number in range(requests):
        ids = prompt(key, number, first, end - first, input_len)
        body = b"".join(token.to_bytes(4, "little") for token in ids)
        lines.append(
            {
                "id": number,
                "offset_ns": 0,
                "class": "random",
                "prompt_tokens": input_len,
                "prompt_sha256": hashlib.sha256(body).hexdigest(),
                "max_tokens": output_len,
                "cache_salt": None,
                "ignore_eos": False,
            }
        )
    text = "".join(compact(line) + "\n" for line in lines)
    print(hashlib.sha256(text.encode()).hexdigest())


# Nothing is due after the last request, so the horizon is one nanosecond behind it.
HORIZON_NS = 1

if __name__ == "__main__":
    main()
