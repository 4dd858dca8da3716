#!/usr/bin/env python3
"""Two-phase reclaim against plain FIFO under the cascade index: a look-aside load before an origin that takes 5 ms.

    python3 bench/cascade_two_phase.py [--pairs 3] [--seconds 30] [--keys 2000000] [--depth 16] [--origin-ms 5]

Both sides are `bench/inprocess pumice-gets --index cascade`, with `--reclaim two-phase` and with `--reclaim evict`: the engine
under layout fifo, without a DRAM tier, on a file with O_DIRECT, one thread, on the same one core. Flash is such that a fifth of
the keys fit, with values of 300 bytes. `--depth` tasks make gets of keys drawn by Zipf 0.99, each one after the other. Where a
get misses, its task waits for as long as the origin takes, and sets the item. Every value is checked for its key and length.
Both are filled, and look aside for `--warm-up` seconds before an origin that takes no time; then they take turns.

Requests per second follow from the load being closed: each task needs the time of a get for each request, and that of the
origin for each that misses, so requests/s = depth / (time of a get + miss ratio x time of the origin). What is not the
origin's, the device's reads, sets and what they wait for, is shown beside it. The thread polls while the origin is waited for, so
CPU time says nothing.

Amplification is all bytes that the engine sends to the device for each byte of items that are set; a turn is a part of one time
round the flash, so that of the replay, many times round, says more. Misses are compared with an
exact LRU's by `pumice replay`: the same keys through two-phase reclaim on a simulated device, and through `--layout exact --policy
lru` of as many bytes as it had of objects on average.
"""

import math

from lib import cascade, compare, machine
from lib.cascade import ITEM_BYTES
from lib.compare import Comparison, thousands

SHARE = 0.2
# So much more flash than items take: blocks that are free, are buffers, or hold mappings.
SPARE = 1.13
WORKLOAD = "zipf:theta=0.99"
# Requests at once while there is no origin to wait for.
WARM_UP_DEPTH = 256
RECLAIMS = {"pumice": "two-phase", "peer": "evict"}
# Requests of the replay for each item that fits: several times round the flash, and as many again that count.
REQUESTS_PER_ITEM = 40


def replayed_misses(comparison, items, keys, flash):
    """Miss ratios of two-phase reclaim and of exact LRU for as many bytes of objects, without any times."""
    trace = f"{WORKLOAD},keys={keys},requests={items * REQUESTS_PER_ITEM}"
    common = ["--object-size", ITEM_BYTES, "--warmup", 0.5]
    flags = ["--layout", "fifo", "--index", "cascade", "--superblock", 0, "--flash-size", f"{flash}MiB"]
    reclaims = [
        lambda reclaim=reclaim: cascade.replay(trace, *common, *flags, "--reclaim", reclaim) for reclaim in RECLAIMS.values()
    ]
    two_phase, evict = cascade.at_once(reclaims)
    size = int(two_phase["object_bytes_resident_mean"])
    lru = cascade.replay(trace, *common, "--layout", "exact", "--policy", "lru", "--flash-size", size)
    comparison.notes.append(
        f"replayed, {size / ITEM_BYTES / keys * 100:.1f} % of the keys cached: misses {1 - two_phase['object_hit_ratio']:.4f} with "
        f"two-phase, {1 - evict['object_hit_ratio']:.4f} with evict, {1 - lru['object_hit_ratio']:.4f} with exact LRU of as many "
        f"bytes; amplification {two_phase['app_write_amplification']:.3f} and {evict['app_write_amplification']:.3f}"
    )
    return {"two-phase": two_phase, "evict": evict, "lru": lru}


def main():
    parser = compare.parser(__doc__, pairs=3, seconds=30, cgroup=False)
    parser.add_argument("--keys", type=int, default=2_000_000, help="keys (%(default)s)")
    parser.add_argument("--depth", type=int, default=16, help="requests at once (%(default)s)")
    parser.add_argument("--origin-ms", type=float, default=5, help="what a miss waits for (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=90, help="seconds (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.keys, arguments.seconds, arguments.pairs, arguments.warm_up = 400_000, 2, 2, 4
    machine.build_pumice(not arguments.no_build)
    program = machine.build_inprocess(not arguments.no_build)
    items = int(arguments.keys * SHARE)
    flash = math.ceil(items * cascade.RECORD_BYTES * SPARE / 2**20)
    settings = {
        "keys": f"{WORKLOAD},keys={arguments.keys}", "value bytes": ITEM_BYTES, "flash MiB": flash, "depth": arguments.depth,
        "origin ms": arguments.origin_ms, "seconds": arguments.seconds, "warm-up": arguments.warm_up,
    }  # fmt: skip
    comparison = Comparison("cascade-two-phase", arguments, settings)
    comparison.sides = dict(RECLAIMS)
    flags = {name: ["--index", "cascade", "--reclaim", reclaim] for name, reclaim in RECLAIMS.items()}

    def side(process):
        def turn(_):
            report = process.run(WORKLOAD, arguments.depth, arguments.seconds, arguments.origin_ms)
            cycle_ms = arguments.depth / report["requests_per_second"] * 1e3
            origin_ms = report["miss_ratio"] * arguments.origin_ms
            return {
                "requests_per_second": report["requests_per_second"],
                "miss_ratio": report["miss_ratio"],
                "amplification": report["written_bytes"] / max(report["appended_bytes"], 1),
                "cycle_ms": cycle_ms,
                "origin_ms": origin_ms,
                "cached": report["resident_entries"] / arguments.keys,
                "report": report,
            }

        return turn

    def show(run):
        return (
            f"{thousands(run['requests_per_second'])}: {run['cycle_ms']:.3f} ms a request, {run['origin_ms']:.3f} of them the "
            f"origin's; misses {run['miss_ratio']:.4f}, amplification {run['amplification']:.3f}, "
            f"{run['cached'] * 100:.1f} % of the keys cached"
        )

    with cascade.gets_of_sides(comparison, program, "origin", arguments.keys, flash, flags) as processes:
        for process in processes.values():
            process.run(WORKLOAD, WARM_UP_DEPTH, arguments.warm_up, 0)
        comparison.turns(*[side(processes.get(name)) for name in RECLAIMS], show)
    if arguments.only is None:
        reports = replayed_misses(comparison, items, arguments.keys, flash)
        for name, which, reclaim in (("pumice", "two-phase", "two-phase"), ("peer", "lru", "evict")):
            comparison.runs[name][0]["replayed_misses"] = 1 - reports[which]["object_hit_ratio"]
            comparison.runs[name][0]["replayed_amplification"] = reports[reclaim]["app_write_amplification"]
            comparison.runs[name][0]["replay"] = reports[which]
    what = "two-phase reclaim against plain FIFO"
    row = f"{what}, look-aside with an origin of {arguments.origin_ms:g} ms: requests/s"
    comparison.row(row, "requests_per_second", "≥ 1.12 ×", "≥ 1.20 ×", thousands)
    comparison.row(f"{what}: misses", "miss_ratio", "", "", "{:.4f}".format)
    comparison.row(f"{what}: amplification", "amplification", "", "", "{:.3f}".format)
    row = f"{what}, replayed for {REQUESTS_PER_ITEM} requests an item: amplification"
    comparison.row(row, "replayed_amplification", "", "", "{:.3f}".format)
    comparison.row("misses of two-phase reclaim against exact LRU, replayed", "replayed_misses", "≤ 1.00 ×", "", "{:.4f}".format)
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
