#!/usr/bin/env python3
"""What layout ripq costs in throughput: ripq with slru-3 against fifo, both Pumice, each with its own misses.

    python3 bench/ripq_throughput.py [--pairs 5] [--requests 1000000] [--trace SPEC ...] [--dram 0] [--depth 32]

`bench/inprocess pumice-replay`, one layout after the other in turns: the engine on a file with O_DIRECT, one thread, one
io_uring, on one core. The requests of a trace, `--depth` of them at once, look aside: a miss is followed by a set of as many
bytes. An object has the size of its first request for good. Flash is a tenth of the bytes of all objects. There is no DRAM tier unless `--dram` gives one, so a hit is a read of the
device, unless the object's block is still a buffer. A set that finds no room waits until the device has done something; with
a DRAM tier it goes without a flash copy instead, as in a server. The first quarter of the requests fills the cache, the others
are measured until all that they made due is done. Every value is checked for its length and how it begins.

The traces are CacheLib's CDN workload, 400,000 keys (nothing but popularity), and two recorded ones: Wikipedia's CDN and a
volume of Tencent's block store with large requests, if `../shared/traces` (or `--traces`) has them; else Zipf 0.8 over as many
keys with sizes of 1 to 64 KiB. The recorded ones are short: a turn takes one and ten seconds. `--trace` takes any generator or
trace file instead, more than once. One whose requests have no sizes has objects of 4 KiB.

What the rows compare is requests per second. A layout with more hits reads more and writes less, so which of the two a device
does more cheaply decides part of it: bytes read and written are those that the kernel counts for the process (/proc/self/io),
and hit ratios are shown beside them. Without memory cgroups: neither side uses the page cache.
"""

import os

from lib import compare, machine
from lib.compare import Comparison, thousands

KEYS = 400_000
RECORDED = {
    "wiki": os.path.join("object", "wiki_sampled_train_trace.tsv.zst"),
    "tencent-3300": os.path.join("block", "tencentBlock.ns3300.sample.csv.zst"),
}


def traces_of(arguments):
    """Names and what `--trace` of the program takes."""
    if arguments.trace:
        return {os.path.basename(trace): trace for trace in arguments.trace}
    folder = os.path.realpath(arguments.traces)
    config = os.path.join(folder, "distributions", "cachelib", "cdn", "config.json")
    if not os.path.exists(config):
        return {"zipf": f"zipf:keys={KEYS},theta=0.8,size=1024-65536,requests={arguments.requests}"}
    recorded = {name: os.path.join(folder, file) for name, file in RECORDED.items()}
    return {"cdn": f"cachelib:config={config},keys={KEYS},requests={arguments.requests}", **recorded}


def gib(value):
    return f"{value / 2**30:.2f} GiB"


def percent(value):
    return f"{value * 100:.2f} %"


def main():
    parser = compare.parser(__doc__, seconds=None, cgroup=False)
    parser.add_argument("--requests", type=int, default=1_000_000, help="requests of what is generated (%(default)s)")
    parser.add_argument("--trace", action="append", help="a generator or a trace file, instead")
    parser.add_argument(
        "--traces", default=os.path.join(machine.ROOT, "..", "shared", "traces"), help="recorded traces (%(default)s)"
    )
    parser.add_argument("--dram", type=int, default=0, help="MiB of DRAM of the process; 0: no DRAM tier (%(default)s)")
    parser.add_argument("--depth", type=int, default=32, help="requests at once (%(default)s)")
    parser.add_argument("--policy", default="slru-3", help="ripq's policy (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.pairs = 60_000, 2
    program = machine.build_inprocess(not arguments.no_build)
    traces = traces_of(arguments)
    shown = " ".join(trace.replace(os.path.realpath(arguments.traces) + os.sep, "") for trace in traces.values())
    settings = {"traces": shown, "flash": "10 % of the footprint", "DRAM MiB": arguments.dram, "depth": arguments.depth}
    comparison = Comparison("ripq-throughput", arguments, settings)
    comparison.sides = {"pumice": f"ripq, {arguments.policy}", "peer": "fifo"}
    path = os.path.join(comparison.directory, "replay.pumice")

    def side(name, trace, *layout):
        def turn(_):
            command = [program, "pumice-replay", "--path", path, "--trace", trace, "--dram-mib", str(arguments.dram),
                       "--depth", str(arguments.depth), "--layout", *layout]  # fmt: skip
            report = machine.run_json(command, comparison.server_core)
            took = report["took"]
            return {
                f"{name}: requests/s": report["requests_per_second"],
                f"{name}: hit ratio": report["object_hit_ratio"],
                f"{name}: byte hit ratio": report["byte_hit_ratio"],
                f"{name}: bytes read": took["device_read_bytes"],
                f"{name}: bytes written": took["device_written_bytes"],
                f"{name}: bytes read to move": report["reclaim_read_bytes"],
                f"{name}: cpu": report["cpu_us_per_request"],
                f"{name}: busy": took["cpu_seconds"] / took["seconds"],
                "report": report,
            }

        return turn

    def show(name):
        return lambda run: (
            f"{name}: {thousands(run[f'{name}: requests/s'])}, {run[f'{name}: cpu']:.2f} us CPU each, core "
            f"{run[f'{name}: busy'] * 100:.0f} % busy, hit ratio {run[f'{name}: hit ratio']:.4f} "
            f"({run[f'{name}: byte hit ratio']:.4f} of the bytes), {gib(run[f'{name}: bytes read'])} read "
            f"({gib(run[f'{name}: bytes read to move'])} of them to move objects), {gib(run[f'{name}: bytes written'])} written"
        )

    try:
        for name, trace in traces.items():
            ripq = side(name, trace, "ripq", "--policy", arguments.policy)
            comparison.turns(ripq, side(name, trace, "fifo"), show(name))
    finally:
        if os.path.exists(path):
            os.remove(path)
    what = f"ripq with {arguments.policy} against fifo on a file"
    for name in traces:
        comparison.row(f"{what}, {name}: requests/s", f"{name}: requests/s", "≥ 0.90 ×", "≥ 0.97 ×", thousands, cpu=f"{name}: cpu")
    for name in traces:
        comparison.row(f"{name}: hit ratio", f"{name}: hit ratio", "", "", percent)
        comparison.row(f"{name}: bytes read", f"{name}: bytes read", "", "", gib)
        comparison.row(f"{name}: bytes written", f"{name}: bytes written", "", "", gib)
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
