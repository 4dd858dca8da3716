"""From a memcached that runs to a Pumice as `advise` says: what it predicts against what is seen."""

import contextlib
import os
import signal
import subprocess

from comparison import Comparison, case
from harness import Failure, machine
from harness.client import Client
from harness.servers import Pumice, fresh_directory
from tools import load, memcached, memcached_version, percent, removed

# What a miss costs the client beside the request itself: the store behind the cache, which is not run.
BACKEND_US = 10_000
DRAM_PRICE, FLASH_PRICE = 5, 0.1
# 64 MiB of DRAM and 128 MiB of flash; without DRAM for much flash, what a server takes for itself outweighs it.
BUDGET = 0.35


def recorded(comparison, arguments, requests, path):
    """Load on a memcached, recorded; returns the mean time of a get in microseconds, measured as that of the Pumice will be: the same load without
    a rate, when nobody records; and what the recorder said."""
    with memcached(comparison, arguments.memcached) as server:
        words = [machine.BINARY, "trace", "record", path, "--memcached", "%s:%d" % server.address, "--seconds", "3600"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as recording:
            with contextlib.closing(Client(server.address)) as client:
                server.wait_for(lambda: "conn_watch" in client.stats("conns").values(), "the recording to listen")
            load(server, comparison.load_core, **look_aside(arguments, requests), rate=arguments.rate)
            recording.send_signal(signal.SIGTERM)
            said, errors = recording.communicate(timeout=60)
        report = load(server, comparison.load_core, **look_aside(arguments, requests))
    if recording.returncode != 0 or "note:" in said:
        raise Failure(f"the recording has gaps or failed: {said}{errors}")
    return report["kinds"]["get"]["latency"]["mean_us"], said.strip()


def look_aside(arguments, requests):
    keys = f"zipf:keys={arguments.keys},theta=0.9,seed=1"
    return {"connections": 1, "warm_up": 0, "requests": requests, "keys": keys, "value_size": arguments.size}


@case(throttle=True, keys=(50_000, "keys"), size=(8000, "bytes of a value"), rate=(2000, "gets a second on memcached"), seconds=60, pairs=None,
      memcached=(64, "MiB of memcached"), slow=("nvme*20", "what Pumice's flash device is as slow as"), quick={"seconds": 10.0, "rate": 4000})
def advise_path(arguments):
    """A stranger's path: memcached under look-aside load, `trace record` for a minute, `advise` on that, and the `serve` line that it prints under the
    same load.

    memcached gets a look-aside load of Zipf's keys (0.9) over one connection at a steady rate, and is recorded from its first request on. `advise` takes
    the time of a hit from that load without a rate, one request after the other, that of a read of flash from `pumice-bench device --throttle KIND`, a miss of 10 ms, and a
    budget for 64 MiB of DRAM and 128 MiB of flash. The Pumice of the line that it prints, empty at first and with `--throttle flash=KIND`, then gets the same
    requests one after the other. Seen hits are those of its gets; the seen response time is the mean of gets as the client measures them, and the 10 ms
    for each miss, which are not waited for: these are most of it, so the rest is a row of its own."""
    requests = int(arguments.rate * arguments.seconds)
    settings = {"keys": arguments.keys, "value bytes": arguments.size, "gets": requests, "flash": arguments.slow, "a miss": f"{BACKEND_US} us"}
    comparison = Comparison(arguments, settings, peer=memcached_version())
    directory = fresh_directory(comparison.directory, "advise-path")
    path, probe = os.path.join(directory, "recorded.csv.zst"), os.path.join(directory, "probe")

    def turn(_):
        hit_us, said = recorded(comparison, arguments, requests, path)
        print(f"  recorded: {said}", flush=True)
        device = [machine.BENCH, "device", "--json", "--throttle", arguments.slow, "--sizes", "8KiB", "--depths", "1", "--size", "64MiB", probe]
        read_us = machine.run_json(device)["rows"][0]["read"]["mean_us"]
        times = {"--dram-latency": hit_us, "--flash-latency": hit_us + read_us, "--miss-latency": hit_us + BACKEND_US}
        times = [word for name, us in times.items() for word in (name, f"{us:.3f}us")]
        money = ["--dram-price", DRAM_PRICE, "--flash-price", FLASH_PRICE, "--budget", BUDGET]
        advice = machine.run_json([machine.BINARY, "advise", path, *times, *money, "--json"])["rows"][0]
        if advice["flash_bytes"] == 0:
            raise Failure(f"no flash is advised: {advice}")
        print(f"  advised: {advice['command']}", flush=True)
        flags = [os.path.join(directory, "flash") if word == "PATH" else word for word in advice["command"].split()[2:]]
        with Pumice(directory, *flags, "--throttle", f"flash={arguments.slow}", core=comparison.server_core) as server:
            report = load(server, comparison.load_core, **look_aside(arguments, requests))
        hits = report["hit_ratio"]
        measured = report["kinds"]["get"]["latency"]["mean_us"]
        response = measured + (1 - hits) * BACKEND_US
        predicted = advice["response_ns"] / 1e3
        predicted_measured = predicted - (1 - advice["hit_ratio"]) * BACKEND_US
        return {"hits": hits, "response_us": response, "measured_us": measured, "hit of memcached us": hit_us, "read of flash us": read_us,
                "predicted hits": advice["hit_ratio"], "predicted response_us": predicted, "predicted measured_us": predicted_measured,
                "off hits": abs(hits - advice["hit_ratio"]), "off response": abs(predicted / response - 1),
                "off measured": abs(predicted_measured / measured - 1), "report": report, "advice": advice}

    with removed(directory):
        comparison.turns(turn)
    microseconds = "{:.0f} us".format
    comparison.row("hits seen", "hits", "", "", percent)
    comparison.row("hits predicted", "predicted hits", "", "", percent)
    comparison.row("hits, off", "off hits", "≤ 1.5 points", "", percent)
    comparison.row("mean response time seen", "response_us", "", "", microseconds)
    comparison.row("mean response time predicted", "predicted response_us", "", "", microseconds)
    comparison.row("mean response time, off", "off response", "≤ 10 %", "", percent)
    comparison.row("of it measured, without the 10 ms of misses, seen", "measured_us", "", "", microseconds)
    comparison.row("of it measured, predicted", "predicted measured_us", "", "", microseconds)
    comparison.row("of it measured, off", "off measured", "", "", percent)
    return comparison
