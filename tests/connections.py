#!/usr/bin/env python3
"""Idle and slow connections: what they do to the latency of a normal client, and to the memory of the server.

A normal client (`pumice bench`: gets of what is in DRAM and on flash, and a tenth sets of up to 40 KB, at a fixed rate) is measured
alone and beside a crowd, in turns: idle connections, and slow ones that send a byte a second and read a byte a second. Half of these have
asked for more than sockets buffer, of flash and DRAM mixed; a quarter has announced values of 1 MB; a quarter sends small commands.
Must be: the median p99 beside the crowd is at most twice that without it, and resident memory stays within --dram plus 10 %."""

import argparse
import contextlib
import json
import random
import resource
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import time

from harness import BINARY, Client, Directory, Failure, MemorySampler, Server, expect, main, mib

# What slow clients ask for: (name, bytes of a value, how many there are). On flash, since the keys of the normal client are
# set after them.
VALUES = [(b"small", 2_000, 400), (b"middle", 20_000, 200), (b"large", 200_000, 20), (b"slices", 1_000_000, 4)]

# What they ask for between: (name, bytes, how many). In DRAM, since it is set last.
HOT = (b"hot", 15_000, 60)

# What a connection may take by itself: its part of the budget (docs/operations.md, "DRAM").
IDLE_BYTES_MAX = 6 << 10

DESCRIPTORS = 256


def allow_descriptors(needed):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise Failure(f"expected to open {needed} files at once; only {hard} are allowed: raise the limit (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


DRIP = b"x" * 1_000_000 + b"\r\n"


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
    """Holds the connections, told by lines on standard input: idle, slow, close."""
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
                    sock.sendall(b"mn\r\n")
                    if sock.recv(16) != b"MN\r\n":
                        raise SystemExit("expected MN from every connection")
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


class Crowd:
    def __init__(self, server, idle, slow):
        command = [sys.executable, __file__, "--crowd", *map(str, server.address), str(idle), str(slow)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        expect(answer, f"the crowd to answer to {order!r}", "its end")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.process.kill()
        self.process.wait()


class Normal:
    """The client whose latency counts."""

    def __init__(self, server, arguments):
        self.server, self.rate = server, arguments.rate
        self.common = [
            *(BINARY, "bench", "memcached", "--target", "%s:%d" % server.address, "--json"),
            *("--keys", f"zipf:keys={arguments.keys},theta=0.8", "--value-size", "2000-40000"),
            *("--mix", "get:90,set:10", "--connections", "4"),
        ]

    def run(self, *flags):
        done = subprocess.run([*self.common, *flags], capture_output=True, text=True, timeout=600)
        expect(done.returncode == 0, "status 0 of pumice bench", f"{done.returncode}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)

    def preload(self):
        self.run("--preload-only")

    def measure(self, seconds):
        """(p99 in microseconds, hits from DRAM, hits from flash)"""
        before = counts(self.server)
        report = self.run("--rate", str(self.rate), "--poisson", "--duration", str(seconds))
        after = counts(self.server)
        p99 = report["latency"]["p99_us"]
        return p99, *(after[name] - before[name] for name in ("get_hits_dram", "get_hits_flash"))


def counts(server):
    client = Client(server.address)
    client.send(b"stats\r\n")
    found = {}
    while (line := client.line()) != b"END":
        _, name, value = line.decode().split(" ", 2)
        found[name] = int(value) if value.isdigit() else value
    client.close()
    return found


def test():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=5000, help="idle connections")
    parser.add_argument("--slow", type=int, default=200, help="slow connections")
    parser.add_argument("--rounds", type=int, default=5, help="turns: alone, beside the crowd")
    parser.add_argument("--seconds", type=float, default=40, help="of measurement in each half of a turn")
    parser.add_argument("--rate", type=int, default=2000, help="requests a second of the normal client")
    parser.add_argument("--keys", type=int, default=30_000, help="of the normal client, 21 KB each")
    parser.add_argument("--dram", type=int, default=128, help="MiB")
    parser.add_argument("--flash", type=int, default=1024, help="MiB")
    parser.add_argument("--ratio", type=float, default=2.0, help="the most that p99 may become")
    arguments = parser.parse_args()
    connections = arguments.idle + arguments.slow
    allow_descriptors(connections + DESCRIPTORS)
    budget = arguments.dram << 20
    flags = ("--dram", f"{arguments.dram}MiB", "--flash-size", f"{arguments.flash}MiB")
    alone, beside, ratios = [], [], []
    with Directory("connections") as directory:
        with Server(directory, *flags, "--max-connections", str(connections + 64)) as server:
            sampler = MemorySampler(server)
            noise = random.Random(1).randbytes(1 << 20)
            client = Client(server.address)
            for name, length, number in VALUES:
                client.set_many((b"%s-%d" % (name, n), noise[n : n + length]) for n in range(number))
            normal = Normal(server, arguments)
            normal.preload()
            with Crowd(server, arguments.idle, arguments.slow) as people:
                for turn in range(arguments.rounds):
                    p99, dram, flash = normal.measure(arguments.seconds)
                    expect(min(dram, flash) >= 100, "hits from both tiers", f"{dram} from DRAM, {flash} from flash")
                    alone.append(p99)
                    before = server.memory()[0]
                    people.tell("idle")
                    each = (server.memory()[0] - before) / arguments.idle
                    hot, length, number = HOT
                    client.set_many((b"%s-%d" % (hot, n), noise[n : n + length]) for n in range(number))
                    people.tell("slow")
                    open_now = counts(server)["curr_connections"]
                    expect(open_now >= connections, f"{connections} open connections", open_now)
                    p99, _, _ = normal.measure(arguments.seconds)
                    beside.append(p99)
                    left = people.tell("close")
                    expect(left["alive"] == arguments.idle, f"all {arguments.idle} idle connections to live", left["alive"])
                    ratios.append(beside[-1] / alone[-1])
                    print(
                        f"turn {turn + 1}: p99 {alone[-1]:.0f} us alone, {beside[-1]:.0f} us beside {connections} connections; "
                        f"{each:.0f} bytes for each idle one; {left['cut_off']} slow ones were cut off; "
                        f"{flash} of {dram + flash} hits from flash",
                        flush=True,
                    )
                    if turn == 0:
                        expect(each <= IDLE_BYTES_MAX, f"at most {IDLE_BYTES_MAX} bytes for an idle connection", each)
            most = sampler.end()
            value = next(iter(client.get_many([b"large-0"])))[1]
            expect(value in (None, noise[:200_000]), "the value that was set, or none", value and value[:40])
            client.close()
            server.check_books()
            took = server.terminate()
    ratio = statistics.median(beside) / statistics.median(alone)
    print(
        f"p99, median of {arguments.rounds} turns: {statistics.median(alone):.0f} us alone, {statistics.median(beside):.0f} us beside "
        f"{arguments.idle} idle and {arguments.slow} slow connections: {ratio:.2f} times (turns: "
        f"{min(ratios):.2f} to {max(ratios):.2f}); resident memory at most {mib(most)} of {mib(budget)}; stopped in {took:.1f} s"
    )
    expect(most <= budget * 1.1, f"resident memory within {mib(budget)} plus 10 %", mib(most))
    expect(ratio <= arguments.ratio, f"a p99 of at most {arguments.ratio} times that without the crowd", f"{ratio:.2f} times")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--crowd"]:
        host, port, idle, slow = sys.argv[2:]
        crowd(host, int(port), int(idle), int(slow))
    else:
        main(test)
