"""Index cascade against the full one: gets in process, a server filled with small items, and what it loses of the hits of traces."""

import itertools
import re

from comparison import Comparison, case, holds, show_table
from harness import Failure
from tools import ITEM_BYTES, RECORD_BYTES, at_once, dram_per_object, flash_mib, gets_of_sides, load, pumice, replay, thousands
from traces import SHARED, Traces

# --- gets in process --------------------------------------------------------------------------------------------------

# What is drawn, and what is asked of it.
WORKLOADS = {
    "Zipf 0.99": ("zipf:theta=0.99", "≥ 0.75 ×", "≥ 0.9 ×"),
    "hotspot": ("hotspot:hot=0.01,share=0.9", "≥ 0.9 ×", "≥ 1.0 ×"),
    "normal": ("normal:sd=0.01", "≥ 0.9 ×", "≥ 1.0 ×"),
}
# Share of the gets beyond which the row would be about something else.
MISSES_MAX = 0.01


@case(pumice=False, inprocess=True, seconds=10, keys=(20_000_000, "items"),
      depth=(256, "gets at once: enough for the device to set the pace of both sides"),
      tier1=(0.1, "mappings in DRAM for each on flash"), warm_up=(60.0, "seconds of each distribution before its turns"),
      quick={"keys": 400_000, "seconds": 1, "pairs": 2, "warm_up": 1})
def cascade_gets(arguments):
    """Gets of small items from flash in process: the cascade index against the full one, which has all the DRAM it wants.

    Both sides are `bench/inprocess pumice-gets`: the engine under layout fifo, without a DRAM tier, so that every get reads the
    device, on a file of its own with O_DIRECT, one thread, one io_uring, on the same one core. Each has set every key once, with
    values of 300 bytes, in an order that has nothing to do with how popular they are. Then come gets, `--depth` at once, of keys
    drawn by three distributions, one after the other: Zipf 0.99; hotspot, where 1 % of the keys take 90 % of the gets; normal, with
    a standard deviation of 1 % of the keys. For each both sides warm up first (`--warm-up` seconds, in which tier 1 gets the
    mappings that are asked for), and then take turns. Every value is checked for its key and length. A miss is counted and not
    set: what an index forgets shows.

    Device reads are those for items and for pages of mappings. CPU time per get is that of the process, kernel time included: it
    says whether the device or the core sets the pace. DRAM per item is that of the index, all in, after the gets."""
    flash = flash_mib(arguments.keys)
    settings = {"items": arguments.keys, "value bytes": ITEM_BYTES, "flash MiB": flash, "depth": arguments.depth,
                "tier1": arguments.tier1, "seconds": arguments.seconds, "warm-up": arguments.warm_up}
    comparison = Comparison(arguments, settings, "cascade", "full")
    flags = {"pumice": ["--index", "cascade", "--tier1", arguments.tier1, "--layout", "fifo"], "peer": ["--index", "full", "--layout", "fifo"]}

    def side(process, what, spec):
        def turn(_):
            report = process.run(spec, arguments.depth, arguments.seconds)
            took = report["took"]
            if report["miss_ratio"] > MISSES_MAX:
                comparison.notes.append(f"{what}: {report['miss_ratio'] * 100:.1f} % of the gets missed")
            found = {"reads": report["device_reads_per_request"], "rounds": report["rounds_per_request"],
                     "cpu": report["cpu_us_per_request"], "busy": took["cpu_seconds"] / took["seconds"],
                     "DRAM": report["stats"]["index_dram_bytes"] / report["resident_entries"]}
            return {what: report["requests_per_second"], **{f"{what}: {name}": value for name, value in found.items()}, "report": report}

        return turn

    with gets_of_sides(comparison, "gets", arguments.keys, flash, flags) as processes:
        for what, (spec, *_) in WORKLOADS.items():
            for process in processes.values():
                process.run(spec, arguments.depth, arguments.warm_up)
            comparison.turns(*[side(processes.get(name), what, spec) for name in flags])
    for what, (_, must, aim) in WORKLOADS.items():
        row = f"gets/s of the cascade index against the full one, {what}, one core"
        comparison.row(row, what, must, aim, thousands, cpu=f"{what}: cpu")
    for what in WORKLOADS:
        comparison.row(f"device reads per get, {what}", f"{what}: reads", "", "", "{:.3f}".format)
    row = f"DRAM of the index per item, a file with {arguments.keys / 1e6:.1f} million items"
    comparison.row(row, "Zipf 0.99: DRAM", "≤ 2.5 B", "≤ 1 B at ≤ 1 read a miss", "{:.2f} B".format)
    return comparison


# --- a small budget ---------------------------------------------------------------------------------------------------

# The share of the flash that is items.
USABLE = 0.96
QUANTILE = 0.99
BUCKET = re.compile(r'^pumice_index_rounds_bucket\{le="([^"]+)"\} (\d+)$', re.MULTILINE)


def rounds(server):
    """Gets that took at most so many rounds: {2: 17, ..., inf: 20}."""
    return {float(upper): int(count) for upper, count in BUCKET.findall(server.get("/metrics")[1])}


@case(pairs=1, seconds=30, dram=256, flash=(16384, "MiB of flash"), layout=("ripq", "as serve has it", ["ripq", "clock", "fifo", "sipq"]),
      quick={"dram": 96, "flash": 512, "seconds": 2})
def cascade_p99(arguments):
    """A small budget filled with 300-byte items under the cascade index: resident memory, and dependent rounds of gets.

    `pumice serve --threads 1 --dram 256MiB --flash-size 16GiB --index cascade` (which index it would take by itself, too) gets as many
    items with values of 300 bytes and keys of 16 as its flash takes, each set once by `pumice-bench`, and then gets of keys drawn
    alike from all of them for `--seconds`, 32 connections, closed loop. There is no peer: these are bounds of their own.

    Resident memory is the most that the process ever had (VmHWM), and must be within the budget plus 10 %. Rounds are reads of the
    device of which each had to wait for the one before, of each get, hits and misses, as `pumice_index_rounds_bucket` counts them; DRAM
    hits count as none. There is no memory cgroup: a process that takes more than it may is to be seen, not killed."""
    dram, flash, connections = arguments.dram, arguments.flash, 32
    # A key of 16 bytes, twice as long as in replays.
    items = int(flash * 2**20 * USABLE / (RECORD_BYTES + 8))
    settings = {"DRAM MiB": dram, "flash MiB": flash, "items": items, "value bytes": ITEM_BYTES, "connections": connections,
                "seconds": arguments.seconds, "layout": arguments.layout}
    comparison = Comparison(arguments, settings, "cascade")

    def turn(_):
        with pumice(comparison, dram, flash, "--layout", arguments.layout, "--index", "cascade") as server:
            workload = {"keys": f"zipf:keys={items},theta=0", "value_size": ITEM_BYTES, "connections": connections, "mix": "get"}
            load(server, comparison.load_core, preload_only=True, pipeline=8, **workload)
            before = rounds(server)
            report = load(server, comparison.load_core, seconds=arguments.seconds, warm_up=0, **workload)
            took = {upper: count - before.get(upper, 0) for upper, count in sorted(rounds(server).items())}
            gets, stats = took[float("inf")], server.stats()
            return {"resident_share": server.memory()[1] / (dram << 20), "gets": gets, "items": stats["engine"]["resident_entries"],
                    "rounds_p99": next(upper for upper, count in took.items() if count >= QUANTILE * gets),
                    "dropped": stats["flash"]["dropped_no_block"], "report": report, "stats": stats}

    comparison.turns(turn)
    of = f"{dram} MiB of DRAM, {flash} MiB of flash, filled with 300-byte items"
    comparison.row(f"{of}: resident memory / budget", "resident_share", "≤ 1.1", "", "{:.2f}".format)
    comparison.row(f"{of}: dependent rounds of a get at p99", "rounds_p99", "≤ 3", "", "{:g}".format)
    comparison.row(f"{of}: items held", "items", "", "", lambda value: f"{value / 1e6:.2f} million")
    return comparison


# --- traces -----------------------------------------------------------------------------------------------------------

LAYOUTS = {"ripq": ["--layout", "ripq", "--policy", "slru-3"], "sipq": ["--layout", "sipq"],
           "clock": ["--layout", "clock"], "fifo": ["--layout", "fifo"]}
INDEXES = {"pumice": "cascade", "peer": "full"}
# Objects of these have sizes of their own too; elsewhere every object is as long.
OWN_SIZES = ("adaptsize", "wiki-", "jedi-v", "tencent-", "cdn", "kvcache_reg")
# Of so many items bytes of DRAM an item are bounded.
DRAM_ITEMS = 1_000_000


COLUMNS = ["full, %", "cascade, %", "points lower", "items", "index B an item", "mappings / items, bytes", "reads a hit", "pages asked / reads",
           "dropped"]


def columns(full, cascade):
    """What a line shows of COLUMNS: figures, their formats, and their bounds under `ripq`."""
    counts, requests, items = cascade["cascade"], cascade["requests"], cascade["objects_cached"]
    hits, reads = cascade["object_hit_ratio"] * requests, cascade["flash_reads_per_hit"] or 0
    asked = hits * reads + (requests - hits) * (cascade["flash_reads_per_miss"] or 0)
    both = [100 * report["object_hit_ratio"] for report in (full, cascade)]
    return [
        (both[0], ".2f", ""), (both[1], ".2f", ""), (both[0] - both[1], ".2f", "≤ 1"), (items, ",", ""),
        (dram_per_object(cascade), ".2f", "≤ 2.5" if items >= DRAM_ITEMS else ""),
        (counts["mapping_bytes_written"] / max(1, cascade["bytes_inserted"]), ".3f", "≤ 0.25"),
        (reads, ".2f", "≤ 1.5" if "theta=0.99" in cascade["trace"] else ""),
        (counts["reclaim_page_reads"] / max(1, asked), ".3f", "≤ 0.3"), (counts["survivors_dropped"], ",", ""),
    ]


@case(pairs=None, flash=([], "size of the flash; may be given again (40%% and 10%%)"), trace=([], "only traces of this name; may be given again"),
      layout=([], "ripq, sipq, clock or fifo; may be given again (all)"), shared=SHARED,
      keys=(2_000_000, "keys of what is generated"), requests=(12_000_000, "requests of what is generated"),
      quick={"keys": 40_000, "requests": 200_000, "trace": ["zipf 0.9, a fifth sets", "OLTP"], "flash": ["40%"]})
def cascade_report(arguments):
    """What index cascade loses of the hits of index full: replays of both on every shared trace, objects of their own sizes or 300 bytes.

    `ripq` with slru-3, `sipq`, `clock` and `fifo`, on flash of 40 % and 10 % of the footprint, simulated, without a DRAM tier, from empty. Then
    workloads of which a fifth are sets that overwrite. A line each; bounds are on `ripq`. A trace on which neither index finds room is left out
    and named. A replay that forgets a partition misses a bound."""
    sizes, layouts = arguments.flash or ["40%", "10%"], arguments.layout or list(LAYOUTS)
    comparison = Comparison(arguments, {"flash": " ".join(sizes), "layouts": " ".join(layouts)}, *INDEXES.values())
    known = Traces(arguments.shared, arguments.quick)
    known.words |= {f"zipf {theta}, a fifth sets": (f"zipf:keys={arguments.keys},theta={theta},requests={arguments.requests},sets=0.2,seed=1",
                                                    "--ops", "as-recorded") for theta in (0.9, 0.99)}
    names = [name for name in known if name != "zipf" and (not arguments.trace or any(part in name for part in arguments.trace))]
    worst = dict.fromkeys(layouts, 0)

    def lines():
        for name, objects, flash, layout in itertools.product(names, ("own", "300B"), sizes, layouts):
            if objects == "own" and not name.startswith(OWN_SIZES):
                continue
            sized = ["--object-size", 300, "--ignore-sizes"] if objects == "300B" else []
            common, what = [*known[name], *sized, "--flash-size", flash, "--superblock", 0, *LAYOUTS[layout]], [name, objects, flash, layout]
            try:
                cascade, full = at_once([lambda index=index: replay(*common, "--index", index) for index in INDEXES.values()])
            except Failure as failure:
                comparison.notes.append(f"{', '.join(what)}: left out: {str(failure).strip().splitlines()[-1]}")
                continue
            figures = columns(full, cascade)
            for column, (seen, form, must) in zip(COLUMNS, figures):
                comparison.must(layout != "ripq" or holds(seen, must), f"{', '.join(what)}: {column} {seen:{form}}, must be {must}")
            forgotten = cascade["cascade"]["forgotten"]
            comparison.must(forgotten == 0, f"{', '.join(what)}: {forgotten} partitions forgotten without a fault")
            worst[layout] = max(worst[layout], figures[2][0])
            for side, report in zip(INDEXES, (cascade, full)):
                comparison.runs[side].append({"name": name, "objects": objects, "flash": flash, "layout": layout, "report": report})
            yield [*what, *(f"{seen:{form}}" for seen, form, _ in figures)]

    show_table("Index cascade against full", ["trace", "objects", "flash", "layout", *COLUMNS], lines(), texts=4)
    for layout, lower in worst.items():
        comparison.note(f"{layout}: at most {lower:.2f} points lower")
    return comparison
