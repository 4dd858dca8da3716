#!/usr/bin/env python3
"""Flash hits over loopback against memcached's extstore: requests/s and hit ratio.

    python3 bench/flash_hits.py [--pairs 5] [--seconds 10] [--dram 256] [--flash 2560]

Data is 8 x DRAM: values of 600 B to 4 KiB (mean 2.3 KiB), keys of 16 bytes, drawn by Zipf 0.9. Flash is 10 x DRAM, a file
on the same file system. Each turn starts a server anew, sets every key once, least popular first, at 20 000 a second, looks
aside (a miss is answered by a set) for the warm-up, and then for the time that counts: 32 connections, closed loop, one
request at a time on each. Both servers have one core for all their threads, and a memory cgroup of DRAM bytes that includes
the page cache; the load generator has one thread on another core and verifies every value.

Pumice: `serve --threads 1 --dram DRAM --flash-size FLASH`, all else by default.
memcached: `-t 1 -m DRAM-64 -o ext_path=FILE:FLASH,ext_threads=8,ext_wbuf_size=8`, all else by default (items over 512 B go
to flash, slab automove and LRU maintainer are on). `-m` counts items only: headers of items on flash are items, but the
hash table, write buffers, connections and the page cache of its buffered I/O need the rest of the cgroup. An I/O thread of
extstore has one read under way, so 8 of them; --ext-threads and --ext-options change that. Before it is filled, its slab
class of headers gets its memory, and it is filled no faster than it writes: a fresh extstore under full load evicts most of
what it has.
"""

from lib import compare
from lib.compare import thousands
from lib.flash import FlashRow, parser
from lib.load import figures


def extstore(server):
    stats = server.stats()
    names = ("curr_items", "evictions", "extstore_objects_used", "extstore_pages_free", "extstore_bytes_used",
             "get_extstore", "miss_from_extstore", "recache_from_extstore", "extstore_bytes_written")  # fmt: skip
    return {name: int(stats[name]) for name in names if name in stats}


def main():
    row = FlashRow("flash-hits", parser(__doc__).parse_args(), {})
    comparison = row.comparison

    def side(name):
        def turn(_):
            with row.filled(name) as server:
                report = row.look_aside(server, duration=row.arguments.seconds)
                more = {"extstore": extstore(server)} if name == "peer" else {}
                return {**figures(report, server), **more}

        return turn

    def show(run):
        return (
            f"{thousands(run['requests_per_second'])}, hit ratio {run['hit_ratio']:.4f}, {run['server_cpu_us']:.1f} us CPU each, "
            f"server core {run['server_cores'] * 100:.0f} % busy, p99 {run['p99_us']:.0f} us, client idle "
            f"{run['client_idle'] * 100:.0f} %, {run['memory']['resident_bytes'] / 2**20:.0f} MiB resident"
        )

    comparison.turns(side("pumice"), side("peer"), show)
    what = "flash hits against extstore"
    comparison.row(
        f"{what}: requests/s", "requests_per_second", "≥ 1.2 ×", "≥ 2 ×", thousands, cpu="server_cpu_us",
        client="client_idle",
    )  # fmt: skip
    comparison.row(f"{what}: hit ratio", "hit_ratio", "not lower", "", lambda value: f"{value:.4f}")
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
