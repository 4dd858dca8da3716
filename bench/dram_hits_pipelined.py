#!/usr/bin/env python3
"""DRAM hits over loopback against memcached, 16 requests deep on each of 32 connections.

    python3 bench/dram_hits_pipelined.py [--pairs 5] [--seconds 10] [--pipeline 16]

As `dram_hits.py`, whose text has the settings; only the depth differs.
"""

from lib import compare, dram


def main():
    return dram.run(
        "dram-hits-pipelined",
        __doc__,
        mix="get",
        pipeline=16,
        what="DRAM hits of 100 B, 32 connections, 16 deep, against memcached: requests/s",
        must="≥ 1.0 ×",
        aim="≥ 2 ×",
    )


if __name__ == "__main__":
    compare.main(main)
