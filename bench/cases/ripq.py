"""Layout ripq: its throughput against fifo, and the RIPQ paper's evaluation, made again over `pumice replay --json`."""

import os
from concurrent.futures import ThreadPoolExecutor

import cachebench
from comparison import Comparison, case, holds, show_table
from harness import Failure
from tools import dram_per_object, gib, inprocess, percent, replay, thousands
from traces import SHARED, Traces

RECORDED = {
    "wiki": os.path.join("object", "wiki_sampled_train_trace.tsv.zst"),
    "tencent-3300": os.path.join("block", "tencentBlock.ns3300.sample.csv.zst"),
}


@case(pumice=False, inprocess=True, requests=(1_000_000, "requests of what is generated"), shared=SHARED,
      trace=([], "a generator or a trace file, instead; more than once"), dram_mib=(0, "MiB of DRAM of the process; 0: no DRAM tier"),
      depth=(32, "requests at once"), policy=("slru-3", "ripq's policy"), quick={"requests": 60_000, "pairs": 2})
def ripq_throughput(arguments):
    """What layout ripq costs in throughput: ripq with slru-3 against fifo, both Pumice, each with its own misses.

    `bench/inprocess pumice-replay`, one layout after the other in turns: the engine on a file with O_DIRECT, one thread, one
    io_uring, on one core. The requests of a trace, `--depth` of them at once, look aside: a miss is followed by a set of as many
    bytes. An object has the size of its first request for good. Flash is a tenth of the bytes of all objects. There is no DRAM
    tier unless `--dram-mib` gives one, so a hit is a read of the device, unless the object's block is still a buffer. A set that
    finds no room waits until the device has done something; with a DRAM tier it goes without a flash copy instead, as in a
    server. The first quarter of the requests fills the cache, the others are measured until all that they made due is done.
    Every value is checked for its length and how it begins.

    The traces are CacheLib's CDN workload, 400,000 keys (nothing but popularity), and two recorded ones: Wikipedia's CDN and a
    volume of Tencent's block store with large requests, if `--shared` has them; else Zipf 0.8 over as many keys with sizes of 1 to
    64 KiB. The recorded ones are short: a turn takes one and ten seconds. A trace without sizes has objects of 4 KiB.

    What the rows compare is requests per second. A layout with more hits reads more and writes less, so which of the two a device
    does more cheaply decides part of it: bytes read and written are those that the kernel counts for the process (/proc/self/io),
    and hit ratios are shown beside them. Without memory cgroups: neither side uses the page cache."""
    folder, keys = os.path.realpath(arguments.shared), 400_000
    config = os.path.join(folder, "distributions", "cachelib", "cdn", "config.json")
    if arguments.trace:
        traces = {os.path.basename(trace): trace for trace in arguments.trace}
    elif not os.path.exists(config):
        traces = {"zipf": f"zipf:keys={keys},theta=0.8,size=1024-65536,requests={arguments.requests}"}
    else:
        traces = {"cdn": cachebench.trace(config, keys=keys, requests=arguments.requests)}
        traces |= {name: os.path.join(folder, file) for name, file in RECORDED.items()}
    shown = " ".join(trace.replace(folder + os.sep, "") for trace in traces.values())
    settings = {"traces": shown, "flash": "10 % of the footprint", "DRAM MiB": arguments.dram_mib, "depth": arguments.depth}
    comparison = Comparison(arguments, settings, f"ripq, {arguments.policy}", "fifo")

    def side(name, trace, *layout):
        def turn(_):
            report, took, busy = inprocess(comparison, "pumice-replay", "--path", path, "--trace", trace, "--dram-mib",
                                           arguments.dram_mib, "--depth", arguments.depth, "--layout", *layout)
            found = {"requests/s": report["requests_per_second"], "hit ratio": report["object_hit_ratio"],
                     "byte hit ratio": report["byte_hit_ratio"], "bytes read": took["device_read_bytes"],
                     "bytes written": took["device_written_bytes"], "bytes read to move": report["reclaim_read_bytes"],
                     "cpu": report["cpu_us_per_request"], "busy": busy}
            return {**{f"{name}: {key}": value for key, value in found.items()}, "report": report}

        return turn

    with comparison.files("replay.pumice") as (path,):
        for name, trace in traces.items():
            ripq = side(name, trace, "ripq", "--policy", arguments.policy)
            comparison.turns(ripq, side(name, trace, "fifo"))
    what = f"ripq with {arguments.policy} against fifo on a file"
    for name in traces:
        comparison.row(f"{what}, {name}: requests/s", f"{name}: requests/s", "≥ 0.90 ×", "≥ 0.97 ×", thousands, cpu=f"{name}: cpu")
    for name in traces:
        for figure, unit in (("hit ratio", percent), ("bytes read", gib), ("bytes written", gib)):
            comparison.row(f"{name}: {figure}", f"{name}: {figure}", "", "", unit)
    return comparison


# --- the evaluation of the paper ---------------------------------------------------------------------------------------

# A saturated drive, `--throttle nvme`: nanoseconds of latency, bytes a second, operations at once.
READ, WRITE = (65_500, 3.5e9, 33), (16_700, 2.7e9, 9)
# Of so many objects the DRAM of each is bounded.
DRAM_OBJECTS = 50_000
HEAD = ["trace", "policy", "hits, fifo, %", "hits, %", "points lower, objects / bytes", "written", "with the drive's copies: unit of 1, of 4 blocks",
        "written by fifo", "DRAM of an object", "saturated drive"]


def saturated(report):
    """Requests a second of a saturated drive, which reads and writes in turns and copies for itself."""
    copied = max(report["device_write_amplification"] - 1, 0) * report["device_written_bytes"]
    seconds = 0
    for (latency, speed, at_once), operations, moved in [
        (READ, report["device_reads"], report["device_read_bytes"]), (WRITE, report["device_writes"], report["device_written_bytes"])
    ]:
        seconds += max(operations * latency / 1e9 / at_once, (moved + copied) / speed)
    return report["requests"] / seconds


@case(pairs=None, shared=SHARED, jobs=(os.cpu_count(), "traces at a time"),
      named=([], "only traces with this in their name; more than once"), policy=([], "a policy; more than once (slru-3 and gdsf-3)"),
      layout=("ripq", "the layout", ["ripq", "sipq"]), flags=("", "more flags of the replays, such as '--theta 0.5'"))
def ripq_report(arguments):
    """The RIPQ paper's evaluation, made again: the table of docs/ripq.md, and whether its bounds hold.

    Replays each trace of a directory (with its manifest.json, if it has one; traces generated after distributions/cachelib/ and a Zipf
    load beside) through `pumice replay --json`, and each layout's exact twin: the same policy on an exact queue of as
    many bytes as the layout held of objects, which refuses what the layout does. Flash is 10 % of the footprint, the first half of the
    requests fills it, objects without a size have 4 KiB, alpha is 1/16. A trace qualifies if the measured half inserts at least 5 times
    the flash and there are 512 blocks; others are named and left out."""
    policies = arguments.policy or ["slru-3", "gdsf-3"]
    steer = arguments.flags.split() or (["--alpha", 1 / 16] if arguments.layout == "ripq" else [])
    comparison = Comparison(arguments, {"flash": "10 %", "warm-up": 0.5, "flags": " ".join(map(str, steer))}, arguments.layout, "exact twins")
    known = Traces(arguments.shared, arguments.quick)

    def replayed(name, *flags):
        return replay(*known[name], "--warmup", 0.5, "--object-size", "4KiB", *flags)

    def of_policy(name, policy):
        """The layout with units of 1 and 4 blocks, and its twin."""
        flags = ["--flash-size", "10%", "--layout", arguments.layout, "--policy", policy, *steer]
        one, four = (replayed(name, *flags, "--superblock", blocks) for blocks in (1, 4))
        size, most = round(one["object_bytes_resident_mean"]), one["settings"]["max_object_bytes"]
        return one, four, replayed(name, "--flash-size", size, "--layout", "exact", "--policy", policy, "--max-object-size", most)

    def of_trace(name):
        try:
            found = {policies[0]: of_policy(name, policies[0])}
            report = found[policies[0]][0]
            if report["settings"]["blocks"] < 512 or report["bytes_inserted"] < 5 * report["flash_bytes"]:
                inserted = report["bytes_inserted"] / report["flash_bytes"]
                return f"{report['settings']['blocks']} blocks, {inserted:.2f} times the flash inserted"
            found |= {policy: of_policy(name, policy) for policy in policies[1:]}
            return replayed(name, "--flash-size", "10%", "--layout", "fifo"), found
        except Failure as failure:
            return str(failure).strip().splitlines()[-1]

    def lines():
        names = [name for name in known if not arguments.named or any(part in name for part in arguments.named)]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for name, found in zip(names, pool.map(of_trace, names)):
                if isinstance(found, str):
                    comparison.note(f"left out: {name}: {found}")
                    continue
                fifo, by_policy = found
                for policy, reports in by_policy.items():
                    comparison.runs["pumice"].append({"name": name, "policy": policy, "reports": reports[:2], "fifo": fifo})
                    comparison.runs["peer"].append({"name": name, "policy": policy, "report": reports[2]})
                    yield line(comparison, name, policy, fifo, *reports)

    show_table("The layout beside its twin", HEAD, lines(), texts=2)
    if not comparison.runs["pumice"]:
        raise Failure("no trace qualifies")
    return comparison


def line(comparison, name, policy, fifo, one, four, twin):
    lower = [100 * (twin[f"{kind}_hit_ratio"] - one[f"{kind}_hit_ratio"]) for kind in ("object", "byte")]
    # GDSF gains objects and loses bytes.
    is_gdsf, dram = policy.startswith("gdsf"), dram_per_object(one)
    bounds = [("points lower", lower[0] if is_gdsf else max(lower), "≤ 1" if is_gdsf else "≤ 0.3"),
              ("DRAM of an object", dram, "≤ 16" if one["objects_cached"] >= DRAM_OBJECTS else "")]
    often = "≤ 1.25" if twin["object_hit_ratio"] <= 0.5 else "≤ 1.40"
    bounds += [(f"written, unit of {blocks}", report["combined_write_amplification"], often) for blocks, report in ((1, one), (4, four))]
    for what, seen, must in bounds:
        comparison.must(holds(seen, must), f"{name}, {policy}: {what} {seen:.3f}, must be {must}")
    copies = ", ".join(f"{report['combined_write_amplification']:.2f}" for report in (one, four))
    return [name, policy, f"{100 * fifo['object_hit_ratio']:.1f}", f"{100 * one['object_hit_ratio']:.1f}", f"{lower[0]:.2f} / {lower[1]:.2f}",
            f"{one['app_write_amplification']:.2f}", copies, f"{fifo['app_write_amplification']:.2f}", f"{dram:.1f}",
            f"{saturated(one) / saturated(fifo):.2f}"]
