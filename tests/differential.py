#!/usr/bin/env python3
"""The same commands to memcached and to Pumice: the answers must be the same, byte for byte.

    tests/differential.py [--commands 50000] [--seed N] [--dram 64MiB] [-- FLAG OF THE SERVER ...]

Commands are generated from a seed, which is printed: classic and meta, good and bad. They go to both servers over pipelined
connections, in segments that begin with an empty cache. What no two servers can have in common is made alike first
(`Side.normal`): CAS uniques, the version, statistics, what `me` tells. Where Pumice differs on purpose, docs/memcached.md
says why, and the rule is in the code: in `KNOWN` with both answers, or marked "known". A segment with a difference is
cut down to the shortest that still has one, and printed.
"""

import argparse
import collections
import getpass
import os
import random
import re
import socket
import subprocess
import time

from harness import Directory, Failure, Server, expect, expect_equal, main
from memcached_commands import ABSOLUTE_EXPTIMES, ALL_KEYS, BIG_KEY, CHANGES, MIB, NOW, TTLS, Command, Generator

SEGMENT_COMMANDS = 400
# CLIENT_ERROR and SERVER_ERROR with what they say.
BEGINNING = re.compile(rb"\w+_ERROR[^\r]*|\d+|\w*")
BATCH_COMMANDS = 64
PATIENCE_SECONDS = 30
PAD = b"get " + b"~" * 200 + b"\r\n"
# Behind every command: what comes back before its answer belongs to the command.
ASK, SAID = b"mg ~ k\r\n", b"EN k~\r\n"
# How long a segment may take: TTLs that are this much shorter are the same.
SEGMENT_SECONDS = 30

OPAQUE = b"o" * 32
BAD_LINE = b"CLIENT_ERROR bad command line format\r\n"
VALUE = b"VALUE a 0 1\r\n%s\r\nEND\r\n"
# Commands with both answers where Pumice differs on purpose; each has its line in docs/memcached.md.
KNOWN = [
    # numbers
    (b"set a 4294967296 0 1\r\nx\r\n", b"STORED\r\n", BAD_LINE + b"ERROR\r\n"),
    (b"ms a 1 F4294967296\r\nx\r\n", b"HD\r\n", BAD_LINE),
    (b"verbosity 4294967296\r\n", b"OK\r\n", BAD_LINE),
    (b"set a 0 -2147483649 1\r\nx\r\nget a\r\n", b"STORED\r\n" + VALUE % b"x", b"STORED\r\nEND\r\n"),
    (b"set a 0 2147483648 1\r\nx\r\nget a\r\n", b"STORED\r\nEND\r\n", b"STORED\r\n" + VALUE % b"x"),
    # lines and keys
    (b"get a\0b\r\n", b"END\r\n", BAD_LINE),
    (b"x" * 3000 + b"\r\n", b"ERROR\r\n", b"CLIENT_ERROR line too long\r\n<closed>"),
    (b"mg YQ==YQ== b\r\n", b"EN\r\n", b"CLIENT_ERROR error decoding key\r\n"),
    (b"set a 0 0 1\r\nx\r\nmg YQ== b k\r\n", b"STORED\r\nHD ka\r\n", b"STORED\r\nHD kYQ== b\r\n"),
    # sizes
    (
        b"set a 0 0 %d\r\n%s\r\n" % (MIB, b"x" * MIB),
        b"SERVER_ERROR object too large for cache\r\n",
        b"STORED\r\n",
    ),
    # meta flags
    (b"set a 0 0 1\r\nx\r\nmg a l\r\n", b"STORED\r\nHD l0\r\n", b"STORED\r\nCLIENT_ERROR invalid flag\r\n"),
    (
        b"set a 0 0 1\r\n9\r\nma a T100 D90\r\nmg a t\r\n",
        b"STORED\r\nHD\r\nHD t-1\r\n",
        b"STORED\r\nHD\r\nHD t100\r\n",
    ),
    (
        b"set a 0 0 1\r\n5\r\nma a O%s\r\nget a\r\n" % OPAQUE,
        b"STORED\r\nCLIENT_ERROR opaque token too long\r\n" + VALUE % b"6",
        b"STORED\r\nCLIENT_ERROR opaque token too long\r\n" + VALUE % b"5",
    ),
    # administration
    (
        b"set a 0 0 1\r\nx\r\nflush_all\r\nflush_all 1000\r\nget a\r\nflush_all\r\n",
        b"STORED\r\nOK\r\nOK\r\n" + VALUE % b"x" + b"OK\r\n",
        b"STORED\r\nOK\r\nOK\r\nEND\r\nOK\r\n",
    ),
    (b"stats detail off\r\n", b"OK\r\n", b"ERROR\r\n"),
]

# What must be the same, in memory that memcached has not used yet: see "known" at the numbers of the generator.
MAX = b"18446744073709551615"
FRESH = [
    [b"set a 0 0 20\r\n%s\r\n" % MAX, b"incr a 1\r\n", b"get a\r\n", b"incr a %s\r\n" % MAX, b"incr a 2\r\n", b"get a\r\n"],
    [b"set b 0 0 20\r\n%s\r\n" % MAX, b"decr b 1\r\n", b"decr b %s\r\n" % MAX, b"decr b 5\r\n", b"get b\r\n"],
    [b"ma c N0 J%s v\r\n" % MAX, b"ma c v\r\n", b"ma c MD D3 v\r\n", b"ma c D%s v\r\n" % MAX, b"get c\r\n"],
    [b"set d 0 0 20\r\n18446744073709551616\r\n", b"incr d 1\r\n", b"incr d 18446744073709551616\r\n", b"ma d\r\n"],
    [b"get %s\r\n" % b" ".join([b"k"] * 3000), b"set e 0 0 1\r\nx\r\n", b"get%s\r\n" % (b" e" * 2000)],
]

# What time does: commands, and others after a pause.
PAUSE_SECONDS = 3.2
TIMED = [
    (
        [b"set a 0 2 1\r\nx\r\n", b"set b 0 100 1\r\nx\r\n", b"set c 0 0 1\r\nx\r\n", b"touch c 2\r\n", b"mg d N2\r\n",
         b"ms e 1 T2\r\nx\r\n", b"ma f N2 J7\r\n", b"set g 0 2 1\r\nx\r\n", b"gat 100 g\r\n", b"set h 0 0 1\r\n5\r\n",
         b"md h I T2\r\n", b"set i 0 2 1\r\n5\r\n", b"mg i T100\r\n", b"set j 0 %d 1\r\nx\r\n" % (NOW - 5), b"get j\r\n"],
        [b"get %c\r\n" % letter for letter in b"abcdefghij"] + [b"mg b t\r\n", b"add a 0 0 1\r\ny\r\n", b"incr f 1\r\n"],
    ),
    (
        [b"set a 0 0 1\r\nx\r\n", b"flush_all 2\r\n", b"get a\r\n", b"set b 0 0 1\r\nx\r\n"],
        [b"get a\r\n", b"get b\r\n", b"set b 0 0 1\r\ny\r\n", b"get b\r\n", b"add a 0 0 1\r\ny\r\n", b"get a\r\n"],
    ),
    (
        [b"flush_all 2\r\n", b"flush_all\r\n", b"set a 0 0 1\r\nx\r\n"],
        [b"get a\r\n", b"mg a h\r\n"],
    ),
]  # fmt: skip


class Side:
    """One of the two servers."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.socket = None
        self.sequence = 0
        self.begin()

    def connect(self):
        if self.socket:
            self.socket.close()
        self.socket = socket.create_connection(self.address, timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self):
        """Forgets what was seen of CAS uniques."""
        self.cas, self.ids, self.next_id = {}, {}, 0

    def send(self, batch, stale_keys):
        if self.socket is None:
            self.connect()
        self.sequence += 1
        parts, renewed = [], set()
        for command in batch:
            text = command.text
            if command.cas_shift is not None:
                known = None if command.key in renewed else self.cas.get(command.key)
                # 1 is older than all, and nobody's any more.
                unique = 1 if known is None or command.cas_shift < 0 else known + (command.cas_shift << 40)
                text = text.replace(b"@C@", b"%d" % unique)
            if command.may_renew(stale_keys):
                renewed.add(command.key)
            parts += (text, ASK)
        # Whatever an unfinished value takes of this, the end is seen.
        self.end = b"EN k~%d\r\n" % self.sequence
        parts += (PAD, b"mg ~%d k\r\n" % self.sequence)
        self.socket.sendall(b"".join(parts))

    def receive(self):
        """What came back, in pieces: one for each command, but the last has all that came after it too."""
        buffer = bytearray()
        while not buffer.endswith(self.end):
            try:
                bytes_ = self.socket.recv(1 << 18)
            except TimeoutError:
                bytes_, why = b"", b"<nothing more came>"
            else:
                why = b"<closed>"
            if not bytes_:
                self.connect()
                return (bytes(buffer) + why).split(SAID)
            buffer += bytes_
        return bytes(buffer[: -len(self.end)]).split(SAID)

    def unique_id(self, key, unique, renewed):
        if renewed and key in self.cas:
            self.ids.pop(self.cas[key], None)
        self.cas[key] = unique
        if unique not in self.ids:
            # Never one that another had, though that is forgotten.
            self.next_id += 1
            self.ids[unique] = self.next_id
        return b"<cas %d>" % self.ids[unique]

    def normal(self, command, reply, stale_keys):
        """A reply with what no two servers have in common made alike."""
        name, key = command.name, command.key
        if name in (b"gets", b"gats"):
            renewed = name == b"gats"

            def value(match):
                return match[1] + self.unique_id(match[2], int(match[3]), renewed) + b"\r\n"

            return re.sub(rb"(VALUE ([^ ]+) \d+ \d+ )(\d+)\r\n", value, reply)
        if name in (b"touch", b"gat"):
            self.forget(key)
            return reply
        if name in (b"mg", b"ms", b"ma", b"md") and reply[:2] in (b"HD", b"VA", b"EN", b"NF", b"NS", b"EX"):
            line, end, rest = reply.partition(b"\r\n")
            # ms says c0 where it did not store.
            renewed = b" W" in line[-4:] or command.may_renew(stale_keys)
            has_unique = False
            words = line.split(b" ")
            normal = words[:2] if words[0] == b"VA" else words[:1]
            for word in words[len(normal) :]:
                letter = word[:1]
                if letter == b"c" and word != b"c0":
                    has_unique = True
                    word = b"c" + self.unique_id(key, int(word[1:]), renewed)
                elif letter == b"t":
                    word = b"t" + ttl(int(word[1:]))
                elif letter == b"k":
                    # Known for what mg finds: the key as it stood in the command, not as it stood when it was stored.
                    word = b"k" if name == b"mg" and words[0] != b"EN" else word
                elif word == b"b" and name == b"mg" and words[0] != b"EN":
                    continue
                elif letter == b"h":
                    word = b"h?" if self.guessed(key) else word
                normal.append(word)
            if renewed and not has_unique:
                self.forget(key)
            return b" ".join(normal) + end + rest
        if name == b"me" and reply.startswith(b"ME "):
            return b"ME\r\n"
        if name == b"version":
            return re.sub(rb"^VERSION \S+", b"VERSION", reply)
        if name == b"stats":
            return re.sub(rb"^(STAT [^\r]*\r\n)*END\r\n", b"<stats>", reply)
        return reply

    def guessed(self, key):
        # Known: a large object that mg with T reads is looked at twice, which counts as a hit.
        return key in self.refused or key == BIG_KEY

    def forget(self, key):
        if key in self.cas:
            self.ids.pop(self.cas.pop(key), None)


def ttl(seconds):
    if seconds > 0x80000000 or seconds == 0:
        # Known: memcached shows the distance to a time that has passed as a number below 2^32, Pumice as 0.
        return b"<past>"
    now = time.time()
    for number, choice in enumerate(TTLS + [exptime - now for exptime in ABSOLUTE_EXPTIMES]):
        # The clocks of the servers tick apart.
        if choice - SEGMENT_SECONDS <= seconds <= choice + 3:
            return b"<ttl %d>" % number
    return b"%d" % seconds


class Comparison:
    """Runs segments on both sides."""

    def __init__(self, theirs, ours):
        self.sides = [theirs, ours]
        # What memcached's answers begin with, so that one sees what was compared.
        self.beginnings = collections.Counter()
        # Answers of memcached that say h1, and those where Pumice says h0.
        self.hits_told, self.hits_untold = 0, 0

    def batches(self, segment):
        batch, read = [], set()
        for command in segment:
            # Known: memcached pads a number, and keeps its marks, only if no reply that waits to be sent has the old one.
            held = command.name in (b"incr", b"decr", b"ma") and command.key in read
            if (command.alone or held) and batch:
                yield batch
                batch, read = [], set()
            batch.append(command)
            if command.name in (b"get", b"gets", b"gat", b"gats", b"mg", b"me"):
                read.add(command.key)
                read.update(command.text.strip().split(b" "))
            if command.alone or command.last or len(batch) == BATCH_COMMANDS:
                yield batch
                batch, read = [], set()
        if batch:
            yield batch

    def same(self, theirs, ours):
        """Whether two answers are alike. Known: while only a block buffer has an object, its hits leave no mark."""
        self.hits_told += b" h1" in theirs[:100]
        if theirs == ours:
            return True
        is_untold = theirs.replace(b" h1", b" h0", 1) == ours
        self.hits_untold += is_untold
        return is_untold

    def run(self, segment):
        """Where the answers first differ: (number of the command, theirs, ours)."""
        stale_keys = set()
        refused = set()
        for side in self.sides:
            side.begin()
            side.refused = refused
            # The get makes memcached forget what it flushed, which a delayed flush would bring back.
            side.send([Command(b"flush_all\r\n"), Command(ALL_KEYS)], stale_keys)
        for side in self.sides:
            expect_equal(side.receive(), [b"OK\r\n", b"END\r\n", b"END\r\n"], f"what {side.name} says to flush_all")
        at = 0
        for batch in self.batches(segment):
            for command in batch:
                if command.name in (b"md", b"ms") and b"I" in command.flags:
                    stale_keys.add(command.key)
            for side in self.sides:
                side.send(batch, stale_keys)
            theirs, ours = [side.receive() for side in self.sides]
            for number, command in enumerate(batch):
                if number + 1 < len(batch):
                    pair = [replies[number] if number < len(replies) else b"<none>" for replies in (theirs, ours)]
                else:
                    pair = [SAID.join(replies[number:]) for replies in (theirs, ours)]
                normal = [
                    side.normal(command, reply, stale_keys) for side, reply in zip(self.sides, pair, strict=True)
                ]
                if not self.same(*normal):
                    return at + number, normal[0], normal[1]
                note_refusal(refused, command, pair[0])
                self.beginnings[BEGINNING.match(pair[0])[0]] += 1
            at += len(batch)
        return None

    def shrink(self, segment, difference):
        """The shortest part of a segment that still has a difference, and that."""
        segment = segment[: difference[0] + 1]
        size = max(1, len(segment) // 2)
        while True:
            at, smaller = 0, False
            while at < len(segment):
                without = segment[:at] + segment[at + size :]
                again = self.run(without) if without else None
                if again:
                    segment, difference, smaller = without, again, True
                else:
                    at += size
            if size == 1 and not smaller:
                return segment, difference
            size = max(1, size // 2)


def note_refusal(refused, command, reply):
    """Known: Pumice counts what a refused change looked at as hit before (h), and not what a refused get names."""
    if command.name in CHANGES and (command.name in (b"add", b"cas") or reply[:2] in (b"EX", b"NS", b"NO", b"CL", b"")):
        refused.add(command.key)
    if command.name in (b"get", b"gets") and reply.startswith(b"CL"):
        refused.update(command.text.strip().split(b" "))


def ask(side, commands):
    """The answers to these commands, without the end that `Side.send` adds."""
    side.send([Command(text) for text in commands], set())
    replies = side.receive()
    return replies[:-1] if replies[-1] == b"END\r\n" else replies


def print_beginnings(beginnings):
    numbers = sum(count for text, count in beginnings.items() if text.isdigit())
    named = {text.decode() or "nothing": count for text, count in beginnings.items() if not text.isdigit()}
    named["a number"] = numbers
    most = sorted(named.items(), key=lambda item: -item[1])
    print("answers: " + ", ".join(f"{count} {text}" for text, count in most))


def known_differences(theirs, ours):
    for text, expected, answer in KNOWN:
        for side, reply in ((theirs, expected), (ours, answer)):
            seen = SAID.join(ask(side, [b"flush_all\r\n", text])[1:])
            expect_equal(seen, reply, f"what {side.name} answers to {text[:80]!r}")


def fresh_memory(theirs, ours):
    for script in FRESH:
        answers = [ask(side, script) for side in (theirs, ours)]
        for text, expected, answer in zip(script, *answers, strict=True):
            expect_equal(answer, expected, f"the answer to {text[:80]!r} in {script!r}")


def what_time_does(theirs, ours):
    for before, after in TIMED:
        seen = []
        for side in (theirs, ours):
            seen.append(ask(side, [b"flush_all\r\n", ALL_KEYS, *before]))
        time.sleep(PAUSE_SECONDS)
        for side, replies in zip((theirs, ours), seen, strict=True):
            replies += ask(side, after)
        for text, expected, answer in zip([b"flush_all", ALL_KEYS, *before, *after], *seen, strict=True):
            alike = [re.sub(rb" t(\d+)", lambda match: b" t" + ttl(int(match[1])), reply) for reply in (expected, answer)]
            expect_equal(alike[1], alike[0], f"the answer to {text!r} in {before!r} and then {after!r}")


def start_memcached(directory):
    """memcached on a port that the system chooses; it writes it into a file."""
    path = f"{directory}/memcached.port"
    command = ["memcached", "-u", getpass.getuser(), "-l", "127.0.0.1", "-p", "-1", "-U", "0", "-m", "1024", "-t", "2"]
    # Its thread that sorts items by use holds one at times, and a number that is held is not changed in place.
    command += ["-o", "no_lru_maintainer,no_lru_crawler"]
    environment = os.environ | {"MEMCACHED_PORT_FILENAME": path}
    with open(f"{directory}/memcached.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (os.path.exists(path) and os.path.getsize(path)):
        expect(process.poll() is None, "memcached to run", f"status {process.returncode}, see memcached.log")
        expect(time.monotonic() < deadline, "memcached to listen", "nothing")
        time.sleep(0.01)
    with open(path, encoding="ascii") as file:
        return process, ("127.0.0.1", int(re.search(r"TCP INET: (\d+)", file.read())[1]))


def test():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--commands", type=int, default=50_000)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments.add_argument("--differences", type=int, default=1, help="how many to show before giving up")
    arguments.add_argument("--dram", default="64MiB")
    arguments.add_argument("flags", nargs="*", help="flags of the server")
    options = arguments.parse_args()
    print(f"seed {options.seed}, {options.commands} commands, {' '.join(options.flags) or 'default layout'}", flush=True)
    with Directory("differential") as directory:
        flash = ["--flash", f"{directory}/pumice.flash", "--flash-size", "1GiB"]
        memcached, address = start_memcached(directory)
        try:
            with Server(directory, "--dram", options.dram, *flash, *options.flags) as server:
                compare(Side("memcached", address), Side("pumice", server.address), options)
                server.check_books()
                server.terminate()
        finally:
            memcached.kill()
            memcached.wait()


def compare(theirs, ours, options):
    fresh_memory(theirs, ours)
    comparison = Comparison(theirs, ours)
    started, done, found = time.monotonic(), 0, 0
    number = 0
    while done < options.commands:
        segment = Generator(f"{options.seed}-{number}").segment(SEGMENT_COMMANDS)
        difference = comparison.run(segment)
        if difference:
            print(f"difference at {segment[difference[0]]!r}", flush=True)
            shortest, difference = comparison.shrink(segment, difference)
            print(f"difference in segment {number}, cut down to {len(shortest)} commands:")
            for at, command in enumerate(shortest):
                print(f"{'  > ' if at == difference[0] else '    '}{command!r}")
            print(f"  memcached {difference[1][:600]!r}\n  pumice    {difference[2][:600]!r}", flush=True)
            found += 1
            if found >= options.differences:
                break
        done += len(segment)
        number += 1
    if found:
        raise Failure(f"expected no difference; seen {found} with seed {options.seed} in {done} commands")
    seconds = time.monotonic() - started
    told, untold = comparison.hits_told, comparison.hits_untold
    expect(untold * 20 <= told, "h1 in all but a few of the answers where memcached says so", f"h0 in {untold} of {told}")
    print_beginnings(comparison.beginnings)
    known_differences(theirs, ours)
    what_time_does(theirs, ours)
    print(f"{done} commands in {seconds:.0f} s: no difference but those in docs/memcached.md")


if __name__ == "__main__":
    main(test)
