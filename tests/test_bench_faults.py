"""`pumice-bench memcached` finds what a server does wrong: a proxy before a real memcached now and then returns another
key's value, or an old one. Without its faults there are no errors."""

import json
import socket
import subprocess
import threading

import pytest

from harness import expect, expect_equal
from harness.machine import BENCH
from harness.servers import Memcached

OPERATIONS = 20_000
KEYS = 200


class Proxy:
    """Stands before a server and passes gets and sets on, one at a time per connection; now and then it swaps the value
    of a hit. Faults come at a fixed number of hits."""

    def __init__(self, upstream, fault=None, every=100):
        self.upstream, self.fault, self.every = upstream, fault, every
        self.lock = threading.Lock()
        self.first, self.hits, self.swapped = {}, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.create_connection(self.upstream)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests, replies = client.makefile("rb"), server.makefile("rb")
        try:
            while line := requests.readline():
                words = line.split()
                if words[0] == b"set":
                    value = requests.read(int(words[4]) + 2)
                    with self.lock:
                        self.first.setdefault(words[1], value)
                    server.sendall(line + value)
                    client.sendall(replies.readline())
                else:
                    server.sendall(line)
                    client.sendall(self.values(replies))
        except OSError:
            pass
        finally:
            client.close()
            server.close()

    def values(self, replies):
        parts = []
        while True:
            line = replies.readline()
            words = line.split()
            if words[:1] != [b"VALUE"]:
                return b"".join(parts) + line
            value = replies.read(int(words[3]) + 2)
            parts += [line, self.spoil(words[1], value)]

    def spoil(self, key, value):
        with self.lock:
            self.hits += 1
            if self.fault is None or self.hits % self.every:
                return value
            if self.fault == "old":
                other = self.first.get(key, value)
            else:
                other = next((other for name, other in self.first.items() if name != key), value)
            self.swapped += other != value
            return other


def bench(address, *arguments):
    command = [BENCH, "memcached", "--target", address, "--json", "--connections", "4", "--warm-up", "0"]
    command += ["--requests", str(OPERATIONS), "--keys", f"zipf:keys={KEYS},theta=0.7", "--mix", "ycsb-a", "--preload"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    expect(done.returncode in (0, 1), "exit status 0 or 1", f"{done.returncode}: {done.stderr}")
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture
def memcached(directory):
    with Memcached(directory, "-m", 64, "-t", 1) as server:
        yield server


def right_server(address):
    status, report, said = bench(address)
    expect(status == 0 and not report["errors"], "no errors and status 0", f"{status}: {report['errors']} {said}")
    expect_equal(report["hit_ratio"], 1.0, "the hit ratio after a preload")
    expect_equal(report["wrong_answers"], 0, "wrong answers")


def test_no_errors_without_faults(memcached):
    right_server(memcached.target)
    # The values of an earlier run.
    right_server(memcached.target)
    with Proxy(memcached.address) as proxy:
        right_server(proxy.address)


@pytest.mark.parametrize(("fault", "kind"), [("foreign", "foreign_value"), ("old", "stale_value")])
def test_faults_are_found(memcached, fault, kind):
    right_server(memcached.target)
    with Proxy(memcached.address, fault) as proxy:
        status, report, said = bench(proxy.address)
        found = report["errors"].get(kind, 0)
        print(f"{found} of {proxy.swapped} found")
        expect_equal(status, 1, f"the exit status with {proxy.swapped} faults")
        expect(list(report["errors"]) == [kind], f"errors of kind {kind} only", report["errors"])
        # Every foreign value is wrong whenever it comes; an old one is not where sets of its key were under way.
        least = proxy.swapped if fault == "foreign" else proxy.swapped // 2
        expect(0 < least <= found <= proxy.swapped, f"{least} to {proxy.swapped} found", found)
        expect(kind in said and "wrong answers" in said, f"`{kind}` on stderr", said)
        expect(report["examples"][0]["kind"] == kind, "an example", report["examples"])
