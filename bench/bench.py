#!/usr/bin/env python3
"""Compares Pumice with its peers and with itself. Each case prints machine, commit, both sides and the ratio of medians of one run.

    python3 bench/bench.py CASE [option ...]      one case; CASE --help says what it measures and how
    python3 bench/bench.py all [CASE ...]         all of them, or these, and one table in the end: some two hours
    python3 bench/bench.py readme                 the rows of README.md, all on this commit, and writes its table: some 20 minutes

Needs two cores on which nothing else runs. Peers are wanted: apt-get install memcached fio nbdkit libnbd-bin (foyer is built). Wants root for memory cgroups. A record of each run
is written to bench/records. In `all` a case that fails does not stop the others, and makes the exit status 1.
"""

import argparse
import inspect
import os
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cases  # noqa: E402, F401: registers all of them
import readme  # noqa: E402
from comparison import CASES, TABLE_HEAD, add_common  # noqa: E402
from harness import Failure, machine  # noqa: E402


def parsers():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    names = parser.add_subparsers(dest="case", metavar="CASE", required=True)
    for name, one in CASES.items():
        text = inspect.getdoc(one.function)
        one.add_to(names.add_parser(name, help=text.splitlines()[0].replace("%", "%%"), description=text, formatter_class=form))
    every = names.add_parser("all", help="every case, one after the other, and one table")
    every.add_argument("cases", nargs="*", metavar="CASE", help="only these")
    every.add_argument("--pairs", type=int, help="turns of each side")
    every.add_argument("--seconds", type=float, help="length of a turn, where a case has one")
    add_common(every)
    add_common(names.add_parser("readme", help="the rows of README.md, and its table", description=inspect.getdoc(readme)), cgroup=False)
    return parser


def run_all(parser, arguments):
    wanted = arguments.cases or [name for name, one in CASES.items() if one.in_all]
    unknown = [name for name in wanted if name not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    # Once, so that no case waits for a build.
    for program in (machine.BINARY, machine.INPROCESS, machine.THREADS):
        machine.build(program, not arguments.no_build)
    done, failed = [], []
    for name in wanted:
        print(f"--- {name}", flush=True)
        one = parser.parse_args([name, "--no-build", "--dir", arguments.dir])
        given = {key: value for key, value in vars(arguments).items() if key in vars(one) and value not in (None, False)}
        vars(one).update(given, case=name)
        try:
            comparison = CASES[name].run(one)
            if comparison.finish():
                failed.append(name)
            done.append(comparison)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    print("---" + (" QUICK: sizes too small to mean anything" if arguments.quick else ""))
    print(TABLE_HEAD)
    for comparison in done:
        for row in comparison.rows:
            print(row["markdown"])
    for comparison in done:
        for note in comparison.notes:
            print(f"note: {comparison.name}: {note}")
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def main():
    parser = parsers()
    arguments = parser.parse_args()
    machine.end_by_signals()
    try:
        if arguments.case == "all":
            return run_all(parser, arguments)
        if arguments.case == "readme":
            return readme.run(parser, arguments)
        return CASES[arguments.case].run(arguments).finish()
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
