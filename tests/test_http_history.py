"""A history check of the HTTP door through kills: the origin numbers its answers, and each answer of the door is explained by them.

Clients get, refresh (no-cache), ask for ranges and send unsafe methods; meanwhile the server is killed and started again. An answer must be whole and of
one number; not older than its freshness, which is short; and not from before an unsafe method that was answered before the request began. A 304 makes
a number fresh again. With --full 30 kills in 10 minutes. Planted stale answers, which the origin gives as a bad cache would, have to be found."""

import contextlib
import random
import threading
import time

from harness import Failure, expect
from harness.web import Answer, Body, Connection, Http, Origin

MIB = 1 << 20
# What clocks are rounded to on the way, in seconds.
SLACK = 1.5
SIZES = [1, 300, 5000, 70_000, 400_000, 1_500_000]


class Numbered:
    """One path of the origin: its number, when each number was made and until when it was said to be fresh."""

    def __init__(self, path, rng):
        self.path, self.rng, self.lock = path, rng, threading.Lock()
        self.number, self.made, self.fresh_until = 1, {}, {}

    def body(self, number):
        return Body(f"{self.path}-{number}", SIZES[number * 7 % len(SIZES)])

    def answer(self, request, planted):
        with self.lock:
            now = time.time()
            if request.words[0] not in ("GET", "HEAD"):
                self.number += 1
                return Answer(b"done", (("x-when", repr(now)),))
            if self.rng.random() < 0.1:
                self.number += 1
            age, number = self.rng.choice([1, 2, 5, 30]), self.number
            if planted and number > 1:
                number -= 1
            else:
                self.made[number] = now
                self.fresh_until[number] = max(now + age, self.fresh_until.get(number, 0))
            fields = (("cache-control", f"max-age={age}"), ("etag", f'"{number}"'))
            if request["if-none-match"] == f'"{number}"':
                return Answer(b"", fields, 304)
            return Answer(self.body(number), fields, chunked=self.rng.random() < 0.3)

    def judge(self, message, began, invalidated, first):
        """What is wrong with an answer to a request that began then, `first` being the first byte it asked for; None if nothing is."""
        number = int(message["etag"].strip('"'))
        body = self.body(number)
        if message.body != body.slice(first, len(body)):
            return f"the body is not that of number {number} from byte {first} on"
        with self.lock:
            if began > self.fresh_until.get(number, 0) + SLACK:
                return f"number {number} was fresh until {began - self.fresh_until.get(number, 0):.1f} s before the request"
            if self.made.get(number, 0) < invalidated:
                return f"number {number} is from {invalidated - self.made.get(number, 0):.3f} s before an unsafe method that was answered"


class Load:
    """Clients on an origin's paths, until they are told to stop; what they found wrong."""

    def __init__(self, origin, paths, seed, planted=0.0):
        self.rng, self.wrong, self.answers, self.hits, self.is_over = random.Random(seed), [], 0, 0, False
        self.address, self.paths = None, [Numbered(f"/numbered-{n}", random.Random(seed + n)) for n in range(paths)]
        # Of a path by its last unsafe method: when the origin had it, once it is answered.
        self.invalidated = dict.fromkeys(self.paths, 0)
        for path in self.paths:
            origin.answers[path.path] = lambda request, path=path: path.answer(request, self.rng.random() < planted)
        self.threads = [threading.Thread(target=self.live, args=[random.Random(seed - n)], daemon=True) for n in range(1, 9)]
        for thread in self.threads:
            thread.start()

    def live(self, rng):
        connection = None
        while not self.is_over and not self.wrong:
            try:
                connection = connection or Connection(self.address, timeout=30)
                self.step(rng, connection)
            except (OSError, TypeError):
                # The server was killed, or has not started.
                connection = connection and connection.close()
                time.sleep(0.02)
            except (Failure, ValueError) as fault:
                self.wrong.append(str(fault))

    def step(self, rng, connection):
        path, kind = self.paths[min(int(rng.expovariate(6 / len(self.paths))), len(self.paths) - 1)], rng.random()
        if kind < 0.05:
            answer = connection.ask(path.path, rng.choice(["POST", "PUT", "DELETE"]), b"x" * rng.choice([0, 10, 100_000]))
            if answer.status == 200:
                self.invalidated[path] = max(self.invalidated[path], float(answer["x-when"]))
            return
        first = rng.randrange(300) if kind < 0.25 else 0
        fields = {"range": f"bytes={first}-"} if first else {"cache_control": "no-cache"} if kind < 0.3 else {}
        began, invalidated = time.time(), self.invalidated[path]
        answer = connection.ask(path.path, **fields)
        if answer.status in (200, 206):
            self.answers, self.hits = self.answers + 1, self.hits + ("hit" in answer.cache)
            wrong = path.judge(answer, began, invalidated, first if answer.status == 206 else 0)
            if wrong:
                raise Failure(f"{path.path}, {fields}: {wrong}; {answer.fields}")
        else:
            expect(answer.status in (416, 502, 504), "200, 206, 416 or 502", answer.words)

    def stop(self):
        self.is_over = True
        for thread in self.threads:
            thread.join(60)


@contextlib.contextmanager
def load(seed, **how):
    with Origin() as origin:
        one = Load(origin, 40, seed, **how)
        try:
            yield origin, one
        finally:
            one.stop()


def test_history(directory, seed, size):
    kills, seconds, rng = size("kills", 5, 30), size("seconds", 20.0, 600.0), random.Random(seed)
    flags = ("--dram", "96MiB", "--flash-size", "128MiB", "--max-connections", "64", "--flush-interval", "1")
    with load(seed) as (origin, clients):
        for life in range(kills + 1):
            with Http(directory, origin, *flags) as server:
                clients.address = server.address
                end = time.monotonic() + seconds / (kills + 1) * rng.uniform(0.5, 1.5)
                while time.monotonic() < end and not clients.wrong:
                    time.sleep(0.05)
                expect(not clients.wrong, "every answer to be explained", "\n".join(clients.wrong))
                if life < kills:
                    server.kill9()
                else:
                    clients.stop()
                    server.check_books()
                    server.terminate()
        expect(not origin.faults, "nothing but requests at the origin", origin.faults)
        print(f"{clients.answers} answers, {clients.hits} of them hits, {len(origin.requests)} requests to the origin, {kills} kills")
        expect(clients.hits > clients.answers / 10, "hits", clients.hits)


def test_planted_stale_answers_are_found(directory, seed):
    with load(seed, planted=0.2) as (origin, clients), Http(directory, origin, "--dram", "96MiB", "--flash-size", "128MiB") as server:
        clients.address, end = server.address, time.monotonic() + 60
        while not clients.wrong:
            expect(time.monotonic() < end, "a stale answer to be found within 60 s", f"none in {clients.answers}")
            time.sleep(0.05)
        print(clients.wrong[0])
        expect("before" in clients.wrong[0], "what is wrong with it", clients.wrong[0])
