"""The crowd of test_connections.py, a process of its own: idle connections, and slow ones that send a byte a second and read a byte a
second. Orders come by lines on standard input: idle, slow, close."""

import asyncio
import contextlib
import json
import resource
import socket
import struct
import sys

from harness import Failure

# What slow clients ask for: (name, bytes of a value, how many there are). On flash, since the keys of the normal client are
# set after them.
VALUES = [(b"small", 2_000, 400), (b"middle", 20_000, 200), (b"large", 200_000, 20), (b"slices", 1_000_000, 4)]

# What they ask for between: (name, bytes, how many). In DRAM, since it is set last.
HOT = (b"hot", 15_000, 60)

DESCRIPTORS = 256


def allow_descriptors(needed):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise Failure(f"expected to open {needed} files at once; only {hard} are allowed: raise the limit (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def connected(address, receive_bytes=None):
    """The server has accepted the connection once it answers; until then the kernel may hold it in its queue."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await loop.sock_connect(sock, address)
    await loop.sock_sendall(sock, b"mn\r\n")
    if await loop.sock_recv(sock, 16) != b"MN\r\n":
        raise SystemExit("expected MN from every connection")
    return sock


def end(sock):
    # No TIME_WAIT, of which there would be thousands in each turn.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Slow:
    """A client that sends a byte a second and reads as fast. Half ask for much at once, a quarter announces a value that does not come, all go on
    with small commands."""

    def __init__(self, address, number):
        self.address, self.number, self.closed = address, number, 0

    async def connect(self):
        # The smallest buffer that the system gives: it is the server that is to have what is not read.
        self.socket = await connected(self.address, 4096)
        (name, _, count), (hot, _, hots) = VALUES[self.number % len(VALUES)], HOT
        self.drip, kind = b"", self.number % 8
        if kind < 4:
            keys = [b"%s-%d %s-%d" % (name, n % count, hot, n % hots) for n in range(max(count, hots))]
            await asyncio.get_running_loop().sock_sendall(self.socket, (b"get " + b" ".join(keys) + b"\r\n") * 4)
        elif kind < 6:
            self.socket.send(b"set slow-%d 0 0 1000000\r\n" % self.number)
            self.drip = b"x" * 1_000_000 + b"\r\n"

    async def live(self):
        # A tenth of them at a time, so that they do not speak in chorus.
        await asyncio.sleep(self.number % 10 / 10)
        while True:
            try:
                self.drip = self.drip or b"set slow-%d 0 0 10\r\n0123456789\r\nget slow-%d\r\n" % (self.number, self.number)
                with contextlib.suppress(BlockingIOError):
                    self.socket.send(self.drip[:1])
                    self.drip = self.drip[1:]
                with contextlib.suppress(BlockingIOError):
                    if not self.socket.recv(1):
                        raise ConnectionError
            except OSError:
                # The server may cut off who is slow while others wait for memory; such a client comes back.
                self.closed += 1
                self.socket.close()
                await self.connect()
            await asyncio.sleep(1)


def is_alive(sock):
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def crowd(address, idle, slow):
    allow_descriptors(idle + slow + DESCRIPTORS)
    idlers, slows, lives = [], [], []
    while order := (await asyncio.to_thread(sys.stdin.readline)).strip():
        answer = {}
        if order == "idle":
            idlers = [await connected(address) for _ in range(idle)]
        elif order == "slow":
            slows = [Slow(address, number) for number in range(slow)]
            for one in slows:
                await one.connect()
            lives = [asyncio.create_task(one.live()) for one in slows]
        else:
            answer = {"alive": sum(map(is_alive, idlers)), "cut_off": sum(one.closed for one in slows)}
            for life in lives:
                # One that has ended could not come back.
                if not life.cancel():
                    life.result()
            for sock in [*idlers, *(one.socket for one in slows)]:
                end(sock)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    host, port, idle, slow = sys.argv[1:]
    asyncio.run(crowd((host, int(port)), int(idle), int(slow)))
