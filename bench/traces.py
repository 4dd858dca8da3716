"""Traces of a directory, as `pumice replay` takes them."""

import collections.abc
import functools
import json
import os

import cachebench
from harness import machine

SHARED = (machine.TRACES, "recorded traces and distributions")
SHORTER = {"tencentBlock.ns": "tencent-", "cloudPhysicsIO": "cloudphysics", "-conversation_trace": "", "_sampled_train_trace": "-train",
           "_sampled_val_trace": "-val"}
ENDINGS = [".zst", ".xz", ".gz", ".csv", ".lis", ".trace", ".jsonl", ".txt", ".tsv", ".vscsi", ".load", ".sample", ".request"]


class Traces(collections.abc.Mapping):
    """The words for each trace, by short name: those of the directory (of its manifest.json, if it has one), two that are generated after
    distributions/cachelib/ when they are first asked for, and a Zipf load."""

    def __init__(self, directory, quick=False):
        listed = machine.read(os.path.join(directory, "manifest.json"))
        if listed:
            names = sorted({entry["file"] for entry in json.loads(listed)})
        else:
            below = (os.path.join(folder, file) for folder, _, files in os.walk(directory) for file in files)
            names = sorted(os.path.relpath(path, directory) for path in below if "distributions" not in path)
        self.words = {}
        for name in names:
            short = os.path.basename(name).split(".gen_sequence")[0]
            for ending in ENDINGS:
                short = short.removesuffix(ending)
            for long, brief in SHORTER.items():
                short = short.replace(long, brief)
            self.words[short] = (os.path.join(directory, name), "--format", machine.trace_format(name))
        for name, keys, requests in [("cdn", 1_500_000, 6_000_000), ("kvcache_reg", 3_000_000, 12_000_000)]:
            config = os.path.join(directory, "distributions", "cachelib", name, "config.json")
            if os.path.exists(config):
                less = 40 if quick else 1
                self.words[name] = functools.partial(cachebench.trace, config, keys=keys // less, requests=requests // less)
        keys, requests = (5_000, 50_000) if quick else (100_000, 1_000_000)
        self.words["zipf"] = (f"zipf:keys={keys},theta=0.9,requests={requests},size=600-8192",)

    def __getitem__(self, name):
        if callable(self.words[name]):
            self.words[name] = (self.words[name](),)
        return self.words[name]

    def __iter__(self):
        return iter(self.words)

    def __len__(self):
        return len(self.words)
