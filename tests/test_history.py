"""A history check through restarts and kills: everything that the server answers is explained by some order of the operations.

`pumice-bench history` puts load on a server and checks the answers; meanwhile this stops the server (SIGTERM), kills it (kill -9)
and starts it again, at random moments, also while it starts or stops. Missing is legal; stale, deleted, expired or foreign never is.
Flash is small and DRAM smaller, so that objects are read from flash, promoted, overwritten, evicted and reclaimed; a run in which that
did not happen fails.

With --full all layouts and indexes are checked, 10 minutes and 30 kills together, with a third as many clean stops; else two of them
by the seed for 25 s and 6 kills. `--with` has cases, seconds, kills, keys, flash, flush (seconds between flush_all, on average), and
older_copy=1, which puts an older copy of the flash file back and has to FAIL."""

import os
import random
import shutil
import subprocess
import time

from harness import expect
from history import CASES, History, Lives

# So that all values together are more than flash has.
VALUE_BYTES_MAX = 8192
# What has to happen in every case, or it proves nothing. Counted in each process and summed.
PROOFS = ("record_reads", "reclaimed_blocks", "sealed_blocks", "log_records", "checkpoints", "appended_objects")
NEVER = ("log_failures", "read_errors", "write_errors")


class Run(Lives):
    """One layout and index for a while."""

    def count(self):
        flash = self.server.stats()["flash"]
        for name in self.totals:
            self.totals[name] += flash[name]

    def replace_by_older(self):
        """To see the check fail: the flash file becomes what it was after the kill before, which no cache can notice."""
        flash, copy = (os.path.join(self.directory, name) for name in ("pumice.flash", "older.copy"))
        if os.path.exists(copy):
            os.replace(copy, flash)
        else:
            shutil.copy(flash, copy)

    def disturb(self, check, end, kills_max, older_copy):
        """Ends and starts the server until all kills are done; the last stretch has none."""
        stops_max = max(1, kills_max // 3)
        pause = (end - time.monotonic()) / (kills_max + stops_max + 1)
        while self.kills < kills_max:
            # Sometimes at once, while clients look at what came back.
            moment = pause * (0.1 if self.rng.random() < 0.2 else self.rng.uniform(0.4, 1.5))
            moment = min(moment, (end - time.monotonic()) / (kills_max - self.kills + 1))
            try:
                check.process.wait(max(moment, 0.02))
                return
            except subprocess.TimeoutExpired:
                pass
            self.count()
            if self.stops >= stops_max or self.rng.random() < 0.75:
                self.kill(self.server)
                if older_copy:
                    self.replace_by_older()
            else:
                self.server.terminate()
                self.stops += 1
            self.server = self.start(kills_max=kills_max)

    def run(self, seconds, kills, older_copy, **settings):
        self.totals = dict.fromkeys(PROOFS + NEVER, 0)
        self.server = self.start(share=0)
        try:
            settings["value_size_max"] = VALUE_BYTES_MAX
            with History(self.directory, self.rng.randrange(1 << 32), seconds, **settings) as check:
                self.disturb(check, time.monotonic() + seconds, kills, older_copy)
                report = check.judge(seconds + 60)
            self.count()
            # With index cascade some deaths are counted twice, and `resident` may fall below 0.
            if self.name.endswith("full"):
                self.server.check_books()
            self.server.terminate()
        finally:
            self.server.__exit__(None, None, None)
        lacking = [name for name in PROOFS if self.totals[name] == 0]
        expect(not lacking, f"{', '.join(PROOFS)} to happen with {self.name}", f"none of {lacking}: {self.totals}")
        bad = {name: self.totals[name] for name in NEVER if self.totals[name]}
        expect(not bad, f"a device without faults with {self.name}", bad)
        expect(report["servers"] > self.kills - self.starts_killed, "a process after each kill", report["servers"])
        totals = ", ".join(f"{self.totals[name]} {name}" for name in PROOFS)
        print(
            f"{self.name}: {report['operations']} operations in {report['seconds']:.0f} s, {report['hits']} hits, "
            f"{report['unanswered']} without an answer; {self.kills} kills ({self.starts_killed} while it started), "
            f"{self.stops} clean stops; {totals}; {report['server_errors'] or 'no errors'}",
            flush=True,
        )
        return report


def test_history(directory, seed, size, server_flags):
    count, kills, seconds = size("cases", 2, len(CASES)), size("kills", 6, 30), size("seconds", 25.0, 600.0)
    flags = ("--flash-size", size("flash", "64MiB", "64MiB"), *server_flags)
    settings = {"keys": size("keys", 40_000, 40_000), "flush_every": size("flush", 45.0, 45.0)}
    older_copy = size("older_copy", 0, 0)
    rng = random.Random(seed)
    first, done = rng.randrange(len(CASES)), 0
    for at in range(count):
        place = os.path.join(directory, str(at))
        os.mkdir(place)
        run = Run(place, rng, CASES[(first + at) % len(CASES)], *flags)
        run.run(seconds / count, kills * (at + 1) // count - kills * at // count, older_copy, **settings)
        done += run.kills
        shutil.rmtree(place)
    expect(done == kills, f"{kills} kills", done)
