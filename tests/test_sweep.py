"""`bench/sweep.py`: many replays, whose results outlive it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time

from harness import expect, expect_equal
from harness.machine import BINARY, ROOT

SWEEP = os.path.join(ROOT, "bench", "sweep.py")
TRACES = [f"zipf:keys=20000,theta=0.9,requests=200000,seed={seed}" for seed in (1, 2)]
GRID = ["--trace", *TRACES, "--layout", "ripq", "fifo", "--flash-size", "8MiB", "16MiB", "--program", BINARY]


def sweep(*words, status=0, script=SWEEP, **how):
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=120, **how)
    expect_equal(done.returncode, status, f"the exit status of sweep {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def test_a_sweep_that_was_killed_goes_on(directory):
    """It runs what is left, and the tables are those of a sweep that was not."""
    whole, cut = os.path.join(directory, "whole.jsonl"), os.path.join(directory, "cut.jsonl")
    expect("0 of 8 are there" in sweep(whole, *GRID, "--jobs", "2"), "nothing to be there at first", "")
    with open(cut, "a"), subprocess.Popen([sys.executable, SWEEP, cut, *GRID], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while open(cut).read().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        busy = sweep(cut, *GRID, status=2)
        process.kill()
    expect("another sweep" in busy, "a second sweep on the file to be refused", busy)
    before = lines(cut)
    expect(2 <= len(before) < 8, "some results of a killed sweep", str(len(before)))
    with open(cut, "a") as file:
        file.write('{"words": ["cut sh')
    said = sweep(cut, *GRID)
    expect(f"{len(before)} of 8 are there" in said, "what is there not to be run again", said)
    expect_equal(lines(cut)[: len(before)], before, "the results from before")
    expect_equal(len(lines(cut)), 8, "results in all")
    for form in ((), ("--csv",)):
        tables = [sweep("--merge", path, *form) for path in (whole, cut)]
        expect_equal(tables[1], tables[0], "the table")
        expect_equal(sweep("--merge", whole, cut, *form), tables[0], "the table of both")
    table = tables[0].splitlines()
    expect_equal(len(table), 9, "lines of the table")
    expect(table[0].startswith("trace,layout,flash-size,requests,"), "its head, without axes that nobody gave", table[0])
    expect_equal([row.split('"')[2].split(",")[1:3] for row in table[1:5]], [["fifo", "8MiB"], ["ripq", "8MiB"], ["fifo", "16MiB"], ["ripq", "16MiB"]], "rows by size")


def test_a_replay_that_fails_does_not_stop_the_others(directory):
    path = os.path.join(directory, "out.jsonl")
    said = sweep(path, "--trace", "/nowhere", TRACES[0], "--flash-size", "8MiB", "--program", BINARY, "--", "--ops", "look-aside", status=1)
    expect("failed: /nowhere" in said, "which one failed, and why", said)
    expect_equal([line["report"]["settings"]["ops"] for line in lines(path)], ["look-aside"], "the other, with the flags for all")
    expect("1 of 2 are there" in sweep(path, "--trace", "/nowhere", TRACES[0], "--flash-size", "8MiB", "--program", BINARY, "--", "--ops", "look-aside", status=1), "it to be tried again", "")
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    expect("no such file" in sweep("--merge", path, status=2), "an error that says what is missing", "")


def test_results_of_another_build_or_trace_are_not_taken_for_these(directory):
    """A name is not what is behind it."""
    path, trace, program = (os.path.join(directory, name) for name in ("out.jsonl", "trace.csv", "pumice"))

    def write(requests):
        with open(trace, "w") as file:
            file.write("time,id,size,op\n" + "".join(f"{number},{number % 100},5000,get\n" for number in range(requests)))

    write(1000)
    shutil.copy(BINARY, program)
    words = [path, "--trace", trace, "--flash-size", "8MiB", "--program", program]
    expect("0 of 1 are there" in sweep(*words), "nothing to be there at first", "")
    expect("1 of 1 are there" in sweep(*words), "it to be there", "")
    write(2000)
    said = sweep(*words, status=2)
    expect("another file" in said and trace in said, "a trace that has changed to be refused", said)
    expect("0 of 1 are there" in sweep(path, "--trace", TRACES[0], "--flash-size", "8MiB", "--program", program), "another trace to be taken", "")
    before = lines(path)
    with open(program, "ab") as file:
        file.write(b"\0")
    said = sweep(*words, status=2)
    expect("another build" in said, "another build to be refused", said)
    expect_equal(lines(path), before, "the results from before")


# A stand-in for Dask, whose worker dies at the second replay.
DASK = """
class KilledWorker(Exception):
    pass

class Future:
    def __init__(self, number, work):
        self.number, self.work = number, work
    def result(self):
        if self.number == 1:
            raise KilledWorker("its worker died")
        return self.work()

class Client:
    def __init__(self, where):
        self.count = 0
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def upload_file(self, path):
        pass
    def submit(self, function, *arguments, pure):
        self.count += 1
        return Future(self.count - 1, lambda: function(*arguments))

def LocalCluster(**_):
    pass

def as_completed(futures):
    return futures
"""


def test_a_worker_of_dask_that_dies_does_not_end_the_sweep(directory):
    path, package = os.path.join(directory, "out.jsonl"), os.path.join(directory, "dask")
    os.mkdir(package)
    for name, text in (("__init__", ""), ("distributed", DASK)):
        with open(os.path.join(package, f"{name}.py"), "w") as file:
            file.write(text)
    script = os.path.join(os.path.dirname(SWEEP), "sweep_dask.py")
    said = sweep(path, *GRID, status=1, script=script, env={**os.environ, "PYTHONPATH": directory})
    expect("KilledWorker: its worker died" in said, "a word of it", said)
    expect_equal(len(lines(path)), 7, "results of the others")
    expect("7 of 8 are there" in sweep(path, *GRID), "it to be run by the next sweep", "")
