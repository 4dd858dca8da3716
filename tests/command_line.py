#!/usr/bin/env python3
"""A running server as its users start and stop it: memcached's options, sockets, settings, signals, the admin door."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

from harness import BINARY, Client, Directory, Failure, Server, expect, expect_equal, main


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def starts_like_memcached(directory):
    """The line that Debian starts memcached with, and a unix socket."""
    path = os.path.join(directory, "memcached.sock")
    pid_file = os.path.join(directory, "memcached.pid")
    port = free_port()
    line = f"-m 64 -p {port} -l 127.0.0.1 -U 0 -P {pid_file} -c 10 -t 1 -I 2m -vv -o modern,hash_algorithm=murmur3"
    command = [BINARY, "serve", *line.split(), "-s", path, "--admin", "off", "--flash-size", "64MiB"]
    log_path = os.path.join(directory, "memcached.log")
    with open(log_path, "wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        client = wait_for_port(process, port, log_path)
        expect_equal(client.command(b"set a 0 0 1\r\nx"), b"STORED", "the reply to set")
        settings = stats(client, b"stats settings")
        expect_equal(settings[b"maxbytes"], b"%d" % (64 << 20), "maxbytes for -m 64")
        expect_equal(settings[b"item_size_max"], b"%d" % (2 << 20), "item_size_max for -I 2m")
        expect_equal(settings[b"num_threads"], b"1", "num_threads for -t 1")
        with socket.socket(socket.AF_UNIX) as unix:
            unix.connect(path)
            unix.sendall(b"get a\r\n")
            expect_equal(unix.recv(100), b"VALUE a 0 1\r\nx\r\nEND\r\n", "get over the unix socket")
        with open(pid_file, encoding="ascii") as file:
            expect_equal(int(file.read()), process.pid, "the process id in the file")
        with open(log_path, encoding="utf-8") as log:
            said = log.read()
        for warning in ("`-o modern` is ignored", "`-o hash_algorithm` is ignored"):
            expect(warning in said, f"a warning that {warning}", said)
        too_many = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(12)]
        expect(b"Too many open connections" in too_many[-1].recv(200), "the 13th of 10 connections to be refused", "")
        for connection in too_many:
            connection.close()
        process.send_signal(signal.SIGINT)
        expect_equal(process.wait(30), 0, "the exit status after SIGINT")
        expect(not os.path.exists(path), "the unix socket to be removed", path)
        expect(not os.path.exists(pid_file), "the process id file to be removed", pid_file)
    finally:
        if process.poll() is None:
            process.kill()
    print("memcached's options: passed")


def wait_for_port(process, port, log_path):
    deadline = time.monotonic() + 30
    while True:
        try:
            return Client(("127.0.0.1", port))
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            with open(log_path, encoding="utf-8") as log:
                raise Failure(f"expected a server on port {port}; seen: {log.read()}")
        time.sleep(0.01)


def stats(client, command):
    client.send(command, b"\r\n")
    found = {}
    while (line := client.line()) != b"END":
        _, name, value = line.split(b" ", 2)
        found[name] = value
    return found


def settings_come_in_layers(directory):
    with open(os.path.join(directory, "own.toml"), "w", encoding="ascii") as file:
        file.write('flash-size = "64MiB"\nthreads = 1\ndram = "100MiB"\nmax-item-size = "64KiB"\n')
    environment = {"PUMICE_DRAM": "90MiB", "PATH": os.environ["PATH"]}
    flags = ["--config", "own.toml", "--memcached", "127.0.0.1:0", "--admin", "off", "--max-item-size", "32KiB"]
    process = subprocess.Popen(
        [BINARY, "serve", *flags], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready: "):
                break
        port = int(lines[-1].rsplit(":", 1)[1])
        client = Client(("127.0.0.1", port))
        seen = stats(client, b"stats settings")
        expect_equal(seen[b"num_threads"], b"1", "threads, from the file")
        expect_equal(seen[b"maxbytes"], b"%d" % (90 << 20), "dram, from the environment")
        expect_equal(seen[b"item_size_max"], b"%d" % (32 << 10), "max-item-size, from the flag")
        client.close()
        process.terminate()
        rest = process.stdout.read()
        expect_equal(process.wait(30), 0, "the exit status after SIGTERM")
        expect("stopped: cache closed in" in rest, "how long closing took", rest)
    finally:
        if process.poll() is None:
            process.kill()
    print("settings: passed")


def admin_door(directory):
    with Server(directory, "--dram", "64MiB", "--flash-size", "64MiB") as server:
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
        for line in text.splitlines():
            expect(line.startswith(("pumice_", "# ")), "only metrics named pumice_*", line)
        seen = server.stats()
        expect(seen["index"]["dram_bytes"] > 0 and seen["flash"]["capacity_bytes"] == 64 << 20, "sizes", seen)
        expect(seen["ready"], "ready", json.dumps(seen))
        client.close()
        server.terminate()
    print("admin door: passed")


def idle_server_sleeps(directory):
    def ticks(server):
        with open(f"/proc/{server.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    with Server(directory, "--dram", "64MiB", "--flash-size", "64MiB", "--threads", "4") as server:
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
    print("idle: passed")


def a_flash_file_is_held_by_one_server(directory):
    with Server(directory, "--dram", "64MiB", "--flash-size", "64MiB") as server:
        command = [BINARY, "serve", "--memcached", "127.0.0.1:0", "--admin", "off", "--dram", "64MiB"]
        second = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
        expect(second.returncode == 1 and "in use" in second.stderr, "a second server to be refused", second.stderr)
        server.terminate()
    # Other settings than it was made with are refused, and it is as it was.
    before = os.path.getsize(os.path.join(directory, "pumice.flash"))
    command += ["--flash-size", "128MiB"]
    other = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    expect(other.returncode == 2, "another size to be refused as bad usage", f"{other.returncode}: {other.stderr}")
    for part in ("128 MiB", "64 MiB", "--reformat"):
        expect(part in other.stderr, f"an error that names {part}", other.stderr)
    expect_equal(os.path.getsize(os.path.join(directory, "pumice.flash")), before, "the size of the file")
    with Server(directory, "--dram", "64MiB") as server:
        expect_equal(server.stats()["flash"]["capacity_bytes"], 64 << 20, "the size, without a flag")
        server.terminate()
    with Server(directory, "--dram", "64MiB", "--flash-size", "128MiB", "--reformat") as server:
        expect_equal(server.stats()["flash"]["capacity_bytes"], 128 << 20, "the size after --reformat")
        server.terminate()
    print("flash file: passed")


def test():
    for case in (
        starts_like_memcached,
        settings_come_in_layers,
        admin_door,
        idle_server_sleeps,
        a_flash_file_is_held_by_one_server,
    ):
        with Directory(case.__name__) as directory:
            case(directory)
        sys.stdout.flush()


if __name__ == "__main__":
    main(test)
