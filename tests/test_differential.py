"""The same commands to memcached and to Pumice: the answers must be the same, byte for byte.

Commands are generated from a seed, which is printed: classic and meta, good and bad. They go to both servers over pipelined
connections, in segments that begin with an empty cache. Some segments are run with Pumice stopped and started again and again,
so that what is asked for is on flash. What no two servers can have in common is made alike first (`Side.normal`): CAS uniques,
the version, statistics, what `me` tells. Where Pumice differs on purpose, docs/memcached.md says why, and the rule is in the
code: in `KNOWN` with both answers, or marked "known". A segment with a difference is cut down to the shortest that still has
one, and printed. `--full` or `--with commands=1000000 --with flash_commands=50000`, and `--server '--layout fifo'`.
"""

import re

import memcached_scripts as scripts
import segments
from harness import expect, expect_equal
from memcached_commands import ALL_KEYS, BIG_KEY, CHANGES, Command, Generator
from memcached_sides import SAID, Memcached, Pumice

# CLIENT_ERROR and SERVER_ERROR with what they say.
BEGINNING = re.compile(rb"\w+_ERROR[^\r]*|\d+|\w*")
BATCH_COMMANDS = 64
# Batches between two restarts.
BATCHES_PER_LIFE = 2
# What must have been answered, and how often at least in 100,000 commands.
MUST_OCCUR = {
    "EX": 100, "NF": 100, "NS": 100, "EN": 100, "HD": 100, "VA": 100, "EXISTS": 20, "NOT_FOUND": 100, "NOT_STORED": 100,
    "mg W": 100, "mg X": 100, "mg Z": 100, "mg X Z": 20, "gat of more than one key": 100, "quit": 20, "cut in two": 100,
}  # fmt: skip


class Comparison(segments.Comparison):
    """Runs segments on both sides."""

    # Answers of memcached that say h1, and those where Pumice says h0.
    hits_told = hits_untold = 0

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
            if command.alone or command.last or command.ends or len(batch) == BATCH_COMMANDS:
                yield batch
                batch, read = [], set()
        if batch:
            yield batch

    def same(self, command, theirs, ours):
        """Whether two answers are alike. Known: what is on flash, or only in the buffer of a block, does not know of its hits; and
        what Pumice has looked at for a change that was refused counts as hit; and me does not read flash, where it tells of what has
        expired, too."""
        if command.name == b"me" and self.restarts and theirs.startswith(b"EN\r\n"):
            return ours.startswith((b"EN\r\n", b"ME\r\n"))
        if command.name != b"mg":
            return theirs == ours
        self.hits_told += b" h1" in theirs[:100]
        if theirs == ours:
            return True
        if theirs.replace(b" h1", b" h0", 1) == ours:
            self.hits_untold += command.key not in self.unhit
            return True
        return command.key in self.looked_at and theirs.replace(b" h0", b" h1", 1) == ours

    def run(self, segment):
        """Where the answers first differ: (number of the command, theirs, ours)."""
        stale_keys = set()
        # Keys that a refused change has looked at; keys that a refused get has named. A new value ends either.
        self.looked_at, self.unhit = {BIG_KEY}, set()
        for side in self.sides:
            side.begin()
            # The get makes memcached forget what it flushed, which a delayed flush would bring back.
            side.send([Command(b"flush_all\r\n"), Command(ALL_KEYS)], stale_keys)
        for side in self.sides:
            expect_equal(side.receive(), [b"OK\r\n", b"END\r\n", b"END\r\n"], f"what {side.name} says to flush_all")
        at = 0
        for number, batch in enumerate(self.batches(segment)):
            if self.restarts and number % BATCHES_PER_LIFE == BATCHES_PER_LIFE - 1:
                self.sides[1].restart()
            difference = self.run_batch(batch, stale_keys)
            if difference:
                return at + difference[0], *difference[1:]
            at += len(batch)
        return None

    def run_batch(self, batch, stale_keys):
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
            normal = [side.normal(command, reply) for side, reply in zip(self.sides, pair, strict=True)]
            if not self.same(command, *normal):
                return number, normal[0], normal[1]
            self.note_refusal(command, pair[0])
            self.note(command, pair[0])
        return None

    def note_refusal(self, command, reply):
        """Known: Pumice counts what a refused change looked at as hit before (h), and not what a refused get names."""
        # Behind the last of a batch comes what was asked behind it.
        reply = reply.partition(SAID)[0]
        refused = command.name in (b"add", b"cas") or reply[:2] in (b"EX", b"NS", b"NO", b"CL", b"")
        if command.name in CHANGES and refused and not reply.startswith(b"STORED"):
            self.looked_at.add(command.key)
        elif command.name in REPLACES and reply.startswith((b"STORED", b"HD")) and command.key != BIG_KEY:
            self.looked_at.discard(command.key)
            self.unhit.discard(command.key)
        if command.name in (b"get", b"gets", b"gat", b"gats") and reply.startswith(b"CL"):
            self.unhit.update(command.keys)

    def note(self, command, reply):
        beginning = BEGINNING.match(reply)[0]
        self.occurred["a number" if beginning.isdigit() else beginning.decode() or "nothing"] += 1
        if command.name == b"mg" and beginning in (b"HD", b"VA"):
            told = set(reply.partition(b"\r\n")[0].split(b" ")[1:]) & {b"W", b"X", b"Z"}
            self.occurred.update(f"mg {word.decode()}" for word in told)
            if told >= {b"X", b"Z"}:
                self.occurred["mg X Z"] += 1
        if command.name in (b"gat", b"gats") and reply.count(b"VALUE ") > 1:
            self.occurred["gat of more than one key"] += 1
        self.occurred["quit"] += command.ends
        self.occurred["cut in two"] += command.cut is not None


# What gives a key a new value where it is not refused.
REPLACES = {b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"ms"}


def test_answers_as_memcached(directory, seed, size, server_flags):
    commands, flash_commands = size("commands", 50_000, 1_000_000), size("flash_commands", 5_000, 5_000)
    flags = ["--dram", size("dram", "64MiB", "64MiB"), "--flash-size", "1GiB", *server_flags]
    with Memcached(directory) as theirs, Pumice(directory, flags) as ours:
        scripts.check_version(theirs)
        scripts.fresh_memory(theirs, ours)
        comparison = Comparison(theirs, ours)
        comparison.generated(Generator, seed, commands, 0)
        told, untold = comparison.hits_told, comparison.hits_untold
        expect(untold * 20 <= told, "h1 in all but a few of the answers where memcached says so", f"h0 in {untold} of {told}")
        comparison.check_coverage(MUST_OCCUR, commands)
        scripts.known_differences(theirs, ours)
        scripts.what_time_does(theirs, ours)
        print(f"{scripts.listings(theirs, ours)} keys listed alike", flush=True)
        if flash_commands:
            from_flash(comparison, seed, flash_commands)
        ours.stop()
    print(f"{commands} commands, {flash_commands} with restarts: no difference but those in docs/memcached.md")


def test_cases_are_answered_as_by_memcached(directory, server_flags):
    """Cases written by hand, lines that are no commands and bytes behind a value among them."""
    flags = ["--dram", "64MiB", "--flash-size", "256MiB", *server_flags]
    with Memcached(directory) as theirs, Pumice(directory, flags) as ours:
        for text in scripts.cases():
            expected, answer = (scripts.answer_alone(side, text) for side in (theirs, ours))
            expect_equal(answer[:400], expected[:400], f"the answer to {text[:200]!r}")
            expect(answer == expected, f"the same answer to {text[:200]!r}", "another one behind its first 400 bytes")
        ours.stop()


def from_flash(comparison, seed, commands):
    """The same with restarts in between, after which Pumice finds everything on flash."""
    theirs, ours = comparison.sides
    scripts.what_is_on_flash(theirs, ours)
    comparison.restarts = True
    ours.restart()
    ours.hits_flash = 0
    comparison.generated(Generator, seed, commands, 1_000_000)
    ours.restart()
    hits, lives = ours.hits_flash, ours.lives
    # What is on flash is read once in each life, and goes to DRAM.
    expect(hits >= lives, "hits from flash in each life", f"{hits} in {lives}")
    print(f"{hits} hits from flash in {lives} lives", flush=True)
