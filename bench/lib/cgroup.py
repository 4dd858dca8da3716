"""Memory cgroups: each side gets the same bytes of DRAM, page cache included."""

import os
import time

from .machine import Trouble

MOUNT = "/sys/fs/cgroup"


def own_path(controller):
    """This process's cgroup in the hierarchy of a controller of version 1, or of version 2 if it is empty."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controller in controllers.split(",") if controller else not controllers:
                return path
    return None


class MemoryGroup:
    """A memory cgroup of its own, gone with the `with` block."""

    def __init__(self, limit_bytes, name):
        self.limit = limit_bytes
        name = f"pumice-bench-{os.getpid()}-{name}"
        errors = []
        for make in (self._version_1, self._version_2):
            try:
                self.path = make(name)
                return
            except OSError as error:
                errors.append(f"{make.__name__[1:].replace('_', ' ')}: {error}")
        raise Trouble(
            "no memory cgroup can be made: " + "; ".join(errors) + ". Run as root, or with --no-cgroup; peers with "
            "buffered I/O then read from the page cache, and the result says so"
        )

    def _version_1(self, name):
        root = os.path.join(MOUNT, "memory")
        if not os.path.exists(os.path.join(root, "memory.limit_in_bytes")):
            raise OSError("the controller is not mounted")
        path = self._make(root, own_path("memory"), name)
        try:
            self._write(path, "memory.limit_in_bytes", self.limit)
            # Neither side may swap.
            for file, value in (("memory.memsw.limit_in_bytes", self.limit), ("memory.swappiness", 0)):
                if os.path.exists(os.path.join(path, file)):
                    self._write(path, file, value)
        except OSError:
            os.rmdir(path)
            raise
        self.usage_file, self.peak_file = "memory.usage_in_bytes", "memory.max_usage_in_bytes"
        return path

    def _version_2(self, name):
        if not os.path.exists(os.path.join(MOUNT, "cgroup.controllers")):
            raise OSError("not mounted at /sys/fs/cgroup")
        # A group with processes cannot have children with controllers, but for the root.
        self._write(MOUNT, "cgroup.subtree_control", "+memory")
        path = self._make(MOUNT, None, name)
        try:
            self._write(path, "memory.max", self.limit)
            if os.path.exists(os.path.join(path, "memory.swap.max")):
                self._write(path, "memory.swap.max", 0)
        except OSError:
            os.rmdir(path)
            raise
        self.usage_file, self.peak_file = "memory.current", "memory.peak"
        return path

    @staticmethod
    def _make(root, own, name):
        last = None
        for parent in (os.path.join(root, own.lstrip("/")) if own else root, root):
            try:
                path = os.path.join(parent, name)
                os.mkdir(path)
                return path
            except OSError as error:
                last = error
        raise last

    @staticmethod
    def _write(path, file, value):
        with open(os.path.join(path, file), "w") as out:
            out.write(str(value))

    def enter(self):
        """Moves the calling process here."""
        self._write(self.path, "cgroup.procs", os.getpid())

    def usage_bytes(self):
        """Bytes in use now and at most: resident memory, page cache, and what the kernel holds for it."""
        values = []
        for file in (self.usage_file, self.peak_file):
            try:
                with open(os.path.join(self.path, file)) as text:
                    values.append(int(text.read()))
            except OSError:
                values.append(None)
        return tuple(values)

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


class NoGroup:
    """What stands in with --no-cgroup."""

    def enter(self):
        pass

    def usage_bytes(self):
        return None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
