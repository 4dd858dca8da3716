"""A cache of a volume's chunks beside AustereCache and CacheDedup: replays of four workloads, and what their indexes take."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

from comparison import Comparison, case
from harness import Failure, machine

# Writes, duplicates, theta, and what else: as docs/papers.md says.
TRACES = {"A": "writes=0.7,duplicates=0.5,theta=0.9", "B": "writes=0.8,duplicates=0.9,theta=0.8",
          "C": "writes=0.9,duplicates=0.3,theta=0.7,drift=0.002", "D": "writes=0.1,duplicates=0.5,theta=0.9"}
SIZES = [12.5, 25, 50, 100]
MODELS = [("austere", "4d"), ("d-lru", "1d"), ("cd-arc", "1d"), ("d-lru", "4d"), ("cd-arc", "4d")]
# Shares of the DRAM that a full index gives to addresses: its best counts.
SHARES = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
ADDRESS_BYTES, CONTENTS = 44, 10_000_000
HEAD = ["trace", "cache", "pumice", *(f"{name} {addresses}" for name, addresses in MODELS), "bytes / austere's", "written for a new byte", "austere's",
        "write reduction, pumice", "cd-arc"]


def hits(report):
    return 100 * report["hit_ratio"]


def dram(report):
    return report["address_dram_bytes"] + report["content_dram_bytes"]


def index_dram(contents):
    words = ["cargo", "run", "--release", "--quiet", "-p", "pumice-chunk", "--example", "index_dram", "--", str(contents)]
    done = subprocess.run(words, cwd=machine.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"index_dram: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Table:
    """The rows of the table: what, paper, measured, must, verdict."""

    def __init__(self, comparison):
        self.comparison, self.rows = comparison, []

    def row(self, what, paper, measured, must, holds):
        verdict = "–" if holds is None else "ok" if holds else "MISSED"
        self.rows.append([what, paper, measured, must, verdict])
        self.comparison.must(holds in (None, True), f"{what}: {measured}, {must}")

    def show(self):
        print("\n| what | paper | measured | must | verdict |\n| --- | --- | --- | --- | --- |")
        for row in self.rows:
            print("| " + " | ".join(row) + " |")
        self.comparison.runs["pumice"].append({"name": "table", "rows": self.rows})


@case(pairs=None, in_all=False, jobs=(1, "replays at a time"), chunks=(1 << 17, "chunks of the volume"), requests=(3_000_000, "requests of each trace"),
      contents=(CONTENTS, "contents of the index whose DRAM is measured"), trace=([], "only these of A to D; may be given again"),
      quick={"chunks": 1 << 12, "requests": 40_000, "contents": 100_000})
def chunk_report(arguments):
    """Hits, bytes and DRAM of the store of chunks against AustereCache's and CacheDedup's, on traces A to D and caches of 12.5 to 100 %.

    `pumice replay --chunk-cache`: the store that serves, and models (docs/papers.md says how they differ from what was published). A line for
    each trace and size, then the rows with their musts; exit status 1 where one is missed. A full run takes an hour and 8 GiB of memory."""
    settings = {"chunks": arguments.chunks, "requests": arguments.requests}
    comparison = Comparison(arguments, settings, "pumice", "models")
    names = arguments.trace or list(TRACES)
    specs = {name: f"block:chunks={arguments.chunks},requests={arguments.requests},{TRACES[name]},seed=1" for name in names}
    cells = [(name, size) for name in names for size in SIZES]

    def run(name, size, cache, addresses, *flags):
        words = [machine.BINARY, "replay", specs[name], "--chunk-cache", cache, "--addresses", addresses, "--cache-size", f"{size}%"]
        return machine.run_json([*words, *flags, "--json"], None)

    def best_at(name, size, bytes_):
        """cd-lru with as much DRAM, and the number of addresses with which it hits most."""
        counts = [str(max(1, int(bytes_ * share / ADDRESS_BYTES))) for share in SHARES]
        return max((run(name, size, "cd-lru", count, "--dram", str(bytes_)) for count in counts), key=hits)

    def cell(of):
        name, size = of
        found = {"pumice": run(name, size, "pumice", "4d")} | {model: run(name, size, *model) for model in MODELS}
        if name in "AB" and size <= 50:
            found["equal DRAM"] = best_at(name, size, dram(found["pumice"]))
        return of, found

    print("\n| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD), flush=True)
    found = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for (name, size), reports in pool.map(cell, cells):
            found[name, size] = reports
            pumice, austere, arc = (reports[one] for one in ("pumice", MODELS[0], MODELS[4]))
            line = [name, f"{size} %", *(f"{hits(report):.2f}" for report in (pumice, *(reports[model] for model in MODELS)))]
            line += [f"{pumice['device_bytes'] / austere['device_bytes']:.3f}", f"{pumice['written_per_new_byte']:.3f}",
                     f"{austere['written_per_new_byte']:.1f}", f"{100 * pumice['write_reduction']:.1f}", f"{100 * arc['write_reduction']:.1f}"]
            print("| " + " | ".join(line) + " |", flush=True)
            for cache, report in reports.items():
                side = "pumice" if cache == "pumice" else "peer"
                comparison.runs[side].append({"name": name, "size": size, "cache": " ".join(cache) if isinstance(cache, tuple) else cache, "report": report})
    table = Table(comparison)
    rows(table, found, index_dram(arguments.contents), arguments.contents)
    table.show()
    return comparison


def span(values, form="{:+.2f}"):
    return f"{form.format(min(values))} to {form.format(max(values))}"


def rows(table, found, index, contents):
    def points(model):
        return [hits(reports["pumice"]) - hits(reports[model]) for reports in found.values() if model in reports]

    for (model, addresses), paper in ((MODELS[1], "up to +39.2"), (MODELS[2], "up to +30.7"), (MODELS[3], "–"), (MODELS[4], "–")):
        gains, is_bound = points((model, addresses)), addresses == "1d"
        holds = min(gains) >= -0.5 and max(gains) >= 25 if is_bound else None
        table.row(f"hits against {model}, M = {addresses.removeprefix('1')}, points", paper, span(gains),
                  "≥ -0.5, ≥ +25 somewhere" if is_bound else "–", holds)
    gains = points(MODELS[0])
    table.row("hits against austere, points", "–", span(gains), "≥ -2.5", min(gains) >= -2.5)
    shares = [reports["pumice"]["device_bytes"] / reports[MODELS[0]]["device_bytes"] for reports in found.values()]
    table.row("cache-device bytes against austere's", "–", span(shares, "{:.3f}") + " ×", "≤ 1.0 ×", max(shares) <= 1.0)
    written = [reports["pumice"]["written_per_new_byte"] for reports in found.values()]
    table.row("bytes × device amplification / compressed new bytes", "–", span(written, "{:.3f}"), "≤ 1.5", max(written) <= 1.5)
    reductions = [100 * (reports["pumice"]["write_reduction"] - reports[MODELS[4]]["write_reduction"]) for reports in found.values()]
    table.row("write reduction against cd-arc, points", "7.7–14.5 lower", span(reductions, "{:+.1f}"), "reported", None)
    mapped, known = index["address_dram_bytes"] / index["mapped"], index["content_dram_bytes"] / index["contents"]
    table.row(f"index DRAM of a mapped address, of a content, {contents:,} contents", "–", f"{mapped:.2f}; {known:.2f} B", "≤ 6; ≤ 8 B",
              mapped <= 6 and known <= 8)
    whole = dram(index)
    off = index["resident_bytes"] / whole - 1
    table.row("the system's resident bytes against that", "–", f"{100 * off:+.1f} %", "within 5 %", abs(off) <= 0.05)
    # By the arithmetic of the baselines: as many addresses, and fingerprints of a chunk each, or of half of one.
    for name, fingerprints in (("d-lru", contents / 2), ("cd-arc", contents)):
        less = 100 * (1 - whole / (index["mappings"] * ADDRESS_BYTES + fingerprints * 48))
        table.row(f"index DRAM against {name}, M = 4d", "69.9–97.0 % less", f"{less:.1f} % less", "≥ 84 % less", less >= 84)
    gains = points("equal DRAM")
    if gains:
        table.row("hits at equal DRAM against cd-lru, its best M, A and B to 50 %, points", "–", span(gains), "≥ +20", min(gains) >= 20)
