"""Hit ratio of index cascade against the full one under a layout, on every trace that is there; counts of `pumice replay`."""

from comparison import Comparison, case
from harness import Failure
from tools import SHARED, at_once, dram_per_object, replay

from .ripq_report import traces

# Points of percent by which cascade may hit less; bytes of DRAM an item, from so many items on; mapping bytes; reads a hit; pages that
# reclaims read for each read of clients.
POINTS, DRAM_BYTES, DRAM_ITEMS, MAPPING_SHARE, READS_PER_HIT, ASKED_SHARE = 1.0, 2.5, 1_000_000, 0.25, 1.5, 0.3
LAYOUTS = {"ripq": ["--layout", "ripq", "--policy", "slru-3"], "sipq": ["--layout", "sipq"],
           "clock": ["--layout", "clock"], "fifo": ["--layout", "fifo"]}
INDEXES = ("cascade", "full")
# Objects of these have sizes of their own too; elsewhere every object is as long.
OWN_SIZES = ("adaptsize", "wiki-", "jedi-v", "tencent-", "cdn", "kvcache_reg")
HEAD = ["trace", "objects", "flash", "layout", "full, %", "cascade, %", "points lower", "items", "index B an item", "mappings / items, bytes",
        "reads a hit", "pages asked / reads", "dropped", "forgotten"]


def with_sets(arguments):
    """Workloads of which a fifth are sets, which overwrite; a get that misses inserts nothing."""
    found = {}
    for theta in (0.9, 0.99):
        spec = f"zipf:keys={arguments.keys},theta={theta},requests={arguments.requests},sets=0.2,seed=1"
        found[f"zipf {theta}, a fifth sets"] = (spec, "--ops", "as-recorded")
    return found


@case(pairs=None, flash=([], "size of the flash; may be given again (40%% and 10%%)"), trace=([], "only traces of this name; may be given again"),
      layout=([], "ripq, sipq, clock or fifo; may be given again (all)"), objects=([], "own or 300B; may be given again (both)"), shared=SHARED,
      keys=(2_000_000, "keys of what is generated"), requests=(12_000_000, "requests of what is generated"), in_all=False,
      quick={"keys": 40_000, "requests": 200_000, "trace": ["zipf 0.9, a fifth sets", "OLTP"], "flash": ["40%"]})
def cascade_report(arguments):
    """What index cascade loses of the hits of index full: replays of both on every shared trace, objects of their own sizes or 300 bytes.

    `ripq` with slru-3, `sipq`, `clock` and `fifo`, on flash of 40 % and 10 % of the footprint, simulated, without a DRAM tier, from empty. Then workloads of which a fifth are sets that overwrite. A line each; bounds are on `ripq`. A trace
    on which neither index finds room is left out and named. A replay that forgets a partition misses a bound."""
    sizes, layouts = arguments.flash or ["40%", "10%"], arguments.layout or list(LAYOUTS)
    comparison = Comparison(arguments, {"flash": " ".join(sizes), "layouts": " ".join(layouts)}, *INDEXES)
    found = {name: trace for name, trace in traces(arguments.shared, arguments.quick, generated=True).items() if name != "zipf"}
    found |= with_sets(arguments)
    print("\n| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD), flush=True)
    worst = {}
    for name, trace in found.items():
        if arguments.trace and not any(part in name for part in arguments.trace):
            continue
        is_sized = name.startswith(OWN_SIZES)
        for objects in ["own", "300B"] if is_sized else ["300B"]:
            if arguments.objects and objects not in arguments.objects:
                continue
            sized = ["--object-size", 300, "--ignore-sizes"] if objects == "300B" else []
            for flash in sizes:
                for layout in layouts:
                    common = [*trace, *sized, "--flash-size", flash, "--superblock", 0, *LAYOUTS[layout]]
                    try:
                        both = at_once([lambda index=index: replay(*common, "--index", index) for index in INDEXES])
                    except Failure as failure:
                        comparison.notes.append(f"{name}, {objects}, {flash}, {layout}: left out: {str(failure).strip().splitlines()[-1]}")
                        continue
                    line = row(name, objects, flash, layout, dict(zip(INDEXES, both)))
                    print("| " + " | ".join(line["cells"]) + " |", flush=True)
                    check(comparison, line)
                    worst[layout] = max(worst.get(layout, 0), line["lower"])
                    for side, index in (("pumice", "cascade"), ("peer", "full")):
                        report = dict(zip(INDEXES, both))[index]
                        comparison.runs[side].append({"name": name, "objects": objects, "flash": flash, "layout": layout, "report": report})
    for layout, lower in worst.items():
        comparison.note(f"{layout}: at most {lower:.2f} points lower")
    return comparison


def row(name, objects, flash, layout, reports):
    cascade, full = reports["cascade"], reports["full"]
    counts = cascade["cascade"]
    figures = {
        "lower": 100 * (full["object_hit_ratio"] - cascade["object_hit_ratio"]),
        "dram": dram_per_object(cascade),
        "items": cascade["objects_cached"],
        "mappings": counts["mapping_bytes_written"] / max(1, cascade["bytes_inserted"]),
        "reads": cascade["flash_reads_per_hit"] or 0,
        "asked": counts["reclaim_page_reads"] / max(1, client_reads(cascade)),
        "dropped": counts["survivors_dropped"],
        "forgotten": counts["forgotten"],
    }
    cells = [name, objects, flash, layout, *(f"{100 * report['object_hit_ratio']:.2f}" for report in (full, cascade))]
    cells += [f"{figures['lower']:.2f}", f"{figures['items']:,}", f"{figures['dram']:.2f}", f"{figures['mappings']:.3f}"]
    cells += [f"{figures['reads']:.2f}", f"{figures['asked']:.3f}", f"{figures['dropped']:,}", str(figures["forgotten"])]
    return {**figures, "cells": cells, "what": f"{name}, {objects}, {flash}, {layout}", "layout": layout}


def client_reads(report):
    hits = report["object_hit_ratio"] * report["requests"]
    return hits * (report["flash_reads_per_hit"] or 0) + (report["requests"] - hits) * (report["flash_reads_per_miss"] or 0)


def check(comparison, line):
    what = line["what"]
    comparison.must(line["forgotten"] == 0, f"{what}: {line['forgotten']} partitions forgotten without a fault")
    if line["layout"] != "ripq":
        return
    comparison.must(line["lower"] <= POINTS, f"{what}: {line['lower']:.2f} points lower, at most {POINTS}")
    if line["items"] >= DRAM_ITEMS:
        comparison.must(line["dram"] <= DRAM_BYTES, f"{what}: {line['dram']:.2f} B of DRAM an item, at most {DRAM_BYTES}")
    comparison.must(line["mappings"] <= MAPPING_SHARE, f"{what}: mappings are {line['mappings']:.3f} of the items' bytes")
    comparison.must(line["asked"] <= ASKED_SHARE, f"{what}: reclaims read {line['asked']:.3f} pages for each read of clients")
    # The bound on reads a hit is for Zipf 0.99.
    if "zipf 0.99" in what:
        comparison.must(line["reads"] <= READS_PER_HIT, f"{what}: {line['reads']:.2f} reads a hit, at most {READS_PER_HIT}")
