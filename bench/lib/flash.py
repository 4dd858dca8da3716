"""Rows about flash hits over the network: the workload, and how each side is set up for it."""

import contextlib
import os

from . import compare, machine, servers
from .compare import Comparison
from .load import load

# What memcached needs beside items: hash table, write buffers, connections, and some page cache for its buffered I/O.
EXTSTORE_REST_MIB = 64
VALUE_SIZES = "600-4096"
SEED = 42
MEAN_VALUE_BYTES = (600 + 4096) // 2


def parser(documentation):
    parser = compare.parser(documentation, dram=256)
    parser.add_argument("--flash", type=int, help="MiB of flash of each side (10 x DRAM)")
    parser.add_argument("--connections", type=int, default=32, help="connections (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before those that count (%(default)s)")
    parser.add_argument("--fill-rate", type=int, default=20_000, help="sets per second of the fill (%(default)s)")
    parser.add_argument("--ext-threads", type=int, default=8, help="extstore's I/O threads (%(default)s)")
    parser.add_argument(
        "--ext-options", default="", help="more options of memcached's -o, with commas, after those of the script"
    )
    return parser


class FlashRow:
    """Settings and turns that both rows share."""

    def __init__(self, name, arguments, more):
        if arguments.quick:
            arguments.seconds, arguments.warm_up, arguments.pairs = 2, 1, 2
            arguments.dram, arguments.fill_rate = 112, 60_000
        machine.build_pumice(not arguments.no_build)
        memcached = machine.install("memcached", "memcached")
        self.arguments = arguments
        self.flash = arguments.flash or 10 * arguments.dram
        self.keys = 8 * arguments.dram * 2**20 // MEAN_VALUE_BYTES
        self.item_mib = arguments.dram - EXTSTORE_REST_MIB
        self.options = [f"ext_threads={arguments.ext_threads}", "ext_wbuf_size=8"]
        self.options += [option for option in arguments.ext_options.split(",") if option]
        settings = {
            "DRAM MiB": arguments.dram, "flash MiB": self.flash, "keys": f"zipf:keys={self.keys},theta=0.9",
            "value bytes": VALUE_SIZES, "fill rate": arguments.fill_rate, "connections": arguments.connections,
            "memcached": f"-t 1 -m {self.item_mib} -o {','.join(self.options)}",
            "seconds": arguments.seconds, "warm-up": arguments.warm_up, **more,
        }  # fmt: skip
        self.comparison = Comparison(name, arguments, settings)
        self.comparison.sides = {"pumice": "pumice", "peer": machine.version_of([memcached, "--version"])}

    @contextlib.contextmanager
    def filled(self, side):
        """A server of one side in which every key was set once."""
        comparison, arguments = self.comparison, self.arguments
        core, directory = comparison.server_core, comparison.directory
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(comparison.group(arguments.dram, side))
            if side == "pumice":
                server = servers.pumice(directory, core, group, arguments.dram, self.flash)
            else:
                server = servers.memcached(directory, core, group, self.item_mib, self.options, self.flash)
            stack.enter_context(server)
            if side == "peer":
                servers.reserve_headers(server, self.keys)
            load(
                server, comparison.load_core, mix="set", keys=self._key_list(), format="csv", columns="id=1",
                value_size=VALUE_SIZES, connections=arguments.connections, rate=arguments.fill_rate, requests=self.keys,
                warm_up=0,
            )  # fmt: skip
            yield server

    def workload(self):
        return {
            "connections": self.arguments.connections,
            "keys": self.comparison.settings["keys"],
            "value_size": VALUE_SIZES,
        }

    def look_aside(self, server, **settings):
        """Load on a filled server; a miss is answered by a set."""
        return load(
            server, self.comparison.load_core, mix="look-aside", warm_up=self.arguments.warm_up,
            **self.workload(), **settings,
        )  # fmt: skip

    def _key_list(self):
        """A trace of every key once, the least popular first: the preload of the load generator goes as fast as the server
        takes it, and extstore evicts what it cannot write in time."""
        path = os.path.join(self.comparison.directory, f"keys-{self.keys}.csv")
        if not os.path.exists(path):
            with open(path + ".new", "w") as file:
                base = mix64(SEED)
                for number in range(self.keys - 1, -1, -1):
                    key = mix64(number + base)
                    file.write(f"{key - (1 << 64) if key >> 63 else key}\n")
            os.rename(path + ".new", path)
        return path


def mix64(number):
    """How a generator of traces makes keys of ranks, for its default seed."""
    mask = (1 << 64) - 1
    z = (number + 0x9E3779B97F4A7C15) & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)
