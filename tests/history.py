"""`pumice-bench history` beside a server that is stopped, killed and started again: what test_history.py and test_kill9.py share."""

import json
import os
import signal
import subprocess
import time

from harness import Failure, expect
from harness.machine import BENCH, Child
from harness.servers import Pumice

# Layout, index, and the least DRAM that each can do with.
CASES = [
    ("ripq", "full", "72MiB"), ("clock", "cascade", "72MiB"), ("sipq", "full", "96MiB"),
    ("ripq", "cascade", "96MiB"), ("clock", "full", "64MiB"), ("sipq", "cascade", "96MiB"),
]
# Relative to the directory of the test, as a socket's path may not be long.
SOCKET = "unix:memcached.sock"


class Lives:
    """One flash file, and the servers that have it one after the other."""

    def __init__(self, directory, rng, case, *flags):
        layout, index, dram = case
        self.directory, self.rng, self.name = directory, rng, f"{layout}, {index}"
        self.flags = ("--memcached", SOCKET, "--dram", dram, "--layout", layout, "--index", index, *flags)
        self.kills = self.stops = self.starts_killed = 0

    def start(self, share=0.2, seconds=0.1, kills_max=None):
        """Starts a server; sometimes it is killed while it starts, and started again."""
        while (kills_max is None or self.kills < kills_max) and self.rng.random() < share:
            server = Pumice(self.directory, *self.flags, wait=False)
            time.sleep(self.rng.random() * seconds)
            server.kill9()
            self.kills += 1
            self.starts_killed += 1
        return Pumice(self.directory, *self.flags)

    def kill(self, server, share=0.2, seconds=0.05):
        """Kills a server, sometimes while it stops; says whether."""
        is_closing = self.rng.random() < share
        if is_closing:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(self.rng.random() * seconds)
        server.kill9()
        self.kills += 1
        return is_closing


class History(Child):
    """Load on the server of a directory, every answer of which is checked; it goes on when the server is another. Ends at the first
    answer that cannot be explained."""

    def __init__(self, directory, seed, seconds, **settings):
        command = [BENCH, "history", "--json", "--target", SOCKET, "--seconds", seconds, "--seed", seed]
        for name, value in settings.items():
            command += ["--" + name.replace("_", "-"), value]
        self.said = os.path.join(directory, "history.log")
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen([str(word) for word in command], cwd=directory, stdout=subprocess.PIPE, stderr=said)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def check(self):
        """While it runs, nothing was wrong."""
        if self.process.poll() is not None:
            self.judge(0)
            raise Failure("expected the history check to go on; seen its end")

    def judge(self, timeout):
        """Its report, when it has come to its end."""
        out, _ = self.process.communicate(timeout=timeout)
        try:
            report = json.loads(out)
        except ValueError:
            with open(self.said, encoding="utf-8") as said:
                raise Failure(f"expected a report; status {self.process.returncode}, {said.read()[-2000:]}") from None
        wrong = "\n".join(report["examples"])
        expect(report["wrong_answers"] == 0, "every answer to be explained", f"{report['wrong_answers']} wrong:\n{wrong}")
        expect(self.process.returncode == 0, "exit status 0", self.process.returncode)
        return report
