"""A cache of a volume's chunks beside AustereCache and CacheDedup: replays of four workloads, and what their indexes take."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

from comparison import Comparison, case, holds, show_table
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


@case(pairs=None, jobs=(1, "replays at a time"), chunks=(1 << 17, "chunks of the volume"), requests=(3_000_000, "requests of each trace"),
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

    found = {}

    def lines():
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for (name, size), reports in pool.map(cell, cells):
                found[name, size] = reports
                pumice, austere, arc = (reports[one] for one in ("pumice", MODELS[0], MODELS[4]))
                yield [name, f"{size} %", *(f"{hits(report):.2f}" for report in (pumice, *(reports[model] for model in MODELS))),
                       f"{pumice['device_bytes'] / austere['device_bytes']:.3f}", f"{pumice['written_per_new_byte']:.3f}",
                       f"{austere['written_per_new_byte']:.1f}", f"{100 * pumice['write_reduction']:.1f}", f"{100 * arc['write_reduction']:.1f}"]
                for cache, report in reports.items():
                    comparison.runs["pumice" if cache == "pumice" else "peer"].append({"name": name, "size": size, "cache": str(cache), "report": report})

    show_table("Hits in %", HEAD, lines(), texts=2)
    table = []
    for what, paper, seen, form, must in rows(found, index_dram(arguments.contents), arguments.contents):
        text = " to ".join(f"{value:{form}}" for value in dict.fromkeys((min(seen), max(seen))))
        is_held = all(holds(value, must) for value in seen)
        comparison.must(is_held, f"{what}: {text}, must be {must}")
        table.append([what, paper, text, must, "–" if not must else "ok" if is_held else "missed"])
    comparison.runs["pumice"].append({"name": "table", "rows": table})
    show_table("Bounds", ["what", "paper", "measured", "must", "verdict"], table, texts=5)
    return comparison


def rows(found, index, contents):
    """What, the paper's figure, those seen, their format, and the bound on each of them."""
    def points(model):
        return [hits(reports["pumice"]) - hits(reports[model]) for reports in found.values() if model in reports]

    for (model, addresses), paper in ((MODELS[1], "up to +39.2"), (MODELS[2], "up to +30.7"), (MODELS[3], "–"), (MODELS[4], "–")):
        gains, is_bound = points((model, addresses)), addresses == "1d"
        what = f"hits against {model}, M = {addresses.removeprefix('1')}, points"
        yield what, paper, gains, "+.2f", "≥ -0.5" if is_bound else ""
        if is_bound:
            yield f"{what}: somewhere", paper, [max(gains)], "+.2f", "≥ 25"
    yield "hits against austere, points", "–", points(MODELS[0]), "+.2f", "≥ -2.5"
    shares = [reports["pumice"]["device_bytes"] / reports[MODELS[0]]["device_bytes"] for reports in found.values()]
    yield "cache-device bytes, times austere's", "–", shares, ".3f", "≤ 1.0"
    written = [reports["pumice"]["written_per_new_byte"] for reports in found.values()]
    yield "bytes × device amplification / compressed new bytes", "–", written, ".3f", "≤ 1.5"
    yield f"index DRAM of a mapped address, B, {contents:,} contents", "–", [index["address_dram_bytes"] / index["mapped"]], ".2f", "≤ 6"
    yield "of a content, B", "–", [index["content_dram_bytes"] / index["contents"]], ".2f", "≤ 8"
    yield "the system's resident bytes beyond that, %", "–", [100 * abs(index["resident_bytes"] / dram(index) - 1)], ".1f", "≤ 5"
    # By the arithmetic of the baselines: as many addresses, and fingerprints of a chunk each, or of half of one.
    for name, fingerprints in (("d-lru", contents / 2), ("cd-arc", contents)):
        less = 100 * (1 - dram(index) / (index["mappings"] * ADDRESS_BYTES + fingerprints * 48))
        yield f"index DRAM less than {name}'s, M = 4d, %", "69.9–97.0", [less], ".1f", "≥ 84"
    if points("equal DRAM"):
        yield "hits at equal DRAM against cd-lru, its best M, A and B to 50 %, points", "–", points("equal DRAM"), "+.2f", "≥ 20"
