#!/usr/bin/env python3
"""What layout ripq costs in throughput: ripq with slru-3 against fifo, both Pumice, each with its own misses.

    python3 bench/ripq_throughput.py [--pairs 5] [--requests 1000000] [--trace SPEC] [--dram 0] [--depth 32]

`bench/inprocess pumice-replay`, one layout after the other in turns: the engine on a file with O_DIRECT, one thread, one
io_uring, on one core. The requests of a trace, `--depth` of them at once, look aside: a miss is followed by a set of as many
bytes. Flash is a tenth of the bytes of all objects. There is no DRAM tier unless `--dram` gives one, so a hit is a read of the
device, unless the object's block is still a buffer. A set that finds no room waits until the device has done something; with
a DRAM tier it goes without a flash copy instead, as in a server. The first quarter of the requests fills the cache, the others
are measured until all that they made due is done. Every value is checked for its length and how it begins.

The trace is that of CacheLib's CDN workload, 400,000 keys, if `../shared/traces/distributions` (or `--distributions`) has
it; else Zipf 0.8 over as many keys with sizes of 1 to 64 KiB. `--trace` takes any generator or trace file with sizes.

What the rows compare is requests per second. A layout with more hits reads more and writes less, so which of the two a device
does more cheaply decides part of it: bytes read and written are those that the kernel counts for the process (/proc/self/io),
and hit ratios are shown beside them. Without memory cgroups: neither side uses the page cache.
"""

import os

from lib import compare, machine
from lib.compare import Comparison, thousands

KEYS = 400_000
CDN = os.path.join("cachelib", "cdn", "config.json")


def trace_of(arguments):
    if arguments.trace:
        return arguments.trace
    config = os.path.realpath(os.path.join(arguments.distributions, CDN))
    if os.path.exists(config):
        return f"cachelib:config={config},keys={KEYS},requests={arguments.requests}"
    return f"zipf:keys={KEYS},theta=0.8,size=1024-65536,requests={arguments.requests}"


def gib(value):
    return f"{value / 2**30:.2f} GiB"


def percent(value):
    return f"{value * 100:.2f} %"


def main():
    parser = compare.parser(__doc__, seconds=None, cgroup=False)
    parser.add_argument("--requests", type=int, default=1_000_000, help="requests of the trace (%(default)s)")
    parser.add_argument("--trace", help="a generator or a trace file with sizes, instead")
    parser.add_argument(
        "--distributions", default=os.path.join(machine.ROOT, "..", "shared", "traces", "distributions"),
        help="where CacheLib's distributions are (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--dram", type=int, default=0, help="MiB of DRAM of the process; 0: no DRAM tier (%(default)s)")
    parser.add_argument("--depth", type=int, default=32, help="requests at once (%(default)s)")
    parser.add_argument("--policy", default="slru-3", help="ripq's policy (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.pairs = 60_000, 2
    program = machine.build_inprocess(not arguments.no_build)
    trace = trace_of(arguments)
    shown = trace.replace(os.path.realpath(arguments.distributions) + os.sep, "")
    settings = {"trace": shown, "flash": "10 % of the footprint", "DRAM MiB": arguments.dram, "depth": arguments.depth}
    comparison = Comparison("ripq-throughput", arguments, settings)
    comparison.sides = {"pumice": f"ripq, {arguments.policy}", "peer": "fifo"}
    path = os.path.join(comparison.directory, "replay.pumice")

    def side(*layout):
        def turn(_):
            command = [program, "pumice-replay", "--path", path, "--trace", trace, "--dram-mib", str(arguments.dram),
                       "--depth", str(arguments.depth), "--layout", *layout]  # fmt: skip
            report = machine.run_json(command, comparison.server_core)
            took = report["took"]
            return {
                "requests_per_second": report["requests_per_second"],
                "object_hit_ratio": report["object_hit_ratio"],
                "byte_hit_ratio": report["byte_hit_ratio"],
                "bytes_read": took["device_read_bytes"],
                "bytes_written": took["device_written_bytes"],
                "bytes_read_to_move": report["reclaim_read_bytes"],
                "cpu_us": report["cpu_us_per_request"],
                "core_busy": took["cpu_seconds"] / took["seconds"],
                "report": report,
            }

        return turn

    def show(run):
        return (
            f"{thousands(run['requests_per_second'])}, {run['cpu_us']:.2f} us CPU each, core {run['core_busy'] * 100:.0f} % "
            f"busy, hit ratio {run['object_hit_ratio']:.4f} ({run['byte_hit_ratio']:.4f} of the bytes), "
            f"{gib(run['bytes_read'])} read ({gib(run['bytes_read_to_move'])} of them to move objects), "
            f"{gib(run['bytes_written'])} written"
        )

    try:
        comparison.turns(side("ripq", "--policy", arguments.policy), side("fifo"), show)
    finally:
        if os.path.exists(path):
            os.remove(path)
    what = f"ripq with {arguments.policy} against fifo on a file"
    comparison.row(f"{what}: requests/s", "requests_per_second", "≥ 0.90 ×", "≥ 0.97 ×", thousands, cpu="cpu_us")
    comparison.row(f"{what}: hit ratio", "object_hit_ratio", "", "", percent)
    comparison.row(f"{what}: bytes read", "bytes_read", "", "", gib)
    comparison.row(f"{what}: bytes written", "bytes_written", "", "", gib)
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
