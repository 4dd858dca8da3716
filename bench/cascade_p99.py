#!/usr/bin/env python3
"""A small budget filled with 300-byte items under the cascade index: resident memory, and dependent rounds of gets.

    python3 bench/cascade_p99.py [--dram 256] [--flash 16384] [--seconds 30] [--layout ripq]

`pumice serve --threads 1 --dram 256MiB --flash-size 16GiB --index cascade` (which index it would take by itself, too) gets as many items with values of 300
bytes and keys of 16 as its flash takes, each set once by `pumice bench`, and then gets of keys drawn alike from all of them for
`--seconds`, 32 connections, closed loop. There is no peer: these are bounds of their own.

Resident memory is the most that the process ever had (VmHWM), from the start to the end of the gets, and must be within the budget
plus 10 %. Rounds are reads of the device of which each had to wait for the one before, of each get that was finished, hits and
misses, as the server counts them: the difference of `pumice_index_rounds_bucket` over the gets. DRAM hits count as none. There is
no memory cgroup: a process that takes more than it may is to be seen, not killed.
"""

import json
import re
import urllib.request

from lib import compare, machine, servers
from lib.cgroup import NoGroup
from lib.compare import Comparison, thousands
from lib.load import load
from lib.machine import Trouble

VALUE_BYTES = 300
# Header, key of 16 bytes and footer entry beside the value, and the share of the flash that is not items.
RECORD_BYTES = VALUE_BYTES + 36 + 16 + 28
USABLE = 0.96
OVER_BUDGET_MAX = 1.1
CONNECTIONS = 32
PIPELINE = 8
QUANTILE = 0.99
BUCKET = re.compile(r'^pumice_index_rounds_bucket\{le="([^"]+)"\} (\d+)$', re.MULTILINE)


def page(server, path):
    with urllib.request.urlopen(server.admin + path, timeout=60) as reply:
        return reply.read().decode()


def resident_bytes_max(server):
    status = machine.read(f"/proc/{server.pid}/status") or ""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    if not found:
        raise Trouble(f"process {server.pid} is gone")
    return int(found[1]) << 10


def rounds(server):
    """Gets that took at most so many rounds: {2: 17, ..., inf: 20}."""
    found = {float(upper): int(count) for upper, count in BUCKET.findall(page(server, "/metrics"))}
    if not found:
        raise Trouble("the server has no pumice_index_rounds_bucket in /metrics")
    return found


def quantile(before, after):
    """The smallest number of rounds that so many of the gets took at most."""
    counts = {upper: after[upper] - before.get(upper, 0) for upper in sorted(after)}
    total = counts[float("inf")]
    return next(upper for upper, count in counts.items() if count >= QUANTILE * total), total


def main():
    parser = compare.parser(__doc__, pairs=1, seconds=30, dram=256, cgroup=False)
    parser.add_argument("--flash", type=int, default=16384, help="MiB of flash (%(default)s)")
    parser.add_argument("--layout", default="ripq", help="%(default)s, as serve has it, or fifo or sipq")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.dram, arguments.flash, arguments.seconds, arguments.pairs = 72, 512, 2, 1
    machine.build_pumice(not arguments.no_build)
    items = int(arguments.flash * 2**20 * USABLE / RECORD_BYTES)
    settings = {
        "DRAM MiB": arguments.dram, "flash MiB": arguments.flash, "items": items, "value bytes": VALUE_BYTES,
        "connections": CONNECTIONS, "seconds": arguments.seconds, "layout": arguments.layout,
    }  # fmt: skip
    comparison = Comparison("cascade-p99", arguments, settings)
    comparison.sides = {"pumice": "cascade"}

    def turn(_):
        more = ["--layout", arguments.layout, "--index", "cascade"]
        with servers.pumice(
            comparison.directory, comparison.server_core, NoGroup(), arguments.dram, arguments.flash, *more
        ) as server:
            # Before the fill, so that a server that does not count them is told at once.
            rounds(server)
            workload = {"keys": f"zipf:keys={items},theta=0", "value_size": VALUE_BYTES, "connections": CONNECTIONS}
            load(server, comparison.load_core, mix="get", preload_only=True, pipeline=PIPELINE, **workload)
            before = rounds(server)
            report = load(server, comparison.load_core, mix="get", duration=arguments.seconds, warm_up=0, **workload)
            p99, gets = quantile(before, rounds(server))
            stats = json.loads(page(server, "/stats"))
            return {
                "resident_share": resident_bytes_max(server) / (arguments.dram << 20),
                "rounds_p99": p99,
                "gets": gets,
                "hit_ratio": report["hit_ratio"],
                "items": stats["engine"]["resident_entries"],
                "requests_per_second": report["requests_per_second"],
                "dropped": stats["flash"]["dropped_no_block"],
                "index_bytes": stats["index"]["dram_bytes"],
                "report": report,
                "stats": stats,
            }

    def show(run):
        return (
            f"{run['items'] / 1e6:.2f} of {items / 1e6:.2f} million items held, index {run['index_bytes'] / 2**20:.1f} MiB, at most "
            f"{run['resident_share'] * 100:.0f} % of the budget resident; {thousands(run['requests_per_second'])}, hit ratio "
            f"{run['hit_ratio']:.4f}, {run['rounds_p99']:g} rounds at p99 of {run['gets']} gets; {run['dropped']} sets went without "
            "a flash copy"
        )

    comparison.turns(turn, None, show)
    of = f"{arguments.dram} MiB of DRAM, {arguments.flash} MiB of flash, filled with 300-byte items"
    comparison.row(f"{of}: resident memory / budget", "resident_share", f"≤ {OVER_BUDGET_MAX}", "", "{:.2f}".format)
    comparison.row(f"{of}: dependent rounds of a get at p99", "rounds_p99", "≤ 3", "", "{:g}".format)
    comparison.row(f"{of}: items held", "items", "", "", lambda value: f"{value / 1e6:.2f} million")
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
