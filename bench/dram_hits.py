#!/usr/bin/env python3
"""DRAM hits over loopback against memcached: 100-byte values, 32 connections, one request at a time on each.

    python3 bench/dram_hits.py [--pairs 5] [--seconds 10] [--pipeline 1]

500 000 keys (16 bytes) with values of 100 bytes, set once, then gets of keys drawn by Zipf 0.9, closed loop. Both servers
have one worker thread on the same core, and a memory cgroup of 512 MiB; the load generator, `pumice bench memcached`,
has one thread on another core, and verifies every value. Both start anew in every turn.

Pumice: `serve --threads 1 --dram 512MiB --flash-size 4GiB`, all else by default; the script fails if it reads flash.
memcached: `-t 1 -m 409` (0.8 of the cgroup: hash table and connections come on top), all else by default, no flash.

`dram_hits_pipelined.py` is the same, 16 deep.
"""

from lib import compare, dram


def main():
    return dram.run(
        "dram-hits",
        __doc__,
        mix="get",
        pipeline=1,
        what="DRAM hits of 100 B, 32 connections, against memcached: requests/s",
        must="≥ 0.9 ×",
        aim="≥ 1.2 ×",
    )


if __name__ == "__main__":
    compare.main(main)
