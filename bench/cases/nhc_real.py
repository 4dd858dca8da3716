"""Non-hierarchical caching in the time that passes, over the memcached door, against the model in virtual time."""

import contextlib
import html
import os
import subprocess
import time

from comparison import Comparison, case
from harness import Failure, machine
from harness.servers import Pumice, fresh_directory
from tools import load, percent, removed, thousands

VALUE_BYTES = 2048
SWEEP = (2, 4, 6, 8, 12, 16, 24)
# Beside the main row: kind of the flash, requests, the objective that it is compared with, or no tier at all, the share of the keys, and times the warm-up. A tier
# must not make a server slower. A disk takes a tenth of the keys while copies are made.
BESIDE = {"a disk below": ("hdd", "get", "classic", 0.1, 3), "half sets": (None, "ycsb-a", None, 1, 1)}
BESIDE_CONNECTIONS = 32


def zipf(keys):
    return f"zipf:keys={keys:.0f},theta=0.99"


@contextlib.contextmanager
def tiered(comparison, arguments, objective, keys, lower=None, warm_up=1):
    """A server with a tier of half its flash, or where there is no objective without, all keys set once, and read until copies are made."""
    lower = lower or arguments.lower
    flags = ["--threads", "1", "--dram", f"{arguments.dram}MiB", "--flash", "flash", "--flash-size", f"{arguments.flash}MiB", "--layout", "ripq"]
    if objective:
        flags += ["--throttle", f"flash={lower},performance-tier={arguments.upper}", "--performance-tier", "tier",
                  "--performance-size", f"{arguments.flash // 2}MiB", "--performance-objective", objective]
    else:
        flags += ["--throttle", f"flash={lower}"]
    directory = fresh_directory(comparison.directory, objective or "none")
    with removed(directory), Pumice(directory, *flags, core=comparison.server_core) as server:
        settings = {"keys": keys, "value_size": VALUE_BYTES, "timeout": 60}
        # One at a time, and then what was dropped all the same: sets come faster than a throttled flash takes them.
        load(server, comparison.load_core, preload_only=True, connections=1, **settings)
        load(server, comparison.load_core, mix="look-aside", connections=24, warm_up=0, seconds=warm_up * arguments.warm_up, **settings)
        yield server, settings


def gets(comparison, server, settings, connections, seconds, mix="get"):
    report = load(server, comparison.load_core, mix=mix, connections=connections, warm_up=1, seconds=seconds, **settings)
    if mix == "get" and report["hit_ratio"] < 0.95:
        raise Failure(f"hit ratio {report['hit_ratio']}: a miss asks no device")
    return report


def counts(server):
    stats = server.stats()
    tier, device = stats["performance"], stats["device"]
    return {"reads": tier["reads"], "hits": tier["copy_reads"] + tier["redirected_reads"],
            "device_reads": device["reads"] + stats["performance_device"]["reads"],
            "device_bytes": device["read_bytes"] + stats["performance_device"]["read_bytes"]}


@case(throttle=True, pairs=3, seconds=10.0, dram=64, in_all=False, flash=(512, "MiB of flash; the tier has half of it"), upper=("optane*40", "kind of the tier"),
      lower=("nvme*40", "kind of the flash"), keys=(200_000, "number of keys"), warm_up=(30.0, "seconds in which copies are made"),
      quick={"seconds": 1.0, "warm_up": 3.0, "pairs": 1, "flash": 128, "keys": 40_000})
def nhc_real(arguments):
    """A performance tier in real time: gain over classic caching, beside the gain that the model has in virtual time.

    One server with `--layout ripq --dram 64MiB`, flash and tier are files on a tmpfs (give --dir there) that are throttled: `nvme*40`, and
    `optane*40` above it, half as large. Gets of 2 KiB items by Zipf 0.99, closed loop, 4 N1 connections, N1 being the fewest with
    which classic caching (`--performance-objective classic`) does 95 % of its most. The model has the hits and the bytes of a read that the
    server counted. The gains must be within 10 points of each other. Then the load goes from 4 N1 to N1 and back, and the page that is
    written shows how load_admit follows. Any wrong value is an error.

    Two rows say that a tier never hurts, 32 connections: a flash that is as slow as a disk, against classic caching, and half sets, against a
    server without a tier."""
    keys = zipf(arguments.keys)
    settings = {"tier": f"{arguments.upper} of {arguments.flash // 2} MiB", "flash": f"{arguments.lower} of {arguments.flash} MiB", "keys": keys,
                "value bytes": VALUE_BYTES, "DRAM MiB": arguments.dram, "seconds": arguments.seconds, "warm-up": arguments.warm_up}
    comparison = Comparison(arguments, settings, peer="classic")
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(tiered(comparison, arguments, objective, keys))
                 for name, objective in (("pumice", "throughput"), ("peer", "classic"))}
        rates = {}
        for connections in SWEEP:
            rates[connections] = gets(comparison, *sides["peer"], connections, max(1, arguments.seconds / 4))["requests_per_second"]
        n1 = min(number for number, rate in rates.items() if rate >= 0.95 * max(rates.values()))
        comparison.settings.update({"sweep": rates, "N1": n1})
        before = counts(sides["pumice"][0])

        def side(name):
            def turn(_):
                report = gets(comparison, *sides[name], 4 * n1, arguments.seconds)
                return {"requests_per_second": report["requests_per_second"], "client_idle": report.get("client_idle")}

            return turn

        comparison.turns(side("pumice"), side("peer"))
        after = counts(sides["pumice"][0])
        spent = {name: after[name] - before[name] for name in after}
        hits = min(1, spent["hits"] / max(1, spent["reads"]))
        size = spent["device_bytes"] // max(1, spent["device_reads"])
        model = machine.run_json([machine.BENCH, "model", "nhc", "--upper", arguments.upper, "--lower", arguments.lower, "--load", "closed:4",
                                  "--hits", f"{hits:.4f}", "--size", str(size), "--json"])
        samples = follow(comparison, sides["pumice"], n1, arguments.seconds)
    for name, (lower, mix, peer, share, warm_up) in BESIDE.items():
        beside(comparison, arguments, zipf(arguments.keys * share), name, lower, mix, peer, warm_up)
    comparison.row(f"gets of flash with a tier, {4 * n1} connections, against classic caching", "requests_per_second", "", "", thousands)
    for name in BESIDE:
        comparison.row(f"a tier never hurts: {name}", name, "≥ 0.97 ×", "≥ 1.0 ×", thousands)
        found = comparison.ratio(name)
        if found and not arguments.quick:
            comparison.must(found["ratio"] >= 0.97, f"{name}: {found['ratio']:.2f} ×, must be ≥ 0.97 ×")
    gain, virtual = comparison.ratio("requests_per_second"), model["nhc_to_classic"]
    comparison.note(f"N1 {n1}; of reads of flash {percent(hits)} had a copy, of {size} bytes; the model gains {percent(virtual - 1)}")
    if gain:
        comparison.must(abs(gain["ratio"] - virtual) <= 0.1, f"gain {percent(gain['ratio'] - 1)}, and {percent(virtual - 1)} in virtual time")
    page(comparison, samples)
    return comparison


def beside(comparison, arguments, keys, name, lower, mix, peer, warm_up):
    with contextlib.ExitStack() as stack:
        sides = {side: stack.enter_context(tiered(comparison, arguments, objective, keys, lower, warm_up))
                 for side, objective in (("pumice", "throughput"), ("peer", peer))}

        def side(which):
            return lambda _: {name: gets(comparison, *sides[which], BESIDE_CONNECTIONS, arguments.seconds, mix)["requests_per_second"]}

        comparison.turns(side("pumice"), side("peer"))


def follow(comparison, side, n1, seconds):
    """Load 4 N1, N1, 4 N1: (seconds, load_admit, phase) over time."""
    server, settings = side
    samples, begun = [], time.monotonic()
    for connections in (4 * n1, n1, 4 * n1):
        words = [machine.BENCH, "memcached", "--json", "--target", server.target, "--mix", "get", "--keys", settings["keys"],
                 "--value-size", str(VALUE_BYTES), "--connections", str(connections), "--warm-up", "0", "--seconds", str(seconds)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as client:
            while client.poll() is None:
                split = server.stats()["performance_split"]
                samples.append((time.monotonic() - begun, split["load_admit_ratio"], connections))
                time.sleep(0.1)
            if client.returncode:
                raise Failure(f"the load ended with {client.returncode}: {client.stderr.read().decode()}")
    for connections in (n1, 4 * n1):
        values = [admit for _, admit, phase in samples if phase == connections]
        comparison.note(f"load_admit at {connections} connections: {sum(values) / len(values):.2f} on average")
    return samples


def page(comparison, samples):
    """load_admit and connections over time, as one page."""
    last = samples[-1][0]
    most = max(phase for _, _, phase in samples)

    def line(values, colour):
        points = " ".join(f"{40 + 700 * at / last:.1f},{220 - 200 * value:.1f}" for at, value in values)
        return f'<polyline points="{points}" fill="none" stroke="{colour}"/>'

    lines = line([(at, admit) for at, admit, _ in samples], "#06c") + line([(at, phase / most) for at, _, phase in samples], "#aaa")
    title = f"load_admit (blue) and connections (grey, at most {most}) over {last:.0f} s; commit {comparison.commit['commit']}"
    path = os.path.join(machine.TARGET, "nhc-real.html")
    with open(path, "w") as file:
        file.write(f'<!doctype html><meta charset="utf-8"><title>load_admit</title><p>{html.escape(title)}</p>'
                   f'<svg viewBox="0 0 760 240" width="760">{lines}<text x="2" y="24">1</text><text x="2" y="224">0</text></svg>\n')
    comparison.note(f"load_admit over time: {os.path.relpath(path, machine.ROOT)}")
