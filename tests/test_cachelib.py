"""`bench/cachelib.py` draws what a configuration of CacheLib's CacheBench says."""

import collections
import json
import pathlib
import subprocess
import sys

from harness import expect, expect_equal
from harness.machine import BINARY, ROOT

REQUESTS = 40_000


def written(directory, pool, keys, **test):
    """Lines of the trace of one pool, or of those in `test`: numbers, sizes, operations."""
    place = pathlib.Path(directory)
    (place / "pop.json").write_text(json.dumps({"popularityBuckets": [10, 90, 900], "popularityWeights": [50, 30, 20]}))
    (place / "sizes.json").write_text(json.dumps({"valSizeRange": [100, 1000], "valSizeRangeProbability": [3, 1]}))
    files = {"popDistFile": "pop.json", "valSizeDistFile": "sizes.json"}
    config = {"test_config": files | pool | test}
    (place / "config.json").write_text(json.dumps(config))
    words = [place / "config.json", place / "out.csv", "--keys", keys, "--requests", REQUESTS]
    subprocess.run([sys.executable, pathlib.Path(ROOT, "bench", "cachelib.py"), *map(str, words)], check=True)
    head, *lines = (place / "out.csv").read_text().splitlines()
    expect_equal((head, len(lines)), ("id,size,op", REQUESTS), "head and lines")
    return [(int(number), int(size), op) for number, size, op in (line.split(",") for line in lines)]


def share(lines, matches):
    return sum(map(matches, lines)) / len(lines)


def expect_share(found, wanted, what):
    expect(abs(found - wanted) < 0.015, f"{what}: {wanted}", found)


def test_popularity_sizes_and_ratios_are_those_of_the_files(directory):
    lines = written(directory, {"getRatio": 0.7, "loneGetRatio": 0.1, "setRatio": 0.15, "delRatio": 0.05}, 10_000)
    own = [line for line in lines if line[0] < 10_000]
    expect_share(1 - len(own) / REQUESTS, 0.1, "lone keys")
    # Ten times as many keys as in the sample: each has become ten.
    for end, wanted in ((100, 0.5), (1000, 0.8), (10_000, 1.0)):
        expect_share(share(own, lambda line, end=end: line[0] < end), wanted, f"keys below {end}")
    for op, wanted in (("get", 0.8), ("set", 0.15), ("delete", 0.05)):
        expect_share(share(lines, lambda line, op=op: line[2] == op), wanted, op)
    lone = collections.Counter(line[0] for line in lines if line[0] >= 10_000)
    expect_equal(set(lone.values()), {1}, "how often a lone key comes")
    sizes = collections.defaultdict(set)
    for number, size, _ in lines:
        sizes[number].add(size)
    expect(all(len(own) == 1 for own in sizes.values()), "one size for each key", "more")
    expect_share(share(list(sizes.values()), lambda own: own == {100}), 0.75, "keys of 100 bytes")
    out = pathlib.Path(directory, "out.csv")
    said = json.loads(subprocess.run([BINARY, "trace", "info", out, "--json"], capture_output=True, text=True, check=True).stdout)
    expect_equal(said["requests"], REQUESTS, "requests that `pumice trace info` finds")


def test_pools_have_keys_and_requests_of_their_own(directory):
    pools = [{"getRatio": 1, "popDistFile": "pop.json", "valSizeDistFile": "sizes.json", "useLegacyKeyGen": True}] * 2
    lines = written(directory, {}, 2000, keyPoolDistribution=[0.5, 0.5], opPoolDistribution=[0.9, 0.1], poolDistributions=pools)
    first = [line for line in lines if line[0] < 1000]
    expect_share(len(first) / REQUESTS, 0.9, "requests of the first pool")
    expect_share(share(first, lambda line: line[0] < 10), 0.5, "its ten most popular keys")
