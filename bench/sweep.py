#!/usr/bin/env python3
"""Many replays over a grid, each result written as it comes; what is there already is not run again.

    python3 bench/sweep.py out.jsonl --trace a.csv.zst b.csv.zst --flash-size 1GiB 4GiB --dram 64MiB 256MiB --layout ripq clock --jobs 2
    python3 bench/sweep.py --merge out.jsonl more.jsonl            one table, in Markdown; --csv
    python3 bench/sweep.py out.jsonl --trace t --flash-size 10% -- --ops look-aside        flags of replay for all

A replay takes bounded memory however long its trace is. A sweep that was killed goes on when it is started again with the same words, the same
program and the same traces; a file of others is refused. Files of sweeps on several machines are merged. bench/sweep_dask.py runs the same on workers of Dask.
"""

import argparse
import concurrent.futures
import csv
import fcntl
import functools
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.environ.get("PUMICE_BIN", os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "pumice"))

# The axes of the grid: flags of `replay`. The trace comes first, and is no flag.
AXES = ("layout", "policy", "flash-size", "dram", "flash-admit")
# What the table has of each report; nothing that depends on the machine.
FIGURES = ("requests", "index", "flash_bytes", "object_hit_ratio", "byte_hit_ratio", "bytes_written_host", "app_write_amplification",
           "flash_reads_per_hit", "flash_reads_per_miss", "index_dram_bytes")


class SweepError(Exception):
    """What a user has to know."""


def parser(text=__doc__):
    form = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(description=text, formatter_class=form)
    found.add_argument("files", nargs="+", metavar="FILE", help="where results are (with --merge, several), a line for each")
    found.add_argument("--merge", action="store_true", help="run nothing: print one table of all files")
    found.add_argument("--csv", action="store_true", help="the table as CSV")
    found.add_argument("--trace", nargs="+", default=[], help="traces, or seeded workloads such as zipf:keys=1000000,theta=0.9,requests=9000000,seed=1")
    for axis in AXES:
        found.add_argument(f"--{axis}", nargs="+", default=[], help=f"values of `replay --{axis}`")
    found.add_argument("--jobs", type=int, default=1, help="replays at a time; each has its own memory")
    found.add_argument("--program", default=PROGRAM, help="the pumice to run")
    return found


def parse(words, form):
    """The arguments, and flags for all replays, which follow `--`."""
    at = words.index("--") if "--" in words else len(words)
    arguments = form.parse_args(words[:at])
    if not arguments.merge:
        if len(arguments.files) != 1 or not arguments.trace:
            form.error("give one file for results, and --trace")
        if arguments.jobs < 1:
            form.error("--jobs: at least 1")
        if not os.access(arguments.program, os.X_OK):
            form.error(f"--program {arguments.program}: no such program; build it with cargo build --release")
    return arguments, words[at + 1:]


def cells(arguments, flags):
    """The words of each replay, over the whole grid."""
    axes = [[[f"--{axis}", value] for value in getattr(arguments, axis.replace("-", "_"))] or [[]] for axis in AXES]
    return [[trace, *itertools.chain(*values), *flags] for trace, *values in itertools.product(arguments.trace, *axes)]


@functools.lru_cache
def build(program):
    """What tells a program from others: a hash of it."""
    with open(program, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def trace_of(words):
    """What tells the trace of a replay from others under its name: its size and time, where it is a file."""
    try:
        found = os.stat(words[0])
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def replay(program, words, started=lambda process: None):
    """The report of one replay, or what it said."""
    command = [program, "replay", *words, "--json"]
    try:
        made_by = build(program)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            started(process)
            text, errors = process.communicate()
        if process.returncode != 0:
            return {"words": words, "error": f"status {process.returncode}: {errors.strip()[-500:]}"}
        return {"words": words, "build": made_by, "report": json.loads(text)}
    except (OSError, ValueError) as error:
        return {"words": words, "error": str(error)}


def read(path):
    """The whole lines of a file, and their bytes. A last line that was cut short is not there."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return [], 0
    whole = text.rfind(b"\n") + 1
    try:
        return [json.loads(line) for line in text[:whole].splitlines()], whole
    except ValueError as error:
        raise SweepError(f"{path}: not a file of results: {error}") from None


class Results:
    """The file of results, for one sweep at a time."""

    def __init__(self, path, program):
        self.program = program
        self.file = open(path, "ab")  # noqa: SIM115: it is open as long as the sweep runs
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SweepError(f"{path}: another sweep writes to it") from None
        lines, whole = read(path)
        for line in lines:
            if line.get("build") != build(program):
                raise SweepError(f"{path}: made by another build of the program ({line['report'].get('commit')}): give another file")
        self.file.truncate(whole)
        self.path, self.known = path, {tuple(line["words"]): line.get("trace") for line in lines}

    def left(self, wanted):
        """Those that are not there, each once; with what their traces are."""
        self.traces = {tuple(words): trace_of(words) for words in wanted}
        for words, trace in self.traces.items():
            if self.known.get(words, trace) != trace:
                raise SweepError(f"{self.path}: made of another file {words[0]}, whose size or time was not what it is now: give another file")
        return [list(words) for words in self.traces if words not in self.known]

    def append(self, result):
        """Keeps a result for good. Returns whether it is one."""
        if "error" not in result and result["build"] != build(self.program):
            result["error"] = f"by another build than {self.program} of this machine"
        if "error" in result:
            print(f"failed: {' '.join(result['words'])}: {result['error']}", file=sys.stderr, flush=True)
            return False
        result["trace"] = self.traces[tuple(result["words"])]
        self.file.write(json.dumps(result).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        print(f"done: {' '.join(result['words'])}", flush=True)
        return True


def collect(path, arguments, flags, run_all):
    """Runs what is left of a grid; `run_all` gives results of it in any order. Returns the exit status."""
    results = Results(path, arguments.program)
    wanted = cells(arguments, flags)
    left = results.left(wanted)
    print(f"{len(wanted) - len(left)} of {len(wanted)} are there", flush=True)
    kept = sum(results.append(result) for result in run_all(left))
    return 0 if kept == len(left) else 1


def on_threads(arguments):
    """Replays as processes of this one, some at a time."""
    running, lock = set(), threading.Lock()

    def end(number, _):
        with lock:
            for process in running:
                process.kill()
        # What is done is kept; threads that wait are left alone.
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

    def one(words):
        here = []

        def started(process):
            here.append(process)
            with lock:
                running.add(process)

        result = replay(arguments.program, words, started)
        with lock:
            running.difference_update(here)
        return result

    def run_all(left):
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for done in concurrent.futures.as_completed([pool.submit(one, words) for words in left]):
                yield done.result()

    return run_all


def table(paths):
    """Head and rows of all results, in an order that does not depend on when they came."""
    rows = {}
    for path in paths:
        if not os.path.exists(path):
            raise SweepError(f"{path}: no such file")
        for line in read(path)[0]:
            words, report = line["words"], line["report"]
            known, others, rest = {}, [], iter(words[1:])
            for word in rest:
                if word[2:] in AXES:
                    known[word[2:]] = next(rest)
                else:
                    others.append(word)
            axes = [known.get(axis, "") for axis in AXES]
            key = (words[0], report["flash_bytes"] or 0, report["dram_bytes"], *axes, " ".join(others))
            rows[key] = [words[0], *axes, " ".join(others), *(report[figure] for figure in FIGURES)]
    head = ["trace", *AXES, "flags", *FIGURES]
    return head, [rows[key] for key in sorted(rows)]


def print_table(paths, as_csv):
    head, rows = table(paths)
    # A column in which nothing stands is left out.
    kept = [at for at in range(len(head)) if any(row[at] not in ("", None) for row in rows)]
    texts = [[text(row[at]) for at in kept] for row in rows]
    head = [head[at] for at in kept]
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *texts])
        return
    for row in (head, ["---"] * len(head), *texts):
        print(f"| {' | '.join(row)} |")


def text(value):
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def main():
    arguments, flags = parse(sys.argv[1:], parser())
    try:
        if arguments.merge:
            print_table(arguments.files, arguments.csv)
            return 0
        return collect(arguments.files[0], arguments, flags, on_threads(arguments))
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
