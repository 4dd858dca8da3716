"""A running server as its users start and stop it: memcached's options, sockets, settings, signals, the admin door."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import time

from harness import expect, expect_equal
from harness.client import Client
from harness.machine import BINARY, installed
from harness.servers import Pumice, Server

SMALL = ("--dram", "64MiB", "--flash-size", "64MiB")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connected(port):
    with contextlib.suppress(OSError):
        return Client(("127.0.0.1", port))


def test_starts_like_memcached(directory):
    """The line that Debian starts memcached with, and a unix socket."""
    path = os.path.join(directory, "memcached.sock")
    pid_file = os.path.join(directory, "memcached.pid")
    port = free_port()
    line = f"-m 64 -p {port} -l 127.0.0.1 -U 0 -P {pid_file} -c 10 -t 1 -I 2m -vv -o modern,hash_algorithm=murmur3"
    command = [BINARY, "serve", *line.split(), "-s", path, "--admin", "off", "--flash-size", "64MiB"]
    with Server("pumice", directory, command) as server:
        client = server.wait_for(lambda: connected(port), f"a server on port {port}")
        expect_equal(client.command(b"set a 0 0 1\r\nx"), b"STORED", "the reply to set")
        settings = client.stats("settings")
        expect_equal(settings["maxbytes"], str(64 << 20), "maxbytes for -m 64")
        expect_equal(settings["item_size_max"], str(2 << 20), "item_size_max for -I 2m")
        expect_equal(settings["num_threads"], "1", "num_threads for -t 1")
        with socket.socket(socket.AF_UNIX) as unix:
            unix.connect(path)
            unix.sendall(b"get a\r\n")
            expect_equal(unix.recv(100), b"VALUE a 0 1\r\nx\r\nEND\r\n", "get over the unix socket")
        with open(pid_file, encoding="ascii") as file:
            expect_equal(int(file.read()), server.pid, "the process id in the file")
        for warning in ("`-o modern` is ignored", "`-o hash_algorithm` is ignored"):
            expect(warning in server.log(), f"a warning that {warning}", server.log())
        too_many = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(12)]
        expect(b"Too many open connections" in too_many[-1].recv(200), "the 13th of 10 connections to be refused", "")
        for connection in too_many:
            connection.close()
        server.process.send_signal(signal.SIGINT)
        expect_equal(server.process.wait(30), 0, "the exit status after SIGINT")
        expect(not os.path.exists(path), "the unix socket to be removed", path)
        expect(not os.path.exists(pid_file), "the process id file to be removed", pid_file)


def test_admin_door_and_metrics_as_prometheus_wants_them(directory):
    with Pumice(directory, *SMALL) as server:
        client = Client(server.address)
        client.set_many((b"k%d" % i, b"v" * 1000) for i in range(1000))
        list(client.get_many(b"k%d" % i for i in range(2000)))
        for path in ("/healthz", "/readyz"):
            expect_equal(server.get(path)[0], 200, f"the status of {path}")
        server.check_books()
        status, text = server.get("/metrics")
        expect_equal(status, 200, "the status of /metrics")
        for line in (
            "pumice_memcached_get_hits_total 1000",
            "pumice_memcached_get_misses_total 1000",
            'pumice_engine_books_entries{line="offered"} 1000',
            'pumice_memcached_latency_seconds_count{operation="get",tier="miss"} 1000',
        ):
            expect(line in text.splitlines(), f"{line} in /metrics", text)
        command = [installed("promtool"), "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
        expect(done.returncode == 0 and not done.stdout + done.stderr, "promtool to find nothing", done.stdout + done.stderr)
        seen = server.stats()
        expect(seen["index"]["dram_bytes"] > 0 and seen["flash"]["capacity_bytes"] == 64 << 20, "sizes", seen)
        expect(seen["ready"], "ready", seen)
        client.close()
        server.terminate()


def test_the_log_has_colours_on_a_terminal_alone_and_not_with_no_color(directory):
    def log(**environment):
        ours, terminal = pty.openpty()
        command = [BINARY, "serve", "--memcached", "127.0.0.1:0", "--admin", "off", *SMALL]
        said = b""
        with subprocess.Popen(command, cwd=directory, stderr=terminal, env=os.environ | environment) as server:
            while b"ready: " not in said:
                said += os.read(ours, 4096)
            server.terminate()
        os.close(terminal)
        os.close(ours)
        return said

    expect(b"\x1b[" in log(), "colours on a terminal", "none")
    expect(b"\x1b[" in log(NO_COLOR=""), "colours where NO_COLOR is empty", "none")
    without = log(NO_COLOR="1")
    expect(b"\x1b[" not in without, "no colours with NO_COLOR", without)


def test_an_idle_server_sleeps(directory):
    def ticks(server):
        with open(f"/proc/{server.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    with Pumice(directory, *SMALL, "--threads", "4") as server:
        client = Client(server.address)
        client.set_many((b"k%d" % i, b"v" * 1000) for i in range(20_000))
        list(client.get_many(b"k%d" % i for i in range(20_000)))
        # Work that the writes made due may run on for a moment.
        time.sleep(1)
        before = ticks(server)
        time.sleep(2)
        used = ticks(server) - before
        expect(used <= 1, "an idle server to use no CPU in 2 s", f"{used} ticks of 10 ms")
        client.close()
        server.terminate()


def test_other_settings_than_a_flash_file_was_made_with_are_refused(directory):
    with Pumice(directory, *SMALL) as server:
        server.terminate()
    other = ("--dram", "64MiB", "--flash-size", "128MiB")
    with Pumice(directory, *other, wait=False) as server:
        expect_equal(server.process.wait(20), 2, "the exit status of a start with another size")
        expect(all(part in server.log() for part in ("128 MiB", "64 MiB", "--reformat")), "an error that names both and a way out", server.log())
    # It is as it was.
    for size, flags in ((64, ("--dram", "64MiB")), (128, (*other, "--reformat"))):
        with Pumice(directory, *flags) as server:
            expect_equal(server.stats()["flash"]["capacity_bytes"], size << 20, f"the size with {flags}")
            server.terminate()
