"""The servers that are compared, each on one core and in a memory cgroup."""

import os
import re
import shutil
import socket
import subprocess
import time

from . import machine
from .machine import Trouble, confine

READY_SECONDS = 60


def resident_bytes(pid):
    for line in (machine.read(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise Trouble(f"process {pid} is gone")


def fresh_directory(parent, name):
    path = os.path.join(parent, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


class Server:
    """A server process that ends with the `with` block; its files go too."""

    def __init__(self, name, directory, command, core, group):
        self.name = name
        self.directory = directory
        self.command = command
        self.group = group
        self.log_path = os.path.join(directory, "server.log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PUMICE_")}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                preexec_fn=confine(core, group),
            )

    @property
    def pid(self):
        return self.process.pid

    @property
    def target(self):
        return f"{self.address[0]}:{self.address[1]}"

    def log(self):
        with open(self.log_path, "rb") as log:
            return log.read().decode(errors="replace")

    def wait(self, ready):
        """Waits until `ready` returns something true."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            found = ready()
            if found:
                return found
            status = self.process.poll()
            if status is not None:
                raise Trouble(f"{self.name} ended with status {status}: {self.log()[-2000:]}")
            if time.monotonic() > deadline:
                raise Trouble(f"{self.name} is not ready after {READY_SECONDS} s: {self.log()[-2000:]}")
            time.sleep(0.01)

    def check_alive(self):
        status = self.process.poll()
        if status is not None:
            hint = " (killed: out of its memory cgroup?)" if status == -9 else ""
            raise Trouble(f"{self.name} ended with status {status}{hint}: {self.log()[-2000:]}")

    def resident_bytes(self):
        return resident_bytes(self.pid)

    def memory(self):
        """What the record keeps of its memory."""
        usage, peak = self.group.usage_bytes()
        return {"resident_bytes": self.resident_bytes(), "cgroup_bytes": usage, "cgroup_peak_bytes": peak}

    def stats(self, what=""):
        """The memcached command `stats`, as a dictionary of texts."""
        with socket.create_connection(self.address, timeout=60) as sock:
            sock.sendall(f"stats {what}".strip().encode() + b"\r\n")
            reply = b""
            while not reply.endswith(b"END\r\n"):
                piece = sock.recv(65536)
                if not piece:
                    raise Trouble(f"{self.name} closed the connection after `stats`")
                reply += piece
        lines = (line.split(" ", 2) for line in reply.decode().split("\r\n") if line.startswith("STAT "))
        return {parts[1]: parts[2] if len(parts) > 2 else "" for parts in lines}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def pumice(directory, core, group, dram, flash, *arguments):
    """Pumice with one worker thread; sizes in MiB."""
    directory = fresh_directory(directory, "pumice")
    command = [
        machine.BINARY, "serve", "--threads", "1", "--dram", f"{dram}MiB",
        "--flash", "flash", "--flash-size", f"{flash}MiB",
        "--memcached", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments,
    ]  # fmt: skip
    server = Server("pumice", directory, command, core, group)
    try:
        pattern = re.compile(r"^ready: memcached on (\S+):(\d+).*admin on (\S+)$", re.MULTILINE)
        found = server.wait(lambda: pattern.search(server.log()))
        server.address = (found[1], int(found[2]))
        server.admin = f"http://{found[3]}"
    except BaseException:
        server.__exit__()
        raise
    return server


def memcached(directory, core, group, item_mib, options=(), flash=None):
    """memcached with one worker thread, `item_mib` MiB for items, and extstore where it gets MiB of flash."""
    program = machine.install("memcached", "memcached")
    directory = fresh_directory(directory, "memcached")
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        address = chosen.getsockname()
    command = [program, "-l", address[0], "-p", str(address[1]), "-U", "0", "-t", "1", "-m", str(item_mib), "-c", "1024"]
    if os.geteuid() == 0:
        command += ["-u", "root"]
    extended = list(options)
    if flash is not None:
        path = os.path.join(directory, "flash")
        # Space is reserved at once, as Pumice does, so that neither side waits for the file system to find it.
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, flash << 20)
        extended.insert(0, f"ext_path={path}:{flash}M")
    if extended:
        command += ["-o", ",".join(extended)]
    server = Server("memcached", directory, command, core, group)
    server.address = address

    def answers():
        try:
            with socket.create_connection(address, timeout=1):
                return True
        except OSError:
            return False

    try:
        server.wait(answers)
    except BaseException:
        server.__exit__()
        raise
    return server


def reserve_headers(server, count):
    """Gives memcached's slab class of headers the memory for `count` items on flash, as hours of load would: sets that many
    tiny items, and deletes them. Without this a fresh extstore has all its memory in classes of values when headers are
    first needed, and its page mover, which moves one page a second, evicts most of what was written to flash meanwhile.
    """
    # 48 bytes of header, 8 of version, key, value and line end: the class of 96 bytes, where an extstore header (12 bytes
    # instead of the value) of a 16-byte key is.
    with socket.create_connection(server.address, timeout=60) as sock:
        for command in (b"set r%09d 0 0 16 noreply\r\nxxxxxxxxxxxxxxxx\r\n", b"delete r%09d noreply\r\n"):
            for start in range(0, count, 20_000):
                batch = b"".join(command % number for number in range(start, min(start + 20_000, count)))
                sock.sendall(batch + b"mn\r\n")
                reply = b""
                while not reply.endswith(b"\n"):
                    piece = sock.recv(4096)
                    if not piece:
                        raise Trouble(f"{server.name} closed the connection")
                    reply += piece
