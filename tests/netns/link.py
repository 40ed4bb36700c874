"""A link between two tun devices: bandwidth, delay, jitter, loss and cuts, packet by packet."""
import fcntl, heapq, multiprocessing, os, random, select, struct, time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# A packet that finds more than this before it is lost, as at the end of a router's queue.
QUEUE_BYTES = 8 << 20


def tun(name):
    """A new tun device; it lives as long as the descriptor."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return file


class Forwarder:
    """Carries packets both ways in a process of its own."""

    def __init__(self, files, bps, delay_s, jitter_s, loss):
        self.dead = multiprocessing.Event()
        self.process = multiprocessing.Process(
            target=forward, args=(files, bps, delay_s, jitter_s, loss, self.dead), daemon=True)
        self.process.start()
        for file in files:
            os.close(file)

    def cut(self):
        """From now on nothing arrives."""
        self.dead.set()

    def stop(self):
        self.process.kill()
        self.process.join()


def forward(files, bps, delay_s, jitter_s, loss, dead):
    draw = random.Random(1)
    waiting, order = [], 0
    free, last = [0.0, 0.0], [0.0, 0.0]
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, way, packet = heapq.heappop(waiting)
            try:
                os.write(files[1 - way], packet)
            except OSError:
                pass  # The other side's queue is full or gone: the packet is lost.
        wait = max(0.0, waiting[0][0] - now) if waiting else 0.5
        for file in select.select(files, [], [], wait)[0]:
            way = files.index(file)
            for _ in range(64):
                try:
                    packet = os.read(file, 65536)
                except OSError:
                    break
                now = time.monotonic()
                queued = max(0.0, free[way] - now) * bps / 8
                if dead.is_set() or queued > QUEUE_BYTES or draw.random() < loss:
                    continue
                free[way] = max(free[way], now) + len(packet) * 8 / bps
                # Jitter delays, and does not change the order.
                arrives = free[way] + delay_s + jitter_s * draw.uniform(-1, 1)
                last[way] = max(last[way], arrives)
                order += 1
                heapq.heappush(waiting, (last[way], order, way, packet))
