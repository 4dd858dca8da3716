"""Load splitting of a volume: what it gains in virtual time, and in the time that passes."""

import contextlib

from cases.volume import fio, run
from comparison import Comparison, case
from harness import machine
from harness.servers import Volume, fresh_directory
from tools import percent, removed, thousands

SWEEP = (2, 4, 6, 8, 12, 16, 24)


def model(*words):
    return machine.run_json([machine.BENCH, "model", "volume", *map(str, words), "--json"])


@case(pairs=5, upper=("optane*40", "kind of the cache device"), lower=("nvme*40", "kind of the backing device"),
      after=(60, "virtual seconds before requests count"), theta=(0.0, "Zipf's exponent of what hits"), in_all=False, quick={"after": 5, "pairs": 1})
def volume_split(arguments):
    """How much of the gain of load splitting is left in write-back with 5 % writes, in virtual time.

    `pumice-bench model volume`: the volume that serves, on devices of the model, 95 % hits, 4 N1 clients, the cleaner on. After 60 s
    of virtual time requests count for 20 s: split and not split, by reads alone and with 5 % writes. A seed for each turn.
    Exit status 1 where the bound is missed."""
    settings = {"cache": arguments.upper, "backing": arguments.lower, "after": arguments.after, "theta": arguments.theta}
    comparison = Comparison(arguments, settings)

    def turn(number):
        return model("--upper", arguments.upper, "--lower", arguments.lower, "--after", arguments.after, "--theta", arguments.theta,
                     "--seed", number + 1)

    comparison.turns(turn)
    title = "gain of load splitting in write-back, 5 % writes, over that of reads alone, virtual time"
    comparison.row(title, "gain_kept", "≥ 0.6", "≥ 0.85", "{:.3f}".format)
    gains = [percent(comparison.median("pumice", name)) for name in ("reads_gain", "writes_gain")]
    comparison.note(f"reads alone gain {gains[0]}, with 5 % writes {gains[1]}")
    kept = comparison.median("pumice", "gain_kept")
    comparison.must(kept >= 0.6, f"share of the gain: {kept:.3f}, must be ≥ 0.6")
    return comparison


@contextlib.contextmanager
def split(comparison, arguments, objective, disk):
    """A server of a volume that fio has written, and whose first part is cached."""
    flags = ["--mode", "write-through", "--cache", "cache", "--cache-size", f"{arguments.cache}MiB", "--chunk-size", "4KiB", "--threads", "1",
             "--dram", f"{arguments.dram}MiB", "--read-ahead", "0", "--scan-cutoff", "0", "--performance-objective", objective]
    directory = fresh_directory(comparison.directory, f"volume-{objective}")
    with removed(directory):
        with Volume(directory, disk, *flags, core=comparison.server_core) as server:
            # The hot part last: it stays cached.
            for offset, size in ((arguments.hot, arguments.size - arguments.hot), (0, arguments.hot)):
                run(comparison, "fio", "--name=load", "--ioengine=nbd", f"--uri={server.uri}", "--rw=write", "--bs=4k", "--iodepth=32",
                    f"--offset={offset}m", f"--size={size}m", "--verify=crc32c", "--do_verify=0", "--verify_state_save=0", "--randseed=1")
        throttle = f"cache={arguments.upper},backing={arguments.lower}"
        with Volume(directory, disk, *flags, "--throttle", throttle, core=comparison.server_core) as server:
            yield server


def reads(comparison, server, arguments, depth, seconds):
    hot = 100 * arguments.hot // arguments.size
    return fio(comparison, server, "--rw=randread", "--bs=4k", f"--iodepth={depth}", f"--size={arguments.size}m", "--norandommap", "--randrepeat=0",
               f"--random_distribution=zoned:95/{hot}:5/{100 - hot}", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--time_based",
               f"--runtime={seconds}", "--ramp_time=1")


@case(throttle=True, pairs=3, seconds=20.0, dram=64, in_all=False, size=(1280, "MiB of the volume"), hot=(256, "MiB of it that 95 %% of the reads are of"),
      cache=(640, "MiB of the cache"), upper=("optane*40", "kind of the cache device"), lower=("nvme*40", "kind of the backing device"),
      warm_up=(20.0, "seconds before the first turn"), quick={"seconds": 2.0, "warm_up": 2.0, "pairs": 1})
def volume_split_real(arguments):
    """Load splitting of a volume in real time: gain over a volume whose reads are not split, beside the gain in virtual time.

    Cache `optane*40` above a backing file `nvme*40`, both on a tmpfs (give --dir there). fio has written all of it with checksums, and
    verifies each read: 4 KiB, 95 % of them of what is cached, 4 N1 at once, N1 being the fewest with which `--performance-objective classic` does
    95 % of its most. The gains must be within 10 points of each other."""
    names = ("size", "hot", "cache", "upper", "lower", "dram", "seconds")
    settings = {name: getattr(arguments, name) for name in names} | {"fio": machine.version_of(machine.installed("fio"))}
    comparison = Comparison(arguments, settings, peer="classic")
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(comparison.files("volume.split", "volume.classic"))
        for disk in files:
            with open(disk, "wb") as file:
                file.truncate(arguments.size << 20)
        sides = {name: stack.enter_context(split(comparison, arguments, objective, disk))
                 for (name, objective), disk in zip((("pumice", "throughput"), ("peer", "classic")), files)}
        rates = {depth: reads(comparison, sides["peer"], arguments, depth, max(1, arguments.seconds / 5))["reads_per_second"] for depth in SWEEP}
        n1 = min(depth for depth, rate in rates.items() if rate >= 0.95 * max(rates.values()))
        comparison.settings |= {"sweep": rates, "N1": n1}
        reads(comparison, sides["pumice"], arguments, 4 * n1, arguments.warm_up)

        def turn(name):
            def run_turn(_):
                before = sides[name].figures("volume")
                found = reads(comparison, sides[name], arguments, 4 * n1, arguments.seconds)
                after = sides[name].figures("volume")
                chunks = after["read_chunks"] - before["read_chunks"]
                for figure in ("read_hits", "read_redirected", "read_dram_hits", "read_misses"):
                    found[figure] = (after[figure] - before[figure]) / chunks
                if name == "pumice":
                    found["load_admit"] = sides[name].figures("volume_split")["load_admit_ratio"]
                return found

            return run_turn

        comparison.turns(turn("pumice"), turn("peer"))
    of_dram = comparison.median("pumice", "read_dram_hits")
    hits = 1 - comparison.median("pumice", "read_misses") / (1 - of_dram)
    virtual = model("--upper", arguments.upper, "--lower", arguments.lower, "--hits", f"{hits:.4f}", "--mode", "write-through", "--writes", 0,
                    "--clients", 4 * n1)["reads_gain"]
    comparison.row(f"verified reads of a volume, {4 * n1} at once, against classic", "reads_per_second", "", "", thousands)
    gain = comparison.ratio("reads_per_second")
    comparison.note(f"N1 {n1}; {percent(of_dram)} from DRAM, of the others {percent(hits)} hits; the model gains {percent(virtual)}")
    if gain:
        comparison.must(abs(gain["ratio"] - 1 - virtual) <= 0.1, f"gain {percent(gain['ratio'] - 1)}, and {percent(virtual)} in virtual time")
    return comparison
