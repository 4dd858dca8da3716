"""Idle and slow connections: what they do to the latency of a normal client, and to the memory of the server.

A normal client (`pumice-bench`: gets of what is in DRAM and on flash, and a tenth sets of up to 40 KB, at a fixed rate) is measured
alone and beside a crowd, in turns: idle connections, and slow ones that send a byte a second and read a byte a second. Half of these have
asked for more than sockets buffer, of flash and DRAM mixed; a quarter has announced values of 1 MB; a quarter sends small commands.
Must be: the median p99 beside the crowd is at most twice that without it, and resident memory stays within --dram plus 10 %.

That is with --full, on a machine with nothing else to do: five turns of 40 s in each half. Without it the turns are short, and beside
other load: no measurement, and the ratio may be 20. `--with` has rounds, seconds, keys, flash (MiB), dram (MiB), ratio, idle, slow, rate."""

import json
import os
import random
import statistics
import subprocess
import sys

import crowd
from crowd import DESCRIPTORS, HOT, VALUES, allow_descriptors
from harness import expect, mib
from harness.client import Client
from harness.machine import BENCH, ROOT, Child, run_json
from harness.servers import Pumice

# What a connection may take by itself: its part of the budget (docs/install.md, "DRAM").
IDLE_BYTES_MAX = 6 << 10


class Crowd(Child):
    def __init__(self, server, idle, slow):
        command = [sys.executable, crowd.__file__, *map(str, [*server.address, idle, slow])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | {"PYTHONPATH": ROOT})

    def tell(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        expect(answer, f"the crowd to answer to {order!r}", "its end")
        return json.loads(answer)


class Normal:
    """The client whose latency counts."""

    def __init__(self, server, keys, rate):
        self.server, self.rate = server, rate
        self.common = [
            *(BENCH, "memcached", "--target", server.target, "--json"),
            *("--keys", f"zipf:keys={keys},theta=0.8", "--value-size", "2000-40000"),
            *("--mix", "get:90,set:10", "--connections", "4"),
        ]

    def run(self, *flags):
        return run_json([*self.common, *flags], timeout=600)

    def measure(self, seconds):
        """(p99 in microseconds, hits from DRAM, hits from flash)"""
        before = self.server.text_stats()
        report = self.run("--rate", str(self.rate), "--poisson", "--seconds", str(seconds))
        after = self.server.text_stats()
        p99 = report["latency"]["p99_us"]
        return p99, *(int(after[name]) - int(before[name]) for name in ("get_hits_dram", "get_hits_flash"))


def test_connections(directory, size):
    idle, slow, turns = size("idle", 5000, 5000), size("slow", 200, 200), size("rounds", 3, 5)
    seconds, keys, ratio_max = size("seconds", 1.5, 40.0), size("keys", 15_000, 30_000), size("ratio", 20.0, 2.0)
    connections = idle + slow
    allow_descriptors(connections + DESCRIPTORS)
    dram = size("dram", 128, 128)
    budget = dram << 20
    flags = ("--dram", f"{dram}MiB", "--flash-size", f"{size('flash', 512, 1024)}MiB")
    alone, beside, ratios = [], [], []
    with Pumice(directory, *flags, "--max-connections", str(connections + 64)) as server:
        noise = random.Random(1).randbytes(1 << 20)
        client = Client(server.address)
        for name, length, number in VALUES:
            client.set_many((b"%s-%d" % (name, n), noise[n : n + length]) for n in range(number))
        normal = Normal(server, keys, size("rate", 2000, 2000))
        for _ in range(5):
            # What a busy device had no time for comes again.
            before = server.stats()["flash"]["dropped_no_block"]
            normal.run("--preload-only")
            if server.stats()["flash"]["dropped_no_block"] == before:
                break
        with Crowd(server, idle, slow) as people:
            for turn in range(turns):
                p99, dram, flash = normal.measure(seconds)
                expect(min(dram, flash) >= 100, "hits from both tiers", f"{dram} from DRAM, {flash} from flash")
                alone.append(p99)
                before = server.memory()[0]
                people.tell("idle")
                each = (server.memory()[0] - before) / idle
                hot, length, number = HOT
                client.set_many((b"%s-%d" % (hot, n), noise[n : n + length]) for n in range(number))
                closed_before = int(server.text_stats()["slow_peers_closed"])
                people.tell("slow")
                after = server.text_stats()
                # Who made no progress while others waited for memory was closed, perhaps before the last of them asked.
                closed = int(after["slow_peers_closed"]) - closed_before
                open_now = int(after["curr_connections"])
                expect(open_now + closed >= connections, f"{connections} connections, open or closed as slow", f"{open_now} and {closed}")
                expect(open_now >= idle, f"{idle} open connections at least", open_now)
                p99, _, _ = normal.measure(seconds)
                beside.append(p99)
                left = people.tell("close")
                expect(left["alive"] == idle, f"all {idle} idle connections to live", left["alive"])
                ratios.append(beside[-1] / alone[-1])
                print(
                    f"turn {turn + 1}: p99 {alone[-1]:.0f} us alone, {beside[-1]:.0f} us beside {open_now} connections; "
                    f"{each:.0f} bytes for each idle one; {left['cut_off']} slow ones were cut off; "
                    f"{flash} of {dram + flash} hits from flash",
                    flush=True,
                )
                if turn == 0:
                    expect(each <= IDLE_BYTES_MAX, f"at most {IDLE_BYTES_MAX} bytes for an idle connection", each)
        most = server.memory()[1]
        value = next(iter(client.get_many([b"large-0"])))[1]
        expect(value in (None, noise[:200_000]), "the value that was set, or none", value and value[:40])
        client.close()
        server.check_books()
        took = server.terminate()
    ratio = statistics.median(beside) / statistics.median(alone)
    print(
        f"p99, median of {turns} turns: {statistics.median(alone):.0f} us alone, {statistics.median(beside):.0f} us beside "
        f"{idle} idle and {slow} slow connections: {ratio:.2f} times (turns: "
        f"{min(ratios):.2f} to {max(ratios):.2f}); resident memory at most {mib(most)} of {mib(budget)}; stopped in {took:.1f} s"
    )
    expect(most <= budget * 1.1, f"resident memory within {mib(budget)} plus 10 %", mib(most))
    expect(ratio <= ratio_max, f"a p99 of at most {ratio_max} times that without the crowd", f"{ratio:.2f} times")
