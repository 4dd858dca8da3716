"""The direct path: reads of flash while blocks are written."""

from comparison import Comparison, case
from harness import machine

# MiB of a block, and bytes of a value.
BLOCKS = (1, 4, 16)
OBJECTS = (300, 4096, 65536)


def model(block, size, *words):
    return machine.run_json([machine.BINARY, "model", "direct", "--block", f"{block}MiB", "--object", str(size), *map(str, words), "--json"])


@case(pairs=3, seconds=1.0, device=("nvme", "kind of the device"), writes=(0.25, "bytes set, as a share of what the device writes"),
      reads=(0.1, "reads, as a share of the most"), in_all=False, quick={"seconds": 0.1, "pairs": 1})
def direct_path(arguments):
    """99th percentile of hits of flash while blocks are written at a quarter of the bandwidth, against idle, in virtual time.

    `pumice model direct`: the object cache on a device of the model, whose lanes and channel are for reads and writes alike. Reads
    arrive at random, a tenth of the most that the device does. Blocks of 1, 4, 16 MiB, values of 300 B, 4 KiB, 64 KiB: the worst
    counts. A seed for each turn. Exit status 1 where the bound is missed."""
    settings = {name: getattr(arguments, name) for name in ("device", "writes", "reads", "seconds")}
    comparison = Comparison(arguments, settings)

    def turn(number):
        found = {}
        for block in BLOCKS:
            for size in OBJECTS:
                report = model(block, size, "--device", arguments.device, "--writes", arguments.writes, "--reads", arguments.reads,
                               "--seconds", arguments.seconds, "--seed", number + 1)
                found[f"{block} MiB {size} B"] = report["p99_ratio"]
        return {"worst": max(found.values())} | found

    comparison.turns(turn)
    comparison.row("p99 of hits of flash, blocks being written at a quarter of the bandwidth, over idle, virtual time; the worst block and value",
                   "worst", "≤ 2 ×", "≤ 1.3 ×", "{:.2f}".format)
    for block in BLOCKS:
        ratios = ", ".join(f"{comparison.median('pumice', f'{block} MiB {size} B'):.2f}" for size in OBJECTS)
        comparison.note(f"blocks of {block} MiB, values of {', '.join(map(str, OBJECTS))} B: {ratios}")
    worst = comparison.median("pumice", "worst")
    comparison.must(worst <= 2, f"p99 while blocks are written: {worst:.2f} times idle, must be at most 2")
    return comparison


@case(pairs=3, seconds=5.0, block=(4, "MiB of a block"), size=(4096, "bytes of a value"), writes=(0.25, "bytes set, as a share of 2.7 GB/s"),
      reads=(0.02, "reads, as a share of 500,000 a second"), in_all=False, quick={"seconds": 0.5, "pairs": 1})
def direct_path_real(arguments):
    """The same on a file, by O_DIRECT and io_uring, in the time that passes: reported, against idle.

    `pumice model direct --path`: reads and sets arrive as they do in the model of `nvme`, on one core that looks for both all the time."""
    settings = {name: getattr(arguments, name) for name in ("block", "size", "writes", "reads", "seconds")}
    comparison = Comparison(arguments, settings)

    def turn(number):
        with comparison.files("direct.flash") as (path,):
            report = model(arguments.block, arguments.size, "--path", path, "--writes", arguments.writes, "--reads", arguments.reads,
                           "--seconds", arguments.seconds, "--seed", number + 1)
        runs = {f"{run}_{name}_us": report[run][f"{name}_ns"] / 1e3 for run in ("idle", "writing") for name in ("p50", "p99")}
        return {"p99_ratio": report["p99_ratio"], "written": report["writing"]["written_bytes_per_second"],
                "dropped": report["writing"]["dropped"]} | runs

    comparison.turns(turn)
    comparison.row("p99 of hits of flash while blocks are written, over idle, on a file", "p99_ratio", "", "", "{:.2f}".format)
    names = ("idle_p50_us", "idle_p99_us", "writing_p50_us", "writing_p99_us")
    idle, idle_p99, writing, writing_p99 = (f"{comparison.median('pumice', name):.0f} us" for name in names)
    comparison.note(f"idle p50 {idle}, p99 {idle_p99}; while blocks are written p50 {writing}, p99 {writing_p99}, "
                    f"{comparison.median('pumice', 'written') / 1e6:.0f} MB/s written")
    return comparison
