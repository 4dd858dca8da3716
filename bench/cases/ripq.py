"""Layout ripq: against fifo on a file, as replays, at the paper's scale; and a model of sipq."""

import bisect
import itertools
import os
import random
import threading
from collections import OrderedDict, deque

import cachebench
from comparison import Comparison, case
from harness import machine
from tools import SHARED, dram_per_object, gib, inprocess, percent, replay, thousands

POLICY = ("slru-3", "ripq's policy")
RECORDED = {
    "wiki": os.path.join("object", "wiki_sampled_train_trace.tsv.zst"),
    "tencent-3300": os.path.join("block", "tencentBlock.ns3300.sample.csv.zst"),
}


@case(pumice=False, inprocess=True, requests=(1_000_000, "requests of what is generated"), shared=SHARED,
      trace=([], "a generator or a trace file, instead; more than once"), dram_mib=(0, "MiB of DRAM of the process; 0: no DRAM tier"),
      depth=(32, "requests at once"), policy=POLICY, quick={"requests": 60_000, "pairs": 2})
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


@case(requests=(4_000_000, "requests"), keys=(500_000, "objects"), policy=POLICY,
      quick={"requests": 200_000, "keys": 40_000, "pairs": 1})
def ripq_replay(arguments):
    """How fast traces are replayed through layout ripq, beside layout fifo: `pumice replay` on one core.

    Zipf 0.9 with objects of 4 KiB, flash a tenth of the footprint, a simulated drive, the first two fifths of the requests fill the
    cache. Requests a second are all requests over the time of the whole replay, in which the trace is made twice: once to see how
    large its footprint is. Layouts take turns. The DRAM of index, queue and histogram for each object is shown beside."""
    trace = f"zipf:keys={arguments.keys},theta=0.9,requests={arguments.requests},seed=1"
    flags = ["--object-size", "4KiB", "--flash-size", "10%", "--warmup", "0.4"]
    settings = {"trace": trace, "flags": " ".join(flags)}
    comparison = Comparison(arguments, settings, f"ripq, {arguments.policy}", "fifo")

    def side(*layout):
        def turn(_):
            report = replay(trace, *flags, "--layout", *layout, core=comparison.server_core)
            found = {"requests/s": report["requests_per_second"], "hit ratio": report["object_hit_ratio"]}
            return {**found, "DRAM per object": dram_per_object(report), "report": report}

        return turn

    def million(value):
        return f"{value / 1e6:.2f} M/s"

    comparison.turns(side("ripq", "--policy", arguments.policy), side("fifo"))
    comparison.row(f"replay through ripq with {arguments.policy} against fifo: requests/s", "requests/s", "ripq ≥ 1 M/s", "≥ 3 M/s", million)
    comparison.row("DRAM of index and queue for an object", "DRAM per object", "≤ 16 B", "≤ 11 B", "{:.1f} B".format)
    return comparison


def peak_bytes(call):
    """What a function returns, and the most that its one child process has had resident."""
    peak, is_over = 0, threading.Event()

    def watch():
        nonlocal peak
        while not is_over.wait(0.5):
            for child in machine.read(f"/proc/self/task/{os.getpid()}/children").split():
                high = machine.field(f"/proc/{child}/status", "VmHWM")
                peak = max(peak, int(high.split()[0]) << 10 if high else 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        is_over.set()
        watcher.join()
    return result, peak


@case(pairs=None, requests=(125_000_000, "requests"), keys=(100_000_000, "keys"), flash=("670GiB", "flash"), block=("256MiB", "a block"),
      quick={"keys": 100_000, "flash": "700MiB", "block": "1MiB", "requests": 200_000})
def ripq_scale(arguments):
    """The cache of the RIPQ paper, simulated: 670 GiB of flash, blocks of 256 MiB, some 50 million objects.

    One `pumice replay` of Zipf 0.6 over 100 million keys with objects of 13 KiB through ripq with slru-3 on a simulated drive.
    Takes five minutes and 4 GiB of DRAM. It must come to its end within 30 minutes with at most 4 GiB resident."""
    trace = f"zipf:keys={arguments.keys},theta=0.6,requests={arguments.requests},seed=1"
    flags = ["--object-size", "13KiB", "--flash-size", arguments.flash, "--block-size", arguments.block]
    comparison = Comparison(arguments, {"trace": trace, "flags": " ".join(flags)}, "ripq, slru-3")

    def turn(_):
        report, peak = peak_bytes(lambda: replay(trace, *flags, "--layout", "ripq", "--policy", "slru-3"))
        return {"seconds": report["elapsed_seconds"], "resident": peak, "objects": report["objects_cached"],
                "DRAM per object": dram_per_object(report), "amplification": report["combined_write_amplification"],
                "report": report}

    comparison.turns(turn)
    what = "the paper's scale:"
    comparison.row(f"{what} time", "seconds", "≤ 30 min", "", "{:.0f} s".format)
    comparison.row(f"{what} resident", "resident", "≤ 4 GiB", "", gib)
    comparison.row(f"{what} objects", "objects", "", "", lambda value: f"{value / 1e6:.1f} M")
    comparison.row(f"{what} DRAM of index and queue an object", "DRAM per object", "≤ 16 B", "≤ 11 B", "{:.1f} B".format)
    return comparison


# --- a model of sipq --------------------------------------------------------------------------------------------------

BLOCKS, BLOCK_OBJECTS, RESERVED_BLOCKS = 200, 40, 2
DISTRIBUTIONS = [(200_000, 0.3), (60_000, 0.5), (60_000, 0.8), (30_000, 0.9), (30_000, 1.0)]


def sipq(keys, theta, requests, share_at):
    """Bytes written / bytes inserted, and the hit ratio, of the last half of the requests."""
    weights = list(itertools.accumulate(1 / (rank + 1) ** theta for rank in range(keys)))
    source = random.Random(1)
    # `block_of` has the number of the block with the live copy of a key.
    queue, sealed, block_of, is_open = OrderedDict(), deque(), {}, []
    number = hits = written = inserted = 0
    objects = (BLOCKS - RESERVED_BLOCKS) * BLOCK_OBJECTS

    def append(key):
        nonlocal is_open, number, written
        is_open.append(key)
        block_of[key] = number
        written += 1
        if len(is_open) == BLOCK_OBJECTS:
            sealed.append((number, is_open))
            number, is_open = number + 1, []

    for at in range(requests):
        if at == requests // 2:
            hits = written = inserted = 0
        key = bisect.bisect(weights, source.random() * weights[-1])
        queue[key] = True
        queue.move_to_end(key)
        hits += key in block_of
        if key not in block_of:
            inserted += 1
            append(key)
            while len(sealed) > BLOCKS - RESERVED_BLOCKS:
                oldest, held = sealed.popleft()
                live = [key for key in held if block_of.get(key) == oldest]
                for key in live:
                    del block_of[key]
                for key in live:
                    if key in queue:
                        append(key)
        while len(queue) > share_at(at / requests) * objects:
            queue.popitem(last=False)
    return written / inserted, hits / (hits + inserted)


@case(pumice=False, pairs=None, in_all=False, requests=(400_000, "requests of each run"), quick={"requests": 40_000})
def sipq_states(arguments):
    """Why SIPQ with a long queue of keys writes 1.2 times on one trace and 4 times on another: it has two stable states.

    A model of layout `sipq` with policy lru, of objects of one size: flash of 200 blocks of 40 objects, written in a circle; an LRU
    queue of as many keys as 0.9 of that; when the oldest block is reclaimed, what of it is in the queue is written again. Keys are
    drawn after Zipf. Two runs for each distribution: from an empty cache, and with a queue of 0.99 for the first 3/8 of the
    requests. The figures are always the same."""
    comparison = Comparison(arguments, {"requests": arguments.requests}, "from empty", "after a queue of 0.99")
    shares = {"pumice": lambda _: 0.9, "peer": lambda at: 0.99 if at < 3 / 8 else 0.9}
    for keys, theta in DISTRIBUTIONS:
        texts = []
        for side, share_at in shares.items():
            written, hit = sipq(keys, theta, arguments.requests, share_at)
            comparison.runs[side].append({"keys": keys, "theta": theta, "written": written, "hit_ratio": hit})
            texts.append(f"{comparison.sides[side]} {written:.2f} ×, {hit * 100:.1f} % hit")
        comparison.note(f"{keys:,} keys, Zipf {theta}: {'; '.join(texts)}")
    return comparison
