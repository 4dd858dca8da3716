"""Hits of a hot set of a volume after scans of cold data."""

import contextlib
import os

from comparison import Comparison, case
from harness import machine
from harness.servers import Volume, fresh_directory
from tools import percent, removed
from .volume import fio, forget, make_disk

SMALL_DRAM_MIB = 64
# Between the parts of the volume, so that a stream ends with its part.
GAP_MIB = 16
# So many MiB of the scan as of the cache.
SCANS = 4


@case(pairs=1, cache=(512, "MiB of the cache"), hot=(256, "MiB of the hot set"), quick={"cache": 64, "hot": 32})
def volume_scan(arguments):
    """Hits of a hot set right after a scan of four times the cache, against before, by default and with `--scan-cutoff 0`.

    The volume is a file of random bytes: the hot set, as much as the cache, and four times as much. Each turn starts with an empty cache for each
    scan, DRAM budget and chunk size. fio reads the second part from start to end, so that the cache is full, then each chunk of the hot set once, in
    no order, three times: the third has the hits *before*. Then it reads (in write-through), or writes (in write-back), the third part from start to
    end, 256 KiB at a time, four at once; then each chunk of the hot set once again: the hits *after*, on the cache device and in DRAM. Server and
    client have one core each. Exit status 1 where after / before is below 0.95."""
    settings = {"cache MiB": arguments.cache, "hot MiB": arguments.hot, "fio": machine.version_of(machine.installed("fio"))}
    comparison = Comparison(arguments, settings, peer="--scan-cutoff 0")
    works = [(chunk, dram, kind) for chunk in (4, 32) for dram in (0, SMALL_DRAM_MIB) for kind in ("read", "write")]
    with comparison.files("volume.disk") as (disk,):
        make_disk(disk, arguments.hot + (1 + SCANS) * arguments.cache + 2 * GAP_MIB)

        def turn(*more):
            forget(disk)
            found = {}
            for work in works:
                seen = scanned(comparison, arguments, disk, *work, *more)
                found |= {f"{name_of(*work)}: {name}": value for name, value in seen.items()}
            return found

        comparison.turns(lambda _: turn(), lambda _: turn("--scan-cutoff", "0"), show=show_kept)
    for work in works:
        figure = f"{name_of(*work)}: kept"
        comparison.row(f"hits after / before, {name_of(*work)}", figure, "≥ 0.95", "≥ 0.99", percent)
        kept = comparison.median("pumice", figure)
        if kept is not None:
            comparison.must(kept >= 0.95, f"{figure}: {kept:.3f}, must be ≥ 0.95")
    return comparison


def show_kept(run):
    kept = {name: value for name, value in run.items() if name.endswith(": kept")}
    return "; ".join(f"{name.removesuffix(': kept')} {percent(value)}" for name, value in kept.items())


def name_of(chunk, dram, kind):
    return f"{kind}s, chunks of {chunk} KiB, {f'--dram {dram}MiB' if dram else 'DRAM by default'}"


def scanned(comparison, arguments, disk, chunk, dram, kind, *more):
    mode = {"read": "write-through", "write": "write-back"}[kind]
    flags = ["--mode", mode, "--cache", "cache", "--cache-size", f"{arguments.cache}MiB", "--chunk-size", f"{chunk}KiB", "--threads", "1",
             *(["--dram", f"{dram}MiB"] if dram else []), *more]
    at_random = [f"--bs={chunk}k", "--rw=randread", "--iodepth=8", "--randrepeat=0", f"--size={arguments.hot}m"]
    directory = fresh_directory(comparison.directory, "volume-scan")
    with contextlib.ExitStack() as stack:
        stack.enter_context(removed(directory))
        # What the volume lacks of the run before went with its cache.
        server = stack.enter_context(Volume(directory, disk, *flags, "--reformat", core=comparison.server_core))

        def run(*words):
            before = server.figures("volume")
            done = fio(comparison, server, *words)
            after = server.figures("volume")
            counts = {name: after[name] - before[name] for name in after}
            return done, counts, (counts["read_dram_hits"] + counts["read_hits"]) / max(1, counts["read_chunks"])

        in_a_row = ["--bs=256k", "--iodepth=4"]
        second = arguments.hot + GAP_MIB
        run("--rw=read", *in_a_row, f"--offset={second}m", f"--size={arguments.cache}m")
        before = [run(*at_random)[2] for _ in range(3)][-1]
        reclaimed = server.figures("chunk")["reclaimed_blocks"]
        done, counts, _ = run(f"--rw={kind}", *in_a_row, "--refill_buffers", f"--offset={second + arguments.cache + GAP_MIB}m",
                              f"--size={SCANS * arguments.cache}m")
        reclaimed = server.figures("chunk")["reclaimed_blocks"] - reclaimed
        _, _, after = run(*at_random)
    return {"kept": after / before, "before": before, "after": after, "requests_per_second": done["reads_per_second"], "reclaimed_blocks": reclaimed,
            **{name: counts[name] for name in ("fills_stored", "fills_scan", "writes_stored", "writes_scan")}}
