"""Memory cgroups: each side gets the same bytes of DRAM, page cache included."""

import os
import time

from . import Failure
from .machine import read

MOUNT = "/sys/fs/cgroup"
# Names of the files in both versions: the limit, and what is set besides where it is there (neither side may swap), and the
# bytes in use now and at most: resident memory, page cache, and what the kernel holds for it.
VERSIONS = {
    1: ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", "memory.swappiness"),
        ("memory.usage_in_bytes", "memory.max_usage_in_bytes")),
    2: ("memory.max", ("memory.swap.max",), ("memory.current", "memory.peak")),
}


def write(path, file, value):
    with open(os.path.join(path, file), "w") as out:
        out.write(str(value))


class MemoryGroup:
    """A memory cgroup of its own, gone with the `with` block."""

    def __init__(self, limit_bytes, name):
        version = 1 if os.path.exists(f"{MOUNT}/memory/memory.limit_in_bytes") else 2
        limit, others, self.counts = VERSIONS[version]
        name = f"pumice-bench-{os.getpid()}-{name}"
        try:
            if version == 1:
                self.path = self.make(f"{MOUNT}/memory", name)
            else:
                # A group with processes cannot have children with controllers, but for the root.
                write(MOUNT, "cgroup.subtree_control", "+memory")
                self.path = self.make(MOUNT, name)
            write(self.path, limit, limit_bytes)
            for file in others:
                if os.path.exists(os.path.join(self.path, file)):
                    write(self.path, file, limit_bytes if "memsw" in file else 0)
        except OSError as error:
            raise Failure(f"no memory cgroup can be made: {error}. Run as root, or with --no-cgroup; peers with buffered I/O "
                          "then read from the page cache, and the result says so") from None

    @staticmethod
    def make(root, name):
        own = next((line.split(":", 2)[2] for line in read("/proc/self/cgroup").splitlines() if ":memory:" in line), "")
        parents = [root + own.rstrip("/"), root] if root != MOUNT else [root]
        path = os.path.join(next(parent for parent in parents if os.access(parent, os.W_OK) or parent == root), name)
        os.mkdir(path)
        return path

    def enter(self):
        """Moves the calling process here."""
        write(self.path, "cgroup.procs", os.getpid())

    def usage_bytes(self):
        values = [read(os.path.join(self.path, file), None) for file in self.counts]
        return [int(value) if value else None for value in values]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                # Its last process is not quite gone, or its pages are still in the cache.
                time.sleep(0.05)
