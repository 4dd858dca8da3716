"""Cases and their options; turns, medians, ratios, records and the rows that a case prints."""

import contextlib
import datetime
import json
import os
import re
import statistics
import time

from harness import Failure, machine
from harness.cgroup import MemoryGroup

RECORDS = os.path.join(machine.ROOT, "bench", "records")
TABLE_HEAD = (
    "| what | must | aim | ratio of medians (spread of pairs) | Pumice | peer | CPU us per request, Pumice / peer "
    "| client idle |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)
# Below this the load generator is what was measured.
CLIENT_IDLE_MIN = 0.05
# Above this share of the machine, what else runs on it is worth a note.
OTHERS_MAX = 0.03
# A device that takes this long for a read, over that many reads, is throttled or busy with something else.
STALL_MS = 5
STALL_READS = 1000

# A bound that a row is judged by: of the ratio (×), or of Pumice's own figure in this unit. Any other text is shown alone.
BOUND = re.compile(r"(?:(≥|≤) |([\d.]+)–)(-?[\d.]+) ?(\S*)")
# By what a figure is divided to be in the unit.
UNITS = {"": 1, "×": 1, "%": 0.01, "points": 0.01, "B": 1, "MB": 1, "MiB": 1, "GiB": 1 << 30, "min": 60, "s": 1, "ms": 1, "us": 1, "M/s": 1e6}

CASES = {}


def holds(value, must):
    """Whether a value keeps a bound; one that is no bound is kept. A figure that is missing keeps none."""
    found = BOUND.fullmatch(must)
    if not found:
        return True
    if found[4] not in UNITS:
        raise Failure(f"the bound {must} is in a unit that nothing is judged by")
    if value is None:
        return False
    value /= UNITS[found[4]]
    return value <= float(found[3]) and value >= float(found[2] or "-inf") if found[1] != "≥" else value >= float(found[3])


def show_table(title, header, rows, texts=1):
    """A table in Markdown, printed as its rows come; after so many columns of text there are numbers."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |\n|" + "|".join(" --- " if at < texts else " ---: " for at in range(len(header))) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def without_places(text):
    """JSON without the places of files on this machine: paths in the repository from there on, of others the name."""
    return re.sub(r'"/(?:[^"/\s]+/)+([^"/\s]+)"', r'"\1"', text.replace(machine.ROOT + os.sep, ""))


class Case:
    """A function with the options it has: `option=(default, help)` or `(default, help, choices)`; a list as default takes
    many. `quick` are the values of --quick. Without `pairs` there is one turn: the counts are the same each time."""

    def __init__(self, function, builds, throttle, pairs, seconds, dram, cgroup, quick, options):
        self.function, self.builds, self.throttle, self.quick = function, builds, throttle, quick
        self.name = function.__name__.replace("_", "-")
        self.cgroup, self.options = cgroup, dict(options)
        if pairs:
            self.options["pairs"] = (pairs, "turns of each side")
        if seconds:
            self.options["seconds"] = (seconds, "length of a turn", float)
        if dram:
            self.options["dram"] = (dram, "MiB of DRAM of each side")

    def add_to(self, parser):
        for name, (default, text, *more) in self.options.items():
            more = {} if not more else {"choices": more[0]} if isinstance(more[0], list) else {"type": more[0]}
            if default is not None and not isinstance(default, list):
                more = {"type": type(default), **more}
            action = {"action": "append"} if isinstance(default, list) else {}
            flag = "--" + name.replace("_", "-")
            shown = "" if default is None or isinstance(default, list) else " (%(default)s)"
            parser.add_argument(flag, default=default, help=text + shown, **more, **action)
        parser.add_argument("--only", choices=["pumice", "peer"], help="run one side; writes no record")
        add_common(parser, self.cgroup)

    def run(self, arguments):
        arguments.case = self.name
        if arguments.quick:
            vars(arguments).update(self.quick)
        for program in self.builds:
            machine.build(program, not arguments.no_build, self.throttle)
        return self.function(arguments)


def add_common(parser, cgroup=True):
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see it work; writes no record")
    parser.add_argument("--dir", default=os.path.join(machine.TARGET, "bench"), help="for files on flash (%(default)s)")
    parser.add_argument("--no-build", action="store_true", help="take the programs as they were built")
    if cgroup:
        parser.add_argument("--no-cgroup", action="store_true", help="without memory cgroups; the result says so")


def case(pumice=True, inprocess=False, locks=False, throttle=False, pairs=5, seconds=None, dram=None, cgroup=False, quick=(), **options):
    """Registers a function as a case: it takes the arguments and returns its `Comparison`."""

    def register(function):
        builds = [machine.BINARY] * pumice + [machine.INPROCESS] * inprocess + [machine.THREADS] * locks
        one = Case(function, builds, throttle, pairs, seconds, dram, cgroup, dict(quick), options)
        CASES[one.name] = one
        return function

    return register


def show_figures(run):
    numbers = {name: value for name, value in run.items() if isinstance(value, (int, float))}
    return ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" if value >= 1000 else f"{name.replace('_', ' ')} {value:.4g}"
                     for name, value in numbers.items())


class Comparison:
    """The run of a case: settings, turns, rows."""

    def __init__(self, arguments, settings, pumice="pumice", peer=None):
        self.name, self.arguments, self.settings = arguments.case, arguments, settings
        self.date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        os.makedirs(arguments.dir, exist_ok=True)
        self.directory = os.path.realpath(arguments.dir)
        self.machine = here = machine.describe(self.directory)
        self.commit = machine.commit()
        self.sides = {"pumice": pumice} | ({"peer": peer} if peer else {})
        self.runs = {"pumice": [], "peer": []}
        self.disturbed, self.rows, self.notes, self.status = [], [], [], 0
        self.server_core, self.load_core = machine.cores()
        if getattr(arguments, "no_cgroup", False):
            self.notes.append("no memory cgroups (--no-cgroup)")
        print(f"{self.name}, {self.date}" + (", QUICK: sizes too small to mean anything" if arguments.quick else ""))
        print(
            f"machine: {here['processor']}, {here['cores']} cores, {here['memory_bytes'] / 2**30:.0f} GiB, kernel "
            f"{here['kernel']}, TCP {here['tcp']}, {here['file_system']['device']} ({here['file_system']['type']}); "
            f"commit {self.commit['commit']}{' dirty' if self.commit['dirty'] else ''}"
        )
        print("settings: " + ", ".join(f"{name} {value}" for name, value in self.settings.items()), flush=True)

    def group(self, mib, name):
        """A memory cgroup of `mib` MiB for one server."""
        if getattr(self.arguments, "no_cgroup", False):
            return contextlib.nullcontext()
        return MemoryGroup(mib << 20, name)

    def path(self, name):
        return os.path.join(self.directory, name)

    @contextlib.contextmanager
    def files(self, *names):
        """Paths of files that are removed afterwards."""
        paths = [self.path(name) for name in names]
        try:
            yield paths
        finally:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)

    def runs_side(self, name):
        return name in self.sides and self.arguments.only in (None, name)

    def turns(self, pumice, peer=None, show=lambda run: show_figures(run), pairs=None):
        """Runs both sides in turns. Each is a function of the turn's number that returns its figures, or nothing where a row has
        no peer; `show` makes a line of text of them: those that are numbers. `pairs` is for what needs other than `--pairs`."""
        pairs = pairs or getattr(self.arguments, "pairs", 1)
        for turn in range(max(1, pairs)):
            for name, side in (("pumice", pumice), ("peer", peer)):
                if side is None or not self.runs_side(name):
                    continue
                with self.watched() as conditions:
                    figures = side(turn)
                figures["conditions"] = conditions
                self.runs[name].append(figures)
                print(f"  {turn + 1}/{pairs} {self.sides[name]:<12} {show(figures)}", flush=True)

    @contextlib.contextmanager
    def watched(self):
        """Watches a turn: the share of the machine that others had, and how long the device took for a read, whoever asked."""
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

    def note(self, text):
        """A note that is also shown at once."""
        self.notes.append(text)
        print(f"  {text}", flush=True)

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
        """Adds a row of the table: the figure that is compared, both bounds as text, of which the first is judged, how to show a value, and
        the names of the figures that are CPU time per request (or per `cpu_of`) and idle share of the client."""

        def both(name, text):
            values = [self.median(side, name) if name else None for side in ("pumice", "peer")]
            return values, " / ".join("–" if value is None else text(value) for value in values) if name else "–"

        values, _ = both(figure, unit)
        ratio = self.ratio(figure)
        cells = [what, must, aim]
        cells.append(f"{ratio['ratio']:.2f} × ({ratio['least']:.2f}–{ratio['largest']:.2f})" if ratio else "–")
        cells += ["–" if value is None else unit(value) for value in values]
        cpus, text = both(cpu, "{:.2f}".format)
        cells.append(f"{text} per {cpu_of}" if cpu_of else text)
        idle, text = both(client, lambda value: f"{value * 100:.0f} %")
        if any(value is not None and value < CLIENT_IDLE_MIN for value in idle):
            text += " (measures the client)"
            self.notes.append(f"{what}: the client's core had less than {CLIENT_IDLE_MIN:.0%} to spare; the row measures the client")
        cells.append(text)
        of_ratio = must.endswith("×")
        if all(self.runs[side] for side in (self.runs if of_ratio else ["pumice"])):
            self.must(holds(ratio and ratio["ratio"] if of_ratio else values[0], must), f"{what}: {cells[3 if of_ratio else 4]}, must be {must}")
        self.rows.append({"what": what, "figure": figure, "pumice": values[0], "peer": values[1], "ratio": ratio, "must": must,
                          "aim": aim, "cpu_us": cpus, "client_idle": idle, "markdown": "| " + " | ".join(cells) + " |"})

    def must(self, is_held, what):
        """A bound that makes the exit status 1 where it does not hold. `--quick` holds none."""
        if not is_held and not self.arguments.quick:
            self.status = 1
            self.notes.append(f"MISSED: {what}")

    def finish(self):
        """Writes the record and prints the rows."""
        others = max(self.disturbed, default=0)
        if others > OTHERS_MAX:
            self.notes.append(f"other processes had up to {others * 100:.0f} % of the machine during a turn")
        for note in self.notes:
            print(f"note: {note}")
        if self.arguments.quick:
            print("QUICK: no record")
        elif self.arguments.only:
            print(f"only {self.arguments.only}: no record")
        else:
            print(f"record: {os.path.relpath(self.write_record(), machine.ROOT)}")
        print("\n".join([TABLE_HEAD, *(row["markdown"] for row in self.rows)]) if self.rows else "")
        return self.status

    def write_record(self):
        os.makedirs(RECORDS, exist_ok=True)
        path = os.path.join(RECORDS, f"{re.sub(r'[^0-9TZ]', '', self.date)}-{self.name}.json")
        record = {"name": self.name, "date": self.date, **self.commit, "machine": self.machine, "settings": self.settings,
                  "notes": self.notes, "sides": self.sides, "rows": self.rows, "runs": self.runs}
        with open(path, "w") as file:
            file.write(without_places(json.dumps(record, indent=1)) + "\n")
        return path
