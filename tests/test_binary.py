"""The binary protocol: a script after memcached's own test of it, and generated frames, to memcached and to Pumice, whose replies must be the
same. Where Pumice differs on purpose, docs/memcached.md says why, and the place here is marked "known".
`--full` or `--with frames=500000 --with flash_frames=20000`.
"""

import random
import struct

import segments
from harness import expect, expect_equal, frames
from harness.frames import (
    ADD, ADDQ, APPEND, APPENDQ, DECR, DECRQ, DELETE, DELETEQ, DONE, EXISTS, FLUSH, FLUSHQ, GAT, GATK, GATKQ, GATQ, GET, GETK, GETKQ, GETQ,
    INCR, INCRQ, MAKE_NONE, MECHANISMS, NOOP, NOT_FOUND, NOT_NUMERIC, NOT_STORED, PREPEND, PREPENDQ, QUIT, QUITQ, REPLACE,
    REPLACEQ, SET, SETQ, STAT, TOO_LARGE, TOUCH, VERSION, Connection, Reply, frame,
)
from memcached_sides import Memcached, Pumice

MIB = 1 << 20
BATCH_FRAMES = 32
BATCHES_PER_LIFE = 3
SILENT = None


class Request:
    """A frame without its opaque and its CAS unique: `cas` says whether it has the key's, or one that nobody has."""

    def __init__(self, opcode, key=b"", extras=b"", value=b"", cas=None, ends=False, **lies):
        self.opcode, self.key, self.extras, self.value, self.cas, self.ends, self.lies = opcode, key, extras, value, cas, ends, lies

    def bytes(self, opaque, unique):
        return frame(self.opcode, self.key, self.extras, self.value, opaque=opaque, cas=unique, **self.lies)

    def __repr__(self):
        value = self.value if len(self.value) < 80 else b"%d bytes" % len(self.value)
        name = frames.NAMES.get(self.opcode, hex(self.opcode))
        return f"{name} {self.key!r} {self.extras.hex()} {value!r} cas={self.cas} {self.lies or ''}"


def number(opcode, key, by=1, initial=0, expiry=0, **more):
    return Request(opcode, key, struct.pack(">QQI", by, initial, expiry), **more)


def store(opcode, key, value, flags=0, expiry=0, **more):
    return Request(opcode, key, struct.pack(">II", flags, expiry), value, **more)


def touch(opcode, key, expiry=100):
    return Request(opcode, key, struct.pack(">I", expiry))


# What memcached's t/binary.t asks: requests, and the statuses of their replies.
SCRIPT = [
    (Request(NOOP), DONE), (Request(FLUSH), DONE), (Request(VERSION), DONE), (Request(GET, b"a"), NOT_FOUND), (Request(GETK, b"a"), NOT_FOUND),
    (Request(GETQ, b"a"), SILENT), (Request(GETKQ, b"a"), SILENT), (touch(GATQ, b"a"), SILENT), (touch(GATKQ, b"a"), SILENT),
    (store(SET, b"a", b"value", 19, 500), DONE), (Request(GETK, b"a"), DONE), (Request(DELETE, b"a"), DONE), (Request(DELETE, b"a"), NOT_FOUND),
    # add, replace.
    (store(REPLACE, b"a", b"0"), NOT_FOUND), (store(ADD, b"a", b"1", 1), DONE), (store(ADD, b"a", b"2"), EXISTS), (store(REPLACE, b"a", b"3", 3), DONE),
    # CAS, with set, append, delete and incr.
    (store(SET, b"none", b"x", cas="wrong"), NOT_FOUND), (store(SET, b"a", b"4", cas="right"), DONE), (store(SET, b"a", b"5", cas="wrong"), EXISTS),
    (Request(APPEND, b"a", value=b"0", cas="wrong"), EXISTS), (Request(APPEND, b"a", value=b"0", cas="right"), DONE),
    (number(INCR, b"a", cas="wrong"), EXISTS), (number(INCR, b"a", 2, cas="right"), DONE), (Request(GET, b"a"), DONE),
    (Request(DELETE, b"a", cas="wrong"), EXISTS), (Request(DELETE, b"a", cas="right"), DONE),
    # append, prepend.
    (Request(APPEND, b"a", value=b"x"), NOT_STORED), (Request(PREPEND, b"a", value=b"x"), NOT_STORED), (store(SET, b"a", b"b", 9), DONE),
    (Request(APPEND, b"a", value=b"c"), DONE), (Request(PREPEND, b"a", value=b"a"), DONE), (Request(GETK, b"a"), DONE),
    # incr, decr.
    (number(INCR, b"n", expiry=MAKE_NONE), NOT_FOUND), (number(INCR, b"n", 7, 5), DONE), (number(INCR, b"n", 7, 5), DONE),
    (number(INCR, b"n", 1 << 33), DONE), (number(DECR, b"n", 1 << 40), DONE), (number(DECR, b"m", 1, 1 << 63), DONE), (number(INCR, b"a"), NOT_NUMERIC),
    # touch, gat; 30 days and a second after 1970.
    (touch(TOUCH, b"a"), DONE), (touch(TOUCH, b"none"), NOT_FOUND), (touch(GAT, b"a"), DONE), (touch(GATK, b"a"), DONE), (touch(GATK, b"none"), NOT_FOUND),
    (touch(TOUCH, b"a", 2_592_001), DONE), (Request(GET, b"a"), NOT_FOUND),
    # The quiet forms do the same, and say what went wrong.
    (store(SETQ, b"q", b"1", 2), SILENT), (store(REPLACEQ, b"q", b"2", 3), SILENT), (store(ADDQ, b"q2", b"5"), SILENT),
    (Request(APPENDQ, b"q", value=b"3"), SILENT), (Request(PREPENDQ, b"q", value=b"1"), SILENT), (Request(GETQ, b"q"), DONE),
    (number(INCRQ, b"q", 7), SILENT), (number(DECRQ, b"q2"), SILENT), (number(INCRQ, b"q3", 1, 77), SILENT), (Request(GETKQ, b"q"), DONE),
    (store(ADDQ, b"q", b"x"), EXISTS), (store(REPLACEQ, b"none", b"x"), NOT_FOUND), (Request(DELETEQ, b"none"), NOT_FOUND),
    (Request(APPENDQ, b"none", value=b"x"), NOT_STORED), (number(INCRQ, b"none", expiry=MAKE_NONE), NOT_FOUND),
    (Request(DELETEQ, b"q"), SILENT), (Request(GETQ, b"q"), SILENT), (Request(FLUSHQ), SILENT), (Request(GET, b"q2"), NOT_FOUND),
    # Too large: the old value goes with a set.
    (store(SET, b"big", b"small"), DONE), (store(ADD, b"big", b"x" * (MIB + 1)), TOO_LARGE), (Request(GET, b"big"), DONE),
    (store(SET, b"big", b"x" * (MIB + 1)), TOO_LARGE), (Request(GET, b"big"), NOT_FOUND), (Request(STAT, b"bogus"), NOT_FOUND),
]


KEYS = [b"k%d" % number for number in range(12)] + [b"with space", b"\0\r\n\xff", b"K" * 250]
BIG_KEY = b"big"
MISSING = [b"miss%d" % number for number in range(20)]
EXPIRIES = [0] * 6 + [100, 2_592_000, 2_592_001, 0x80000000, MAKE_NONE]
READS = {GET: GETQ, GETK: GETKQ}
TOUCHES = {GAT: GATQ, GATK: GATKQ}
STORES = {SET: SETQ, ADD: ADDQ, REPLACE: REPLACEQ}
JOINS = {APPEND: APPENDQ, PREPEND: PREPENDQ}
DELTAS = {INCR: INCRQ, DECR: DECRQ}
TOUCHING = {TOUCH, *TOUCHES, *TOUCHES.values()}
# What must have been answered, and how often at least in 100,000 frames.
MUST_OCCUR = {
    "GET 0": 1000, "GETQ 0": 1000, "GETK 1": 100, "GATKQ 0": 50, "TOUCH 0": 100, "SET 0": 1000, "SET 1": 50, "SET 2": 100, "SETQ 2": 20,
    "ADD 2": 100, "ADDQ 2": 100, "REPLACE 1": 50, "APPEND 0": 100, "APPEND 5": 50, "INCR 0": 200, "INCR 6": 50, "INCRQ 1": 20,
    "DELETE 0": 100, "DELETE 2": 20, "the end": 100,
}  # fmt: skip


class Generator:
    """Requests from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def segment(self, count):
        return [self.request() for _ in range(count)]

    def one_of(self, pairs):
        """An opcode or, as often, its quiet form."""
        return self.random.choice(self.random.choice(list(pairs.items())))

    def key(self):
        at = self.random.random()
        return self.random.choice(MISSING) if at < 0.05 else BIG_KEY if at < 0.08 else self.random.choice(KEYS)

    def value(self, key):
        draw = self.random
        if key == BIG_KEY:
            return bytes([draw.randrange(256)]) * draw.choice([MIB - 1000, 600_000, 100_000, MIB + 1])
        noise = b"x" + draw.randbytes(draw.choice([0, draw.randrange(300), 20_000]))
        return draw.choice([b"", b"%d" % draw.randrange(2000), b"99", b"x", noise])

    def cas(self):
        return self.random.choices([None, "right", "wrong"], [8, 1, 1])[0]

    def request(self):
        draw, at, key = self.random, self.random.random(), self.key()
        expiry = struct.pack(">I", draw.choice(EXPIRIES))
        if at < 0.3:
            return Request(self.one_of(READS), key)
        if at < 0.5:
            flags = struct.pack(">I", draw.randrange(1 << 32))
            return Request(self.one_of(STORES), key, flags + expiry, self.value(key), self.cas())
        if at < 0.58:
            # Known: memcached has its own mind of numbers from 2^63 on, which joined digits would soon be, and Pumice looks at no number
            # with 16 KiB behind it.
            value = self.value(key) if key == BIG_KEY else draw.choice([b"", b"x", b"x" + draw.randbytes(draw.randrange(300))])
            return Request(self.one_of(JOINS), key, b"", value, self.cas())
        if at < 0.7:
            # Known: memcached says of large numbers that they are none before it compares.
            key = draw.choice(KEYS) if key == BIG_KEY else key
            # Known: from 2^63 on memcached looks for a minus sign in what stands behind the number in memory.
            by, initial = (draw.choice([0, 1, 7, 100, 10**15]) for _ in range(2))
            return Request(self.one_of(DELTAS), key, struct.pack(">QQ", by, initial) + expiry, b"", self.cas())
        if at < 0.8:
            return Request(draw.choice([DELETE, DELETEQ]), key, cas=self.cas())
        if at < 0.9:
            return Request(draw.choice(sorted(TOUCHING)), key, expiry)
        if at < 0.95:
            return draw.choice([Request(NOOP), Request(VERSION), Request(STAT, b"bogus"), Request(STAT, b"reset"),
                                Request(draw.choice([0x1B, 0x3D, MECHANISMS, 0xFF])), Request(0x40, value=b"v" * draw.randrange(3000))])
        if at < 0.955:
            # Known: a delayed flush brings back what one without a delay has flushed.
            return Request(draw.choice([FLUSH, FLUSHQ]), extras=draw.choice([b"", bytes(4)]))
        return self.bad(key)

    def bad(self, key):
        """After these the connection ends."""
        draw = self.random
        return draw.choice([
            lambda: Request(QUIT, ends=True),
            lambda: Request(QUITQ, ends=True),
            lambda: Request(draw.choice([GET, GETKQ, DELETE, TOUCH, INCR]), b"", ends=True),
            lambda: Request(draw.choice([GET, SET, 0x55]), b"k" * 251, bytes(8), ends=True),
            lambda: Request(draw.choice([GET, DELETEQ]), key, b"", b"v", ends=True),
            lambda: Request(draw.choice([SET, ADDQ, INCR]), key, bytes(draw.choice([0, 4, 9])), b"1", ends=True),
            lambda: Request(draw.choice([NOOP, VERSION, FLUSH, QUIT]), b"k", ends=True),
            lambda: Request(draw.choice([GET, SET, NOOP, 0x60]), key, bytes(8), ends=True, body_len=draw.randrange(len(key) + 8)),
        ])()


class Side:
    """One of the two servers, with what it said of CAS uniques."""

    def __init__(self, server):
        self.server, self.connection = server, None
        self.begin()

    def begin(self):
        self.cas, self.ids, self.next_id = {}, {}, 0

    def connect(self):
        if self.connection is None:
            self.connection = Connection(self.server.address)

    def run(self, batch):
        """The replies to a batch, with a number of its own in place of each CAS unique."""
        self.connect()
        renewed, sent = set(), []
        for number, request in enumerate(batch):
            unique = 0
            if request.cas is not None:
                # 1 is nobody's any more.
                known = request.cas == "right" and request.key not in renewed
                unique = self.cas.get(request.key, 1) if known else 1
            if request.opcode in TOUCHING:
                renewed.add(request.key)
            sent.append(request.bytes(number, unique))
        # What a server has not read when it closes a connection could take its last reply with it.
        replies = self.connection.to_the_end(*sent) if batch[-1].ends else self.connection.all_of(*sent)
        if replies and replies[-1] is None:
            self.disconnect()
        return [self.normal(batch, reply) for reply in replies]

    def disconnect(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def normal(self, batch, reply):
        if reply is None or reply.cas == 0:
            return reply
        key = batch[reply.opaque].key
        # Known: what changes the expiry gives a new CAS unique.
        if reply.opcode in TOUCHING:
            self.ids.pop(self.cas.get(key), None)
        self.cas[key] = reply.cas
        if reply.cas not in self.ids:
            # Never one that another had, though that is forgotten.
            self.next_id += 1
            self.ids[reply.cas] = self.next_id
        return reply._replace(cas=self.ids[reply.cas])


class Comparison(segments.Comparison):
    """Runs segments on both sides."""

    def batches(self, segment):
        batch, read = [], set()
        for request in segment:
            # Known: memcached pads a number only if no reply that waits to be sent has the old one.
            held = request.opcode in (INCR, INCRQ, DECR, DECRQ) and request.key in read
            if batch and (held or request.ends):
                yield batch
                batch, read = [], set()
            batch.append(request)
            if request.opcode in (GET, GETQ, GETK, GETKQ) or request.opcode in TOUCHING:
                read.add(request.key)
            if request.ends or len(batch) == BATCH_FRAMES:
                yield batch
                batch, read = [], set()
        if batch:
            yield batch

    def run(self, segment):
        """Where the replies first differ: (number of the first request of the batch, theirs, ours)."""
        for side in self.sides:
            side.begin()
            side.connect()
            # The gets make memcached forget what it flushed.
            gets = [frame(GETQ, key) for key in [BIG_KEY, *KEYS, *MISSING]]
            expect_equal(side.connection.all_of(frame(FLUSHQ), *gets), [], "what is left after a flush")
        at = 0
        for number, batch in enumerate(self.batches(segment)):
            if self.restarts and number % BATCHES_PER_LIFE == BATCHES_PER_LIFE - 1:
                self.sides[1].disconnect()
                self.sides[1].server.restart()
            theirs, ours = (side.run(batch) for side in self.sides)
            if theirs != ours:
                return at, theirs, ours
            for reply in theirs:
                self.occurred["the end" if reply is None else f"{frames.NAMES.get(reply.opcode)} {reply.status}"] += 1
            at += len(batch)
        return None

    def script(self, rows):
        """Requests one after the other, with the statuses that both answer; the quiet ones that have nothing to say are silent."""
        for side in self.sides:
            side.begin()
        for number, (request, status) in enumerate(rows):
            theirs, ours = (side.run([request]) for side in self.sides)
            expect_equal(ours, theirs, f"the answers to request {number}, {request!r}")
            expect_equal([reply and reply.status for reply in theirs], [] if status is SILENT else [status], f"the status of request {number}, {request!r}")

    def statistics(self):
        """The figures that STAT answers with: a reply each, and one without a key behind them."""
        for side in self.sides:
            side.run([store(SET, b"a", b"x")])
            for what, least in ((b"", 20), (b"settings", 20), (b"items", 1), (b"slabs", 2), (b"reset", 0)):
                side.connection.send(frame(STAT, what, opaque=7))
                figures = []
                while (reply := side.connection.reply()).key:
                    figures.append(reply)
                expect_equal(reply, Reply(STAT, DONE, 7, 0, b"", b"", b""), f"the end of stat {what.decode()}")
                expect(all((reply.opcode, reply.status, reply.opaque) == (STAT, DONE, 7) for reply in figures), "replies to stat", figures)
                expect(len(figures) >= least, f"at least {least} figures of stat {what.decode()}", figures)

    @staticmethod
    def shown(answer):
        replies = ("the end" if reply is None else repr(reply._replace(value=reply.value[:60], opcode=frames.NAMES.get(reply.opcode))) for reply in answer)
        return "\n    ".join(replies)


def test_replies_as_memcached(directory, seed, size, server_flags):
    count, flash_count = size("frames", 40_000, 500_000), size("flash_frames", 3_000, 20_000)
    flags = ["--dram", "64MiB", "--flash-size", "1GiB", *server_flags]
    with Memcached(directory) as theirs, Pumice(directory, flags) as ours:
        comparison = Comparison(Side(theirs), Side(ours))
        comparison.script(SCRIPT)
        comparison.statistics()
        comparison.generated(Generator, seed, count, 0)
        comparison.check_coverage(MUST_OCCUR, count)
        if flash_count:
            comparison.restarts = True
            comparison.generated(Generator, seed, flash_count, 1_000_000)
            expect(ours.hits_flash >= ours.lives, "hits from flash in each life", f"{ours.hits_flash} in {ours.lives}")
        comparison.sides[1].disconnect()
        ours.stop()
    print(f"{count} frames, {flash_count} with restarts: no difference but those in docs/memcached.md")
