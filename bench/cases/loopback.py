"""Pumice against memcached over loopback: what DRAM holds, and what is on flash (extstore)."""

import contextlib
import os

from comparison import Comparison, case
from harness import Failure
from harness.client import Client
from tools import figures, load, memcached, memcached_version, points, pumice, thousands

CONNECTIONS = (32, "connections")


# --- what DRAM holds --------------------------------------------------------------------------------------------------

# All keys fit DRAM several times over on both sides.
FLASH_MIB = 4096
DRAM = {
    "seconds": 10, "dram": 512, "cgroup": True, "connections": CONNECTIONS, "keys": (500_000, "number of keys"),
    "warm_up": (2.0, "seconds before those that count"),
    "quick": {"seconds": 1, "warm_up": 0.3, "keys": 20_000, "pairs": 2},
}


def of_dram(arguments, mix, what, must, aim):
    """Both servers anew in every turn, every key set once, then `mix`."""
    item_mib = arguments.dram * 8 // 10
    keys = f"zipf:keys={arguments.keys},theta=0.9"
    settings = {"mix": mix, "keys": keys, "value bytes": 100, "connections": arguments.connections,
                "pipeline": arguments.pipeline, "DRAM MiB": arguments.dram, "memcached": f"-t 1 -m {item_mib}",
                "seconds": arguments.seconds, "warm-up": arguments.warm_up}
    comparison = Comparison(arguments, settings, peer=memcached_version())

    def measure(server):
        report = load(server, comparison.load_core, mix=mix, pipeline=arguments.pipeline, connections=arguments.connections,
                      keys=keys, value_size=100, preload=True, warm_up=arguments.warm_up, seconds=arguments.seconds)
        if report["hit_ratio"] not in (None, 1.0):
            raise Failure(f"{server.name}: hit ratio {report['hit_ratio']}, but all objects fit its DRAM")
        return figures(report, server)

    def mine(_):
        with comparison.group(arguments.dram, "pumice") as group:
            with pumice(comparison, arguments.dram, FLASH_MIB, group=group) as server:
                reads = server.stats()["device"]["reads"]
                found = measure(server)
                if server.stats()["device"]["reads"] > reads + 100:
                    raise Failure("pumice read from flash, but all objects fit its DRAM")
                return found

    def theirs(_):
        with comparison.group(arguments.dram, "peer") as group, memcached(comparison, item_mib, group=group) as server:
            return measure(server)

    comparison.turns(mine, theirs)
    comparison.row(f"{what}, against memcached: requests/s", "requests_per_second", must, aim, thousands,
                   cpu="server_cpu_us", client="client_idle")
    return comparison


@case(pipeline=(1, "requests under way on each"), **DRAM)
def dram_hits(arguments):
    """DRAM hits over loopback against memcached: 100-byte values, 32 connections, one request at a time on each.

    500,000 keys (16 bytes) with values of 100 bytes, set once, then gets of keys drawn by Zipf 0.9, closed loop. Both servers
    have one worker thread on the same core, and a memory cgroup of 512 MiB; the load generator, `pumice-bench memcached`,
    has one thread on another core, and verifies every value. Both start anew in every turn.

    Pumice: `serve --threads 1 --dram 512MiB --flash-size 4GiB`, all else by default; it fails if flash is read.
    memcached: `-t 1 -m 409` (0.8 of the cgroup: hash table and connections come on top), all else by default, no flash."""
    return of_dram(arguments, "get", "DRAM hits of 100 B, 32 connections", "≥ 0.9 ×", "≥ 1.2 ×")


@case(pipeline=(16, "requests under way on each"), **DRAM)
def dram_hits_pipelined(arguments):
    """DRAM hits over loopback against memcached, 16 requests deep on each of 32 connections; all else as in dram-hits."""
    return of_dram(arguments, "get", "DRAM hits of 100 B, 32 connections, 16 deep", "≥ 1.0 ×", "≥ 2 ×")


@case(pipeline=(1, "requests under way on each"), **DRAM)
def dram_sets(arguments):
    """Sets of 100-byte values over loopback against memcached: 32 connections, one request at a time on each.

    Settings as in dram-hits; the requests are sets of keys drawn by Zipf 0.9 from 500,000, all set once before. memcached
    keeps them in DRAM alone. Pumice runs as it does by default: every set also goes to a block for flash, the blocks are
    written, and what flash held of the key before is logged as void."""
    return of_dram(arguments, "set", "sets of 100 B, 32 connections", "≥ 0.8 ×", "≥ 1.2 ×")


# --- what is on flash -------------------------------------------------------------------------------------------------

# What memcached needs beside items: hash table, write buffers, connections, and some page cache for its buffered I/O.
EXTSTORE_REST_MIB = 64
VALUE_SIZES = "600-4096"
MEAN_VALUE_BYTES = (600 + 4096) // 2
SEED = 42
FLASH = {
    "seconds": 10, "dram": 256, "cgroup": True, "connections": CONNECTIONS,
    "flash": (None, "MiB of flash of each side (10 x DRAM)", int),
    "warm_up": (10.0, "seconds before those that count"), "fill_rate": (20_000, "sets per second of the fill"),
    "ext_threads": (8, "extstore's I/O threads"), "ext_options": ("", "more options of memcached's -o, with commas"),
    "quick": {"seconds": 2, "warm_up": 1, "pairs": 2, "dram": 112, "fill_rate": 60_000},
}
EXTSTORE_COUNTS = ("curr_items", "evictions", "extstore_objects_used", "extstore_pages_free", "extstore_bytes_used",
                   "get_extstore", "miss_from_extstore", "recache_from_extstore", "extstore_bytes_written")


class FlashRow:
    """Settings and turns that the cases of flash share."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.flash = arguments.flash or 10 * arguments.dram
        self.count = 8 * arguments.dram * 2**20 // MEAN_VALUE_BYTES
        self.item_mib = arguments.dram - EXTSTORE_REST_MIB
        self.options = [f"ext_threads={arguments.ext_threads}", "ext_wbuf_size=8"]
        self.options += [option for option in arguments.ext_options.split(",") if option]
        self.workload = {"connections": arguments.connections, "value_size": VALUE_SIZES}
        self.keys = f"zipf:keys={self.count},theta=0.9"
        settings = {"DRAM MiB": arguments.dram, "flash MiB": self.flash, "keys": self.keys, "value bytes": VALUE_SIZES,
                    "fill rate": arguments.fill_rate, "connections": arguments.connections,
                    "memcached": f"-t 1 -m {self.item_mib} -o {','.join(self.options)}", "seconds": arguments.seconds,
                    "warm-up": arguments.warm_up}
        self.comparison = Comparison(arguments, settings, peer=memcached_version())

    @contextlib.contextmanager
    def filled(self, side):
        """A server of one side in which every key was set once."""
        comparison, dram = self.comparison, self.arguments.dram
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(comparison.group(dram, side))
            if side == "pumice":
                server = stack.enter_context(pumice(comparison, dram, self.flash, group=group))
            else:
                peer = memcached(comparison, self.item_mib, self.options, self.flash, group=group)
                server = stack.enter_context(peer)
                reserve_headers(server, self.count)
            load(server, comparison.load_core, mix="set", keys=self.key_list(), format="csv", columns="id=1",
                 rate=self.arguments.fill_rate, requests=self.count, warm_up=0, **self.workload)
            yield server

    def look_aside(self, server, **settings):
        """Load on a filled server; a miss is answered by a set."""
        return load(server, self.comparison.load_core, mix="look-aside", warm_up=self.arguments.warm_up, keys=self.keys,
                    seconds=self.arguments.seconds, **self.workload, **settings)

    def turns(self, measure):
        def side(name):
            def turn(number):
                with self.filled(name) as server:
                    report = measure(server, name, number)
                    stats = server.text_stats() if name == "peer" else {}
                    return {**figures(report, server), "extstore": {key: int(stats[key]) for key in EXTSTORE_COUNTS if key in stats}}

            return turn

        self.comparison.turns(side("pumice"), side("peer"))

    def key_list(self):
        """A trace of every key once, the least popular first: the preload of the load generator goes as fast as the server
        takes it, and extstore evicts what it cannot write in time."""
        path = self.comparison.path(f"keys-{self.count}.csv")
        if not os.path.exists(path):
            with open(path + ".new", "w") as file:
                base = mix64(SEED)
                for number in range(self.count - 1, -1, -1):
                    key = mix64(number + base)
                    file.write(f"{key - (1 << 64) if key >> 63 else key}\n")
            os.rename(path + ".new", path)
        return path


def mix64(number):
    """How a generator of traces makes keys of ranks, for its default seed."""
    mask = (1 << 64) - 1
    z = (number + 0x9E3779B97F4A7C15) & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def reserve_headers(server, count):
    """Gives memcached's slab class of headers the memory for `count` items on flash, as hours of load would: sets that many
    tiny items, and deletes them. Without this a fresh extstore has all its memory in classes of values when headers are
    first needed, and its page mover, which moves one page a second, evicts most of what was written to flash meanwhile."""
    # 48 bytes of header, 8 of version, key, value and line end: the class of 96 bytes, where an extstore header (12 bytes
    # instead of the value) of a 16-byte key is.
    client = Client(server.address)
    for command in (b"set r%09d 0 0 16 noreply\r\nxxxxxxxxxxxxxxxx\r\n", b"delete r%09d noreply\r\n"):
        client.send_numbered(command, 0, count)
    client.close()


@case(**FLASH)
def flash_hits(arguments):
    """Flash hits over loopback against memcached's extstore: requests/s and hit ratio.

    Data is 8 x DRAM: values of 600 B to 4 KiB (mean 2.3 KiB), keys of 16 bytes, drawn by Zipf 0.9. Flash is 10 x DRAM, a file
    on the same file system. Each turn starts a server anew, sets every key once, least popular first, at 20,000 a second, looks
    aside (a miss is answered by a set) for the warm-up, and then for the time that counts: 32 connections, closed loop, one
    request at a time on each. Both servers have one core for all their threads, and a memory cgroup of DRAM bytes that includes
    the page cache; the load generator has one thread on another core and verifies every value.

    Pumice: `serve --threads 1 --dram DRAM --flash-size FLASH`, all else by default.
    memcached: `-t 1 -m DRAM-64 -o ext_path=FILE:FLASH,ext_threads=8,ext_wbuf_size=8`, all else by default (items over 512 B go
    to flash, slab automove and LRU maintainer are on). `-m` counts items only: headers of items on flash are items, but the
    hash table, write buffers, connections and the page cache of its buffered I/O need the rest of the cgroup. An I/O thread of
    extstore has one read under way, so 8 of them. Before it is filled, its slab class of headers gets its memory, and it is
    filled no faster than it writes: a fresh extstore under full load evicts most of what it has."""
    row = FlashRow(arguments)
    row.turns(lambda server, *_: row.look_aside(server))
    what = "flash hits against extstore"
    row.comparison.row(f"{what}: requests/s", "requests_per_second", "≥ 1.2 ×", "≥ 2 ×", thousands, cpu="server_cpu_us",
                       client="client_idle")
    row.comparison.row(f"{what}: hit ratio", "hit_ratio", "not lower", "", points)
    return row.comparison


@case(rate=(None, "requests per second; without it a share of the slower side's peak", float),
      share=(0.7, "share of the peak"), **FLASH)
def flash_latency(arguments):
    """p99 latency of flash hits over loopback against memcached's extstore, at 70 % of the slower side's peak, open loop.

    Servers, budget and workload are those of flash-hits. First each side's peak is measured once, closed loop; the rate is 70 %
    of the smaller (or --rate). Then both sides get that rate in turns: arrivals by a schedule, whatever the server does, and
    each latency counts from when its request was due. Every turn starts a server anew, sets every key once and warms up at the
    rate. A turn in which the schedule was not kept at the end is noted."""
    row = FlashRow(arguments)
    comparison, rate = row.comparison, arguments.rate
    if rate is None:
        peaks = {}
        for name in comparison.sides:
            with row.filled(name) as server:
                peaks[name] = row.look_aside(server)["requests_per_second"]
            print(f"  peak of {comparison.sides[name]}: {peaks[name]:.0f} requests/s", flush=True)
        comparison.settings["peaks"] = peaks
        rate = min(peaks.values()) * arguments.share
    comparison.settings["rate"] = rate = round(rate)
    print(f"  rate: {rate} requests/s", flush=True)

    def measure(server, name, number):
        report = row.look_aside(server, rate=rate)
        if report["arrivals"]["behind_seconds"] > 0.01:
            comparison.notes.append(f"{name}, turn {number + 1}: {report['arrivals']['behind_seconds']:.2f} s behind the schedule at the end")
        return report

    row.turns(measure)
    comparison.row(f"p99 of flash hits against extstore at {rate}/s ({arguments.share * 100:.0f} % of the slower peak), open loop",
                   "p99_us", "≤ 1.0 ×", "≤ 0.5 ×", "{:.0f} us".format, cpu="server_cpu_us", client="client_idle")
    return comparison
