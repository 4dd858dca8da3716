"""The engine in one process, without a network: against foyer, and against what the device can do (fio).

Both sides run on the same one core. CPU time is that of the process, kernel time included; interrupts may land on either core.
"""

import contextlib
import shutil

from comparison import Comparison, case, show_figures
from harness import machine
from tools import inprocess, percent, points, thousands


@case(pumice=False, inprocess=True, dram=256, cgroup=True, flash=(None, "MiB of flash (10 x DRAM)", int),
      requests=(1_000_000, "requests that count"), warm_up=(500_000, "requests before those"), depth=(32, "requests at once"),
      io=("io-uring", "foyer's I/O", ["io-uring", "psync"]), policy=("s3fifo", "foyer's policy in DRAM", ["s3fifo", "lfu", "lru"]),
      write=("eviction", "when foyer writes", ["eviction", "insertion"]),
      quick={"dram": 96, "requests": 50_000, "warm_up": 20_000, "pairs": 2})
def foyer(arguments):
    """Flash hits in process (no network): Pumice's engine against foyer's hybrid cache.

    Both are in `bench/inprocess`: `pumice-hits` and `foyer-hits`, one after the other in turns, each on the same one core with
    all of its threads, in a memory cgroup of `--dram` MiB, on a file (foyer: a directory of files) of 10 x DRAM with O_DIRECT.
    Data is 8 x DRAM: values of 600 B to 4 KiB, keys drawn by Zipf 0.9 from the same seed. Every key is set once, least popular
    first, waiting so that neither side drops what its write queue cannot take; then 32 tasks look aside (a miss is answered by
    a set): first a warm-up, then a fixed number of requests, the same ones on both sides, which are measured until all
    writes that they caused are done. Every value is checked for its key and length. Bytes written to the device are those that
    the kernel counts for the process (`write_bytes` in /proc/self/io).

    Pumice divides its DRAM as `serve` would without connections. foyer's DRAM for values is what the budget leaves beside its
    two write buffers (its default of 16 MiB each), 16 MiB of entries that wait for them, 64 B of index for each entry that fits
    the flash, and 10 MiB for the rest; an entry weighs its value and 200 B. With less held back it was killed for leaving
    the cgroup. The record has each side's largest resident memory.

    foyer: version 0.22.6, block engine with its defaults (blocks of 16 MiB, 1 flusher, 1 reclaimer, FIFO after the picker of
    invalid blocks, no compression, no throttle), filesystem device with direct I/O, on a current-thread runtime (a second
    thread on the same core only costs it switches). I/O engine, policy in DRAM and moment of writing are options; the defaults
    are the documented ones that were fastest for foyer in this workload: io_uring, S3-FIFO, on eviction."""
    flash = arguments.flash or 10 * arguments.dram
    keys = 8 * arguments.dram * 2**20 // ((600 + 4096) // 2)
    settings = {"DRAM MiB": arguments.dram, "flash MiB": flash, "keys": keys, "requests": arguments.requests,
                "warm-up": arguments.warm_up, "depth": arguments.depth,
                "foyer": f"0.22.6 {arguments.io} {arguments.policy} write on {arguments.write}"}
    comparison = Comparison(arguments, settings, peer="foyer")

    def side(command, path, *more):
        def turn(_):
            words = ["--path", path, "--dram-mib", arguments.dram, "--flash-mib", flash, "--keys", keys, "--warm-up",
                     arguments.warm_up, "--requests", arguments.requests, "--depth", arguments.depth, *more]
            with comparison.group(arguments.dram, command) as group:
                report, took, busy = inprocess(comparison, command, *words, group=group)
            return {
                **{name: report[name] for name in ("operations_per_second", "hit_ratio", "flash_hit_ratio")},
                "bytes_written": took["device_written_bytes"], "resident_bytes": report["resident_bytes_max"], "cpu_us": report["cpu_us_per_operation"], "core_busy": busy,
                "report": report,
            }

        return turn

    theirs = comparison.path("hits.foyer")
    with comparison.files("hits.pumice") as (mine,), contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, theirs, ignore_errors=True)
        peer = side("foyer-hits", theirs, "--io", arguments.io, "--policy", arguments.policy, "--write", arguments.write)
        comparison.turns(side("pumice-hits", mine), peer)
    what = "flash hits in process against foyer"
    comparison.row(f"{what}: operations/s", "operations_per_second", "≥ 1.2 ×", "≥ 2 ×", thousands, cpu="cpu_us")
    comparison.row(f"{what}: hit ratio", "hit_ratio", "not lower", "", points)
    comparison.row(f"{what}: bytes written to the device", "bytes_written", "not more", "", lambda value: f"{value / 2**20:.0f} MiB")
    return comparison


def fio(job, path, flash, *flags, core=None):
    """One job of fio over a file with io_uring and O_DIRECT: its report, and the share of the core that it had."""
    flags = [f"--name={job}", f"--filename={path}", f"--size={flash}m", "--ioengine=io_uring", "--direct=1", *flags]
    report = machine.run_json([machine.installed("fio"), *flags, "--output-format=json"], core)["jobs"][0]
    return report, (report["usr_cpu"] + report["sys_cpu"]) / 100


@contextlib.contextmanager
def files_of_both(comparison, stem, flash):
    """Paths of both sides' files; fio's is written whole, so that reads find data and not holes, and writes find no holes."""
    with comparison.files(f"{stem}.pumice", f"{stem}.fio") as (mine, theirs):
        if comparison.runs_side("peer"):
            fio("fill", theirs, flash, "--rw=write", "--bs=1m", "--iodepth=4", "--fallocate=posix")
        yield mine, theirs


@case(pumice=False, inprocess=True, seconds=10, depth=(32, "reads at once"), flash=(2048, "MiB of the file"),
      quick={"flash": 256, "seconds": 1, "pairs": 2})
def flash_reads(arguments):
    """Random flash reads of 1 KiB items through the engine, in process, against fio.

    Pumice: `bench/inprocess pumice-reads`. The engine on a file without a DRAM tier (so that every get is one read of the
    device, of the sectors that its record touches), filled with 1 KiB items to 85 % of the file, then `depth` tasks that get
    items chosen at random, on one thread with one io_uring, O_DIRECT. Every value is checked for its key and length.

    Peer: fio, 4 KiB random reads over a file of the same size on the same file system, written whole before, ioengine
    io_uring, O_DIRECT, the same depth, one job, `gtod_reduce` and no map of blocks so that fio itself costs little.

    No memory cgroups: neither side uses the page cache."""
    items = int(arguments.flash * 2**20 * 0.85 / 1100)
    settings = {"depth": arguments.depth, "flash MiB": arguments.flash, "items": items, "seconds": arguments.seconds}
    comparison = Comparison(arguments, settings, peer=machine.version_of(machine.installed("fio")))

    def pumice(_):
        report, took, busy = inprocess(comparison, "pumice-reads", "--path", mine, "--flash-mib", arguments.flash, "--items",
                                       items, "--seconds", arguments.seconds, "--depth", arguments.depth)
        return {"operations_per_second": report["operations_per_second"], "cpu_us": report["cpu_us_per_operation"],
                "core_busy": busy, "device_bytes_per_read": report["device_bytes_per_read"],
                "device_bytes_per_second": took["device_read_bytes"] / took["seconds"], "report": report}

    def peer(_):
        flags = ["--rw=randread", "--bs=4k", f"--iodepth={arguments.depth}", "--norandommap", "--randrepeat=0", "--gtod_reduce=1",
                 "--time_based", f"--runtime={arguments.seconds}"]
        job, busy = fio("reads", theirs, arguments.flash, *flags, core=comparison.server_core)
        reads = job["read"]
        return {"operations_per_second": reads["iops"], "cpu_us": busy * 1e6 / reads["iops"], "core_busy": busy,
                "device_bytes_per_read": 4096, "device_bytes_per_second": reads["bw_bytes"]}

    with files_of_both(comparison, "reads", arguments.flash) as (mine, theirs):
        comparison.turns(pumice, peer)
    comparison.row(f"random flash reads of 1 KiB items in process, {arguments.depth} at once, against fio 4 KiB random reads",
                   "operations_per_second", "≥ 0.6 ×", "≥ 0.85 ×", thousands, cpu="cpu_us")
    return comparison


@case(pumice=False, inprocess=True, flash=(4096, "MiB of the file"), size=(4096, "bytes of a value"),
      block=(None, "KiB of a block of Pumice; without it as serve would choose", int), fio_depth=(4, "writes of fio at once"),
      quick={"flash": 256, "pairs": 2})
def flash_fill(arguments):
    """Filling flash in process, second lap over the file, against fio.

    Pumice: `bench/inprocess pumice-fill`. The engine on a file without a DRAM tier, O_DIRECT, one thread, one io_uring. Sets
    of new keys with values of 4 KiB until the device was written once, and then until it was written once more, which is
    what counts: every block that is written takes the place of one that is reclaimed. The lap ends when all writes are done.
    A set that finds no buffer free is repeated when the device has made one free.

    Peer: fio, sequential writes of 1 MiB over a file of the same size on the same file system that was written whole before,
    ioengine io_uring, O_DIRECT, one job, a depth that gives fio about as many bytes under way as the engine has buffers.
    `end_fsync` is off, as the engine does not sync either.

    What is compared is bytes of values per second against fio's bytes per second; what the engine sends to the device
    (headers, padding, footers) is shown beside it, and CPU time for each value and for as many bytes of fio's. No memory
    cgroups: neither side uses the page cache."""
    flash, size = arguments.flash, arguments.size
    settings = {"flash MiB": flash, "value bytes": size, "fio depth": arguments.fio_depth,
                "block KiB": arguments.block or "as serve chooses"}
    comparison = Comparison(arguments, settings, peer=machine.version_of(machine.installed("fio")))

    def run(value_rate, device_rate, seconds_per_byte, busy):
        return {"bytes_per_second": value_rate, "device_bytes_per_second": device_rate, "cpu_us": seconds_per_byte * 1e6 * size,
                "cpu_seconds_per_gib": seconds_per_byte * 2**30, "core_busy": busy}

    def pumice(_):
        block = ["--block-kib", arguments.block] if arguments.block else []
        report, _, busy = inprocess(comparison, "pumice-fill", "--path", mine, "--flash-mib", flash, "--size", size, *block)
        rates = (report["value_bytes_per_second"], report["device_bytes_per_second"], report["cpu_seconds_per_gib"] / 2**30)
        return {**run(*rates, busy), "report": report}

    def peer(_):
        flags = ["--rw=write", "--bs=1m", f"--iodepth={arguments.fio_depth}", "--gtod_reduce=1", "--fallocate=none"]
        job, busy = fio("writes", theirs, flash, *flags, core=comparison.server_core)
        rate = job["write"]["bw_bytes"]
        return run(rate, rate, busy / rate, busy)

    def rate(value):
        return f"{value / 1e6:.0f} MB/s"

    with files_of_both(comparison, "fill", flash) as (mine, theirs):
        comparison.turns(pumice, peer)
    comparison.row(f"filling flash in process with values of {size} B, second lap, against fio sequential 1 MiB writes",
                   "bytes_per_second", "≥ 0.7 ×", "≥ 0.9 ×", rate, cpu="cpu_us", cpu_of=f"{size} B")
    return comparison


@case(pumice=False, locks=True, pairs=5, seconds=4, threads=(16, "threads"), layout=("ripq", "layout"),
      quick={"seconds": 1, "pairs": 2})
def threads(arguments):
    """Many threads of one process against one: what the locks of the engine cost.

    Both sides are the program `threads` of `bench/inprocess`: a cache without a DRAM tier on a device that is memory, filled with 400,000
    items of 300 bytes; half of the requests are sets, the others gets (a miss sets), of keys drawn by Zipf 0.9. Each thread is an event
    loop of its own, and all cores of the machine are theirs. Compared are requests for each second of CPU time, so that the number of
    cores does not matter, and the time waited for each lock: from a lock that was found taken to the lock held. With more threads than
    cores most of it is of the scheduler's making: the holder has lost its core, or the thread itself, which spins and yields before it
    sleeps, while others work. So waits below 100 us are shown apart, and the share of the threads' time in which they were ready to run
    and had no core. 256 MiB of flash have 16 index shards; 64 GiB have 4,096. The memory of the device has a lock that drives have not."""
    settings = {"threads": arguments.threads, "layout": arguments.layout, "seconds": arguments.seconds}
    comparison = Comparison(arguments, settings, f"{arguments.threads} threads", "1 thread")

    def side(threads):
        def turn(_):
            report = machine.run_json([machine.THREADS, "--threads", threads, "--seconds", arguments.seconds, "--layout", arguments.layout])
            for lock, figures in {**report["locks"], "all locks": report.pop("all_locks")}.items():
                report |= {f"{lock}: {figure}": value for figure, value in figures.items()}
            return report

        return turn

    def show(run):
        return show_figures({name: value for name, value in run.items() if ": " not in name or name == "all locks: share"})

    comparison.turns(side(arguments.threads), side(1), show)
    runs = comparison.runs["pumice"] + comparison.runs["peer"]
    figures = {figure for run in runs for figure in run if ": " in figure}
    locks = {lock for run in runs for lock in run.pop("locks")}
    for run in runs:
        # A lock that nobody waited for.
        run |= {figure: 0 for figure in figures - set(run)}
    what = f"{arguments.threads} threads against 1, layout {arguments.layout}"
    comparison.row(f"{what}: requests for each second of CPU time", "requests_per_cpu_second", "", "", thousands)
    comparison.row(f"{what}: requests/s", "requests_per_second", "", "", thousands)
    comparison.row(f"{what}: times that a thread gave its core away, for each request", "given_away_per_request", "", "", "{:.4f}".format)
    comparison.row(f"{what}: share of the threads' time ready, without a core", "ready_share", "", "", percent)
    most = "pumice" if comparison.runs["pumice"] else "peer"
    for lock in ["all locks", *sorted(locks, key=lambda lock: -comparison.median(most, f"{lock}: share"))]:
        comparison.row(f"{what}: waited for {lock}, for each request", f"{lock}: ns_per_request", "", "", "{:.1f} ns".format)
        comparison.row(f"{what}: … share of the threads' time", f"{lock}: share", "", "", "{:.3%}".format)
        comparison.row(f"{what}: … of that in waits below 100 us", f"{lock}: short_share", "", "", "{:.3%}".format)
        comparison.row(f"{what}: … waits for each request", f"{lock}: waits_per_request", "", "", "{:.5f}".format)
    return comparison


@case(pumice=False, inprocess=True, pairs=7, writes=(40_000, "writes of each kind that count"), quick={"writes": 4_000, "pairs": 2})
def chunk_cpu(arguments):
    """CPU time of a chunk of 32 KiB that is written to the chunk store, in process, and what of it is beyond fingerprint and LZ4.

    Both are `bench/inprocess pumice-chunks`, on one core. Pumice: whole chunks over a volume of 128 MiB, cached on a memory device
    of 256 MiB that was filled before; void, fingerprint, compression, append, and all background work: blocks, log, checkpoints, reclaims,
    which find nothing to keep. The volume itself is not written. Unique contents compress to a half, as those of fio with
    `buffer_compress_percentage=50`; a duplicate has one of 1,021 contents, another than its chunk had before. Alone: BLAKE3 and LZ4 of
    the same bytes; of a duplicate BLAKE3."""
    comparison = Comparison(arguments, {"writes": arguments.writes, "chunk KiB": 32}, "whole write")
    kinds = ("unique", "duplicate")

    def turn(_):
        words = [machine.INPROCESS, "pumice-chunks", "--writes", arguments.writes]
        whole, alone = (machine.run_json([*words, *flags], comparison.server_core) for flags in ((), ("--alone",)))
        return {f"{kind}{what}": value for kind in kinds
                for what, value in (("", whole[f"{kind}_us"]), (", beyond", whole[f"{kind}_us"] - alone[f"{kind}_us"]))}

    comparison.turns(turn)
    for kind, must, aim in zip(kinds, (20, 10), (16, 7)):
        comparison.row(f"CPU of a chunk of 32 KiB written, {kind}", kind, f"≤ {must} us", f"≤ {aim} us", "{:.2f} us".format)
        comparison.row("of it beyond fingerprint and LZ4", f"{kind}, beyond", "≤ 5 us", "≤ 2.5 us", "{:.2f} us".format)
    return comparison
