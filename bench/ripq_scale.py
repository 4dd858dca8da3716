#!/usr/bin/env python3
"""The cache of the RIPQ paper, simulated: 670 GiB of flash, blocks of 256 MiB, some 50 million objects.

    python3 bench/ripq_scale.py [--requests 125000000]

One `pumice replay` of Zipf 0.6 over 100 million keys with objects of 13 KiB through ripq with slru-3 on a simulated drive. Takes
five minutes and 4 GiB of DRAM. It must come to its end within 30 minutes with at most 4 GiB resident.
"""

import os
import threading

from lib import cascade, compare, machine
from lib.compare import Comparison

OBJECT_KIB = 13
KEYS = 100_000_000


def peak_bytes(call):
    """What a function returns, and the most that its one child process has had resident."""
    peak, is_over = 0, threading.Event()

    def watch():
        nonlocal peak
        while not is_over.wait(0.5):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                children = file.read().split()
            for child in children:
                for line in (machine.read(f"/proc/{child}/status") or "").splitlines():
                    if line.startswith("VmHWM:"):
                        peak = max(peak, int(line.split()[1]) * 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        is_over.set()
        watcher.join()
    return result, peak


def main():
    parser = compare.parser(__doc__, pairs=1, seconds=None, cgroup=False)
    parser.add_argument("--requests", type=int, default=125_000_000, help="requests (%(default)s)")
    arguments = parser.parse_args()
    arguments.pairs = 1
    keys, flash, block = KEYS, "670GiB", "256MiB"
    if arguments.quick:
        keys, flash, block, arguments.requests = 100_000, "700MiB", "1MiB", 200_000
    machine.build_pumice(not arguments.no_build)
    trace = f"zipf:keys={keys},theta=0.6,requests={arguments.requests},seed=1"
    flags = ["--object-size", f"{OBJECT_KIB}KiB", "--flash-size", flash, "--block-size", block]
    comparison = Comparison("ripq-scale", arguments, {"trace": trace, "flags": " ".join(flags)})
    comparison.sides = {"pumice": "ripq, slru-3"}

    def turn(_):
        layout = ["--layout", "ripq", "--policy", "slru-3"]
        report, peak = peak_bytes(lambda: cascade.replay(trace, *flags, *layout))
        return {
            "seconds": report["elapsed_seconds"],
            "resident": peak,
            "objects": report["objects_cached"],
            "DRAM per object": report["index_dram_bytes"] / max(1, report["objects_cached"]),
            "amplification": report["combined_write_amplification"],
            "report": report,
        }

    def show(run):
        return (
            f"{run['seconds']:.0f} s, at most {run['resident'] / 2**30:.2f} GiB resident, {run['objects'] / 1e6:.1f} M objects, "
            f"{run['DRAM per object']:.1f} B of index and queue each, amplification {run['amplification']:.2f}"
        )

    comparison.turns(turn, None, show)
    comparison.row("the paper's scale: time", "seconds", "≤ 30 min", "", lambda value: f"{value:.0f} s")
    comparison.row("the paper's scale: resident", "resident", "≤ 4 GiB", "", lambda value: f"{value / 2**30:.2f} GiB")
    comparison.row("the paper's scale: objects", "objects", "", "", lambda value: f"{value / 1e6:.1f} M")
    comparison.row("the paper's scale: DRAM of index and queue an object", "DRAM per object", "≤ 16 B", "≤ 11 B",
                   lambda value: f"{value:.1f} B")  # fmt: skip
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
