"""A volume over NBD against nbdkit's cache filter, what its cache writes and reads, read-ahead, and write-back."""

import contextlib
import os
import random
import shlex
import shutil
import subprocess

from comparison import Comparison, case
from harness import Failure, machine
from harness.servers import Nbdkit, Volume, fresh_directory
from tools import percent, removed, thousands

BLOCK = 1 << 20
# The rest of the cgroup is for the page cache of the backing file and what the kernel holds for sockets.
SMALL_DRAM_SHARE = 0.8
WARM_SHARE = 0.99
# Bytes of a duplicate on flash: docs/formats.md.
REFERENCE_BYTES = 48
TREE = ("crates", "docs", "tests", "harness", "bench")


def run(comparison, *words):
    """A program on the load's core."""
    command = [machine.installed(words[0], {"nbdcopy": "libnbd-bin", "mke2fs": "e2fsprogs"}.get(words[0])), *map(str, words[1:])]
    done = subprocess.run(command, capture_output=True, text=True, **machine.confine(comparison.load_core, None))
    if done.returncode:
        raise Failure(f"status {done.returncode}: {shlex.join(command)}\n{(done.stdout + done.stderr)[-2000:]}")


def make_disk(path, mib):
    """A file of random bytes, on its device and out of the page cache."""
    with open(path, "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(BLOCK))
    forget(path)


def forget(path):
    """Writes a file to its device and drops it from the page cache, so that each side's reads of it count in its own cgroup."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fio(comparison, server, *flags, figure="reads_per_second"):
    """fio on the load's core: reads and writes a second, the server's CPU time for each, the client's idle share."""
    flags = ["--name=load", "--ioengine=nbd", f"--uri={server.uri}", "--gtod_reduce=1", *flags, "--output-format=json"]
    before = machine.cpu_seconds(server.pid)
    report = machine.run_json([machine.installed("fio"), *flags], comparison.load_core)["jobs"][0]
    cpu = machine.cpu_seconds(server.pid) - before
    server.check_alive()
    if report["error"]:
        raise Failure(f"fio against {server.name}: error {report['error']}")
    iops, count = (sum(report[kind][name] for kind in ("read", "write")) for name in ("iops", "total_ios"))
    return {figure: iops, "server_cpu_us": cpu * 1e6 / count, "client_idle": 1 - (report["usr_cpu"] + report["sys_cpu"]) / 100}


def random_reads(comparison, server, arguments):
    return fio(comparison, server, "--rw=randread", "--bs=4k", f"--iodepth={arguments.depth}", f"--size={arguments.size}m", "--norandommap",
               "--randrepeat=0", "--time_based", f"--runtime={arguments.seconds}")


class Sides:
    """Both servers of one volume, each of which starts anew, reads it once and is then measured."""

    def __init__(self, comparison, arguments, disk):
        self.comparison, self.arguments, self.disk = comparison, arguments, disk

    def turn(self, what, side, dram, limit):
        """A function of a turn; its figures have `what` before their names."""
        comparison = self.comparison

        def run_turn(_):
            forget(self.disk)
            directory = fresh_directory(comparison.directory, f"volume-{side}")
            with contextlib.ExitStack() as stack:
                stack.enter_context(removed(directory))
                group = stack.enter_context(comparison.group(limit, side) if limit else contextlib.nullcontext())
                how = {"core": comparison.server_core, "group": group}
                if side == "peer":
                    server = stack.enter_context(Nbdkit(directory, self.disk, **how))
                    found = self.warm_and_measure(server)
                else:
                    server = stack.enter_context(Volume(directory, self.disk, *self.flags(dram), **how))
                    found = self.of_pumice(server)
                    if not limit:
                        found |= self.after_kill9(stack, server, directory, dram, how)
            return {f"{what}: {name}": value for name, value in found.items()}

        return run_turn

    def flags(self, dram):
        size = self.arguments.size
        return ["--mode", "write-through", "--cache", "cache", "--cache-size", f"{size + size // 4}MiB", "--threads", "1",
                *(["--dram", f"{dram}MiB"] if dram else [])]

    def warm_and_measure(self, server, warmed=lambda: None):
        run(self.comparison, "nbdcopy", server.uri, "null:")
        warmed()
        # A cache file that is still in dirty pages would be written while its reads are measured.
        os.sync()
        found = random_reads(self.comparison, server, self.arguments)
        return {**found, "memory": server.memory_record()}

    def of_pumice(self, server):
        before = {}

        def warmed():
            def settled():
                now = server.figures("volume")
                return now["fills"] == sum(now[f"fills_{end}"] for end in ("stored", "duplicate", "late", "no_room", "out"))

            server.wait_for(settled, "all chunks that were read in the cache")
            before.update(server.figures("volume"))

        found = self.warm_and_measure(server, warmed)
        after = server.figures("volume")
        reads, *hits = (after[name] - before[name] for name in ("read_chunks", "read_dram_hits", "read_hits"))
        found |= {"hit_share": sum(hits) / reads, "dram_hit_share": hits[0] / reads}
        if found["hit_share"] < WARM_SHARE:
            self.comparison.note(f"only {found['hit_share']:.1%} of the reads were hits")
        return found

    def after_kill9(self, stack, server, directory, dram, how):
        """What the next start reads of the cache, against what was in use there."""
        chunk = server.figures("chunk")
        if chunk["reclaimed_blocks"]:
            raise Failure(f"the cache reclaimed {chunk['reclaimed_blocks']} blocks: the volume does not fit it")
        server.kill9()
        again = stack.enter_context(Volume(directory, self.disk, *self.flags(dram), **how))
        read = again.figures("device")["read_bytes"]
        kept = again.figures("chunk")["mappings"] / chunk["mappings"]
        return {"start_read_bytes": read, "start_read_share": read / chunk["stored_flash_bytes"], "start_kept_share": kept}


def image(comparison, directory, path, files, names):
    """An ext4 image of files under names that give their order, made by `mke2fs -d`. Its size in MiB."""
    tree = fresh_directory(directory, "tree")
    for file, name in zip(files, names):
        shutil.copyfile(file, os.path.join(tree, name))
    mib = sum(os.path.getsize(file) + 4096 for file in files) // BLOCK
    size = mib + mib // 4 + 16
    run(comparison, "mke2fs", "-q", "-t", "ext4", "-b", "4096", "-d", tree, path, f"{size}m")
    return size


def duplicates(comparison, tree):
    """Two images of the same files in other orders beside each other on one volume: what each wrote to the cache."""
    roots = [tree] if tree else [os.path.join(machine.ROOT, name) for name in TREE]
    walks = (os.walk(root) for root in roots)
    files = sorted(os.path.join(where, name) for walk in walks for where, folders, names in walk for name in names
                   if not {"target", "__pycache__"} & set(where.split(os.sep)) and not os.path.islink(os.path.join(where, name)))
    orders = [[f"{number:06}" for number in range(len(files))] for _ in range(2)]
    random.Random(1).shuffle(orders[1])
    directory = fresh_directory(comparison.directory, "volume-images")
    with removed(directory), comparison.files("images.disk") as (disk,):
        images = [os.path.join(directory, f"image-{order}") for order in range(2)]
        size = [image(comparison, directory, path, files, names) for path, names in zip(images, orders)][0]
        with open(disk, "wb") as file:
            file.truncate(2 * size * BLOCK)
        flags = ["--mode", "write-through", "--cache", "cache", "--cache-size", f"{max(64, 2 * size + size // 2)}MiB", "--chunk-size", "4KiB",
                 "--threads", "1"]
        comparison.note(f"two images of {size} MiB, {len(files)} files, pumice serve {' '.join(flags)}")
        with Volume(directory, disk, *flags, core=comparison.server_core) as server:
            written = [bytes_written(server)]
            for number, path in enumerate(images):
                # nbdcopy has no offset, so nbdkit puts one before the volume.
                offset = ["--filter=offset", "nbd", f"uri={server.uri}", f"offset={number * size * BLOCK}", f"range={size * BLOCK}"]
                run(comparison, "nbdkit", "-U", "-", *offset, "--run", f"nbdcopy --flush {shlex.quote(path)} \"$uri\"")
                written.append(bytes_written(server))
    found = {}
    for name in written[0]:
        first, second = (after[name] - before[name] for before, after in zip(written, written[1:]))
        found |= {f"images: {name}_first": first, f"images: {name}_second": second, f"images: {name}_share": second / first}
    return found


def bytes_written(server):
    """What came to blocks (all of it, also what is still in a block buffer), and what was sent to the device."""
    chunk = server.figures("chunk")
    return {"block_bytes": chunk["stored_flash_bytes"] + REFERENCE_BYTES * chunk["duplicates"], "device_bytes": server.figures("device")["written_bytes"]}


@case(seconds=10, cgroup=True, size=(1024, "MiB of the volume"), depth=(32, "reads at once"), small=(160, "MiB of the memory cgroup"),
      free_dram=(0, "MiB of Pumice's --dram where memory is free; 0 for serve's default"), tree=("", "directory of files for the images"),
      quick={"size": 48, "seconds": 1, "pairs": 1})
def volume_nbd(arguments):
    """Random reads of a cached volume over NBD against nbdkit's cache filter, memory free and in a small memory cgroup.

    A file of random bytes is the volume. Each turn starts a server with an empty cache, reads the volume once (`nbdcopy URI null:`),
    waits until the caches are on their device (`sync`), and then fio reads 4 KiB at random, ioengine nbd, 32 at once on one connection
    over a unix socket. The server has one core for all its threads, fio another. First with memory free; then both sides
    in a memory cgroup of 160 MiB, page cache included. The file is dropped from the page cache before each turn.

    Pumice: `serve --mode write-through --cache FILE --cache-size SIZE --threads 1`, 1.25 times the volume; `--dram` by default where
    memory is free, and 0.8 of the cgroup in it. nbdkit: `--filter=cache file FILE cache-on-read=true`, its cache in a file
    (`TMPDIR`) of the same file system. What of the reads were hits is in the record, and a note says it if it was not all.

    After each turn with memory free Pumice is ended by `kill -9` and starts again: what it reads of its cache until it is ready, against
    the bytes of contents there. And once two ext4 images, by `mke2fs -d` of the same files in another order (those of this repository, or
    `--tree`), are copied beside each other on one volume with chunks of 4 KiB: bytes that the second writes to the cache device against the
    first's. Exit status 1 where a bound is missed; `--quick` holds the last of them alone, since the others want the size or the time."""
    dram = int(arguments.small * SMALL_DRAM_SHARE)
    with contextlib.ExitStack() as stack:
        versions = [machine.version_of(machine.installed(name)) for name in ("nbdkit", "fio")]
        settings = {"size MiB": arguments.size, "depth": arguments.depth, "seconds": arguments.seconds, "cgroup MiB": arguments.small, "fio": versions[1]}
        comparison = Comparison(arguments, settings, peer=versions[0])
        disk, = stack.enter_context(comparison.files("volume.disk"))
        make_disk(disk, arguments.size)
        sides = Sides(comparison, arguments, disk)
        works = {"memory free": (arguments.free_dram, None, "≥ 1.0 ×", "≥ 1.4 ×"), f"in {arguments.small} MiB": (dram, arguments.small, "≥ 3 ×", "≥ 6 ×")}
        for what, (budget, limit, *_) in works.items():
            comparison.settings[f"pumice, {what}"] = "serve " + " ".join(sides.flags(budget))
            print(f"  {what}: pumice {comparison.settings[f'pumice, {what}']}", flush=True)
            comparison.turns(*(sides.turn(what, side, budget, limit) for side in ("pumice", "peer")))
    if comparison.runs_side("pumice"):
        comparison.turns(lambda _: duplicates(comparison, arguments.tree), pairs=1)
    for what, (_, _, must, aim) in works.items():
        title = f"random reads of 4 KiB of a volume over NBD, {what}, against nbdkit"
        comparison.row(title, f"{what}: reads_per_second", must, aim, thousands, cpu=f"{what}: server_cpu_us", client=f"{what}: client_idle")
    comparison.row("the same, memory free: CPU time of the server for a read", "memory free: server_cpu_us", "≤ 0.9 ×", "≤ 0.7 ×", "{:.2f} us".format)
    comparison.row("bytes read at a start after kill -9 / flash in use", "memory free: start_read_share", "≤ 3 %", "≤ 1 %", percent)
    comparison.row("bytes written to the cache, second of two images of the same files / first", "images: block_bytes_share", "≤ 15 %", "", percent)
    comparison.row("the same, as sent to the device, without what is in block buffers", "images: device_bytes_share", "≤ 15 %", "", percent)
    hold(comparison, works, arguments.quick)
    return comparison


def hold(comparison, works, quick):
    """The bounds. With `--quick` only of the images: a start reads some MiB of any cache, and the rest is timed."""
    bounds = [(f"{what}: reads_per_second", float(must.split()[1]), 1) for what, (_, _, must, _) in works.items()]
    for figure, bound, sign in [*bounds, ("memory free: server_cpu_us", 0.9, -1)]:
        found = comparison.ratio(figure)
        if found and not quick:
            comparison.must((found["ratio"] - bound) * sign >= 0, f"{figure}: {found['ratio']:.2f} ×, must be {'≥' if sign > 0 else '≤'} {bound} ×")
    shares = [] if quick else [("memory free: start_read_share", 0.03)]
    for figure, bound in [*shares, ("images: block_bytes_share", 0.15), ("images: device_bytes_share", 0.15)]:
        found = comparison.median("pumice", figure)
        if found is not None:
            comparison.must(found <= bound, f"{figure}: {percent(found)}, must be ≤ {percent(bound)}")


@case(pairs=3, size=(512, "MiB of the volume"), reads=(32768, "random reads"), delay=(4, "ms that the backing device takes for a read"),
      cache=(0, "MiB of the cache; 0 for 1.25 times the volume"), quick={"size": 32, "reads": 2048, "pairs": 1})
def volume_read_ahead(arguments):
    """Reads of a cold volume on a slow NBD server, with read-ahead by default against `--read-ahead 0`.

    The backing device is `nbdkit --filter=delay file FILE rdelay=4ms` on a unix socket, on the load's core. Each turn starts it and Pumice with
    an empty cache, twice: fio reads the volume once from start to end, 64 KiB at a time, one after the other; then, on a new cache, 4 KiB at
    random, each block at most once, in the same order on both sides, 32 at once. Exit status 1 where a bound is missed; `--quick` holds none."""
    settings = {"size MiB": arguments.size, "reads": arguments.reads, "delay ms": arguments.delay}
    settings |= {name: machine.version_of(machine.installed(name)) for name in ("nbdkit", "fio")}
    cache = arguments.cache or arguments.size + arguments.size // 4
    comparison = Comparison(arguments, settings, peer="--read-ahead 0")
    works = {"sequential": ["--rw=read", "--bs=64k", "--iodepth=1", f"--size={arguments.size}m"],
             "random": ["--rw=randread", "--bs=4k", "--iodepth=32", f"--size={arguments.size}m", f"--number_ios={arguments.reads}", "--randseed=1"]}
    flags = ["--mode", "write-through", "--cache", "cache", "--cache-size", f"{cache}MiB", "--threads", "1"]
    comparison.settings["pumice"] = "serve " + " ".join(flags)
    with comparison.files("volume.disk") as (disk,):
        make_disk(disk, arguments.size)

        def turn(*more):
            found = {}
            for what, work in works.items():
                directory = fresh_directory(comparison.directory, "volume-ahead")
                with contextlib.ExitStack() as stack:
                    stack.enter_context(removed(directory))
                    delayed = {"flags": ("--filter=delay", "--threads=64"), "options": (f"rdelay={arguments.delay}ms",)}
                    slow = stack.enter_context(Nbdkit(directory, disk, core=comparison.load_core, **delayed))
                    server = stack.enter_context(Volume(directory, slow.uri, *flags, *more, core=comparison.server_core))
                    seen = fio(comparison, server, *work)
                    volume = server.figures("volume")
                    seen |= {name: volume[name] for name in ("backing_read_bytes", "read_ahead_bytes", "read_ahead_unused_bytes")}
                    found |= {f"{what}: {name}": value for name, value in seen.items()}
            return found

        comparison.turns(lambda _: turn(), lambda _: turn("--read-ahead", "0"))
    for what, title, must, aim in (("sequential", "sequential reads of 64 KiB, one after the other", "≥ 3 ×", "≥ 8 ×"),
                                   ("random", "random reads of 4 KiB, 32 at once", "≥ 0.98 ×", "")):
        figure = f"{what}: reads_per_second"
        comparison.row(f"{title}, cold, with read-ahead against without", figure, must, aim, thousands, cpu=f"{what}: server_cpu_us",
                       client=f"{what}: client_idle")
        hold_ratio(comparison, figure, must)
    return comparison


def hold_ratio(comparison, figure, must):
    """A bound such as `≥ 3 ×` of a ratio."""
    found = comparison.ratio(figure)
    if found and not comparison.arguments.quick:
        comparison.must(found["ratio"] >= float(must.split()[1]), f"{figure}: {found['ratio']:.2f} ×, must be {must}")


def open_bytes(server, directory):
    """Bytes that files of a directory take which a server has open, also those without a name."""
    fds = os.path.join("/proc", str(server.pid), "fd")
    opened = [os.path.join(fds, name) for name in os.listdir(fds)]
    files = {(found.st_dev, found.st_ino): found.st_blocks * 512 for path in opened
             if os.readlink(path).startswith(directory + os.sep) for found in [os.stat(path)] if found.st_blocks}
    return sum(files.values())


def changed_bytes(one, other):
    """Bytes of blocks of 32 KiB in which two files differ."""
    with open(one, "rb") as left, open(other, "rb") as right:
        blocks = zip(iter(lambda: left.read(32 << 10), b""), iter(lambda: right.read(32 << 10), b""))
        return sum(len(a) for a, b in blocks if a != b)


# Bounded, in write-back, it punches a hole for a block that it reclaims, also for one that is dirty (filters/cache/reclaim.c): what it then
# reads there is old. The other two lose nothing.
PEER_CACHES = {"writeback": ["cache=writeback", "cache-max-size={}M"], "writethrough": ["cache=writethrough", "cache-max-size={}M"],
               "unbounded": ["cache=writeback"]}

# Of what fio writes: half of the contents are there twice, and compress to half.
CONTENTS = ["--bs=32k", "--dedupe_percentage=50", "--buffer_compress_percentage=50", "--refill_buffers"]


@case(pairs=3, seconds=60, dram=96, size=(512, "MiB of the volume"), cache=(192, "MiB of the cache"), depth=(16, "requests at once"),
      delay=(4, "ms that the backing device takes for a request"), peer_cache=("writeback", "how nbdkit caches", list(PEER_CACHES)),
      serve=("", "more flags of pumice serve"), quick={"size": 48, "cache": 32, "seconds": 2, "pairs": 1})
def volume_write_back(arguments):
    """Random reads and writes, 30 to 70, of a volume on a slow NBD server, in write-back against nbdkit's cache filter.

    The backing device of both is `nbdkit --filter=noparallel --filter=delay file FILE rdelay=4ms wdelay=4ms serialize=requests` on the
    load's core: one request at a time. fio has filled the file: 32 KiB at a time, half of them duplicates, all compress to half. Each turn
    starts with the same contents and an empty cache: fio reads and writes 32 KiB of such contents at random (zipf:0.9), 16 at once.
    The server has one core for all its threads. What a side has not written to the backing device at the end is not waited for.

    Pumice: `serve --mode write-back --cache FILE --cache-size 192MiB --chunk-size 32KiB --threads 1 --dram 96MiB`. nbdkit: `--filter=cache nbd
    uri=… cache=writeback cache-on-read=true cache-max-size=192M cache-min-block-size=32K`, its cache in a file of the same file
    system, through the page cache. It *drops* dirty blocks when that is full, without a write to the backing device, and reads older contents
    there later: how much of the backing device a turn has changed is in the record, and a note says it where that is nothing. `--peer-cache
    writethrough` is bounded and right, `unbounded` is right in write-back and may keep the whole volume in its cache. Exit status 1 where the bound is
    missed; `--quick` holds none."""
    settings = {"size MiB": arguments.size, "cache MiB": arguments.cache, "seconds": arguments.seconds, "delay ms": arguments.delay}
    versions = [machine.version_of(machine.installed(name)) for name in ("nbdkit", "fio")]
    comparison = Comparison(arguments, {**settings, "fio": versions[1]}, peer=versions[0])
    flags = ["--mode", "write-back", "--cache", "cache", "--cache-size", f"{arguments.cache}MiB", "--chunk-size", "32KiB", "--threads", "1",
             "--dram", f"{arguments.dram}MiB"]
    flags += shlex.split(arguments.serve)
    options = [*(word.format(arguments.cache) for word in PEER_CACHES[arguments.peer_cache]), "cache-on-read=true", "cache-min-block-size=32K"]
    delayed = {"flags": ("--filter=noparallel", "--filter=delay"),
               "options": (f"rdelay={arguments.delay}ms", f"wdelay={arguments.delay}ms", "serialize=requests")}
    comparison.settings |= {"pumice": "serve " + " ".join(flags), "nbdkit": " ".join(["--filter=cache nbd", *options])}
    work = ["--rw=randrw", "--rwmixread=30", f"--iodepth={arguments.depth}", "--random_distribution=zipf:0.9", f"--size={arguments.size}m",
            "--norandommap", "--randrepeat=0", "--time_based", f"--runtime={arguments.seconds}", *CONTENTS]
    with comparison.files("volume.filled", "volume.disk") as (filled, disk):
        run(comparison, "fio", "--name=fill", f"--filename={filled}", f"--size={arguments.size}m", "--rw=write", *CONTENTS)

        def turn(side):
            shutil.copyfile(filled, disk)
            forget(disk)
            directory, far = (fresh_directory(comparison.directory, f"volume-{name}") for name in (side, "far"))
            with contextlib.ExitStack() as stack:
                stack.enter_context(removed(directory))
                stack.enter_context(removed(far))
                slow = stack.enter_context(Nbdkit(far, disk, core=comparison.load_core, **delayed))
                if side == "peer":
                    server = stack.enter_context(Nbdkit(directory, slow.uri, core=comparison.server_core, options=options))
                else:
                    server = stack.enter_context(Volume(directory, slow.uri, *flags, core=comparison.server_core))
                found = fio(comparison, server, *work, figure="requests_per_second")
                found |= {"memory": server.memory_record(), "cache_bytes": open_bytes(server, directory)}
                if side == "pumice":
                    volume = server.figures("volume")
                    names = ("read_chunks", "read_misses", "writes_no_room", "cleaned_bytes", "backing_written_bytes", "backing_read_bytes",
                             "dirty_chunks", "clean_failures")
                    found |= {name: volume[name] for name in names}
            found["backing_changed_bytes"] = changed_bytes(filled, disk)
            if side == "peer" and arguments.peer_cache == "writeback" and not found["backing_changed_bytes"]:
                comparison.note("nbdkit wrote nothing to the backing device: what its cache had no room for is lost")
            return found

        comparison.turns(lambda _: turn("pumice"), lambda _: turn("peer"))
    comparison.row("reads and writes of 32 KiB, 30 to 70, on a slow backing device, in write-back against nbdkit", "requests_per_second",
                   "≥ 3 ×", "≥ 8 ×", thousands, cpu="server_cpu_us", client="client_idle")
    hold_ratio(comparison, "requests_per_second", "≥ 3 ×")
    return comparison


@case(seconds=10, size=(256, "MiB of the volume"), quick={"size": 32, "seconds": 1, "pairs": 1})
def volume_flush(arguments):
    """Writes of 4 KiB with a FLUSH after each, one at a time, in write-back against nbdkit's file plugin.

    The volume is a file of random bytes, the cache another file of the same file system: once *used*, of zeros that were written before, as
    blocks are that the cache has filled once; once *new*, with space that is only reserved, where the cache writes zeros first. fio writes at random, `--fsync=1`. The server has one core for all its threads, fio another. Exit status 1 where a bound is missed;
    `--quick` holds none."""
    versions = [machine.version_of(machine.installed(name)) for name in ("nbdkit", "fio")]
    settings = {"size MiB": arguments.size, "seconds": arguments.seconds, "fio": versions[1]}
    comparison = Comparison(arguments, settings, peer=versions[0])
    cache = arguments.size + arguments.size // 4
    flags = ["--mode", "write-back", "--cache", "cache", "--cache-size", f"{cache}MiB", "--threads", "1"]
    comparison.settings |= {"pumice": "serve " + " ".join(flags), "nbdkit": "file FILE"}
    states = ("used", "new")
    with comparison.files("volume.disk") as (disk,):
        make_disk(disk, arguments.size)

        def measure(server):
            forget(disk)
            return fio(comparison, server, "--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=1", f"--size={arguments.size}m",
                       "--norandommap", "--randrepeat=0", "--time_based", f"--runtime={arguments.seconds}", figure="writes_per_second")

        def of_peer(_):
            directory = fresh_directory(comparison.directory, "volume-peer")
            with removed(directory), Nbdkit(directory, disk, core=comparison.server_core, flags=(), options=()) as server:
                found = measure(server)
            return {f"{state}: {name}": value for state in states for name, value in found.items()}

        def of_pumice(state):
            directory = fresh_directory(comparison.directory, "volume-pumice")
            with removed(directory):
                if state == "used":
                    with open(os.path.join(directory, "cache"), "wb") as file:
                        for _ in range(cache):
                            file.write(bytes(BLOCK))
                        file.flush()
                        os.fsync(file.fileno())
                # What the volume lacks of the turn before went with its cache.
                with Volume(directory, disk, *flags, "--reformat", core=comparison.server_core) as server:
                    found, volume = measure(server), server.figures("volume")
                    found |= {name: volume[name] for name in ("write_chunks", "backing_flushes", "cleaned_chunks")}
                    found["cache_written_bytes"] = server.figures("device")["written_bytes"]
            return {f"{state}: {name}": value for name, value in found.items()}

        comparison.turns(lambda _: {name: value for state in states for name, value in of_pumice(state).items()}, of_peer)
    for state in states:
        comparison.row(f"writes of 4 KiB, each flushed, in write-back against nbdkit file, cache file {state}", f"{state}: writes_per_second",
                       "≥ 0.8 ×", "≥ 1.2 ×", thousands, cpu=f"{state}: server_cpu_us", client=f"{state}: client_idle")
        hold_ratio(comparison, f"{state}: writes_per_second", "≥ 0.8 ×")
    return comparison


@case(pairs=3, size=(64, "MiB that are overwritten"), times=(4, "how often as many bytes are written"),
      quick={"size": 8, "pairs": 1})
def volume_overwrites(arguments):
    """What of a client's overwrites comes to the backing device in write-back.

    fio writes 4 KiB at random (zipf:0.9), of contents that do not repeat, in the first 64 MiB of a volume, 256 MiB in all, faster than the cleaner's
    age of 30 s, and ends. Once the cleaner has cleaned all: bytes written to the backing device / bytes of the client. If each block were written once
    it would be 0.18. The same for the cache device while fio writes: its block buffers absorb rewrites.
    Exit status 1 where the bound is missed."""
    settings = {"size MiB": arguments.size, "times": arguments.times, "fio": machine.version_of(machine.installed("fio"))}
    comparison = Comparison(arguments, settings)
    written = arguments.size * arguments.times
    # With half of the limit dirty the cleaner would not wait.
    flags = ["--mode", "write-back", "--cache", "cache", "--cache-size", f"{8 * arguments.size}MiB", "--chunk-size", "4KiB", "--threads", "1"]
    comparison.settings["pumice"] = "serve " + " ".join(flags)

    def turn(_):
        directory = fresh_directory(comparison.directory, "volume-overwrites")
        with removed(directory), comparison.files("volume.disk") as (disk,):
            with open(disk, "wb") as file:
                file.truncate(8 * arguments.size * BLOCK)
            with Volume(directory, disk, *flags, core=comparison.server_core) as server:
                found = fio(comparison, server, "--rw=randwrite", "--bs=4k", "--iodepth=16", f"--size={arguments.size}m", "--norandommap",
                            "--randrepeat=0", "--refill_buffers", "--random_distribution=zipf:0.9", f"--io_size={written}m", figure="writes_per_second")
                during, sent = server.figures("volume"), server.figures("device")["written_bytes"]
                absorbed = server.figures("chunk")["absorbed_contents"]
                server.wait_for(lambda: server.figures("volume")["dirty_chunks"] == 0, "all to be clean")
                volume = server.figures("volume")
        if during["cleaned_chunks"]:
            comparison.note(f"{during['cleaned_chunks']} chunks were cleaned while the client wrote")
        client = volume["write_chunks"] * 4096
        return found | {"client_bytes": client, "backing_written_bytes": volume["backing_written_bytes"],
                        "cleaned_bytes": volume["cleaned_bytes"], "share": volume["backing_written_bytes"] / client,
                        "sent_bytes": sent, "sent_share": sent / client, "absorbed_share": absorbed / volume["write_chunks"]}

    comparison.turns(turn)
    title = f"bytes to the backing device / bytes of a client that overwrites {arguments.size} MiB in write-back"
    comparison.row(title, "share", "≤ 0.4", "≤ 0.25", "{:.3f}".format)
    comparison.row("of its chunks, those whose content took the room of an older one in a block buffer", "absorbed_share", "", "", percent)
    comparison.row("bytes sent to the cache device while it writes / bytes of the client", "sent_share", "", "", "{:.2f}".format)
    share = comparison.median("pumice", "share")
    comparison.must(share <= 0.4, f"share: {share:.3f}, must be ≤ 0.4")
    return comparison
