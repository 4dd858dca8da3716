#!/usr/bin/env python3
"""Why SIPQ with a long queue of keys writes 1.2 times on one trace and 4 times on another: it has two stable states.

    python3 bench/sipq_states.py [--requests 400000]

A model of layout `sipq` with policy lru, of objects of one size: flash of 200 blocks of 40 objects, written in a circle; an LRU
queue of as many keys as 0.9 of that; when the oldest block is reclaimed, what of it is in the queue is written again. Keys are
drawn after Zipf. Two runs for each distribution: from an empty cache, and with a queue of 0.99 for the first 3/8 of the requests.
Shown are bytes written / bytes inserted, and the hit ratio, of the last half. Nothing is timed: the figures are always the same.
"""

import argparse
import bisect
import itertools
import random
from collections import OrderedDict, deque

from lib import machine

BLOCKS, BLOCK_OBJECTS, RESERVED_BLOCKS = 200, 40, 2
DISTRIBUTIONS = [(200_000, 0.3), (60_000, 0.5), (60_000, 0.8), (30_000, 0.9), (30_000, 1.0)]


def zipf(keys, theta):
    weights = list(itertools.accumulate(1 / (rank + 1) ** theta for rank in range(keys)))
    source = random.Random(1)
    while True:
        yield bisect.bisect(weights, source.random() * weights[-1])


class Sipq:
    """The layout: which block has an object, and the queue of keys."""

    def __init__(self):
        self.queue = OrderedDict()
        self.sealed = deque()
        self.open = []
        # The block that has the live copy of a key, by its number.
        self.block_of = {}
        self.blocks = 0
        self.written = 0

    def append(self, key):
        self.open.append(key)
        self.block_of[key] = self.blocks
        self.written += 1
        if len(self.open) == BLOCK_OBJECTS:
            self.sealed.append((self.blocks, self.open))
            self.blocks += 1
            self.open = []

    def reclaim(self):
        while len(self.sealed) > BLOCKS - RESERVED_BLOCKS:
            number, keys = self.sealed.popleft()
            live = [key for key in keys if self.block_of.get(key) == number]
            for key in live:
                del self.block_of[key]
            for key in live:
                if key in self.queue:
                    self.append(key)

    def get(self, key, queue_max):
        """Whether it is a hit; a miss is followed by a set."""
        hit = key in self.block_of
        self.queue[key] = True
        self.queue.move_to_end(key)
        if not hit:
            self.append(key)
            self.reclaim()
        while len(self.queue) > queue_max:
            self.queue.popitem(last=False)
        return hit


def run(keys, theta, requests, share_at):
    sipq, source = Sipq(), zipf(keys, theta)
    objects = (BLOCKS - RESERVED_BLOCKS) * BLOCK_OBJECTS
    hits = written = 0
    for at in range(requests):
        if at == requests // 2:
            hits, written = 0, sipq.written
        hits += sipq.get(next(source), share_at(at / requests) * objects)
    counted = requests - requests // 2
    return (sipq.written - written) / (counted - hits), hits / counted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400_000, help="requests of each run (%(default)s)")
    arguments = parser.parse_args()
    commit = machine.commit()
    print(f"sipq-states, a model; commit {commit['commit']}{' dirty' if commit['dirty'] else ''}")
    print("| keys | Zipf | from empty | after a queue of 0.99 |\n| ---: | ---: | --- | --- |")
    for keys, theta in DISTRIBUTIONS:
        cells = []
        for share_at in (lambda _: 0.9, lambda at: 0.99 if at < 3 / 8 else 0.9):
            written, hit = run(keys, theta, arguments.requests, share_at)
            cells.append(f"{written:.2f} ×, {hit * 100:.1f} % hit")
        print(f"| {keys:,} | {theta} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
