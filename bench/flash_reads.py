#!/usr/bin/env python3
"""Random flash reads of 1 KiB items through the engine, in process, against fio.

    python3 bench/flash_reads.py [--pairs 5] [--seconds 10] [--depth 32] [--flash 2048]

Pumice: `bench/inprocess pumice-reads`. The engine on a file without a DRAM tier (so that every get is one read of the
device, of the sectors that its record touches), filled with 1 KiB items to 85 % of the file, then `depth` tasks that get
items chosen at random, on one thread with one io_uring, O_DIRECT. Every value is checked for its key and length.

Peer: fio, 4 KiB random reads over a file of the same size on the same file system, written whole before, ioengine
io_uring, O_DIRECT, the same depth, one job, `gtod_reduce` and no map of blocks so that fio itself costs little.

Both run on the same one core. No memory cgroups: neither side uses the page cache. CPU time per read is that of the
process, kernel time included; interrupts may land on either core.
"""

import os

from lib import compare, machine
from lib.compare import Comparison, thousands


def fio_reads(program, path, flash, seconds, depth, core):
    """One run of fio over a file; returns its figures."""
    report = machine.run_json(
        [
            program, "--name=reads", f"--filename={path}", f"--size={flash}m", "--rw=randread", "--bs=4k",
            "--ioengine=io_uring", "--direct=1", f"--iodepth={depth}", "--norandommap", "--randrepeat=0",
            "--gtod_reduce=1", "--time_based", f"--runtime={seconds}", "--output-format=json",
        ],
        core,
    )  # fmt: skip
    job = report["jobs"][0]
    reads = job["read"]
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return {
        "operations_per_second": reads["iops"],
        "cpu_us": busy * 1e6 / reads["iops"],
        "core_busy": busy,
        "device_bytes_per_read": 4096,
        "device_bytes_per_second": reads["bw_bytes"],
    }


def fio_write_whole(program, path, flash):
    """Writes a file whole, so that reads find data and not holes."""
    machine.run_json(
        [program, "--name=fill", f"--filename={path}", f"--size={flash}m", "--rw=write", "--bs=1m", "--direct=1",
         "--ioengine=io_uring", "--iodepth=4", "--fallocate=posix", "--output-format=json"]
    )  # fmt: skip


def main():
    parser = compare.parser(__doc__, cgroup=False)
    parser.add_argument("--depth", type=int, default=32, help="reads at once (%(default)s)")
    parser.add_argument("--flash", type=int, default=2048, help="MiB of the file (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.flash, arguments.seconds, arguments.pairs = 256, 1, 2
    fio = machine.install("fio", "fio")
    program = machine.build_inprocess(not arguments.no_build)
    items = int(arguments.flash * 2**20 * 0.85 / 1100)
    settings = {"depth": arguments.depth, "flash MiB": arguments.flash, "items": items, "seconds": arguments.seconds}
    comparison = Comparison("flash-reads", arguments, settings)
    comparison.sides = {"pumice": "pumice", "peer": machine.version_of([fio, "--version"])}
    core = comparison.server_core
    mine, theirs = (os.path.join(comparison.directory, name) for name in ("reads.pumice", "reads.fio"))

    def pumice(_):
        report = machine.run_json(
            [program, "pumice-reads", "--path", mine, "--flash-mib", str(arguments.flash), "--items", str(items),
             "--seconds", str(arguments.seconds), "--depth", str(arguments.depth)],
            core,
        )  # fmt: skip
        took = report["took"]
        return {
            "operations_per_second": report["operations_per_second"],
            "cpu_us": report["cpu_us_per_operation"],
            "core_busy": took["cpu_seconds"] / took["seconds"],
            "device_bytes_per_read": report["device_bytes_per_read"],
            "device_bytes_per_second": took["device_read_bytes"] / took["seconds"],
            "report": report,
        }

    def peer(_):
        return fio_reads(fio, theirs, arguments.flash, arguments.seconds, arguments.depth, core)

    def show(run):
        return (
            f"{thousands(run['operations_per_second'])}, {run['cpu_us']:.2f} us CPU each, core {run['core_busy'] * 100:.0f} % "
            f"busy, {run['device_bytes_per_read']:.0f} B read for each"
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
        f"random flash reads of 1 KiB items in process, {arguments.depth} at once, against fio 4 KiB random reads",
        "operations_per_second", "≥ 0.6 ×", "≥ 0.85 ×", thousands, cpu="cpu_us",
    )  # fmt: skip
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
