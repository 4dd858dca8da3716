"""Layout exact against libCacheSim, an independent simulator, on the same traces: the miss ratios agree to six digits.

Compared are fifo, lru, SLRU as lists (slru-list-L, there n-seg=L) and GDSF without a cap, in objects and in bytes, on traces made
here from a seed and on the traces of ../shared/traces (or PUMICE_TRACES), where it is: all with --full, else those below 110,000
bytes. An object has the size of its first request. Wants libcachesim 0.3.5 from PyPI."""

import glob
import lzma
import os
import random
import struct
import subprocess

import pytest

from harness import expect_equal
from harness.machine import BINARY, TRACES, run_json, trace_format

REQUESTS = 200_000
OBJECTS = 20_000
SHARES = [0.01, 0.1, 0.4]
# A record of format oracle-general: time, key, size, and the next access, which none of these policies looks at.
RECORD = struct.Struct("<IQIq")
# The name here, the one there, and its parameters.
POLICIES = [
    ("fifo", "FIFO", ""), ("lru", "LRU", ""), ("slru-list-3", "SLRU", "n-seg=3"), ("slru-list-4", "SLRU", "n-seg=4"), ("gdsf", "GDSF", ""),
]
# Buckets of the other simulator's hash table, as a power of two; the default takes 128 MiB for every cache.
HASH_POWER = 16


def zipf_keys(rng, exponent):
    weights = [1 / (rank + 1) ** exponent for rank in range(OBJECTS)]
    keys = list(range(OBJECTS))
    rng.shuffle(keys)
    return rng.choices(keys, weights, k=REQUESTS)


def generated(name, seed):
    """Requests of (key, size): equal sizes, even ones, and ones over five orders of magnitude under a drift."""
    rng = random.Random(seed)
    if name == "one size":
        return [(key, 1) for key in zipf_keys(rng, 0.9)]
    if name == "even sizes":
        sizes = [rng.randint(100, 2000) for _ in range(OBJECTS)]
        return [(key, sizes[key]) for key in zipf_keys(rng, 0.8)]
    sizes = [int(10 ** rng.uniform(1, 6)) for _ in range(2 * OBJECTS)]
    drifting = [key + at * OBJECTS // REQUESTS for at, key in enumerate(zipf_keys(rng, 1.0))]
    return [(key, sizes[key]) for key in drifting]


def adaptsize(path):
    with lzma.open(path, "rt") as lines:
        for line in lines:
            _time, key, size = line.split()[:3]
            yield int(key), max(1, int(size))


def keys_be_u32(path):
    with lzma.open(path) as file:
        for (key,) in struct.iter_unpack(">I", file.read()):
            yield key, 1


# Two that are read here, without the program's readers.
PLAIN = {"adaptsize-bu98.request.trace.xz": adaptsize, "cache2k-web07.trace.xz": keys_be_u32}


def converted(source, path):
    form = trace_format(os.path.basename(source))
    subprocess.run([BINARY, "trace", "convert", source, path, "--to", "oracle-general", "--format", form], check=True)
    with open(path, "rb") as file:
        while part := file.read(RECORD.size << 14):
            for _time, key, size, _next in RECORD.iter_unpack(part):
                yield key, max(1, size)


def write_oracle_general(path, requests):
    """Writes a trace that both read; returns its footprint. An object has the size of its first request."""
    first = {}
    with open(path, "wb") as file:
        for at, (key, size) in enumerate(requests):
            size = first.setdefault(key, size)
            file.write(RECORD.pack(at // 1000, key + 1 & (1 << 64) - 1, size, -2))
    return sum(first.values())


def ours(path, policy, capacity):
    command = [BINARY, "replay", path, "--format", "oracle-general", "--layout", "exact", "--policy", policy]
    report = run_json([*command, "--flash-size", capacity, "--json"])
    return [f"{1 - report[ratio]:.6f}" for ratio in ("object_hit_ratio", "byte_hit_ratio")]


def theirs(path, algorithm, parameters, capacity):
    from libcachesim import libcachesim_python as core

    settings = core.CommonCacheParams(capacity, hashpower=HASH_POWER, consider_obj_metadata=False)
    cache = getattr(core, f"{algorithm}_init")(settings, parameters)
    reading = core.ReaderInitParam()
    reading.ignore_size_zero_req = False
    reader = core.Reader(path, core.TraceType.ORACLE_GENERAL_TRACE, reading)
    return [f"{ratio:.6f}" for ratio in core.c_process_trace(cache, reader, 0, -1)]


def compare(directory, requests):
    path = os.path.join(directory, "trace.oracleGeneral")
    footprint = write_oracle_general(path, requests)
    for share in SHARES:
        capacity = max(1, int(footprint * share))
        for policy, algorithm, parameters in POLICIES:
            seen, expected = ours(path, policy, capacity), theirs(path, algorithm, parameters, capacity)
            print(f"{share:4.0%} {policy:12} {' '.join(seen)}  libCacheSim {' '.join(expected)}", flush=True)
            expect_equal(seen, expected, f"miss ratios of {policy} at {share:.0%}")


@pytest.mark.parametrize("name", ["one size", "even sizes", "all sizes, drifting"])
def test_generated_traces(directory, pytestconfig, name):
    compare(directory, generated(name, pytestconfig.option.seed or 1))


RECORDED = [path for kind in ("object", "kv", "block", "dedup") for path in sorted(glob.glob(os.path.join(TRACES, kind, "*")))]


@pytest.mark.parametrize("path", RECORDED, ids=os.path.basename)
def test_recorded_traces(directory, size, path):
    """But for two these are read as `pumice trace convert` writes them."""
    if os.path.getsize(path) > size("trace_bytes", 110_000, 1 << 40):
        pytest.skip("a long one: --full")
    read = PLAIN.get(os.path.basename(path))
    compare(directory, read(path) if read else converted(path, os.path.join(directory, "converted")))
