#!/usr/bin/env python3
"""Gets of small items from flash in process: the cascade index against the full one, which has all the DRAM it wants.

    python3 bench/cascade_gets.py [--pairs 5] [--seconds 10] [--keys 20000000] [--depth 256] [--tier1 0.1]

Both sides are `bench/inprocess pumice-gets`: the engine under plain layout fifo, without a DRAM tier, so that every get reads the
device, on a file of its own with O_DIRECT, one thread, one io_uring, on the same one core. Each has set every key once, with
values of 300 bytes, in an order that has nothing to do with how popular they are. Then come gets, `--depth` at once, of keys
drawn by three distributions, one after the other: Zipf 0.99; hotspot, where 1 % of the keys take 90 % of the gets; normal, with
a standard deviation of 1 % of the keys. For each both sides warm up first (`--warm-up` seconds, in which tier 1 gets the
mappings that are asked for), and then take turns. Every value is checked for its key and length. A miss is counted and not
set: what an index forgets shows.

Device reads are those for items and for pages of mappings. CPU time per get is that of the process, kernel time included: it
says whether the device or the core sets the pace. DRAM per item is that of the index, all in, after the gets.
"""

from lib import cascade, compare, machine
from lib.compare import Comparison, thousands

# What is drawn, and what is asked of it.
WORKLOADS = {
    "Zipf 0.99": ("zipf:theta=0.99", "≥ 0.75 ×", "≥ 0.9 ×"),
    "hotspot": ("hotspot:hot=0.01,share=0.9", "≥ 0.9 ×", "≥ 1.0 ×"),
    "normal": ("normal:sd=0.01", "≥ 0.9 ×", "≥ 1.0 ×"),
}
# Shares of the gets beyond which the row would be about something else.
MISSES_MAX = 0.01


def main():
    parser = compare.parser(__doc__, cgroup=False)
    parser.add_argument("--keys", type=int, default=20_000_000, help="items (%(default)s)")
    parser.add_argument("--depth", type=int, default=256, help="gets at once (%(default)s): enough for the device to set the pace of both sides")
    parser.add_argument("--tier1", type=float, default=0.1, help="mappings in DRAM for each on flash (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=60, help="seconds of each distribution before its turns (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.keys, arguments.seconds, arguments.pairs, arguments.warm_up = 400_000, 1, 2, 1
    program = machine.build_inprocess(not arguments.no_build)
    flash = cascade.flash_mib(arguments.keys)
    settings = {
        "items": arguments.keys, "value bytes": cascade.ITEM_BYTES, "flash MiB": flash, "depth": arguments.depth,
        "tier1": arguments.tier1, "seconds": arguments.seconds, "warm-up": arguments.warm_up,
    }  # fmt: skip
    comparison = Comparison("cascade-gets", arguments, settings)
    comparison.sides = {"pumice": "cascade", "peer": "full"}
    flags = {"pumice": ["--index", "cascade", "--tier1", arguments.tier1, "--reclaim", "evict"], "peer": ["--index", "full"]}

    def side(process, what, spec):
        def turn(_):
            report = process.run(spec, arguments.depth, arguments.seconds)
            took = report["took"]
            if report["miss_ratio"] > MISSES_MAX:
                comparison.notes.append(f"{what}: {report['miss_ratio'] * 100:.1f} % of the gets missed")
            return {
                what: report["requests_per_second"],
                f"{what}: reads": report["device_reads_per_request"],
                f"{what}: rounds": report["rounds_per_request"],
                f"{what}: cpu": report["cpu_us_per_request"],
                f"{what}: DRAM": report["stats"]["index_dram_bytes"] / report["resident_entries"],
                f"{what}: busy": took["cpu_seconds"] / took["seconds"],
                "report": report,
            }

        return turn

    def show(what):
        return lambda run: (
            f"{what}: {thousands(run[what])}, {run[f'{what}: cpu']:.2f} us CPU each, core {run[f'{what}: busy'] * 100:.0f} % busy, "
            f"{run[f'{what}: reads']:.3f} device reads each, {run[f'{what}: rounds']:.3f} one after the other, index "
            f"{run[f'{what}: DRAM']:.2f} B an item, {run['report']['miss_ratio'] * 1e6:.0f} misses in a million"
        )

    with cascade.gets_of_sides(comparison, program, "gets", arguments.keys, flash, flags) as processes:
        for what, (spec, *_) in WORKLOADS.items():
            for process in processes.values():
                process.run(spec, arguments.depth, arguments.warm_up)
            sides = [side(processes.get(name), what, spec) for name in flags]
            comparison.turns(*sides, show(what))
    for what, (_, must, aim) in WORKLOADS.items():
        row = f"gets/s of the cascade index against the full one, {what}, one core"
        comparison.row(row, what, must, aim, thousands, cpu=f"{what}: cpu")
    for what in WORKLOADS:
        comparison.row(f"device reads per get, {what}", f"{what}: reads", "", "", "{:.3f}".format)
    comparison.row(
        f"DRAM of the index per item, a file with {arguments.keys / 1e6:.1f} million items", "Zipf 0.99: DRAM",
        "≤ 2.5 B", "≤ 1 B at ≤ 1 read a miss", "{:.2f} B".format,
    )  # fmt: skip
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
