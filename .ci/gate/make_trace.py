"""Prints trace.jsonl: six parts of 24 requests, in groups that share one or two names of blocks."""

import json
import random

NAMED = 512  # tokens that a name stands for, as in every trace of this format
PARTS, REQUESTS, GROUPS = 6, 24, 5
MEAN_GAP_MS = 250

draw = random.Random(1).random
at_ms, own = 0.0, 1_000
for number in range(PARTS * REQUESTS):
    group = int(GROUPS * draw())
    tokens = int(600 + 2400 * draw())
    names = [10 * group + i for i in range(1 + group % 2)]
    while len(names) * NAMED < tokens:
        names.append(own)
        own += 1
    row = {
        "timestamp": int(at_ms),
        "input_length": tokens,
        "output_length": int(4 + 10 * draw()),
        "hash_ids": names,
    }
    print(json.dumps(row))
    at_ms += MEAN_GAP_MS * 2 * draw()
