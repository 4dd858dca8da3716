"""`pumice-bench nbd` finds nothing wrong with nbdkit and with volumes of Pumice, also while they are killed, and finds what a server has
lost. What its check holds wrong is tested in lab/bench/src/nbd/model."""

import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import time

import pytest

from harness import expect, expect_equal
from harness.machine import BENCH
from harness.servers import Nbdkit, Volume

MIB = 1 << 20
SECTOR = 512
# Every kind of request, of many sizes, with duplicates.
ALL_KINDS = ["--mix", "50:40:4:3:3", "--size", "512..32KiB", "--connections", "3", "--fua", "0.05", "--duplicates", "0.4", "--pool", "20",
             "--places", "zipf:0.7"]


def memory(directory, *plugin):
    """nbdkit with a plugin."""
    return Nbdkit(directory, None, flags=(), plugin=plugin)


def start(uri, *flags):
    command = [BENCH, "nbd", uri, "--overwrite", "--json", *flags]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(bench, status):
    said, errors = bench.communicate(timeout=300)
    expect_equal(bench.returncode, status, f"the exit status: {said[-3000:]} {errors}")
    return json.loads(said)


def bench(uri, *flags, status=0):
    return end(start(uri, *flags), status)


class Volumes:
    """Servers, one after the other, of a disk and its cache."""

    def __init__(self, directory, mib, *flags):
        self.directory, self.disk, self.flags = directory, os.path.join(directory, "disk"), ["--threads", "2", "--dram", "64MiB", *flags]
        with open(self.disk, "wb") as file:
            file.truncate(mib * MIB)

    def start(self):
        return Volume(self.directory, self.disk, *self.flags)

    def alone(self):
        """The disk without its cache."""
        return Volume(self.directory, self.disk, "--dram", "64MiB", "--mode", "pass-through")


def test_a_right_server_is_not_accused(directory):
    journal = ["--journal", f"{directory}/journal", "--resume"]
    with memory(directory, "memory", "32M") as server:
        report = bench(server.uri, *ALL_KINDS, "--seconds", "1", *journal)
        expect(set(report["kinds"]) == {"read", "write", "flush", "trim", "zero"}, "every kind of request", report["kinds"])
        expect(report["is_passed"] and not report["is_resumed"], "a first run that reads all at the end", report)
        report = bench(server.uri, *ALL_KINDS, "--seconds", "1", *journal)
        expect(report["is_resumed"], "the second run to know what the first did", report)
        expect_equal(bench(server.uri, "--seconds", "0", *journal)["checked_sectors"], 32 * MIB // SECTOR, "sectors that are read")


# The volume's MiB, flags, and the load. The cache of the last has a quarter of its volume: its blocks are reclaimed all the time, its log is full
# again and again, and half of the writes find their content there.
CASES = {
    "write-through": (32, ["--mode", "write-through", "--cache-size", "48MiB"], ALL_KINDS),
    "write-back": (32, ["--mode", "write-back", "--cache-size", "48MiB", "--dirty-age", "1"], ALL_KINDS),
    "small_cache": (12, ["--mode", "write-back", "--cache-size", "3MiB", "--chunk-size", "4KiB", "--dirty-age", "1"],
                    ["--mix", "20:50:8:11:11", "--fua", "0.05", "--size", "4KiB..32KiB", "--duplicates", "0.5", "--pool", "64", "--connections", "4"]),
}


@pytest.mark.parametrize("case", CASES)
def test_kills_lose_nothing_that_was_flushed_and_fail_nothing(directory, case, seed, size):
    """`--with kills=100` kills. A request that fails ends the load with status 1."""
    mib, flags, work = CASES[case]
    kills, rng = size("kills", 3, 30), random.Random(seed)
    volumes = Volumes(directory, mib, "--cache", "cache", *flags)
    journal = ["--range", f"{mib}MiB", "--journal", f"{directory}/journal", "--resume"]

    def check(server):
        report = bench(server.uri, "--seconds", "0", *journal)
        expect(report["is_resumed"] and report["is_passed"] and report["checked_sectors"] == mib * MIB // SECTOR, "all sectors to be checked again",
               report)

    server = volumes.start()
    load = start(server.uri, *work, "--seconds", "3600", "--seed", seed, *journal)
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0.05, 1.0))
            expect(load.poll() is None, "the load to go on", load.returncode)
            expect_equal(server.figures("volume")["clean_failures"], 0, "rounds of the cleaner that failed")
            server.kill9()
            server = volumes.start()
        time.sleep(0.3)
        load.send_signal(signal.SIGINT)
        report = end(load, 0)
        print(f"{report['requests']} requests, {report['checked_sectors']} sectors checked")
        # A server that is killed before the load has found it again is not missed.
        expect(1 <= report["stops"] <= kills and report["is_passed"], f"up to {kills} stops, and a pass", report)
        chunk = server.figures("chunk")
        expect(case != "small_cache" or chunk["reclaimed_blocks"] > 0 and chunk["duplicates"] > 0, "reclaims and duplicates", chunk)
        server.kill9()
        server = volumes.start()
        check(server)
        expect_equal(server.figures("volume")["clean_failures"], 0, "rounds of the cleaner that failed")
        # In write-back the stop writes to the backing file what the cache alone has: then it is right without the cache.
        server.terminate()
        said = server.log()
        expect("the cleaner:" not in said and "ERROR" not in said, "no failure in the log", said[-3000:])
        server = volumes.alone()
        check(server)
    finally:
        load.kill()
        server.kill9()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def log_of(cache):
    """Of a cache without a checkpoint, whose log has not come round, as docs/formats.md has it: its id, where its log begins, and the records: kind,
    index, version."""
    newest = max(cache[:4096], cache[4096:8192], key=lambda slot: struct.unpack_from("<Q", slot, 80))
    expect_equal(newest[104:168], bytes(64), "checkpoints of the superblock")
    (start, slots), records = struct.unpack_from("<QQ", newest, 56), []
    for position in range(slots):
        _, kind, _, at, index, version = struct.unpack_from("<IHHQQQ", cache, start + 32 * position)
        if at != position:
            break
        records.append((kind, index, version))
    return newest[16:24], start, records


def without(cache, dropped):
    """A cache as if some records had never been appended: those after them have lower positions, and fitting checksums."""
    cache_id, start, records = log_of(cache)
    kept = [record for record in records if record not in dropped]
    bodies = [struct.pack("<HHQQQ", kind, 0, position, index, version) for position, (kind, index, version) in enumerate(kept)]
    log = b"".join(struct.pack("<I", crc32c(cache_id + body)) + body for body in bodies).ljust(32 * len(records), b"\0")
    return cache[:start] + log + cache[start + len(log):]


def test_a_dirty_copy_that_comes_back_is_found(directory):
    """Chunks are written, cleaned, and zeroed: of the first the log has a clean record, and a void after it. Either is dropped. Without the clean
    record the chunk would be dirty, if it were not void. Without the void the start finds the older content clean; without both it finds it dirty,
    and writes it over the zeros."""
    volumes = Volumes(directory, 32, "--cache", "cache", "--cache-size", "48MiB", "--mode", "write-back", "--chunk-size", "4KiB", "--dirty-age", "1")
    disk, cache, journal = (pathlib.Path(directory, name) for name in ("disk", "cache", "journal"))
    known = ["--size", "4KiB", "--places", "sequential", "--journal", journal, "--resume"]

    def records_of(first_kind, chunk):
        """Void and clean records have a kind for each power of two of chunks; the first record of every cache voids all, at version 0."""
        return [one for one in log_of(cache.read_bytes())[2] if one[0] - first_kind in range(13) and one[1] == chunk >> one[0] - first_kind and one[2]]

    with volumes.start() as server:
        bench(server.uri, "--range", "2MiB", "--mix", "0:1", "--requests", "512", *known)
        server.wait_for(lambda: server.figures("volume")["dirty_chunks"] == 0, "all chunks to be clean")
        # Without reads, which would bring newer copies into the cache; and it is killed long before it zeroes the first chunk again.
        load = start(server.uri, "--mix", "0:0:1:0:1", "--depth", "1", "--seconds", "3600", *known)
        server.wait_for(lambda: records_of(16, 64), "65 chunks to be zeroed")
        server.kill9()
    # It does not wait for another server.
    load.send_signal(signal.SIGINT)
    load.send_signal(signal.SIGTERM)
    expect_equal(end(load, 1)["wrong_sectors"], 0, "wrong sectors of the load")
    left = {path: path.read_bytes() for path in (disk, cache, journal)}
    # What is dirty at a start stays so until the stop.
    volumes.flags[-1] = "86400"
    cleans, voids = records_of(144, 0), records_of(16, 0)
    expect(len(cleans) == len(voids) == 1 and cleans[0][2] < voids[0][2], "a clean record, then a void", f"{cleans} {voids}")
    for dropped, count in [([], 0), (cleans, 0), (voids, 8), (cleans + voids, 8)]:
        for path, content in left.items():
            path.write_bytes(content)
        cache.write_bytes(without(left[cache], dropped))
        with volumes.start() as server:
            expect_equal(server.figures("volume")["dirty_chunks"] > 0, cleans[0] in dropped, "dirty chunks at the start")
            report = bench(server.uri, "--seconds", "0", *known, status=1 if count else 0)
            expect_equal(report["wrong_sectors"], count, f"wrong sectors: {report['examples']}")
            for example in report["examples"]:
                expect("found version" in example and "expected zeros (flushed)" in example, "zeros that were flushed", example)
            server.terminate()
        expect_equal(any(disk.read_bytes()[:4096]), dropped == cleans + voids, "the older content in the backing file after a drain")


def test_an_older_copy_of_a_cache_is_found(directory):
    """After `kill -9` nothing tells that the backing file was changed since: the older copy writes its older contents over newer ones."""
    volumes = Volumes(directory, 32, "--cache", "cache", "--cache-size", "48MiB", "--mode", "write-back", "--dirty-age", "86400")
    cache, old = (pathlib.Path(directory, name) for name in ("cache", "old"))
    known = ["--journal", f"{directory}/journal", "--resume"]
    # Writes the whole of 1 MiB twice.
    fill = ["--range", "1MiB", "--mix", "0:49:1", "--places", "sequential", "--requests", "520", *known]
    with volumes.start() as server:
        bench(server.uri, *fill)
        expect(server.figures("volume")["dirty_chunks"] > 0, "dirty chunks", server.figures("volume"))
        server.kill9()
    shutil.copy(cache, old)
    with volumes.start() as server:
        bench(server.uri, *fill)
        server.terminate()
    shutil.copy(old, cache)
    with volumes.start() as server:
        report = bench(server.uri, "--seconds", "0", *known, status=1)
        expect(report["wrong_sectors"] > 0, "older contents to be found", report)
        expect(all("found an older content" in example for example in report["examples"]), "older contents in each example", report["examples"])


def test_a_server_that_loses_what_it_flushed_is_found(directory):
    with memory(directory, "memory", "1M") as server:
        load = start(server.uri, "--mix", "60:38:2", "--seconds", "3600", "--resume")
        time.sleep(0.5)
        server.kill9()
    with memory(directory, "memory", "1M"):
        time.sleep(0.5)
        load.send_signal(signal.SIGINT)
        report = end(load, 1)
    expect(report["wrong_sectors"] > 0 and report["stops"] == 1, "losses to be found", report)
    expect(all("found zeros" in example for example in report["examples"]), "zeros in each example", report["examples"])


def test_a_server_that_drops_a_write_is_found(directory):
    disk = pathlib.Path(directory, "disk")
    disk.write_bytes(bytes(MIB))
    script = {"get_size": f"echo {MIB}", "can_write": "exit 0", "can_flush": "exit 0", "flush": "exit 0",
              "pread": f"dd if={disk} skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none",
              "pwrite": f"[ $4 = 8192 ] && cat > /dev/null || dd of={disk} conv=notrunc seek=$4 oflag=seek_bytes status=none"}
    with memory(directory, "eval", *(f"{name}={text}" for name, text in script.items())) as server:
        report = bench(server.uri, "--range", "32KiB", "--mix", "50:50", "--requests", "200", status=1)
    expect(report["wrong_sectors"] > 0, "the dropped writes to be found", report)
    for example in report["examples"]:
        expect(16 <= int(example.split()[1].rstrip(":")) < 24 and "(answered)" in example, "sectors of the dropped write", example)
