#!/usr/bin/env python3
"""DRAM per item on flash against memcached's extstore: 300-byte values, allowed on flash on both sides.

    python3 bench/dram_per_item.py [--items 3000000] [--pairs 3]

Each side gets items with values of 300 bytes and keys of 10, over one connection in batches of 20 000, and its resident
memory (VmRSS) is read at a third of the items and at all of them; the slope between the two is DRAM per item, so that what
does not depend on the number of items drops out. Before each reading it is waited until all items but those that DRAM
holds as well are on flash, as the server's own statistics say; else the script fails.

Pumice: `serve --threads 1 --dram 256MiB`. Its budget is fixed: as the index grows, the DRAM tier, which only holds copies of
what is on flash, becomes smaller. So the memory of that tier and of the block buffers, as the server reports them, is
taken off both readings; what is left is index, program and allocator.

memcached: `-t 1 -m 1024 -o ext_path=...,ext_item_size=200,ext_item_age=1,ext_threads=2`: items over 200 bytes go to flash
once they were idle for a second, so that its memory never fills and each reading has a header for each item and few
values. Loading waits whenever more than 100 000 items are not on flash yet, so that chunks of values are used again and
resident memory is of headers and hash table. `-o` has no setting for a smaller header. The hash table doubles between the
readings (from 2^20 to 2^21 buckets of 8 bytes at 1.5 items for each), as it does for any number of items.

Neither server is in a memory cgroup here: nothing is timed, and the page cache is not resident memory of the process.
"""

import contextlib
import json
import socket
import time
import urllib.request

from lib import compare, machine, servers
from lib.cgroup import NoGroup
from lib.compare import Comparison
from lib.machine import Trouble

BATCH = 20_000
VALUE_BYTES = 300
# Items whose values memcached may hold in DRAM while it loads, and when it is measured.
LOADING_MAX = 100_000
SETTLED_MAX = 0.01
SETTLE_SECONDS = 120


def fill(server, first, last, pause, size=VALUE_BYTES):
    """Sets items by number; `pause` is called after each batch."""
    value = b"v" * size
    with socket.create_connection(server.address, timeout=120) as sock:
        for start in range(first, last, BATCH):
            numbers = range(start, min(start + BATCH, last))
            batch = b"".join(b"set k%09d 0 0 %d noreply\r\n%s\r\n" % (n, size, value) for n in numbers)
            sock.sendall(batch + b"mn\r\n")
            reply = b""
            while not reply.endswith(b"\n"):
                piece = sock.recv(4096)
                if not piece:
                    raise Trouble(f"{server.name} closed the connection")
                reply += piece
            pause()


def until(condition, what):
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Trouble(f"{what} not within {SETTLE_SECONDS} s")
        time.sleep(0.05)


def pumice_reading(server, items):
    """Bytes beside the DRAM tier and the block buffers, once all items are on flash."""

    def stats():
        with urllib.request.urlopen(f"{server.admin}/stats", timeout=60) as reply:
            return json.load(reply)

    until(lambda: stats()["index"]["mappings"] >= items * 0.999, f"pumice: {items} items on flash")
    time.sleep(2)
    now = stats()
    tier = sum(now["tier"][name] for name in ("dram_segment_bytes", "dram_table_bytes", "ghost_bytes"))
    resident = server.resident_bytes()
    if resident < tier:
        raise Trouble(f"pumice: {items} items do not fill its DRAM tier of {tier} bytes; more --items are needed")
    return {
        "items": now["index"]["mappings"],
        "resident_bytes": resident,
        "bytes": resident - tier - now["flash"]["buffer_bytes"],
        "index_bytes": now["index"]["dram_bytes"],
    }


def extstore_counts(server):
    stats = server.stats()
    return int(stats["curr_items"]), int(stats["extstore_objects_used"]), int(stats["evictions"])


def extstore_reading(server, items):
    """Resident bytes, once nearly all items are headers of what is on flash."""

    def settled():
        there, on_flash, _ = extstore_counts(server)
        return there - on_flash <= items * SETTLED_MAX

    until(settled, f"memcached: {items} items on flash")
    time.sleep(2)
    there, on_flash, evictions = extstore_counts(server)
    if evictions or there < items:
        raise Trouble(f"memcached kept {there} of {items} items ({evictions} evicted): more -m or flash is needed")
    resident = server.resident_bytes()
    return {"items": on_flash, "resident_bytes": resident, "bytes": resident}


def main():
    parser = compare.parser(__doc__, pairs=5, seconds=None, cgroup=False)
    parser.add_argument("--items", type=int, default=3_000_000, help="items at the second reading (%(default)s)")
    arguments = parser.parse_args()
    dram = 256
    if arguments.quick:
        arguments.items, arguments.pairs, dram = 600_000, 1, 80
    machine.build_pumice(not arguments.no_build)
    memcached = machine.install("memcached", "memcached")
    points = (arguments.items // 3, arguments.items)
    flash = max(512, arguments.items * 600 >> 20)
    item_mib = max(256, arguments.items * 360 >> 20)
    options = ["ext_item_size=200", "ext_item_age=1", "ext_threads=2", "ext_wbuf_size=8"]
    settings = {
        "items": f"{points[0]} and {points[1]}", "value bytes": VALUE_BYTES, "key bytes": 10, "flash MiB": flash,
        "pumice": f"--dram {dram}MiB", "memcached": f"-t 1 -m {item_mib} -o {','.join(options)}",
    }  # fmt: skip
    comparison = Comparison("dram-per-item", arguments, settings)
    comparison.sides = {"pumice": "pumice", "peer": machine.version_of([memcached, "--version"])}
    core, directory = comparison.server_core, comparison.directory

    def readings(server, reading, pause):
        found, done = [], 0
        for items in points:
            fill(server, done, items, pause)
            done = items
            found.append(reading(server, items))
        first, second = found
        per_item = (second["bytes"] - first["bytes"]) / (second["items"] - first["items"])
        return {"bytes_per_item": per_item, "readings": found}

    def pumice(_):
        with servers.pumice(directory, core, NoGroup(), dram, flash) as server:
            return readings(server, pumice_reading, lambda: None)

    def peer(_):
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(
                servers.memcached(directory, core, NoGroup(), item_mib, options, flash)
            )

            def pause():
                def behind():
                    there, on_flash, _ = extstore_counts(server)
                    return there - on_flash

                until(lambda: behind() <= LOADING_MAX, "memcached: values on flash")

            return readings(server, extstore_reading, pause)

    def show(run):
        points = "; ".join(f"{at['items']} items: {at['bytes'] / 2**20:.1f} MiB" for at in run["readings"])
        return f"{run['bytes_per_item']:.2f} bytes per item ({points})"

    comparison.turns(pumice, peer, show)
    comparison.row(
        "DRAM per item on flash against extstore, 300-byte values", "bytes_per_item", "≤ 0.16 ×", "≤ 0.1 ×",
        lambda value: f"{value:.1f} B",
    )  # fmt: skip
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
