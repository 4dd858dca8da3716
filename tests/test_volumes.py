"""Volumes over NBD, with clients that others wrote: nbdinfo, nbdcopy, qemu-img, qemu-io, fio, nbdsh. Every mode, over a unix socket and
TCP."""

import contextlib
import os
import random
import re
import socket
import subprocess
import time

import pytest

from harness import expect, expect_equal
from harness.machine import BINARY, installed, run, succeed
from harness.servers import Nbdkit, Volume

MIB = 1 << 20
DISK_BYTES = 48 * MIB

# What a client does that its library would not let it do; each line is printed as an error's name, or what came.
ODD = """
h.set_strict_mode(0)
size = h.get_size()
def told(act):
    try:
        print(act())
    except nbd.Error as error:
        print(error.errno)
told(lambda: h.pread(10, size))
told(lambda: h.pread(10, size - 9))
told(lambda: h.pread(0, 0))
told(lambda: h.pwrite(b"x" * 10, size - 9))
told(lambda: h.pwrite(b"x" * (33 << 20), 0))
told(lambda: h.pread(33 << 20, 0))
told(lambda: h.trim(10, 0, 0x80))
told(lambda: h.flush())
told(lambda: h.cache(4096, 0))
told(lambda: h.pwrite(b"after", 7))
told(lambda: bytes(h.pread(5, 7)))
"""
ODD_ANSWERS = ["EINVAL", "EINVAL", "EINVAL", "ENOSPC", "EINVAL", "EINVAL", "EINVAL", "None", "None", "None", "b'after'"]


def qemu_io(uri, *commands):
    said = succeed("qemu-io", "-f", "raw", uri, *(word for command in commands for word in ("-c", command)))
    expect("verification failed" not in said, "qemu-io to read what was written last", said)


def nbdsh(uri, script):
    return succeed("nbdsh", "-u", uri, "-c", script, env={"PATH": "/usr/bin:/bin"})


def expect_same(one, other):
    succeed("cmp", one, other)


class Place:
    """The files of a test."""

    def __init__(self, directory, seed):
        self.directory, self.seed = directory, seed
        self.disk, self.other, self.image, self.back, self.cache = (os.path.join(directory, name) for name in ("disk", "other", "image", "back", "cache"))

    def content(self, length, number=0):
        return random.Random(self.seed + number).randbytes(length)

    def write(self, path, content):
        with open(path, "wb") as file:
            file.write(content)

    def volume(self, *flags, backing=None, cache=None, size="64MiB", dram="96MiB", **how):
        """`cache` is another one than that of the place; "none" for pass-through without one."""
        mode = ["--mode", "pass-through"] if cache == "none" else ["--cache", cache or self.cache, "--cache-size", size]
        return Volume(self.directory, str(backing or self.disk), "--dram", dram, "--threads", "2", *mode, *flags, **how)


@pytest.fixture
def place(directory, seed):
    return Place(directory, seed)


@pytest.mark.parametrize(("mode", "over"), [("write-back", "tcp"), ("write-back", "unix"), ("write-through", "unix"), ("write-around", "tcp"),
                                          ("pass-through", "unix")])
def test_real_clients_find_what_they_wrote(place, size, mode, over):
    """`--with verified=` MiB are written by fio for each pattern."""
    place.write(place.disk, b"")
    os.truncate(place.disk, DISK_BYTES)
    place.write(place.image, place.content(DISK_BYTES))
    verified = size("verified", 16, 256)
    with place.volume(*(["--mode", mode] if mode != "pass-through" else []), cache="none" if mode == "pass-through" else None, over=over) as server:
        uri = server.uri
        holes = succeed("nbdinfo", "--map", uri)
        expect(re.search(rf"0 +{DISK_BYTES} .*hole,zero", holes), "an empty volume to be one hole", holes)
        succeed("nbdcopy", place.image, uri)
        for _ in range(2):
            succeed("nbdcopy", uri, place.back)
            expect_same(place.image, place.back)
        succeed("qemu-img", "convert", "-f", "raw", "-O", "raw", uri, place.back)
        succeed("qemu-img", "compare", "-f", "raw", "-F", "raw", uri, place.back)
        qemu_io(uri, "write -P 7 511 513", "write -f -P 8 4096 33000", "flush", "discard 8192 8192", "write -z 65536 65536", "read -P 7 511 513",
                "read -P 8 4096 4096", "read -P 0 8192 8192", "read -P 0 65536 65536")
        expect_equal(nbdsh(uri, ODD).split("\n")[:-1], ODD_ANSWERS, "answers to odd requests")
        fio = ["fio", "--name=v", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--iodepth=16", f"--size={verified}m",
               "--do_verify=1", "--verify_fatal=1", f"--randseed={place.seed}", "--verify_state_save=0"]
        succeed(*fio, "--verify=crc32c", "--bsrange=512-1m", "--bs_unaligned=1", cwd=place.directory)
        succeed(*fio, "--verify=pattern", "--verify_pattern=0xabcd%o", "--bs=4k", cwd=place.directory)
        succeed("nbdcopy", uri, place.back)
        server.terminate()
    # The backing file alone is right, in write-back as the stop writes to it what the cache alone has.
    expect_same(place.disk, place.back)


@pytest.mark.parametrize("how", ["without", "with another", "put back"])
def test_a_cache_that_its_file_was_changed_without_is_forgotten(place, how):
    """Served without it, also after `kill -9`, when no time of change was noted; or put back with its old time."""
    place.write(place.disk, bytes(MIB))
    with place.volume() as server:
        qemu_io(server.uri, "write -P 1 0 1M", "flush")
        server.terminate() if how == "put back" else server.kill9()
    times = os.stat(place.disk)
    with place.volume() as server:
        expect("the cache that was there" in server.log(), "the cache to be found again", server.log())
        server.terminate() if how == "put back" else server.kill9()
    if how == "put back":
        place.write(place.disk, b"\x02" * MIB)
        os.utime(place.disk, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        with place.volume(cache="none" if how == "without" else place.other) as server:
            qemu_io(server.uri, "write -P 2 0 1M", "flush")
            server.kill9()
    with place.volume() as server:
        expect("is forgotten" in server.log(), "the cache to be forgotten", server.log())
        expect_equal(server.figures("chunk")["forgotten"], 1, "the figure that says so")
        qemu_io(server.uri, "read -P 2 0 1M")


@contextlib.contextmanager
def loop_device(path):
    """A loop device over a file; skips the test where there is none."""
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        pytest.skip("loop devices need root and /dev/loop-control")
    status, said = run("losetup", "-f", "--show", path)
    if status != 0:
        pytest.skip(f"no loop device: {said.strip()}")
    try:
        yield said.strip()
    finally:
        succeed("losetup", "-d", said.strip())


def expect_refused(place, words, *flags, status):
    status_seen, said = run(BINARY, "serve", "--nbd", f"unix:{place.directory}/second", "--admin", "off", *flags)
    expect(status_seen == status and words in said, f"status {status} and `{words}`", f"{status_seen}: {said[-1500:]}")


def test_a_file_is_not_served_beside_its_loop_device(place):
    place.write(place.disk, bytes(16 * MIB))
    with loop_device(place.disk) as loop:
        for backing, second in ((place.disk, loop), (loop, place.disk)):
            with place.volume(backing=backing, size="16MiB") as server:
                expect_refused(place, "serves it", "--backing", second, "--mode", "pass-through", status=1)
                server.terminate()
            expect_refused(place, "a cache would overwrite it", "--backing", backing, "--cache", second, status=2)
        # One after the other they may be, and nothing of the file was written.
        with place.volume(backing=loop, cache="none") as server:
            server.terminate()
    place.write(place.back, bytes(16 * MIB))
    expect_same(place.disk, place.back)


def test_volumes_that_make_no_sense_together_are_refused(place):
    place.write(place.disk, bytes(MIB))
    place.write(place.other, bytes(MIB))
    for backing, cache, advice in [([place.disk] * 2, ["x", "y"], "two are named"), ([place.disk, place.other], ["x", "x"], "a cache of its own"),
                                   ([place.disk, place.other], ["x", place.other], "name another file")]:
        expect_refused(place, advice, "--backing", ",".join(backing), "--cache", ",".join(cache), "--cache-size", "32MiB", status=2)


def test_nobody_can_connect_before_a_start_is_decided(place):
    """The cache device is slow, so that the start after a kill, which looks at each block, takes a while."""

    def connect():
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(20)
        client.connect(os.path.join(place.directory, "nbd.socket"))
        return client

    place.write(place.disk, bytes(MIB))
    with place.volume(size="16MiB") as server:
        server.kill9()
    with place.volume("--throttle", "cache=hdd", "--max-connections", "1", size="16MiB", wait=False) as server:
        server.wait_for_log(f"cache {place.cache}")
        tries = 0

        def connected():
            nonlocal tries
            tries += 1
            with contextlib.suppress(ConnectionRefusedError):
                return connect()

        with server.wait_for(connected, "the socket to listen") as client:
            expect(tries > 10, "the start to take a while", tries)
            # Far less than the start takes.
            server.wait_for_log("ready:", 2)
            expect_equal(client.recv(8), b"NBDMAGIC", "a greeting")
            for _ in range(2):
                with connect() as other:
                    expect_equal(other.recv(8), b"", "what one more than --max-connections hears")
        said = [line for line in server.log().splitlines() if "a connection is turned away" in line]
        expect(len(said) == 1 and "WARN" in said[0] and "--max-connections" in said[0], "one line of two that were turned away", said)


@pytest.mark.parametrize("chunk", ["4KiB", "128KiB"])
def test_memory_holds_whatever_clients_ask(place, chunk):
    """Seven clients with many requests each, short and long, of what is cached and what is not."""
    place.write(place.disk, place.content(128 * MIB))
    with place.volume("--chunk-size", chunk, dram="64MiB") as server:
        fio = ["fio", "--name=m", "--ioengine=nbd", f"--uri={server.uri}", "--size=128m", "--numjobs=7", "--thread", "--iodepth=64",
               f"--randseed={place.seed}", "--bs_unaligned=1"]
        for how in [["--rw=randread", "--bsrange=512-4k", "--io_size=4m"], ["--rw=randrw", "--bsrange=64k-2m", "--io_size=48m"]]:
            succeed(*fio, *how, cwd=place.directory)
        peak = server.memory()[1]
        expect(peak <= 64 * MIB, "at most --dram to be resident", f"{peak / MIB:.1f} MiB")


def test_a_scan_stays_out_of_a_full_cache_and_the_cache_command_does_not(place):
    """Two copies of 3,072 chunks through a cache of 1,024; NBD's CACHE for 512 of them."""
    place.write(place.disk, place.content(96 * MIB))
    with place.volume("--chunk-size", "32KiB", size="32MiB") as server:
        for _ in range(2):
            succeed("nbdcopy", server.uri, place.back)
            expect_same(place.disk, place.back)
        copied = server.figures("volume")
        expect(copied["fills_stored"] < 1600 and copied["fills_scan"] > 3000, "the copies to fill the cache once", copied)
        nbdsh(server.uri, "for at in range(40, 56):\n    h.cache(1 << 20, at << 20)")
        warmed = server.figures("volume")
        expect_equal(warmed["fills_scan"], copied["fills_scan"], "chunks that bypassed")
        expect(warmed["fills"] - copied["fills"] > 400, "some 512 chunks to be filled by CACHE", warmed)
        qemu_io(server.uri, *(f"read {at}M 1M" for at in range(42, 56)))
        expect_equal(server.figures("volume")["read_misses"], warmed["read_misses"], "misses of what CACHE has filled")


def test_several_volumes_have_a_cache_each(place):
    for number, path in enumerate([place.disk, place.other]):
        place.write(path, place.content(8 * MIB, number))
    for _ in range(2):
        with place.volume("--backing", place.other, "--cache", place.cache + "2", size="32MiB") as server:
            listed = succeed("nbdinfo", "--list", server.uri)
            expect(all(f'export="{name}"' in listed for name in ["disk", "other"]), "both volumes to be listed", listed)
            for path in (place.disk, place.other):
                succeed("nbdcopy", server.uri.replace("/disk?", f"/{os.path.basename(path)}?"), place.back)
                expect_same(path, place.back)
            qemu_io(server.uri.replace("/disk?", "/other?"), "write -P 9 4096 9000", "flush")
            server.terminate()
    place.write(place.back, place.content(8 * MIB))
    expect_same(place.disk, place.back)


@pytest.mark.parametrize("mode", ["write-through", "pass-through"])
def test_a_remote_volume_outlives_its_server(place, mode):
    """nbdkit is killed while a volume on it is written, three times; what was written is there, in the volume and in nbdkit's file."""
    place.write(place.disk, b"")
    os.truncate(place.disk, DISK_BYTES)
    place.write(place.image, place.content(DISK_BYTES))

    def start():
        return Nbdkit(place.directory, place.disk, flags=("--filter=delay",), options=("wdelay=10ms",))

    remote = start()
    try:
        with place.volume(backing=remote.uri, cache="none" if mode == "pass-through" else None) as server:
            copy = subprocess.Popen([installed("nbdcopy"), "--flush", "--requests=4", "--connections=1", "--request-size=65536",
                                     place.image, server.uri], stderr=subprocess.PIPE, text=True)
            kills = 0
            while copy.poll() is None and kills < 3:
                time.sleep(0.15)
                remote.kill9()
                kills += 1
                remote = start()
            said = copy.communicate(timeout=60)[1]
            expect_equal((copy.returncode, said), (0, ""), "nbdcopy to write")
            expect_equal(kills, 3, "times that nbdkit was killed while the volume was written")
            succeed("nbdcopy", server.uri, place.back)
            expect_same(place.image, place.back)
            expect_same(place.image, place.disk)
            qemu_io(server.uri, "discard 8192 8192", "write -z 65536 65536", "flush", "read -P 0 8192 8192", "read -P 0 65536 65536")
            said = server.log()
            expect("is lost, and is made anew" in said and "again" in said, "the log to say that the connection was made anew", said)
            server.terminate()
    finally:
        remote.kill9()
    expect_refused(place, "nbdkit", "--backing", remote.uri, "--mode", "pass-through", status=1)
