"""What the end-to-end tests share: a server of one's own, a pipelining client, and failures that say what was seen.

The program under test is target/release/pumice, or what PUMICE_BIN names. Every server listens on ports that the
system chooses and keeps its files in a directory of its own under target/e2e, which is removed when the test passes.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
BINARY = os.environ.get("PUMICE_BIN", os.path.join(TARGET, "release", "pumice"))
READY_SECONDS = 60
BOOKS_SECONDS = 60


class Failure(Exception):
    """What was expected and what was seen."""


def expect(condition, expected, seen):
    if not condition:
        raise Failure(f"expected {expected}; seen {seen}")


def expect_equal(seen, expected, what):
    expect(seen == expected, f"{what} to be {shorten(expected)}", shorten(seen))


def shorten(thing):
    text = repr(thing)
    return text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"


class Directory:
    """A directory for one test, kept for a look where the test fails."""

    def __init__(self, name):
        parent = os.path.join(TARGET, "e2e")
        os.makedirs(parent, exist_ok=True)
        self.path = tempfile.mkdtemp(prefix=f"{name}-", dir=parent)

    def __enter__(self):
        return self.path

    def __exit__(self, kind, value, trace):
        if kind is None:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            print(f"files are kept in {self.path}", file=sys.stderr)


class Server:
    """A running server."""

    def __init__(self, directory, *arguments, wait=True):
        self.directory = directory
        self.log_path = os.path.join(directory, "server.log")
        log = open(self.log_path, "ab")
        log.write(f"--- {' '.join(arguments)}\n".encode())
        log.flush()
        self.log_start = log.tell()
        command = [BINARY, "serve", "--memcached", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PUMICE_")}
        self.process = subprocess.Popen(
            command, cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
        )
        log.close()
        self.address = self.admin = None
        if wait:
            self.wait_ready()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.kill9()
        if kind is not None:
            print(f"server said:\n{self.log()[-4000:]}", file=sys.stderr)

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        with open(self.log_path, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    def wait_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while True:
            text = self.log()
            ready = re.search(r"^ready: memcached on (\S+):(\d+).*admin on (\S+)$", text, re.MULTILINE)
            if ready:
                self.address = (ready[1], int(ready[2]))
                self.admin = f"http://{ready[3]}"
                return
            if self.process.poll() is not None:
                raise Failure(f"expected a server; it ended with status {self.process.returncode}:\n{text}")
            if time.monotonic() > deadline:
                raise Failure(f"expected the server to be ready within {READY_SECONDS} s; it said:\n{text}")
            time.sleep(0.005)

    def get(self, path):
        """(status, body) of a page of the admin door."""
        try:
            with urllib.request.urlopen(self.admin + path, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stats(self):
        status, body = self.get("/stats")
        expect_equal(status, 200, "the status of /stats")
        return json.loads(body)

    def check_books(self):
        """No request may run; work in the background, during which the books move, may be on its way to its end."""
        end = time.monotonic() + BOOKS_SECONDS
        while True:
            status, body = self.get("/books")
            if status != 503 or time.monotonic() > end:
                break
            time.sleep(0.05)
        expect(status == 200, "balanced books", f"status {status}: {body}")
        books = self.stats()["books"]
        incoming = {"recovered", "offered"}
        for unit in ("entries", "bytes"):
            came = sum(line[unit] for name, line in books.items() if name in incoming)
            left = sum(line[unit] for name, line in books.items() if name not in incoming)
            expect(came == left, f"recovered + offered = all other lines, in {unit}", f"{came} and {left}: {books}")
        return books

    def terminate(self, seconds=60):
        """A clean stop; returns how long it took."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"expected the server to stop within {seconds} s of SIGTERM; it did not") from None
        expect_equal(status, 0, "the exit status after SIGTERM")
        return time.monotonic() - started

    def kill9(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def memory(self):
        """(resident now, most so far) in bytes."""
        sizes = {}
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(("VmRSS:", "VmHWM:")):
                    name, kib, _ = line.split()
                    sizes[name] = int(kib) << 10
        return sizes["VmRSS:"], sizes["VmHWM:"]


class Client:
    """One connection; commands are sent together, replies are read in their order."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb", buffering=1 << 18)

    def close(self):
        self.reader.close()
        self.socket.close()

    def send(self, *parts):
        self.socket.sendall(b"".join(parts))

    def line(self):
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        return line[:-2]

    def values(self):
        """The values of one get or gets: {key: (flags, value, cas or None)}."""
        found = {}
        while True:
            line = self.line()
            if line == b"END":
                return found
            words = line.split(b" ")
            expect(words[0] == b"VALUE" and len(words) in (4, 5), "VALUE or END", line)
            length = int(words[3])
            value = self.reader.read(length + 2)
            if len(value) != length + 2:
                raise ConnectionError("the connection ended")
            expect(value.endswith(b"\r\n"), "a line end after the value", value[-10:])
            cas = int(words[4]) if len(words) == 5 else None
            found[words[1]] = (int(words[2]), value[:-2], cas)

    def command(self, line):
        self.send(line, b"\r\n")
        return self.line()

    def set_many(self, items, batch_bytes=1 << 20, batch_items=256):
        """Sets (key, value) pairs; returns the keys that were stored."""
        stored = []
        batch, size = [], 0

        def settle():
            nonlocal batch, size
            if not batch:
                return
            parts = []
            for key, value in batch:
                parts += [b"set %s 0 0 %d\r\n" % (key, len(value)), value, b"\r\n"]
            self.send(*parts)
            for key, _ in batch:
                reply = self.line()
                if reply == b"STORED":
                    stored.append(key)
                else:
                    expect(reply.startswith(b"SERVER_ERROR"), "STORED or SERVER_ERROR", reply)
            batch, size = [], 0

        for key, value in items:
            batch.append((key, value))
            size += len(value)
            if size >= batch_bytes or len(batch) >= batch_items:
                settle()
        settle()
        return stored

    def get_many(self, keys, batch_items=64):
        """Yields (key, value or None), a batch of keys per command."""
        keys = list(keys)
        for at in range(0, len(keys), batch_items):
            batch = keys[at : at + batch_items]
            self.send(b"get ", b" ".join(batch), b"\r\n")
            found = self.values()
            for key in found:
                expect(key in batch, "only keys that were asked for", key)
            for key in batch:
                yield key, found[key][1] if key in found else None

    def held(self, keys, batch_items=1000):
        """The keys that are there, without their values."""
        keys = list(keys)
        there = []
        for at in range(0, len(keys), batch_items):
            batch = keys[at : at + batch_items]
            self.send(b"".join(b"mg %s\r\n" % key for key in batch))
            for key in batch:
                reply = self.line()
                expect(reply in (b"HD", b"EN"), "HD or EN for mg", reply)
                if reply == b"HD":
                    there.append(key)
        return there


class MemorySampler:
    """Looks at a server's resident memory all the time."""

    def __init__(self, server):
        self.server, self.most, self.samples = server, 0, 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stop.is_set():
            try:
                now, peak = self.server.memory()
            except (OSError, KeyError):
                return
            self.most = max(self.most, now, peak)
            self.samples += 1
            self.stop.wait(0.02)

    def end(self):
        self.stop.set()
        self.thread.join()
        return self.most


def main(test):
    """Runs a test; the exit status says whether it passed."""
    if not os.access(BINARY, os.X_OK):
        sys.exit(f"{BINARY} is missing: build it with `cargo build --release`")
    try:
        test()
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
