#!/usr/bin/env python3
"""The same commands to memcached and to Pumice: the answers must be the same, byte for byte.

    tests/differential.py [--commands 50000] [--seed N] [--dram 64MiB] [-- FLAG OF THE SERVER ...]

Commands are generated from a seed, which is printed: classic and meta, good and bad. They go to both servers over pipelined
connections, in segments that begin with an empty cache. What no two servers can have in common is made alike first
(`Side.normal`): CAS uniques, the version, statistics, what `me` tells. Where Pumice differs on purpose, docs/memcached.md
says why, and the rule is here: in `KNOWN` with both answers, or marked "known" in the code. A segment with a difference is
cut down to the shortest that still has one, and printed.
"""

import argparse
import base64
import random
import re
import socket
import subprocess
import time

from harness import Directory, Failure, Server, expect, expect_equal, main

SEGMENT_COMMANDS = 400
BATCH_COMMANDS = 64
PATIENCE_SECONDS = 30
PAD = b"get " + b"~" * 200 + b"\r\n"
# Behind every command: what comes back before its answer belongs to the command.
ASK, SAID = b"mg ~ k\r\n", b"EN k~\r\n"
# How long a segment may take: TTLs that are this much shorter are the same.
SEGMENT_SECONDS = 30

PLAIN_KEYS = [b"k%d" % n for n in range(12)]
BINARY_KEYS = [b"\x01\xff\x80k", b"\x02z", b"bin:\x7f\xc3"]
ODD_KEYS = [b"K" * 250, "ключ".encode(), b"a\tb", b"\x10\x7f", b"0", b"noreply", b"-1", b"b=="]
MISSING_KEYS = [b"miss%d" % n for n in range(100)]
LONG_KEYS = [b"L" * 251, b"L" * 300]
BASE64_KEYS = [base64.b64encode(key) for key in PLAIN_KEYS + BINARY_KEYS]
ALL_KEYS = b"get %s\r\n" % b" ".join(PLAIN_KEYS + BINARY_KEYS + ODD_KEYS + MISSING_KEYS + BASE64_KEYS)

NOW = int(time.time())
TTLS = [100, 1000, 100_000, 2_592_000, 5_000_000, 2_147_483_647 - NOW]
EXPTIMES = [b"0"] * 6 + [b"100", b"1000", b"100000", b"2592000", b"%d" % (NOW + 5_000_000), b"2147483647", b"-1"]
ODD_EXPTIMES = [b"x", b"", b"+100", b"0100", b"2592001", b"-100", b"1e3", b"100s", b"-0", b"--1", b"-"]
NUMBERS = [b"0", b"1", b"2", b"9", b"10", b"99", b"100", b"18446744073709551615", b"18446744073709551614", b"12345"]
ODD_NUMBERS = [b"x", b"-1", b"+5", b"007", b"1.5", b"18446744073709551616", b"99999999999999999999", b"1x", b"0x1"]
ODD_LENGTHS = [b"x", b"-1", b"", b"1x", b"-", b"+"]
LETTERS = b"abcdefghijklmnopqrstuvwxyz"

MIB = 1 << 20
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
    (b"set a 0 0 1\r\n9\r\nma a T0\r\nma a T100 D90\r\nmg a t\r\n", b"STORED\r\nHD\r\nHD\r\nHD t-1\r\n", b"STORED\r\nHD\r\nHD\r\nHD t100\r\n"),
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


class Command:
    """One command as it is sent; `@C@` in it stands for a CAS unique that the server said for the key, and more."""

    __slots__ = ("text", "key", "name", "flags", "cas_shift", "last", "alone")

    def __init__(self, text, key=None, name=b"", flags=(), cas_shift=None, last=False, alone=False):
        self.text, self.key, self.name, self.flags = text, key, name, flags
        self.cas_shift = cas_shift
        # It may take what follows for its value.
        self.last = last
        self.alone = alone

    def may_renew(self, stale_keys):
        """Known: Pumice gives an object a new CAS unique where memcached changes its expiry or marks in place."""
        if self.name in (b"touch", b"gat", b"gats"):
            return True
        return self.name == b"mg" and (self.key in stale_keys or any(flag[:1] in b"TNR" for flag in self.flags))

    def __repr__(self):
        text = self.text if len(self.text) < 400 else self.text[:300] + b"... (%d bytes)" % len(self.text)
        return repr(text)


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
        self.cas, self.ids = {}, {}

    def send(self, batch, stale_keys):
        if self.socket is None:
            self.connect()
        self.sequence += 1
        parts, renewed = [], set()
        for command in batch:
            text = command.text
            if command.cas_shift is not None:
                known = None if command.key in renewed else self.cas.get(command.key)
                unique = 1 if known is None else known + command.cas_shift
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
        return b"<cas %d>" % self.ids.setdefault(unique, len(self.ids) + 1)

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
                    # Known: the key stands in the reply as it stood in the command, not as it stood when it was stored.
                    word = b"k"
                elif word == b"b":
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
        if name == b"stats" and reply.startswith(b"STAT"):
            return b"<stats>" if reply.endswith(b"\r\nEND\r\n") else reply
        return reply

    def guessed(self, key):
        return key in self.refused

    def forget(self, key):
        if key in self.cas:
            self.ids.pop(self.cas.pop(key), None)


def ttl(seconds):
    if seconds > 0x80000000 or seconds == 0:
        # Known: memcached shows the distance to a time that has passed as a number below 2^32, Pumice as 0.
        return b"<past>"
    for choice in TTLS:
        if choice - SEGMENT_SECONDS <= seconds <= choice:
            return b"<%d>" % choice
    return b"%d" % seconds


class Generator:
    """Commands from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def segment(self, count):
        # A delayed flush undoes an earlier one in memcached, so a segment has either the one kind or the other.
        self.flushes = self.random.random() < 0.5
        return [self.command() for _ in range(count)]

    def command(self):
        at = self.random.random()
        if at < 0.20:
            return self.store()
        if at < 0.34:
            return self.get()
        if at < 0.42:
            return self.delta()
        if at < 0.47:
            return self.delete_or_touch()
        if at < 0.60:
            return self.meta_get()
        if at < 0.74:
            return self.meta_set()
        if at < 0.82:
            return self.meta_delete()
        if at < 0.93:
            return self.meta_delta()
        if at < 0.96:
            return self.admin()
        return self.nonsense()

    def pick(self, good, odd, part=0.06):
        choose = self.random.choice
        return choose(odd) if self.random.random() < part else choose(good)

    def key(self):
        at = self.random.random()
        if at < 0.86:
            return self.random.choice(PLAIN_KEYS)
        if at < 0.97:
            return self.random.choice(ODD_KEYS)
        if at < 0.98:
            return self.random.choice(LONG_KEYS)
        return self.random.choice(MISSING_KEYS)

    def value(self):
        at = self.random.random()
        if at < 0.35:
            return self.random.choice(NUMBERS)
        if at < 0.42:
            return self.random.choice([b"", b" 5", b"5 ", b"05", b"-1", b"1x", b"18446744073709551616", b"5 x", b"+7"])
        if at < 0.9:
            return bytes(self.random.choices(LETTERS, k=self.random.randrange(1, 20)))
        if at < 0.98:
            # What a refused line leaves behind is a line itself, and must not be too long for one.
            return bytes(self.random.choices(LETTERS, k=10)) * self.random.randrange(1, 180)
        # Known: of a value that is all space memcached reads what stands behind it in memory.
        return self.random.choice([b"a\r\nb", b"\r\nb", b"a\nb", b"\x00\xff\x80", b"get k1\r\nx", b"END\r\n"])

    def sized_value(self):
        """(length as announced, value, alone)"""
        at = self.random.random()
        if at < 0.0015:
            length = self.random.choice([20_000, 300_000, 600_000, MIB - 1000, MIB + 1, 2_000_000])
            return b"%d" % length, b"v" * length, True
        value = self.value()
        if at < 0.01:
            return self.random.choice(ODD_LENGTHS), value, False
        return b"%d" % len(value), value, False

    def end(self):
        return b"\n" if self.random.random() < 0.03 else b"\r\n"

    def noreply(self):
        at = self.random.random()
        if at < 0.85:
            return b""
        return self.random.choice([b" noreply", b" noreply", b" noreply ", b" bogus", b" 0"])

    def data(self, value):
        """(value with its end, whether it may take what follows)"""
        at = self.random.random()
        if at < 0.985:
            return value + b"\r\n", False
        return value + self.random.choice([b"\n", b"", b"x\r\n", b"\r", b"xyzzy\r\n"]), True

    def store(self):
        name = self.random.choice([b"set"] * 5 + [b"add", b"replace", b"append", b"prepend", b"cas"])
        key, (length, value, alone) = self.key(), self.sized_value()
        flags = self.pick([b"0", b"5", b"4294967295"], [b"x", b"-1", b"+3", b"007", b"", b"1x"], 0.02)
        exptime = self.pick(EXPTIMES, ODD_EXPTIMES, 0.03)
        data, last = self.data(value)
        arguments = b"%s %s %s %s" % (key, flags, exptime, length)
        shift = None
        if alone:
            return Command(b"%s %s 0 0 %s\r\n%s\r\n" % (self.random.choice([b"set", b"add", b"replace"]), key[:250], length, value), key[:250], b"set", alone=True)
        if name == b"cas":
            shift = self.random.choice([0, 0, 0, 1, -1])
            arguments += b" " + self.pick([b"@C@"], ODD_NUMBERS + [b"0", b"1"], 0.1)
        if self.random.random() < 0.01:
            arguments = self.random.choice([key, b"%s 0" % key, b"%s 0 0" % key, arguments + b" a b c", b""])
            last = True
        text = b"%s %s%s%s%s" % (name, arguments, self.noreply(), self.end(), data)
        return Command(text, key, name, (), shift, last or length in ODD_LENGTHS, alone)

    def get(self):
        name = self.random.choice([b"get", b"get", b"gets", b"gets", b"gat", b"gats"])
        # Known: gat of more than one key renews them all; one is enough here.
        many = name[:2] == b"ge" and self.random.random() < 0.2
        keys = [self.key() for _ in range(self.random.randrange(2, 20) if many else 1)]
        line = b" ".join(keys)
        if name[:2] == b"ga":
            line = self.pick(EXPTIMES, ODD_EXPTIMES) + b" " + line
        if self.random.random() < 0.02:
            line = self.random.choice([b"", b" ", b" " + line, line + b" ", line.replace(b" ", b"  ")])
        # Known: memcached may lose the reply before that of a get with a bad key, if that is not sent yet.
        alone = any(len(key) > 250 for key in keys)
        return Command(name + b" " + line + self.end(), keys[0], name, alone=alone)

    def delta(self):
        name, key = self.random.choice([b"incr", b"decr"]), self.key()
        line = b"%s %s" % (key, self.pick(NUMBERS, ODD_NUMBERS))
        if self.random.random() < 0.02:
            line = self.random.choice([key, b"", line + b" 1 2", line + b" 1"])
        return Command(b"%s %s%s%s" % (name, line, self.noreply(), self.end()), key, name)

    def delete_or_touch(self):
        key = self.key()
        if self.random.random() < 0.5:
            line = key + self.random.choice([b""] * 6 + [b" 0", b" 1", b" 0 noreply", b" 0 0", b" x", b" 0 0 0"])
            name = b"delete"
        else:
            line = b"%s %s" % (key, self.pick(EXPTIMES, ODD_EXPTIMES))
            if self.random.random() < 0.03:
                line = self.random.choice([key, b"", line + b" 1", line + b" 1 2"])
            name = b"touch"
        return Command(b"%s %s%s%s" % (name, line, self.noreply(), self.end()), key, name)

    def meta_key(self):
        """(key, as it is written, flags that it needs)"""
        at = self.random.random()
        if at < 0.8:
            key = self.key()
            return key, key, []
        key = self.random.choice(PLAIN_KEYS if at < 0.9 else BINARY_KEYS)
        written = base64.b64encode(key)
        if at > 0.995:
            written = self.random.choice([b"$$$$", b"YQ", b"Y===", b"====", b"YQ=", b"YQ==="])
        return key, written, [b"b"]

    def flags(self, names, most):
        """Some of these flags, good and bad arguments."""
        chosen = self.random.sample(names, self.random.randrange(0, min(most, len(names)) + 1))
        flags = []
        for letter in chosen:
            if letter in b"TN":
                letter += self.pick(EXPTIMES, ODD_EXPTIMES, 0.03)
            elif letter == b"R":
                letter += self.pick([b"0", b"30", b"500", b"200000", b"-1"], ODD_EXPTIMES, 0.03)
            elif letter == b"O":
                letter += self.pick([b"1", b"abc", b"", b"o" * 31], [b"o" * 32], 0.02)
            elif letter == b"C":
                letter += self.pick([b"@C@"], ODD_NUMBERS + [b"0", b"1", b""], 0.1)
            elif letter in b"DJ":
                letter += self.pick(NUMBERS, ODD_NUMBERS + [b""], 0.05)
            elif letter == b"F":
                letter += self.pick([b"0", b"7", b"4294967295"], [b"x", b"-1", b""], 0.03)
            flags.append(letter)
        at = self.random.random()
        if at < 0.01:
            flags.append(self.random.choice([b"!", b"x", b"S5", b"E5", b"i", b"\xff", b"\x7f", b"0", b"Z", b"W"]))
        elif at < 0.015 and flags:
            flags.append(self.random.choice(flags)[:1])
        elif at < 0.02:
            flags += [bytes([letter]) for letter in b"cfhkqstuvPLIJ0D0"]
        return flags

    def meta(self, name, middle, names, most, data=b""):
        key, written, flags = self.meta_key()
        flags = flags + self.flags(names, most)
        shift = self.random.choice([0, 0, 0, 1, -1]) if any(b"@C@" in flag for flag in flags) else None
        if any(flag[:1] == b"O" and len(flag) > 32 for flag in flags):
            # Known: memcached looks at the length of the opaque when it has changed the object already.
            flags = [flag for flag in flags if flag[:1] not in (b"T", b"N", b"R")]
        line = b" ".join([name, written, *middle, *flags])
        if self.random.random() < 0.004:
            line = self.random.choice([name, name + b" ", line.replace(b" ", b"  "), line + b" "])
        return Command(line + self.end() + data, key, name, flags, shift)

    def meta_get(self):
        names = [b"v", b"v", b"k", b"O", b"q", b"s", b"t", b"c", b"f", b"h", b"u", b"T", b"N", b"R"]
        names = list(dict.fromkeys(names)) if self.random.random() < 0.99 else [*names, b"M1", b"I", b"F", b"C", b"P", b"L"]
        return self.meta(b"mg", [], names, 7)

    def meta_set(self):
        length, value, alone = self.sized_value()
        if alone:
            key = self.random.choice(PLAIN_KEYS)
            return Command(b"ms %s %s\r\n%s\r\n" % (key, length, value), key, b"ms", alone=True)
        data, last = self.data(value)
        names = [b"k", b"O", b"q", b"c", b"C", b"F", b"I", b"T", b"C", b"I"]
        names = list(dict.fromkeys(names))
        if self.random.random() < 0.5:
            names.append(self.pick([b"MS", b"ME", b"MA", b"MP", b"MR"], [b"M", b"MX", b"Ms", b"MSET"], 0.03))
        if self.random.random() < 0.05:
            names += [b"v", b"s", b"t", b"f", b"h", b"l", b"u", b"N", b"R", b"D", b"J"]
        command = self.meta(b"ms", [length], names, 5, data)
        command.last = last or length in ODD_LENGTHS or len(command.flags) > 8
        return command

    def meta_delete(self):
        names = [b"k", b"O", b"q", b"C", b"I", b"T"]
        if self.random.random() < 0.05:
            names += [b"v", b"s", b"t", b"f", b"h", b"l", b"u", b"N", b"R", b"D", b"J", b"MS"]
        return self.meta(b"md", [], names, 5)

    def meta_delta(self):
        names = [b"k", b"O", b"q", b"C", b"N", b"J", b"D", b"T", b"t", b"c", b"v"]
        if self.random.random() < 0.5:
            names.append(self.pick([b"MI", b"MD", b"M+", b"M-"], [b"M", b"MX", b"Mi", b"MINCR"], 0.05))
        if self.random.random() < 0.05:
            names += [b"s", b"f", b"h", b"l", b"u", b"R", b"I", b"F"]
        # Known: memcached loses the T of an ma that makes the number longer, which to subtract never does.
        subtract = [name for name in names if name[:1] != b"M"] + [b"MD"]
        command = self.meta(b"ma", [], names, 7)
        while any(flag[:1] == b"T" for flag in command.flags) and b"MD" not in command.flags:
            command = self.meta(b"ma", [], subtract, 9)
        if any(flag[:1] == b"O" and len(flag) > 32 for flag in command.flags):
            # Known: as in `meta`; ma has changed the number by then.
            return self.command()
        return command

    def admin(self):
        at = self.random.random()
        if at < 0.25:
            written = self.key()
            line = b"me " + written + self.random.choice([b"", b"", b" b", b" x", b" q k"])
            return Command(line + b"\r\n", written, b"me")
        if at < 0.35:
            return Command(b"version\r\n", None, b"version")
        if at < 0.55:
            line = b"verbosity" + self.random.choice([b" 0", b" 1 noreply", b" x", b"", b" 0 0 0", b" -1", b" noreply"])
            return Command(line + b"\r\n", None, b"verbosity")
        if at < 0.65:
            line = b"stats" + self.random.choice([b"", b" settings", b" reset", b" bogus", b" items", b" slabs"])
            return Command(line + b"\r\n", None, b"stats")
        if at < 0.75:
            if self.flushes:
                line = self.random.choice([b"", b" 0", b" noreply", b" 0 noreply", b" -1"])
            else:
                line = self.random.choice([b" 10000", b" 10000 noreply", b" 100000"])
            return Command(b"flush_all" + line + b"\r\n", None, b"flush_all")
        if at < 0.8:
            line = b"flush_all" + self.random.choice([b" x", b" x noreply", b" 0 0 0", b" 1e3", b" 10 10 10"])
            return Command(line + b"\r\n", None, b"bad")
        if at < 0.85:
            return Command(b"shutdown\r\n", None, b"shutdown")
        return Command(self.random.choice([b"mn\r\n", b"mn x\r\n", b"mn  \r\n"]), None, b"mn")

    def nonsense(self):
        key = self.key()
        word = bytes(self.random.choices(LETTERS, k=self.random.randrange(1, 8)))
        text = self.random.choice(
            [
                b"\r\n", b"\n", b" \r\n", b"\r\r\n", word + b"\r\n", word + b" " + key + b"\r\n", b"GET " + key + b"\r\n",
                b" get " + key + b"\r\n", b"get\r\n", b"gets\r\n", b"gat\r\n", b"gat 0\r\n", b"incr\r\n", b"touch\r\n",
                b"delete\r\n", b"mg\r\n", b"md\r\n", b"ma\r\n", b"ms\r\n", b"me\r\n", b"set\r\n", b"cas\r\n", b"misbehave\r\n",
                b"get " + key + b"\r\r\n", b"mx " + key + b"\r\n", b"m\r\n", b"q\r\n", b"getx " + key + b"\r\n", b"\x80\xff\r\n",
                b"gets\t" + key + b"\r\n", b"verbosity\r\n", word * 30 + b"\r\n",
            ]
        )  # fmt: skip
        return Command(text, None, b"nonsense", alone=len(key) > 250)


class Comparison:
    """Runs segments on both sides."""

    def __init__(self, theirs, ours):
        self.sides = [theirs, ours]

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
                read.update(command.text.split())
            if command.alone or command.last or len(batch) == BATCH_COMMANDS:
                yield batch
                batch, read = [], set()
        if batch:
            yield batch

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
                if normal[0] != normal[1]:
                    return at + number, normal[0], normal[1]
                note_refusal(refused, command, pair[0])
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
    """Known: what a refused change looked at counts as hit before (h) in Pumice."""
    if command.name in (b"add", b"replace", b"append", b"prepend", b"cas", b"ms", b"md", b"ma", b"incr", b"decr"):
        if command.name in (b"add", b"cas") or reply[:2] in (b"EX", b"NS", b"NO", b"CL", b""):
            refused.add(command.key)
    return refused


def ask(side, commands):
    """The answers to these commands, without the end that `Side.send` adds."""
    side.send([Command(text) for text in commands], set())
    replies = side.receive()
    return replies[:-1] if replies[-1] == b"END\r\n" else replies


def known_differences(theirs, ours):
    for text, expected, answer in KNOWN:
        for side, reply in ((theirs, expected), (ours, answer)):
            seen = SAID.join(ask(side, [b"flush_all\r\n", text])[1:])
            expect_equal(seen, reply, f"what {side.name} answers to {text[:80]!r}")


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "1024", "-t", "2"]
    # Its thread that sorts items by use holds one at times, and a number that is held is not changed in place.
    command += ["-o", "no_lru_maintainer,no_lru_crawler"]
    log = open(f"{directory}/memcached.log", "wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process, ("127.0.0.1", port)
        except OSError:
            expect(process.poll() is None, "memcached to run", f"status {process.returncode}")
            expect(time.monotonic() < deadline, "memcached to listen", "nothing")
            time.sleep(0.01)


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
    comparison = Comparison(theirs, ours)
    started, done, found = time.monotonic(), 0, 0
    number = 0
    while done < options.commands:
        segment = Generator(f"{options.seed}-{number}").segment(SEGMENT_COMMANDS)
        difference = comparison.run(segment)
        if difference:
            shortest, difference = comparison.shrink(segment, difference)
            print(f"difference in segment {number}, cut down to {len(shortest)} commands:")
            for command in shortest:
                print(f"    {command!r}")
            print(f"  memcached {difference[1][:600]!r}\n  pumice    {difference[2][:600]!r}", flush=True)
            found += 1
            if found >= options.differences:
                break
        done += len(segment)
        number += 1
    if found:
        raise Failure(f"expected no difference; seen {found} with seed {options.seed} in {done} commands")
    seconds = time.monotonic() - started
    known_differences(theirs, ours)
    what_time_does(theirs, ours)
    print(f"{done} commands in {seconds:.0f} s: no difference but those in docs/memcached.md")


if __name__ == "__main__":
    main(test)
