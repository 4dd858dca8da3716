"""The crowd of test_connections.py, a process of its own: idle connections, and slow ones that send a byte a second and read a byte a
second. Orders come by lines on standard input: idle, slow, close."""

import contextlib
import json
import resource
import selectors
import socket
import struct
import sys
import time

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


DRIP = b"x" * 1_000_000 + b"\r\n"


def speak(sock):
    """The server has accepted the connection once it answers; until then the kernel may hold it in its queue."""
    sock.sendall(b"mn\r\n")
    if sock.recv(16) != b"MN\r\n":
        raise SystemExit("expected MN from every connection")


class Slow:
    """A client that sends a byte a second and reads as fast."""

    def __init__(self, address, number):
        self.address, self.number = address, number
        self.name, _, self.count = VALUES[number % len(VALUES)]
        self.closed = 0
        self.connect()

    def connect(self):
        self.socket = socket.socket()
        # The smallest that the system gives: it is the server that is to have what is not read.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(self.address)
        speak(self.socket)
        self.drip, self.dripped = b"", 0
        kind = self.number % 8
        if kind < 4:
            # Asks for all at once, and goes on with small commands.
            hot, _, count = HOT
            keys = [b"%s-%d %s-%d" % (self.name, n % self.count, hot, n % count) for n in range(max(self.count, count))]
            self.socket.sendall((b"get " + b" ".join(keys) + b"\r\n") * 4)
        elif kind < 6:
            # A value that does not come.
            self.socket.sendall(b"set slow-%d 0 0 1000000\r\n" % self.number)
            self.drip = DRIP
        self.socket.setblocking(False)

    def tick(self):
        try:
            with contextlib.suppress(BlockingIOError):
                if self.dripped == len(self.drip):
                    self.dripped = 0
                    self.drip = b"set slow-%d 0 0 10\r\n0123456789\r\nget slow-%d\r\n" % (self.number, self.number)
                self.socket.send(self.drip[self.dripped : self.dripped + 1])
                self.dripped += 1
            with contextlib.suppress(BlockingIOError):
                if not self.socket.recv(1):
                    raise ConnectionError
        except OSError:
            # The server may cut off who is slow while others wait for memory; such a client comes back.
            self.closed += 1
            self.socket.close()
            self.connect()


def crowd(host, port, idle, slow):
    allow_descriptors(idle + slow + DESCRIPTORS)
    address = (host, port)
    idlers, slows, due = [], [], 0.0
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)

    def end(sock):
        # No TIME_WAIT, of which there would be thousands in each turn.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    while True:
        wait = max(0, due - time.monotonic()) if slows else None
        if selector.select(wait):
            order = sys.stdin.readline().strip()
            if order == "idle":
                for _ in range(idle):
                    sock = socket.create_connection(address)
                    speak(sock)
                    idlers.append(sock)
            elif order == "slow":
                slows = [Slow(address, number) for number in range(slow)]
                due = time.monotonic()
            else:
                alive = 0
                for sock in idlers:
                    sock.setblocking(False)
                    try:
                        alive += sock.recv(1) != b""
                    except BlockingIOError:
                        alive += 1
                    except OSError:
                        pass
                    end(sock)
                for one in slows:
                    end(one.socket)
                print(json.dumps({"alive": alive, "cut_off": sum(one.closed for one in slows)}), flush=True)
                idlers, slows = [], []
                if order != "close":
                    return
                continue
            print("{}", flush=True)
        elif slows:
            # A tenth of them at a time, so that they do not speak in chorus.
            part = int(due * 10) % 10
            for one in slows[part::10]:
                one.tick()
            due += 0.1


if __name__ == "__main__":
    host, port, idle, slow = sys.argv[1:]
    crowd(host, int(port), int(idle), int(slow))
