"""The processes of kills.py, and the links between them.

```text
client -> router -> prefill workers            http
          router -> Front -> decode workers    http; names the Link instead of the KV port
          decode workers -> Link -> prefill    KV
```

Workers tell each other where their KV is, so a proxy in between must be named in the hand-over:
`Front` replaces the port in the requests to a decode worker. Both ports have five digits, so the
length of a body stays.
"""
import asyncio, contextlib, json, os, signal, socket, subprocess

READY = "listening on http://"
HOST = "127.0.0.1"


def free_ports(count):
    """Ports below those that the system gives to clients, so that a restarted worker gets its own
    again."""
    taken, port = [], 20_000 + os.getpid() % 8_000
    while len(taken) < count:
        port += 1
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            taken.append(port)
    return taken


class Process:
    """A child whose log is kept."""

    def __init__(self, name, words, folder):
        self.name, self.words = name, words
        self.log = os.path.join(folder, f"{name}.log")
        self.child, self.ready, self.stopped = None, False, False

    async def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=log)
        loop = asyncio.get_running_loop()
        line = await loop.run_in_executor(None, self.child.stdout.readline)
        if not line.decode().startswith(READY):
            with open(self.log, errors="replace") as log:
                raise RuntimeError(f"{self.name} does not start: {log.read()[-500:]}")
        self.ready = True

    @property
    def well(self):
        """Whether it has started and runs."""
        return self.ready and not self.stopped

    def kill(self):
        self.ready = False
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()
        self.stopped = False

    def pause(self):
        self.stopped = True
        os.kill(self.child.pid, signal.SIGSTOP)

    def resume(self):
        if self.stopped:
            os.kill(self.child.pid, signal.SIGCONT)
        self.stopped = False


class Worker(Process):
    """A worker, which always comes back at the same ports."""

    def __init__(self, name, role, ports, command, folder):
        self.role = role
        self.port, self.kv_port = ports
        words = command + ["--role", role, "--port", str(self.port)]
        if role == "prefill":
            words += ["--kv-listen", f"{HOST}:{self.kv_port}"]
        super().__init__(name, words, folder)
        self.front = None

    async def start(self):
        await super().start()
        if self.front:
            await self.front.open()

    def kill(self):
        # First the process, so that requests find what they would find without a proxy.
        super().kill()
        if self.front:
            self.front.close()


async def listen(accept, port):
    """A server on a port that it had before, and that another program may have for a moment."""
    for _ in range(100):
        try:
            return await asyncio.start_server(accept, HOST, port)
        except OSError as error:
            taken = error
            await asyncio.sleep(0.1)
    raise RuntimeError(f"port {port} of the proxy stays taken: {taken}")


class Link:
    """Carries the KV of a prefill worker, and breaks when it is told to."""

    def __init__(self, port, to):
        self.port, self.to = port, to
        self.pairs, self.server = set(), None
        self.cut_at = self.flip_at = None
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.carried = 0
        self.on_act = lambda what: None

    async def open(self):
        self.server = await listen(self.accept, self.port)

    async def accept(self, reader, writer):
        pair = [writer]
        self.pairs.add(tuple(pair))
        try:
            there, back = await asyncio.open_connection(HOST, self.to)
        except OSError:
            self.pairs.discard(tuple(pair))
            writer.transport.abort()
            return
        self.pairs.discard((writer,))
        pair = (writer, back)
        self.pairs.add(pair)
        both = [asyncio.create_task(self.pump(reader, back, False)),
                asyncio.create_task(self.pump(there, writer, True))]
        await asyncio.wait(both)
        self.pairs.discard(pair)
        for end in pair:
            end.close()

    async def pump(self, reader, writer, from_source):
        try:
            while piece := await reader.read(16384):
                await self.flowing.wait()
                if from_source:
                    piece = self.meddle(piece)
                writer.write(piece)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()

    def meddle(self, piece):
        """What is armed happens at its byte of what the prefill worker sends."""
        start, end = self.carried, self.carried + len(piece)
        self.carried = end
        if self.flip_at is not None and self.flip_at < end:
            at = max(self.flip_at - start, 0)
            piece = piece[:at] + bytes([piece[at] ^ 0x10]) + piece[at + 1:]
            self.flip_at = None
            self.on_act("flipped bit")
        if self.cut_at is not None and self.cut_at < end:
            self.cut()
            self.on_act("cut in a transfer")
            raise ConnectionResetError
        return piece

    def cut(self):
        """Resets every connection."""
        self.cut_at = None
        for pair in list(self.pairs):
            for end in pair:
                end.transport.abort()

    def close(self):
        self.server.close()
        self.cut()

    def arm(self, what, bytes_from_now):
        setattr(self, what, self.carried + bytes_from_now)


class Front:
    """Http in front of a decode worker. `spoil` is a planted fault: what it makes of a piece of an
    answer; none stops the answer."""

    def __init__(self, port, to, ports, spoil=None):
        self.port, self.to, self.ports, self.spoil = port, to, ports, spoil
        self.server = None

    async def open(self):
        self.server = await listen(self.accept, self.port)

    def close(self):
        self.server.close()

    async def accept(self, reader, writer):
        back = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = header(head, b"content-length")
            body = await reader.readexactly(int(length or 0))
            for real, proxy in self.ports.items():
                body = body.replace(b'"remote_port":%d' % real, b'"remote_port":%d' % proxy)
            there, back = await asyncio.open_connection(HOST, self.to)
            back.write(head + body)
            answer = asyncio.create_task(self.answer(there, writer, b"/v1/completions" in head))
            # Whoever leaves closes its connection, and the worker must see that.
            gone = asyncio.create_task(reader.read(1))
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            answer.cancel()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, back):
                if end:
                    end.close()

    async def answer(self, there, writer, generates):
        try:
            while piece := await there.read(65536):
                if self.spoil and generates:
                    piece = self.spoil(piece)
                    if piece is None:
                        await asyncio.sleep(3600)
                writer.write(piece)
                await writer.drain()
        except OSError:
            writer.transport.abort()


def header(head, name):
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


async def get(port, path):
    """The body of a small answer; none when there is none in time."""
    try:
        return await asyncio.wait_for(_get(port, path), 5)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        return None


async def _get(port, path):
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return body.decode() if head.split(b" ")[1:2] == [b"200"] else None


async def get_json(port, path):
    body = await get(port, path)
    return None if body is None else json.loads(body)


async def rows_of(port, path):
    """The JSON lines of an answer that goes on, as they come, until it ends."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        rest = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            rest += (await reader.readexactly(size + 2))[:-2]
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield json.loads(line)
    finally:
        writer.close()
