"""Quiet gets of the binary protocol, against memcached."""

import contextlib
import os
import random
import socket
import struct
import time

from comparison import Comparison, case
from harness import Failure, machine
from harness.client import Client
from harness.frames import GETQ, HEAD, NOOP, frame
from tools import memcached, memcached_version, pumice

VALUE_BYTES = 100
# A reply that has a value: its head, its flags, the value.
REPLY_BYTES = HEAD.size + 4 + VALUE_BYTES
# Different batches that are sent.
BATCHES = 256
SIZES = (10, 100)


def ask(server, core, arguments, size):
    """Sends a batch on each connection and reads all replies, again and again; gets by second of the server's CPU time, and by second."""
    os.sched_setaffinity(0, {core})
    with contextlib.closing(Client(server.address)) as client:
        client.send_numbered(b"set key:%%08d 0 0 %d noreply\r\n%s\r\n" % (VALUE_BYTES, b"v" * VALUE_BYTES), 0, arguments.keys)
    draws = random.Random(1)
    batches = [b"".join(frame(GETQ, b"key:%08d" % draws.randrange(arguments.keys), opaque=at) for at in range(size)) + frame(NOOP)
               for _ in range(BATCHES)]
    wanted = size * REPLY_BYTES + HEAD.size
    replies = bytearray(wanted)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(server.address)) for _ in range(arguments.connections)]
        for connection in connections:
            # Seconds for an answer. A timeout of Python's would end MSG_WAITALL: a read would return what is there.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))

        def turn(number):
            for at, connection in enumerate(connections):
                connection.sendall(batches[(number + at) % BATCHES])
            for connection in connections:
                if connection.recv_into(replies, wanted, socket.MSG_WAITALL) != wanted:
                    raise Failure(f"{server.name} closed a connection")

        for number in range(50):
            turn(number)
        began, spent, turns = time.monotonic(), machine.cpu_seconds(server.pid), 0
        while time.monotonic() - began < arguments.seconds:
            turn(turns)
            turns += 1
        took, spent = time.monotonic() - began, machine.cpu_seconds(server.pid) - spent
    gets = turns * len(connections) * size
    return {f"gets {size}": gets / spent, f"us {size}": spent / gets * 1e6, f"rate {size}": gets / took}


@case(pairs=5, seconds=4.0, dram=512, connections=(16, "connections"), keys=(100_000, "number of keys"),
      quick={"seconds": 2.0, "keys": 5_000, "pairs": 1})
def quiet_gets(arguments):
    """Quiet gets of the binary protocol in batches of 10 and 100, each with a noop behind it, against memcached.

    Values of 100 bytes, all in DRAM, 16 connections, one batch at a time on each, one worker thread. The client is not as fast as the servers:
    what is compared is gets by second of the server's CPU time."""
    settings = {"connections": arguments.connections, "keys": arguments.keys, "value bytes": VALUE_BYTES, "seconds": arguments.seconds}
    comparison = Comparison(arguments, settings, peer=memcached_version())

    def side(begin):
        def turn(_):
            with begin() as server:
                return {name: value for size in SIZES for name, value in ask(server, comparison.load_core, arguments, size).items()}

        return turn

    comparison.turns(side(lambda: pumice(comparison, arguments.dram, 1_024)), side(lambda: memcached(comparison, arguments.dram * 8 // 10)))
    for size in SIZES:
        comparison.row(f"quiet gets by second of the server's CPU time, batches of {size}", f"gets {size}", "≥ 1.0 ×", "",
                       lambda value: f"{value / 1e3:.0f} k", cpu=f"us {size}")
    return comparison
