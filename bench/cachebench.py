#!/usr/bin/env python3
"""A trace in csv after a workload of CacheLib's CacheBench: popularity, sizes and operations of its config.json, by pool.

    python3 bench/cachebench.py distributions/cachelib/cdn/config.json OUT.csv --keys 1500000 --requests 6000000
"""

import argparse
import atexit
import itertools
import json
import os
import random
import shutil
import subprocess
import tempfile

# Entries of a pool's table of sizes, which a key has by its number, as in CacheBench.
SIZES = 32_768
OPS = {"getRatio": ("get", False), "loneGetRatio": ("get", True), "setRatio": ("set", False), "loneSetRatio": ("set", True), "delRatio": ("delete", False)}


def read(path):
    """A file of JSON, which may be there compressed instead."""
    if os.path.exists(path):
        with open(path) as file:
            return json.load(file)
    return json.loads(subprocess.run(["zstd", "-dcq", f"{path}.zst"], stdout=subprocess.PIPE, check=True).stdout)


class Pool:
    """Keys `first` to `first + keys`."""

    def __init__(self, spec, folder, first, keys, draw):
        popularity, sizes = (read(os.path.join(folder, spec[file])) for file in ("popDistFile", "valSizeDistFile"))
        buckets = popularity["popularityBuckets"]
        ends = list(itertools.accumulate(buckets))
        self.scale = keys / ends[-1]
        self.buckets = [(first + (end - count) * self.scale, count * self.scale) for end, count in zip(ends, buckets)]
        self.weights = list(itertools.accumulate(popularity["popularityWeights"]))
        self.sizes = draw.choices([int(size) for size in sizes["valSizeRange"]], sizes["valSizeRangeProbability"], k=SIZES)
        self.ops, self.ratios = zip(*((op, spec.get(ratio, 0.0)) for ratio, op in OPS.items()))

    def requests(self, draw):
        while True:
            ops = draw.choices(self.ops, self.ratios, k=1000)
            for (op, is_lone), (start, keys) in zip(ops, draw.choices(self.buckets, cum_weights=self.weights, k=1000)):
                yield int(start + draw.random() * keys), op, is_lone


def write(config, out, keys, requests, seed=42):
    """Writes a trace; keys that occur once are numbered from `keys` on."""
    test, folder, draw = read(config)["test_config"], os.path.dirname(config), random.Random(seed)
    shares = test.get("keyPoolDistribution", [1.0])
    ends = [int(keys * share / sum(shares)) for share in itertools.accumulate(shares)]
    specs = test.get("poolDistributions", [test])
    pools = [Pool(spec, folder, end, after - end, draw) for spec, end, after in zip(specs * (len(shares) // len(specs)), [0, *ends], ends)]
    drawn, lone = [pool.requests(draw) for pool in pools], itertools.count(keys)
    with open(out, "w") as file:
        file.write("time,id,size,op\n")
        for time in range(requests):
            of = draw.choices(range(len(pools)), test.get("opPoolDistribution"))[0] if len(pools) > 1 else 0
            key, op, is_lone = next(drawn[of])
            file.write(f"{time},{next(lone) if is_lone else key},{pools[of].sizes[key % SIZES]},{op}\n")
    return out


def trace(config, **what):
    """The file of a trace that is there as long as this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return write(config, os.path.join(folder, f"{os.path.basename(os.path.dirname(config))}.csv"), **what)


if __name__ == "__main__":
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("config")
    form.add_argument("out")
    for name, default in (("keys", None), ("requests", None), ("seed", 42)):
        form.add_argument(f"--{name}", type=int, default=default, required=default is None)
    write(**vars(form.parse_args()))
