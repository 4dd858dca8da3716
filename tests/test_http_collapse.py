"""Many clients on one cold URL: one request to the origin, every byte right, and memory within `--dram`, whatever else happens."""

import contextlib
import functools
import random
import threading
import time

import pytest

from harness import expect, expect_equal, mib
from harness.web import FRESH, PIECE, Answer, Body, Connection, Cut, Http, Origin, read_head

MIB = 1 << 20
DRAM = 128 * MIB


@pytest.fixture
def origin():
    with Origin() as origin:
        yield origin


def within_dram(server):
    most = server.memory()[1]
    expect(most <= DRAM * 1.1, f"resident memory within {mib(DRAM)} plus 10 %", mib(most))


@contextlib.contextmanager
def door(directory, origin, connections):
    flags = ("--dram", DRAM, "--flash-size", 1024 * MIB, "--http-object-max", 256 * MIB, "--max-connections", connections + 64)
    with Http(directory, origin, *flags) as server:
        yield server
        within_dram(server)
        server.check_books()
        server.terminate()


@functools.cache
def content(path, length):
    return bytes(Body(path, length))


class Client(threading.Thread):
    """Reads one answer, at most so many bytes a second, and keeps the time of its end, how much was right and whether it was cut."""

    def __init__(self, server, path, body, speed=None, leaves_after=None, **fields):
        super().__init__(daemon=True)
        self.server, self.path, self.body, self.speed, self.leaves_after, self.fields = server, path, body, speed, leaves_after, fields
        self.right, self.fault, self.answer = 0, None, None

    def run(self):
        began = time.monotonic()

        def take(piece):
            if self.body is not None and piece != self.body[self.right:self.right + len(piece)]:
                raise ValueError(f"a wrong byte after {self.right} right ones")
            self.right += len(piece)
            if self.leaves_after and self.right >= self.leaves_after:
                raise EOFError
            if self.speed:
                time.sleep(max(0, self.right / self.speed - (time.monotonic() - began)))

        try:
            with contextlib.closing(Connection(self.server.address, receive_bytes=PIECE if self.speed else None)) as connection:
                self.answer = connection.ask(self.path, take=take, **self.fields)
        except (OSError, ValueError, EOFError) as fault:
            self.fault = fault
        self.ended = time.monotonic()


def all_of(clients):
    for client in clients:
        client.start()
        time.sleep(0.002)
    for client in clients:
        client.join(300)
        expect(not client.is_alive(), "every client to come to its end within 300 s", f"one with {client.right} bytes")
    return clients


@pytest.mark.parametrize("what", ["length", "chunked", "the first leaves", "the origin dies"])
def test_one_cold_url(directory, origin, size, what):
    count, length, rng = size("clients", 100, 100), size("mib", 64, 64) * MIB, random.Random(1)
    path, dies = "/cold", what == "the origin dies"
    origin.answers[path] = Answer(Body(path, length), FRESH, chunked=what == "chunked", delay=0.3, cut=length * 2 // 3 if dies else None)
    with door(directory, origin, count) as server:
        speeds = [None if n % 3 else rng.choice([8, 16, 64]) * MIB for n in range(count)]
        clients = [Client(server, path, content(path, length), speed) for speed in speeds]
        clients[0].leaves_after = 3 * MIB if what == "the first leaves" else None
        all_of(clients)
        faults = {repr(client.fault) for client in clients if not isinstance(client.fault, (Cut, ConnectionResetError, EOFError, type(None)))}
        expect(not faults, "no wrong byte, and no other fault", faults)
        whole = sum(client.right == length and client.fault is None for client in clients)
        # Who read it all from an origin that died was told of no end that was none.
        expect_equal(whole, 0 if dies else count - (what == "the first leaves"), "clients that got the whole body")
        expect_equal(len(origin.asked(path)), 1, "requests to the origin")
        origin.answers[path] = Answer(Body(path, length))
        again, = all_of([Client(server, path, content(path, length))])
        expect(again.fault is None and again.right == length, "the whole body afterwards", (again.fault, again.right))
        expect_equal(len(origin.asked(path)), 2 if dies else 1, "requests to the origin in the end")


def test_clients_that_stop_reading(directory, origin):
    """1,000 of them, and a small hit beside them."""
    count, length, took = 1000, 64 * MIB, []
    origin.answers["/stopped"] = Answer(Body("/stopped", length))
    with door(directory, origin, count) as server, contextlib.ExitStack() as stack:
        server.ask("/5/small")
        for n in range(count):
            stopped = stack.enter_context(contextlib.closing(Connection(server.address, receive_bytes=4096)))
            stopped.send(b"GET /stopped HTTP/1.1\r\nHost: test\r\n\r\n")
            if n == 0:
                read_head(stopped.reader)
            began = time.monotonic()
            expect("hit" in server.ask("/5/small").cache, "a hit", "none")
            took.append(time.monotonic() - began)
        within_dram(server)
        p99 = sorted(took)[len(took) * 99 // 100]
        expect(p99 <= 1, "p99 of a small hit within 1 s", f"{p99:.2f} s")
        other, = all_of([Client(server, "/stopped", content("/stopped", length))])
        expect(other.fault is None and other.right == length, "the whole body for one who reads", (other.fault, other.right))


@pytest.mark.parametrize("fields", [(("cache-control", "private"),), (("cache-control", "no-store"),), (*FRESH, ("vary", "X-Color"))], ids=["private", "no-store", "vary"])
def test_whom_the_answer_does_not_fit(directory, origin, fields):
    """magento2 PR#28927: who waits for what turns out not to be shared must not be let through one by one."""
    origin.answers["/other"] = lambda request: Answer(request["x-color"].encode(), fields, delay=0.5)
    with door(directory, origin, 40) as server:
        for _ in range(2):
            began, clients = time.monotonic(), [Client(server, "/other", b"%d" % n, x_color=n) for n in range(40)]
            all_of(clients)
            expect(time.monotonic() - began < 3, "40 clients to be answered at once", f"{time.monotonic() - began:.1f} s")
            expect_equal([client.answer.body if client.answer else client.fault for client in clients if client.fault], [], "faults")


def test_a_client_that_leaves_alone(directory, origin):
    """cache-handler #73: a client left, and the fragment was stored. The same for a HEAD and a range of what is not stored."""
    length = 8 * MIB
    for n, how in enumerate(["leaves", "HEAD", "range"]):
        path = f"/{length}/{n}"
        origin.answers[path] = Answer(Body(path, length), FRESH, pace=0.005)
    with door(directory, origin, 10) as server:
        for n, how in enumerate(["leaves", "HEAD", "range"]):
            path = f"/{length}/{n}"
            if how == "leaves":
                all_of([Client(server, path, content(path, length), leaves_after=MIB)])
            else:
                server.ask(path, "HEAD" if how == "HEAD" else "GET", **({"range": "bytes=0-99"} if how == "range" else {}))
            expect(server.ask(path).body == content(path, length), f"the whole body after {how}", "another")
            expect("hit" in server.ask(path).cache, "a hit then", "none")
