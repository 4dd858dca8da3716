"""Volumes over NBD, with clients that others wrote: nbdinfo, nbdcopy, qemu-img, qemu-io, fio, nbdsh. Every mode, over a unix socket and
TCP."""

import contextlib
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

import pytest

from harness import expect, expect_equal
from harness.machine import BINARY, installed
from harness.servers import Volume

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


def run(*command, timeout=120, **more):
    words = [str(word) for word in command]
    if words[0] in PACKAGES:
        words[0] = installed(words[0], PACKAGES[words[0]])
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **more)
    return done.returncode, done.stdout + done.stderr


PACKAGES = {"nbdinfo": "libnbd-bin", "nbdcopy": "libnbd-bin", "nbdsh": "python3-libnbd", "qemu-img": "qemu-utils", "qemu-io": "qemu-utils",
            "fio": "fio"}


def succeed(*command, **more):
    status, said = run(*command, **more)
    expect_equal(status, 0, f"status of {' '.join(str(word) for word in command)}: {said[-1500:]}")
    return said


@contextlib.contextmanager
def volumes(directory, *flags, others=(), over="unix", end=signal.SIGTERM, backing=None):
    """A server of the volume `disk`, and of others, which `end` ends; the address of the first as a URI. `backing` is an address of `disk`."""
    listen = f"unix:{directory}/socket" if over == "unix" else "127.0.0.1:0"
    log = directory / "volumes.log"
    backing = backing or ",".join(f"{directory / name}" for name in ["disk", *others])
    command = [BINARY, "serve", "--nbd", listen, "--backing", backing, "--dram", "96MiB", "--threads", "2",
               "--admin", "off", *flags]
    with open(log, "w") as stderr:
        server = subprocess.Popen([str(word) for word in command], stderr=stderr)
    try:
        deadline = time.monotonic() + 20
        while not (found := re.search(r"ready: NBD on (\S+)\n", log.read_text())):
            expect(server.poll() is None and time.monotonic() < deadline, "the server to become ready", log.read_text())
            time.sleep(0.01)
        place = found[1]
        yield f"nbd+unix:///disk?socket={directory}/socket" if over == "unix" else f"nbd://{place}/disk"
        server.send_signal(end)
        expected = 0 if end == signal.SIGTERM else -end
        expect_equal(server.wait(30), expected, f"status of the server: {log.read_text()[-1500:]}")
    finally:
        server.kill()
        server.wait()


def expect_same(one, other):
    done = subprocess.run(["cmp", one, other], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{one} to be the same as {other}", done.stdout + done.stderr)


@pytest.fixture
def place(directory):
    return pathlib.Path(directory)


@pytest.mark.parametrize("over", ["unix", "tcp"])
@pytest.mark.parametrize("mode", ["write-back", "write-through", "write-around", "pass-through"])
def test_real_clients_find_what_they_wrote(place, seed, size, mode, over):
    """`--with verified=` MiB are written by fio for each pattern."""
    disk, image = place / "disk", place / "image"
    with open(disk, "wb") as file:
        file.truncate(DISK_BYTES)
    image.write_bytes(random.Random(seed).randbytes(DISK_BYTES))
    cache = [] if mode == "pass-through" else ["--cache", place / "cache", "--cache-size", "64MiB"]
    verified = size("verified", 16, 256)
    with volumes(place, "--mode", mode, *cache, over=over) as uri:
        holes = succeed("nbdinfo", "--map", uri)
        expect(re.search(rf"0 +{DISK_BYTES} .*hole,zero", holes), "an empty volume to be one hole", holes)
        succeed("nbdcopy", image, uri)
        for _ in range(2):
            succeed("nbdcopy", uri, place / "back")
            expect_same(image, place / "back")
        succeed("qemu-img", "convert", "-f", "raw", "-O", "raw", uri, place / "back")
        succeed("qemu-img", "compare", "-f", "raw", "-F", "raw", uri, place / "back")
        said = succeed("qemu-io", "-f", "raw", uri, "-c", "write -P 7 511 513", "-c", "write -f -P 8 4096 33000", "-c", "flush",
                       "-c", "discard 8192 8192", "-c", "write -z 65536 65536", "-c", "read -P 7 511 513", "-c", "read -P 8 4096 4096",
                       "-c", "read -P 0 8192 8192", "-c", "read -P 0 65536 65536")
        expect("verification failed" not in said, "qemu-io to read what it wrote", said)
        odd = succeed("nbdsh", "-u", uri, "-c", ODD, env={"PATH": "/usr/bin:/bin"})
        expect_equal(odd.split("\n")[:-1], ODD_ANSWERS, "answers to odd requests")
        fio = ["fio", "--name=v", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--iodepth=16", f"--size={verified}m",
               "--do_verify=1", "--verify_fatal=1", f"--randseed={seed}", "--verify_state_save=0"]
        succeed(*fio, "--verify=crc32c", "--bsrange=512-1m", "--bs_unaligned=1", cwd=place)
        succeed(*fio, "--verify=pattern", "--verify_pattern=0xabcd%o", "--bs=4k", cwd=place)
        succeed("nbdcopy", uri, place / "back")
    # The backing file alone is right, in write-back as the stop writes to it what the cache alone has.
    expect_same(disk, place / "back")


@pytest.mark.parametrize("has_other", [False, True], ids=["without", "with-another"])
def test_a_cache_without_which_its_file_was_served_is_forgotten(place, has_other):
    """Also after `kill -9`, when no time of change was noted."""
    with open(place / "disk", "wb") as file:
        file.truncate(DISK_BYTES)
    cache = ["--cache", place / "cache", "--cache-size", "64MiB"]
    other = ["--cache", place / "other", "--cache-size", "64MiB"] if has_other else ["--mode", "pass-through"]
    with volumes(place, *cache, end=signal.SIGKILL) as uri:
        succeed("qemu-io", "-f", "raw", uri, "-c", "write -P 1 0 1M", "-c", "flush")
    with volumes(place, *cache, end=signal.SIGKILL):
        log = (place / "volumes.log").read_text()
        expect("the cache that was there" in log, "the cache to be found again", log)
    with volumes(place, *other, end=signal.SIGKILL) as uri:
        succeed("qemu-io", "-f", "raw", uri, "-c", "write -P 2 0 1M", "-c", "flush")
    with volumes(place, *cache) as uri:
        log = (place / "volumes.log").read_text()
        expect("is forgotten" in log, "the cache to be forgotten", log)
        said = succeed("qemu-io", "-f", "raw", uri, "-c", "read -P 2 0 1M")
        expect("verification failed" not in said, "the newest content to be read", said)


def test_a_file_that_was_put_back_with_its_old_time_is_noticed(place):
    disk = place / "disk"
    disk.write_bytes(bytes(MIB))
    cache = ["--cache", place / "cache", "--cache-size", "16MiB"]
    with volumes(place, *cache) as uri:
        succeed("qemu-io", "-f", "raw", uri, "-c", "write -P 1 0 1M", "-c", "flush")
    times = os.stat(disk)
    with volumes(place, *cache):
        log = (place / "volumes.log").read_text()
        expect("the cache that was there" in log, "the cache to be found", log)
    with open(disk, "r+b") as file:
        file.write(b"\x02" * MIB)
    os.utime(disk, ns=(times.st_atime_ns, times.st_mtime_ns))
    with volumes(place, *cache) as uri:
        log = (place / "volumes.log").read_text()
        expect("is forgotten" in log, "the cache to be forgotten", log)
        said = succeed("qemu-io", "-f", "raw", uri, "-c", "read -P 2 0 1M")
        expect("verification failed" not in said, "what was put back to be read", said)


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


def refused(place, *flags, status=1):
    """What a start that is refused says."""
    done = subprocess.run([BINARY, "serve", "--nbd", f"unix:{place}/second", "--admin", "off", *flags], capture_output=True, text=True,
                          timeout=30, check=False)
    expect_equal(done.returncode, status, f"status of a start that is to be refused: {done.stderr[-1500:]}")
    return done.stderr


def test_a_file_is_not_served_beside_its_loop_device(place):
    disk, cache = place / "disk", ["--cache", place / "cache", "--cache-size", "16MiB"]
    disk.write_bytes(bytes(16 * MIB))
    with loop_device(disk) as loop:
        beside = ["--mode", "pass-through"]
        with volumes(place, *cache):
            said = refused(place, "--backing", loop, *beside)
            expect("serves it" in said, "the loop device of a file that is served to be refused", said)
        with volumes(place, *cache, backing=loop):
            said = refused(place, "--backing", disk, *beside)
            expect("serves it" in said, "the file of a loop device that is served to be refused", said)
        for backing, cache in [(loop, disk), (disk, loop)]:
            said = refused(place, "--backing", backing, "--cache", cache, status=2)
            expect("a cache would overwrite it" in said, f"{cache} to be no cache of {backing}", said)
        # One after the other they may be, and in pass-through nothing of the file was written.
        with volumes(place, *beside, backing=loop):
            pass
    expect_equal(disk.read_bytes(), bytes(16 * MIB), "the file")


def greeting(place):
    """What the server says first to a client."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(place / "nbd.socket"))
        return client.recv(8)


def test_nobody_can_connect_before_a_start_is_decided(place):
    """The cache device is slow, so that the start after a kill, which looks at each block, takes a while."""
    (place / "disk").write_bytes(bytes(MIB))
    flags = ["--cache", str(place / "cache"), "--cache-size", "16MiB"]
    with Volume(str(place), str(place / "disk"), *flags) as server:
        expect_equal(greeting(place), b"NBDMAGIC", "a greeting")
        server.kill9()
    expect((place / "nbd.socket").exists(), "a killed server to leave its socket", sorted(place.iterdir()))
    with Volume(str(place), str(place / "disk"), *flags, "--throttle", "cache=hdd*3", wait=False) as server:
        server.wait_for_log(f"cache {place / 'cache'}")
        tries = 0

        def connects():
            nonlocal tries
            tries += 1
            with socket.socket(socket.AF_UNIX) as client:
                return client.connect_ex(str(place / "nbd.socket")) == 0

        server.wait_for(connects, "the socket to listen")
        expect(tries > 10, "the start to take a while", tries)
        # Far less than the start takes.
        server.wait_for_log("ready:", 2)
        expect_equal(greeting(place), b"NBDMAGIC", "a greeting")


def test_connections_beyond_the_limit_are_logged_once(place):
    (place / "disk").write_bytes(bytes(MIB))
    with Volume(str(place), str(place / "disk"), "--mode", "pass-through", "--max-connections", "1") as server:
        with contextlib.ExitStack() as stack:
            greetings = []
            for _ in range(3):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(20)
                client.connect(str(place / "nbd.socket"))
                greetings.append(client.recv(8))
        expect_equal(greetings, [b"NBDMAGIC", b"", b""], "greetings of three connections, of which one is allowed")
        said = [line for line in server.log().splitlines() if "a connection is turned away" in line]
        expect(len(said) == 1 and "WARN" in said[0] and "--max-connections" in said[0], "one line of two that were turned away", said)


@pytest.mark.parametrize("chunk", ["4KiB", "128KiB"])
def test_memory_holds_whatever_clients_ask(place, seed, chunk):
    """Seven clients with many requests each, short and long, of what is cached and what is not."""
    (place / "disk").write_bytes(random.Random(seed).randbytes(128 * MIB))
    flags = ["--dram", "64MiB", "--cache", str(place / "cache"), "--cache-size", "64MiB", "--chunk-size", chunk]
    with Volume(str(place), str(place / "disk"), *flags) as server:
        fio = ["fio", "--name=m", "--ioengine=nbd", f"--uri={server.uri}", "--size=128m", "--numjobs=7", "--thread", "--iodepth=64",
               f"--randseed={seed}", "--bs_unaligned=1"]
        for how in [["--rw=randread", "--bsrange=512-4k", "--io_size=4m"], ["--rw=randrw", "--bsrange=64k-2m", "--io_size=96m"]]:
            succeed(*fio, *how, cwd=place)
        peak = server.memory()[1]
        expect(peak <= 64 * MIB, "at most --dram to be resident", f"{peak / MIB:.1f} MiB")


@contextlib.contextmanager
def copied_twice(place, seed, *flags):
    """A server whose cache holds 1,024 of 3,072 chunks, after two copies of all, and its figures then."""
    disk = place / "disk"
    disk.write_bytes(random.Random(seed).randbytes(96 * MIB))
    flags = ["--dram", "96MiB", "--cache", str(place / "cache"), "--cache-size", "32MiB", "--chunk-size", "32KiB", *flags]
    with Volume(str(place), str(disk), *flags) as server:
        for _ in range(2):
            succeed("nbdcopy", server.uri, place / "back")
            expect_same(disk, place / "back")
        yield server, server.figures("volume")


def cache(server, mebibytes):
    """NBD's CACHE for these mebibytes of the volume; the figures afterwards."""
    script = f"for at in range({mebibytes.start}, {mebibytes.stop}):\n    h.cache(1 << 20, at << 20)"
    succeed("nbdsh", "-u", server.uri, "-c", script, env={"PATH": "/usr/bin:/bin"})
    return server.figures("volume")


def test_a_scan_stays_out_of_a_full_cache_and_the_cache_command_does_not(place, seed):
    with copied_twice(place, seed) as (server, copied):
        expect(copied["fills_stored"] < 1600 and copied["fills_scan"] > 3000, "two copies of 3,072 chunks to fill a cache of 1,024 once", copied)
        warmed = cache(server, range(40, 56))
        expect_equal(warmed["fills_scan"], copied["fills_scan"], "chunks that bypassed")
        expect(warmed["fills"] - copied["fills"] > 400, "some 512 chunks to be filled by CACHE", warmed)
        succeed("qemu-io", "-f", "raw", server.uri, *(word for at in range(42, 56) for word in ("-c", f"read {at}M 1M")))
        read = server.figures("volume")
        expect_equal(read["read_misses"], warmed["read_misses"], "misses of what CACHE has filled")


def test_second_hit_keeps_what_is_read_once_out_of_a_full_cache(place, seed):
    with copied_twice(place, seed, "--scan-cutoff", "0", "--read-ahead", "0", "--flash-admit", "second-hit") as (server, copied):
        expect(copied["fills_stored"] < 1600 and copied["fills_rule"] > 3000, "two copies of 3,072 chunks to fill a cache of 1,024 once", copied)
        expect_equal(server.figures("volume_admission")["refused_by_rule_objects"], copied["fills_rule"], "chunks that were refused")
        asked = cache(server, range(40, 56))
        # Reclaims do not keep up with so many at once: some find no room.
        asked_for = sum(asked[name] - copied[name] for name in ("fills_stored", "fills_no_room"))
        expect(asked["fills_rule"] == copied["fills_rule"] and asked_for > 400, "the rule to let all 512 chunks of CACHE in", (copied, asked))
        before = server.figures("volume")
        last = cache(server, range(60, 61))
        entered = last["fills_stored"] - before["fills_stored"]
        succeed("qemu-io", "-f", "raw", server.uri, "-c", "write -P 4 60M 1M", "-c", "read -P 4 60M 1M")
        known = server.figures("volume")
        expect(entered > 0 and known["writes_rule"] <= 32 - entered, "the chunks that CACHE brought in last to be let in", (entered, known))
        succeed("qemu-io", "-f", "raw", server.uri, "-c", "write -P 3 1M 1M", "-c", "read -P 3 1M 1M")
        wrote = server.figures("volume")
        expect(wrote["writes_rule"] - known["writes_rule"] > 20, "most of 32 chunks to be refused", (known, wrote))


@pytest.mark.parametrize("mode", ["write-back", "write-through"])
def test_a_write_budget_bounds_what_a_cache_device_is_sent(place, seed, mode):
    """A start has nothing saved: for the while of this test next to nothing enters, and all is served."""
    disk, image = place / "disk", place / "image"
    with open(disk, "wb") as file:
        file.truncate(DISK_BYTES)
    image.write_bytes(random.Random(seed).randbytes(DISK_BYTES))
    flags = ["--dram", "64MiB", "--cache", str(place / "cache"), "--cache-size", "64MiB", "--mode", mode, "--scan-cutoff", "0",
             "--flash-write-budget", "100MB/day"]
    with Volume(str(place), str(disk), *flags) as server:
        succeed("nbdcopy", "--flush", image, server.uri)
        for _ in range(2):
            succeed("nbdcopy", server.uri, place / "back")
            expect_same(image, place / "back")
        volume, device = server.figures("volume"), server.figures("device")
        expect(volume["writes_budget"] > 0 and volume["writes_stored"] == 0 and volume["dirty_chunks"] == 0, "nothing to be written to the cache",
               volume)
        expect(volume["fills_budget"] > 0 and volume["fills_stored"] == 0, "nothing that is read to enter", volume)
        sent = device["written_bytes"] + device["log_bytes"]
        expect(sent < 4 * MIB, "marks, voids and checkpoints alone to be sent", device)
    expect_same(disk, image)


def test_what_is_saved_of_a_write_budget_is_there_after_a_stop(place):
    disk = place / "disk"
    with open(disk, "wb") as file:
        file.truncate(DISK_BYTES)
    flags = ["--dram", "64MiB", "--cache", str(place / "cache"), "--cache-size", "64MiB", "--flash-write-budget", "4TB/day"]
    saved = []
    for _ in range(2):
        with Volume(str(place), str(disk), *flags) as server:

            def left():
                return server.figures("volume_admission")["budget_left_bytes"]

            saved.append(left())
            # 46 MB flow in in a second.
            server.wait_for(lambda: left() > 200e6, "200 MB to be saved", 60)
            server.terminate()
    expect(saved[0] < 150e6 and saved[1] > 190e6, "nothing at first, and what was saved after the stop", saved)


def test_several_volumes_have_a_cache_each(place, seed):
    images = [random.Random(seed + number).randbytes(8 * MIB) for number in range(2)]
    for name, image in zip(["disk", "other"], images):
        (place / name).write_bytes(image)
    caches = ["--cache", f"{place / 'x'},{place / 'y'}", "--cache-size", "32MiB"]
    for _ in range(2):
        with volumes(place, *caches, others=["other"]) as uri:
            listed = succeed("nbdinfo", "--list", uri)
            expect(all(f'export="{name}"' in listed for name in ["disk", "other"]), "both volumes to be listed", listed)
            for name in ["disk", "other"]:
                succeed("nbdcopy", uri.replace("/disk?", f"/{name}?"), place / "back")
                expect_same(place / name, place / "back")
            succeed("qemu-io", "-f", "raw", uri.replace("/disk?", "/other?"), "-c", "write -P 9 4096 9000", "-c", "flush")
        expect_equal((place / "disk").read_bytes(), images[0], "the volume that nobody wrote")


def test_flags_that_make_no_sense_are_refused_with_advice(place):
    for name in ["disk", "other"]:
        (place / name).write_bytes(bytes(MIB))
    for backing, cache, advice in [("disk", "disk", "name another file"), ("disk,disk", "x,y", "two are named"), ("disk", "absent", "--cache-size"),
                                   ("disk,other", "x,x", "a cache of its own"), ("disk,other", "x,other", "name another file")]:
        paths = (",".join(str(place / name) for name in names.split(",")) for names in (backing, cache))
        flags = [word for pair in zip(("--backing", "--cache"), paths) for word in pair]
        size = [] if cache == "absent" else ["--cache-size", "32MiB"]
        done = subprocess.run([BINARY, "serve", "--nbd", f"unix:{place}/socket", *flags, *size], capture_output=True, text=True, timeout=20,
                              check=False)
        expect(done.returncode == 2 and advice in done.stderr, f"--backing {backing} --cache {cache} to be refused with advice", done.stderr)
    expect_equal(sorted(path.name for path in place.iterdir()), ["disk", "other"], "files")


def test_a_read_only_volume_is_read_alone(place, seed):
    image = place / "disk"
    image.write_bytes(random.Random(seed).randbytes(DISK_BYTES))
    flags = ["--mode", "read-only", "--cache", place / "cache", "--cache-size", "64MiB"]
    with volumes(place, *flags) as uri:
        for _ in range(2):
            succeed("nbdcopy", uri, place / "back")
            expect_same(image, place / "back")
        for act in ('pwrite(b"x", 0)', "trim(512, 0)", "zero(512, 0)"):
            script = f"h.set_strict_mode(0)\ntry:\n    h.{act}\nexcept nbd.Error as error:\n    print(error.errno)"
            said = succeed("nbdsh", "-u", uri, "-c", script, env={"PATH": "/usr/bin:/bin"})
            expect_equal(said, "EPERM\n", f"answer to {act}")


@contextlib.contextmanager
def nbdkit(socket, disk):
    """A slow server of a file; a function that kills it, and starts it again."""
    command = [installed("nbdkit", "nbdkit"), "--foreground", "--unix", socket, "--filter=delay", "file", disk, "wdelay=10ms"]
    running = []

    def start():
        socket.unlink(missing_ok=True)
        running.append(subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE))

    def kill():
        running[-1].kill()
        running[-1].wait()

    start()
    try:
        deadline = time.monotonic() + 20
        while not socket.exists():
            expect(running[-1].poll() is None and time.monotonic() < deadline, "nbdkit to listen", running[-1].returncode)
            time.sleep(0.01)
        yield kill, start
    finally:
        kill()


@pytest.mark.parametrize("mode", ["write-through", "pass-through"])
def test_a_remote_volume_outlives_its_server(place, seed, mode):
    """nbdkit is killed while a volume on it is written, three times; what was written is there, in the volume and in nbdkit's file."""
    disk, image, back = place / "disk", place / "image", place / "back"
    with open(disk, "wb") as file:
        file.truncate(DISK_BYTES)
    image.write_bytes(random.Random(seed).randbytes(DISK_BYTES))
    cache = [] if mode == "pass-through" else ["--cache", place / "cache", "--cache-size", "64MiB"]
    with nbdkit(place / "remote", disk) as (kill, start):
        remote = f"nbd+unix:///disk?socket={place}/remote"
        with volumes(place, "--mode", mode, *cache, backing=remote) as uri:
            copy = subprocess.Popen([installed("nbdcopy", "libnbd-bin"), "--flush", "--requests=4", "--connections=1", "--request-size=65536",
                                     image, uri], stderr=subprocess.PIPE, text=True)
            kills = 0
            while copy.poll() is None and kills < 3:
                time.sleep(0.15)
                kill()
                kills += 1
                start()
            said = copy.communicate(timeout=60)[1]
            expect_equal((copy.returncode, said), (0, ""), "nbdcopy to write")
            expect_equal(kills, 3, "times that nbdkit was killed while the volume was written")
            succeed("nbdcopy", uri, back)
            expect_same(image, back)
            expect_same(image, disk)
            succeed("qemu-io", "-f", "raw", uri, "-c", "discard 8192 8192", "-c", "write -z 65536 65536", "-c", "flush",
                    "-c", "read -P 0 8192 8192", "-c", "read -P 0 65536 65536")
        log = (place / "volumes.log").read_text()
        expect("is lost, and is made anew" in log and "again" in log, "the log to say that the connection was made anew", log)
    status, said = run(BINARY, "serve", "--nbd", f"unix:{place}/s", "--backing", remote, "--mode", "pass-through", "--admin", "off")
    expect(status == 1 and "remote" in said, "an absent server to be named", f"{status}: {said}")
