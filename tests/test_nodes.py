"""Three servers behind twemproxy, with consistent hashing and servers left out that do not answer. One of them is away while clients go on, and comes
back: with `--max-absence` it serves nothing of what was overwritten meanwhile; without it does, which shows that the test can fail."""

import contextlib
import os
import socket
import time

import pytest

from harness import expect
from harness.machine import installed
from harness.servers import Pumice, Server

KEYS = [f"key-{number}" for number in range(2_000)]
# Seconds of `--max-absence`, and more than between two signs of life.
ABSENCE = 1
AWAY = 6


class Node(Pumice):
    def doors(self, directory):
        return ["--memcached", f"unix:{os.path.join(directory, 'memcached.socket')}"]

    def wait_ready(self):
        self.wait_for_log("ready: ")


class Proxy(Server):
    """twemproxy before sockets, on a socket of its own."""

    def __init__(self, directory, sockets):
        self.socket = os.path.join(directory, "proxy.socket")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            stats = free.getsockname()[1]
        servers = "".join(f"    - {path}:1 node{number}\n" for number, path in enumerate(sockets))
        configuration = os.path.join(directory, "nutcracker.yml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(f"ring:\n  listen: {self.socket} 0600\n  hash: fnv1a_64\n  distribution: ketama\n  auto_eject_hosts: true\n"
                       f"  timeout: 1000\n  server_retry_timeout: 500\n  server_failure_limit: 1\n  servers:\n{servers}")
        super().__init__("nutcracker", directory, [installed("nutcracker"), "-c", configuration, "-a", "127.0.0.1", "-s", stats])
        self.wait_for(lambda: os.path.exists(self.socket), "its socket")


def overwrite(client, value, keys):
    """Sets keys; what the proxy refuses, as a server is being left out, is tried again."""
    from pymemcache.exceptions import MemcacheError

    for key in keys:
        while True:
            try:
                client.set(key, value, noreply=False)
                break
            except (MemcacheError, ConnectionError):
                time.sleep(0.02)


@pytest.mark.parametrize("flags", [("--max-absence", f"{ABSENCE}s"), ()], ids=["max-absence", "kept"])
def test_a_node_that_was_away(directory, flags):
    from pymemcache.client.base import Client

    homes = [os.path.join(directory, f"n{number}") for number in range(3)]
    with contextlib.ExitStack() as stack:
        for home in homes:
            os.mkdir(home)
        settings = ("--dram", "64MiB", "--flash-size", "64MiB", "--threads", "1", *flags)
        nodes = [stack.enter_context(Node(home, *settings)) for home in homes]
        proxy = stack.enter_context(Proxy(directory, [os.path.join(home, "memcached.socket") for home in homes]))
        client = Client(proxy.socket, timeout=30)
        overwrite(client, "old", KEYS)
        found = client.get_many(KEYS)
        expect(list(found.values()) == [b"old"] * len(KEYS), "what was set", len(found))
        nodes[0].terminate()
        gone = time.monotonic()
        overwrite(client, "new", KEYS)
        # Longer than it may be away, counted from its last sign of life.
        time.sleep(max(0, gone + AWAY - time.monotonic()))
        back = stack.enter_context(Node(homes[0], *settings))
        empty = "nothing ran for" in back.log()
        expect(empty == bool(flags), "a cache that begins empty with --max-absence alone", back.log())
        # Until the proxy asks it again: a third of all keys are there.
        served = {}
        back.wait_for(lambda: served.update(client.get_many(KEYS)) or b"old" in served.values() or len(client.get_many(KEYS)) < len(KEYS),
                      "the proxy to ask it again")
        served = client.get_many(KEYS)
        old = sum(value == b"old" for value in served.values())
        print(f"{len(served)} of {len(KEYS)} served, {old} of them old")
        expect((old == 0) if flags else (old > len(KEYS) // 10), "old values without --max-absence alone", old)
        proxy.process.terminate()
