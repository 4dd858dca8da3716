#!/usr/bin/env python3
"""What layout ripq loses of its hits with the cascade index, against the exact queue: counts of `pumice replay`.

    python3 bench/cascade_ripq.py [--requests 4000000] [--keys 500000] [--shared ../shared/traces]

`ripq` with slru-3 and index `cascade` on flash of a tenth of the footprint, objects of 4 KiB, the first 40 % of the requests fill
the cache; then `--layout exact` with the same policy and as many bytes as the former had of objects on average. Zipf 0.9, and
two recorded traces of the folder where they are: scarab-recs and arc-OLTP. A row each; the bound is on points of percent
of the hit ratio, which the notes have. There is one turn: the counts are the same each time.
"""

import os

from cascade_traces import FORMATS
from lib import cascade, compare, machine
from lib.compare import Comparison

RECORDED = ["kv/scarab-recs.trace.xz", "block/arc-OLTP.lis.zst"]
COMMON = ["--warmup", 0.4, "--object-size", "4KiB"]
POLICY = ["--policy", "slru-3"]


def traces(arguments):
    """Names, and what `replay` takes for them."""
    yield "Zipf 0.9", [f"zipf:keys={arguments.keys},theta=0.9,requests={arguments.requests},seed=1"]
    for name in RECORDED:
        path = os.path.join(os.path.realpath(arguments.shared), name)
        short = os.path.basename(name).split(".")[0]
        form = next((form for start, form in FORMATS.items() if short.startswith(start)), "auto")
        if os.path.exists(path):
            yield short, [path, "--format", form]


def both_sides(trace):
    ripq = cascade.replay(*trace, *COMMON, "--flash-size", "10%", "--layout", "ripq", "--index", "cascade", *POLICY)
    size = int(ripq["object_bytes_resident_mean"])
    return ripq, cascade.replay(*trace, *COMMON, "--flash-size", size, "--layout", "exact", *POLICY)


def main():
    parser = compare.parser(__doc__, pairs=1, seconds=None, cgroup=False)
    parser.add_argument("--requests", type=int, default=4_000_000, help="requests of what is generated (%(default)s)")
    parser.add_argument("--keys", type=int, default=500_000, help="keys of what is generated (%(default)s)")
    parser.add_argument("--shared", default=os.path.join(machine.ROOT, "..", "shared", "traces"), help="traces (%(default)s)")
    arguments = parser.parse_args()
    arguments.pairs = 1
    if arguments.quick:
        arguments.requests, arguments.keys = 200_000, 40_000
    machine.build_pumice(not arguments.no_build)
    settings = {"requests": arguments.requests, "keys": arguments.keys, "warm-up": 0.4, "policy": "slru-3"}
    comparison = Comparison("cascade-ripq", arguments, settings)
    comparison.sides = {"pumice": "ripq, cascade", "peer": "exact"}
    found = dict(traces(arguments))
    results = cascade.at_once([lambda trace=trace: both_sides(trace) for trace in found.values()])
    for side, at in (("pumice", 0), ("peer", 1)):
        comparison.runs[side].append({name: both[at]["object_hit_ratio"] for name, both in zip(found, results)})
    for name, (ripq, exact) in zip(found, results):
        points = (exact["object_hit_ratio"] - ripq["object_hit_ratio"]) * 100
        comparison.notes.append(
            f"{name}: {points:.2f} points lower; {ripq['index_dram_bytes'] / ripq['objects_cached']:.2f} B of index an object, "
            f"application write amplification {ripq['app_write_amplification']:.3f}"
        )
        comparison.row(f"ripq slru-3 under cascade, hit ratio, {name}", name, "≥ −0.5 points", "≥ −0.2", "{:.4f}".format)
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
