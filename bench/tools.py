"""What cases measure with: the load generator, replays, and processes that have the engine in them."""

import contextlib
import json
import math
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

from harness import Failure, machine
from harness.servers import Memcached, Pumice, fresh_directory

ITEM_BYTES = 300
# Header, key of 8 bytes and footer entry beside the value, at most: as store format 2 had them, so that builds with it hold all items, too.
RECORD_BYTES = ITEM_BYTES + 36 + 8 + 28
# What of a file is not items: blocks that are free, are buffers, or hold mappings and checkpoints.
SPARE_SHARE = 0.16


def thousands(value):
    return f"{value / 1000:.1f} k/s" if value >= 1000 else f"{value:.0f}/s"


def gib(value):
    return f"{value / 2**30:.2f} GiB"


def percent(value):
    return f"{value * 100:.2f} %"


def points(value):
    return f"{value:.4f}"


@contextlib.contextmanager
def pumice(comparison, dram, flash, *flags, **how):
    """Pumice with one worker thread on the server's core; sizes in MiB. Its files are removed."""
    directory = fresh_directory(comparison.directory, "pumice")
    sizes = ["--threads", "1", "--dram", f"{dram}MiB", "--flash", "flash", "--flash-size", f"{flash}MiB"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(removed(directory))
        yield stack.enter_context(Pumice(directory, *sizes, *flags, core=comparison.server_core, **how))


@contextlib.contextmanager
def memcached(comparison, item_mib, options=(), flash=None, group=None):
    """memcached with one worker thread, `item_mib` MiB for items, and extstore where it gets MiB of flash."""
    directory = fresh_directory(comparison.directory, "memcached")
    extended = list(options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(removed(directory))
        if flash is not None:
            path = os.path.join(directory, "flash")
            # Space is reserved at once, as Pumice does, so that neither side waits for the file system to find it.
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, flash << 20)
            extended.insert(0, f"ext_path={path}:{flash}M")
        flags = ["-t", 1, "-m", item_mib, "-c", 1024, *(["-o", ",".join(extended)] if extended else [])]
        yield stack.enter_context(Memcached(directory, *flags, core=comparison.server_core, group=group))


@contextlib.contextmanager
def removed(directory):
    try:
        yield
    finally:
        fresh_directory(os.path.dirname(directory), os.path.basename(directory))
        os.rmdir(directory)


def memcached_version():
    return machine.version_of(machine.installed("memcached"))


def load(server, core, **settings):
    """Runs the load generator against a server; settings are its flags. Returns its report."""
    command = [machine.BENCH, "memcached", "--json", "--target", server.target]
    command += ["--server-pid", server.pid, "--threads", 1]
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        command += [flag] if value is True else [flag, value]
    report = machine.run_json(command, core)
    server.check_alive()
    if report["wrong_answers"]:
        raise Failure(f"{server.name} gave wrong answers: {report['examples']}")
    if report["unanswered"]:
        raise Failure(f"{server.name} left requests unanswered: {report['errors']}")
    refused = {kind: n for kind, n in report["errors"].items() if n}
    if refused:
        raise Failure(f"{server.name} refused or lost requests, which are no throughput: {refused}, {report['examples']}")
    report.pop("series", None)
    for part in [report, *report.get("kinds", {}).values()]:
        if part.get("latency"):
            part["latency"].pop("curve", None)
    return report


def figures(report, server):
    """What rows compare."""
    latency = report["latency"] or {}
    return {
        "requests_per_second": report["requests_per_second"],
        "hit_ratio": report["hit_ratio"],
        **{name: latency.get(name) for name in ("p50_us", "p99_us", "p99_9_us")},
        "server_cpu_us": report["server"]["cpu_us_per_request"],
        "server_cores": report["server"]["cores"],
        "client_idle": report["client"]["idle_share"],
        "errors": report["errors"],
        "memory": server.memory_record(),
        "report": report,
    }


def replay(trace, *flags, core=None):
    """What `pumice replay` reports of a trace."""
    return machine.run_json([machine.BINARY, "replay", trace, *flags, "--json"], core)


def at_once(calls):
    """Results of functions, two run at a time: counts of replays do not depend on how long they take."""
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def dram_per_object(report):
    return report["index_dram_bytes"] / max(1, report["objects_cached"])


def inprocess(comparison, command, *words, group=None, program=machine.INPROCESS):
    """What `bench/inprocess` reports, and how busy its core was."""
    report = machine.run_json([program, command, *words], comparison.server_core, group)
    took = report["took"]
    return report, took, took["cpu_seconds"] / took["seconds"]


def flash_mib(items):
    """MiB of flash on which so many items of `ITEM_BYTES` have room to spare."""
    return math.ceil(items * RECORD_BYTES / (1 - SPARE_SHARE) / 2**20)


class Gets(machine.Child):
    """`bench/inprocess pumice-gets` on one core: fills a file, and then makes gets as it is told."""

    def __init__(self, path, core, keys, flash, *flags):
        command = [machine.INPROCESS, "pumice-gets", "--path", path, "--keys", keys, "--flash-mib", flash, "--size", ITEM_BYTES]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        self.process = subprocess.Popen([*map(str, command + list(flags))], text=True, **pipes, **machine.confine(core, None))
        try:
            self.reply()
        except BaseException:
            self.__exit__()
            raise

    def reply(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.kill()
            raise Failure(f"pumice-gets ended: {self.process.communicate()[1][-2000:]}")
        return json.loads(line)

    def run(self, workload, depth, seconds):
        """A stretch of gets, so many at once. What misses is counted."""
        with contextlib.suppress(BrokenPipeError):
            print(workload, depth, seconds, file=self.process.stdin, flush=True)
        return self.reply()


@contextlib.contextmanager
def gets_of_sides(comparison, stem, keys, flash, flags):
    """`Gets` by side, for those that run: each with its own of `flags`, on a file that is removed afterwards."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, own in flags.items():
            if comparison.runs_side(name):
                # Also where the file is not filled to the end.
                path, = stack.enter_context(comparison.files(f"{stem}.{name}"))
                processes[name] = stack.enter_context(Gets(path, comparison.server_core, keys, flash, *own))
        yield processes
