"""The RIPQ paper's evaluation, made again over `pumice replay --json`."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import cachebench
from comparison import Comparison, case
from harness import Failure, machine
from tools import SHARED, dram_per_object, replay

SLRU, GDSF = ["slru-1", "slru-2", "slru-3"], ["gdsf-1", "gdsf-2", "gdsf-3"]
POLICIES = SLRU + GDSF
SIPQ_THETAS = [0.5, 0.9]
# Formats that do not show, by parts of the name.
FORMATS = {"scarab-recs": "keys-be-i64", "cache2k-": "keys-be-u32", "jedi-v": "jedi", ".lis": "arc", ".oracleGeneral": "oracle-general", ".vscsi": "vscsi"}
SHORTER = {"tencentBlock.ns": "tencent-", "cloudPhysicsIO": "cloudphysics", "-conversation_trace": "", "_sampled_train_trace": "-train",
           "_sampled_val_trace": "-val"}
ENDINGS = [".zst", ".xz", ".gz", ".csv", ".lis", ".trace", ".jsonl", ".txt", ".tsv", ".vscsi", ".load", ".sample", ".request"]
# Bounds: points below the twin, and bytes written for a byte inserted where the twin hits half or less, and more.
SLRU_POINTS, GDSF_POINTS, ELSEWHERE_POINTS, SELDOM_HIT, OFTEN_HIT, KNEE_POINTS, DRAM_BYTES = 0.3, 1.0, 0.6, 1.25, 1.40, 0.3, 16
# A saturated drive, `--throttle nvme`: nanoseconds of latency, bytes a second, operations at once.
READ, WRITE = (65_500, 3.5e9, 33), (16_700, 2.7e9, 9)


def traces(directory, quick, generated=False):
    """What `replay` takes for each trace, by short name."""
    listed = machine.read(os.path.join(directory, "manifest.json"))
    if listed:
        names = sorted({entry["file"] for entry in json.loads(listed)})
    else:
        below = (os.path.join(folder, file) for folder, _, files in os.walk(directory) for file in files)
        names = sorted(os.path.relpath(path, directory) for path in below if "distributions" not in path)
    found = {}
    for name in names:
        short = os.path.basename(name).split(".gen_sequence")[0]
        for ending in ENDINGS:
            short = short.removesuffix(ending)
        for long, brief in SHORTER.items():
            short = short.replace(long, brief)
        known = [format for part, format in FORMATS.items() if part in name]
        found[short] = (os.path.join(directory, name), *(["--format", known[0]] if known else []))
    for name, keys, requests in [("cdn", 1_500_000, 6_000_000), ("kvcache_reg", 3_000_000, 12_000_000)]:
        config = os.path.join(directory, "distributions", "cachelib", name, "config.json")
        if os.path.exists(config):
            less = 40 if quick else 1
            found[name] = (cachebench.trace(config, keys=keys // less, requests=requests // less),)
    keys, requests = (5_000, 50_000) if quick else (100_000, 1_000_000)
    found["zipf"] = (f"zipf:keys={keys},theta=0.9,requests={requests},size=600-8192",)
    return found


@cache
def replayed(trace, *flags):
    """The report of one replay, or the text of its error."""
    try:
        return replay(*trace, "--warmup", 0.5, "--object-size", "4KiB", *flags)
    except Failure as failure:
        return str(failure)


def run(trace, layout, policy, superblock, alpha=1 / 16, theta=None):
    """A layout's report, with what its twin hits beside."""
    return with_twin(trace, layout, policy, superblock, alpha, theta)


@cache
def with_twin(trace, layout, policy, superblock, alpha, theta):
    steer = ["--alpha", alpha] if layout == "ripq" else []
    steer += ["--theta", theta] if theta is not None else []
    report = replayed(trace, "--flash-size", "10%", "--layout", layout, "--policy", policy, "--superblock", superblock, *steer)
    if isinstance(report, str):
        return report
    size, most = round(report["object_bytes_resident_mean"]), report["settings"]["max_object_bytes"]
    twin = replayed(trace, "--flash-size", size, "--layout", "exact", "--policy", policy, "--max-object-size", most)
    if isinstance(twin, str):
        raise Failure(f"{trace[0]}: the twin of {layout}, {policy}: {twin}")
    kinds = {kind: 100 * (twin[f"{kind}_hit_ratio"] - report[f"{kind}_hit_ratio"]) for kind in ("object", "byte")}
    return {**report, "lower": kinds, "often": twin["object_hit_ratio"] > 0.5}


def hits(report):
    return 100 * report["object_hit_ratio"]


def amplification(report):
    return report["combined_write_amplification"]


def points(report):
    """Points lower that a bound is on: of objects and, but for GDSF, of bytes."""
    return report["lower"]["object"] if report["policy"] in GDSF else max(report["lower"].values())


def misses(report):
    return amplification(report) > OFTEN_HIT or points(report) > ELSEWHERE_POINTS


def saturated(report):
    """Requests a second of a saturated drive, which reads and writes in turns and copies for itself."""
    copied = max(report["device_write_amplification"] - 1, 0) * report["device_written_bytes"]
    seconds = 0
    for (latency, speed, at_once), operations, moved in [
        (READ, report["device_reads"], report["device_read_bytes"]), (WRITE, report["device_writes"], report["device_written_bytes"])
    ]:
        seconds += max(operations * latency / 1e9 / at_once, (moved + copied) / speed)
    return report["requests"] / seconds


def fixed(value, digits=2):
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def bold(text, is_missed):
    return f"**{text}**" if is_missed else text


def pair(report):
    return f"{fixed(amplification(report))} / {fixed(points(report))}"


def table(title, header, rows, texts=1):
    print(f"\n### {title}\n\n| " + " | ".join(header) + " |")
    print("|" + "|".join(" --- " if at < texts else " ---: " for at in range(len(header))) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


class Bounds:
    """What was asked for: each bound with the rows that miss it."""

    def __init__(self):
        self.rows = {}

    def hold(self, what, row, seen, is_held, worse=None):
        """Notes a row; `worse` orders rows, and is the figure seen where nothing else is said."""
        self.rows.setdefault(what, []).append((seen if worse is None else worse, is_held, f"{row} {fixed(seen, 3)}"))

    def table(self):
        cells = []
        for what, rows in self.rows.items():
            missed = [text for _, is_held, text in rows if not is_held]
            verdict = f"**fails** in {len(missed)} of {len(rows)}: {', '.join(missed)}" if missed else f"holds in {len(rows)}"
            cells.append([what, max(rows)[2], verdict])
        table("What was asked for", ["bound", "worst seen", "verdict"], cells, 3)


def tables(found, options, ahead):
    """Prints all tables of the traces that qualify; `ahead` runs replays at the same time before a table asks for them."""
    bounds, default, names = Bounds(), options.superblocks[0], list(found)
    ripq = [(policy, superblock) for policy in POLICIES for superblock in options.superblocks]
    ahead([(found[of], "ripq", *more) for of in names for more in ripq] + [(found[of], "fifo", "fifo", s) for of in names for s in options.superblocks])

    def at(of, policy, superblock=default, **more):
        return run(found[of], "ripq", policy, superblock, **more)

    def fifo(of, superblock=default):
        return run(found[of], "fifo", "fifo", superblock)

    rows = []
    for of in names:
        one, own = fifo(of), at(of, "slru-3")["bytes_inserted"] / fifo(of)["flash_bytes"]
        block = one["settings"]["block_bytes"]
        size = f"{block >> 20} MiB" if block >= 1 << 20 else f"{block >> 10} KiB"
        rows.append([of, f"{one['requests']:,}", f"{one['flash_bytes'] / 1e6:,.0f} MB", size, f"{one['settings']['blocks']:,}", fixed(own),
                     fixed(one["flash_reads_per_hit"] or 0), fixed(one["app_write_amplification"])])
    header = ["trace", "requests counted", "flash", "block", "blocks", "inserted / flash", "reads a hit, fifo"]
    table("Traces", [*header, "application amplification, fifo"], rows)
    rows = [[of, *(fixed(hits(at(of, policy))) for policy in POLICIES), fixed(hits(fifo(of)))] for of in names]
    table("Object hits in %", ["trace", *POLICIES, "layout fifo"], rows)

    lower, written, gains, elsewhere = [], [], [], []
    for of in names:
        lower.append([of])
        written.append([of])
        for policy in POLICIES:
            most, is_gdsf = (GDSF_POINTS, True) if policy in GDSF else (SLRU_POINTS, False)
            loss = at(of, policy)["lower"]
            cells = [bold(fixed(loss["object"]), loss["object"] > most), bold(fixed(loss["byte"]), not is_gdsf and loss["byte"] > most)]
            lower[-1].append(" / ".join(cells))
            cells = []
            for superblock in options.superblocks:
                report, where = at(of, policy, superblock), f"{of}, {policy}, superblock {superblock}"
                bounds.hold(f"points lower, {'GDSF' if is_gdsf else 'SLRU'} ≤ {most}", where, points(report), points(report) <= most)
                factor, often = amplification(report), report["often"]
                cells.append(fixed(factor) if often else bold(fixed(factor), factor > SELDOM_HIT))
                if not often:
                    bounds.hold(f"amplification where the twin hits ≤ 50 %: ≤ {SELDOM_HIT}", where, factor, factor <= SELDOM_HIT)
                elif misses(report):
                    elsewhere.append((of, policy, superblock))
                else:
                    bounds.hold(f"elsewhere: ≤ {OFTEN_HIT} and ≤ {ELSEWHERE_POINTS} points at a θ", where, factor, True)
            written[-1].append(f"({' / '.join(cells)})" if at(of, policy)["often"] else " / ".join(cells))
        written[-1].append(" / ".join(fixed(amplification(fifo(of, superblock))) for superblock in options.superblocks))
        cells = []
        for policy, kind, most in [("gdsf-3", "object", GDSF_POINTS), ("slru-3", "byte", SLRU_POINTS)]:
            report = at(of, policy)
            more, loss = 100 * (report[f"{kind}_hit_ratio"] - fifo(of)[f"{kind}_hit_ratio"]), report["lower"][kind]
            cells += [bold(f"{more:+.2f}", loss > most), f"{more + loss:+.2f}"]
        gains.append([of, *cells])
    table("Points lower, objects / bytes", ["trace", *POLICIES], lower)
    factors = f"Combined amplification, superblock {' / '.join(map(str, options.superblocks))}"
    table(f"{factors}; in brackets: the twin hits more than 50 %", ["trace", *POLICIES, "layout fifo"], written)
    table("Gain over FIFO", ["trace", "gdsf-3, object hits", "its twin", "slru-3, byte hits", "its twin"], gains)

    usual = [(found[of], "ripq", "slru-3", default, 1 / 16, theta) for of in names for theta in options.thetas]
    ahead(usual + [(found[of], "ripq", policy, s, 1 / 16, theta) for of, policy, s in elsewhere for theta in options.thetas])
    rows = [[of if at(of, "slru-3")["often"] else f"{of} (≤ 50 %)", *(pair(at(of, "slru-3", theta=theta)) for theta in options.thetas)]
            for of in names]
    table("θ, slru-3: amplification / points lower", ["trace", *(f"{theta:g}" for theta in options.thetas)], rows, 9)
    rows = []
    for of, policy, superblock in elsewhere:
        curve = [(None, at(of, policy, superblock))] + [(theta, at(of, policy, superblock, theta=theta)) for theta in options.thetas]
        kept = [point for point in curve if points(point[1]) <= ELSEWHERE_POINTS]
        theta, best = min(kept or curve, key=lambda point: amplification(point[1]))
        where = f"{of}, {policy}, superblock {superblock}, θ {theta}"
        bounds.hold(f"elsewhere: ≤ {OFTEN_HIT} and ≤ {ELSEWHERE_POINTS} points at a θ", where, amplification(best), not misses(best))
        rows.append([of, policy, str(superblock), pair(curve[0][1]), bold(f"{theta}: {pair(best)}", misses(best))])
    table("Where the default misses", ["trace", "policy", "superblock", "default", "best of θ"], rows, 5)

    ahead([(found[of], "sipq", policy, default, None, theta) for of in names for policy in POLICIES for theta in SIPQ_THETAS])
    rows = []
    for of in names:
        sipq = {(policy, theta): run(found[of], "sipq", policy, default, None, theta) for policy in POLICIES for theta in SIPQ_THETAS}
        for theta in SIPQ_THETAS:
            cells = (sipq[policy, theta] for policy in POLICIES)
            rows.append([of, f"{theta:g}", *(f"{fixed(amplification(one))} / {fixed(one['lower']['object'])}" for one in cells)])
        small, large = (amplification(sipq[policy, SIPQ_THETAS[0]]) for policy in ("slru-1", "slru-3"))
        gdsf = min(amplification(sipq[policy, SIPQ_THETAS[1]]) for policy in ("gdsf-1", "gdsf-3"))
        bounds.hold("SIPQ writes more from slru-1 to slru-3 at θ 0.5, and more with GDSF at 0.9", of, large, small < large < gdsf)
    table("SIPQ: amplification / points of objects lower", ["trace", "θ", *POLICIES], rows, 8)

    ahead([(found[of], "ripq", policy, default, alpha) for of in names for policy in ("slru-3", "gdsf-3") for alpha in options.alphas])
    rows = []
    for of in names:
        for policy, least in [("slru-3", 4), ("gdsf-3", 8)]:
            curve = [hits(at(of, policy, alpha=alpha)) for alpha in options.alphas]
            knee = next(round(1 / alpha) for alpha, seen in zip(options.alphas, curve) if seen >= max(curve) - KNEE_POINTS)
            bounds.hold(f"insertion points needed, {policy}: ≤ {least}", of, knee, knee <= least)
            rows.append([of, policy, *map(fixed, curve), fixed(hits(fifo(of))), bold(str(knee), knee > least)])
    table("Insertion points: object hits in %", ["trace", "policy", *(f"1/{round(1 / alpha)}" for alpha in options.alphas), "layout fifo", "knee"], rows, 2)

    def exact(of, policy, percent):
        return replayed(found[of], "--flash-size", f"{percent}%", "--layout", "exact", "--policy", policy)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda words: exact(*words), [(of, p, size) for of in names for p in ["fifo", *POLICIES] for size in options.exact]))
    rows = [[of, f"{size} %", *(fixed(hits(exact(of, p, size))) for p in ["fifo", *POLICIES])] for of in names for size in options.exact]
    table("Exact algorithms: object hits in %", ["trace", "of the footprint", "fifo", *POLICIES], rows, 2)

    rows = []
    for of in names:
        speed = saturated(at(of, "slru-3")) / saturated(fifo(of))
        dram = [dram_per_object(at(of, policy)) for policy in ("slru-3", "gdsf-3")]
        if at(of, "slru-3")["objects_cached"] >= 50_000:
            bounds.hold(f"DRAM of an object ≤ {DRAM_BYTES} B, 50,000 objects and more", of, max(dram), max(dram) <= DRAM_BYTES)
        rows.append([of, fixed(speed), *(fixed(one, 1) for one in dram)])
    header = ["trace", "requests/s of a saturated drive, slru-3 / fifo", "DRAM of an object, slru-3", "gdsf-3"]
    table("Throughput of a modelled drive; bytes of DRAM", header, rows)
    bounds.table()


def numbers(text):
    return [int(word) if word.isdigit() else float(word) for word in text.split(",")]


@case(pairs=None, in_all=False, shared=SHARED, jobs=(os.cpu_count(), "replays at a time"),
      named=([], "only traces with this in their name; more than once"), thetas=("1,0.65,0.6,0.55,0.5,0.4,0.35", "points of the curve"),
      alphas=("0.5,0.25,0.125,0.0625,0.03125", "points of the curve"), superblocks=("1,4", "blocks in the drive's erase unit"),
      exact=("5,10,20", "percents for exact queues"))
def ripq_report(arguments):
    """The RIPQ paper's evaluation, made again: the tables of docs/ripq.md, in Markdown, and whether its bounds hold.

    Replays each trace of a directory (with its manifest.json, if it has one; traces generated after distributions/cachelib/ and a Zipf
    load beside) through `pumice replay --json`, so many at a time, and each layout's exact twin: the same policy on an exact queue of as
    many bytes as the layout held of objects, which refuses what the layout does. Flash is 10 % of the footprint, the first half of the
    requests fills it, objects without a size have 4 KiB, alpha is 1/16. A trace qualifies if the measured half inserts at least 5 times
    the flash and there are 512 blocks; others are named and left out."""
    comparison = Comparison(arguments, {"flash": "10 %", "warm-up": 0.5}, "layouts", "exact twins")
    for name in ("thetas", "alphas", "superblocks", "exact"):
        setattr(arguments, name, numbers(getattr(arguments, name)))

    def ahead(runs):
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(lambda words: run(*words), runs))

    found = traces(arguments.shared, arguments.quick, generated=True)
    found = {name: words for name, words in found.items() if not arguments.named or any(part in name for part in arguments.named)}
    ahead([(words, "ripq", "slru-3", arguments.superblocks[0]) for words in found.values()])
    qualifying = {}
    for name, words in found.items():
        probe = run(words, "ripq", "slru-3", arguments.superblocks[0])
        if isinstance(probe, str):
            comparison.note(f"left out: {name}: {probe.strip().splitlines()[-1]}")
        elif probe["settings"]["blocks"] < 512 or probe["bytes_inserted"] < 5 * probe["flash_bytes"]:
            inserted = probe["bytes_inserted"] / probe["flash_bytes"]
            comparison.note(f"left out: {name}: {probe['settings']['blocks']} blocks, {inserted:.2f} times the flash inserted")
        else:
            qualifying[name] = words
    if not qualifying:
        raise Failure("no trace qualifies")
    tables(qualifying, arguments, ahead)
    return comparison
