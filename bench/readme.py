"""The table of README.md: all its rows by one run, on one commit."""

import datetime
import os
import time

from comparison import CASES
from harness import Failure, machine

README = os.path.join(machine.ROOT, "README.md")
BEGIN = "<!-- table of peers: made by `python3 bench/bench.py readme` -->"
END = "<!-- end of the table -->"
HEAD = ("| what | case | Pumice / peer (spread of pairs) | Pumice | peer |\n"
        "| --- | --- | --- | --- | --- |")
# By case: options beside its own defaults, and its rows by the beginning of their text: what README calls them. Long fills and turns are shorter than
# by default, so that all of it takes some 20 minutes.
SHORT = {"pairs": 3, "seconds": 6.0}
FLASH = {**SHORT, "dram": 128, "warm_up": 6.0}
ROWS = {
    "dram-hits": (SHORT, {"DRAM hits": "hits in DRAM of 100 B, 32 connections, memcached"}),
    "dram-hits-pipelined": (SHORT, {"DRAM hits": "the same, 16 deep"}),
    "dram-sets": (SHORT, {"sets": "sets of 100 B, memcached"}),
    "flash-hits": (FLASH, {"flash hits against extstore: requests/s": "hits on flash, data 8 × DRAM, memcached with extstore",
                           "flash hits against extstore: hit ratio": "the same: share of hits"}),
    "flash-latency": (FLASH, {"p99": "p99 of these at 70 % of the slower side's peak, open loop"}),
    "dram-per-item": ({}, {"DRAM": "DRAM of an object on flash, extstore"}),
    "dram-items": ({}, {"overhead of an item in DRAM, values of 100 bytes": "overhead of an object of 100 B in DRAM, memcached"}),
    "foyer": ({"pairs": 3, "dram": 128, "requests": 500_000, "warm_up": 250_000},
              {"flash hits in process against foyer: operations/s": "hits on flash in process, foyer",
               "flash hits in process against foyer: hit ratio": "the same: share of hits"}),
    "flash-reads": (SHORT, {"random flash reads": "random reads of 1 KiB items in process, fio's 4 KiB reads"}),
    "flash-fill": ({"pairs": 3, "flash": 2048}, {"filling flash": "filling flash with values of 4 KiB, fio's sequential writes"}),
}


def cells(comparison, rows):
    """The lines of a case: ratio, both sides."""
    for beginning, name in rows.items():
        found = [row for row in comparison.rows if row["what"].startswith(beginning)]
        if len(found) != 1:
            raise Failure(f"{comparison.name}: {len(found)} rows begin with `{beginning}`")
        _, _, _, ratio, mine, theirs, _, idle = (cell.strip() for cell in found[0]["markdown"].strip("|").split("|"))
        if "measures the client" in idle:
            ratio += "; the client was nearly busy"
        yield f"| {name} | `{comparison.name}` | {ratio} | {mine} | {theirs} |"


def run(parser, arguments):
    """Runs the cases and writes the table; `--quick` prints it alone."""
    if machine.commit()["dirty"] and not arguments.quick:
        raise Failure("files differ from the commit: the table names one commit for all of it")
    for program in (machine.BINARY, machine.INPROCESS):
        machine.build(program, not arguments.no_build)
    began, lines, notes, commit, place = time.monotonic(), [], [], None, None
    for name, (options, rows) in ROWS.items():
        print(f"--- {name}", flush=True)
        one = parser.parse_args([name, "--no-build", "--dir", arguments.dir, *(["--quick"] if arguments.quick else [])])
        vars(one).update({} if arguments.quick else options, case=name)
        comparison = CASES[name].run(one)
        comparison.finish()
        lines += cells(comparison, rows)
        notes += [f"{name}: {note}" for note in comparison.notes]
        commit, place = comparison.commit["commit"], comparison.machine
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    head = (f"Measured on {today}, commit {commit}: {place['processor']}, {place['cores']} cores, kernel {place['kernel']}, "
            f"{place['file_system']['type']} on {place['file_system']['device']}.")
    table = "\n".join([BEGIN, head, "", HEAD, *lines, END])
    print(table)
    for note in notes:
        print(f"note: {note}")
    print(f"{(time.monotonic() - began) / 60:.0f} minutes")
    if arguments.quick:
        print("QUICK: README.md stays as it is")
        return 0
    with open(README, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    with open(README, "w", encoding="utf-8") as file:
        file.write(before + table + rest.split(END)[1])
    return 0
