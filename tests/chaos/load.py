"""The requests of kills.py: what is asked, what one server answers, and how an answer ends."""
import asyncio, json, random, time

from rig import HOST, header

# Blocks have 16 tokens.
LENGTHS = [1, 15, 16, 17, 33, 48, 70, 130, 255]
SILENCE_S = 90


def bodies(seed, count):
    """Prompts of all lengths, some behind a common beginning, greedy and drawn."""
    rng = random.Random(f"{seed} bodies")
    common = [rng.randrange(10, 250) for _ in range(64)]
    out = []
    for n in range(count):
        length = LENGTHS[n % len(LENGTHS)]
        prompt = [rng.randrange(10, 250) for _ in range(length)]
        if n % 4 == 0:
            prompt = common[:rng.choice([16, 32, 64])] + prompt
        body = {"prompt": prompt, "max_tokens": rng.choice([2, 17, 100, 250]), "ignore_eos": True,
                "return_token_ids": True, "temperature": 0}
        if n % 2:
            body |= {"temperature": 1, "seed": n}
        out.append(body)
    return out


class Row:
    """One request and its end. `end` is ok, error, wrong, lost or left."""

    def __init__(self, number, stream):
        self.number, self.stream = number, stream
        self.begin, self.finish = time.monotonic(), None
        self.end, self.detail = "lost", "no end"
        self.route, self.retries = "-", 0
        self.tokens = []

    def ends(self, end, detail=""):
        self.end, self.detail, self.finish = end, detail, time.monotonic()
        return self


async def ask(port, number, body, stream, expected, leave_after=None):
    """Sends a request and judges its end. Leaves it after `leave_after` seconds if that is given.
    `expected` are the tokens that one server gives; none when this is that server."""
    row = Row(number, stream)
    task = asyncio.create_task(_ask(port, body, row, expected))
    done, _ = await asyncio.wait([task], timeout=leave_after or SILENCE_S)
    if done:
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if leave_after:
        return row.ends("left")
    return row.ends("lost", f"no end within {SILENCE_S} s")


async def _ask(port, body, row, expected):
    body = body | {"stream": row.stream}
    if row.stream:
        body["stream_options"] = {"include_usage": True}
    text = json.dumps(body).encode()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                     b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
                     + text)
        head = await reader.readuntil(b"\r\n\r\n")
        row.route = (header(head, b"x-prefillbench-route") or b"-").decode()
        row.retries = int(header(head, b"x-prefillbench-retries") or 0)
        status = int(head.split(b" ")[1])
        answer = await whole(reader, head)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        return row.ends("lost", f"cut off: {type(error).__name__} {error}")
    finally:
        if writer:
            writer.close()
    return judge(row, status, answer, expected)


async def whole(reader, head):
    """A body to its proper end, in whichever way that is told."""
    if (header(head, b"transfer-encoding") or b"").lower() != b"chunked":
        return await reader.readexactly(int(header(head, b"content-length")))
    out = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        out += (await reader.readexactly(size + 2))[:-2]
    return out


def documents(answer):
    """What the events of a stream say, and whether it came to its proper end."""
    events = [part for part in answer.decode().split("\n\n") if part]
    said = [part.removeprefix("data: ") for part in events]
    done = bool(said) and said[-1] == "[DONE]"
    return [json.loads(part) for part in said if part != "[DONE]"], done


def judge(row, status, answer, expected):
    """The right tokens; or an error that says so, after tokens that are right as far as they go."""
    try:
        parts, done = documents(answer) if row.stream and status == 200 else ([json.loads(answer)],
                                                                              True)
    except ValueError as error:
        return row.ends("wrong", f"no JSON: {error}")
    finish, usage = None, None
    for part in parts:
        for choice in part.get("choices", []):
            row.tokens += choice.get("token_ids") or []
            finish = choice.get("finish_reason") or finish
        usage = part.get("usage") or usage
    error = next((part["error"] for part in parts if part.get("error")), None)
    if expected is not None and row.tokens != expected[:len(row.tokens)]:
        return row.ends("wrong", f"tokens {row.tokens}, expected {expected}")
    if not done:
        return row.ends("lost", "a stream without [DONE]")
    if error:
        return row.ends("error", f"{error.get('code', status)} {error.get('message', '')}")
    if status != 200:
        return row.ends("wrong", f"status {status} without an error")
    if expected is not None and row.tokens != expected:
        return row.ends("wrong", f"{len(row.tokens)} tokens of {len(expected)} and no error")
    if finish != "length" or not usage or usage["completion_tokens"] != len(row.tokens):
        return row.ends("wrong", f"finish {finish}, usage {usage}")
    return row.ends("ok")
