"""The paper on multi-level hybrid caches: the DRAM that flash saves, by `pumice advise`, how good its curves are, and its predictions."""

import statistics

from comparison import Comparison, case, show_table
from harness import machine
from tools import at_once, percent, replay
from traces import SHARED, Traces

# The trace OLTP of the paper has requests of 15 KB; these are its latencies, and sizes in megabytes.
PAPER = ["--dram-latency", "1.56us", "--flash-latency", "86us", "--miss-latency", "2.35ms"]
PRICES = ["--dram-price", "5", "--flash-price", "1"]
SAMPLED_KEYS, SEEDS = 65536, 5
MEGABYTE = 1e6
PREDICTED_PRICES = ["--dram-price", "4", "--flash-price", "0.1"]
REPLAYED = ["arc-OLTP", "arc-P3", "arc-P6", "cloudphysics", "linux-mysql", "tencent-1326", "tencent-2706", "tencent-3300", "wiki-train", "wiki-val",
            "scarab-recs", "cache2k-orm-busy", "cache2k-web07", "adaptsize-bu98", "mooncake", "zipf"]
# Objects have 4 KiB where a trace has no sizes; these would be too few bytes to choose from.
SIZES = {"scarab-recs": "300B"}


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
    Speed: gets a second of arc-P6, decoding included, exact and sampled, medians of turns."""
    comparison = Comparison(arguments, {"sampled keys": SAMPLED_KEYS, "seeds": SEEDS})
    known = Traces(arguments.shared)
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
    return comparison


def replayed(arguments, trace, row, size):
    """What `replay` reports of a row of `advise`."""
    flags = ["--ops", "look-aside", "--object-size", size]
    if row["flash_bytes"] == 0:
        # All but the sixteenth that `advise` leaves to the cache itself.
        items = row["dram_bytes"] - row["dram_bytes"] // 16
        return replay(*trace, "--layout", "exact", "--policy", "lru", "--flash-size", f"{items}B", *flags)
    # The flags of its command line.
    flags += row["command"].replace("pumice serve", "").replace("--flash PATH", "").split()
    return replay(*trace, *flags, "--superblock", 0, "--throttle", arguments.flash, "--dram-latency", arguments.hit, "--miss-latency", arguments.miss)


def compared(arguments, trace, row, size, advice):
    """A row of advice, predicted and replayed."""
    report = replayed(arguments, trace, row, size)
    hits = report["object_hit_ratio"]
    response = report["response_ns"] or hits * advice["dram_ns"] + (1 - hits) * advice["miss_ns"]
    without = [row["response_ns"] - (1 - row["hit_ratio"]) * advice["miss_ns"], response - (1 - hits) * advice["miss_ns"]]
    return {"what": row["what"], "dram_bytes": row["dram_bytes"], "flash_bytes": row["flash_bytes"],
            "predicted_hits": row["hit_ratio"], "hits": hits, "predicted_response_ns": row["response_ns"], "response_ns": response,
            "off_hits": abs(row["hit_ratio"] - hits), "off_response": abs(row["response_ns"] / response - 1),
            "off_without_misses": abs(without[0] / without[1] - 1)}


def worst(rows):
    return {name: max((row[name] for row in rows), default=0) for name in ("off_hits", "off_response", "off_without_misses")}


@case(pairs=None, shared=SHARED, trace=([], f"a trace, by its short name [{', '.join(REPLAYED)}]"), flash=("nvme", "kind of the flash device"),
      hit=("6us", "what a hit in DRAM takes, and a set: by default the server's CPU time for one"), miss=("2.35ms", "what a miss takes"),
      have=("", "today's sizes, such as dram=128MiB,flash=512MiB, instead"), quick={"trace": ["zipf"]})
def advise_replay(arguments):
    """What `advise` predicts of each option against a whole replay of it: hits and mean response time.

    The at most five rows of `advise --json`. Today's sizes are a fifth of the bytes of all objects as flash and a fortieth as DRAM, at least 64 and
    96 MiB. A row with flash is replayed with `--throttle`: the engine in virtual time, one get after the other, while blocks are written beside the
    reads. A row of DRAM alone is replayed on an exact LRU. Misses are most of the response time: what is left without them has a column of its own.
    Exit status 1 where hits are off by more than a point, or the response time by more than 5 %."""
    names = arguments.trace or REPLAYED
    comparison = Comparison(arguments, {"traces": ", ".join(names), "flash": arguments.flash, "a hit": arguments.hit, "a miss": arguments.miss,
                                        "today": arguments.have or "by the trace"})
    known = Traces(arguments.shared, arguments.quick)

    def of_trace(name):
        size = SIZES.get(name, "4KiB")
        flags = [*PREDICTED_PRICES, "--flash-kind", arguments.flash, "--dram-latency", arguments.hit, "--miss-latency", arguments.miss,
                 "--object-size", size]
        all_mib = advise(known[name], *flags, "--no-replay")["footprint_bytes"] >> 20
        have = arguments.have or f"dram={max(96, all_mib // 40)}MiB,flash={max(64, all_mib // 5)}MiB"
        advice = advise(known[name], *flags, "--have", have, "--jobs", 2)
        rows = at_once([lambda row=row: compared(arguments, known[name], row, size, advice) for row in advice["rows"]])
        for row in rows:
            print(f"  {name}, {row['what']}: {row['dram_bytes'] >> 20} + {row['flash_bytes'] >> 20} MiB: hits {percent(row['predicted_hits'])} predicted, "
                  f"{percent(row['hits'])} replayed; response {row['predicted_response_ns'] / 1e3:.1f}, {row['response_ns'] / 1e3:.1f} us "
                  f"({percent(row['off_response'])} off; without misses {percent(row['off_without_misses'])} off)", flush=True)
        return rows

    def turn(_):
        rows = {name: of_trace(name) for name in names}
        return {**worst([row for of_one in rows.values() for row in of_one]), "rows": rows}

    comparison.turns(turn)
    show_table("Predicted against replayed", ["trace", "options; with flash", "hits off, worst, points", "response off, worst", "of it without misses"],
               ([name, f"{len(rows)}; {sum(row['flash_bytes'] > 0 for row in rows)}", f"{off['off_hits'] * 100:.2f}", percent(off["off_response"]),
                 percent(off["off_without_misses"])] for name, rows in comparison.runs["pumice"][0]["rows"].items() for off in [worst(rows)]))
    comparison.row("hits predicted against a whole replay, worst option", "off_hits", "≤ 1 points", "≤ 0.5", percent)
    comparison.row("mean response time predicted, worst option", "off_response", "≤ 5 %", "≤ 2 %", percent)
    comparison.row("of it without misses, worst option", "off_without_misses", "", "", percent)
    return comparison
