#!/usr/bin/env python3
"""Published distributions and recorded key-value traces through the cascade index and the full one: counts of `pumice replay`.

    python3 bench/cascade_traces.py [--requests 20000000] [--keys 20000000] [--flash 512] [--shared ../shared/traces]

One line each, as notes: hit ratio, DRAM of the index for each object, device reads a hit and a miss, and mappings written for each
byte inserted, of both indexes under layout fifo on a simulated device, without a DRAM tier; the first half of the requests fills
the cache.

- YCSB's: Zipf 0.99, hotspot (1 % of the keys, 90 % of the gets), normal (standard deviation 1 % of the keys); 300-byte items.
- CacheLib's: `kvcache_reg` and `graph_cache_leader` with their own sizes, and the popularity of `kvcache_reg` with 300-byte
  items. Sets and deletes are requests as gets are: a miss inserts.
- Recorded: the KV traces of the folder, none of which has sizes; 300-byte items, flash a fifth of the footprint. They are
  short: with a cache that small a partition's fixed costs are most of what the index takes.
"""

import os

from cascade_dram import figures, text
from lib import cascade, compare, machine
from lib.cascade import ITEM_BYTES
from lib.compare import Comparison

# Recorded traces that say which keys were asked for, and how many records make a cache worth its name.
RECORDED_BYTES_MIN = 50_000
RECORDED_FLASH = "20%"
# Binary formats that do not show themselves, by how the file's name begins.
FORMATS = {"cache2k": "keys-be-u32", "scarab": "keys-be-i64"}
INDEXES = {"pumice": "cascade", "peer": "full"}


def workloads(arguments):
    """Names, and what `replay` takes for them."""
    tail = f"keys={arguments.keys},requests={arguments.requests},seed=1"
    fixed = ["--object-size", ITEM_BYTES]
    generated = ["--flash-size", f"{arguments.flash}MiB"]
    found = {
        "Zipf 0.99": [f"zipf:theta=0.99,{tail}", *fixed, *generated],
        "hotspot": [f"hotspot:hot=0.01,share=0.9,{tail}", *fixed, *generated],
        "normal": [f"normal:sd=0.01,{tail}", *fixed, *generated],
    }
    shared = os.path.realpath(arguments.shared)
    for name in ("kvcache_reg", "graph_cache_leader"):
        config = os.path.join(shared, "distributions", "cachelib", name, "config.json")
        if os.path.exists(config):
            found[f"CacheLib {name}"] = [f"cachelib:config={config},{tail}", *generated]
    popularity = os.path.join(shared, "distributions", "cachelib", "kvcache_reg", "pop.json")
    if os.path.exists(popularity):
        found["CacheLib kvcache_reg, popularity alone"] = [f"cachelib:pop={popularity},{tail}", *fixed, *generated]
    folder = os.path.join(shared, "kv")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if os.path.getsize(path) >= RECORDED_BYTES_MIN:
            form = next((form for start, form in FORMATS.items() if name.startswith(start)), "auto")
            found[name.split(".")[0]] = [path, "--format", form, *fixed, "--flash-size", RECORDED_FLASH]
    return found


def line(run):
    return (
        f"hit ratio {run['hit_ratio']:.4f}, {run['items']} items, {run['bytes_per_item']:.2f} B of index each, "
        f"{text(run['reads_per_hit'])} reads a hit, {text(run['reads_per_miss'])} a miss, mappings {text(run['mapping_share'])}"
    )


def main():
    parser = compare.parser(__doc__, pairs=1, seconds=None, cgroup=False)
    parser.add_argument("--requests", type=int, default=20_000_000, help="requests of what is generated (%(default)s)")
    parser.add_argument("--keys", type=int, default=20_000_000, help="keys of what is generated (%(default)s)")
    parser.add_argument("--flash", type=int, default=512, help="MiB of flash for what is generated (%(default)s)")
    parser.add_argument(
        "--shared", default=os.path.join(machine.ROOT, "..", "shared", "traces"), help="traces and distributions (%(default)s)"
    )
    arguments = parser.parse_args()
    arguments.pairs = 1
    if arguments.quick:
        arguments.requests, arguments.keys, arguments.flash = 600_000, 200_000, 16
    machine.build_pumice(not arguments.no_build)
    settings = {"requests": arguments.requests, "keys": arguments.keys, "flash MiB": arguments.flash, "warm-up": 0.5}
    comparison = Comparison("cascade-traces", arguments, settings)
    comparison.sides = dict(INDEXES)
    found = workloads(arguments)
    common = ["--warmup", 0.5, "--superblock", 0]

    def run(trace, index, more):
        report = cascade.replay(trace, *more, "--layout", "fifo", "--index", index, *common)
        # Where the folder is says nothing of the run.
        report["trace"] = trace.replace(os.path.realpath(arguments.shared) + os.sep, "")
        return {"trace": report["trace"], **figures(report)}

    for name, (trace, *more) in found.items():
        both = cascade.at_once([lambda index=index: run(trace, index, more) for index in INDEXES.values()])
        for (side, index), result in zip(INDEXES.items(), both):
            comparison.runs[side].append({"name": name, **result})
            comparison.notes.append(f"{name}, {index}: {line(result)}")
            print(f"  {name}, {index}: {line(result)}", flush=True)
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
