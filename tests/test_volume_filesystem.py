"""A file system on a volume: ext4 on a loop device over the file that nbdfuse makes of the volume, while the server is killed, started
again and stopped. Mounting needs root, /dev/fuse and loop devices; where one is missing the test is skipped and says so."""

import contextlib
import errno
import os
import pathlib
import random
import re
import subprocess
import threading
import time

import pytest

from harness import Failure, expect
from harness.machine import field, installed, run, succeed
from harness.servers import Volume

MIB = 1 << 20
DISK_BYTES = 128 * MIB
# Of linux/capability.h.
CAP_SYS_ADMIN = 21


def missing():
    """What this machine lacks to mount a file system on a volume, or None."""
    if not int(field("/proc/self/status", "CapEff", "0"), 16) >> CAP_SYS_ADMIN & 1:
        return "mounting needs root (CAP_SYS_ADMIN)"
    for path in ("/dev/fuse", "/dev/loop-control"):
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError as error:
            return f"{path}: {error.strerror}"
    status, said = run("losetup", "-f")
    return None if status == 0 and os.path.exists(said.strip()) else f"no loop device: {said.strip()}"


def is_mounted(point):
    """Asks the kernel's list: what nbdfuse has left cannot be asked itself."""
    return any(line.split()[1] == str(point) for line in pathlib.Path("/proc/mounts").read_text().splitlines())


def unmount(point):
    """Kernel threads may hold it for a moment."""
    deadline = time.monotonic() + 10
    while (done := run("umount", point))[0] != 0:
        if time.monotonic() > deadline:
            run("umount", "-l", point)
            raise Failure(f"expected {point} to be unmounted; umount said {done[1]}")
        time.sleep(0.02)


@contextlib.contextmanager
def block_device(place, uri):
    """The loop device over the file that nbdfuse makes of a volume."""
    point = place / "fuse"
    point.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack, open(place / "nbdfuse.log", "ab") as log:
        fuse = subprocess.Popen([installed("nbdfuse"), str(point), uri], stdout=log, stderr=log)
        # Last of all: its end makes every request that still waits in the kernel an error.
        stack.callback(fuse.wait)
        stack.callback(fuse.kill)
        stack.callback(lambda: is_mounted(point) and unmount(point))
        deadline = time.monotonic() + 20
        while not (point / "nbd").exists():
            expect(fuse.poll() is None and time.monotonic() < deadline, "nbdfuse to mount", (place / "nbdfuse.log").read_text())
            time.sleep(0.01)
        device = succeed("losetup", "-f", "--show", point / "nbd").strip()
        stack.callback(run, "losetup", "-d", device)
        yield device


@contextlib.contextmanager
def mounted(device, point):
    point.mkdir(exist_ok=True)
    succeed("mount", "-t", "ext4", device, point)
    try:
        yield point
    finally:
        unmount(point)


def some_tree(draw, files):
    """Contents by name: some compress, some are there twice, some are empty."""
    tree = {}
    for number in range(files):
        length = draw.choice((0, draw.randrange(5000), draw.randrange(300_000)))
        content = draw.randbytes(length // 2).hex().encode() if draw.random() < 0.4 else draw.randbytes(length)
        if tree and draw.random() < 0.2:
            content = draw.choice(list(tree.values()))
        tree[f"{number % 7}/{number}"] = content
    return tree


def write_tree(tree, root):
    for name, content in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def expect_tree(root, tree, where):
    for name, content in tree.items():
        seen = (root / name).read_bytes() if (root / name).exists() else None
        expect(seen == content, f"{name} {where} to have its {len(content)} bytes", "none" if seen is None else f"{len(seen)} other bytes")


def expect_in_image(image, place, trees, where):
    """Checks a copy of the image, as a machine would that has no server, and the files in it."""
    copy = place / "copy"
    succeed("cp", "--sparse=always", image, copy)
    succeed("e2fsck", "-fy", copy, statuses=(0, 1))
    for name, tree in trees.items():
        out = place / "out"
        out.mkdir()
        succeed("debugfs", "-R", f"rdump /{name} {out}", copy)
        expect_tree(out / name, tree, where)
        succeed("rm", "-r", out)


def expect_same_over_nbd(uri, image, place):
    succeed("nbdcopy", uri, place / "back")
    succeed("cmp", place / "back", image)


def wait_until_clean(server):
    server.wait_for(lambda: server.figures("volume")["dirty_chunks"] == 0, "the backing file to have everything")


class Copying(threading.Thread):
    """Copies a tree again and again until the disk fails, every other file with fsync; knows which have returned from it."""

    def __init__(self, tree, root):
        super().__init__(daemon=True)
        self.tree, self.root, self.synced, self.ended = tree, root, {}, None
        self.start()

    def run(self):
        try:
            for turn in range(1000):
                for number, (name, content) in enumerate(self.tree.items()):
                    name = f"{turn}/{name}"
                    (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                    with open(self.root / name, "wb") as file:
                        file.write(content)
                        if number % 2 == 0:
                            file.flush()
                            os.fsync(file.fileno())
                            self.synced[name] = content
        except OSError as error:
            self.ended = error

    def wait_for(self, count):
        deadline = time.monotonic() + 30
        while len(self.synced) < count:
            expect(self.is_alive() and time.monotonic() < deadline, f"{count} files to be copied", f"{len(self.synced)}, {self.ended}")
            time.sleep(0.001)


def pages_of(device, name, page_bytes):
    """Where on an ext4 device the data of a file is, as offsets: only pages that are all of that file. mkfs gives a small device blocks of
    1 KiB, and the file system of the backing file can make holes of its own blocks only."""
    block_bytes = int(re.search(r"Block size: +(\d+)", succeed("debugfs", "-R", "show_super_stats -h", device))[1])
    blocks = {int(block) for block in succeed("debugfs", "-R", f"blocks {name}", device).split("\n", 1)[0].split()}
    per_page = page_bytes // block_bytes
    pages = {block // per_page for block in blocks}
    return [page * page_bytes for page in sorted(pages) if blocks.issuperset(range(page * per_page, (page + 1) * per_page))]


def is_zero(image, pages, page_bytes):
    with open(image, "rb") as file:
        return not any(any(os.pread(file.fileno(), page_bytes, offset)) for offset in pages)


def is_hole(image, offset, length):
    with open(image, "rb") as file:
        try:
            return os.lseek(file.fileno(), offset, os.SEEK_DATA) >= offset + length
        except OSError as error:
            # No data from there to the end.
            return error.errno == errno.ENXIO


@pytest.mark.parametrize("mode", ["write-through", "write-back"])
def test_a_file_system_survives_kill9_and_the_backing_file_alone_is_right(directory, seed, size, mode):
    """In write-back it is right once all is clean. `--with kills=` is how often the server is killed while another tree is copied."""
    if (why := missing()) is not None:
        pytest.skip(f"no file system was mounted on a volume: {why}")
    place, draw = pathlib.Path(directory), random.Random(seed)
    disk, point = place / "disk", place / "mounted"
    first, second = some_tree(draw, 150), some_tree(draw, 60)
    second["0/0"] = draw.randbytes(256 << 10)
    write_tree(first, place / "source")
    with open(disk, "wb") as file:
        file.truncate(DISK_BYTES)
    flags = ["--cache", place / "cache", "--cache-size", "64MiB", "--dram", "96MiB", "--threads", "2", "--mode", mode]
    is_through = mode == "write-through"
    if not is_through:
        flags += ["--dirty-age", "1"]

    with Volume(directory, disk, *flags) as server:
        with block_device(place, server.uri) as device:
            succeed("mkfs.ext4", "-q", device)
            with mounted(device, point):
                succeed("cp", "-a", place / "source", point / "first")
                succeed("sync", "-f", point)
                if is_through:
                    expect_in_image(disk, place, {"first": first}, "in the backing file while it is served")
        server.terminate()
    expect_in_image(disk, place, {"first": first}, "in the backing file after a stop")

    synced = {}
    for _ in range(size("kills", 3, 30)):
        with Volume(directory, disk, *flags) as server, block_device(place, server.uri) as device:
            succeed("e2fsck", "-fy", device, statuses=(0, 1))
            with mounted(device, point):
                expect_tree(point / "first", first, "after a start")
                expect_tree(point / "second", synced, "after a start")
                succeed("rm", "-rf", point / "second")
                copying = Copying(second, point / "second")
                copying.wait_for(draw.randrange(5, 60))
                server.kill9()
                copying.join(30)
                expect(copying.ended is not None, "the copying to end with an error once the server is gone", "no error")
        synced = copying.synced
        print(f"killed when {len(synced)} files had been copied with fsync; the next: {copying.ended}")
        if is_through:
            expect_in_image(disk, place, {"first": first, "second": synced}, "in the backing file after kill -9")

    if not is_through:
        with Volume(directory, disk, *flags) as server:
            server.terminate()
        expect_in_image(disk, place, {"first": first, "second": synced}, "in the backing file after kill -9 and a drain")
    with Volume(directory, disk, *flags) as server:
        expect_same_over_nbd(server.uri, disk, place)
        figures = server.figures("volume")
        expect(figures["read_hits"] > 0, "the cache that the killed server left to answer reads", figures)
        with block_device(place, server.uri) as device:
            succeed("e2fsck", "-fy", device, statuses=(0, 1))
            page_bytes = os.statvfs(disk).f_bsize
            freed = pages_of(device, "/second/0/0/0", page_bytes)
            expect(len(freed) * page_bytes > len(second["0/0"]) // 2, "pages of the backing file that have nothing but a file of 256 KiB", freed)
            with mounted(device, point):
                expect_tree(point / "first", first, "after kill -9 and a start")
                expect_tree(point / "second", synced, "after kill -9 and a start")
                wait_until_clean(server)
                expect(not any(is_zero(disk, [page], page_bytes) for page in freed), "a file's bytes in the backing file", "zeros")
                before = disk.stat().st_blocks
                succeed("rm", "-r", point / "second")
                succeed("sync", "-f", point)
                said = succeed("fstrim", "-v", point)
                after = disk.stat().st_blocks
        print(f"{said.strip()}; the backing file had {before >> 11} MiB, now {after >> 11} MiB; {figures['read_hits']} of "
              f"{figures['read_chunks']} chunks were read from the cache device after the last kill")
        expect(all(is_hole(disk, page, page_bytes) for page in freed), "fstrim to punch holes where a removed file was", said)
        expect(after < before, "fstrim to make the backing file smaller on its file system", f"{before} and {after} sectors")
        wait_until_clean(server)
        expect_same_over_nbd(server.uri, disk, place)
        expect(is_zero(place / "back", freed, page_bytes), "what was trimmed to read as zeros", "other bytes")
        server.terminate()
    expect_in_image(disk, place, {"first": first}, "in the backing file after a clean stop")

    with Volume(directory, disk, *flags) as server:
        expect_same_over_nbd(server.uri, disk, place)
        expect(is_zero(place / "back", freed, page_bytes), "what was trimmed to read as zeros after a start", "other bytes")
        server.terminate()
