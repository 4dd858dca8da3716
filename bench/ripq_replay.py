#!/usr/bin/env python3
"""How fast traces are replayed through layout ripq, beside layout fifo and the exact queue: `pumice replay` on one core.

    python3 bench/ripq_replay.py [--pairs 5] [--requests 4000000] [--keys 500000] [--policy slru-3]

Zipf 0.9 with objects of 4 KiB, flash a tenth of the footprint, a simulated drive, the first two fifths of the requests fill the
cache. Requests a second are all requests over the time of the whole replay, in which the trace is made twice: once to see how
large its footprint is. Layouts take turns. The DRAM of index, queue and histogram for each object is shown beside.
"""

from lib import cascade, compare, machine
from lib.compare import Comparison


def main():
    parser = compare.parser(__doc__, seconds=None, cgroup=False)
    parser.add_argument("--requests", type=int, default=4_000_000, help="requests (%(default)s)")
    parser.add_argument("--keys", type=int, default=500_000, help="objects (%(default)s)")
    parser.add_argument("--policy", default="slru-3", help="ripq's policy (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.keys, arguments.pairs = 200_000, 40_000, 1
    machine.build_pumice(not arguments.no_build)
    trace = f"zipf:keys={arguments.keys},theta=0.9,requests={arguments.requests},seed=1"
    flags = ["--object-size", "4KiB", "--flash-size", "10%", "--warmup", "0.4"]
    comparison = Comparison("ripq-replay", arguments, {"trace": trace, "flags": " ".join(flags)})
    comparison.sides = {"pumice": f"ripq, {arguments.policy}", "peer": "fifo"}

    def side(*layout):
        def turn(_):
            report = cascade.replay(trace, *flags, "--layout", *layout, core=comparison.server_core)
            return {
                "requests/s": report["requests_per_second"],
                "DRAM per object": report["index_dram_bytes"] / max(1, report["objects_cached"]),
                "report": report,
            }

        return turn

    def million(value):
        return f"{value / 1e6:.2f} M/s"

    def show(run):
        return f"{million(run['requests/s'])}, {run['DRAM per object']:.1f} B of DRAM an object, hit ratio {run['report']['object_hit_ratio']:.4f}"

    comparison.turns(side("ripq", "--policy", arguments.policy), side("fifo"), show)
    comparison.row(
        f"replay through ripq with {arguments.policy} against fifo: requests/s", "requests/s", "ripq ≥ 1 M/s", "≥ 3 M/s", million
    )
    comparison.row("DRAM of index and queue for an object", "DRAM per object", "≤ 16 B", "≤ 11 B", lambda value: f"{value:.1f} B")
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
