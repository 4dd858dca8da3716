"""Index cascade against the full one: counts of replays, gets in process, and a server filled with small items."""

import math
import os
import re

import cachebench
from comparison import Comparison, case
from tools import (
    FORMATS, ITEM_BYTES, RECORD_BYTES, SHARED, at_once, dram_per_object, flash_mib, gets_of_sides, load, points, pumice, replay,
    thousands,
)


def counts(report):
    """What rows about a replay compare."""
    written = (report["cascade"] or {}).get("mapping_bytes_written")
    return {
        "bytes_per_item": dram_per_object(report),
        "items_per_byte": report["objects_cached"] / report["index_dram_bytes"],
        "reads_per_hit": report["flash_reads_per_hit"],
        "rounds_per_hit": report["flash_rounds_per_hit"],
        "reads_per_miss": report["flash_reads_per_miss"],
        "mapping_share": None if written is None else written / report["bytes_inserted"],
        "hit_ratio": report["object_hit_ratio"],
        "items": report["objects_cached"],
        "report": report,
    }


def show_counts(run):
    text = {name: "–" if value is None else f"{value:.3f}" for name, value in run.items() if isinstance(value, float | None)}
    more = "".join(f", {run[name]:.2f} B {where}" for name, where in SHAPES.items() if name in run)
    return (
        f"{run['items']} items, {run['bytes_per_item']:.2f} B of index each, hit ratio {run['hit_ratio']:.4f}, "
        f"{text['reads_per_hit']} reads a hit ({text['rounds_per_hit']} rounds), {text['reads_per_miss']} a miss, mappings "
        f"{text['mapping_share']} of the bytes inserted{more}"
    )


# --- DRAM and reads ---------------------------------------------------------------------------------------------------

# Shares of mappings in DRAM that the notes have, too.
CURVE = (0.02, 0.04)
# What else is filled, and where.
SHAPES = {"shape": "in the largest shape", "file": "on a file"}


@case(pairs=None, keys=(100_000_000, "keys"), requests=(100_000_000, "requests"), flash=(4096, "MiB of the simulated device"),
      warm_up=(0.6, "share of the requests"), tier1=(0.03, "mappings in DRAM for each on flash"),
      shape_items=(100_000_000, "items of the largest shape; 0: without it"), file_items=(20_000_000, "items on a file; 0: no file"),
      quick={"keys": 1_000_000, "requests": 600_000, "flash": 64, "file_items": 200_000, "shape_items": 1_000_000})
def cascade_dram(arguments):
    """What the cascade index takes of DRAM and of the device, against the full index: counts of `pumice replay`.

    The same requests through both indexes, without a DRAM tier: items of 300 bytes, Zipf 0.99 over `--keys` keys, a miss inserts,
    `--warm-up` of the requests fill the cache before figures are counted. The layout is `fifo` on both sides; one row has
    what `clock` costs more. The device is simulated (`--device sim`), so
    nothing here is a time, and replays run two at a time.

    What is compared: DRAM of the index for each object cached, all in; objects for each byte of it; device reads of a hit, those of
    which each had to wait for the one before, and reads of a miss (each member of a parallel batch counts); bytes of mappings
    written for each byte inserted. The hit ratio is compared with that of an exact cache (`--layout exact`) whose size is the
    bytes of objects that the cascade side had on average: the same policy, fifo, and LRU beside it as a note.

    Then the same DRAM in the shape of `--shape-items` items, simulated, and on a file with O_DIRECT (`--device PATH`) of
    `--file-items`: nearly every request is an insertion, until the device is full. A simulated device takes some 100 bytes of this
    machine's memory for an item. Notes give the curve over `--tier1`, the share of mappings in DRAM."""
    trace = f"zipf:keys={arguments.keys},theta=0.99,requests={arguments.requests},seed=1"
    settings = {"trace": trace, "object bytes": ITEM_BYTES, "flash MiB": arguments.flash, "warm-up": arguments.warm_up,
                "tier1": arguments.tier1, "shape items": arguments.shape_items, "file items": arguments.file_items}
    comparison = Comparison(arguments, settings, "cascade", "full")
    fixed = ["--object-size", ITEM_BYTES]
    shapes = {"shape": (arguments.shape_items, "sim"), "file": (arguments.file_items, comparison.path("dram.pumice"))}

    def flags(index, *more):
        layout = [] if "--layout" in more else ["--layout", "fifo"]
        return [*fixed, *layout, "--index", index, "--superblock", 0, *more]

    def run(index, *more):
        return counts(replay(trace, *flags(index, "--flash-size", f"{arguments.flash}MiB", "--warmup", arguments.warm_up, *more)))

    def inserted(items, device, index, more):
        """A replay of new keys until the device is full."""
        keys = f"uniform:keys={items * 50},requests={items * 21 // 20},seed=2"
        return replay(keys, *flags(index, "--flash-size", f"{flash_mib(items)}MiB", "--device", device, *more))

    def side(index, *more):
        def turn(_):
            found = run(index, *more)
            found["clock"] = found["bytes_per_item"]
            if index == "cascade":
                found["clock_figures"] = run(index, *more, "--layout", "clock")
                found["clock"] = found["clock_figures"]["bytes_per_item"]
            with comparison.files("dram.pumice"):
                for name, (items, device) in shapes.items():
                    if items:
                        found[f"{name}_report"] = report = inserted(items, device, index, more)
                        found[name] = dram_per_object(report)
            return found

        return turn

    comparison.turns(side("cascade", "--tier1", arguments.tier1), side("full"), show_counts)
    if arguments.only != "peer":
        mine = comparison.runs["pumice"][0]
        # Exact caches of as many bytes of objects as the cascade side had.
        size = int(mine["report"]["object_bytes_resident_mean"])
        exact = [*fixed, "--layout", "exact", "--flash-size", size, "--warmup", arguments.warm_up, "--policy"]
        hits = [report["object_hit_ratio"] for report in at_once([lambda policy=policy: replay(trace, *exact, policy) for policy in ("fifo", "lru")])]
        for policy, hit_ratio in zip(("fifo", "lru"), hits):
            comparison.notes.append(
                f"exact {policy} of {size / 2**20:.0f} MiB of objects hits {hit_ratio:.4f}, cascade {mine['hit_ratio']:.4f}: "
                f"{(mine['hit_ratio'] - hit_ratio) * 100:+.2f} points"
            )
        mine["hit_ratio_against_twin"] = mine["hit_ratio"]
        if comparison.runs["peer"]:
            comparison.runs["peer"][0]["hit_ratio_against_twin"] = hits[0]
        others = [share for share in CURVE if share != arguments.tier1]
        curve = at_once([lambda share=share: run("cascade", "--tier1", share) for share in others])
        mine["curve"] = dict(zip(others, curve))
        comparison.notes.append(f"with layout clock: {show_counts(mine['clock_figures'])}")
        for share, point in sorted({**mine["curve"], arguments.tier1: mine}.items()):
            comparison.notes.append(f"tier1 {share}: {show_counts(point)}")
        report = mine["report"]
        if report["bytes_inserted"] < report["flash_bytes"]:
            text = f"{report['bytes_inserted'] / 2**30:.1f} GiB were inserted after the warm-up"
            comparison.notes.append(f"{text}: the flash was not gone round once")

    row, three = comparison.row, "{:.3f}".format
    dram = ("≤ 2.5 B", "≤ 1 B at ≤ 1 read a miss, or 2.5 B at ≤ 0.02", "{:.2f} B".format)
    row("DRAM of the index per item, all in", "bytes_per_item", *dram)
    row("the same with layout clock, which has a bit for each object", "clock", *dram)
    for name, (items, _) in shapes.items():
        if items:
            where = " on a file" if name == "file" else ""
            row(f"the same, {items / 1e6:.1f} million items inserted{where}", name, *dram)
    row("items for each byte of DRAM of the index", "items_per_byte", "≥ 6 ×", "≥ 10 ×", three)
    row("device reads per hit, Zipf 0.99", "reads_per_hit", "≤ 1.5", "≤ 1.2", three)
    row("of those one after the other", "rounds_per_hit", "≤ 1.35", "≤ 1.15", three)
    row("device reads per miss", "reads_per_miss", "≤ 0.15", "≤ 0.02", three)
    row("bytes of mappings written / bytes of items inserted", "mapping_share", "≤ 0.20", "≤ 0.14", three)
    row("hit ratio", "hit_ratio", "", "", points)
    if arguments.only != "peer":
        row("hit ratio against an exact fifo of as many bytes", "hit_ratio_against_twin", "≥ −1 point", "", points)
    return comparison


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


# --- layout clock -----------------------------------------------------------------------------------------------------

# The share of the keys that fits, and so much more flash than items take: blocks that are free, are buffers, or hold mappings.
SHARE, SPARE = 0.2, 1.13
WORKLOAD = "zipf:theta=0.99"
# Requests at once while there is no origin to wait for.
WARM_UP_DEPTH = 256
# Requests of the replay for each item that fits: several times round the flash, and as many again that count.
REQUESTS_PER_ITEM = 40
LAYOUTS = {"pumice": "clock", "peer": "fifo"}


def replayed_misses(comparison, items, keys, flash):
    """Misses of layout clock and of exact LRU for as many bytes of objects, and amplification of both, without any times."""
    trace = f"{WORKLOAD},keys={keys},requests={items * REQUESTS_PER_ITEM}"
    common = ["--object-size", ITEM_BYTES, "--warmup", 0.5]
    flags = [*common, "--index", "cascade", "--superblock", 0, "--flash-size", f"{flash}MiB", "--layout"]
    clock, fifo = at_once([lambda layout=layout: replay(trace, *flags, layout) for layout in LAYOUTS.values()])
    size = int(clock["object_bytes_resident_mean"])
    lru = replay(trace, *common, "--layout", "exact", "--policy", "lru", "--flash-size", size)
    misses = [1 - report["object_hit_ratio"] for report in (clock, fifo, lru)]
    amplification = [report["app_write_amplification"] for report in (clock, fifo)]
    comparison.notes.append(
        f"replayed, {size / ITEM_BYTES / keys * 100:.1f} % of the keys cached: misses {misses[0]:.4f} with clock, {misses[1]:.4f} "
        f"with fifo, {misses[2]:.4f} with exact LRU of as many bytes; amplification {amplification[0]:.3f} and {amplification[1]:.3f}"
    )
    for name, missed, written, report in (("pumice", misses[0], amplification[0], clock), ("peer", misses[2], amplification[1], lru)):
        comparison.runs[name][0] |= {"replayed_misses": missed, "replayed_amplification": written, "replay": report}


@case(inprocess=True, pairs=3, seconds=30, keys=(2_000_000, "keys"), depth=(16, "requests at once"),
      origin_ms=(5.0, "what a miss waits for"), warm_up=(90.0, "seconds"),
      quick={"keys": 400_000, "seconds": 2, "pairs": 2, "warm_up": 4})
def cascade_clock(arguments):
    """Layout clock against fifo under the cascade index: a look-aside load before an origin that takes 5 ms.

    Both sides are `bench/inprocess pumice-gets --index cascade`, with `--layout clock` and with `--layout fifo`: the engine
    without a DRAM tier, on a file with O_DIRECT, one thread, on the same one core. Flash is such that a fifth of
    the keys fit, with values of 300 bytes. `--depth` tasks make gets of keys drawn by Zipf 0.99, each one after the other. Where a
    get misses, its task waits for as long as the origin takes, and sets the item. Every value is checked for its key and length.
    Both are filled, and look aside for `--warm-up` seconds before an origin that takes no time; then they take turns.

    The load is closed, so requests/s = depth / (time of a get + miss ratio x time of the origin); the time that is not the origin's is
    shown beside it. The thread polls while the origin is waited for, so CPU time says nothing.

    Amplification is all bytes sent to the device for each byte of items that are set; that of the replay, many times round the flash,
    says more than that of a turn. Misses are compared with an exact LRU's by `pumice replay`: the same keys through layout
    clock on a simulated device, and through `--layout exact --policy lru` of as many bytes as it had of objects on average."""
    keys, depth, origin_ms = arguments.keys, arguments.depth, arguments.origin_ms
    items = int(keys * SHARE)
    flash = math.ceil(items * RECORD_BYTES * SPARE / 2**20)
    settings = {"keys": f"{WORKLOAD},keys={keys}", "value bytes": ITEM_BYTES, "flash MiB": flash, "depth": depth,
                "origin ms": origin_ms, "seconds": arguments.seconds, "warm-up": arguments.warm_up}
    comparison = Comparison(arguments, settings, *LAYOUTS.values())
    flags = {name: ["--index", "cascade", "--layout", layout] for name, layout in LAYOUTS.items()}

    def side(process):
        def turn(_):
            report = process.run(WORKLOAD, depth, arguments.seconds, origin_ms)
            rate, misses = report["requests_per_second"], report["miss_ratio"]
            return {"requests_per_second": rate, "miss_ratio": misses, "cycle_ms": depth / rate * 1e3, "origin_ms": misses * origin_ms,
                    "amplification": report["written_bytes"] / max(report["appended_bytes"], 1),
                    "cached": report["resident_entries"] / keys, "report": report}

        return turn

    with gets_of_sides(comparison, "origin", keys, flash, flags) as processes:
        for process in processes.values():
            process.run(WORKLOAD, WARM_UP_DEPTH, arguments.warm_up, 0)
        comparison.turns(*[side(processes.get(name)) for name in LAYOUTS])
    if arguments.only is None:
        replayed_misses(comparison, items, keys, flash)
    what, row = "layout clock against fifo", comparison.row
    row(f"{what}, look-aside with an origin of {origin_ms:g} ms: requests/s", "requests_per_second", "≥ 1.12 ×", "≥ 1.20 ×", thousands)
    row(f"{what}: misses", "miss_ratio", "", "", points)
    row(f"{what}: amplification", "amplification", "", "", "{:.3f}".format)
    row(f"{what}, replayed for {REQUESTS_PER_ITEM} requests an item: amplification", "replayed_amplification", "", "", "{:.3f}".format)
    row("misses of layout clock against exact LRU, replayed", "replayed_misses", "≤ 1.00 ×", "", points)
    return comparison


# --- a small budget ---------------------------------------------------------------------------------------------------

# The share of the flash that is items.
USABLE = 0.96
OVER_BUDGET_MAX = 1.1
QUANTILE = 0.99
BUCKET = re.compile(r'^pumice_index_rounds_bucket\{le="([^"]+)"\} (\d+)$', re.MULTILINE)


def rounds(server):
    """Gets that took at most so many rounds: {2: 17, ..., inf: 20}."""
    found = {float(upper): int(count) for upper, count in BUCKET.findall(server.get("/metrics")[1])}
    assert found, "the server has no pumice_index_rounds_bucket in /metrics"
    return found


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
            # Before the fill, so that a server that does not count them is told at once.
            rounds(server)
            workload = {"keys": f"zipf:keys={items},theta=0", "value_size": ITEM_BYTES, "connections": connections, "mix": "get"}
            load(server, comparison.load_core, preload_only=True, pipeline=8, **workload)
            before = rounds(server)
            report = load(server, comparison.load_core, seconds=arguments.seconds, warm_up=0, **workload)
            took = {upper: count - before.get(upper, 0) for upper, count in sorted(rounds(server).items())}
            gets, stats = took[float("inf")], server.stats()
            return {
                "resident_share": server.memory()[1] / (dram << 20), "gets": gets,
                "rounds_p99": next(upper for upper, count in took.items() if count >= QUANTILE * gets),
                "hit_ratio": report["hit_ratio"], "items": stats["engine"]["resident_entries"],
                "requests_per_second": report["requests_per_second"], "dropped": stats["flash"]["dropped_no_block"],
                "index_bytes": stats["index"]["dram_bytes"], "report": report, "stats": stats,
            }

    comparison.turns(turn)
    of = f"{dram} MiB of DRAM, {flash} MiB of flash, filled with 300-byte items"
    comparison.row(f"{of}: resident memory / budget", "resident_share", f"≤ {OVER_BUDGET_MAX}", "", "{:.2f}".format)
    comparison.row(f"{of}: dependent rounds of a get at p99", "rounds_p99", "≤ 3", "", "{:g}".format)
    comparison.row(f"{of}: items held", "items", "", "", lambda value: f"{value / 1e6:.2f} million")
    return comparison


# --- traces -----------------------------------------------------------------------------------------------------------

# How many bytes of a recorded trace make a cache worth its name.
RECORDED_BYTES_MIN = 50_000
INDEXES = {"pumice": "cascade", "peer": "full"}


def format_of(name):
    return ["--format", next((form for start, form in FORMATS.items() if name.startswith(start)), "auto")]


def workloads(arguments):
    """Names, and what `replay` takes for them."""
    tail = f"keys={arguments.keys},requests={arguments.requests},seed=1"
    fixed, generated = ["--object-size", ITEM_BYTES], ["--flash-size", f"{arguments.flash}MiB"]
    found = {what: [f"{spec},{tail}", *fixed, *generated] for what, (spec, *_) in WORKLOADS.items()}
    shared = os.path.realpath(arguments.shared)
    for name in ("kvcache_reg", "graph_cache_leader"):
        config = os.path.join(shared, "distributions", "cachelib", name, "config.json")
        if os.path.exists(config):
            trace = cachebench.trace(config, keys=arguments.keys, requests=arguments.requests, seed=1)
            found[f"CacheLib {name}"] = [trace, *generated]
            if name == "kvcache_reg":
                found[f"CacheLib {name}, 300-byte items"] = [trace, "--ignore-sizes", *fixed, *generated]
    folder = os.path.join(shared, "kv")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if os.path.getsize(path) >= RECORDED_BYTES_MIN:
            found[name.split(".")[0]] = [path, *format_of(name), *fixed, "--flash-size", "20%"]
    return found


@case(pairs=None, requests=(20_000_000, "requests of what is generated"), keys=(20_000_000, "keys of what is generated"),
      flash=(512, "MiB of flash for what is generated"), shared=SHARED, quick={"requests": 600_000, "keys": 200_000, "flash": 16})
def cascade_traces(arguments):
    """Published distributions and recorded key-value traces through the cascade index and the full one: counts of `pumice replay`.

    One line each, as notes: hit ratio, DRAM of the index for each object, device reads a hit and a miss, and mappings written for each
    byte inserted, of both indexes under layout fifo on a simulated device, without a DRAM tier; the first half of the requests fills
    the cache.

    - YCSB's: Zipf 0.99, hotspot (1 % of the keys, 90 % of the gets), normal (standard deviation 1 % of the keys); 300-byte items.
    - CacheLib's: `kvcache_reg` and `graph_cache_leader` with their own sizes, and `kvcache_reg` with 300-byte items. Sets and deletes are requests as gets are: a miss inserts.
    - Recorded: the KV traces of the folder, none of which has sizes; 300-byte items, flash a fifth of the footprint. They are
      short: with a cache that small a partition's fixed costs are most of what the index takes."""
    settings = {"requests": arguments.requests, "keys": arguments.keys, "flash MiB": arguments.flash, "warm-up": 0.5}
    comparison = Comparison(arguments, settings, *INDEXES.values())
    shared = os.path.realpath(arguments.shared) + os.sep

    def run(trace, index, more):
        report = replay(trace, *more, "--layout", "fifo", "--index", index, "--warmup", 0.5, "--superblock", 0)
        # Where the folder is says nothing of the run.
        report["trace"] = trace.replace(shared, "")
        return counts(report)

    for name, (trace, *more) in workloads(arguments).items():
        both = at_once([lambda index=index: run(trace, index, more) for index in INDEXES.values()])
        for side, result in zip(INDEXES, both):
            comparison.runs[side].append({"name": name, **result})
            comparison.note(f"{name}, {INDEXES[side]}: {show_counts(result)}")
    return comparison


@case(pairs=None, requests=(4_000_000, "requests of what is generated"), keys=(500_000, "keys of what is generated"), shared=SHARED,
      quick={"requests": 200_000, "keys": 40_000})
def cascade_ripq(arguments):
    """What layout ripq loses of its hits with the cascade index, against the exact queue: counts of `pumice replay`.

    `ripq` with slru-3 and index `cascade` on flash of a tenth of the footprint, objects of 4 KiB, the first 40 % of the requests fill
    the cache; then `--layout exact` with the same policy and as many bytes as the former had of objects on average. Zipf 0.9, and
    two recorded traces of the folder where they are: scarab-recs and arc-OLTP. A row each; the bound is on points of percent
    of the hit ratio, which the notes have."""
    settings = {"requests": arguments.requests, "keys": arguments.keys, "warm-up": 0.4, "policy": "slru-3"}
    comparison = Comparison(arguments, settings, "ripq, cascade", "exact")
    found = {"Zipf 0.9": [f"zipf:keys={arguments.keys},theta=0.9,requests={arguments.requests},seed=1"]}
    for name in ("kv/scarab-recs.trace.xz", "block/arc-OLTP.lis.zst"):
        path, short = os.path.join(os.path.realpath(arguments.shared), name), os.path.basename(name)
        if os.path.exists(path):
            found[short.split(".")[0]] = [path, *format_of(short)]

    def both_sides(trace):
        common = [*trace, "--warmup", 0.4, "--object-size", "4KiB", "--policy", "slru-3"]
        ripq = replay(*common, "--flash-size", "10%", "--layout", "ripq", "--index", "cascade")
        return ripq, replay(*common, "--flash-size", int(ripq["object_bytes_resident_mean"]), "--layout", "exact")

    results = dict(zip(found, at_once([lambda trace=trace: both_sides(trace) for trace in found.values()])))
    for at, side in enumerate(comparison.sides):
        comparison.runs[side].append({name: both[at]["object_hit_ratio"] for name, both in results.items()})
    for name, (ripq, exact) in results.items():
        lower = (exact["object_hit_ratio"] - ripq["object_hit_ratio"]) * 100
        comparison.notes.append(f"{name}: {lower:.2f} points lower; {dram_per_object(ripq):.2f} B of index an object, application write "
                                f"amplification {ripq['app_write_amplification']:.3f}")
        comparison.row(f"ripq slru-3 under cascade, hit ratio, {name}", name, "≥ −0.5 points", "≥ −0.2", points)
    return comparison
