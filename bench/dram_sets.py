#!/usr/bin/env python3
"""Sets of 100-byte values over loopback against memcached: 32 connections, one request at a time on each.

    python3 bench/dram_sets.py [--pairs 5] [--seconds 10] [--pipeline 1]

Settings as `dram_hits.py` has them; the requests are sets of keys drawn by Zipf 0.9 from 500 000, all set once before.
memcached keeps them in DRAM alone. Pumice runs as it does by default: every set also goes to a block for flash, the
blocks are written, and what flash held of the key before is logged as void.
"""

from lib import compare, dram


def main():
    return dram.run(
        "dram-sets",
        __doc__,
        mix="set",
        pipeline=1,
        what="sets of 100 B, 32 connections, against memcached: requests/s",
        must="≥ 0.8 ×",
        aim="≥ 1.2 ×",
    )


if __name__ == "__main__":
    compare.main(main)
