"""Non-hierarchical caching in virtual time: the table of docs/nhc.md, over `pumice-bench model nhc --json`."""

import csv
import html
import itertools
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from comparison import Comparison, case
from harness import Failure, machine

PAIRS = {"DRAM+NVM": ("dram", "nvm"), "NVM+Optane": ("nvm", "optane"), "Optane+flash": ("optane", "nvme"), "flash+SATA": ("nvme", "sata")}
FIRST_THREE = list(PAIRS)[:3]
FOUR = list(PAIRS)
DEVICES = ("dram", "nvm", "optane", "nvme", "sata", "hdd")
# Any device above any other, also where that makes no sense: a seed each.
ANY = {f"{upper} above {lower}": (upper, lower) for upper, lower in itertools.permutations(DEVICES, 2)}
PAIRS |= ANY
# How many times slower a pair must be for classic caching to do 30,000 requests a second.
TO_30K = {"DRAM+NVM": 138, "NVM+Optane": 54, "Optane+flash": 20, "flash+SATA": 16}
FLAGS = {"then_seconds": "--then-seconds"}
COLUMNS = ["pair", "load", "hits", "reads", "objective", "then", "slower", "vary", "stalls", "seed"]


def cell(pair, load, hits=0.95, slower=1, vary="", stalls="", **more):
    """A cell as a key: settings by name, and flags of `pumice-bench model nhc`."""
    return tuple(sorted({"pair": pair, "load": load, "hits": hits, "slower": slower, "vary": vary, "stalls": stalls, **more}.items()))


def flags(key):
    settings = dict(key)
    upper, lower = PAIRS[settings.pop("pair")]
    slower, vary, stalls = (settings.pop(name) for name in ("slower", "vary", "stalls"))
    words = ["--upper", f"{upper}*{slower}{vary}", "--lower", f"{lower}*{slower}{vary}{stalls}"]
    for name, value in settings.items():
        words += [FLAGS.get(name, f"--{name}")] + ([] if value is True else [str(value)])
    return words


def label(key):
    settings = dict(key)
    text = f"{settings['pair']}, {settings['load']}"
    text += f", {settings['hits']:.0%} hits" if settings["hits"] != 0.95 else ""
    text += f", {settings['reads']:.0%} reads" if settings.get("reads", 1) != 1 else ""
    text += f", then {settings['then']}" if "then" in settings else ""
    text += f", {settings['slower']} times slower" if settings["slower"] != 1 else ""
    return text


def rows():
    """The rows of the table: what, cells, the figure of a report, the bound as text, and whether a figure of a cell holds and reaches the aim."""
    def at_least(must, aim):
        return lambda key, value: (value >= must, value >= aim)

    def at_most(must, aim):
        return lambda key, value: (value is not None and value <= must, value is not None and value <= aim)

    def inverse(name):
        return lambda report: 1 / report[name]

    closed = [cell(pair, f"closed:{times}", hits, baselines=True) for pair in FOUR for times in (2, 4, 8) for hits in (0.95, 0.99)]
    few_hits = [cell(pair, f"closed:{times}", 0.8, baselines=True) for pair in FOUR for times in (2, 4, 8)]
    gains = dict(zip(FIRST_THREE, (1.30, 1.38, 1.51)))
    best = lambda report: report["nhc_to_best"]  # noqa: E731
    yield "throughput against the best split, hits 95, 99 %", closed, best, "≥ 0.96", "≥ 0.99", at_least(0.96, 0.99)
    yield "the same, hits 80 %", few_hits, best, "≥ 0.9", "≥ 0.97", at_least(0.9, 0.97)
    yield ("against classic, closed 4", [cell(pair, "closed:4", baselines=True) for pair in FIRST_THREE], lambda report: report["nhc_to_classic"],
           "≥ 1.30, 1.38, 1.51", "–", lambda key, value: (value >= gains[dict(key)["pair"]],) * 2)
    light = [cell(pair, f"{kind}:0.5", baselines=True) for pair in FOUR for kind in ("closed", "open")]
    yield "mean response time, load 0.5, against classic", light, inverse("nhc_to_classic"), "≤ 1.05", "≤ 1.01", at_most(1.05, 1.01)
    full = [cell(pair, "open:1.2", baselines=True) for pair in FOUR]
    yield "mean response time, open 1.2, against the best split", full, inverse("nhc_to_best"), "≤ 1.5", "≤ 1.1", at_most(1.5, 1.1)
    mixes = [cell(pair, "closed:4", reads=reads, baselines=True) for pair in FOUR for reads in (0.95, 0.7, 0.5)]
    yield "reads 95, 70, 50 %, against the best split", mixes, best, "≥ 0.92", "≥ 0.98", at_least(0.92, 0.98)
    for rate, divisor, must, aim in [("30 k/s", 1, 3, 1), ("150 k/s", 5, 1, 0.3)]:
        changes = [cell(pair, load, slower=max(1, TO_30K[pair] // divisor), then=then)
                   for pair in FOUR for load, then in (("closed:0.5", "load=closed:4"), ("closed:4", "load=closed:1"), ("closed:4", "reads=0.7"))]
        yield (f"seconds until settled, {rate}", changes, lambda report: report["changed"]["settled_seconds"], f"≤ {must}", f"≤ {aim}",
               at_most(must, aim))

    def refill(report):
        nhc, classic = (report["changed"][name] for name in ("refilled_seconds", "classic_refilled_seconds"))
        return nhc / classic if nhc and classic else None

    refills = [cell(pair, "closed:4", slower=max(1, TO_30K[pair] // 2), cache="13000/20000/0.99", then="set=0.5") for pair in FOUR]
    yield "half of the keys change: time until hits are back, against classic", refills, refill, "≤ 1.2", "≤ 1.0", at_most(1.2, 1.0)
    rough = [cell(pair, f"closed:{times}", vary=":vary=30", stalls=":stall=5ms/200ms", requests=3_000_000) for pair in FOUR for times in (2, 4)]
    yield "service times ± 30 %, stalls below, against the best split", rough, best, "≥ 0.95", "≥ 0.98", at_least(0.95, 0.98)
    tails = [cell(pair, f"closed:{times}", objective="p99", requests=1_500_000) for pair in FOUR for times in (2, 4)]
    tail = lambda report: report["p99_to_classic"]  # noqa: E731
    yield "objective p99, closed 2, 4: p99 against classic", tails, tail, "≤ 1.05", "–", at_most(1.05, 1.05)
    open_tail = [cell("Optane+flash", "open:1.2", objective="p99", requests=1_500_000)]
    yield "objective p99, Optane+flash open 1.2: p99 against classic", open_tail, tail, "≤ 0.8", "≤ 0.65", at_most(0.8, 0.65)
    # At 100,000 requests a second.
    overload = [cell(pair, "closed:4", slower=max(1, TO_30K[pair] * 3 // 10), then="load=open:1.5") for pair in FOUR]
    yield ("seconds until settled, 100 k/s, closed 4 to open 1.5", overload, lambda report: report["changed"]["settled_seconds"], "≤ 2", "≤ 1",
           at_most(2, 1))
    grid = [cell(pair, load, hits) for pair in ANY for load in ("closed:1", "closed:4", "closed:16", "open:0.5", "open:1.5")
            for hits in (0.5, 0.8, 0.95, 0.99, 1.0)]
    yield ("any device above any other: against the better of classic and the best split", grid,
           lambda report: min(report["nhc_to_best"], report["nhc_to_classic"]), "≥ 0.97", "≥ 0.99", at_least(0.97, 0.99))
    # With 1 % of misses the 99th percentile is between hits and misses, by chance at either.
    sharp = [key for key in grid if dict(key)["hits"] != 0.99]
    yield ("the same, but for 99 % hits: p99 against classic, where the best split gains less than 2 %", sharp,
           lambda report: report["p99_to_classic"] if report["best_to_classic"] < 1.02 else 1.0, "≤ 1.05", "≤ 1.01", at_most(1.05, 1.01))
    every = closed + few_hits + light + full + mixes
    yield "against latency balancing", every, lambda report: report["nhc_to_balance"], "≥ 0.97", "≥ 1.0", at_least(0.97, 1.0)


def findings(found, seeds):
    """What simulation shows of the baselines: tables of title, header and rows of text."""
    def of(key, figure):
        values = [figure(found[key, seed]) for seed in seeds]
        return f"{statistics.median(values):.2f}"

    def against(name):
        return lambda report: report["best"]["mean_ns"] / report[name]["mean_ns"]

    sides = ["classic", "literal", "fixed", "balance", "nhc"]
    header = ["cell", "classic", "paper's algorithm as written", "fixed split", "latency balancing", "NHC"]
    for title, keys in [
        ("1. As it is written the paper's algorithm hardly leaves classic caching: speed against the best split",
         [cell(pair, f"closed:{times}", baselines=True) for pair in FOUR for times in (2, 4)]),
        ("2. Below saturation: speed against the best split, open 0.5", [cell(pair, "open:0.5", baselines=True) for pair in FOUR]),
        ("3. Where not to copy data is most of the gain: hits 80 %, closed 2", [cell(pair, "closed:2", 0.8, baselines=True) for pair in FOUR]),
        ("4. Latency balancing gains little until the queue above costs more than a read below: closed 2, 4, 8",
         [cell(pair, f"closed:{times}", hits, baselines=True) for pair in FIRST_THREE for times in (2, 4, 8) for hits in (0.95, 0.8)]),
    ]:
        yield title, header, [[label(key), *(of(key, against(side)) for side in sides)] for key in keys]


STYLE = """body{font:15px/1.45 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:left}.no{color:#b00020;font-weight:bold}.yes{color:#1b5e20}
.bar{display:inline-block;height:.7em;background:#7aa6d8}details{margin:.4em 0}"""


def markup(header, body):
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    return f"<table><tr>{cells}</tr>{body}</table>"


def page(heading, table, details, shown):
    verdict = {"holds": "yes", "MISSED": "no"}
    body = "".join("<tr>" + "".join(f'<td class="{verdict.get(text, "")}">{html.escape(text)}</td>' for text in row) + "</tr>" for row in table)
    parts = [f"<h1>Non-hierarchical caching in virtual time</h1><p>{html.escape(heading)}</p>",
             markup(["what", "worst seen", "median", "must", "verdict", "aim", "aim reached in", "worst cell"], body)]
    parts.append("<h2>What simulation shows of the baselines</h2>")
    for title, header, rows_of in shown:
        body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows_of)
        parts.append(f"<h3>{html.escape(title)}</h3>" + markup(header, body))
    parts.append("<h2>Each cell</h2>")
    for what, cells in details:
        top = max([value for _, values in cells for value in values if value is not None], default=1) or 1
        body = ""
        for name, values in cells:
            known = [value for value in values if value is not None]
            middle = statistics.median(known) if known else 0
            texts = ", ".join("never" if value is None else f"{value:.3f}" for value in values)
            bar = f'<span class="bar" style="width:{200 * middle / top:.0f}px"></span>'
            body += f"<tr><td>{html.escape(name)}</td><td>{bar}</td><td>{middle:.3f}</td><td>{texts}</td></tr>"
        parts.append(f"<details><summary>{html.escape(what)}</summary>{markup(['cell', '', 'median', 'each seed'], body)}</details>")
    return f'<!doctype html><meta charset="utf-8"><title>NHC report</title><style>{STYLE}</style>{"".join(parts)}\n'


def seeds_of(key, seeds):
    return seeds[:1] if dict(key)["pair"] in ANY else seeds


def sweep(keys, seeds, jobs):
    """The reports of all cells and seeds, with progress on stderr."""
    todo = [(key, seed) for key in keys for seed in seeds_of(key, seeds)]
    found = {}

    def one(task):
        key, seed = task
        return task, machine.run_json([machine.BENCH, "model", "nhc", "--json", "--seed", seed, *flags(key)], None)

    with ThreadPoolExecutor(jobs) as pool:
        for done, (task, report) in enumerate(pool.map(one, todo), 1):
            found[task] = report
            print(f"\r{done} of {len(todo)} cells", end="" if done < len(todo) else "\n", file=sys.stderr, flush=True)
    return found


@case(pairs=None, in_all=False, jobs=(os.cpu_count(), "cells at a time"), seeds=("1,2,3,4,5,6,7", "seeds of each cell"),
      named=([], "only rows with this in their name; more than once"), quick={"seeds": "1"})
def nhc_report(arguments):
    """The table of docs/nhc.md: non-hierarchical caching in virtual time, each row with its must, and what the baselines do.

    Runs `pumice-bench model nhc --json` for every cell of every row and every seed, so many at a time, and writes nhc-report.html (one page
    that needs nothing else) and nhc-report.csv (a line for each cell and seed) into the build directory. A row holds if every cell of every seed does. Exit status
    1 where one is missed."""
    comparison = Comparison(arguments, {"seeds": arguments.seeds}, "NHC", "best split, classic caching, baselines")
    seeds = [int(word) for word in arguments.seeds.split(",")]
    wanted = [row for row in rows() if not arguments.named or any(part in row[0] for part in arguments.named)]
    if not wanted:
        raise Failure("no row has that in its name")
    found = sweep(list(dict.fromkeys(key for row in wanted for key in row[1])), seeds, arguments.jobs)
    table, details = [], []
    print("| what | worst | median | must | verdict | aim | aim reached in | worst cell |\n| --- | ---: | ---: | --- | --- | --- | --- | --- |")
    for what, keys, figure, must, aim, judge in wanted:
        seen = [(key, seed, figure(found[key, seed])) for key in keys for seed in seeds_of(key, seeds)]
        judged = [judge(key, value) for key, _, value in seen]
        values = [value for *_, value in seen if value is not None]
        sign = -1 if "≤" in must else 1
        key, seed, worst = min(seen, key=lambda one: float("-inf") if one[2] is None else sign * one[2])
        holds = all(good for good, _ in judged)
        middle = f"{statistics.median(values):.3f}" if values else "never"
        text = "never" if worst is None else f"{worst:.3f}"
        reached = f"{sum(good for _, good in judged)} of {len(judged)}"
        table.append([what, text, middle, must, "holds" if holds else "MISSED", aim, reached, f"{label(key)}, seed {seed}"])
        print("| " + " | ".join(table[-1]) + " |", flush=True)
        comparison.must(holds, f"{what}: {text}, {must}; {sum(not good for good, _ in judged)} of {len(judged)} cells")
        details.append((what, [(label(key), [value for other, _, value in seen if other == key]) for key in keys]))
    if not arguments.named:
        cost = machine.run_json([machine.BENCH, "model", "nhc", "--decision", "--json"], None)["decision_ns"]
        table.append(["cost of the decision a read, ns", f"{cost:.2f}", f"{cost:.2f}", "≤ 20", "holds" if cost <= 20 else "MISSED", "–", "–", "this machine"])
        print("| " + " | ".join(table[-1]) + " |")
        comparison.must(cost <= 20, f"the decision takes {cost:.1f} ns")
    shown = [] if arguments.named else list(findings(found, seeds))
    for title, header, rows_of in shown:
        print(f"\n### {title}\n\n| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
        for row in rows_of:
            print("| " + " | ".join(row) + " |")
    stem = os.path.join(machine.TARGET, "nhc-report")
    with open(f"{stem}.csv", "w", newline="") as file:
        names = ["per_second", "mean_ns", "p99_ns", "load_admit", "data_admit"]
        sides = ["classic", "best", "nhc", "fixed", "balance", "literal"]
        writer = csv.writer(file)
        writer.writerow(COLUMNS + ["n1", "settled_seconds"] + [f"{side}_{name}" for side in sides for name in names])
        for (key, seed), report in found.items():
            settings = dict(key) | {"seed": seed}
            line = [settings.get(name, "") for name in COLUMNS] + [report["n1"], (report["changed"] or {}).get("settled_seconds")]
            writer.writerow(line + [(report[side] or {}).get(name) for side in sides for name in names])
    with open(f"{stem}.html", "w") as file:
        file.write(page(f"Commit {comparison.commit['commit']}, seeds {arguments.seeds}, {comparison.date}.", table, details, shown))
    comparison.note(f"wrote {stem}.html and {stem}.csv")
    return comparison
