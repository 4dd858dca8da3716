"""Quiet gets of the binary protocol, against memcached."""

import os
import random
import socket
import struct
import time

from comparison import Comparison, case
from harness import Failure, machine
from tools import memcached, memcached_version, pumice

GET_QUIETLY, NOOP = 0x09, 0x0A
HEAD = struct.Struct(">BBHBBHIIQ")
VALUE_BYTES = 100
# A reply that has a value: its head, its flags, the value.
REPLY_BYTES = HEAD.size + 4 + VALUE_BYTES
# Different batches that are sent.
BATCHES = 256


def key(number):
    return b"key:%08d" % number


def batch(random_keys):
    """Quiet gets, and a noop which says that all were answered."""
    gets = [HEAD.pack(0x80, GET_QUIETLY, len(name), 0, 0, 0, len(name), at, 0) + name for at, name in enumerate(random_keys)]
    return b"".join(gets) + HEAD.pack(0x80, NOOP, 0, 0, 0, 0, 0, 0, 0)


def preload(address, keys):
    with socket.create_connection(address, timeout=60) as setting:
        for first in range(0, keys, 1_000):
            lines = [b"set %s 0 0 %d noreply\r\n%s\r\n" % (key(n), VALUE_BYTES, b"v" * VALUE_BYTES) for n in range(first, min(first + 1_000, keys))]
            setting.sendall(b"".join(lines) + b"mn\r\n")
            if setting.recv(16) != b"MN\r\n":
                raise Failure("a set was refused")


def ask(server, core, arguments, size):
    """Sends a batch on each connection and reads all replies, again and again; gets by second of the server's CPU time, and by second."""
    os.sched_setaffinity(0, {core})
    preload(server.address, arguments.keys)
    draws = random.Random(1)
    batches = [batch([key(draws.randrange(arguments.keys)) for _ in range(size)]) for _ in range(BATCHES)]
    wanted = size * REPLY_BYTES + HEAD.size
    connections = [socket.create_connection(server.address, timeout=60) for _ in range(arguments.connections)]
    replies = memoryview(bytearray(wanted))

    def turn(number):
        for at, connection in enumerate(connections):
            connection.sendall(batches[(number + at) % BATCHES])
        for connection in connections:
            left = wanted
            while left:
                got = connection.recv_into(replies, left)
                if not got:
                    raise Failure(f"{server.name} closed a connection")
                left -= got

    try:
        for number in range(50):
            turn(number)
        began, spent, turns = time.monotonic(), machine.cpu_seconds(server.pid), 0
        while time.monotonic() - began < arguments.seconds:
            turn(turns)
            turns += 1
        took, spent = time.monotonic() - began, machine.cpu_seconds(server.pid) - spent
    finally:
        for connection in connections:
            connection.close()
    gets = turns * len(connections) * size
    return {f"gets {size}": gets / spent, f"us {size}": spent / gets * 1e6, f"rate {size}": gets / took}


@case(pairs=5, seconds=4.0, dram=512, connections=(16, "connections"), keys=(100_000, "number of keys"), in_all=False,
      quick={"seconds": 0.5, "keys": 5_000, "pairs": 1})
def quiet_gets(arguments):
    """Quiet gets of the binary protocol in batches of 10 and 100, each with a noop behind it, against memcached.

    Values of 100 bytes, all in DRAM, 16 connections, one batch at a time on each, one worker thread. The client is not as fast as the servers:
    what is compared is gets by second of the server's CPU time."""
    settings = {"connections": arguments.connections, "keys": arguments.keys, "value bytes": VALUE_BYTES, "seconds": arguments.seconds}
    comparison = Comparison(arguments, settings, peer=memcached_version())
    sizes = (10, 100)

    def side(begin):
        def turn(_):
            found = {}
            with begin() as server:
                for size in sizes:
                    found |= ask(server, comparison.load_core, arguments, size)
            return found

        return turn

    comparison.turns(side(lambda: pumice(comparison, arguments.dram, 1_024)), side(lambda: memcached(comparison, arguments.dram * 8 // 10)))
    for size in sizes:
        comparison.row(f"quiet gets by second of the server's CPU time, batches of {size}", f"gets {size}", "≥ 1.0 ×", "",
                       lambda value: f"{value / 1e3:.0f} k", cpu=f"us {size}")
    return comparison
