"""`pumice-bench nbd` finds nothing wrong with nbdkit and with volumes of Pumice, also while they are killed, and finds what a server has
lost, changed, or mixed up."""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest

from chunk_log import CLEAN, VOID, ChunkLog
from harness import expect, expect_equal
from harness.machine import BENCH, installed
from harness.servers import Server, Volume

MIB = 1 << 20
SECTOR = 512
# Every kind of request, of many sizes, with duplicates.
ALL_KINDS = ["--mix", "50:40:4:3:3", "--size", "512..32KiB", "--connections", "3", "--fua", "0.05", "--duplicates", "0.4", "--pool", "20",
             "--places", "zipf:0.7"]
# Writes the whole of 1 MiB twice.
FILL = ["--range", "1MiB", "--mix", "0:49:1", "--places", "sequential", "--requests", "520"]


class Nbdkit(Server):
    """nbdkit with a plugin."""

    def __init__(self, directory, *plugin):
        place = pathlib.Path(directory)
        for name in ("kit.socket", "kit.pid"):
            (place / name).unlink(missing_ok=True)
        self.uri = f"nbd+unix:///?socket={place}/kit.socket"
        super().__init__("nbdkit", directory, [installed("nbdkit"), "--foreground", "--unix", place / "kit.socket", "--pidfile",
                                               place / "kit.pid", *plugin])
        # Written once it listens.
        self.wait_for((place / "kit.pid").exists, "it to listen")


def start(uri, *flags):
    command = [BENCH, "nbd", uri, "--overwrite", "--json", *flags]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(bench, status):
    said, errors = bench.communicate(timeout=300)
    expect_equal(bench.returncode, status, f"the exit status: {said[-3000:]} {errors}")
    return json.loads(said)


def bench(uri, *flags, status=0):
    return end(start(uri, *flags), status)


def expect_found(report, count, *words):
    """So many wrong sectors, each example with one of these words."""
    expect_equal(report["wrong_sectors"], count, f"wrong sectors: {report['examples']}")
    for example in report["examples"]:
        expect(any(word in example for word in words), f"one of {words} in each example", example)


@pytest.fixture
def volume(directory):
    """Starts a volume of 32 MiB on disk, in pass-through without its cache; a start that `fails` is returned without a wait."""
    disk, cache = pathlib.Path(directory, "disk"), pathlib.Path(directory, "cache")
    with open(disk, "wb") as file:
        file.truncate(32 * MIB)

    def start_volume(mode="write-through", *flags, fails=False):
        if mode != "pass-through":
            flags = ["--cache", cache, "--cache-size", "48MiB", *flags]
        return Volume(directory, str(disk), "--dram", "96MiB", "--threads", "2", "--mode", mode, *flags, wait=not fails)

    return start_volume


def test_a_right_server_is_not_accused(directory):
    journal = ["--journal", f"{directory}/journal", "--resume"]
    with Nbdkit(directory, "memory", "32M") as server:
        report = bench(server.uri, *ALL_KINDS, "--seconds", "1", *journal)
        expect(set(report["kinds"]) == {"read", "write", "flush", "trim", "zero"}, "every kind of request", report["kinds"])
        expect(report["is_passed"] and not report["is_resumed"], "a first run that reads all at the end", report)
        report = bench(server.uri, *ALL_KINDS, "--seconds", "1", *journal)
        expect(report["is_resumed"], "the second run to know what the first did", report)
        expect_equal(bench(server.uri, "--seconds", "0", *journal)["checked_sectors"], 32 * MIB // SECTOR, "sectors that are read")


def test_what_a_run_cannot_do_is_refused_with_advice(directory):
    pathlib.Path(directory, "journal").write_bytes(bytes(512))
    with Nbdkit(directory, "--filter=multi-conn", "memory", "1M", "multi-conn-mode=disable") as server:
        for flags, status, advice in [(["--connections", "2"], 2, "--connections 1"), (["--range", "2MiB"], 2, "--range"),
                                      (["--journal", f"{directory}/journal"], 2, "--resume"),
                                      (["--journal", f"{directory}/journal", "--resume"], 1, "no journal")]:
            bench = start(server.uri, *flags)
            said = bench.communicate(timeout=60)[1]
            expect(bench.returncode == status and advice in said, f"status {status} and `{advice}`", f"{bench.returncode}: {said}")


@pytest.mark.parametrize("how", [["write-through"], ["write-back", "--dirty-age", "1"]], ids=lambda how: how[0])
def test_kills_lose_nothing_that_was_flushed(directory, volume, how, seed, size):
    """`--with kills=30` kills."""
    kills, rng = size("kills", 3, 30), random.Random(seed)
    journal = ["--journal", f"{directory}/journal", "--resume"]
    server = volume(*how)
    load = start(server.uri, *ALL_KINDS, "--seconds", "3600", "--seed", seed, *journal)
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0.05, 1.0))
            expect(load.poll() is None, "the load to go on", load.returncode)
            server.kill9()
            server = volume(*how)
        time.sleep(0.3)
        load.send_signal(signal.SIGINT)
        report = end(load, 0)
        print(f"{report['requests']} requests, {report['checked_sectors']} sectors checked")
        # A server that is killed before the load has found it again is not missed.
        expect(1 <= report["stops"] <= kills and report["is_passed"], f"up to {kills} stops, and a pass", report)
        server.kill9()
        server = volume(*how)
        report = bench(server.uri, "--seconds", "0", *journal)
        expect(report["is_resumed"] and report["checked_sectors"] == 32 * MIB // SECTOR, "all sectors to be checked again", report)
        if how[0] == "write-back":
            # The stop writes to the backing file what the cache alone has: then it is right without the cache.
            server.terminate()
            server = volume("pass-through")
            report = bench(server.uri, "--seconds", "0", *journal)
            expect(report["is_resumed"] and report["is_passed"], "the backing file alone to be right", report)
    finally:
        load.kill()
        server.kill9()


def test_kills_of_a_small_cache_lose_nothing_and_fail_nothing(directory, seed, size):
    """The cache has a quarter of its volume. Its blocks are reclaimed all the time, and its log is full again and again; half of the writes find
    their content there. `--with kills=100` kills."""
    kills, rng = size("kills", 4, 100), random.Random(seed)
    disk = pathlib.Path(directory, "disk")
    with open(disk, "wb") as file:
        file.truncate(12 * MIB)
    flags = ["--dram", "64MiB", "--threads", "2", "--mode", "write-back", "--cache", "cache", "--cache-size", "3MiB", "--chunk-size", "4KiB",
             "--dirty-age", "1"]
    journal = ["--range", "12MiB", "--size", "4KiB..32KiB", "--journal", f"{directory}/journal", "--resume"]

    def volume():
        return Volume(directory, str(disk), *flags)

    def check(server):
        report = bench(server.uri, "--seconds", "0", *journal)
        expect(report["checked_sectors"] == 12 * MIB // SECTOR, "all sectors to be checked", report)

    server = volume()
    load = start(server.uri, "--mix", "20:50:8:11:11", "--fua", "0.05", "--duplicates", "0.5", "--pool", "64", "--connections", "4",
                 "--seconds", "3600", "--seed", seed, *journal)
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0.2, 1.2))
            # A request that fails ends the load with status 1.
            expect(load.poll() is None, "the load to go on", load.returncode)
            expect_equal(server.figures("volume")["clean_failures"], 0, "rounds of the cleaner that failed")
            server.kill9()
            server = volume()
        time.sleep(0.3)
        load.send_signal(signal.SIGINT)
        report = end(load, 0)
        print(f"{report['requests']} requests, {report['checked_sectors']} sectors checked")
        chunk = server.figures("chunk")
        expect(chunk["reclaimed_blocks"] > 0 and chunk["duplicates"] > 0, "reclaims and duplicates", chunk)
        server.kill9()
        server = volume()
        check(server)
        expect_equal(server.figures("volume")["clean_failures"], 0, "rounds of the cleaner that failed")
        server.terminate()
        said = pathlib.Path(server.log_path).read_text()
        expect("the cleaner:" not in said and "ERROR" not in said, "no failure in the log", said[-3000:])
        server = Volume(directory, str(disk), "--dram", "64MiB", "--mode", "pass-through")
        check(server)
    finally:
        load.kill()
        server.kill9()


def test_planted_losses_are_found(directory, volume, seed):
    disk, old, journal = (pathlib.Path(directory, name) for name in ("disk", "old", "journal"))
    sector = random.Random(seed).randrange(MIB // SECTOR - 8)
    known = ["--journal", journal, "--resume"]

    def look(*words, count):
        """Starts the volume without its cache, and looks for what is wrong."""
        with volume("pass-through") as server:
            expect_found(bench(server.uri, "--seconds", "0", *known, status=1 if count else 0), count, *words)

    def change(at, data):
        with open(disk, "r+b") as file:
            file.seek(at * SECTOR)
            file.write(data)

    with volume() as server:
        bench(server.uri, *FILL, *known)
    shutil.copy(disk, old)
    look(count=0)
    data = old.read_bytes()[sector * SECTOR:][:2 * SECTOR]
    change(sector, b"x" * 100)
    look(f"sector {sector}: found unknown bytes", count=1)
    # What was found is taken for good, and reported again if it is changed back.
    change(sector, data[:300] + bytes(10))
    look(f"sector {sector}: found damaged bytes", count=1)
    change(sector, data[SECTOR:])
    look(f"sector {sector}: found content of sector {sector + 1}", count=1)
    with volume("pass-through") as server:
        bench(server.uri, *FILL, *known)
    shutil.copy(old, disk)
    look("found an older content", count=MIB // SECTOR)


def test_what_a_backing_file_lost_after_a_drain_is_found(directory, volume, seed):
    disk, cache, journal = (pathlib.Path(directory, name) for name in ("disk", "cache", "journal"))
    known = ["--journal", journal, "--resume"]
    sector = random.Random(seed).randrange(MIB // SECTOR)
    with volume("write-back") as server:
        bench(server.uri, *FILL, *known)
        server.terminate()
    cache.unlink()
    with volume("write-back") as server:
        bench(server.uri, "--seconds", "0", *known)
        server.terminate()
    cache.unlink()
    with open(disk, "r+b") as file:
        file.seek(sector * SECTOR)
        file.write(b"x" * 100)
    with volume("write-back") as server:
        expect_found(bench(server.uri, "--seconds", "0", *known, status=1), 1, f"sector {sector}: found unknown bytes")


@pytest.mark.parametrize("end", ["keep", "kill9"])
def test_an_older_copy_of_a_cache_is_refused_or_found(directory, volume, end):
    """After a stop the time of the backing file's last change tells that it was changed since. After `kill -9` nothing does: the older copy
    writes its older contents over newer ones."""
    cache, old, journal = (pathlib.Path(directory, name) for name in ("cache", "old", "journal"))
    known = ["--journal", journal, "--resume"]
    lazy = ["--on-stop", "keep", "--dirty-age", "86400", "--clean-rate", "4KiB"]
    with volume("write-back", *lazy) as server:
        bench(server.uri, *FILL, *known)
        expect(server.figures("volume")["dirty_chunks"] > 0, "dirty chunks", server.figures("volume"))
        server.terminate() if end == "keep" else server.kill9()
    shutil.copy(cache, old)
    with volume("write-back") as server:
        bench(server.uri, *FILL, *known)
        server.terminate()
    shutil.copy(old, cache)
    if end == "keep":
        with volume("write-back", fails=True) as server:
            expect_equal(server.process.wait(20), 2, "status of the start")
            said = server.log()
            expect("the volume was changed without it" in said and "--reformat" in said, "the start to be refused with advice", said)
        expect(cache.read_bytes() == old.read_bytes(), "a start that is refused to change nothing of the cache", "another cache")
        with volume("pass-through") as server:
            bench(server.uri, "--seconds", "0", *known)
        return
    with volume("write-back") as server:
        report = bench(server.uri, "--seconds", "0", *known, status=1)
        expect_found(report, report["wrong_sectors"], "found an older content")


def test_a_dirty_copy_that_comes_back_is_found(directory, volume):
    """Chunks are written, cleaned, and zeroed. Of the first the log has a clean record, and a void after it: the volume has what the cache
    has, and what the cache has does not count. Either is dropped from the log, as if it had never been appended. Without the clean record
    the chunk would be dirty, if it were not void. Without the void the start finds the older content clean. Without both it finds it dirty,
    and writes it over the zeros."""
    disk, cache, journal = (pathlib.Path(directory, name) for name in ("disk", "cache", "journal"))
    known = ["--size", "4KiB", "--places", "sequential", "--journal", journal, "--resume"]

    def records_of(kind, chunk):
        # But the first record of every cache.
        return [record for record in ChunkLog(cache).records if record.covers(kind, chunk) and record.version > 0]

    with volume("write-back", "--chunk-size", "4KiB", "--dirty-age", "1") as server:
        bench(server.uri, "--range", "2MiB", "--mix", "0:1", "--requests", "512", *known)
        server.wait_for(lambda: server.figures("volume")["dirty_chunks"] == 0, "all chunks to be clean")
        # Without reads, which would bring newer copies into the cache; and it is killed long before it zeroes the first chunk again.
        load = start(server.uri, "--mix", "0:0:1:0:1", "--depth", "1", "--seconds", "3600", *known)
        server.wait_for(lambda: records_of(VOID, 64), "65 chunks to be zeroed")
        server.kill9()
    # It does not wait for another server.
    load.send_signal(signal.SIGINT)
    load.send_signal(signal.SIGTERM)
    expect_equal(end(load, 1)["wrong_sectors"], 0, "wrong sectors of the load")
    left = {path: path.read_bytes() for path in (disk, cache, journal)}
    cleans, voids = records_of(CLEAN, 0), records_of(VOID, 0)
    expect(len(cleans) == len(voids) == 1 and cleans[0].version < voids[0].version, "a clean record, then a void", f"{cleans} {voids}")

    def look(mode, count, is_dirty=False):
        """Starts the volume, and looks for what is wrong."""
        with volume(mode) as server:
            expect_equal(server.figures("volume")["dirty_chunks"] > 0, is_dirty, "dirty chunks at the start")
            report = bench(server.uri, "--seconds", "0", *known, status=1 if count else 0)
            expect_found(report, count, *(f"sector {sector}: found version" for sector in range(8)))
            expect(all("expected zeros (flushed)" in example for example in report["examples"]), "zeros that were flushed", report)
            server.terminate()

    drained = []
    for dropped, count in [([], 0), (cleans, 0), (voids, 8), (cleans + voids, 8)]:
        for path, content in left.items():
            path.write_bytes(content)
        ChunkLog(cache).write_without(dropped)
        look("write-back", count, is_dirty=cleans[0] in dropped)
        drained.append(disk.read_bytes())
    for content, count in zip(drained, [0, 0, 0, 8]):
        disk.write_bytes(content)
        # What was found above was taken for good.
        journal.write_bytes(left[journal])
        look("pass-through", count)


def test_a_server_that_loses_what_it_flushed_is_found(directory):
    with Nbdkit(directory, "memory", "1M") as server:
        load = start(server.uri, "--mix", "60:38:2", "--seconds", "3600", "--resume")
        time.sleep(0.5)
        server.kill9()
    with Nbdkit(directory, "memory", "1M"):
        time.sleep(0.5)
        load.send_signal(signal.SIGINT)
        report = end(load, 1)
    expect(report["wrong_sectors"] > 0 and report["stops"] == 1, "losses to be found", report)
    expect_found(report, report["wrong_sectors"], "found zeros")


def test_a_server_that_drops_a_write_is_found(directory):
    disk = pathlib.Path(directory, "disk")
    disk.write_bytes(bytes(MIB))
    script = {"get_size": f"echo {MIB}", "can_write": "exit 0", "can_flush": "exit 0", "flush": "exit 0",
              "pread": f"dd if={disk} skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none",
              "pwrite": f"[ $4 = 8192 ] && cat > /dev/null || dd of={disk} conv=notrunc seek=$4 oflag=seek_bytes status=none"}
    with Nbdkit(directory, "eval", *(f"{name}={text}" for name, text in script.items())) as server:
        report = bench(server.uri, "--range", "32KiB", "--mix", "50:50", "--requests", "200", status=1)
    expect(report["wrong_sectors"] > 0, "the dropped writes to be found", report)
    for example in report["examples"]:
        expect(16 <= int(example.split()[1].rstrip(":")) < 24 and "(answered)" in example, "sectors of the dropped write", example)
