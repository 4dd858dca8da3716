"""The binary protocol: what memcached's own test of it asks, of memcached and of Pumice; and generated frames to both, whose replies must
be the same. Where Pumice differs on purpose, docs/memcached.md says why, and the place here is marked "known".
`--full` or `--with frames=500000 --with flash_frames=20000`.
"""

import collections
import random
import struct

import memcached_frames as frames
from harness import Failure, expect, expect_equal, servers
from memcached_frames import (
    ADD, ADDQ, APPEND, APPENDQ, DECR, DECRQ, DELETE, DELETEQ, DONE, EXISTS, FLUSH, FLUSHQ, GAT, GATK, GATKQ, GATQ, GET, GETK, GETKQ, GETQ,
    INCR, INCRQ, INVALID, MAKE_NONE, MECHANISMS, NOOP, NOT_FOUND, NOT_NUMERIC, NOT_STORED, PREPEND, PREPENDQ, QUIT, QUITQ, REPLACE,
    REPLACEQ, SET, SETQ, STAT, TOO_LARGE, TOUCH, UNKNOWN, VERSION, Connection, delta, frame, store, touch,
)
from memcached_sides import Memcached, Pumice

MIB = 1 << 20
SEGMENT_FRAMES = 400
BATCH_FRAMES = 32
BATCHES_PER_LIFE = 3


# --- what each command does ------------------------------------------------------------------------------------------


class Script:
    """Expectations of one connection."""

    def __init__(self, address):
        self.connection = Connection(address)

    def expect(self, request, status=DONE, value=b"", key=b"", extras=b""):
        """Asks, expects this reply, and returns its CAS unique."""
        reply = self.connection.ask(request)
        expect(reply is not None, f"an answer to {request[:60]!r}", "the end")
        # The message of an error is for people.
        seen = (reply.status, b"" if status != DONE and not key else reply.value, reply.key, reply.extras)
        expect_equal(seen, (status, value, key, extras), f"the answer to {request[:60]!r}")
        return reply.cas

    def holds(self, key, value, flags=0):
        return self.expect(frame(GETK, key), DONE, value, key, struct.pack(">I", flags))

    def holds_nothing(self, key):
        self.expect(frame(GET, key), NOT_FOUND)

    def silent(self, *requests):
        expect_equal(self.connection.all_of(*requests), [], f"the answers to {requests[0][:60]!r}")


def check_commands(address):
    script = Script(address)
    number = struct.Struct(">Q").pack
    script.expect(frame(NOOP))
    script.expect(frame(FLUSH))
    script.expect(frame(VERSION), value=b"1.6.18")
    script.holds_nothing(b"a")
    script.expect(frame(GETK, b"a"), NOT_FOUND, key=b"a")
    script.silent(frame(GETQ, b"a"), frame(GETKQ, b"a"), touch(GATQ, b"a", 10), touch(GATKQ, b"a", 10))
    cas = script.expect(store(SET, b"a", b"value", flags=19, expiry=500))
    expect_equal(script.holds(b"a", b"value", 19), cas, "the CAS unique of get, that of set")
    script.expect(frame(DELETE, b"a"))
    script.expect(frame(DELETE, b"a"), NOT_FOUND)
    # add, replace.
    script.expect(store(REPLACE, b"a", b"0"), NOT_FOUND)
    script.expect(store(ADD, b"a", b"1", flags=1))
    script.expect(store(ADD, b"a", b"2"), EXISTS)
    script.expect(store(REPLACE, b"a", b"3", flags=3))
    script.holds(b"a", b"3", 3)
    # CAS, with set, append, delete and incr.
    script.expect(store(SET, b"none", b"x", cas=5), NOT_FOUND)
    old = script.holds(b"a", b"3", 3)
    new = script.expect(store(SET, b"a", b"4", cas=old))
    expect(new not in (0, old), "another CAS unique after a change", (old, new))
    script.expect(store(SET, b"a", b"5", cas=old), EXISTS)
    script.expect(frame(APPEND, b"a", value=b"0", cas=old), EXISTS)
    newer = script.expect(frame(APPEND, b"a", value=b"0", cas=new))
    script.expect(delta(INCR, b"a", cas=new), EXISTS)
    newest = script.expect(delta(INCR, b"a", 2, cas=newer), value=number(42))
    script.expect(frame(DELETE, b"a", cas=newer), EXISTS)
    script.expect(frame(DELETE, b"a", cas=newest))
    # append, prepend.
    script.expect(frame(APPEND, b"a", value=b"x"), NOT_STORED)
    script.expect(frame(PREPEND, b"a", value=b"x"), NOT_STORED)
    script.expect(store(SET, b"a", b"b", flags=9))
    script.expect(frame(APPEND, b"a", value=b"c"))
    script.expect(frame(PREPEND, b"a", value=b"a"))
    script.holds(b"a", b"abc", 9)
    # incr, decr.
    script.expect(delta(INCR, b"n", expiry=MAKE_NONE), NOT_FOUND)
    script.expect(delta(INCR, b"n", 7, 5), value=number(5))
    script.expect(delta(INCR, b"n", 7, 5), value=number(12))
    script.expect(delta(INCR, b"n", 1 << 33), value=number((1 << 33) + 12))
    script.expect(delta(DECR, b"n", 1 << 40), value=number(0))
    script.expect(delta(DECR, b"m", 1, 1 << 63), value=number(1 << 63))
    script.expect(delta(INCR, b"a"), NOT_NUMERIC)
    # touch, gat.
    flags = struct.pack(">I", 9)
    script.expect(touch(TOUCH, b"a", 100), extras=flags)
    script.expect(touch(TOUCH, b"none", 100), NOT_FOUND)
    script.expect(touch(GAT, b"a", 100), value=b"abc", extras=flags)
    script.expect(touch(GATK, b"a", 100), value=b"abc", key=b"a", extras=flags)
    script.expect(touch(GATK, b"none", 100), NOT_FOUND, key=b"none")
    # 30 days and a second after 1970.
    script.expect(touch(TOUCH, b"a", 2_592_001), extras=flags)
    script.holds_nothing(b"a")
    check_quiet(script, number)
    # Statistics.
    script.expect(store(SET, b"a", b"x"))
    for what, least in ((b"", 20), (b"settings", 20), (b"items", 1), (b"slabs", 2), (b"reset", 0)):
        script.connection.send(frame(STAT, what, opaque=7))
        count = 0
        while (reply := script.connection.reply()).key:
            expect_equal((reply.opcode, reply.status, reply.opaque), (STAT, DONE, 7), f"stat {what.decode()}")
            count += 1
        expect(count >= least, f"at least {least} figures of stat {what.decode()}", count)
    script.expect(frame(STAT, b"bogus"), NOT_FOUND)
    # Too large: the old value goes with a set.
    script.expect(store(SET, b"big", b"small"))
    script.expect(store(ADD, b"big", b"x" * (MIB + 1)), TOO_LARGE)
    script.holds(b"big", b"small")
    script.expect(store(SET, b"big", b"x" * (MIB + 1)), TOO_LARGE)
    script.holds_nothing(b"big")
    script.expect(frame(QUIT))
    expect_equal(script.connection.reply(), None, "what comes after quit")


def check_quiet(script, number):
    """The quiet forms do the same, and say what went wrong."""
    script.silent(store(SETQ, b"q", b"1", flags=2), store(REPLACEQ, b"q", b"2", flags=3), store(ADDQ, b"q2", b"5"))
    script.silent(frame(APPENDQ, b"q", value=b"3"), frame(PREPENDQ, b"q", value=b"1"))
    script.holds(b"q", b"123", 3)
    script.silent(delta(INCRQ, b"q", 7), delta(DECRQ, b"q2", 1), delta(INCRQ, b"q3", 1, 77))
    script.holds(b"q", b"130", 3)
    script.expect(delta(INCR, b"q3", 0), value=number(77))
    replies = script.connection.all_of(
        frame(GETQ, b"q"), store(ADDQ, b"q", b"x", opaque=1), store(REPLACEQ, b"none", b"x", opaque=2), frame(DELETEQ, b"none", opaque=3),
        frame(APPENDQ, b"none", value=b"x", opaque=4), delta(INCRQ, b"none", expiry=MAKE_NONE, opaque=5), frame(GETKQ, b"q2", opaque=6),
        frame(DELETEQ, b"q"), frame(DELETEQ, b"q2"), frame(GETQ, b"q"))
    seen = [(reply.opcode, reply.opaque, reply.status) for reply in replies]
    expect_equal(seen, [(GETQ, 0, DONE), (ADDQ, 1, EXISTS), (REPLACEQ, 2, NOT_FOUND), (DELETEQ, 3, NOT_FOUND), (APPENDQ, 4, NOT_STORED),
                        (INCRQ, 5, NOT_FOUND), (GETKQ, 6, DONE)], "the answers to quiet commands")
    script.expect(store(SET, b"q", b"x"))
    script.silent(frame(FLUSHQ))
    script.holds_nothing(b"q")


def test_commands_and_their_quiet_forms(directory):
    with servers.Memcached(directory) as theirs:
        check_commands(theirs.address)
    with servers.Pumice(directory, "--dram", "64MiB", "--flash-size", "256MiB") as ours:
        check_commands(ours.address)
        ours.check_books()
        ours.terminate()


# --- generated frames ------------------------------------------------------------------------------------------------

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
    "DELETE 0": 100, "DELETE 2": 20, "SET 3": 10, "the end": 100,
}  # fmt: skip


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


class Comparison:
    """Runs segments on both sides."""

    def __init__(self, theirs, ours):
        self.sides = [Side(theirs), Side(ours)]
        self.occurred = collections.Counter()
        self.restarts = False

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
        at, touched = 0, set()
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

    def shrink(self, segment):
        """The shortest part of a segment that still has a difference, and that."""
        difference, size = self.run(segment), max(1, len(segment) // 2)
        while difference:
            at, smaller = 0, False
            while at < len(segment):
                without = segment[:at] + segment[at + size:]
                again = self.run(without) if without else None
                if again:
                    segment, difference, smaller = without, again, True
                else:
                    at += size
            if size == 1 and not smaller:
                break
            size = max(1, size // 2)
        return segment, difference

    def generated(self, seed, count, first):
        done, number = 0, first
        while done < count:
            segment = Generator(f"{seed}-{number}").segment(SEGMENT_FRAMES)
            difference = self.run(segment)
            if difference:
                print_difference(f"difference in segment {number}, behind {difference[0]} requests:", difference)
                shortest, again = self.shrink(segment)
                print(f"cut down to {len(shortest)} requests:", *shortest, sep="\n    ", flush=True)
                if again:
                    print_difference("with the difference:", again)
                raise Failure(f"expected no difference; seen one with seed {seed} in {done + len(segment)} frames")
            done += len(segment)
            number += 1
        return done


def print_difference(what, difference):
    """The replies to one batch, from where they differ on."""
    print(what)
    replies = difference[1:]
    same = next((at for at, pair in enumerate(zip(*replies)) if pair[0] != pair[1]), min(map(len, replies)))
    for name, side in zip(("memcached", "pumice"), replies, strict=True):
        print(f"  {name}", *(shown(reply) for reply in side[same:same + 10]), sep="\n    ", flush=True)


def shown(reply):
    return "the end" if reply is None else repr(reply._replace(value=reply.value[:60], opcode=frames.NAMES.get(reply.opcode)))


def test_replies_as_memcached(directory, seed, size, server_flags):
    count, flash_count = size("frames", 40_000, 500_000), size("flash_frames", 3_000, 20_000)
    flags = ["--dram", "64MiB", "--flash-size", "1GiB", *server_flags]
    with Memcached(directory) as theirs, Pumice(directory, flags) as ours:
        comparison = Comparison(theirs, ours)
        done = comparison.generated(seed, count, 0)
        occurred = comparison.occurred
        print(", ".join(f"{number} {what}" for what, number in occurred.most_common()))
        if done >= 20_000:
            rare = {what: occurred[what] for what, least in MUST_OCCUR.items() if occurred[what] * 100_000 < least * done}
            expect(not rare, "all that is to be compared to have occurred", f"too seldom in {done} frames: {rare}")
        if flash_count:
            comparison.restarts = True
            comparison.generated(seed, flash_count, 1_000_000)
            expect(ours.hits_flash >= ours.lives, "hits from flash in each life", f"{ours.hits_flash} in {ours.lives}")
        comparison.sides[1].disconnect()
        ours.stop()
    print(f"{done} frames, {flash_count} with restarts: no difference but those in docs/memcached.md")
