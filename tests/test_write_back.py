"""Volumes in write-back, whose newest content the cache alone has until the cleaner, a stop or a later start writes it to the backing file:
what starts find, which are refused, `kill -9`, figures, `inspect`, and backing devices that are away, hang, or are full."""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal

import pytest

from harness import expect, expect_equal
from harness.machine import BINARY, run, succeed
from harness.servers import Nbdkit, Volume

CHUNK = 4096
CHUNKS = 1024
# What tests write; the volume is longer, as its cleaner hurries once more than half of the limit is dirty.
SIZE = CHUNKS * CHUNK
DISK_BYTES = 4 * SIZE
# The cleaner takes one chunk in a second, and begins late.
LAZY = ["--dirty-age", "86400", "--clean-rate", "4KiB", "--dirty-limit", "100%"]
PROMPT = ["--dirty-age", "1"]
KEEP = [*LAZY, "--on-stop", "keep"]
ALONE = re.compile(r"the cache alone has the newest content of (\d+) chunks")


class Place:
    """Files of a test: the backing file with its first content, which no write has in common with it, and the cache."""

    def __init__(self, directory, seed):
        self.directory, self.draw = directory, random.Random(seed)
        self.disk, self.cache, self.other = (pathlib.Path(directory, name) for name in ("disk", "cache", "other"))
        self.first, self.newest = self.draw.randbytes(SIZE), bytearray(self.draw.randbytes(SIZE))
        self.disk.write_bytes(self.first)
        os.truncate(self.disk, DISK_BYTES)

    def volume(self, mode, *flags, backing=None, cache=None, wait=True):
        cache = [] if cache == "none" else ["--cache", cache or self.cache, "--cache-size", "32MiB", "--chunk-size", "4KiB"]
        backing = str(backing or self.disk)
        return Volume(self.directory, backing, "--dram", "96MiB", "--threads", "2", "--mode", mode, *cache, *flags, wait=wait)

    def write(self, server, *more, places=((0, SIZE),), timeout=60):
        newest = self.disk.parent / "newest"
        newest.write_bytes(self.newest)
        ask(server, f"data = open('{newest}', 'rb').read()", f"write(data, {places})", *more, timeout=timeout)

    def change(self, server, count=64, first=0):
        """Writes some chunks anew, and parts of them, from byte `first` on."""
        places = []
        for _ in range(count):
            length = self.draw.choice((CHUNK, 512, 700, 3 * CHUNK))
            at = self.draw.randrange(first, SIZE - length) // 512 * 512
            self.newest[at:at + length] = self.draw.randbytes(length)
            places.append((at, length))
        self.write(server, places=places)

    def expect_read(self, server):
        seen = self.disk.parent / "seen"
        ask(server, f"open('{seen}', 'wb').write(read())")
        self.expect_newest(seen, "what a client reads")

    def expect_newest(self, path, what):
        differing = self.differing(path)
        expect(differing == 0, f"{what} to be the newest content", f"{differing} other chunks of {CHUNKS}")

    def differing(self, path=None):
        """Chunks of the backing file, or of another, that lack their newest content."""
        found = (path or self.disk).read_bytes()
        expect(len(found) == DISK_BYTES and not any(found[SIZE:]), f"{path} to have zeros after what was written", f"{len(found)} bytes")
        return sum(found[at:at + CHUNK] != self.newest[at:at + CHUNK] for at in range(0, SIZE, CHUNK))

    def leave(self, end):
        """Leaves dirty chunks to the next start, by a stop that keeps them or a kill, and returns how many."""
        with self.volume("write-back", *KEEP) as server:
            self.write(server, "h.flush()")
            server.terminate() if end == "kept" else server.kill9()
            said = ALONE.search(server.log())
        left = self.differing()
        expect(end == "killed" or int(said[1]) == left, f"the log to name {left} chunks that the backing file lacks", server.log())
        expect(left > CHUNKS // 2, "most chunks to be left to the cache", left)
        return left


# nbdcopy asks the server for holes, which one that is away does not answer.
CLIENT = """
STEP = 64 << 10
def write(data, places):
    for at, length in places:
        for step in range(at, at + length, STEP):
            h.pwrite(data[step:min(step + STEP, at + length)], step)
def read():
    return b"".join(h.pread(STEP, at) for at in range(0, h.get_size(), STEP))
"""


def ask(server, *lines, timeout=60):
    """Python of libnbd, whose handle is `h`."""
    said = succeed("nbdsh", "-u", server.uri, "-c", CLIENT + "\n".join(lines), timeout=timeout, env={"PATH": "/usr/bin:/bin"})
    expect_equal(said, "", f"what nbdsh says of {lines}")


def figure(server, name):
    return server.figures("volume")[name]


@pytest.fixture
def place(directory, seed):
    return Place(directory, seed)


@pytest.mark.parametrize("end", ["kept", "killed"])
@pytest.mark.parametrize("mode", ["write-back", "write-through", "write-around", "read-only"])
def test_a_later_start_serves_what_a_stop_has_kept_and_a_kill_has_left(place, mode, end):
    left = place.leave(end)
    before = place.disk.read_bytes()
    # Beside the bytes something has changed: it may be chmod, or a restore that has set the old time.
    place.disk.chmod(0o600)
    with place.volume(mode, *(LAZY if mode == "write-back" else [])) as server:
        expect_equal(int(ALONE.search(server.log())[1]), left, "dirty chunks that the start has found")
        expect_equal("have changed since the last stop" in server.log(), end == "kept", "a warning after a clean stop")
        place.expect_read(server)
        server.check_books()
        server.terminate()
    if mode == "read-only":
        expect(place.disk.read_bytes() == before, "a read-only volume to stay as it was", "another content")
        expect_equal(int(ALONE.search(server.log())[1]), left, "dirty chunks that a read-only volume leaves")
        with place.volume("write-back") as server:
            server.terminate()
    place.expect_newest(place.disk, "the backing file alone, after a drain")
    # All of it is there twice: the cache may be discarded now.
    with place.volume("pass-through") as server:
        expect("have changed" not in server.log(), "no warning any more", server.log())
        place.expect_read(server)


# The attribute of a backing file that lacks what a cache may have.
LACKS = "user.pumice.dirty"


def expect_refused(server, *advice):
    """With the status that tells a supervisor not to try again."""
    expect_equal(server.process.wait(20), 2, "status of the start")
    said = server.log()
    expect(all(words in said for words in (*advice, "writes that its volume lacks", "--reformat")), f"{advice} and what to do", said)


def test_a_start_that_would_lose_dirty_chunks_is_refused(place):
    left = place.leave("kept")
    before, times, copy = place.cache.read_bytes(), os.stat(place.disk), place.disk.parent / "disk2"
    shutil.copy(place.disk, copy)

    def sized(size):
        os.truncate(place.disk, size)
        return f"the volume has {size >> 20} MiB, and had {DISK_BYTES >> 20} MiB when this cache was used last"

    for mode, backing, change in [
        ("pass-through", None, lambda: "it would be discarded"), ("write-back", copy, lambda: "cache of another volume"),
        ("write-through", None, lambda: os.utime(place.disk, ns=(times.st_atime_ns, times.st_mtime_ns + 1)) or "changed without it"),
        ("write-back", None, lambda: sized(2 * DISK_BYTES)), ("write-back", None, lambda: sized(DISK_BYTES // 2)),
    ]:
        why = change()
        with place.volume(mode, backing=backing, wait=False) as server:
            expect_refused(server, why)
    expect(place.cache.read_bytes() == before, "a start that is refused to change nothing of the cache", "another cache")
    os.truncate(place.disk, DISK_BYTES)
    os.utime(place.disk, ns=(times.st_atime_ns, times.st_mtime_ns))
    with place.volume("write-back") as server:
        expect_equal(int(ALONE.search(server.log())[1]), left, "dirty chunks that the right start has found")
        place.expect_read(server)
        server.terminate()
    place.expect_newest(place.disk, "the backing file after a drain")


@pytest.mark.parametrize("without", ["none", "other"])
def test_a_cache_with_dirty_chunks_without_which_its_file_was_served_is_refused(place, without):
    """`--reformat` insists on that. Nothing is lost with the cache: once the mark of the backing file is taken away, it is used."""
    place.leave("kept")
    mode = "pass-through" if without == "none" else "write-back"
    with place.volume(mode, "--reformat", cache="none" if without == "none" else place.other) as server:
        server.terminate()
    expect(LACKS not in os.listxattr(place.disk), "the file to lack nothing", os.listxattr(place.disk))
    for mode in ("write-back", "write-through", "read-only"):
        with place.volume(mode, wait=False) as server:
            expect_refused(server, "the volume was served without it")
    os.removexattr(place.disk, "user.pumice.cache")
    with place.volume("write-back") as server:
        place.expect_read(server)
        server.terminate()
    place.expect_newest(place.disk, "the backing file after a drain")


def test_reformat_discards_dirty_chunks_in_pass_through_too(place):
    place.leave("kept")
    with place.volume("pass-through", "--reformat") as server:
        ask(server, "h.pwrite(b'new', 0)")
        server.terminate()
    with place.volume("write-back", "--on-stop", "keep") as server:
        expect("is forgotten" in server.log(), "the cache to be forgotten", server.log())
        ask(server, "assert bytes(h.pread(3, 0)) == b'new'")
        server.terminate()
    expect_equal(place.disk.read_bytes()[3:SIZE], place.first[3:], "the volume as it was without the cache")


@pytest.mark.parametrize("end", ["kept", "killed"])
def test_a_start_without_the_cache_that_has_dirty_chunks_is_refused(place, end):
    """In any mode, and before anything is made. With the cache the start goes on, and after a drain no cache is needed."""
    place.leave(end)
    before, away = place.disk.read_bytes(), place.disk.parent / "away"
    place.cache.rename(away)
    other = place.disk.parent / "other-disk"
    other.write_bytes(bytes(DISK_BYTES))
    with place.volume("write-back", backing=other, cache=place.other) as server:
        server.terminate()
    empty, cut, foreign = (place.disk.parent / name for name in ("empty", "cut", "foreign"))
    others = place.other.read_bytes()
    empty.touch()
    cut.write_bytes(others[:1 << 20])
    foreign.write_bytes(place.first)
    identity = os.getxattr(place.disk, LACKS)[:8][::-1].hex()
    for mode, cache, given in [("write-back", place.cache, "empty or missing"), ("write-through", place.cache, "empty or missing"),
                               ("write-around", empty, "empty or missing"), ("read-only", place.other, "is cache"),
                               ("write-back", place.other, "is cache"), ("pass-through", place.other, "is cache"),
                               ("pass-through", place.cache, "empty or missing"), ("pass-through", "none", "there is no --cache"),
                               ("write-back", cut, "cut short"), ("write-through", foreign, "holds no Pumice cache")]:
        with place.volume(mode, cache=cache, wait=False) as server:
            expect_refused(server, f"cache {identity} at {place.cache.resolve()}", f"volume {place.disk.name}", given)
    expect(not place.cache.exists() and empty.stat().st_size == 0, "no file to be made or written", os.listdir(place.directory))
    expect(place.other.read_bytes() == others and place.disk.read_bytes() == before, "nothing to be changed", "other bytes")
    # One of several volumes: another may have an intact cache with writes that its file lacks.
    with place.volume("write-back", "--reformat", "--backing", other, "--cache", place.other, wait=False) as server:
        expect_equal(server.process.wait(20), 2, "status of the start")
        expect("several volumes" in server.log(), "--reformat to be refused", server.log())
    # Under another path it is the same cache.
    with place.volume("write-through", cache=away) as server:
        expect("the cache that was there" in server.log(), "the cache to be found", server.log())
        place.expect_read(server)
        server.terminate()
    place.expect_newest(place.disk, "the backing file after a drain")
    expect(LACKS not in os.listxattr(place.disk), "the file to lack nothing", os.listxattr(place.disk))
    with place.volume("pass-through", cache="none") as server:
        place.expect_read(server)
        server.terminate()


def inspect(place, *flags, backing=None):
    """Status and report of the cache, which stays as it is."""
    before = place.cache.read_bytes()
    status, said = run(BINARY, "inspect", place.cache, "--json", "--backing", backing or place.disk, *flags)
    expect(said.startswith("{"), "a report", f"status {status}: {said}")
    expect(place.cache.read_bytes() == before, "an inspection to change nothing", "another cache")
    return status, json.JSONDecoder().raw_decode(said)[0]


def test_inspect_says_whose_a_cache_is_and_finds_as_many_dirty_chunks_as_the_start_does(place):
    """After `kill -9` some of them stand in a block that was being filled, for which the start writes a footer."""
    left = place.leave("kept")
    volume = inspect(place, "--verify")[1]["volume"]
    expect_equal((volume["bytes"], volume["chunk_bytes"], volume["is_backing"]), (DISK_BYTES, CHUNK, True), "the volume of the cache")
    shutil.copy(place.disk, place.disk.parent / "disk2")
    expect_equal(inspect(place, backing=place.disk.parent / "disk2")[1]["volume"]["is_backing"], False, "whether another file is the volume")
    for is_clean in (True, False, False):
        status, report = inspect(place, "--verify")
        expect_equal((status, report["findings"], report["clean"]), (0, [], is_clean), f"what inspect says: {report}")
        with place.volume("write-back", *LAZY) as server:
            expect_equal(int(ALONE.search(server.log())[1]), report["dirty_chunks"], "dirty chunks that the start has found")
            expect(not is_clean or report["dirty_chunks"] == left, f"{left} of them after the stop", report)
            place.expect_read(server)
            status, said = run(BINARY, "inspect", place.cache)
            expect(status == 1 and "in use" in said, "a cache in use not to be inspected", said)
            place.change(server)
            ask(server, "h.flush()")
            # What no FLUSH covers may be lost, and may be found.
            place.write(server, places=[(0, CHUNK)])
            server.kill9()
    with place.volume("write-back") as server:
        server.terminate()
    said = succeed(BINARY, "inspect", place.cache)
    for words in (f"{DISK_BYTES >> 20} MiB in {DISK_BYTES // CHUNK} chunks of 4 KiB", "none of them dirty"):
        expect(words in said, words, said)


def test_inspect_names_chunks_that_are_damaged(place):
    place.leave("kept")
    cached = bytearray(place.cache.read_bytes())
    damaged = [(number, at) for number in range(3, CHUNKS, 100) if (at := cached.find(place.newest[number * CHUNK:(number + 1) * CHUNK])) > 0]
    expect(len(damaged) > 5, "chunks to stand in the cache as they are", damaged)
    for number, at in damaged:
        cached[at + number % CHUNK] ^= 1
    place.cache.write_bytes(cached)
    expect_equal(inspect(place)[0], 0, "status without a look at contents")
    status, report = inspect(place, "--verify")
    named = sorted(finding["part"] for finding in report["findings"])
    expect_equal((status, named), (1, sorted(f"chunk {number}, dirty" for number, _ in damaged)), "what inspect says")


def test_dirty_chunks_rise_and_fall_and_the_books_balance(place):
    with place.volume("write-back", *LAZY) as server:
        expect_equal(figure(server, "dirty_chunks"), 0, "dirty chunks of a new cache")
        place.write(server)
        figures = server.figures("volume")
        expect(figures["dirty_chunks"] + figures["cleaned_chunks"] == CHUNKS, "each chunk to be dirty or cleaned", figures)
        expect(figures["dirty_chunks"] > CHUNKS // 2, "most to be dirty", figures)
        expect_equal(figures["write_chunks"], figures["writes_stored"], "chunks of writes that were stored")
        place.change(server)
        ask(server, "h.flush()")
        server.check_books()
        server.kill9()
    with place.volume("write-back", *PROMPT) as server:
        server.wait_for(lambda: figure(server, "dirty_chunks") == 0, "all to be cleaned")
        figures = server.figures("volume")
        expect_equal(figures["dirty_age_seconds"], 0, "the age of dirty chunks where there are none")
        place.expect_newest(place.disk, "the backing file while it is served")
        place.change(server)
        server.wait_for(lambda: figure(server, "dirty_chunks") == 0, "all to be cleaned again")
        place.expect_newest(place.disk, "the backing file while it is served")
        after = server.figures("volume")
        expect(after["cleaned_bytes"] > figures["cleaned_bytes"], "more to be cleaned", after)
        expect_equal(after["backing_written_bytes"], after["cleaned_bytes"], "bytes of the backing file that the cleaner wrote")
        expect_equal(after["clean_failures"], 0, "failures of the cleaner")
        server.check_books()


class Far:
    """nbdkit with a file, slow to write, which can be killed and started again, hang, and be full."""

    def __init__(self, place):
        self.place, self.full = place, place.disk.parent / "full"
        self.start()

    def start(self):
        options = ["error=ENOSPC", "error-pwrite-rate=100%", f"error-pwrite-file={self.full}", "wdelay=20ms"]
        self.server = Nbdkit(self.place.directory, self.place.disk, flags=["--filter=error", "--filter=delay"], options=options)

    def fail(self, how):
        if how == "killed":
            self.server.kill9()
        elif how == "hanging":
            self.server.process.send_signal(signal.SIGSTOP)
        else:
            self.full.touch()

    def recover(self, how):
        if how == "killed":
            self.start()
        elif how == "hanging":
            self.server.process.send_signal(signal.SIGCONT)
        else:
            self.full.unlink()

    @contextlib.contextmanager
    def volume_under_way(self):
        """A volume on it whose cache has all that tests read, and whose cleaner has begun: it has many writes to do, one for each dirty
        chunk, of which no two are neighbours."""
        place = self.place
        with place.volume("write-back", *PROMPT, backing=self.server.uri) as server:
            ask(server, "read()")
            server.wait_for(lambda: server.get("/books")[0] == 200, "what was read to be in the cache")
            for at in range(0, SIZE, 2 * CHUNK):
                place.newest[at:at + CHUNK] = place.draw.randbytes(CHUNK)
            place.write(server, places=EVERY_OTHER)
            server.wait_for(lambda: figure(server, "cleaned_bytes") > 0, "the cleaner to work")
            yield server


EVERY_OTHER = [(at, CHUNK) for at in range(0, SIZE, 2 * CHUNK)]


@pytest.fixture
def far(place):
    place.newest[:] = place.first
    far = Far(place)
    yield far
    far.server.kill9()


@pytest.mark.parametrize("how", ["killed", "hanging", "full"])
def test_what_the_cache_has_is_read_and_written_while_the_backing_device_is(place, far, how):
    """It becomes so while the cleaner is at its work, which it ends later. Written is what the cleaner has not come to."""
    with far.volume_under_way() as server:
        expect_equal(server.get("/readyz"), (200, "ready\n"), "the answer of /readyz")
        far.fail(how)
        for _ in range(3):
            place.change(server, first=SIZE // 2)
            place.expect_read(server)
        if how == "full":
            server.wait_for(lambda: figure(server, "clean_failures") > 0, "the cleaner to fail")
            status, said = server.get("/readyz")
            words = (f"ready\nvolume {server.name_of_volume}: the cleaner failed", "newest content of", "backing device")
            expect(status == 200 and all(word in said for word in words), f"{words}", f"{status}: {said}")
        expect(figure(server, "dirty_chunks") > CHUNKS // 4, "dirty chunks", server.figures("volume"))
        expect(place.differing() > CHUNKS // 4, "the backing file to lack what they have", place.differing())
        far.recover(how)
        place.change(server)
        server.wait_for(lambda: figure(server, "dirty_chunks") == 0, "all to be cleaned")
        place.expect_newest(place.disk, "the backing file once all is clean")
        expect_equal(server.get("/readyz"), (200, "ready\n"), "the answer of /readyz again")
        ask(server, "h.flush()")
        place.expect_read(server)
        server.check_books()
        place.change(server)
        server.terminate()
    place.expect_newest(place.disk, "the backing file after a drain")


def test_a_chunk_that_is_being_cleaned_is_written_while_the_backing_device_hangs(place, far):
    with far.volume_under_way() as server:
        far.fail("hanging")
        place.write(server, places=EVERY_OTHER, timeout=5)


def test_what_is_old_in_a_buffer_is_written_while_a_flush_of_the_backing_device_hangs(place, far):
    with place.volume("write-back", *LAZY, backing=far.server.uri) as server:
        # It goes through and marks its region. A flush is to clear the mark, seconds later.
        ask(server, f"h.zero({CHUNK}, 0)")
        flushes = figure(server, "backing_flushes")
        far.fail("hanging")
        server.wait_for(lambda: figure(server, "backing_flushes") > flushes, "a flush to begin")
        sent = server.figures("device")["written_bytes"]
        place.write(server, places=[(4 * CHUNK, CHUNK)], timeout=5)
        server.wait_for(lambda: server.figures("device")["written_bytes"] >= sent + CHUNK, "the cache device to have what was written")
        far.recover("hanging")
        server.terminate()


@pytest.mark.parametrize("how", ["full", "hanging"])
def test_a_stop_that_cannot_drain_leaves_all_to_the_next_start(place, how):
    """Where the backing device hangs the stop waits for it, until the server is killed."""
    far = Far(place)
    try:
        with place.volume("write-back", *LAZY, backing=far.server.uri) as server:
            place.write(server, "h.flush()")
            far.fail(how)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("chunks that the cache alone has")
            if how == "hanging":
                server.kill9()
            server.process.wait(20)
            expect(how == "hanging" or ALONE.search(server.log()), "a stop that could not drain to say so", server.log())
        expect(place.differing() > CHUNKS // 2, "the cache alone to have most", place.differing())
        far.recover(how)
        with place.volume("write-back", *LAZY, backing=far.server.uri) as server:
            expect(int(ALONE.search(server.log())[1]) > CHUNKS // 2, "dirty chunks that the start has found", server.log())
            place.expect_read(server)
            server.terminate()
        place.expect_newest(place.disk, "the backing file after a drain")
    finally:
        far.server.kill9()
