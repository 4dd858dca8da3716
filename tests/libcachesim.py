#!/usr/bin/env python3
"""Layout exact against libCacheSim, an independent simulator, on the same traces: the miss ratios agree to six digits.

Compared are fifo, lru, SLRU as lists (slru-list-L, there n-seg=L) and GDSF without a cap, in objects and in bytes, on traces made
here from a seed and, where ../shared/traces is there, on every trace in it. An object has the size of its first request. For the
eye there are also the twins of slru-L and gdsf-L, which are defined otherwise. Installs libcachesim from PyPI into target/venv.
"""

import argparse
import itertools
import json
import lzma
import os
import random
import struct
import subprocess
import sys
import time
import venv

from harness import BINARY, ROOT, TARGET, Directory, Failure, main

# This file has the name of the package.
sys.path.remove(os.path.dirname(os.path.abspath(__file__)))

VERSION = "0.3.5"
REQUESTS = 200_000
OBJECTS = 20_000
SHARES = [0.01, 0.1, 0.4]
# Formats that are binary and have no header, by the files' names.
FORMATS = {
    "scarab-recs.trace.xz": "keys-be-i64",
    "cache2k-orm-busy.trace.xz": "keys-be-u32",
    "cloudPhysicsIO.vscsi.zst": "vscsi",
}
# A record of format oracle-general: time, key, size, and the next access, which none of these policies looks at.
RECORD = struct.Struct("<IQIq")
# The name here, the one there, its parameters, and the twin that approximates the same.
POLICIES = [
    ("fifo", "FIFO", "", None),
    ("lru", "LRU", "", None),
    ("slru-list-3", "SLRU", "n-seg=3", "slru-3"),
    ("slru-list-4", "SLRU", "n-seg=4", "slru-4"),
    ("gdsf", "GDSF", "", "gdsf-4"),
]
# Buckets of the other simulator's hash table, as a power of two; the default takes 128 MiB for every cache.
HASH_POWER = 16


def installed(python):
    code = f"import libcachesim, sys; sys.exit(libcachesim.__version__ != '{VERSION}')"
    return subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


def continue_in_venv():
    """Runs this program again with a Python that has libcachesim, unless it is the one that runs it."""
    folder = os.path.join(TARGET, "venv")
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        venv.create(folder, with_pip=True)
    if not installed(python):
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, f"libcachesim=={VERSION}"]).returncode != 0:
            raise Failure(f"expected pip to install libcachesim {VERSION} into {folder}; it did not")
    if os.path.abspath(sys.prefix) != os.path.abspath(folder):
        os.execv(python, [python, *sys.argv])


def zipf_keys(rng, exponent):
    weights = [1 / (rank + 1) ** exponent for rank in range(OBJECTS)]
    keys = list(range(OBJECTS))
    rng.shuffle(keys)
    return rng.choices(keys, weights, k=REQUESTS)


def generated(seed):
    """(name, requests of (key, size)): equal sizes, even ones, and ones over five orders of magnitude under a drift."""
    rng = random.Random(seed)
    yield "zipf, one size", [(key, 1) for key in zipf_keys(rng, 0.9)]
    sizes = [rng.randint(100, 2000) for _ in range(OBJECTS)]
    yield "zipf, even sizes", [(key, sizes[key]) for key in zipf_keys(rng, 0.8)]
    sizes = [int(10 ** rng.uniform(1, 6)) for _ in range(2 * OBJECTS)]
    drifting = [key + at * OBJECTS // REQUESTS for at, key in enumerate(zipf_keys(rng, 1.0))]
    yield "zipf, all sizes, drifting", [(key, sizes[key]) for key in drifting]


def recorded(directory):
    """(name, requests) of every trace in ../shared/traces, but for two as `pumice trace convert` writes them."""
    folder = os.path.join(os.path.dirname(ROOT), "shared", "traces")
    for kind in ("object", "kv", "block", "dedup"):
        inside = os.path.join(folder, kind)
        for name in sorted(os.listdir(inside)) if os.path.isdir(inside) else []:
            path = os.path.join(inside, name)
            read = PLAIN.get(name)
            requests = read(path) if read else converted(path, os.path.join(directory, "converted"))
            yield ".".join(name.split(".")[:2]), requests


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
    if os.path.exists(path):
        os.remove(path)
    command = [BINARY, "trace", "convert", source, path, "--to", "oracle-general"]
    command += ["--format", FORMATS.get(os.path.basename(source), "auto")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"expected {source} to be converted; it said: {done.stderr.strip()}")
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
    done = subprocess.run([*command, "--flash-size", str(capacity), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"expected a report of {policy} at {capacity}; it said: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    return 1 - report["object_hit_ratio"], 1 - report["byte_hit_ratio"]


def theirs(path, algorithm, parameters, capacity):
    from libcachesim import libcachesim_python as core

    settings = core.CommonCacheParams(capacity, hashpower=HASH_POWER, consider_obj_metadata=False)
    cache = getattr(core, f"{algorithm}_init")(settings, parameters)
    reading = core.ReaderInitParam()
    reading.ignore_size_zero_req = False
    reader = core.Reader(path, core.TraceType.ORACLE_GENERAL_TRACE, reading)
    return core.c_process_trace(cache, reader, 0, -1)


def silence_warnings():
    """The other simulator warns of every object that does not fit, on standard error, whoever holds that."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    return kept


def compare(directory, name, requests):
    """Prints the table of a trace; returns the comparisons and those that differ."""
    path = os.path.join(directory, "trace.oracleGeneral")
    footprint = write_oracle_general(path, requests)
    compared, different = 0, []
    for share in SHARES:
        capacity = max(1, int(footprint * share))
        for policy, algorithm, parameters, twin in POLICIES:
            seen = [f"{ratio:.6f}" for ratio in ours(path, policy, capacity)]
            kept = silence_warnings()
            try:
                expected = [f"{ratio:.6f}" for ratio in theirs(path, algorithm, parameters, capacity)]
            finally:
                os.dup2(kept, 2)
                os.close(kept)
            compared += 1
            line = f"{name:26} {share:4.0%} {policy:12} {' '.join(seen)}  libCacheSim {' '.join(expected)}"
            if twin is not None:
                line += f"  {twin} {' '.join(f'{ratio:.6f}' for ratio in ours(path, twin, capacity))}"
            if seen != expected:
                line += "  DIFFERENT"
                different.append(line)
            print(line, flush=True)
    return compared, different


def test():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()
    continue_in_venv()
    started = time.monotonic()
    compared, different = 0, []
    print("miss ratios, of objects and of bytes:")
    with Directory("libcachesim") as directory:
        for name, requests in itertools.chain(generated(arguments.seed), recorded(directory)):
            count, found = compare(directory, name, requests)
            compared += count
            different += found
    if different:
        table = "\n".join(different)
        raise Failure(f"expected equal miss ratios (seed {arguments.seed}); {len(different)} of {compared} differ:\n{table}")
    print(f"libcachesim {VERSION}: {compared} of {compared} equal, in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(test)
