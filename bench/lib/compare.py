"""Turns, medians, ratios, records and the row that a script prints."""

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import time

from . import machine
from .cgroup import MemoryGroup, NoGroup
from .machine import ROOT, TARGET, Trouble

RECORDS = os.path.join(ROOT, "bench", "records")
TABLE_HEAD = (
    "| what | must | aim | ratio of medians (spread of pairs) | Pumice | peer | CPU us per request, Pumice / peer "
    "| client idle |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)
# How a line begins that says what a row's reader should know.
NOTE = "note: "
# Below this the load generator is what was measured.
CLIENT_IDLE_MIN = 0.05
# Above this share of the machine, what else runs on it is worth a note.
OTHERS_MAX = 0.03
# A device that takes this long for a read, over that many reads, is throttled or busy with something else.
STALL_MS = 5
STALL_READS = 1000


def parser(documentation, pairs=5, seconds=10, dram=None, cgroup=True):
    """The options that all scripts share."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=pairs, help="turns of each side (%(default)s)")
    if seconds:
        parser.add_argument("--seconds", type=float, default=seconds, help="length of a turn (%(default)s)")
    if dram:
        parser.add_argument("--dram", type=int, default=dram, help="MiB of DRAM of each side (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see it work; writes no record")
    parser.add_argument("--only", choices=["pumice", "peer"], help="run one side; writes no record")
    parser.add_argument(
        "--dir", default=os.path.join(TARGET, "bench"), help="where both sides keep their flash (%(default)s)"
    )
    parser.add_argument("--no-build", action="store_true", help="take the programs as they were built")
    if cgroup:
        parser.add_argument("--no-cgroup", action="store_true", help="without memory cgroups; the result says so")
    return parser


class Comparison:
    """One script's run: settings, turns, rows."""

    def __init__(self, name, arguments, settings):
        self.name = name
        self.arguments = arguments
        self.date = machine.now()
        os.makedirs(arguments.dir, exist_ok=True)
        self.directory = os.path.realpath(arguments.dir)
        self.settings = settings
        self.machine = machine.describe(self.directory)
        self.commit = machine.commit()
        self.pairs = max(1, arguments.pairs)
        self.runs = {"pumice": [], "peer": []}
        self.disturbed = []
        self.sides = {}
        self.rows = []
        self.notes = []
        self.server_core, self.load_core = machine.cores()
        if getattr(arguments, "no_cgroup", False):
            self.notes.append("no memory cgroups (--no-cgroup)")
        self._print_head()

    def _print_head(self):
        here, commit = self.machine, self.commit
        print(f"{self.name}, {self.date}" + (", QUICK: sizes too small to mean anything" if self.arguments.quick else ""))
        print(
            f"machine: {here['processor']}, {here['cores']} cores, {here['memory_bytes'] / 2**30:.0f} GiB, kernel "
            f"{here['kernel']}, TCP {here['tcp']}, {here['file_system']['device']} ({here['file_system']['type']}); "
            f"commit {commit['commit']}{' dirty' if commit['dirty'] else ''}"
        )
        print("settings: " + ", ".join(f"{name} {value}" for name, value in self.settings.items()), flush=True)

    def group(self, mib, name):
        """A memory cgroup of `mib` MiB for one server."""
        if getattr(self.arguments, "no_cgroup", False):
            return NoGroup()
        return MemoryGroup(mib << 20, name)

    def turns(self, pumice, peer, show):
        """Runs both sides in turns. Each is a function of the turn's number that returns its figures, or nothing where a row has
        no peer; `show` makes a line of text of them."""
        for turn in range(self.pairs):
            for name, side in (("pumice", pumice), ("peer", peer)):
                if side is None or self.arguments.only not in (None, name):
                    continue
                with self._watched() as conditions:
                    figures = side(turn)
                figures["conditions"] = conditions
                self.runs[name].append(figures)
                print(f"  {turn + 1}/{self.pairs} {self.sides.get(name, name):<12} {show(figures)}", flush=True)

    @contextlib.contextmanager
    def _watched(self):
        """Watches a turn: what share of the machine others had, and how long the device took for a read, whoever asked."""
        conditions, reads = {}, machine.device_reads(self.directory)
        began, (busy, steal), own = time.monotonic(), machine.busy_seconds(), machine.own_seconds()
        yield conditions
        cores = (time.monotonic() - began) * (os.cpu_count() or 1)
        (busy_now, steal_now), own_now = machine.busy_seconds(), machine.own_seconds()
        conditions["others"] = max(0, (busy_now - busy) - (own_now - own) + (steal_now - steal)) / cores
        count, waited = (after - before for after, before in zip(machine.device_reads(self.directory), reads))
        conditions["device_ms_per_read"] = waited / count if count else None
        self.disturbed.append(conditions["others"])
        if count >= STALL_READS and waited / count > STALL_MS:
            self.notes.append(f"the device took {waited / count:.0f} ms for a read during a turn: it was not at its best")

    def median(self, side, figure):
        values = [run[figure] for run in self.runs[side] if run.get(figure) is not None]
        return statistics.median(values) if values else None

    def ratio(self, figure):
        """Ratio of the medians, and the least and the largest ratio of a pair."""
        mine, theirs = self.median("pumice", figure), self.median("peer", figure)
        if mine is None or not theirs:
            return None
        turns = zip(self.runs["pumice"], self.runs["peer"])
        pairs = [a[figure] / b[figure] for a, b in turns if b.get(figure) and a.get(figure) is not None]
        return {"ratio": mine / theirs, "least": min(pairs), "largest": max(pairs)}

    def row(self, what, figure, must, aim, unit, cpu=None, client=None, cpu_of=""):
        """Adds a row of the table: the figure that is compared, both bounds as text, how to show a value, and the names of
        the figures that are CPU time per request and idle share of the client. `cpu_of` says what the CPU time is for, where
        that is not a request."""
        pumice, peer, ratio = self.median("pumice", figure), self.median("peer", figure), self.ratio(figure)
        cells = [what, must, aim]
        cells.append(f"{ratio['ratio']:.2f} × ({ratio['least']:.2f}–{ratio['largest']:.2f})" if ratio else "–")
        cells += [unit(value) if value is not None else "–" for value in (pumice, peer)]
        both = [self.median(side, cpu) if cpu else None for side in ("pumice", "peer")]
        text = " / ".join("–" if value is None else f"{value:.2f}" for value in both) if cpu else "–"
        cells.append(f"{text} per {cpu_of}" if cpu_of else text)
        idle = [self.median(side, client) if client else None for side in ("pumice", "peer")]
        text = " / ".join("–" if value is None else f"{value * 100:.0f} %" for value in idle) if client else "–"
        if any(value is not None and value < CLIENT_IDLE_MIN for value in idle):
            text += " (measures the client)"
            self.notes.append(
                f"{what}: the client's core had less than {CLIENT_IDLE_MIN * 100:.0f} % to spare; the row measures the client"
            )
        cells.append(text)
        self.rows.append({"what": what, "figure": figure, "pumice": pumice, "peer": peer, "ratio": ratio, "must": must,
                          "aim": aim, "cpu_us": both, "client_idle": idle, "markdown": "| " + " | ".join(cells) + " |"})  # fmt: skip

    def finish(self):
        """Writes the record and prints the rows."""
        others = max(self.disturbed, default=0)
        if others > OTHERS_MAX:
            self.notes.append(f"other processes had up to {others * 100:.0f} % of the machine during a turn")
        for note in self.notes:
            print(NOTE + note)
        if self.arguments.quick:
            print("QUICK: no record")
        elif self.arguments.only:
            print(f"only {self.arguments.only}: no record")
        else:
            print(f"record: {os.path.relpath(self._write_record(), ROOT)}")
        for row in self.rows:
            print(row["markdown"])
        return 0

    def _write_record(self):
        os.makedirs(RECORDS, exist_ok=True)
        day = re.sub(r"[^0-9TZ]", "", self.date)
        path = os.path.join(RECORDS, f"{day}-{self.name}.json")
        record = {
            "name": self.name,
            "date": self.date,
            **self.commit,
            "machine": self.machine,
            "settings": self.settings,
            "notes": self.notes,
            "sides": self.sides,
            "rows": self.rows,
            "runs": self.runs,
        }
        with open(path, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        return path


def thousands(value):
    return f"{value / 1000:.1f} k/s" if value >= 1000 else f"{value:.0f}/s"


def main(run):
    """Runs a script's main function and turns trouble into a message."""
    machine.end_by_signals()
    try:
        sys.exit(run())
    except Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        sys.exit(2)
