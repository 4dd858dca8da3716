"""Rows about objects in DRAM: Pumice against memcached over loopback, no flash reads."""

import contextlib
import json
import urllib.request

from . import compare, machine, servers
from .compare import Comparison, thousands
from .load import figures, load
from .machine import Trouble

# All of it fits DRAM several times over on both sides.
KEYS = 500_000
FLASH_MIB = 4096


def device_reads(server):
    with urllib.request.urlopen(f"{server.admin}/stats", timeout=60) as reply:
        return json.load(reply)["device"]["reads"]


def run(name, documentation, mix, pipeline, what, must, aim):
    """A whole script: both servers anew in every turn, every key set once, then `mix` on 32 connections."""
    parser = compare.parser(documentation, dram=512)
    parser.add_argument("--connections", type=int, default=32, help="connections (%(default)s)")
    parser.add_argument("--pipeline", type=int, default=pipeline, help="requests under way on each (%(default)s)")
    parser.add_argument("--keys", type=int, default=KEYS, help="number of keys (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=2, help="seconds before those that count (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.warm_up, arguments.keys, arguments.pairs = 1, 0.3, 20_000, 2
    machine.build_pumice(not arguments.no_build)
    memcached = machine.install("memcached", "memcached")
    items_mib = arguments.dram * 8 // 10
    settings = {
        "mix": mix, "keys": f"zipf:keys={arguments.keys},theta=0.9", "value bytes": 100,
        "connections": arguments.connections, "pipeline": arguments.pipeline, "DRAM MiB": arguments.dram,
        "memcached": f"-t 1 -m {items_mib}", "seconds": arguments.seconds, "warm-up": arguments.warm_up,
    }  # fmt: skip
    comparison = Comparison(name, arguments, settings)
    comparison.sides = {"pumice": "pumice", "peer": machine.version_of([memcached, "--version"])}
    core = comparison.server_core

    def turn(side, start):
        def one(_):
            with contextlib.ExitStack() as stack:
                group = stack.enter_context(comparison.group(arguments.dram, side))
                server = stack.enter_context(start(group))
                reads = device_reads(server) if side == "pumice" else 0
                report = load(
                    server, comparison.load_core, mix=mix, pipeline=arguments.pipeline,
                    connections=arguments.connections, keys=settings["keys"], value_size=100, preload=True,
                    warm_up=arguments.warm_up, duration=arguments.seconds,
                )  # fmt: skip
                if report["hit_ratio"] not in (None, 1.0):
                    raise Trouble(f"{side}: hit ratio {report['hit_ratio']}, but all objects fit its DRAM")
                if side == "pumice" and device_reads(server) > reads + 100:
                    raise Trouble("pumice read from flash, but all objects fit its DRAM")
                return figures(report, server)

        return one

    def show(run):
        return (
            f"{thousands(run['requests_per_second'])}, {run['server_cpu_us']:.2f} us CPU each, server core "
            f"{run['server_cores'] * 100:.0f} % busy, p99 {run['p99_us']:.0f} us, client idle {run['client_idle'] * 100:.0f} %"
        )

    directory = comparison.directory
    comparison.turns(
        turn("pumice", lambda group: servers.pumice(directory, core, group, arguments.dram, FLASH_MIB)),
        turn("peer", lambda group: servers.memcached(directory, core, group, items_mib)),
        show,
    )
    comparison.row(
        what, "requests_per_second", must, aim, thousands, cpu="server_cpu_us", client="client_idle"
    )
    return comparison.finish()
