"""Mooncake's transfer engine on behalf of a process that cannot link to it.

usage: python -c SCRIPT HOST, with one end of a Unix socket as standard input.

Mooncake's wheel has a Python module and no C interface. This process has the engine; the one that
started it has the bytes, in memory files that both use. On standard input come pairs of
descriptors, one pair for each connection: a socket and a memory file, whose length is in the
message. The file is mapped and registered with the engine, so that a peer can read it, and the
socket is asked to read from the peer's file into this one. All numbers are little-endian.

    -> 8 bytes: length of the file          (standard input, with both descriptors)
    <- 8 bytes: its address, or a status below 0
    -> 2 bytes: length of the peer's name, then the name
    -> 20 bytes: address at the peer, offset in the file, bytes     (again and again)
    <- 4 bytes: status, 0 when the bytes are there

It ends when standard input does, however its owner ended.
"""

import ctypes
import mmap
import os
import socket
import struct
import sys
import threading
import time

# Maps that the engine may still write to.
KEPT = []
# How long a file stays registered when its connection has ended, s. A peer that still reads then
# gets what lies there, of which nothing comes; refused, it would lose its connection, and after some
# of those Mooncake fails other reads from this engine too, for a second.
GRACE_S = 5


def main():
    control, host = socket.socket(fileno=0), sys.argv[1]
    # Nothing from the directory that its owner happens to be in.
    sys.path = [path for path in sys.path if path]
    try:
        # Python without the module, or the module without its libraries.
        from mooncake.engine import TransferEngine
    except Exception as error:
        problem = " ".join(str(error).split())
        control.sendall(f"missing {problem[:2000]}\n".encode())
        return
    engine = TransferEngine()
    status = engine.initialize(host, "P2PHANDSHAKE", "tcp", "")
    if status != 0:
        control.sendall(f"refused {status}\n".encode())
        return
    control.sendall(f"ready {host}:{engine.get_rpc_port()}\n".encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 8, 2)
        if len(message) != 8 or len(descriptors) != 2:
            # Threads may be within the engine: nothing is waited for.
            os._exit(0)
        length = struct.unpack("<Q", message)[0]
        connection = socket.socket(fileno=descriptors[0])
        arguments = (engine, connection, descriptors[1], length)
        threading.Thread(target=serve, args=arguments, daemon=True).start()


def serve(engine, connection, file, length):
    """One connection, until its socket closes."""
    memory = mmap.mmap(file, length)
    os.close(file)
    view = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(view)
    status = engine.register_memory(address, length)
    with connection:
        try:
            connection.sendall(struct.pack("<q", address if status == 0 else -abs(status)))
            if status == 0:
                answer(engine, connection, memory, address)
        except OSError:
            # The owner has gone.
            pass
    if status == 0:
        time.sleep(GRACE_S)
        engine.unregister_memory(address)
    del view


def answer(engine, connection, memory, address):
    """Reads what is asked for."""
    size = exactly(connection, 2)
    name = exactly(connection, struct.unpack("<H", size)[0]) if size else None
    if name is None:
        return
    peer = name.decode()
    while request := exactly(connection, 20):
        there, at, count = struct.unpack("<QQI", request)
        if at + count > len(memory):
            status = -22
        else:
            status = engine.transfer_sync_read(peer, address + at, there, count)
        if status != 0 and memory not in KEPT:
            # What did not end in time may be written for as long as the engine likes.
            KEPT.append(memory)
        connection.sendall(struct.pack("<i", status))


def exactly(connection, count):
    """So many bytes; none when the socket closes."""
    received = connection.recv(count, socket.MSG_WAITALL)
    return received if len(received) == count else None


main()
