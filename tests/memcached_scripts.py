"""Scripts of test_differential.py: what Pumice answers otherwise on purpose, what time does, and what a listing of keys has.

Each difference has its line, with its reason, in docs/memcached.md.
"""

import pathlib
import re
import socket
import time
import urllib.parse

from harness import expect, expect_equal
from memcached_commands import ALL_KEYS, MIB, NOW, ODD_KEYS, Command
from memcached_sides import PATIENCE_SECONDS, SAID, ttl

MEMCACHED_VERSION = b"1.6.18"

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
    # lines and keys
    (b"get a\0b\r\n", b"END\r\n", BAD_LINE),
    (b"x" * 3000 + b"\r\n", b"ERROR\r\n", b"CLIENT_ERROR line too long\r\n<closed>"),
    (b"mg YQ==YQ== b\r\n", b"EN\r\n", b"CLIENT_ERROR error decoding key\r\n"),
    (b"set a 0 0 1\r\nx\r\nmg YQ== b k\r\n", b"STORED\r\nHD ka\r\n", b"STORED\r\nHD kYQ== b\r\n"),
    # sizes
    (b"set a 0 0 %d\r\n%s\r\n" % (MIB, b"x" * MIB), b"SERVER_ERROR object too large for cache\r\n", b"STORED\r\n"),
    # meta flags
    (b"set a 0 0 1\r\nx\r\nmg a l\r\n", b"STORED\r\nHD l0\r\n", b"STORED\r\nCLIENT_ERROR invalid flag\r\n"),
    (b"set a 0 0 1\r\n9\r\nma a T100 D90\r\nmg a t\r\n", b"STORED\r\nHD\r\nHD t-1\r\n", b"STORED\r\nHD\r\nHD t100\r\n"),
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

KNOWN_ALONE = [
    (b"set a 0 0 1\r\nx\r\n", b"STORED\r\n", b"STORED\r\n"),
    (b"gat 100 a %s\r\n" % (b"L" * 251), BAD_LINE, BAD_LINE),
    (b"mg a t\r\n", b"HD t100\r\n", b"HD t-1\r\n"),
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
    ([b"flush_all 2\r\n", b"flush_all\r\n", b"set a 0 0 1\r\nx\r\n"], [b"get a\r\n", b"mg a h\r\n"]),
]  # fmt: skip


def ask(side, commands):
    """The answers to these commands, without the end that `Side.send` adds."""
    side.send([Command(text) for text in commands], set())
    replies = side.receive()
    return replies[:-1] if replies[-1] == b"END\r\n" else replies


def cases():
    """The cases of memcached_cases.txt, as bytes."""
    for line in (pathlib.Path(__file__).parent / "memcached_cases.txt").read_text().splitlines():
        if not line.startswith("#"):
            text = line.encode().decode("unicode_escape").encode("latin-1")
            yield re.sub(rb"<([^*]+)\*(\d+)>", lambda match: match[1] * int(match[2]), text)


def answer_alone(side, text):
    """All that comes back on a connection of its own, from an emptied cache, with what no two servers have in common made alike."""
    with socket.create_connection(side.address, timeout=PATIENCE_SECONDS) as connection:
        # First: memcached loses the reply before that of a bad key, if it is not sent yet.
        connection.sendall(b"flush_all\r\n")
        expect_equal(connection.recv(4, socket.MSG_WAITALL), b"OK\r\n", "the answer to flush_all")
        connection.sendall(text + b"\r\nquit\r\n")
        answer = b"".join(iter(lambda: connection.recv(1 << 18), b""))
    answer = re.sub(rb"(?m)^(VALUE \S+ \S+ \S+ )\d+\r", rb"\1<cas>\r", answer)
    answer = re.sub(rb"(?m)^(HD|VA)( .*)?\r", lambda match: re.sub(rb" c\d+", b" <cas>", match[0]), answer)
    # Of `me` the key, and the expiry of what never expires.
    return re.sub(rb"(?m)^(ME \S+ \S+) [^\r]*\r", rb"\1 <fields>\r", answer)


def known_differences(theirs, ours):
    for text, expected, answer in KNOWN:
        for side, reply in ((theirs, expected), (ours, answer)):
            seen = SAID.join(ask(side, [b"flush_all\r\n", text])[1:])
            expect_equal(seen, reply, f"what {side.name} answers to {text[:80]!r}")
    # One after the other: memcached loses the reply before that of a bad key, if it is not sent yet.
    for text, expected, answer in KNOWN_ALONE:
        for side, reply in ((theirs, expected), (ours, answer)):
            expect_equal(ask(side, [text]), [reply], f"what {side.name} answers to {text[:80]!r}")


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


# What is done to objects that are on flash, and nowhere else, when they are first asked for.
ON_FLASH = (
    [b"set %c 7 0 2\r\n%c5\r\n" % (letter, letter) for letter in b"abcdefgh"]
    + [b"set %c 7 0 2\r\n15\r\n" % letter for letter in b"ijklmnopqr"]
    + [b"md b I\r\n", b"md c I\r\n", b"mg c\r\n", b"ms d 2 T500\r\nd5\r\n", b"set large 0 0 600000\r\n%s\r\n" % (b"v" * 600_000)],
    [b"mg a u v\r\n", b"mg a u h\r\n", b"mg a h\r\n", b"mg a h\r\n", b"mg b v f\r\n", b"mg b v\r\n", b"mg c v\r\n",
     b"mg d R600 v\r\n", b"mg d v\r\n", b"mg e T100 v t f\r\n", b"mg e t\r\n", b"touch f 100\r\n", b"mg f t f\r\n", b"gat 100 g none\r\n",
     b"mg g t\r\n", b"md h I\r\n", b"mg h v\r\n", b"mg h v\r\n", b"incr i 1\r\n", b"decr j 1\r\n", b"ma k D5 v\r\n", b"append l 0 0 1\r\n1\r\n",
     b"get l\r\n", b"ms m 1 MP\r\n1\r\n", b"get m\r\n", b"add n 0 0 1\r\n1\r\n", b"replace n 0 0 1\r\n1\r\n", b"get n\r\n",
     b"cas o 0 0 1 1\r\n1\r\n", b"ms o 1 C1\r\n1\r\n", b"ms o 1 C1 I\r\n1\r\n", b"mg o v\r\n", b"delete p\r\n", b"get p q r\r\n",
     b"mg large s f u\r\n", b"append large 0 0 1\r\nx\r\n", b"mg large s\r\n", b"delete large\r\n", b"get large\r\n"],
)  # fmt: skip


def what_is_on_flash(theirs, ours):
    before, after = ON_FLASH
    seen = [ask(side, [b"flush_all\r\n", ALL_KEYS, *before]) for side in (theirs, ours)]
    ours.restart()
    for side, replies in zip((theirs, ours), seen, strict=True):
        # One by one: what is asked for next must not be read behind another's.
        replies += [ask(side, [text])[0] for text in after]
    for text, expected, answer in zip([b"flush_all", ALL_KEYS, *before, *after], *seen, strict=True):
        alike = [re.sub(rb" t(\d+)", lambda match: b" t" + ttl(int(match[1])), reply) for reply in (expected, answer)]
        expect_equal(alike[1], alike[0], f"the answer to {text[:80]!r} about what is on flash")


def check_version(memcached):
    """The differences are those from one version; another may have others."""
    seen = ask(memcached, [b"version\r\n"])[0]
    expected = b"VERSION " + MEMCACHED_VERSION + b"\r\n"
    expect_equal(seen, expected, "the version of memcached, from which docs/memcached.md lists the differences,")


# Answers to what is asked of a listing of keys.
DUMPS = [
    b"lru_crawler\r\n", b"lru_crawler metadump\r\n", b"lru_crawler metadump 0\r\n", b"lru_crawler metadump 64\r\n",
    b"lru_crawler metadump -1\r\n", b"lru_crawler metadump x\r\n", b"lru_crawler metadump 1,x\r\n",
    b"lru_crawler metadump all 1\r\n", b"lru_crawler metadump ALL\r\n", b"lru_crawler mgdump all\r\n",
    b"lru_crawler bogus 1\r\n", b"lru_crawler metadump 63\r\n",
]  # fmt: skip
DUMP_KEYS = [b"dump%d" % n for n in range(300)] + ODD_KEYS
DUMP_LINE = re.compile(rb"key=(\S+) exp=(-?\d+) la=(\d+) cas=(\d+) fetch=(yes|no) cls=(\d+) size=(\d+)")


def listings(theirs, ours):
    """The same keys into both, then the lists: the same lines, but for what is known (la, cas, cls, size), in any order."""
    fill = [b"flush_all\r\n", ALL_KEYS]
    for number, key in enumerate(DUMP_KEYS):
        exptime = [0, 0, 5_000, NOW + 5_000_000, -1][number % 5]
        fill.append(b"set %s 0 %d %d\r\n%s\r\n" % (key, exptime, number, b"v" * number))
    uses = [b"get %s\r\n" % key for key in DUMP_KEYS[::3]] + [b"delete %s\r\n" % key for key in DUMP_KEYS[::7]]
    fill += [b"ms AAH/IA== 3 b\r\nabc\r\n", b"set large 0 0 700000\r\n%s\r\n" % (b"v" * 700_000)]
    for side in (theirs, ours):
        ask(side, fill)
    # Known: a listing has what DRAM has. What went to flash does not know of its hits in DRAM, so these come after.
    for side in (theirs, ours):
        ask(side, uses)
    expect_equal(ask(theirs, [b"lru_crawler enable\r\n"]), [b"OK\r\n"], "what memcached says to lru_crawler enable")
    for text in DUMPS:
        answers = [dump(side, text, b"\r\n") for side in (theirs, ours)]
        expect_equal(answers[1], answers[0], f"the answer to {text!r}")
    # Known: Pumice has all objects in class 1.
    told, *others = (dump_entries(side, dump(side, b"lru_crawler metadump %s\r\n" % which, b"END\r\n"))
                     for which, side in ((b"all", theirs), (b"all", ours), (b"5,1", ours)))
    for entries in others:
        differing = {key: (entries.get(key), told.get(key)) for key in entries | told if entries.get(key) != told.get(key)}
        expect(not differing, "the same of each key as memcached lists", differing)
    expect_equal(ask(theirs, [b"lru_crawler disable\r\n"]), [b"OK\r\n"], "what memcached says to lru_crawler disable")
    return len(told)


def dump(side, text, end):
    """What comes back until `end`. memcached takes no other command before this one."""
    side.connect()
    side.socket.sendall(text)
    buffer = b""
    while not buffer.endswith(end):
        bytes_ = side.socket.recv(1 << 18)
        expect(bytes_, f"the answer of {side.name} to {text!r} to end with {end!r}", buffer[-200:])
        buffer += bytes_
    return buffer


def dump_entries(side, text):
    *lines, end, rest = text.split(b"\n")
    expect_equal((end, rest), (b"END\r", b""), f"the end of the list of {side.name}")
    entries = {}
    for line in lines:
        match = DUMP_LINE.fullmatch(line)
        expect(match, f"a line of metadump from {side.name}", line)
        key = urllib.parse.unquote_to_bytes(match[1])
        expect(key not in entries, f"each key once from {side.name}", key)
        # Known: Pumice keeps no time of the last access.
        expect((match[3] == b"0") == (side.name == "pumice"), f"a time of the last access from {side.name}", line)
        if side.name == "pumice":
            value = b"v" * DUMP_KEYS.index(key) if key in DUMP_KEYS else b"v" * 700_000 if key == b"large" else b"abc"
            expect_equal(int(match[7]), 19 + len(key) + len(value), f"the size of {key}")
        # The clocks tick apart.
        expiry = int(match[2])
        entries[key] = (match[1], expiry if expiry < 0 else round(expiry / 100), match[5])
    return entries
