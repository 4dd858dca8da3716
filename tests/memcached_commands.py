"""Commands of the memcached protocol from a seed, for test_differential.py: classic and meta, good and bad.

What is left out, or done with care, because memcached would answer otherwise than Pumice for a reason, is marked "known";
docs/memcached.md has the reasons.
"""

import base64
import random
import time

PLAIN_KEYS = [b"k%d" % n for n in range(12)]
BINARY_KEYS = [b"\x01\xff\x80k", b"\x02z", b"bin:\x7f\xc3"]
ODD_KEYS = [b"K" * 250, "ключ".encode(), b"a\tb", b"\x10\x7f", b"0", b"noreply", b"-1", b"b=="]
MISSING_KEYS = [b"miss%d" % n for n in range(100)]
# What holds a large value. Known: memcached says of large and of empty numbers that they are none before it compares C.
BIG_KEY = b"big"
LONG_KEYS = [b"L" * 251, b"L" * 300]
BASE64_KEYS = [base64.b64encode(key) for key in PLAIN_KEYS + BINARY_KEYS]
ALL_KEYS = b"get %s\r\n" % b" ".join([BIG_KEY, *PLAIN_KEYS] + BINARY_KEYS + ODD_KEYS + MISSING_KEYS + BASE64_KEYS)

NOW = int(time.time())
ABSOLUTE_EXPTIMES = [NOW + 5_000_000, 2_147_483_647]
TTLS = [100, 1000, 100_000, 2_592_000]
# -600 as libmemcached sends it.
WRAPPED_EXPTIMES = [2**31, 2**32 - 600, 2**32 - 1]
EXPTIMES = [b"0"] * 6 + [b"-1"] + [b"%d" % exptime for exptime in TTLS + ABSOLUTE_EXPTIMES + WRAPPED_EXPTIMES]
ODD_EXPTIMES = [b"x", b"", b"+100", b"0100", b"2592001", b"-100", b"1e3", b"100s", b"-0", b"--1", b"-"]
# Known: from 2^63 on memcached looks for a minus sign in what stands behind the number in memory.
NUMBERS = [b"0", b"1", b"2", b"9", b"10", b"99", b"100", b"12345", b"999999999999999", b"1000000000000000"]
ODD_NUMBERS = [b"x", b"-1", b"+5", b"007", b"1.5", b"18446744073709551616", b"99999999999999999999", b"1x", b"0x1"]
ODD_LENGTHS = [b"x", b"-1", b"", b"1x", b"-", b"+"]
CHANGES = {b"add", b"replace", b"append", b"prepend", b"cas", b"ms", b"md", b"ma", b"incr", b"decr"}
LETTERS = b"abcdefghijklmnopqrstuvwxyz"

MIB = 1 << 20


class Command:
    """One command as it is sent; `@C@` in it stands for a CAS unique that the server said for the key, and more."""

    __slots__ = ("text", "key", "keys", "name", "flags", "cas_shift", "last", "alone", "ends", "cut")

    def __init__(self, text, key=None, name=b"", flags=(), cas_shift=None, last=False, alone=False, keys=None, ends=False):
        self.text, self.key, self.name, self.flags = text, key, name, flags
        self.keys = [key] if keys is None else keys
        self.cas_shift = cas_shift
        # The connection ends with it.
        self.ends = ends
        # Where it is cut in two that are sent one after the other: a part of its length.
        self.cut = None
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
        return repr(text) + ("" if self.cut is None else f" cut at {self.cut:.3f}")


class Generator:
    """Commands from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def segment(self, count):
        # A delayed flush undoes an earlier one in memcached, so a segment has either the one kind or the other.
        self.flushes = self.random.random() < 0.5
        commands = [self.command() for _ in range(count)]
        for command in commands:
            if self.random.random() < 0.02:
                command.cut = self.random.random()
        return commands

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

    def key(self, big=0.0):
        at = self.random.random()
        if at < big:
            return BIG_KEY
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
        if name == b"cas":
            # One missing would make a length of the unique.
            flags, exptime, length = flags or b"0", exptime or b"0", length or b"0"
        arguments = b"%s %s %s %s" % (key, flags, exptime, length)
        shift = None
        if alone:
            name = self.random.choice([b"set", b"add", b"replace"])
            return Command(b"%s %s 0 0 %s\r\n%s\r\n" % (name, BIG_KEY, length, value), BIG_KEY, name, alone=True)
        if name == b"cas":
            shift = self.random.choice([0, 0, 0, 1, -1])
            arguments += b" " + self.pick([b"@C@"], ODD_NUMBERS + [b"0", b"1"], 0.1)
        if self.random.random() < 0.01:
            arguments = self.random.choice([key, b"%s 0" % key, b"%s 0 0" % key, arguments + b" a b c", b""])
            last = True
        text = b"%s %s%s%s%s" % (name, arguments, self.noreply(), self.end(), data)
        return Command(text, key, name, (), shift, last or length in ODD_LENGTHS)

    def get(self):
        name = self.random.choice([b"get", b"get", b"gets", b"gets", b"gat", b"gats"])
        most = 20
        if name[:2] == b"ga":
            # A long line that comes in pieces is too long for memcached, but one of get and gets.
            most = 6
        keys = [self.key(big=0.01) for _ in range(self.random.randrange(2, most) if self.random.random() < 0.25 else 1)]
        if name[:2] == b"ga" and len(keys) > 1:
            # Known: where one key is bad, memcached has renewed those before it.
            keys = [key for key in keys if len(key) <= 250] or [b"k0"]
        line = b" ".join(keys)
        if name[:2] == b"ga":
            line = self.pick(EXPTIMES, ODD_EXPTIMES) + b" " + line
        if self.random.random() < 0.02:
            line = self.random.choice([b"", b" ", b" " + line, line + b" ", line.replace(b" ", b"  ")])
        # Known: memcached may lose the reply before that of a get with a bad key, if that is not sent yet.
        alone = any(len(key) > 250 for key in keys)
        return Command(name + b" " + line + self.end(), keys[0], name, alone=alone, keys=keys)

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

    def meta_key(self, big):
        """(key, as it is written, flags that it needs)"""
        at = self.random.random()
        if at < 0.8:
            key = self.key(big)
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
                # None of TTLS: where both are the same, a second more or less decides.
                odd = [exptime.replace(b"100", b"150") for exptime in ODD_EXPTIMES]
                letter += self.pick([b"0", b"30", b"500", b"200000", b"-1"], odd, 0.03)
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
        key, written, flags = self.meta_key(0.01 if name in (b"mg", b"md") else 0.0)
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
            return Command(b"ms %s %s\r\n%s\r\n" % (BIG_KEY, length, value), BIG_KEY, b"ms", alone=True)
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
        if at < 0.84:
            return Command(b"shutdown\r\n", None, b"shutdown")
        if at < 0.86:
            return Command(self.random.choice([b"quit\r\n", b"quit\n", b"quit now\r\n"]), None, b"quit", ends=True)
        return Command(self.random.choice([b"mn\r\n", b"mn x\r\n", b"mn  \r\n"]), None, b"mn")

    def nonsense(self):
        key = self.key()
        # No command begins with it: a word of any letters was "me" once, whose answers are compared by name.
        word = b"x" + bytes(self.random.choices(LETTERS, k=self.random.randrange(7)))
        text = self.random.choice(
            [
                b"\r\n", b"\n", b" \r\n", b"\r\r\n", word + b"\r\n", word + b" " + key + b"\r\n", b"GET " + key + b"\r\n",
                b" get " + key + b"\r\n", b"get\r\n", b"gets\r\n", b"gat\r\n", b"gat 0\r\n", b"incr\r\n", b"touch\r\n",
                b"delete\r\n", b"mg\r\n", b"md\r\n", b"ma\r\n", b"ms\r\n", b"me\r\n", b"set\r\n", b"cas\r\n", b"misbehave\r\n",
                b"get " + key + b"\r\r\n", b"mx " + key + b"\r\n", b"m\r\n", b"q\r\n", b"getx " + key + b"\r\n", b"\x81\xff\r\n",
                b"gets\t" + key + b"\r\n", b"verbosity\r\n", word * 30 + b"\r\n",
            ]
        )  # fmt: skip
        # A key of 250 bytes with a CR is too long.
        return Command(text, None, b"nonsense", alone=len(key) >= 250)
