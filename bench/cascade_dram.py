#!/usr/bin/env python3
"""What the cascade index takes of DRAM and of the device, against the full index: counts of `pumice replay`.

    python3 bench/cascade_dram.py [--keys 100000000] [--requests 100000000] [--flash 4096] [--file-items 20000000]

The same requests through both indexes, without a DRAM tier: items of 300 bytes, Zipf 0.99 over `--keys` keys, a miss inserts,
`--warm-up` of the requests fill the cache before figures are counted. The layout is plain fifo on both sides (`--reclaim evict`:
with the full index there is no two-phase reclaim; one row has what that costs more). The device is simulated (`--device sim`), so
nothing here is a time, and replays run two at a time.

What is compared: DRAM of the index for each object cached, all in; objects for each byte of it; device reads of a hit, those of
which each had to wait for the one before, and reads of a miss (each member of a parallel batch counts); bytes of mappings
written for each byte inserted. The hit ratio is compared with that of an exact cache (`--layout exact`) whose size is the
bytes of objects that the cascade side had on average: the same policy, fifo, and LRU beside it as a note.

Then the same DRAM in the shape of `--shape-items` items, simulated, and on a file with O_DIRECT (`--device PATH`) of
`--file-items`: keys drawn alike from so many that nearly every request is an insertion, a twentieth more of them than items, so
that the device is full in minutes. A simulated device takes some 100 bytes of this machine's memory for an item. Notes give the
curve over `--tier1`, the share of mappings in DRAM, with what each of its points costs in reads.

There is one turn: the counts are the same each time.
"""

import os

from lib import cascade, compare, machine
from lib.cascade import ITEM_BYTES
from lib.compare import Comparison

CURVE = (0.02, 0.04)
# What else is filled, and where.
SHAPES = {"shape": "in the largest shape", "file": "on a file"}


def figures(report):
    """What rows compare."""
    written = (report["cascade"] or {}).get("mapping_bytes_written")
    return {
        "bytes_per_item": report["index_dram_bytes"] / report["objects_cached"],
        "items_per_byte": report["objects_cached"] / report["index_dram_bytes"],
        "reads_per_hit": report["flash_reads_per_hit"],
        "rounds_per_hit": report["flash_rounds_per_hit"],
        "reads_per_miss": report["flash_reads_per_miss"],
        "mapping_share": None if written is None else written / report["bytes_inserted"],
        "hit_ratio": report["object_hit_ratio"],
        "items": report["objects_cached"],
        "report": report,
    }


def text(value, digits=3):
    return "–" if value is None else f"{value:.{digits}f}"


def show(run):
    more = "".join(f", {run[name]:.2f} B {where}" for name, where in SHAPES.items() if name in run)
    return (
        f"{run['items'] / 1e6:.2f} million items, {run['bytes_per_item']:.2f} B of index each, hit ratio {run['hit_ratio']:.4f}, "
        f"{text(run['reads_per_hit'])} reads a hit ({text(run['rounds_per_hit'])} rounds), "
        f"{text(run['reads_per_miss'])} a miss, mappings {text(run['mapping_share'])} of the bytes inserted{more}"
    )


def flags(index, *more):
    plain = ["--reclaim", "evict"] if index == "cascade" and "--reclaim" not in more else []
    return ["--object-size", ITEM_BYTES, "--layout", "fifo", "--index", index, *plain, *more]


def exact(trace, policy, warm_up, size):
    return cascade.replay(
        trace, "--layout", "exact", "--policy", policy, "--object-size", ITEM_BYTES, "--flash-size", size, "--warmup", warm_up
    )


def main():
    parser = compare.parser(__doc__, pairs=1, seconds=None, cgroup=False)
    parser.add_argument("--keys", type=int, default=100_000_000, help="keys (%(default)s)")
    parser.add_argument("--requests", type=int, default=100_000_000, help="requests (%(default)s)")
    parser.add_argument("--flash", type=int, default=4096, help="MiB of the simulated device (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=0.6, help="share of the requests (%(default)s)")
    parser.add_argument("--tier1", type=float, default=0.03, help="mappings in DRAM for each on flash (%(default)s)")
    parser.add_argument(
        "--shape-items", type=int, default=100_000_000, help="items of the largest shape (%(default)s); 0: without it"
    )
    parser.add_argument("--file-items", type=int, default=20_000_000, help="items on a file (%(default)s); 0: no file")
    arguments = parser.parse_args()
    arguments.pairs = 1
    if arguments.quick:
        arguments.keys, arguments.requests, arguments.flash, arguments.file_items = 1_000_000, 600_000, 64, 200_000
        arguments.shape_items = 1_000_000
    machine.build_pumice(not arguments.no_build)
    trace = f"zipf:keys={arguments.keys},theta=0.99,requests={arguments.requests},seed=1"
    settings = {
        "trace": trace, "object bytes": ITEM_BYTES, "flash MiB": arguments.flash, "warm-up": arguments.warm_up,
        "tier1": arguments.tier1, "shape items": arguments.shape_items, "file items": arguments.file_items,
    }  # fmt: skip
    comparison = Comparison("cascade-dram", arguments, settings)
    comparison.sides = {"pumice": "cascade", "peer": "full"}
    simulated = ["--flash-size", f"{arguments.flash}MiB", "--warmup", arguments.warm_up, "--superblock", 0]
    path = os.path.join(comparison.directory, "dram.pumice")

    def run(index, *more):
        return cascade.replay(trace, *flags(index, *simulated, *more))

    def inserted(items, device, index, more):
        """A replay of new keys until the device is full."""
        keys = f"uniform:keys={items * 50},requests={items * 21 // 20},seed=2"
        size = f"{cascade.flash_mib(items)}MiB"
        report = cascade.replay(keys, *flags(index, "--flash-size", size, "--superblock", 0, "--device", device, *more))
        return report["index_dram_bytes"] / report["objects_cached"], report

    def side(index, *more):
        def turn(_):
            found = figures(run(index, *more))
            found["two_phase"] = found["bytes_per_item"]
            if index == "cascade":
                found["two_phase_figures"] = figures(run(index, *more, "--reclaim", "two-phase"))
                found["two_phase"] = found["two_phase_figures"]["bytes_per_item"]
            if arguments.shape_items:
                found["shape"], found["shape_report"] = inserted(arguments.shape_items, "sim", index, more)
            if arguments.file_items:
                try:
                    found["file"], found["file_report"] = inserted(arguments.file_items, path, index, more)
                finally:
                    if os.path.exists(path):
                        os.remove(path)
            return found

        return turn

    tier1 = ["--tier1", arguments.tier1]
    comparison.turns(side("cascade", *tier1), side("full"), show)
    if arguments.only != "peer":
        twins(comparison, trace, arguments)
        others = [share for share in CURVE if share != arguments.tier1]
        points = [lambda share=share: run("cascade", "--tier1", share) for share in others]
        curve = dict(zip(others, map(figures, cascade.at_once(points))))
        mine = comparison.runs["pumice"][0]
        mine["curve"] = curve
        comparison.notes.append(f"with two-phase reclaim: {show(mine['two_phase_figures'])}")
        for share, point in sorted({**curve, arguments.tier1: mine}.items()):
            comparison.notes.append(f"tier1 {share}: {show(point)}")
        report = mine["report"]
        if report["bytes_inserted"] < report["flash_bytes"]:
            comparison.notes.append(
                f"{report['bytes_inserted'] / 2**30:.1f} GiB were inserted after the warm-up: the flash was not gone round once"
            )

    row = comparison.row
    dram = ("≤ 2.5 B", "≤ 1 B at ≤ 1 read a miss, or 2.5 B at ≤ 0.02", "{:.2f} B".format)
    row("DRAM of the index per item, all in", "bytes_per_item", *dram)
    row("the same with two-phase reclaim, which has a bit for each object", "two_phase", *dram)
    if arguments.shape_items:
        row(f"the same, {arguments.shape_items / 1e6:.0f} million items inserted", "shape", *dram)
    if arguments.file_items:
        row(f"the same, {arguments.file_items / 1e6:.1f} million items inserted on a file", "file", *dram)
    row("items for each byte of DRAM of the index", "items_per_byte", "≥ 6 ×", "≥ 10 ×", "{:.3f}".format)
    row("device reads per hit, Zipf 0.99", "reads_per_hit", "≤ 1.5", "≤ 1.2", "{:.3f}".format)
    row("of those one after the other", "rounds_per_hit", "≤ 1.35", "≤ 1.15", "{:.3f}".format)
    row("device reads per miss", "reads_per_miss", "≤ 0.15", "≤ 0.02", "{:.3f}".format)
    row("bytes of mappings written / bytes of items inserted", "mapping_share", "≤ 0.20", "≤ 0.14", "{:.3f}".format)
    row("hit ratio", "hit_ratio", "", "", "{:.4f}".format)
    if arguments.only != "peer":
        row("hit ratio against an exact fifo of as many bytes", "hit_ratio_against_twin", "≥ −1 point", "", "{:.4f}".format)
    return comparison.finish()


def twins(comparison, trace, arguments):
    """Exact caches of as many bytes of objects as the cascade side had."""
    mine = comparison.runs["pumice"][0]
    size = int(mine["report"]["object_bytes_resident_mean"])
    policies = ("fifo", "lru")
    calls = [lambda policy=policy: exact(trace, policy, arguments.warm_up, size) for policy in policies]
    hits = {policy: report["object_hit_ratio"] for policy, report in zip(policies, cascade.at_once(calls))}
    for policy, hit_ratio in hits.items():
        comparison.notes.append(
            f"exact {policy} of {size / 2**20:.0f} MiB of objects hits {hit_ratio:.4f}, cascade {mine['hit_ratio']:.4f}: "
            f"{(mine['hit_ratio'] - hit_ratio) * 100:+.2f} points"
        )
    mine["hit_ratio_against_twin"] = mine["hit_ratio"]
    if comparison.runs["peer"]:
        comparison.runs["peer"][0]["hit_ratio_against_twin"] = hits["fifo"]


if __name__ == "__main__":
    compare.main(main)
