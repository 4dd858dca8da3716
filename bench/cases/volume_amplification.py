"""What a cache in write-back sends to its device for each byte that is stored, with a FLUSH every few writes."""

import contextlib
import os
import random

from comparison import Comparison, case
from harness import machine
from harness.nbd import Nbd
from harness.servers import Volume, fresh_directory
from tools import removed
from .volume import BLOCK, REFERENCE_BYTES

WRITE = 4096
# Contents that duplicates are drawn from.
POOL = 64
# The cache, in parts of the volume.
SHARES = {"10 %": 0.1, "40 %": 0.4, "70 %": 0.7, "all fits": 1.5}
PARTS = ("checkpoints", "padding", "log", "kept", "rest")


@case(pairs=1, size=(32, "MiB of the volume"), warm=(1.0, "volumes that are written before"), times=(2.0, "volumes that are written and measured"),
      writes=(20, "writes for each FLUSH"), chunk=(4, "KiB of a chunk"),
      other=("", "another build of the program, to compare with"), quick={"warm": 0.25, "times": 0.25})
def volume_amplification(arguments):
    """Bytes sent to the cache device for each byte stored, in write-back: random writes, half of them duplicates, a FLUSH every 20.

    One client writes 4 KiB at random places, one write at a time. Half of the contents are drawn from 64, the others are new; each is 2 KiB of
    random bytes and 2 KiB of zeros. As much as the volume is written first: a cache smaller than that has reclaimed all its blocks then. Then
    twice as much, with these figures: all bytes that the cache device was sent, log and superblocks included, over the bytes of pieces, which are
    compressed contents with their headers, and 48 bytes for a duplicate. The file of the cache has no holes. *new* is the first pass,
    on a file with holes, which are filled with zeros once.

    By parts: checkpoints; padding of what a FLUSH writes, to whole sectors; log and superblocks; contents that reclaims kept; the rest: footers,
    ends of blocks, references of contents that were kept, zeros. `--other` names another program: the peer. Exit status 1 where the bound is
    missed."""
    settings = {"size MiB": arguments.size, "warm": arguments.warm, "times": arguments.times, "writes": arguments.writes, "chunk KiB": arguments.chunk}
    comparison = Comparison(arguments, settings, "this build", "other build" if arguments.other else None)
    programs = {"pumice": machine.BINARY, "peer": os.path.abspath(arguments.other)}

    def turn(side):
        found = {}
        for what, share in SHARES.items():
            seen = written(comparison, arguments, programs[side], share, arguments.chunk)
            found |= {f"{what}: {name}": value for name, value in seen.items()}
        return found

    comparison.turns(lambda _: turn("pumice"), (lambda _: turn("peer")) if arguments.other else None, show=show_parts)
    for what in SHARES:
        title = f"bytes sent to the cache device / bytes stored, write-back, a FLUSH every {arguments.writes} writes, cache of the volume: {what}"
        comparison.row(title, f"{what}: sent", "≤ 1.5", "≤ 1.25", "{:.3f}".format)
        sent = comparison.median("pumice", f"{what}: sent")
        if sent is not None and not arguments.quick:
            comparison.must(sent <= 1.5, f"{what}: {sent:.3f}, must be ≤ 1.5")
    return comparison


def show_parts(run):
    names = {name.split(":")[0] for name in run if name.endswith(": sent")}
    lines = []
    for what in sorted(names):
        own = {name.removeprefix(f"{what}: "): value for name, value in run.items() if name.startswith(f"{what}: ")}
        lines.append(f"\n    {what}: " + ", ".join(f"{name} {value:.3f}" for name, value in own.items() if isinstance(value, float)))
    return "".join(lines)


class Load:
    """The writes of a client: places and contents from one seed."""

    def __init__(self, client, size, writes):
        self.client, self.writes = client, writes
        self.places, self.draw, self.count = size // WRITE, random.Random(1), 0
        self.pool = [self.content() for _ in range(POOL)]

    def content(self):
        return self.draw.randbytes(WRITE // 2) + bytes(WRITE // 2)

    def run(self, count):
        for _ in range(count):
            content = self.draw.choice(self.pool) if self.draw.random() < 0.5 else self.content()
            self.client.write(self.draw.randrange(self.places) * WRITE, content)
            self.count += 1
            if self.count % self.writes == 0:
                self.client.flush()


def written(comparison, arguments, program, share, chunk):
    """The figures of one cache."""
    size = arguments.size * BLOCK
    cache = int(size * share) // WRITE * WRITE
    flags = ["--mode", "write-back", "--cache", "cache", "--cache-size", f"{cache}B", "--chunk-size", f"{chunk}KiB", "--threads", "1"]
    found = {}
    for state in ("new", "used"):
        directory = fresh_directory(comparison.directory, "volume-amplification")
        with contextlib.ExitStack() as stack:
            stack.enter_context(removed(directory))
            disk, = stack.enter_context(comparison.files("volume.disk"))
            with open(disk, "wb") as file:
                file.truncate(size)
            if state == "used":
                with open(os.path.join(directory, "cache"), "wb") as file:
                    file.write(bytes(cache))
                    os.fsync(file.fileno())
            server = stack.enter_context(Volume(directory, disk, *flags, core=comparison.server_core, program=program))
            load = Load(stack.enter_context(Nbd(server.uri)), size, arguments.writes)
            counts = [figures(server)]
            for times in [arguments.warm] if state == "new" else [arguments.warm, arguments.times]:
                load.run(int(times * load.places))
                counts.append(figures(server))
        before, after = counts[-2:]
        parts = {name: after[name] - before[name] for name in after}
        if state == "new":
            found["new"] = parts["sent_bytes"] / parts["stored_bytes"]
            continue
        found["sent"] = parts["sent_bytes"] / parts["stored_bytes"]
        parts["rest_bytes"] = parts["sent_bytes"] - parts["stored_bytes"] - sum(parts.get(f"{name}_bytes", 0) for name in PARTS)
        found |= {name: parts[f"{name}_bytes"] / parts["stored_bytes"] for name in PARTS} | parts
    return found


def figures(server):
    volume = server.stats()["volumes"][server.name_of_volume]
    chunk, blocks, device = (volume[name] for name in ("chunk", "blocks", "device"))
    return {
        "sent_bytes": blocks["written_bytes"],
        # What took the room of an older content in a buffer is counted once more than it is written.
        "stored_bytes": chunk["stored_flash_bytes"] + REFERENCE_BYTES * chunk["duplicates"],
        "checkpoints_bytes": blocks["checkpoint_bytes"],
        "padding_bytes": blocks["prefix_padding_bytes"],
        "log_bytes": device["log_bytes"],
        "kept_bytes": chunk["moved_flash_bytes"],
        **{f"count_{name}": blocks[name] for name in ("checkpoints", "sealed_blocks", "prefix_writes", "log_records")},
        **{f"count_{name}": chunk[name] for name in ("stored_contents", "absorbed_contents", "duplicates", "moved_contents", "reclaimed_blocks")},
        **{f"count_{name}": volume["volume"][name] for name in ("writes_no_room", "writes_at_limit", "cleaned_chunks", "backing_flushes")},
    }
