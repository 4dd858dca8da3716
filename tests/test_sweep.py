"""`bench/sweep.py`: many replays, whose results outlive it."""

import contextlib
import json
import os
import subprocess
import sys
import time

from harness import expect, expect_equal
from harness.machine import BINARY, ROOT

SWEEP = os.path.join(ROOT, "bench", "sweep.py")
TRACES = [f"zipf:keys=20000,theta=0.9,requests=200000,seed={seed}" for seed in (1, 2)]
GRID = ["--trace", *TRACES, "--layout", "ripq", "fifo", "--flash-size", "8MiB", "16MiB", "--program", BINARY]


def sweep(*words, status=0):
    done = subprocess.run([sys.executable, SWEEP, *words], capture_output=True, text=True, timeout=120)
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
