"""Rows about the cascade index against the full one: replays, and a process that makes gets on a filled file."""

import contextlib
import json
import math
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import machine
from .machine import Trouble, confine

ITEM_BYTES = 300
# An item with header, key of 8 bytes and footer entry.
RECORD_BYTES = ITEM_BYTES + 36 + 8 + 28
# What of a file is not items: blocks that are free, are buffers, or hold mappings and checkpoints.
SPARE_SHARE = 0.16


def flash_mib(items):
    """MiB of flash on which so many items of `ITEM_BYTES` have room to spare."""
    return math.ceil(items * RECORD_BYTES / (1 - SPARE_SHARE) / 2**20)


def replay(trace, *flags, core=None, timeout=7200):
    """What `pumice replay` reports of a trace."""
    return machine.run_json([machine.BINARY, "replay", trace, *map(str, flags), "--json"], core, timeout=timeout)


def at_once(calls):
    """Results of functions, two run at a time: counts of replays do not depend on how long they take."""
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


class Gets:
    """`bench/inprocess pumice-gets` on one core: fills a file, and then makes gets as it is told."""

    def __init__(self, program, path, core, keys, flash, *flags):
        command = [program, "pumice-gets", "--path", path, "--keys", keys, "--flash-mib", flash, "--size", ITEM_BYTES,
                   *flags]  # fmt: skip
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, preexec_fn=confine(core, None),
        )  # fmt: skip
        try:
            self.filled = self._reply()["filled"]
        except BaseException:
            self.__exit__()
            raise

    def _reply(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.kill()
            raise Trouble(f"pumice-gets ended: {self.process.communicate()[1][-2000:]}")
        return json.loads(line)

    def run(self, workload, depth, seconds, origin_ms=None):
        """A stretch of gets, so many at once. What misses is counted, or fetched from an origin that takes so long, and set."""
        origin = "-" if origin_ms is None else origin_ms
        try:
            print(workload, depth, seconds, origin, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass
        return self._reply()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def gets_of_sides(comparison, program, stem, keys, flash, flags):
    """`Gets` by side, for those that run: each with its own of `flags`, on a file `stem.SIDE` that is removed afterwards."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, own in flags.items():
            if comparison.arguments.only in (None, name):
                path = Path(comparison.directory, f"{stem}.{comparison.sides[name]}")
                # Also where the file is not filled to the end.
                stack.callback(path.unlink, missing_ok=True)
                process = Gets(program, path, comparison.server_core, keys, flash, *own)
                processes[name] = stack.enter_context(process)
        yield processes
