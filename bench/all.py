#!/usr/bin/env python3
"""Runs every comparison, one after the other, and prints the table of all rows and, below it, what the rows note.

    python3 bench/all.py [--quick] [--pairs N] [--seconds S] [--dir DIR] [--no-build] [--no-cgroup] [ROW ...]

Takes about two hours on an otherwise idle machine. Each row is a script of its own, whose text says what is measured and how; a
script that fails does not stop the others, and makes the exit status 1.
"""

import argparse
import os
import subprocess
import sys

from lib import machine
from lib.compare import NOTE, TABLE_HEAD
from lib.machine import TARGET, Trouble

HERE = os.path.dirname(os.path.abspath(__file__))
# Rows in the order of the table, and which of the options below their scripts have.
ROWS = {
    "dram_hits": ("seconds", "no_cgroup"),
    "dram_hits_pipelined": ("seconds", "no_cgroup"),
    "dram_sets": ("seconds", "no_cgroup"),
    "flash_hits": ("seconds", "no_cgroup"),
    "flash_latency": ("seconds", "no_cgroup"),
    "foyer": ("no_cgroup",),
    "flash_reads": ("seconds",),
    "flash_fill": (),
    "dram_per_item": (),
    "dram_items": (),
    "ripq_throughput": (),
    "ripq_replay": (),
    "ripq_scale": (),
    "cascade_dram": (),
    "cascade_gets": ("seconds",),
    "cascade_two_phase": ("seconds",),
    "cascade_p99": ("seconds",),
    "cascade_traces": (),
    "cascade_ripq": (),
}


def run(row, flags):
    """Runs a script, shows what it prints, and returns its rows and notes, or nothing where it failed."""
    print(f"--- {row}", flush=True)
    command = [sys.executable, "-u", os.path.join(HERE, f"{row}.py"), *flags]
    rows, notes = [], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
        try:
            for line in script.stdout:
                print(line, end="", flush=True)
                if line.startswith("| "):
                    rows.append(line.rstrip("\n"))
                elif line.startswith(NOTE):
                    notes.append(f"{row}: {line.removeprefix(NOTE).rstrip()}")
        except BaseException:
            # It ends its servers; the `with` waits for it.
            script.terminate()
            raise
    return (rows, notes) if script.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"only these: {', '.join(ROWS)}")
    parser.add_argument("--pairs", type=int, help="turns of each side")
    parser.add_argument("--seconds", type=float, help="length of a turn, where a row has one")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see it work; writes no record")
    parser.add_argument("--dir", default=os.path.join(TARGET, "bench"), help="where both sides keep their flash")
    parser.add_argument("--no-build", action="store_true", help="take the programs as they were built")
    parser.add_argument("--no-cgroup", action="store_true", help="without memory cgroups; the results say so")
    arguments = parser.parse_args()
    unknown = [row for row in arguments.rows if row not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    machine.end_by_signals()
    try:
        # Once, so that no row waits for a build.
        machine.build_pumice(not arguments.no_build)
        machine.build_inprocess(not arguments.no_build)
    except Trouble as trouble:
        sys.exit(f"error: {trouble}")
    common = ["--no-build", "--dir", arguments.dir]
    common += ["--quick"] if arguments.quick else []
    common += ["--pairs", str(arguments.pairs)] if arguments.pairs else []
    table, notes, failed = [], [], []
    for row, has in ROWS.items():
        if arguments.rows and row not in arguments.rows:
            continue
        flags = list(common)
        if arguments.seconds and "seconds" in has:
            flags += ["--seconds", str(arguments.seconds)]
        if arguments.no_cgroup and "no_cgroup" in has:
            flags.append("--no-cgroup")
        result = run(row, flags)
        if result is None:
            failed.append(row)
        else:
            table += result[0]
            notes += result[1]
    print("---" + (" QUICK: sizes too small to mean anything" if arguments.quick else ""))
    print(TABLE_HEAD)
    print("\n".join(table))
    for note in notes:
        print(NOTE + note)
    for row in failed:
        print(f"failed: {row}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
