#!/usr/bin/env python3
"""RIPQ with sections of an eighth of the queue against a sixteenth, on a drive whose erase unit holds four blocks.

    python3 bench/ripq_sections.py [--shared ../shared/traces]

Fewer sections have fewer open blocks, and what becomes full is nearer to what it is written with: the drive copies less, and what
is inserted stands less where the policy wants it. One line for each trace and policy that misses a bound of `pumice report ripq` with
a superblock of four blocks at 1/16: combined write amplification and the points (objects, and for SLRU bytes if more) below the exact twin at
equal object bytes. Where the twin hits more than half of the time it is the best of some values of theta and min-raise, as there: the
least amplification of those at most 0.6 points lower. Traces that are not in the folder are left out and named; the Zipf load is
always there.
"""

import glob
import os

from lib import cascade, compare, machine
from lib.compare import Comparison

ALPHAS = {"pumice": "0.125", "peer": "0.0625"}
POINTS_MAX = 0.6
LEVERS = [(), ("--theta", "0.6"), ("--theta", "0.7"), ("--min-raise", "0.5")]
# Trace, policies, and what is tried besides the default.
ROWS = [
    ("zipf", ["slru-1", "gdsf-1", "gdsf-2", "gdsf-3"], LEVERS),
    ("tencent-2706", ["slru-1"], LEVERS),
    ("arc-P6", ["slru-3"], LEVERS),
    ("kvcache_reg", ["slru-1", "gdsf-2", "gdsf-3"], LEVERS[:2]),
    ("arc-P3", ["gdsf-3"], LEVERS[:1]),
    ("arc-P6", ["slru-2", "gdsf-2", "gdsf-3"], LEVERS[:1]),
    ("linux-mysql", ["slru-2", "slru-3"], LEVERS[:1]),
    ("mooncake", ["slru-1", "slru-2", "slru-3", "gdsf-3"], LEVERS[:1]),
]


def workloads(arguments):
    """What `replay` takes for the traces that are there, by name."""
    shared = os.path.realpath(arguments.shared)
    keys, requests = (5_000, 40_000) if arguments.quick else (100_000, 1_000_000)
    found = {"zipf": [f"zipf:keys={keys},theta=0.9,requests={requests},size=600-8192"]}
    if arguments.quick:
        return found
    fixed = ["--object-size", "4KiB"]
    for name, pattern, more in [
        ("tencent-2706", "block/tencentBlock.ns2706*", []),
        ("arc-P3", "block/arc-P3*", fixed),
        ("arc-P6", "block/arc-P6*", fixed),
        ("linux-mysql", "block/linux-mysql*", []),
        ("mooncake", "object/mooncake*", fixed),
    ]:
        for path in glob.glob(os.path.join(shared, pattern)):
            found[name] = [path, *more]
    config = os.path.join(shared, "distributions", "cachelib", "kvcache_reg", "config.json")
    if os.path.exists(config):
        found["kvcache_reg"] = [f"cachelib:config={config},keys=3000000,requests=12000000"]
    return found


def measure(words, policy, alpha, lever):
    """A replay and its twin: amplification, points below it, and what the twin hits."""
    common = [*words, "--warmup", "0.5", "--policy", policy]
    layout = ["--flash-size", "10%", "--layout", "ripq", "--alpha", alpha, "--superblock", "4", *lever]
    report = cascade.replay(*common, *layout)
    twin = cascade.replay(*common, "--flash-size", int(report["object_bytes_resident_mean"]), "--layout", "exact")
    points = [100 * (twin[ratio] - report[ratio]) for ratio in ("object_hit_ratio", "byte_hit_ratio")]
    return {
        "policy": policy,
        "alpha": alpha,
        "lever": " ".join(lever) or "default",
        "amplification": report["combined_write_amplification"],
        "points": points[0] if policy.startswith("gdsf") else max(points),
        "twin": twin["object_hit_ratio"],
    }


def best(found):
    """The least amplification of those that lose no more than they may, or else of all."""
    kept = [one for one in found if one["points"] <= POINTS_MAX]
    return min(kept or found, key=lambda one: one["amplification"])


def main():
    parser = compare.parser(__doc__, pairs=1, seconds=None, cgroup=False)
    parser.add_argument(
        "--shared", default=os.path.join(machine.ROOT, "..", "shared", "traces"), help="traces and distributions (%(default)s)"
    )
    arguments = parser.parse_args()
    arguments.pairs = 1
    machine.build_pumice(not arguments.no_build)
    comparison = Comparison("ripq-sections", arguments, {"superblock": 4, "flash": "10 %", "warm-up": 0.5})
    comparison.sides = {side: f"alpha {alpha}" for side, alpha in ALPHAS.items()}
    found = workloads(arguments)
    for name, policies, levers in ROWS:
        if name not in found:
            comparison.notes.append(f"{name}: not there")
            continue
        for policy in policies:
            tries = [(side, alpha, lever) for side, alpha in ALPHAS.items() for lever in levers]
            runs = cascade.at_once(
                [lambda alpha=alpha, lever=lever: measure(found[name], policy, alpha, lever) for _, alpha, lever in tries]
            )
            texts = []
            for side in ALPHAS:
                one = best([run for (of, _, _), run in zip(tries, runs) if of == side])
                comparison.runs[side].append({"name": name, **one})
                texts.append(
                    f"alpha {one['alpha']} {one['amplification']:.3f}, {one['points']:.2f} points lower ({one['lever']})"
                )
            line = f"{name}, {policy}: {'; '.join(texts)}"
            comparison.notes.append(line)
            print(f"  {line}", flush=True)
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
