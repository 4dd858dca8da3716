"""What goes to flash: rules of admission, and a budget of bytes in any period."""

import bisect

from comparison import Comparison, case
from harness import machine
from tools import percent
from traces import SHARED, Traces

TIMED = ["linux-mysql", "cloudphysics", "wiki-val", "tencent-1326"]
SHARES = [0.5, 0.25]
RULES = ["all", "second-hit"]
# Traces and the shares of what `all` writes at which more comes than the budget takes for a whole period: they must, or nothing is measured.
LASTING = {"linux-mysql": [0.25], "tencent-1326": [0.5, 0.25]}
PARTS = 24
UNTIMED = ["arc-OLTP", "arc-P3", "arc-P6", "scarab-recs", "cache2k-orm-busy", "cache2k-web07", "linux-mysql", "cloudphysics"]


def replay(trace, *flags):
    return machine.run_json([machine.BINARY, "replay", *trace, "--object-size", "4KiB", "--superblock", 0, *map(str, flags), "--json"])


def timeline(path, trace, *flags):
    """The report, bytes sent to the device until any second of the trace, and bytes of objects that were to be written until then."""
    report = replay(trace, *flags, "--timeline", path)
    with open(path) as file:
        rows = [tuple(map(int, line.split(","))) for line in file]
    return report, Until(rows, 1), Until(rows, 2)


class Until:
    """Bytes until a moment, by a column of a timeline."""

    def __init__(self, rows, column):
        self.seconds = [row[0] for row in rows]
        self.bytes = [0] + [row[column] for row in rows]
        self.span = self.seconds[-1] + 1

    def until(self, second):
        return self.bytes[bisect.bisect_left(self.seconds, second)]

    def between(self, begin, end):
        return self.until(end) - self.until(begin)


def judged(sent, asked, budget, period):
    """The most in any period, and the least in one in all of whose parts more was to be written, before any overhead, in parts of the budget;
    `None` where there is none. The first period begins with nothing saved, so it counts for the most alone."""
    begins = range(0, max(1, sent.span - period + 1))
    most = max(sent.between(begin, begin + period) for begin in begins) / budget
    part = max(1, period // PARTS)

    def lasts(begin):
        parts = range(begin, begin + period - part + 1, part)
        return all(asked.between(at, at + part) > budget * part / period for at in parts)

    lasting = [sent.between(begin, begin + period) / budget for begin in begins if begin >= part and lasts(begin)]
    return most, min(lasting, default=None)


@case(pairs=1, shared=SHARED, quick={"pairs": 1})
def write_budget(arguments):
    """Rules of admission to flash and the write budget, by replays.

    Budget: traces in their own time, a tenth of the span for the period; budgets of 0.5 and 0.25 of what `all` writes in one on average. The
    most bytes sent to the device in any period, log and checkpoints included, in parts of the budget; and the least in one in which demand
    lasted: in each 24th of it more bytes of objects were to be written than that part of the budget, before any overhead. Of the 16 runs those of
    tencent-1326, and of linux-mysql at 0.25, must have such a period. There is no DRAM tier: each object is judged as it is set, and was never
    asked for in DRAM.

    Second hit: host bytes and hits against `all`, layout ripq, flash of 10 % of the footprint, DRAM of a sixteenth of that, at least 1 MiB, in the
    second half of eight traces."""
    comparison = Comparison(arguments, {"shares": " ".join(map(str, SHARES)), "flash": "10 %"})
    known = Traces(arguments.shared)

    def budgets():
        figures, most_all, least_all, lasting = {}, 0, float("inf"), []
        with comparison.files("timeline.csv") as [path]:
            for name in TIMED:
                free, wanted, _ = timeline(path, known[name])
                period = max(10, wanted.span // 10)
                for rule in RULES:
                    for share in SHARES:
                        budget = int(share * wanted.bytes[-1] * period / wanted.span)
                        flags = ["--flash-admit", rule, "--flash-write-budget", f"{budget}B/{period}s"]
                        report, sent, asked = timeline(path, known[name], *flags)
                        most, least = judged(sent, asked, budget, period)
                        what = f"{name}, {rule}, {share} of all"
                        figures[f"{what}: most"], figures[f"{what}: hits"] = most, report["object_hit_ratio"]
                        most_all = max(most_all, most)
                        if least is not None:
                            figures[f"{what}: least"] = least
                            least_all = min(least_all, least)
                            lasting.append((name, rule, share))
                        text = "no period of demand" if least is None else f"at least {least:.3f} while demand lasts"
                        print(f"  {what}: at most {most:.3f} of the budget, {text}; hits {percent(report['object_hit_ratio'])}, "
                              f"{percent(free['object_hit_ratio'])} without", flush=True)
        print(f"  {len(lasting)} of {len(TIMED) * len(RULES) * len(SHARES)} runs have a period in which demand lasts", flush=True)
        missing = [(name, rule, share) for name, shares in LASTING.items() for rule in RULES for share in shares if (name, rule, share) not in lasting]
        comparison.must(not missing, f"no period in which demand lasts: {', '.join(' '.join(map(str, run)) for run in missing)}")
        return {**figures, "most": most_all, "least": least_all, "lasting": len(lasting)}

    def second_hits():
        figures, good = {}, 0
        for name in UNTIMED:
            flash = replay(known[name])["flash_bytes"]
            pool = max(1 << 20, flash // 16)
            flags = ["--warmup", 0.5, "--dram-pool", pool, "--flash-admit"]
            free, second = (replay(known[name], *flags, rule) for rule in ["all", "second-hit"])
            writes = second["bytes_written_host"] / free["bytes_written_host"]
            loss = (free["object_hit_ratio"] - second["object_hit_ratio"]) * 100
            good += writes <= 0.6 and loss <= 0.5
            figures |= {f"{name}: writes": writes, f"{name}: points lost": loss}
            print(f"  {name}: second-hit writes {writes:.3f} of all, {loss:+.2f} points lost", flush=True)
        return {**figures, "good traces": good}

    def turn(_):
        return {**budgets(), **second_hits()}

    comparison.turns(turn, show=lambda run: "")
    part = "{:.3f}".format
    comparison.row("bytes sent in any period / budget, the most of all", "most", "≤ 1.05", "", part)
    comparison.row("the same while demand lasts, the least of all", "least", "≥ 0.95", "", part)
    comparison.row("runs of 16 that have a period in which demand lasts", "lasting", "", "", "{:.0f}".format)
    comparison.row("traces of 8 where second-hit writes ≤ 0.6 × and loses ≤ 0.5 points", "good traces", "≥ 6", "", "{:.0f}".format)
    return comparison
