#!/usr/bin/env python3
"""Compares Pumice with its peers and with itself. Each case prints machine, commit, both sides and the ratio of medians of one run.

    python3 bench/bench.py CASE [option ...]      one case; CASE --help says what it measures and how
    python3 bench/bench.py readme                 the rows of README.md, all on this commit, and writes its table: some 20 minutes

Needs two cores on which nothing else runs. Peers are wanted (foyer is built): apt-get install memcached fio nbdkit libnbd-bin nginx
trafficserver varnish wrk nghttp2-client. Wants root for memory cgroups. A record of each run is written to bench/records. A row that
misses its bound makes the exit status 1.
"""

import argparse
import inspect
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cases  # noqa: E402, F401: registers all of them
import readme  # noqa: E402
from comparison import CASES, add_common  # noqa: E402
from harness import Failure, machine  # noqa: E402


def parsers():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    names = parser.add_subparsers(dest="case", metavar="CASE", required=True)
    for name, one in CASES.items():
        text = inspect.getdoc(one.function)
        one.add_to(names.add_parser(name, help=text.splitlines()[0].replace("%", "%%"), description=text, formatter_class=form))
    add_common(names.add_parser("readme", help="the rows of README.md, and its table", description=inspect.getdoc(readme)), cgroup=False)
    return parser


def main():
    parser = parsers()
    arguments = parser.parse_args()
    machine.end_by_signals()
    try:
        if arguments.case == "readme":
            return readme.run(parser, arguments)
        return CASES[arguments.case].run(arguments).finish()
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
