#!/usr/bin/env python3
"""Filling flash in process, second lap over the file, against fio.

    python3 bench/flash_fill.py [--pairs 5] [--flash 4096] [--size 4096] [--fio-depth 4]

Pumice: `bench/inprocess pumice-fill`. The engine on a file without a DRAM tier, O_DIRECT, one thread, one io_uring. Sets
of new keys with values of 4 KiB until the device was written once, and then until it was written once more, which is
what counts: every block that is written takes the place of one that is reclaimed. The lap ends when all writes are done.
A set that finds no buffer free is repeated when the device has made one free.

Peer: fio, sequential writes of 1 MiB over a file of the same size on the same file system that was written whole before,
ioengine io_uring, O_DIRECT, one job, a depth that gives fio about as many bytes under way as the engine has buffers.
`end_fsync` is off, as the engine does not sync either.

What is compared is bytes of values per second against fio's bytes per second; what the engine sends to the device
(headers, padding, footers) is shown beside it. CPU time is that of the process, kernel time included, for each value, and for
as many bytes of fio's. Both run on the same one core, without memory cgroups: neither side uses the page cache.
"""

import os

from flash_reads import fio_write_whole
from lib import compare, machine
from lib.compare import Comparison


def rate(value):
    return f"{value / 1e6:.0f} MB/s"


def fio_writes(program, path, flash, depth, size, core):
    report = machine.run_json(
        [
            program, "--name=writes", f"--filename={path}", f"--size={flash}m", "--rw=write", "--bs=1m",
            "--ioengine=io_uring", "--direct=1", f"--iodepth={depth}", "--gtod_reduce=1", "--fallocate=none",
            "--output-format=json",
        ],
        core,
    )  # fmt: skip
    job = report["jobs"][0]
    writes = job["write"]
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return {
        "bytes_per_second": writes["bw_bytes"],
        "device_bytes_per_second": writes["bw_bytes"],
        "cpu_us": busy * 1e6 / writes["bw_bytes"] * size,
        "cpu_seconds_per_gib": busy / writes["bw_bytes"] * 2**30,
        "core_busy": busy,
    }


def main():
    parser = compare.parser(__doc__, seconds=None, cgroup=False)
    parser.add_argument("--flash", type=int, default=4096, help="MiB of the file (%(default)s)")
    parser.add_argument("--size", type=int, default=4096, help="bytes of a value (%(default)s)")
    parser.add_argument("--block", type=int, help="KiB of a block of Pumice; without it what serve would choose")
    parser.add_argument("--fio-depth", type=int, default=4, help="writes of fio at once (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.flash, arguments.pairs = 256, 2
    fio = machine.install("fio", "fio")
    program = machine.build_inprocess(not arguments.no_build)
    settings = {"flash MiB": arguments.flash, "value bytes": arguments.size, "fio depth": arguments.fio_depth,
                "block KiB": arguments.block or "as serve chooses"}  # fmt: skip
    comparison = Comparison("flash-fill", arguments, settings)
    comparison.sides = {"pumice": "pumice", "peer": machine.version_of([fio, "--version"])}
    core = comparison.server_core
    mine, theirs = (os.path.join(comparison.directory, name) for name in ("fill.pumice", "fill.fio"))

    def pumice(_):
        command = [program, "pumice-fill", "--path", mine, "--flash-mib", str(arguments.flash),
                   "--size", str(arguments.size)]  # fmt: skip
        if arguments.block:
            command += ["--block-kib", str(arguments.block)]
        report = machine.run_json(command, core)
        took = report["took"]
        return {
            "bytes_per_second": report["value_bytes_per_second"],
            "device_bytes_per_second": report["device_bytes_per_second"],
            "cpu_us": report["cpu_seconds_per_gib"] * 1e6 / 2**30 * arguments.size,
            "cpu_seconds_per_gib": report["cpu_seconds_per_gib"],
            "core_busy": took["cpu_seconds"] / took["seconds"],
            "report": report,
        }

    def peer(_):
        return fio_writes(fio, theirs, arguments.flash, arguments.fio_depth, arguments.size, core)

    def show(run):
        return (
            f"{rate(run['bytes_per_second'])} ({rate(run['device_bytes_per_second'])} to the device), "
            f"{run['cpu_us']:.2f} us CPU each, {run['cpu_seconds_per_gib']:.2f} s per GiB, core {run['core_busy'] * 100:.0f} % busy"
        )

    try:
        if arguments.only != "pumice":
            fio_write_whole(fio, theirs, arguments.flash)
        comparison.turns(pumice, peer, show)
    finally:
        for path in (mine, theirs):
            if os.path.exists(path):
                os.remove(path)
    comparison.row(
        f"filling flash in process with values of {arguments.size} B, second lap, against fio sequential 1 MiB writes",
        "bytes_per_second", "≥ 0.7 ×", "≥ 0.9 ×", rate, cpu="cpu_us", cpu_of=f"{arguments.size} B",
    )  # fmt: skip
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
