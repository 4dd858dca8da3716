"""What an item takes of DRAM. Nothing is timed."""

import contextlib
import time

from comparison import Comparison, case
from harness import Failure
from harness.client import Client
from tools import memcached, memcached_version, percent, pumice

KEY_BYTES = 10
SETTLE_SECONDS = 120


def fill(server, first, last, size, pause=lambda: None):
    """Sets items by number; `pause` is called after each batch."""
    with contextlib.closing(Client(server.address)) as client:
        client.send_numbered(b"set k%%09d 0 0 %d noreply\r\n%s\r\n" % (size, b"v" * size), first, last, pause=pause)


def tier_bytes(stats):
    return sum(stats["tier"][name] for name in ("dram_segment_bytes", "dram_table_bytes", "ghost_bytes"))


def beside_tier(server):
    """Items on flash, resident bytes beside the DRAM tier and the block buffers, bytes of the index, resident bytes."""
    stats = server.stats()
    tier, resident = tier_bytes(stats), server.memory()[0]
    if resident < tier:
        raise Failure(f"pumice: the items do not fill its DRAM tier of {tier} bytes; more items are needed")
    index = stats["index"]
    return {"items": index["mappings"], "bytes": resident - tier - stats["flash"]["buffer_bytes"],
            "index_bytes": index["dram_bytes"], "resident_bytes": resident}


# --- against extstore -------------------------------------------------------------------------------------------------

# Items whose values memcached may hold in DRAM while it loads, and when it is measured.
LOADING_MAX = 100_000
SETTLED_MAX = 0.01


def until(server, condition, what):
    server.wait_for(condition, what, SETTLE_SECONDS)


def of_extstore(server):
    stats = server.text_stats()
    return [int(stats[name]) for name in ("curr_items", "extstore_objects_used", "evictions")]


@case(items=(3_000_000, "items at the second reading"), tier=(256, "MiB of Pumice's --dram"), size=(300, "bytes of a value"),
      quick={"items": 600_000, "pairs": 1, "tier": 80})
def dram_per_item(arguments):
    """DRAM per item on flash against memcached's extstore: 300-byte values, allowed on flash on both sides.

    Each side gets items with values of 300 bytes and keys of 10, over one connection in batches of 20,000, and its resident
    memory (VmRSS) is read at a third of the items and at all of them; the slope between the two is DRAM per item, so that what
    does not depend on the number of items drops out. Before each reading it is waited until all items but those that DRAM
    holds as well are on flash, as the server's own statistics say; else it fails.

    Pumice: `serve --threads 1 --dram 256MiB`. Its budget is fixed: as the index grows, the DRAM tier, which only holds copies of
    what is on flash, becomes smaller. So the memory of that tier and of the block buffers, as the server reports them, is
    taken off both readings; what is left is index, program and allocator. More than 16 bytes, or an index that reports 5 % more or less,
    fail. `--only pumice --size 100 --items 10000000` measures smaller ones, which extstore would not write to flash.

    memcached: `-t 1 -m 1024 -o ext_path=...,ext_item_size=200,ext_item_age=1,ext_threads=2`: items over 200 bytes go to flash
    once they were idle for a second, so that its memory never fills and each reading has a header for each item and few
    values. Loading waits whenever more than 100,000 items are not on flash yet, so that chunks of values are used again and
    resident memory is of headers and hash table. `-o` has no setting for a smaller header. The hash table doubles between the
    readings (from 2^20 to 2^21 buckets of 8 bytes at 1.5 items for each), as it does for any number of items.

    Neither server is in a memory cgroup here: nothing is timed, and the page cache is not resident memory of the process."""
    at = (arguments.items // 3, arguments.items)
    flash = max(512, arguments.items * 600 >> 20)
    item_mib = max(256, arguments.items * 360 >> 20)
    options = ["ext_item_size=200", "ext_item_age=1", "ext_threads=2", "ext_wbuf_size=8"]
    settings = {"items": f"{at[0]} and {at[1]}", "value bytes": arguments.size, "key bytes": KEY_BYTES, "flash MiB": flash,
                "pumice": f"--dram {arguments.tier}MiB", "memcached": f"-t 1 -m {item_mib} -o {','.join(options)}"}
    comparison = Comparison(arguments, settings, peer=memcached_version())

    def readings(server, reading, pause):
        found = []
        for first, last in zip((0, at[0]), at):
            fill(server, first, last, arguments.size, pause)
            found.append(reading(server, last))
        items = found[1]["items"] - found[0]["items"]
        slopes = {name: (found[1][name] - found[0][name]) / items for name in ("bytes", "index_bytes") if name in found[0]}
        reported = slopes.get("index_bytes")
        return {"bytes_per_item": slopes["bytes"], "reported": reported, "off": reported and abs(reported / slopes["bytes"] - 1), "readings": found}

    def of_pumice(server, items):
        until(server, lambda: server.stats()["index"]["mappings"] >= items * 0.999, f"{items} items on flash")
        time.sleep(2)
        return beside_tier(server)

    def of_memcached(server, items):
        """Once nearly all items are headers of what is on flash."""

        def settled():
            there, on_flash, _ = of_extstore(server)
            return there - on_flash <= items * SETTLED_MAX

        until(server, settled, f"{items} items on flash")
        time.sleep(2)
        there, on_flash, evictions = of_extstore(server)
        if evictions or there < items:
            raise Failure(f"memcached kept {there} of {items} items ({evictions} evicted): more -m or flash is needed")
        return {"items": on_flash, "bytes": server.memory()[0]}

    def mine(_):
        with pumice(comparison, arguments.tier, flash) as server:
            return readings(server, of_pumice, lambda: None)

    def theirs(_):
        with memcached(comparison, item_mib, options, flash) as server:

            def caught_up():
                there, on_flash, _ = of_extstore(server)
                return there - on_flash <= LOADING_MAX

            return readings(server, of_memcached, lambda: until(server, caught_up, "values on flash"))


    comparison.turns(mine, theirs)
    what = f"DRAM per item on flash against extstore, {arguments.size}-byte values"
    comparison.row(what, "bytes_per_item", "≤ 0.16 ×", "≤ 0.1 ×", "{:.2f} B".format)
    comparison.row("the same as Pumice's index reports it", "reported", "", "", "{:.2f} B".format)
    comparison.row("of it in bytes", "bytes_per_item", "≤ 16 B", "", "{:.2f} B".format)
    comparison.row("what its index reports is off by", "off", "≤ 5 %", "", percent)
    return comparison


# --- in DRAM ----------------------------------------------------------------------------------------------------------


@case(pairs=None, sizes=("50,100,300", "bytes of the values"), mib=(256, "MiB of either side"), quick={"mib": 96})
def dram_items(arguments):
    """What an item takes in DRAM, against memcached: small values, as many as fit.

    Each side gets twice as many items as it has room for, with keys of 10 bytes and values of each of `--sizes`, over one connection.
    Then its own statistics say how many it holds in DRAM, and of what memory. Pumice: `serve --dram`, whose DRAM tier has the
    segments, table and ghost queue that `/stats` reports; it holds copies of what is on flash, of which there is little here.
    memcached: `-m`, and its hash table beside. The overhead is what is left of the memory for each item without key and value:
    header, table, what alignment, slab classes and the ends of segments leave empty. One turn."""
    flash = 256
    sizes = [int(size) for size in arguments.sizes.split(",")]
    settings = {"value bytes": arguments.sizes, "key bytes": KEY_BYTES, "MiB": arguments.mib, "flash MiB": flash}
    comparison = Comparison(arguments, settings, peer=memcached_version())

    def of_pumice(server):
        stats = server.stats()
        return stats["tier"]["dram_items"], tier_bytes(stats)

    def of_memcached(server):
        stats = server.text_stats()
        return int(stats["curr_items"]), int(stats["limit_maxbytes"]) + int(stats["hash_bytes"])

    def turn(start, reading):
        def run(_):
            found = {}
            for size in sizes:
                with start() as server:
                    fill(server, 0, 2 * (arguments.mib << 20) // (KEY_BYTES + size + 40), size)
                    items, held = reading(server)
                found[str(size)] = held / items - KEY_BYTES - size
                text = f"{server.name}, values of {size} bytes: {items} items in {held / 2**20:.1f} MiB"
                comparison.notes.append(f"{text}: {found[str(size)]:.1f} bytes for each beside key and value")
            return found

        return run

    mine = turn(lambda: pumice(comparison, arguments.mib, flash, "--layout", "fifo"), of_pumice)
    theirs = turn(lambda: memcached(comparison, arguments.mib), of_memcached)
    comparison.turns(mine, theirs)
    for size in sizes:
        comparison.row(f"overhead of an item in DRAM, values of {size} bytes", str(size), "", "", "{:.1f} B".format)
    return comparison


# --- on flash ---------------------------------------------------------------------------------------------------------

# Values of sixteen lengths in turn, so that padding is what it is on average.
LENGTHS = 16


@case(pairs=None, flash=(1024, "MiB of flash"), size=(300, "bytes of key and value, on average"), quick={"flash": 96})
def flash_share(arguments):
    """How much of a full flash holds no bytes of objects: headers, padding, footers, checkpoints, the log, what is kept free.

    `serve` with the block size and the layout that it takes by itself gets 1.5 times the objects that the flash could hold if it had nothing
    else on it, with keys of 10 bytes and values of sixteen lengths in turn, over one connection. After it has come to rest, its
    index says how many objects are on flash. One turn, no peer."""
    values = range(arguments.size - KEY_BYTES - LENGTHS // 2, arguments.size - KEY_BYTES + LENGTHS // 2)
    mean = KEY_BYTES + sum(values) / LENGTHS
    settings = {"key bytes": KEY_BYTES, "value bytes": f"{values[0]} to {values[-1]}", "flash MiB": arguments.flash}
    comparison = Comparison(arguments, settings)

    def mine(_):
        dram = max(96, arguments.flash // 8)
        with pumice(comparison, dram, arguments.flash, "--index", "full") as server:
            items, step = int(1.5 * (arguments.flash << 20) / mean), 500
            for at in range(0, items, step):
                fill(server, at, at + step, values[at // step % LENGTHS])
            time.sleep(3)
            held = server.stats()["index"]["mappings"]
            return {"items": held, "no_objects": 1 - held * mean / (arguments.flash << 20)}

    comparison.turns(mine)
    comparison.row(f"flash that holds no object bytes, {arguments.size}-byte objects", "no_objects", "≤ 19 %", "14 %", percent)
    return comparison
