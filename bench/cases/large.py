"""Large values: when the first byte of a get comes, and what transfers take of DRAM."""

import contextlib
import socket
import threading
import time

from comparison import Comparison, case
from harness import Failure, expect_equal
from harness.client import Client
from tools import percent, pumice

MIB = 1 << 20


def value(mib):
    """Pieces of a value, no two of which are equal."""
    for number in range(mib):
        yield (b"%016d" % number) * (MIB // 16)


def store(address, key, mib):
    with contextlib.closing(Client(address)) as client:
        client.send(b"set %s 0 0 %d\r\n" % (key, mib * MIB))
        for piece in value(mib):
            client.send(piece)
        client.send(b"\r\n")
        expect_equal(client.line(), b"STORED", "the answer to a large set")


def fetch(address, key, mib):
    """Seconds from a get to the first byte of its value, and to the last."""
    with contextlib.closing(socket.create_connection(address, timeout=120)) as peer:
        began = time.perf_counter()
        peer.sendall(b"get %s\r\n" % key)
        end = b"\r\nEND\r\n"
        left = len(b"VALUE %s 0 %d\r\n" % (key, mib * MIB)) + mib * MIB + len(end)
        first, buffer = None, bytearray(MIB)
        while left > 0:
            got = peer.recv_into(buffer, min(left, MIB))
            if got == 0 or first is None and not buffer.startswith(b"VALUE"):
                raise Failure("the value is not there as a whole")
            first = first or time.perf_counter() - began
            left -= got
        return first, time.perf_counter() - began


def above_idle(server, calls, samples_s=0.01):
    """The most resident memory while all calls are made at once, above that before, in bytes."""
    idle, threads = server.memory()[0], [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    most = idle
    while any(thread.is_alive() for thread in threads):
        most = max(most, server.memory()[0])
        time.sleep(samples_s)
    return most - idle


@case(pairs=3, dram=256, value=(100, "MiB of each value"), at_once=(8, "gets, and sets, at once"), quick={"value": 24, "at_once": 2, "pairs": 1})
def large(arguments):
    """The first byte of a get of 100 MiB from flash over its last, and the DRAM that eight such gets and sets at once take.

    That is above the resident memory of the idle server. One worker thread on one core, the client on the other. The DRAM tier is full before, so that
    what it grows by is not counted, and others have taken the value of the first get out of it. Exit status 1 where the first byte comes after 0.1 of the time, or more than 40 MiB are taken."""
    settings = {"MiB of a value": arguments.value, "at once": arguments.at_once, "MiB of DRAM": arguments.dram}
    comparison = Comparison(arguments, settings)
    flash = max(1024, arguments.value * arguments.at_once * 4)
    names = [b"large-%d" % n for n in range(arguments.at_once)]

    def turn(_):
        with pumice(comparison, arguments.dram, flash, "--max-item-size", f"{arguments.value}MiB", "--layout", "fifo") as server:
            for name in names:
                store(server.address, name, arguments.value)
            first, last = fetch(server.address, names[0], arguments.value)
            gets = [lambda name=name: fetch(server.address, name, arguments.value) for name in names]
            sets = [lambda name=name: store(server.address, b"other-" + name, arguments.value) for name in names]
            above = above_idle(server, gets + sets)
            return {"first ms": first * 1e3, "last ms": last * 1e3, "first / last": first / last, "MiB above idle": above / MIB}

    comparison.turns(turn)
    comparison.row(f"first byte of a get of {arguments.value} MiB from flash / its last", "first / last", "≤ 0.1", "≤ 0.02", percent)
    comparison.row(f"DRAM above idle for {arguments.at_once} such gets and sets at once", "MiB above idle", "≤ 40 MiB", "≤ 32 MiB", "{:.1f} MiB".format)
    return comparison
