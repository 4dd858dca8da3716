#!/usr/bin/env python3
"""The tables of docs/ripq.md, from the CSV file of `pumice report ripq`.

    python3 bench/ripq_tables.py DIR/ripq.csv [--without NAME,...]

Prints each in Markdown, traces in the order of the file; those that do not qualify are left out, and those with a NAME in theirs.
What misses its bound is bold.
"""

import argparse
import csv
import os
import sys

POLICIES = ["slru-1", "slru-2", "slru-3", "gdsf-1", "gdsf-2", "gdsf-3"]
SHORTER = [
    ("tencentBlock.ns", "tencent-"),
    ("cloudPhysicsIO", "cloudphysics"),
    ("-conversation_trace", ""),
    ("_sampled_train_trace", "-train"),
    ("_sampled_val_trace", "-val"),
]
# The bounds on what the twin has more, in points, and on bytes written for a byte inserted, where the twin hits half or less and more.
SLRU_POINTS, GDSF_POINTS, ELSEWHERE_POINTS = 0.3, 1.0, 0.6
SELDOM_HIT, OFTEN_HIT = 1.25, 1.40


def number(row, column):
    return float(row[column]) if row[column] else None


def short(workload):
    """A trace's name as the page has it: without folders, what kind of file it is, and what all traces of a source have in common."""
    name = os.path.basename(workload).split(".gen_sequence")[0]
    for suffix in (".zst", ".xz", ".gz", ".csv", ".lis", ".trace", ".jsonl", ".txt", ".tsv", ".vscsi", ".load", ".sample", " (generated)"):
        name = name.removesuffix(suffix)
    for long, brief in SHORTER:
        name = name.replace(long, brief)
    return name


class Figures:
    """The replays of one file."""

    def __init__(self, path, without):
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        self.writes = [row for row in rows if row["part"] == "figure 2"]
        replays = [
            row
            for row in rows
            if row["workload"]
            and row["qualifies"] == "true"
            and not row["error"]
            and not any(name in row["workload"] for name in without)
        ]
        self.traces = list(dict.fromkeys(row["workload"] for row in replays))
        self.exact = [row for row in replays if "figure 7" in row["part"]]
        self.flash = [row for row in replays if row["layout"] != "exact"]

    def find(self, trace, part, policy, superblock=1, **more):
        """The one replay of `part` with these values, or None."""
        found = [
            row
            for row in self.flash
            if row["workload"] == trace
            and part in row["part"].split(";")
            and row["policy"] == policy
            and int(row["superblock_blocks"]) == superblock
            and all(row[name] == value if isinstance(value, str) else number(row, name) == value for name, value in more.items())
        ]
        assert len(found) <= 1, (trace, part, policy, more, len(found))
        return found[0] if found else None

    def ripq(self, trace, policy, superblock=1):
        return self.find(trace, "figure 8", policy, superblock, layout="ripq")

    def fifo(self, trace, superblock=1):
        return self.find(trace, "figure 8", "fifo", superblock, layout="fifo")

    def often_hit(self, trace, policy):
        return twin_hits(self.ripq(trace, policy)) > 50

    def values(self, part, policy, column, **more):
        """The values that `column` has in the replays of `part`."""
        rows = (
            row
            for row in self.flash
            if part in row["part"].split(";")
            and row["policy"] == policy
            and all(row[name] == value for name, value in more.items())
        )
        return sorted({number(row, column) for row in rows})


def binary(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def hits(row):
    return 100 * number(row, "object_hit_ratio")


def twin_hits(row):
    return hits(row) + number(row, "object_loss_points")


def amplification(row):
    return number(row, "combined_write_amplification")


def points(row):
    """Points lower that a bound is on: of objects and, but for GDSF, of bytes."""
    objects = number(row, "object_loss_points")
    return objects if row["policy"].startswith("gdsf") else max(objects, number(row, "byte_loss_points"))


def fixed(value, digits=2):
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def bold(text, is_missed):
    return f"**{text}**" if is_missed else text


def pair(row):
    return f"{fixed(amplification(row))} / {fixed(points(row))}" if row else "–"


def table(title, header, rows, numbers_from=1):
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "|".join(" --- " if at < numbers_from else " ---: " for at in range(len(header))) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def traces(figures):
    rows = []
    for trace in figures.traces:
        fifo = figures.fifo(trace)
        slru = figures.ripq(trace, "slru-3")
        rows.append(
            [
                short(trace),
                f"{int(fifo['requests']):,}",
                f"{number(fifo, 'flash_bytes') / 1e6:,.0f} MB",
                binary(int(fifo["block_bytes"])),
                f"{int(fifo['blocks']):,}",
                fixed(number(slru, "inserted_per_cache")),
                fixed(number(fifo, "flash_reads_per_hit")),
                fixed(number(fifo, "app_write_amplification")),
            ]
        )
    header = ["trace", "requests counted", "flash", "block", "blocks", "inserted / flash"]
    table("Traces", header + ["reads a hit, fifo", "application amplification, fifo"], rows)


def fidelity(figures):
    rows = [
        [short(trace)] + [fixed(hits(figures.ripq(trace, policy))) for policy in POLICIES] + [fixed(hits(figures.fifo(trace)))]
        for trace in figures.traces
    ]
    table("Object hits in %", ["trace", *POLICIES, "layout fifo"], rows)
    rows = []
    for trace in figures.traces:
        cells = []
        for policy in POLICIES:
            row = figures.ripq(trace, policy)
            objects, of_bytes = number(row, "object_loss_points"), number(row, "byte_loss_points")
            is_gdsf = policy.startswith("gdsf")
            most = GDSF_POINTS if is_gdsf else SLRU_POINTS
            cells.append(
                f"{bold(fixed(objects), objects > most)} / {bold(fixed(of_bytes), not is_gdsf and of_bytes > most)}"
            )
        rows.append([short(trace), *cells])
    table("Points lower, objects / bytes", ["trace", *POLICIES], rows)
    rows = []
    for trace in figures.traces:
        cells = []
        for policy in POLICIES:
            both = [amplification(figures.ripq(trace, policy, superblock)) for superblock in (1, 4)]
            if figures.often_hit(trace, policy):
                cells.append(f"({fixed(both[0])} / {fixed(both[1])})")
            else:
                cells.append(" / ".join(bold(fixed(factor), factor > SELDOM_HIT) for factor in both))
        fifo = [fixed(amplification(figures.fifo(trace, superblock))) for superblock in (1, 4)]
        rows.append([short(trace), *cells, " / ".join(fifo)])
    table("Combined amplification", ["trace", *POLICIES, "layout fifo"], rows)


def gain(figures):
    rows = []
    for trace in figures.traces:
        fifo = figures.fifo(trace)
        cells = []
        for policy, kind, most in [("gdsf-3", "object", GDSF_POINTS), ("slru-3", "byte", SLRU_POINTS)]:
            row = figures.ripq(trace, policy)
            more = 100 * (number(row, f"{kind}_hit_ratio") - number(fifo, f"{kind}_hit_ratio"))
            loss = number(row, f"{kind}_loss_points")
            cells += [bold(f"{more:+.2f}", loss > most), f"{more + loss:+.2f}"]
        rows.append([short(trace), *cells])
    table("Gain over FIFO", ["trace", "gdsf-3, object hits", "its twin", "slru-3, byte hits", "its twin"], rows)


def curve(figures, part, column):
    values = figures.values(part, "slru-3", column)
    values = sorted(values, reverse=column == "theta")
    rows = []
    for trace in figures.traces:
        name = short(trace) + ("" if figures.often_hit(trace, "slru-3") else " (≤ 50 %)")
        cells = [pair(figures.find(trace, part, "slru-3", **{column: value})) for value in values]
        ends = [figures.find(trace, part, "slru-3", 4, **{column: value}) for value in (values[0], values[-1])]
        rows.append([name, *cells, " → ".join(fixed(amplification(row)) for row in ends)])
    header = ["trace", *(f"{value:g}" for value in values), f"superblock 4, {values[0]:g} → {values[-1]:g}"]
    table(f"{part}, slru-3", header, rows, len(header))


def best_points(figures):
    """For each policy whose bounds elsewhere are missed by default: its curves' best points."""

    def misses(row):
        return amplification(row) > OFTEN_HIT or points(row) > ELSEWHERE_POINTS

    for superblock in (1, 4):
        rows, by_default, asked = [], 0, 0
        for trace in figures.traces:
            for policy in POLICIES:
                if not figures.often_hit(trace, policy):
                    continue
                asked += 1
                default = figures.ripq(trace, policy, superblock)
                if not misses(default):
                    by_default += 1
                    continue
                cells = [short(trace), policy, pair(default)]
                for part, column in [("theta", "theta"), ("min-raise", "min_raise")]:
                    on_curve = [
                        row
                        for row in figures.flash
                        if row["workload"] == trace
                        and part in row["part"].split(";")
                        and row["policy"] == policy
                        and int(row["superblock_blocks"]) == superblock
                    ]
                    kept = [row for row in on_curve if points(row) <= ELSEWHERE_POINTS]
                    best = min(kept, key=amplification, default=None)
                    if best is None:
                        cells.append("–")
                    else:
                        cells.append(bold(f"{float(best[column]):g}: {pair(best)}", amplification(best) > OFTEN_HIT))
                rows.append(cells)
        print(f"\nElsewhere, superblock {superblock}: {asked} rows, {by_default} by default")
        header = ["trace", "policy", "default", "best of θ", "best of min-raise"]
        table(f"Where the default misses, superblock {superblock}", header, rows, len(header))


def sipq(figures):
    rows = []
    for trace in figures.traces:
        for theta in figures.values("figure 8", "slru-1", "theta", layout="sipq"):
            found = [figures.find(trace, "figure 8", policy, layout="sipq", theta=theta) for policy in POLICIES]
            cells = [f"{fixed(amplification(row))} / {fixed(number(row, 'object_loss_points'))}" for row in found]
            rows.append([short(trace), f"{theta:g}", *cells])
    table("SIPQ: amplification / points of objects lower", ["trace", "θ", *POLICIES], rows, 8)


def insertion_points(figures):
    rows = []
    for trace in figures.traces:
        for policy, usual in [("slru-3", 4), ("gdsf-3", 8)]:
            alphas = sorted(figures.values("figure 9", policy, "alpha"), reverse=True)
            found = [hits(figures.find(trace, "figure 9", policy, alpha=alpha)) for alpha in alphas]
            knee = next(round(1 / alpha) for alpha, of in zip(alphas, found) if of >= max(found) - 0.3)
            cells = [fixed(of) for of in found]
            rows.append([short(trace), policy, *cells, fixed(hits(figures.fifo(trace))), bold(str(knee), knee > usual)])
    header = ["trace", "policy", *(f"1/{round(1 / alpha)}" for alpha in alphas), "layout fifo", "knee"]
    table("Insertion points: object hits in %", header, rows, 2)


def exact(figures):
    rows = []
    for trace in figures.traces:
        for percent in sorted({int(row["cache_percent"]) for row in figures.exact}):
            cells = [
                fixed(hits(row))
                for policy in ["fifo", *POLICIES]
                for row in figures.exact
                if row["workload"] == trace and row["policy"] == policy and int(row["cache_percent"]) == percent
            ]
            rows.append([short(trace), f"{percent} %", *cells])
    table("Exact algorithms: object hits in %", ["trace", "of the footprint", "fifo", *POLICIES], rows, 2)


def write_sizes(figures):
    utilisations = sorted({number(row, "utilisation") for row in figures.writes})
    rows = []
    for size in sorted({int(row["write_bytes"]) for row in figures.writes}):
        of_size = {number(row, "utilisation"): row for row in figures.writes if int(row["write_bytes"]) == size}
        rows.append(
            [f"{size >> 20} MiB"] + [fixed(number(of_size[of], "device_write_amplification")) for of in utilisations]
        )
    header = ["bytes written at a time", *(f"{100 * of:.0f} %" for of in utilisations)]
    table("Device amplification against write size and utilisation", header, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="ripq.csv of the report")
    parser.add_argument("--without", default="", help="parts of names of traces to leave out, with commas between them")
    arguments = parser.parse_args()
    figures = Figures(arguments.file, [name for name in arguments.without.split(",") if name])
    if not figures.traces:
        sys.exit("no trace in it qualifies")
    traces(figures)
    fidelity(figures)
    best_points(figures)
    gain(figures)
    curve(figures, "theta", "theta")
    curve(figures, "min-raise", "min_raise")
    sipq(figures)
    insertion_points(figures)
    exact(figures)
    write_sizes(figures)


if __name__ == "__main__":
    main()
