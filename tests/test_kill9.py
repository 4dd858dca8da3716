"""kill -9 under load: what was said to be written comes back.

Each round: a set of objects that nobody touches is written and sealed; then `pumice-bench history` puts load on the server, and
checks that nothing that it reads is deleted, older or another key's, also after the kill; at a random moment the server is killed; it
starts again, sometimes after kills while it started, and everything is read back.

In some rounds the set is left in block buffers instead, until the flush interval has written it. All of it is then owed, but for what a
reclaim has moved to a buffer since.

Right before the kill the server is asked with `me` where each of the untouched objects is. What it says is written must be served by the
next start, in each round: but for one in a hundred, and in few rounds for a block that was reclaimed between the answer and the kill.

The same with a performance tier that is lost, cut short, swapped for an old copy of itself or overwritten in places, before a start and
under load: nothing else may come of it.

With --full 50 rounds of each layout and index; `--with rounds=200` is another number, `flash=512MiB` another size: the default is small
enough to be written over several times."""

import contextlib
import os
import random
import shutil
import time

import pytest

from harness import expect
from harness.client import Client
from history import CASES, History, Lives

QUIET_OBJECTS = 3000  # per round
QUIET_BYTES = 2500
# Of the objects of a round that are said to be written one in a hundred may be gone. In one round of ten it may be as many
# as one block of 1 MiB has, which may be reclaimed between the answer and the kill.
SLACK_SHARE = 0.01
SLACK_OBJECTS = (1 << 20) // QUIET_BYTES
SLACK_ROUNDS = 0.1
# Of all untouched objects at least so many must be served.
SERVED_SHARE = 0.95
# So that the load writes a small part of the flash in a round, on a fast machine too: the untouched objects are not to be reclaimed.
LOAD = {"connections": 2, "keys": 6000, "value_size_max": 400, "flush_every": 0}
LOAD_BYTES = 16 << 20
# How long the load looks at what came back.
LOOK_SECONDS = 0.3
TIER_BYTES = 40 << 20
TIER_ROUNDS = 3
ROUNDS = {"ripq, full": 6, "clock, full": 5, "clock, cascade": 4, "sipq, full": 3, "ripq, cascade": 2, "sipq, cascade": 2}


def value_of(key):
    return ((key + b";") * QUIET_BYTES)[:QUIET_BYTES]


def write_to_flash(server, client, keys, deadline):
    """Writes objects so that each has a copy in a block: where no buffer was free, DRAM alone has it, so once more."""
    for at in range(0, len(keys), 500):
        batch = keys[at:at + 500]
        while True:
            expect(time.monotonic() < deadline, "objects to get to flash within 60 s", server.stats()["flash"])
            before = server.stats()["flash"]["dropped_no_block"]
            stored = client.set_many((key, value_of(key)) for key in batch)
            expect(len(stored) == len(batch), f"all {len(batch)} quiet objects to be stored", len(stored))
            if server.stats()["flash"]["dropped_no_block"] == before:
                break
            time.sleep(0.02)


def write_quiet(server, client, number, is_aged):
    """Writes objects that nobody touches afterwards, and, unless they are to age in buffers, fillers until all of them are on flash."""
    deadline = time.monotonic() + 60
    quiet = [b"q%d:%d" % (number, i) for i in range(QUIET_OBJECTS)]
    write_to_flash(server, client, quiet, deadline)
    if is_aged:
        return quiet
    # When as many more blocks are sealed as were buffers, all that were buffers then are sealed. Under ripq blocks are not sealed
    # in the order of opening, so three times as many: few of those that were open then are still.
    flash = server.stats()["flash"]
    wanted = flash["sealed_blocks"] + 3 * flash["blocks_open"] + 1
    filler = 0
    while server.stats()["flash"]["sealed_blocks"] < wanted:
        expect(time.monotonic() < deadline, f"{wanted} blocks to be sealed within 60 s", server.stats()["flash"])
        client.set_many((b"f%d:%d" % (number, filler + i), b"filler;" * 1400) for i in range(20))
        filler += 20
    return quiet


def said_written(client, quiet):
    """The keys of which `me` says that flash has a copy that a crash leaves, and those of which it says the opposite. Of a key whose mapping
    is on flash it says neither."""
    client.send(*(b"me %s\r\n" % key for key in quiet))
    said = {b"written=yes": set(), b"written=no": set()}
    for key in quiet:
        reply = client.line()
        expect(reply == b"EN" or reply.startswith(b"ME %s " % key), f"EN or ME for me {key.decode()}", reply)
        for word in said.keys() & reply.split(b" "):
            said[word].add(key)
    return said[b"written=yes"], said[b"written=no"]


def wait_until_written(client, quiet):
    """Nothing is set meanwhile, so that no block gets full: the flush interval alone writes the objects."""
    deadline = time.monotonic() + 60
    written, left = said_written(client, quiet)
    while left or not written:
        expect(time.monotonic() < deadline, "all quiet objects to be written within 60 s", f"{len(written)}, and not {len(left)}")
        time.sleep(0.05)
        written, left = said_written(client, quiet)


class Run(Lives):
    """All rounds on one flash file."""

    quiet = []
    owed = kept = offered = served = operations = short_rounds = 0

    def round(self, load, number):
        with self.start(share=0.25, seconds=0.06) as server, contextlib.closing(Client(server.address)) as client:
            server.check_books()
            is_aged = self.rng.random() < 0.4
            quiet = write_quiet(server, client, number, is_aged)
            self.quiet = self.quiet[-5:] + [quiet]
            flushed = self.rng.random() < 0.1
            if flushed:
                expect(client.command(b"flush_all") == b"OK", "OK for flush_all", "something else")
            elif is_aged:
                wait_until_written(client, quiet)
            most = server.stats()["flash"]["written_bytes"] + LOAD_BYTES
            load.go_on()
            self.disturb(server, client, load)
            moment = self.rng.uniform(0.01, 0.05) if is_aged else self.rng.uniform(0.05, 1.5)
            until = time.monotonic() + moment
            while (left := until - time.monotonic()) > 0 and server.stats()["flash"]["written_bytes"] < most:
                time.sleep(min(left, 0.02))
            moment -= max(left, 0)
            written, moved = said_written(client, quiet)
            owed = set(quiet) - moved if is_aged and not flushed else written
            stats = client.stats()
            self.operations += sum(int(value) for name, value in stats.items() if name.startswith("cmd_"))
            is_closing = self.kill(server, seconds=0.03)
            load.pause()
        with self.start(share=0.25, seconds=0.06) as server, contextlib.closing(Client(server.address)) as client:
            served = set(client.read_back(quiet, value_of))
            self.judge(server, number, owed, served, flushed)
            for older in self.quiet:
                client.read_back(older, value_of)
            server.check_books()
            load.go_on()
            time.sleep(LOOK_SECONDS)
            load.pause()
            load.check()
            self.note(server)
            print(
                f"round {number}: killed {'while it stopped ' if is_closing else ''}after {moment:.2f} s; of {len(quiet)} quiet objects "
                f"{len(owed)} were written and {len(owed & served)} of them served, {len(served)} in all"
                f"{' after flush_all' if flushed else ''}",
                flush=True,
            )
            if self.rng.random() < 0.5:
                server.terminate()
            else:
                server.kill9()

    def disturb(self, server, client, load):
        """Does what else is done under load."""

    def note(self, server):
        """Counts what a server did that is about to end."""

    def judge(self, server, number, owed, served, flushed):
        if flushed:
            expect(not owed and not served, "nothing that flush_all removed", (len(owed), len(served)))
            return
        kept = len(owed & served)
        self.owed += len(owed)
        self.kept += kept
        self.offered += QUIET_OBJECTS
        self.served += len(served)
        gone, slack = len(owed) - kept, int(SLACK_SHARE * len(owed))
        if gone > slack:
            self.short_rounds += 1
            said = [line for line in server.log().splitlines() if "recovered" in line]
            print(f"round {number}: only {kept} of {len(owed)}; {said}, {server.stats()['books']}")
        most = max(slack, SLACK_OBJECTS)
        expect(gone <= most, f"all but {most} of the {len(owed)} that were said to be written to be served", kept)


class TierRun(Run):
    """The same over a performance tier, to which everything happens that may."""

    starts = copy_reads = made_good = left_out = 0
    is_out = False

    def __init__(self, directory, *rest):
        self.path, self.former = os.path.join(directory, "p.tier"), os.path.join(directory, "former.tier")
        super().__init__(directory, *rest, "--performance-tier", "p.tier", "--performance-size", TIER_BYTES)

    def start(self, **chances):
        self.starts += 1
        if self.is_out and self.rng.random() < 0.7:
            # What was left out stays so until there is an empty file.
            open(self.path, "wb").close()
        elif os.path.exists(self.path):
            what = self.draw("nothing", "nothing", "nothing", "lost", "cut", "swapped", "overwritten")
            if what == "swapped" and os.path.exists(self.former):
                os.replace(self.former, self.path)
            elif what == "lost":
                os.remove(self.path)
            elif what in ("cut", "overwritten"):
                self.spoil(what)
            if self.rng.random() < 0.5 and os.path.exists(self.path):
                shutil.copyfile(self.path, self.former)
        server = super().start(**chances)
        self.is_out = "performance_device" not in server.stats()
        self.left_out += self.is_out
        return server

    def draw(self, *choices):
        """The first starts find what the ones before left, so that every run reads copies."""
        return self.rng.choice(choices) if self.starts > 3 else "nothing"

    def spoil(self, what):
        with open(self.path, "r+b") as tier:
            if what == "cut":
                tier.truncate(self.rng.randrange(TIER_BYTES))
            for _ in range(5000 if what == "overwritten" else 0):
                tier.seek(self.rng.randrange(4096, TIER_BYTES))
                tier.write(self.rng.randbytes(100))

    def read_copies(self):
        """Lives in which nothing happens to the tier, until copies are read: the kills may all have come before there were any."""
        deadline = time.monotonic() + 60
        while not self.copy_reads:
            expect(time.monotonic() < deadline, "copies to be read within 60 s", self.copy_reads)
            if self.is_out:
                open(self.path, "wb").close()
            with Run.start(self, share=0) as server, contextlib.closing(Client(server.address)) as client:
                self.is_out = "performance_device" not in server.stats()
                # As many bytes may be copied as were written in this life, and DRAM has nothing of the lives before.
                written = write_quiet(server, client, -len(self.quiet), False)
                for quiet in self.quiet:
                    client.read_back(quiet, value_of)
                self.quiet = self.quiet[-5:] + [written]
                self.note(server)
                server.terminate()

    def disturb(self, server, client, load):
        what = self.draw("nothing", "overwritten", "overwritten", "cut")
        if os.path.exists(self.path):
            self.spoil(what)
        # Not in DRAM yet, and those of the round before have copies. Not all under load: that would take so long that the load writes the
        # flash over.
        *older, last = [[], *self.quiet[:-1]]
        client.read_back(last, value_of)
        load.pause()
        for quiet in older:
            client.read_back(quiet, value_of)
        load.go_on()
        self.note(server)

    def note(self, server):
        figures = server.stats().get("performance", {})
        self.copy_reads += figures.get("copy_reads", 0)
        self.made_good += figures.get("made_good", 0)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_kill9(directory, seed, size, server_flags, case):
    rng = random.Random(seed)
    run = Run(directory, rng, case, "--flush-interval", "1", "--flash-size", size("flash", "160MiB", "160MiB"), *server_flags)
    go(run, directory, rng, size("rounds", ROUNDS.get(run.name, 2), 50))


@pytest.mark.parametrize("case", [CASES[0], CASES[1]], ids="-".join)
def test_kill9_with_a_performance_tier(directory, seed, size, server_flags, case):
    rng = random.Random(seed)
    run = TierRun(directory, rng, case, "--flush-interval", "1", "--flash-size", size("flash", "160MiB", "160MiB"), *server_flags)
    go(run, directory, rng, size("rounds", TIER_ROUNDS, 30))
    print(f"{run.copy_reads} reads of copies, {run.made_good} made good, {run.left_out} starts without the tier")
    run.read_copies()


def go(run, directory, rng, rounds):
    with History(directory, rng.randrange(1 << 32), 86_400, **LOAD) as load:
        load.pause()
        for number in range(rounds):
            run.round(load, number)
    share = run.served / run.offered if run.offered else 1.0
    print(f"{rounds} rounds, {run.kills} kills ({run.starts_killed} while it started), {run.operations} operations, 0 wrong values; of "
          f"{run.owed} objects that were said to be written {run.kept} were served, of all {run.offered} quiet ones {run.served}")
    most = max(1, int(SLACK_ROUNDS * rounds))
    expect(run.short_rounds <= most, f"at most {most} rounds with more than 1 % of what was said to be written gone", run.short_rounds)
    most = max(int(SLACK_SHARE * run.owed), SLACK_OBJECTS)
    expect(run.kept >= run.owed - most, f"all but {most} of the {run.owed} objects that were said to be written to be served", run.kept)
    # A server that calls little written would owe little. Some quiet objects may still stand in a block that is being filled,
    # or have been moved to one by a reclaim.
    expect(share >= SERVED_SHARE, f"{100 * SERVED_SHARE:.0f} % of all quiet objects to be served", f"{100 * share:.2f} %")
