#!/usr/bin/env python3
"""What an item takes in DRAM, against memcached: small values, as many as fit.

    python3 bench/dram_items.py [--sizes 50,100,300] [--mib 256]

Each side gets twice as many items as it has room for, with keys of 10 bytes and values of each of `--sizes`, over one connection.
Then its own statistics say how many it holds in DRAM, and of what memory. Pumice: `serve --dram`, whose DRAM tier has the
segments, table and ghost queue that `/stats` reports; it holds copies of what is on flash, of which there is little here.
memcached: `-m`, and its hash table beside. The overhead is what is left of the memory for each item without key and value:
header, table, what alignment, slab classes and the ends of segments leave empty. Nothing is timed; one turn.
"""

import json
import urllib.request

from dram_per_item import fill
from lib import compare, machine, servers
from lib.cgroup import NoGroup
from lib.compare import Comparison

KEY_BYTES = 10
FLASH_MIB = 256


def of_pumice(server):
    with urllib.request.urlopen(f"{server.admin}/stats", timeout=60) as reply:
        tier = json.load(reply)["tier"]
    return tier["dram_items"], sum(tier[name] for name in ("dram_segment_bytes", "dram_table_bytes", "ghost_bytes"))


def of_memcached(server):
    stats = server.stats()
    return int(stats["curr_items"]), int(stats["limit_maxbytes"]) + int(stats["hash_bytes"])


def main():
    parser = compare.parser(__doc__, pairs=1, seconds=None, cgroup=False)
    parser.add_argument("--sizes", default="50,100,300", help="bytes of the values (%(default)s)")
    parser.add_argument("--mib", type=int, default=256, help="MiB of either side (%(default)s)")
    arguments = parser.parse_args()
    arguments.pairs = 1
    if arguments.quick:
        arguments.mib = 96
    machine.build_pumice(not arguments.no_build)
    memcached = machine.install("memcached", "memcached")
    sizes = [int(size) for size in arguments.sizes.split(",")]
    settings = {"value bytes": arguments.sizes, "key bytes": KEY_BYTES, "MiB": arguments.mib, "flash MiB": FLASH_MIB}
    comparison = Comparison("dram-items", arguments, settings)
    comparison.sides = {"pumice": "pumice", "peer": machine.version_of([memcached, "--version"])}
    core, directory = comparison.server_core, comparison.directory

    def start(side):
        if side == "pumice":
            return servers.pumice(directory, core, NoGroup(), arguments.mib, FLASH_MIB, "--layout", "fifo")
        return servers.memcached(directory, core, NoGroup(), arguments.mib)

    def overhead(side, reading, size):
        with start(side) as server:
            fill(server, 0, 2 * (arguments.mib << 20) // (KEY_BYTES + size + 40), lambda: None, size)
            items, held = reading(server)
        return {"items": items, "bytes": held, "overhead": held / items - KEY_BYTES - size}

    for side, reading in (("pumice", of_pumice), ("peer", of_memcached)):
        run = {}
        for size in sizes:
            found = overhead(side, reading, size)
            run[str(size)] = found["overhead"]
            note = f"{comparison.sides[side]}, values of {size} bytes: {found['items']} items in {found['bytes'] / 2**20:.1f} MiB"
            comparison.notes.append(f"{note}: {found['overhead']:.1f} bytes for each beside key and value")
        comparison.runs[side].append(run)
    for size in sizes:
        comparison.row(f"overhead of an item in DRAM, values of {size} bytes", str(size), "", "", "{:.1f} B".format)
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
