#!/usr/bin/env python3
"""`pumice bench memcached` finds what a server does wrong: a proxy before a real memcached now and then returns another
key's value, or an old one. Without its faults there are no errors."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from harness import BINARY, Directory, Failure, expect, expect_equal, main

OPERATIONS = 20_000
KEYS = 200


class Memcached:
    """Debian's memcached on a unix socket."""

    def __init__(self, directory):
        program = shutil.which("memcached") or "/usr/bin/memcached"
        if not os.access(program, os.X_OK):
            raise Failure("expected memcached to be installed: apt-get install memcached")
        self.path = os.path.join(directory, "memcached.sock")
        user = ["-u", "root"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen([program, "-s", self.path, "-m", "64", "-t", "1", *user], cwd=directory)

    def __enter__(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(self.path)
                return self
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise Failure(f"expected memcached on {self.path}; seen: {error}") from None
            time.sleep(0.005)

    def __exit__(self, kind, value, trace):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


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
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.upstream)
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
    command = [BINARY, "bench", "memcached", "--target", address, "--json", "--connections", "4", "--warm-up", "0"]
    command += ["--requests", str(OPERATIONS), "--keys", f"zipf:keys={KEYS},theta=0.7", "--mix", "ycsb-a", "--preload"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    expect(done.returncode in (0, 1), "exit status 0 or 1", f"{done.returncode}: {done.stderr}")
    return done.returncode, json.loads(done.stdout), done.stderr


def right_server(address):
    status, report, said = bench(address)
    expect(status == 0 and not report["errors"], "no errors and status 0", f"{status}: {report['errors']} {said}")
    expect_equal(report["hit_ratio"], 1.0, "the hit ratio after a preload")
    expect_equal(report["wrong_answers"], 0, "wrong answers")
    return report


def faulty_server(upstream, fault, kind):
    with Proxy(upstream, fault) as proxy:
        status, report, said = bench(proxy.address)
        found = report["errors"].get(kind, 0)
        expect_equal(status, 1, f"the exit status with {proxy.swapped} faults `{fault}`")
        expect(list(report["errors"]) == [kind], f"errors of kind {kind} only", report["errors"])
        # Every foreign value is wrong whenever it comes; an old one is not where sets of its key were under way.
        least = proxy.swapped if fault == "foreign" else proxy.swapped // 2
        expect(0 < least <= found <= proxy.swapped, f"{least} to {proxy.swapped} found", found)
        expect(kind in said and "wrong answers" in said, f"`{kind}` on stderr", said)
        expect(report["examples"][0]["kind"] == kind, "an example", report["examples"])
    print(f"fault `{fault}`: {found} of {proxy.swapped} found, status 1: passed")


def test():
    with Directory("bench") as directory, Memcached(directory) as memcached:
        right_server(memcached.path)
        right_server(memcached.path)
        print("memcached itself, and the values of an earlier run: passed")
        with Proxy(memcached.path) as proxy:
            right_server(proxy.address)
        print("the proxy without faults: passed")
        faulty_server(memcached.path, "foreign", "foreign_value")
        faulty_server(memcached.path, "old", "stale_value")


if __name__ == "__main__":
    main(test)
    print("bench_faults: passed")
    sys.exit(0)
