"""Non-hierarchical caching in the time that passes, over the memcached door, against the model in virtual time."""

import contextlib

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


@case(throttle=True, pairs=3, seconds=10.0, dram=64, flash=(512, "MiB of flash; the tier has half of it"), upper=("optane*40", "kind of the tier"),
      lower=("nvme*40", "kind of the flash"), keys=(200_000, "number of keys"), warm_up=(30.0, "seconds in which copies are made"),
      quick={"seconds": 1.0, "warm_up": 3.0, "pairs": 1, "flash": 128, "keys": 40_000})
def nhc_real(arguments):
    """A performance tier in real time: gain over classic caching, beside the gain that the model has in virtual time.

    One server with `--layout ripq --dram 64MiB`, flash and tier are files on a tmpfs (give --dir there) that are throttled: `nvme*40`, and
    `optane*40` above it, half as large. Gets of 2 KiB items by Zipf 0.99, closed loop, 4 N1 connections, N1 being the fewest with
    which classic caching (`--performance-objective classic`) does 95 % of its most. The model has the hits and the bytes of a read that the
    server counted. The gains must be within 10 points of each other. Any wrong value is an error.

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
    for name, (lower, mix, peer, share, warm_up) in BESIDE.items():
        beside(comparison, arguments, zipf(arguments.keys * share), name, lower, mix, peer, warm_up)
    comparison.row(f"gets of flash with a tier, {4 * n1} connections, against classic caching", "requests_per_second", "", "", thousands)
    for name in BESIDE:
        comparison.row(f"a tier never hurts: {name}", name, "≥ 0.97 ×", "≥ 1.0 ×", thousands)
    gain, virtual = comparison.ratio("requests_per_second"), model["nhc_to_classic"]
    comparison.note(f"N1 {n1}; of reads of flash {percent(hits)} had a copy, of {size} bytes; the model gains {percent(virtual - 1)}")
    if gain:
        comparison.must(abs(gain["ratio"] - virtual) <= 0.1, f"gain {percent(gain['ratio'] - 1)}, and {percent(virtual - 1)} in virtual time")
    return comparison


def beside(comparison, arguments, keys, name, lower, mix, peer, warm_up):
    with contextlib.ExitStack() as stack:
        sides = {side: stack.enter_context(tiered(comparison, arguments, objective, keys, lower, warm_up))
                 for side, objective in (("pumice", "throughput"), ("peer", peer))}

        def side(which):
            return lambda _: {name: gets(comparison, *sides[which], BESIDE_CONNECTIONS, arguments.seconds, mix)["requests_per_second"]}

        comparison.turns(side("pumice"), side("peer"))
