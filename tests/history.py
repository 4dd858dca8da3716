#!/usr/bin/env python3
"""A history check through restarts and kills: everything that the server answers is explained by some order of the operations.

`pumice bench history` puts load on a server and checks the answers; meanwhile this stops the server (SIGTERM), kills it (kill -9)
and starts it again, at random moments, also while it starts or stops. Missing is legal; stale, deleted, expired or foreign never is.
The time is shared by all layouts and indexes. Flash is small and DRAM smaller, so that objects are read from flash, promoted,
overwritten, evicted and reclaimed; a run in which that did not happen fails.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import time

from harness import BINARY, Directory, Failure, Server, expect, main

# Layout, index, --dram: the least that each can do with.
CASES = [
    ("ripq", "full", "72MiB"),
    ("fifo", "cascade", "72MiB"),
    ("sipq", "full", "96MiB"),
    ("ripq", "cascade", "96MiB"),
    ("fifo", "full", "64MiB"),
    ("sipq", "cascade", "96MiB"),
]
# So that all values together are more than flash has.
VALUE_BYTES_MAX = 8192
# What has to happen in every case, or it proves nothing. Counted in each process and summed.
PROOFS = ("record_reads", "reclaimed_blocks", "sealed_blocks", "log_records", "checkpoints", "appended_objects")
NEVER = ("log_failures", "read_errors", "write_errors")


class Case:
    """One layout and index on one flash file."""

    def __init__(self, directory, rng, case, arguments):
        layout, index, dram = case
        self.directory, self.rng, self.arguments = directory, rng, arguments
        self.name = f"{layout}, {index}"
        self.is_exact = index == "full"
        # Relative, as a socket's path may not be long.
        self.target = "unix:memcached.sock"
        self.flags = ("--memcached", self.target, "--dram", dram, "--flash-size", arguments.flash)
        self.flags += ("--layout", layout, "--index", index, *arguments.extra)
        self.totals = dict.fromkeys(PROOFS + NEVER, 0)
        self.kills = self.stops = self.starts_killed = self.recovered = 0

    def start(self):
        while self.kills < self.kills_max and self.rng.random() < 0.2:
            server = Server(self.directory, *self.flags, wait=False)
            time.sleep(self.rng.random() * 0.1)
            server.kill9()
            self.kills += 1
            self.starts_killed += 1
        return Server(self.directory, *self.flags)

    def end(self, server):
        """Ends a server in some way."""
        kill = self.kills < self.kills_max and (self.stops >= self.stops_max or self.rng.random() < 0.75)
        if kill:
            if self.rng.random() < 0.2:
                server.process.send_signal(signal.SIGTERM)
                time.sleep(self.rng.random() * 0.05)
            server.kill9()
            self.kills += 1
            self.replace_by_older()
        else:
            server.terminate()
            self.stops += 1

    def replace_by_older(self):
        """To see the check fail: the flash file becomes what it was after the kill before, which no cache can notice."""
        if not self.arguments.older_copy:
            return
        flash, copy = (os.path.join(self.directory, name) for name in ("pumice.flash", "older.copy"))
        if os.path.exists(copy):
            os.replace(copy, flash)
        else:
            shutil.copy(flash, copy)

    def count(self):
        flash = self.server.stats()["flash"]
        for name in self.totals:
            self.totals[name] += flash[name]

    def run(self, seconds, kills, seed):
        self.kills_max, self.stops_max = kills, max(1, kills // 3)
        command = [BINARY, "bench", "history", "--json", "--target", self.target, "--duration", str(seconds)]
        command += ["--value-size-max", str(VALUE_BYTES_MAX), "--seed", str(seed), "--keys", str(self.arguments.keys), "--flush-every", str(self.arguments.flush)]
        self.server = Server(self.directory, *self.flags)
        with open(os.path.join(self.directory, "history.log"), "wb") as said:
            check = subprocess.Popen(command, cwd=self.directory, stdout=subprocess.PIPE, stderr=said)
            try:
                self.disturb(check, time.monotonic() + seconds)
                out, _ = check.communicate(timeout=seconds + 60)
            finally:
                if check.poll() is None:
                    check.kill()
                    check.wait()
                    self.server.kill9()
        with self.server:
            report = self.judge(out, check.returncode)
            self.count()
            # With index cascade some deaths are counted twice, and `resident` may fall below 0.
            if self.is_exact:
                self.server.check_books()
            self.server.terminate()
        return report

    def disturb(self, check, end):
        """Ends and starts the server until all kills are done; the last stretch has none."""
        planned = self.kills_max + self.stops_max
        pause = (end - time.monotonic()) / (planned + 1)
        while self.kills < self.kills_max:
            # Sometimes at once, while clients look at what came back.
            moment = pause * (0.1 if self.rng.random() < 0.2 else self.rng.uniform(0.4, 1.5))
            left = self.kills_max - self.kills
            moment = min(moment, (end - time.monotonic()) / (left + 1))
            try:
                check.wait(max(moment, 0.02))
                return
            except subprocess.TimeoutExpired:
                pass
            self.count()
            self.end(self.server)
            self.server = self.start()

    def judge(self, out, status):
        try:
            report = json.loads(out)
        except ValueError:
            with open(os.path.join(self.directory, "history.log"), encoding="utf-8") as said:
                raise Failure(f"expected a report; status {status}, {said.read()[-2000:]}") from None
        wrong = "\n".join(report["examples"])
        expect(report["wrong_answers"] == 0, "every answer to be explained", f"{report['wrong_answers']} wrong:\n{wrong}")
        expect(status == 0, "exit status 0", status)
        return report


def test():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="for all cases together")
    parser.add_argument("--kills", type=int, default=30, help="for all cases together; a third as many clean stops")
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many layouts and indexes, by the seed")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--flash", default="64MiB")
    parser.add_argument("--keys", type=int, default=40_000)
    parser.add_argument("--flush", type=float, default=45, help="seconds between flush_all, on average")
    parser.add_argument("--older-copy", action="store_true", help="put an older copy of the flash file back: has to FAIL")
    parser.add_argument("extra", nargs="*", help="more flags for the server, after --")
    arguments = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "little") if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    first = rng.randrange(len(CASES))
    cases = [CASES[(first + at) % len(CASES)] for at in range(arguments.cases)]
    sums = {"operations": 0, "hits": 0, "unanswered": 0, "kills": 0, "stops": 0}
    for at, case in enumerate(cases):
        kills = arguments.kills * (at + 1) // len(cases) - arguments.kills * at // len(cases)
        with Directory("history") as directory:
            run = Case(directory, rng, case, arguments)
            try:
                report = run.run(arguments.seconds / len(cases), kills, rng.randrange(1 << 32))
                lacking = [name for name in PROOFS if run.totals[name] == 0]
                expect(not lacking, f"{', '.join(PROOFS)} to happen", f"none of {lacking}: {run.totals}")
                bad = {name: run.totals[name] for name in NEVER if run.totals[name]}
                expect(not bad, "a device without faults", bad)
                expect(report["servers"] > run.kills - run.starts_killed, "a process after each kill", report["servers"])
            except Failure as failure:
                raise Failure(f"seed {seed}, {run.name}: {failure}") from None
        for name in ("operations", "hits", "unanswered"):
            sums[name] += report[name]
        sums["kills"] += run.kills
        sums["stops"] += run.stops
        totals = ", ".join(f"{run.totals[name]} {name}" for name in PROOFS)
        print(
            f"{run.name}: {report['operations']} operations in {report['seconds']:.0f} s, {report['hits']} hits, "
            f"{report['unanswered']} without an answer; {run.kills} kills ({run.starts_killed} while it started), "
            f"{run.stops} clean stops; {totals}; {report['server_errors'] or 'no errors'}",
            flush=True,
        )
    print(
        f"{sums['operations']} operations, {sums['hits']} hits, {sums['unanswered']} without an answer; "
        f"{sums['kills']} kills, {sums['stops']} clean stops; 0 wrong values"
    )
    expect(sums["kills"] == arguments.kills, f"{arguments.kills} kills", sums["kills"])


if __name__ == "__main__":
    main(test)
