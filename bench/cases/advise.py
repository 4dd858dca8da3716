"""The paper on multi-level hybrid caches: the DRAM that flash saves, by `pumice advise`, and how good its curves are."""

import statistics

from cases.ripq_report import traces
from comparison import Comparison, case
from harness import machine
from tools import SHARED, percent

# The trace OLTP of the paper has requests of 15 KB; these are its latencies, and sizes in megabytes.
PAPER = ["--dram-latency", "1.56us", "--flash-latency", "86us", "--miss-latency", "2.35ms"]
PRICES = ["--dram-price", "5", "--flash-price", "1"]
SAMPLED_KEYS, SEEDS = 65536, 5
MEGABYTE = 1e6


def advise(trace, *flags):
    return machine.run_json([machine.BINARY, "advise", *trace, *map(str, flags), "--json"])


def today(trace, dram, flash, *flags):
    report = advise(trace, *PAPER, "--no-replay", "--have", f"dram={dram}B,flash={flash}B", *flags)
    return next(row for row in report["rows"] if row["what"] == "today")


@case(pairs=5, shared=SHARED, quick={"pairs": 1})
def advise_report(arguments):
    """What flash is worth by the paper's own measure, and how exact and fast the curves are that `advise` stands on.

    The paper (section 2.1): 64 MB of DRAM with 128 MB of flash against 128 MB of DRAM, on the curve of arc-OLTP with the paper's latencies: the
    DRAM that flash replaces, by equal response time, and the share of the money for it that is saved where DRAM costs 5 and 10 times as much.

    Curves of 65,536 sampled keys against exact ones: mean difference of the hit ratio over 70 sizes and 5 seeds, for each trace with more keys.
    Speed: gets a second of arc-P6, decoding included, exact and sampled, medians of turns. Exit status 1 where a bound is missed; `--quick`
    holds none of the speed."""
    comparison = Comparison(arguments, {"sampled keys": SAMPLED_KEYS, "seeds": SEEDS})
    known = traces(arguments.shared, False)
    paper = {}
    for ratio in (5, 10):
        row = today(known["arc-OLTP"], 64_000_000, 128_000_000, "--dram-price", ratio, "--flash-price", 1)
        paper |= {"paper: equal MB": row["equal_dram_by_response"] / MEGABYTE, f"paper: saved of replaced at {ratio}": row["saved_of_replaced"],
                  f"paper: saved of whole at {ratio}": row["saved_of_whole"]}
    errors = {}
    for name, trace in known.items():
        exact = advise(trace, *PRICES, *PAPER, "--no-replay")
        if exact["objects"] <= SAMPLED_KEYS:
            continue
        found = [advise(trace, *PRICES, *PAPER, "--no-replay", "--sample", SAMPLED_KEYS, "--seed", seed) for seed in range(1, SEEDS + 1)]
        off = [abs(a[1] - b[1]) for sampled in found for a, b in zip(sampled["curve"], exact["curve"])]
        errors[f"error of {name}"] = statistics.mean(off)
        print(f"  {name}: {exact['objects']} keys, mean error {percent(errors[f'error of {name}'])}", flush=True)

    def turn(_):
        speeds = {}
        for what, flags in (("exact", []), ("sampled", ["--sample", SAMPLED_KEYS])):
            report = advise(known["arc-P6"], *PRICES, *PAPER, "--no-replay", *flags)
            speeds[f"{what}: gets_per_second"] = report["requests"] / report["curve_seconds"]
        return {**paper, **errors, **speeds, "worst error": max(errors.values())}

    comparison.turns(turn)
    million = lambda value: f"{value / 1e6:.1f} M/s"  # noqa: E731
    comparison.row("DRAM that 128 MB of flash beside 64 MB of DRAM replace, OLTP", "paper: equal MB", "60–64 MB", "", "{:.1f} MB".format)
    comparison.row("saved of the DRAM replaced, DRAM 5 times as dear", "paper: saved of replaced at 5", "57–60 %", "", percent)
    comparison.row("the same, 10 times", "paper: saved of replaced at 10", "78–80 %", "", percent)
    comparison.row("saved of the whole, 5 times", "paper: saved of whole at 5", "", "", percent)
    comparison.row("the same, 10 times", "paper: saved of whole at 10", "", "", percent)
    comparison.row("mean error of a sampled curve, worst trace", "worst error", "≤ 0.7 points", "≤ 0.3", percent)
    comparison.row("exact curve of arc-P6", "exact: gets_per_second", "≥ 3 M/s", "8 M/s", million)
    comparison.row("sampled curve of arc-P6", "sampled: gets_per_second", "≥ 10 M/s", "20 M/s", million)
    bounds = [("paper: equal MB", 60, 64), ("paper: saved of replaced at 5", 0.57, 0.60), ("paper: saved of replaced at 10", 0.78, 0.80),
              ("worst error", 0, 0.007)]
    if not arguments.quick:
        bounds += [("exact: gets_per_second", 3e6, float("inf")), ("sampled: gets_per_second", 1e7, float("inf"))]
    for figure, least, most in bounds:
        value = comparison.median("pumice", figure)
        comparison.must(least <= value <= most, f"{figure}: {value:.4g}, must be from {least:.4g} to {most:.4g}")
    return comparison
