"""Pumice against another build of itself: what a change costs, or gains."""

import os

from comparison import Comparison, case
from harness import Failure, machine
from tools import figures, gib, inprocess, load, pumice, thousands

LOADS = {
    "DRAM hits": {"mix": "get", "keys": "zipf:keys=500000,theta=0.9", "value_size": 100},
    "sets": {"mix": "set", "keys": "zipf:keys=500000,theta=0.9", "value_size": 100},
    "flash hits": {"mix": "get", "keys": "zipf:keys=400000,theta=0.5", "value_size": "600-4096"},
}


@case(inprocess=True, seconds=8, other=("", "a checkout with the other build"),
      flash=(2048, "MiB of flash"), requests=(1_000_000, "requests of the replays"),
      what=([], "only this row; may be given again", [*LOADS, "fill", "ripq", "fifo"]),
      quick={"seconds": 1, "pairs": 1, "flash": 256, "requests": 60_000})
def builds(arguments):
    """Pumice against another build of itself, which `--other` names: DRAM hits, sets, flash hits, fill, layouts ripq and fifo.

    The other build is a checkout in which `bench.py CASE --quick` was run for a case in process, so that both of its programs are
    there. Over loopback: `serve --threads 1` with 512 MiB of DRAM, 32 connections, one request at a time on each; every key is
    set once before. DRAM hits and sets have 500,000 keys with values of 100 bytes, Zipf 0.9; flash hits 400,000 with values of
    600 B to 4 KiB, Zipf 0.5, and 160 MiB of DRAM. The load generator is this build's for both. In process, one core: the second
    lap of a fill with values of 4 KiB, and replays of Zipf 0.8 over 400,000 objects of 1 to 64 KiB, look-aside, flash a tenth."""
    other = os.path.join(os.path.abspath(arguments.other), "target")
    programs = {"pumice": (machine.BINARY, machine.INPROCESS),
                "peer": (os.path.join(other, "release", "pumice"), os.path.join(other, "inprocess", "release", "inprocess"))}
    for program in programs["peer"]:
        if not arguments.other or not os.path.exists(program):
            raise Failure(f"{program} is missing: give --other a checkout in which both programs were built")
    settings = {"seconds": arguments.seconds, "flash MiB": arguments.flash, "requests": arguments.requests}
    comparison = Comparison(arguments, settings, "this build", f"build in {os.path.basename(os.path.dirname(other))}")

    def served(what, side):
        def turn(_):
            dram = 160 if what == "flash hits" else 512
            with pumice(comparison, dram, arguments.flash, program=programs[side][0]) as server:
                found = figures(load(server, comparison.load_core, connections=32, preload=True, warm_up=2,
                                     seconds=arguments.seconds, **LOADS[what]), server)
            return {f"{what}: {name}": found[name] for name in ("requests_per_second", "server_cpu_us", "hit_ratio")}

        return turn

    def engine(what, figure, cpu, side, command, *words):
        def turn(_):
            with comparison.files("builds.pumice") as (path,):
                report, _, _ = inprocess(comparison, command, "--path", path, *words, program=programs[side][1])
            return {f"{what}: requests_per_second": report[figure], f"{what}: server_cpu_us": report[cpu]}

        return turn

    trace = f"zipf:keys=400000,theta=0.8,size=1024-65536,requests={arguments.requests}"
    fill = ("value_bytes_per_second", "cpu_seconds_per_gib")
    replay = ("requests_per_second", "cpu_us_per_request")
    wanted = arguments.what or [*LOADS, "fill", "ripq", "fifo"]
    for what in [one for one in LOADS if one in wanted]:
        comparison.turns(served(what, "pumice"), served(what, "peer"))
    works = {"fill": (*fill, "pumice-fill", "--flash-mib", arguments.flash, "--size", 4096)}
    works |= {layout: (*replay, "pumice-replay", "--trace", trace, "--dram-mib", 0, "--layout", layout) for layout in ("ripq", "fifo")}
    for what, (rate, cpu, *words) in [work for work in works.items() if work[0] in wanted]:
        comparison.turns(engine(what, rate, cpu, "pumice", *words), engine(what, rate, cpu, "peer", *words))
    for what in [one for one in (*LOADS, *works) if one in wanted]:
        comparison.row(what, f"{what}: requests_per_second", "≥ 0.95 ×", "", gib if what == "fill" else thousands, cpu=f"{what}: server_cpu_us")
    return comparison
