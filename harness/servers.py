"""Servers of one's own, on ports that the system chooses, each with its files in one directory."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from . import Failure, expect, expect_equal, machine
from .client import Client

READY_SECONDS = 60
BOOKS_SECONDS = 60


class Directory:
    """A directory for one test, kept for a look where the test fails."""

    def __init__(self, name, parent=None):
        parent = parent or os.path.join(machine.TARGET, "e2e")
        os.makedirs(parent, exist_ok=True)
        # Short, as the path of a socket in it has at most 107 bytes.
        self.path = tempfile.mkdtemp(prefix=f"{name[:20]}-", dir=parent)

    def __enter__(self):
        return self.path

    def __exit__(self, kind, value, trace):
        if kind is None:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            print(f"files are kept in {self.path}", file=sys.stderr)


def fresh_directory(parent, name):
    path = os.path.join(parent, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


class Server:
    """A server process that ends with the `with` block."""

    def __init__(self, name, directory, command, core=None, group=None):
        self.name, self.directory, self.group = name, directory, group
        self.log_path = os.path.join(directory, f"{name}.log")
        command = [str(word) for word in command]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PUMICE_")}
        environment["MEMCACHED_PORT_FILENAME"] = os.path.join(directory, "memcached.port")
        with open(self.log_path, "ab") as log:
            log.write(f"--- {' '.join(command)}\n".encode())
            log.flush()
            self.log_start = log.tell()
            self.process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env=environment, **machine.confine(core, group))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.kill9()
        if kind is not None:
            print(f"{self.name} said:\n{self.log()[-4000:]}", file=sys.stderr)

    @property
    def pid(self):
        return self.process.pid

    @property
    def target(self):
        return "%s:%d" % self.address

    def log(self):
        with open(self.log_path, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    def wait_for(self, ready, what, seconds=READY_SECONDS):
        """Waits until `ready` returns something true."""
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            status = self.process.poll()
            if status is not None:
                hint = " (killed: out of its memory cgroup?)" if status == -9 and self.group else ""
                raise Failure(f"expected {what}; {self.name} ended with status {status}{hint}:\n{self.log()[-2000:]}")
            if time.monotonic() > deadline:
                raise Failure(f"expected {what} within {seconds} s; {self.name} said:\n{self.log()[-2000:]}")
            time.sleep(0.005)
        return found

    def wait_for_log(self, text, seconds=20):
        self.wait_for(lambda: text in self.log(), f"the log to have {text!r}", seconds)

    def check_alive(self):
        self.wait_for(lambda: self.process.poll() is None, "it to run")

    def terminate(self, seconds=60):
        """A clean stop; returns how long it took."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"expected the server to stop within {seconds} s of SIGTERM; it did not") from None
        expect_equal(status, 0, "the exit status after SIGTERM")
        return time.monotonic() - started

    def kill9(self):
        self.process.kill()
        self.process.wait()

    def memory(self):
        """(resident now, most so far) in bytes."""
        return machine.memory(self.pid)

    def memory_record(self):
        """The memory figures that a record keeps."""
        usage, peak = self.group.usage_bytes() if self.group else (None, None)
        return {"resident_bytes": self.memory()[0], "cgroup_bytes": usage, "cgroup_peak_bytes": peak}

    def text_stats(self, what=""):
        """The memcached command `stats`, as a dictionary of texts."""
        with contextlib.closing(Client(self.address)) as client:
            return client.stats(what)


class Pumice(Server):
    """Pumice with the flags of a test; `wait=False` does not wait until it is ready."""

    def __init__(self, directory, *flags, wait=True, core=None, group=None, program=machine.BINARY):
        command = [program, "serve", *self.doors(directory), "--admin", "127.0.0.1:0", *flags]
        super().__init__("pumice", directory, command, core, group)
        self.flags, self.address, self.admin = flags, None, None
        if wait:
            self.wait_ready()

    def doors(self, _):
        return ["--memcached", "127.0.0.1:0"]

    def wait_ready(self):
        pattern = re.compile(r"\bready: (?:(?:memcached|HTTP) on ([\d.]+):(\d+)|\w+ on).*admin on (\S+)$", re.MULTILINE)
        try:
            found = self.wait_for(lambda: pattern.search(self.log()), "the server to be ready")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.address = found[1] and (found[1], int(found[2]))
        self.admin = f"http://{found[3]}"

    def get(self, path):
        """(status, body) of a page of the admin door."""
        try:
            with urllib.request.urlopen(self.admin + path, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stats(self):
        status, body = self.get("/stats")
        expect_equal(status, 200, "the status of /stats")
        return json.loads(body)

    def check_books(self):
        """No request may run; work in the background, during which the books move, may be on its way to its end."""
        end = time.monotonic() + BOOKS_SECONDS
        while True:
            status, body = self.get("/books")
            if status != 503 or time.monotonic() > end:
                break
            time.sleep(0.05)
        expect(status == 200, "balanced books", f"status {status}: {body}")
        books = self.stats()["books"]
        incoming = {"recovered", "offered"}
        for unit in ("entries", "bytes"):
            came = sum(line[unit] for name, line in books.items() if name in incoming)
            left = sum(line[unit] for name, line in books.items() if name not in incoming)
            expect(came == left, f"recovered + offered = all other lines, in {unit}", f"{came} and {left}: {books}")
        return books


class Volume(Pumice):
    """A volume that Pumice serves over NBD, on a unix socket or over TCP."""

    def __init__(self, directory, backing, *flags, over="unix", **how):
        self.name_of_volume, self.over = os.path.basename(backing), over
        self.uri = f"nbd+unix:///{self.name_of_volume}?socket={os.path.join(directory, 'nbd.socket')}"
        super().__init__(directory, "--backing", backing, *flags, **how)
        if over == "tcp":
            self.uri = f"nbd://{re.search(r'ready: NBD on ([^ ,]+)', self.log())[1]}/{self.name_of_volume}"

    def doors(self, directory):
        return ["--nbd", f"unix:{os.path.join(directory, 'nbd.socket')}" if self.over == "unix" else "127.0.0.1:0"]

    def figures(self, part):
        """The part nbd, volume, chunk or device of the volume's figures."""
        return self.stats()["volumes"][self.name_of_volume][part]


class Nbdkit(Server):
    """nbdkit that serves a file or what the URI of an NBD server names, or another plugin with its arguments; by default through its cache
    filter, which keeps all that was read in a file of the same directory."""

    def __init__(self, directory, backing, core=None, group=None, flags=("--filter=cache",), options=("cache-on-read=true",), plugin=None):
        socket, pid = (os.path.join(directory, f"nbdkit.{name}") for name in ("socket", "pid"))
        self.uri = f"nbd+unix:///?socket={socket}"
        for path in (socket, pid):
            # Of one that was killed.
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        # The file of the filter is an unnamed one in TMPDIR.
        plugin = plugin or [*(["nbd", f"uri={backing}"] if str(backing).startswith("nbd") else ["file", backing]), *options]
        command = ["env", f"TMPDIR={directory}", machine.installed("nbdkit"), "--foreground", "--unix", socket, "--pidfile", pid, *flags, *plugin]
        super().__init__("nbdkit", directory, command, core, group)
        try:
            # Written once it listens.
            self.wait_for(lambda: machine.read(pid), "it to listen")
        except BaseException:
            self.__exit__(None, None, None)
            raise


class Memcached(Server):
    """memcached on a port that the system chooses and that it writes into a file."""

    def __init__(self, directory, *flags, core=None, group=None):
        command = [machine.installed("memcached"), "-l", "127.0.0.1", "-p", "-1", "-U", "0", *flags]
        if os.geteuid() == 0:
            command += ["-u", "root"]
        port = re.compile(r"TCP INET: (\d+)")
        super().__init__("memcached", directory, command, core, group)
        try:
            path = os.path.join(directory, "memcached.port")
            self.address = ("127.0.0.1", int(self.wait_for(lambda: port.search(machine.read(path)), "it to listen")[1]))
        except BaseException:
            self.__exit__(None, None, None)
            raise
