#!/usr/bin/env python3
"""Flash hits in process (no network): Pumice's engine against foyer's hybrid cache.

    python3 bench/foyer.py [--pairs 5] [--dram 256] [--io io-uring] [--policy s3fifo] [--write eviction]

Both are in `bench/inprocess`: `pumice-hits` and `foyer-hits`, one after the other in turns, each on the same one core with
all of its threads, in a memory cgroup of `--dram` MiB, on a file (foyer: a directory of files) of 10 x DRAM with O_DIRECT.
Data is 8 x DRAM: values of 600 B to 4 KiB, keys drawn by Zipf 0.9 from the same seed. Every key is set once, least popular
first, waiting so that neither side drops what its write queue cannot take; then 32 tasks look aside (a miss is answered by
a set): first a warm-up, then a fixed number of requests, the same ones on both sides, which are measured until all
writes that they caused are done. Every value is checked for its key and length.

Bytes written to the device are those that the kernel counts for the process (`write_bytes` in /proc/self/io).

Pumice divides its DRAM as `serve` would without connections. foyer's DRAM for values is what the budget leaves beside its
two write buffers (its default of 16 MiB each), 16 MiB of entries that wait for them, 64 B of index for each entry that fits
the flash, and 10 MiB for the rest; an entry weighs its value and 200 B. With less held back it was killed for leaving
the cgroup. The record has each side's largest resident memory.

foyer: version 0.22.6, block engine with its defaults (blocks of 16 MiB, 1 flusher, 1 reclaimer, FIFO after the picker of
invalid blocks, no compression, no throttle), filesystem device with direct I/O, on a current-thread runtime (a second
thread on the same core only costs it switches). I/O engine, policy in DRAM and moment of writing are options; the defaults
are the documented ones that were fastest for foyer in this workload: io_uring, S3-FIFO, on eviction.
"""

import os
import shutil

from lib import compare, machine
from lib.compare import Comparison, thousands


def main():
    parser = compare.parser(__doc__, seconds=None, dram=256)
    parser.add_argument("--flash", type=int, help="MiB of flash (10 x DRAM)")
    parser.add_argument("--requests", type=int, default=1_000_000, help="requests that count (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=500_000, help="requests before those (%(default)s)")
    parser.add_argument("--depth", type=int, default=32, help="requests at once (%(default)s)")
    parser.add_argument("--io", choices=["io-uring", "psync"], default="io-uring", help="foyer's I/O (%(default)s)")
    parser.add_argument(
        "--policy", choices=["s3fifo", "lfu", "lru"], default="s3fifo", help="foyer's policy in DRAM (%(default)s)"
    )
    parser.add_argument(
        "--write", choices=["eviction", "insertion"], default="eviction", help="when foyer writes (%(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.dram, arguments.requests, arguments.warm_up, arguments.pairs = 96, 50_000, 20_000, 2
    flash = arguments.flash or 10 * arguments.dram
    keys = 8 * arguments.dram * 2**20 // ((600 + 4096) // 2)
    program = machine.build_inprocess(not arguments.no_build)
    settings = {
        "DRAM MiB": arguments.dram, "flash MiB": flash, "keys": keys, "requests": arguments.requests,
        "warm-up": arguments.warm_up, "depth": arguments.depth,
        "foyer": f"0.22.6 {arguments.io} {arguments.policy} write on {arguments.write}",
    }  # fmt: skip
    comparison = Comparison("foyer", arguments, settings)
    comparison.sides = {"pumice": "pumice", "peer": "foyer"}

    def side(command, path, *more):
        def turn(_):
            full = [
                program, command, "--path", path, "--dram-mib", str(arguments.dram), "--flash-mib", str(flash),
                "--keys", str(keys), "--warm-up", str(arguments.warm_up), "--requests", str(arguments.requests),
                "--depth", str(arguments.depth), *more,
            ]  # fmt: skip
            with comparison.group(arguments.dram, command) as group:
                report = machine.run_json(full, comparison.server_core, group)
            took = report["took"]
            return {
                "operations_per_second": report["operations_per_second"],
                "hit_ratio": report["hit_ratio"],
                "flash_hit_ratio": report["flash_hit_ratio"],
                "bytes_written": took["device_written_bytes"],
                "cpu_us": report["cpu_us_per_operation"],
                "core_busy": took["cpu_seconds"] / took["seconds"],
                "report": report,
            }

        return turn

    def show(run):
        return (
            f"{thousands(run['operations_per_second'])}, {run['cpu_us']:.2f} us CPU each, core {run['core_busy'] * 100:.0f} % "
            f"busy, hit ratio {run['hit_ratio']:.4f} ({run['flash_hit_ratio']:.4f} from flash), "
            f"{run['bytes_written'] / 2**20:.0f} MiB written, {run['report']['resident_bytes_max'] / 2**20:.0f} MiB resident"
        )

    mine, theirs = (os.path.join(comparison.directory, name) for name in ("hits.pumice", "hits.foyer"))
    try:
        comparison.turns(
            side("pumice-hits", mine),
            side("foyer-hits", theirs, "--io", arguments.io, "--policy", arguments.policy, "--write", arguments.write),
            show,
        )
    finally:
        if os.path.exists(mine):
            os.remove(mine)
        shutil.rmtree(theirs, ignore_errors=True)
    what = "flash hits in process against foyer"
    comparison.row(f"{what}: operations/s", "operations_per_second", "≥ 1.2 ×", "≥ 2 ×", thousands, cpu="cpu_us")
    comparison.row(f"{what}: hit ratio", "hit_ratio", "not lower", "", lambda value: f"{value:.4f}")
    comparison.row(
        f"{what}: bytes written to the device", "bytes_written", "not more", "", lambda value: f"{value / 2**20:.0f} MiB"
    )
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
