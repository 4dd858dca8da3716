"""Volumes over NBD: against nbdkit's cache filter and its file plugin, read-ahead, write-back, load splitting."""

import contextlib
import os
import random
import shlex
import shutil

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
    machine.succeed(*words, core=comparison.load_core, timeout=None)


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


def at_random(arguments, kind, block="4k"):
    """fio at random places of a volume, for as long as a turn is."""
    return [f"--rw={kind}", f"--bs={block}", f"--size={arguments.size}m", "--norandommap", "--randrepeat=0", "--time_based",
            f"--runtime={arguments.seconds}"]


def begin(arguments, names, peer=None):
    """The comparison of a case with these options in its settings; a peer of nbdkit's is named by its version."""
    versions = {name: machine.version_of(machine.installed(name)) for name in ("nbdkit", "fio")}
    settings = {name: getattr(arguments, name) for name in names} | {"fio": versions["fio"]}
    return Comparison(arguments, settings, peer=versions["nbdkit"] if peer == "nbdkit" else peer)


def flags_of(comparison, mode, cache_mib, *more):
    """Flags of a volume with one thread and a cache of so many MiB."""
    flags = ["--mode", mode, "--cache", "cache", "--cache-size", f"{cache_mib}MiB", "--threads", "1", *more]
    comparison.settings["pumice"] = "serve " + " ".join(flags)
    return flags


@contextlib.contextmanager
def served(comparison, kind, disk, *flags, slow=None, group=None, **how):
    """A server of this kind, in a directory of its own; `slow` are filters and options of an nbdkit on the load's core that its disk stands on."""
    with contextlib.ExitStack() as stack:
        if slow:
            directory = fresh_directory(comparison.directory, "volume-far")
            stack.enter_context(removed(directory))
            disk = stack.enter_context(Nbdkit(directory, disk, core=comparison.load_core, flags=slow[0], options=slow[1])).uri
        directory = fresh_directory(comparison.directory, f"volume-{kind.__name__.lower()}")
        stack.enter_context(removed(directory))
        yield stack.enter_context(kind(directory, disk, *flags, core=comparison.server_core, group=group, **how))


def named(what, found):
    return {f"{what}: {name}": value for name, value in found.items()}


# --- against nbdkit's cache -------------------------------------------------------------------------------------------


def warm_and_measure(comparison, arguments, server, warmed=lambda: None):
    run(comparison, "nbdcopy", server.uri, "null:")
    warmed()
    # A cache file that is still in dirty pages would be written while its reads are measured.
    os.sync()
    found = fio(comparison, server, f"--iodepth={arguments.depth}", *at_random(arguments, "randread"))
    return {**found, "memory": server.memory_record()}


def warm_pumice(comparison, arguments, server):
    """The same, and what of the reads were hits."""
    before = {}

    def warmed():
        def settled():
            now = server.figures("volume")
            return now["fills"] == sum(now[f"fills_{end}"] for end in ("stored", "duplicate", "late", "no_room", "out"))

        server.wait_for(settled, "all chunks that were read in the cache")
        before.update(server.figures("volume"))

    found = warm_and_measure(comparison, arguments, server, warmed)
    after = server.figures("volume")
    reads, *hits = (after[name] - before[name] for name in ("read_chunks", "read_dram_hits", "read_hits"))
    if sum(hits) / reads < WARM_SHARE:
        comparison.note(f"only {sum(hits) / reads:.1%} of the reads were hits")
    return found | {"hit_share": sum(hits) / reads, "dram_hit_share": hits[0] / reads}


def after_kill9(server, again):
    """What the next start reads of the cache, against what was in use there."""
    chunk = server.figures("chunk")
    if chunk["reclaimed_blocks"]:
        raise Failure(f"the cache reclaimed {chunk['reclaimed_blocks']} blocks: the volume does not fit it")
    server.kill9()
    with again() as next_server:
        read = next_server.figures("device")["read_bytes"]
        return {"start_read_bytes": read, "start_read_share": read / chunk["stored_flash_bytes"]}


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
    first's."""
    comparison = begin(arguments, ["size", "depth", "seconds", "small"], "nbdkit")
    works = {"memory free": (arguments.free_dram, None, "≥ 1.0 ×", "≥ 1.4 ×"),
             f"in {arguments.small} MiB": (int(arguments.small * SMALL_DRAM_SHARE), arguments.small, "≥ 3 ×", "≥ 6 ×")}
    with comparison.files("volume.disk") as (disk,):
        make_disk(disk, arguments.size)

        def turn(what, side, dram, limit):
            forget(disk)
            with comparison.group(limit, side) if limit else contextlib.nullcontext() as group:
                if side == "peer":
                    with served(comparison, Nbdkit, disk, group=group) as server:
                        return named(what, warm_and_measure(comparison, arguments, server))
                flags = flags_of(comparison, "write-through", arguments.size + arguments.size // 4, *(["--dram", f"{dram}MiB"] if dram else []))
                with served(comparison, Volume, disk, *flags, group=group) as server:
                    found = warm_pumice(comparison, arguments, server)
                    if not limit:
                        found |= after_kill9(server, lambda: Volume(server.directory, disk, *flags, core=comparison.server_core))
                    return named(what, found)

        for what, (dram, limit, *_) in works.items():
            comparison.turns(*(lambda _, side=side: turn(what, side, dram, limit) for side in ("pumice", "peer")))
    if comparison.runs_side("pumice"):
        comparison.turns(lambda _: duplicates(comparison, arguments.tree), pairs=1)
    for what, (_, _, must, aim) in works.items():
        title = f"random reads of 4 KiB of a volume over NBD, {what}, against nbdkit"
        comparison.row(title, f"{what}: reads_per_second", must, aim, thousands, cpu=f"{what}: server_cpu_us", client=f"{what}: client_idle")
    comparison.row("the same, memory free: CPU time of the server for a read", "memory free: server_cpu_us", "≤ 0.9 ×", "≤ 0.7 ×", "{:.2f} us".format)
    comparison.row("bytes read at a start after kill -9 / flash in use", "memory free: start_read_share", "≤ 3 %", "≤ 1 %", percent)
    comparison.row("bytes written to the cache, second of two images of the same files / first", "images: block_bytes_share", "≤ 15 %", "", percent)
    comparison.row("the same, as sent to the device, without what is in block buffers", "images: device_bytes_share", "≤ 15 %", "", percent)
    return comparison


# --- read-ahead, write-back -------------------------------------------------------------------------------------------


@case(pairs=3, size=(512, "MiB of the volume"), reads=(32768, "random reads"), delay=(4, "ms that the backing device takes for a read"),
      cache=(0, "MiB of the cache; 0 for 1.25 times the volume"), quick={"size": 32, "reads": 2048, "pairs": 1})
def volume_read_ahead(arguments):
    """Reads of a cold volume on a slow NBD server, with read-ahead by default against `--read-ahead 0`.

    The backing device is `nbdkit --filter=delay file FILE rdelay=4ms` on a unix socket, on the load's core. Each turn starts it and Pumice with
    an empty cache, twice: fio reads the volume once from start to end, 64 KiB at a time, one after the other; then, on a new cache, 4 KiB at
    random, each block at most once, in the same order on both sides, 32 at once."""
    comparison = begin(arguments, ["size", "reads", "delay"], "--read-ahead 0")
    works = {"sequential": ["--rw=read", "--bs=64k", "--iodepth=1", f"--size={arguments.size}m"],
             "random": ["--rw=randread", "--bs=4k", "--iodepth=32", f"--size={arguments.size}m", f"--number_ios={arguments.reads}", "--randseed=1"]}
    flags = flags_of(comparison, "write-through", arguments.cache or arguments.size + arguments.size // 4)
    slow = (("--filter=delay", "--threads=64"), (f"rdelay={arguments.delay}ms",))
    with comparison.files("volume.disk") as (disk,):
        make_disk(disk, arguments.size)

        def turn(*more):
            found = {}
            for what, work in works.items():
                with served(comparison, Volume, disk, *flags, *more, slow=slow) as server:
                    seen, volume = fio(comparison, server, *work), server.figures("volume")
                    found |= named(what, seen | {name: volume[name] for name in ("read_ahead_bytes", "read_ahead_unused_bytes")})
            return found

        comparison.turns(lambda _: turn(), lambda _: turn("--read-ahead", "0"))
    for what, title, must, aim in (("sequential", "sequential reads of 64 KiB, one after the other", "≥ 3 ×", "≥ 8 ×"),
                                   ("random", "random reads of 4 KiB, 32 at once", "≥ 0.98 ×", "")):
        comparison.row(f"{title}, cold, with read-ahead against without", f"{what}: reads_per_second", must, aim, thousands,
                       cpu=f"{what}: server_cpu_us", client=f"{what}: client_idle")
    return comparison


# Of what fio writes: half of the contents are there twice, and compress to half.
CONTENTS = ["--dedupe_percentage=50", "--buffer_compress_percentage=50", "--refill_buffers"]


@case(pairs=3, seconds=60, dram=96, size=(512, "MiB of the volume"), cache=(192, "MiB of the cache"), depth=(16, "requests at once"),
      delay=(4, "ms that the backing device takes for a request"), peer_cache=("writeback", "how nbdkit caches", ["writeback", "writethrough"]),
      serve=("", "more flags of pumice serve"), quick={"size": 48, "cache": 32, "seconds": 2, "pairs": 1})
def volume_write_back(arguments):
    """Random reads and writes, 30 to 70, of a volume on a slow NBD server, in write-back against nbdkit's cache filter.

    The backing device of both is `nbdkit --filter=noparallel --filter=delay file FILE rdelay=4ms wdelay=4ms serialize=requests` on the
    load's core: one request at a time. fio has filled the file: 32 KiB at a time, half of them duplicates, all compress to half. Each turn
    starts with the same contents and an empty cache: fio reads and writes 32 KiB of such contents at random (zipf:0.9), 16 at once.
    The server has one core for all its threads. What a side has not written to the backing device at the end is not waited for.

    Pumice: `serve --mode write-back --cache FILE --cache-size 192MiB --chunk-size 32KiB --threads 1 --dram 96MiB`. nbdkit: `--filter=cache nbd
    uri=… cache=writeback cache-on-read=true cache-max-size=192M cache-min-block-size=32K`, its cache in a file of the same file system, through
    the page cache. It *drops* dirty blocks when that is full, without a write to the backing device, and reads older contents there later;
    `--peer-cache writethrough` is right."""
    comparison = begin(arguments, ["size", "cache", "seconds", "delay", "peer_cache"], "nbdkit")
    flags = flags_of(comparison, "write-back", arguments.cache, "--chunk-size", "32KiB", "--dram", f"{arguments.dram}MiB", *shlex.split(arguments.serve))
    options = [f"cache={arguments.peer_cache}", f"cache-max-size={arguments.cache}M", "cache-on-read=true", "cache-min-block-size=32K"]
    slow = (("--filter=noparallel", "--filter=delay"), (f"rdelay={arguments.delay}ms", f"wdelay={arguments.delay}ms", "serialize=requests"))
    work = ["--rwmixread=30", f"--iodepth={arguments.depth}", "--random_distribution=zipf:0.9", *CONTENTS, *at_random(arguments, "randrw", "32k")]
    with comparison.files("volume.filled", "volume.disk") as (filled, disk):
        run(comparison, "fio", "--name=fill", f"--filename={filled}", f"--size={arguments.size}m", "--rw=write", "--bs=32k", *CONTENTS)

        def turn(start):
            shutil.copyfile(filled, disk)
            forget(disk)
            with start() as server:
                found = fio(comparison, server, *work, figure="requests_per_second") | {"memory": server.memory_record()}
                return found | (server.figures("volume") if isinstance(server, Volume) else {})

        comparison.turns(lambda _: turn(lambda: served(comparison, Volume, disk, *flags, slow=slow)),
                         lambda _: turn(lambda: served(comparison, Nbdkit, disk, slow=slow, options=options)),
                         show=lambda run: thousands(run["requests_per_second"]))
    comparison.row("reads and writes of 32 KiB, 30 to 70, on a slow backing device, in write-back against nbdkit", "requests_per_second",
                   "≥ 3 ×", "≥ 8 ×", thousands, cpu="server_cpu_us", client="client_idle")
    return comparison


@case(seconds=10, size=(256, "MiB of the volume"), quick={"size": 32, "seconds": 1, "pairs": 1})
def volume_flush(arguments):
    """Writes of 4 KiB with a FLUSH after each, one at a time, in write-back against nbdkit's file plugin.

    The volume is a file of random bytes, the cache another file of the same file system: once *used*, of zeros that were written before, as
    blocks are that the cache has filled once; once *new*, with space that is only reserved, where the cache writes zeros first. fio writes at
    random, `--fsync=1`. The server has one core for all its threads, fio another."""
    comparison = begin(arguments, ["size", "seconds"], "nbdkit")
    cache = arguments.size + arguments.size // 4
    # What the volume lacks of the turn before went with its cache.
    flags = flags_of(comparison, "write-back", cache, "--reformat")
    states = ("used", "new")
    with comparison.files("volume.disk", "volume.cache") as (disk, used):
        make_disk(disk, arguments.size)

        def measure(server):
            forget(disk)
            return fio(comparison, server, "--iodepth=1", "--fsync=1", *at_random(arguments, "randwrite"), figure="writes_per_second")

        def of_peer(_):
            with served(comparison, Nbdkit, disk, flags=(), options=()) as server:
                found = measure(server)
            return {name: value for state in states for name, value in named(state, found).items()}

        def of_pumice(_):
            found = {}
            for state in states:
                own = flags
                if state == "used":
                    own = [used if word == "cache" else word for word in flags]
                    with open(used, "wb") as file:
                        for _ in range(cache):
                            file.write(bytes(BLOCK))
                        os.fsync(file.fileno())
                with served(comparison, Volume, disk, *own) as server:
                    found |= named(state, measure(server) | {"cache_written_bytes": server.figures("device")["written_bytes"]})
            return found

        comparison.turns(of_pumice, of_peer)
    for state in states:
        comparison.row(f"writes of 4 KiB, each flushed, in write-back against nbdkit file, cache file {state}", f"{state}: writes_per_second",
                       "≥ 0.8 ×", "≥ 1.2 ×", thousands, cpu=f"{state}: server_cpu_us", client=f"{state}: client_idle")
    return comparison


@case(pairs=3, size=(64, "MiB that are overwritten"), times=(4, "how often as many bytes are written"), quick={"size": 8, "pairs": 1})
def volume_overwrites(arguments):
    """What of a client's overwrites comes to the backing device in write-back.

    fio writes 4 KiB at random (zipf:0.9), of contents that do not repeat, in the first 64 MiB of a volume, 256 MiB in all, faster than the cleaner's
    age of 30 s, and ends. Once the cleaner has cleaned all: bytes written to the backing device / bytes of the client. If each block were written once
    it would be 0.18. The same for the cache device while fio writes: its block buffers absorb rewrites."""
    comparison = begin(arguments, ["size", "times"])
    # With half of the limit dirty the cleaner would not wait.
    flags = flags_of(comparison, "write-back", 8 * arguments.size, "--chunk-size", "4KiB")

    def turn(_):
        with comparison.files("volume.disk") as (disk,):
            with open(disk, "wb") as file:
                file.truncate(8 * arguments.size * BLOCK)
            with served(comparison, Volume, disk, *flags) as server:
                found = fio(comparison, server, "--rw=randwrite", "--bs=4k", "--iodepth=16", f"--size={arguments.size}m", "--norandommap", "--randrepeat=0",
                            "--refill_buffers", "--random_distribution=zipf:0.9", f"--io_size={arguments.size * arguments.times}m", figure="writes_per_second")
                during, sent, absorbed = (server.figures(part)[name] for part, name in (
                    ("volume", "cleaned_chunks"), ("device", "written_bytes"), ("chunk", "absorbed_contents")))
                server.wait_for(lambda: server.figures("volume")["dirty_chunks"] == 0, "all to be clean")
                volume = server.figures("volume")
        if during:
            comparison.note(f"{during} chunks were cleaned while the client wrote")
        client = volume["write_chunks"] * 4096
        return found | {"share": volume["backing_written_bytes"] / client, "sent_share": sent / client, "absorbed_share": absorbed / volume["write_chunks"]}

    comparison.turns(turn)
    title = f"bytes to the backing device / bytes of a client that overwrites {arguments.size} MiB in write-back"
    comparison.row(title, "share", "≤ 0.4", "≤ 0.25", "{:.3f}".format)
    comparison.row("of its chunks, those whose content took the room of an older one in a block buffer", "absorbed_share", "", "", percent)
    comparison.row("bytes sent to the cache device while it writes / bytes of the client", "sent_share", "", "", "{:.2f}".format)
    return comparison


# --- load splitting ---------------------------------------------------------------------------------------------------

SWEEP = (2, 4, 6, 8, 12, 16, 24)


@contextlib.contextmanager
def split(comparison, arguments, objective, disk):
    """A server of a volume that fio has written, and whose first part is cached."""
    flags = flags_of(comparison, "write-through", arguments.cache, "--chunk-size", "4KiB", "--dram", f"{arguments.dram}MiB", "--read-ahead", "0",
                     "--scan-cutoff", "0", "--performance-objective", objective)
    directory = fresh_directory(comparison.directory, f"volume-{objective}")
    with removed(directory):
        with Volume(directory, disk, *flags, core=comparison.server_core) as server:
            # The hot part last: it stays cached.
            for offset, size in ((arguments.hot, arguments.size - arguments.hot), (0, arguments.hot)):
                run(comparison, "fio", "--name=load", "--ioengine=nbd", f"--uri={server.uri}", "--rw=write", "--bs=4k", "--iodepth=32",
                    f"--offset={offset}m", f"--size={size}m", "--verify=crc32c", "--do_verify=0", "--verify_state_save=0", "--randseed=1")
        throttle = f"cache={arguments.upper},backing={arguments.lower}"
        with Volume(directory, disk, *flags, "--throttle", throttle, core=comparison.server_core) as server:
            yield server


def reads(comparison, server, arguments, depth, seconds):
    hot = 100 * arguments.hot // arguments.size
    return fio(comparison, server, "--rw=randread", "--bs=4k", f"--iodepth={depth}", f"--size={arguments.size}m", "--norandommap", "--randrepeat=0",
               f"--random_distribution=zoned:95/{hot}:5/{100 - hot}", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--time_based",
               f"--runtime={seconds}", "--ramp_time=1")


@case(throttle=True, pairs=3, seconds=20.0, dram=64, size=(1280, "MiB of the volume"), hot=(256, "MiB of it that 95 %% of the reads are of"),
      cache=(640, "MiB of the cache"), upper=("optane*40", "kind of the cache device"), lower=("nvme*40", "kind of the backing device"),
      warm_up=(20.0, "seconds before the first turn"), quick={"seconds": 2.0, "warm_up": 2.0, "pairs": 1})
def volume_split_real(arguments):
    """Load splitting of a volume in real time: gain over a volume whose reads are not split, beside the gain in virtual time.

    Cache `optane*40` above a backing file `nvme*40`, both on a tmpfs (give --dir there). fio has written all of it with checksums, and
    verifies each read: 4 KiB, 95 % of them of what is cached, 4 N1 at once, N1 being the fewest with which `--performance-objective classic` does
    95 % of its most. The gains must be within 10 points of each other."""
    comparison = begin(arguments, ["size", "hot", "cache", "upper", "lower", "dram", "seconds"], "classic")
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(comparison.files("volume.split", "volume.classic"))
        for disk in files:
            with open(disk, "wb") as file:
                file.truncate(arguments.size << 20)
        sides = {name: stack.enter_context(split(comparison, arguments, objective, disk))
                 for (name, objective), disk in zip((("pumice", "throughput"), ("peer", "classic")), files)}
        rates = {depth: reads(comparison, sides["peer"], arguments, depth, max(1, arguments.seconds / 5))["reads_per_second"] for depth in SWEEP}
        n1 = min(depth for depth, rate in rates.items() if rate >= 0.95 * max(rates.values()))
        comparison.settings |= {"sweep": rates, "N1": n1}
        reads(comparison, sides["pumice"], arguments, 4 * n1, arguments.warm_up)

        def turn(name):
            def run_turn(_):
                before = sides[name].figures("volume")
                found = reads(comparison, sides[name], arguments, 4 * n1, arguments.seconds)
                after = sides[name].figures("volume")
                chunks = after["read_chunks"] - before["read_chunks"]
                return found | {figure: (after[figure] - before[figure]) / chunks
                                for figure in ("read_hits", "read_redirected", "read_dram_hits", "read_misses")}

            return run_turn

        comparison.turns(turn("pumice"), turn("peer"))
    of_dram = comparison.median("pumice", "read_dram_hits")
    hits = 1 - comparison.median("pumice", "read_misses") / (1 - of_dram)
    virtual = machine.run_json([machine.BENCH, "model", "volume", "--upper", arguments.upper, "--lower", arguments.lower, "--hits", f"{hits:.4f}",
                                "--mode", "write-through", "--writes", 0, "--clients", 4 * n1, "--json"])["reads_gain"]
    comparison.row(f"verified reads of a volume, {4 * n1} at once, against classic", "reads_per_second", "", "", thousands)
    gain = comparison.ratio("reads_per_second")
    comparison.note(f"N1 {n1}; {percent(of_dram)} from DRAM, of the others {percent(hits)} hits; the model gains {percent(virtual)}")
    if gain:
        comparison.must(abs(gain["ratio"] - 1 - virtual) <= 0.1, f"gain {percent(gain['ratio'] - 1)}, and {percent(virtual)} in virtual time")
    return comparison
