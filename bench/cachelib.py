#!/usr/bin/env python3
"""Writes the requests of a workload of CacheLib's CacheBench as a trace, csv with the columns `id,size,op`.

    python3 bench/cachelib.py CONFIG OUT --keys N --requests N [--seed N]

CONFIG is a CacheBench config.json; the files that it names stand beside it, plain or compressed with zstd. Popularity, pools, sizes and the ratios of
get, set, del, lone get and lone set are drawn as CacheBench's online generator does: keys of a sample are cut, from the most popular on, into 2048
groups of equal weight; a draw is a group, and any key of it. Ids below --keys are shared out to the pools, those of lone keys are above. Number of
operations, threads, delays, lengths of keys and `cache_config` are not read; other ratios must be 0."""

import argparse
import bisect
import itertools
import json
import os
import random
import subprocess

GROUPS = 2048
# Sizes of a pool: that of a key is the entry of its number modulo this.
ENTRIES = 32768
RATIOS = {"getRatio": ("get", False), "loneGetRatio": ("get", True), "setRatio": ("set", False), "loneSetRatio": ("set", True), "delRatio": ("delete", False)}


def read(path):
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    return json.loads(subprocess.run(["zstd", "-dcq", path + ".zst"], check=True, stdout=subprocess.PIPE).stdout)


def draw_sizes(sizes, weights, rng):
    """A table of sizes: of points where there is a weight for each, else anywhere between two edges."""
    if len(sizes) == len(weights):
        return rng.choices([int(size) for size in sizes], weights, k=ENTRIES)
    intervals = rng.choices(list(itertools.pairwise(sizes)), weights, k=ENTRIES)
    return [int(low + rng.random() * (high - low)) for low, high in intervals]


class Pool:
    """The keys from `first` on, and what is drawn of them."""

    def __init__(self, spec, folder, first, keys, rng):
        for ratio in ("addChainedRatio", "updateRatio", "couldExistRatio"):
            if spec.get(ratio, 0) > 0:
                raise SystemExit(f"{ratio}: requests of this kind cannot be written")
        sample, sizes = (read(os.path.join(folder, spec[name])) if name in spec else spec for name in ("popDistFile", "valSizeDistFile"))
        self.first, self.rng = first, rng
        self.sizes = draw_sizes(sizes["valSizeRange"], sizes["valSizeRangeProbability"], rng)
        self.ops = list(RATIOS.values())
        self.op_weights = list(itertools.accumulate(spec.get(ratio, 0) for ratio in RATIOS))
        self.set_groups(sample["popularityBuckets"], sample["popularityWeights"], keys, spec.get("useLegacyKeyGen", False))

    def set_groups(self, buckets, weights, keys, is_legacy):
        ends, shares = list(itertools.accumulate(buckets)), list(itertools.accumulate(weights))
        sampled, total = ends[-1], shares[-1]

        def before(group):
            """Keys before a group."""
            if group == GROUPS:
                return sampled
            point = group / GROUPS * total
            at = min(bisect.bisect_right(shares, point), len(shares) - 1)
            share = (point - (shares[at] - weights[at])) / weights[at]
            return min(ends[at] - buckets[at] + min(int(share * buckets[at]), max(buckets[at] - 1, 0)), sampled - 1)

        # Each sampled key is one key of a pool, or as many as the pool is larger.
        self.spread = (keys, sampled) if is_legacy else (1, 1)
        scale = (1, 1) if is_legacy else (keys, sampled)
        self.groups = []
        for group in range(GROUPS):
            first = before(group)
            end = max(before(group + 1), first + 1)
            first, end = (number * scale[0] // scale[1] for number in (first, end))
            self.groups.append((first, max(end - first, 1)))

    def draw(self):
        """The number of a key, its size, the operation, and whether the key is a lone one."""
        first, count = self.groups[int(self.rng.random() * GROUPS)]
        number = self.first + (first + int(self.rng.random() * count)) * self.spread[0] // self.spread[1]
        op, is_lone = self.rng.choices(self.ops, cum_weights=self.op_weights)[0]
        return number, self.sizes[number % ENTRIES], op, is_lone


def write(config, out, keys, requests, seed):
    rng, test = random.Random(seed), read(config)["test_config"]
    key_shares = list(itertools.accumulate(test.get("keyPoolDistribution", [1.0])))
    specs = test.get("poolDistributions", [test])
    pools, first = [], 0
    for index, share in enumerate(key_shares):
        end = int(keys * share / key_shares[-1])
        pools.append(Pool(specs[index % len(specs)], os.path.dirname(config), first, end - first, rng))
        first = end
    pool_weights = list(itertools.accumulate(test.get("opPoolDistribution", [1.0])))
    lone = keys
    with open(out, "w", encoding="ascii") as file:
        file.write("id,size,op\n")
        for _ in range(requests):
            pool = pools[0] if len(pools) == 1 else rng.choices(pools, cum_weights=pool_weights)[0]
            number, size, op, is_lone = pool.draw()
            if is_lone:
                number, lone = lone, lone + 1
            file.write(f"{number},{size},{op}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("out")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    write(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
