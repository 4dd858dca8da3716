"""Real memcached clients against a server. Words: memccapable, memcaslap with verification, pymemcache. Frames: memccapable, PHP's sessions
and its extension, Dalli, memjs, pylibmc. `--with seconds=60` runs memcaslap so long."""

import os
import re
import subprocess

import pytest

from harness import expect, expect_equal
from harness.machine import ROOT, TARGET, installed
from harness.servers import Pumice

PROGRAMS = os.path.join(ROOT, "tests", "clients")
SESSION_PROCESSES, SESSION_INCREMENTS = 4, 50


def memccapable(server):
    host, port = server.address
    command = [installed("memccapable", "libmemcached-tools"), "-h", host, "-p", str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines() + done.stderr.splitlines()
    for half in ("ascii ", "binary "):
        tests = [line for line in lines if line.startswith(half)]
        failed = [line for line in tests if "[pass]" not in line]
        expect(done.returncode == 0 and tests and not failed, f"all {half}tests of memccapable to pass", "\n".join(lines))
        print(f"memccapable: {len(tests)} {half}tests passed")


def memcaslap(server, seconds):
    host, port = server.address
    # Verifies a fifth of the values it gets, and expiry of a twentieth of them.
    command = [installed("memcaslap", "libmemcached-tools"), "-s", f"{host}:{port}", "-t", f"{seconds}s", "-T", "2", "-c", "16", "-X", "1k"]
    command += ["-v", "0.2", "-e", "0.05"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    figures = dict(re.findall(r"^(\w+): (\d+)$", done.stdout, re.MULTILINE))
    seen = f"status {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    expect(done.returncode == 0 and int(figures.get("cmd_get", 0)) > 0, "memcaslap to run", seen)
    for name in ("verify_misses", "verify_failed", "expired_get", "unexpired_unget"):
        expect(figures.get(name) == "0", f"{name} of memcaslap to be 0", seen)
    # Everything fits, so nothing may be missing either, but for keys that are one to the index (37 bits of hash on this device: of
    # 140,000 keys two in one run of fourteen, on average). Each such miss reads the other key's object.
    others = server.stats()["flash"]["key_mismatches"]
    misses = int(figures.get("get_misses", "1000"))
    expect(misses <= min(others, 100), f"get_misses of memcaslap to be 0, or the {others} of keys that share a mapping", seen)
    run = re.search(r"^Run time: .*$", done.stdout, re.MULTILINE)
    print(f"memcaslap: {run[0] if run else figures}; {misses} misses, {others} reads of another key's object")


def pymemcache(server):
    from pymemcache.client.base import Client

    client = Client(server.address, default_noreply=False, connect_timeout=5, timeout=30)
    expect_equal(client.set("a", "1"), True, "set")
    expect_equal(client.get("a"), b"1", "get")
    expect_equal(client.add("a", "2"), False, "add of a key that is there")
    expect_equal(client.replace("a", "3"), True, "replace")
    expect_equal(client.append("a", "4"), True, "append")
    expect_equal(client.prepend("a", "2"), True, "prepend")
    expect_equal(client.incr("a", 6), 240, "incr of 234")
    expect_equal(client.decr("a", 300), 0, "decr below 0")
    value, unique = client.gets("a")
    expect_equal(value, b"0  ", "gets after decr, padded as memcached pads")
    expect_equal(client.cas("a", "x", unique), True, "cas with the right unique")
    expect_equal(client.cas("a", "y", unique), False, "cas with an old unique")
    expect_equal(client.touch("a", 100), True, "touch")
    expect_equal(client.set("gone", "x", expire=-1), True, "set of an expired object")
    expect_equal(client.get("gone"), None, "get of an expired object")
    large = bytes(range(256)) * 4000
    expect_equal(client.set("large", large), True, "set of a large value")
    expect_equal(client.get("large"), large, "get of a large value")
    many = {f"k{i}": f"v{i}" for i in range(500)}
    expect_equal(client.set_many(many), [], "keys that set_many could not set")
    expect_equal(client.get_many(list(many)), {k: v.encode() for k, v in many.items()}, "what get_many finds")
    expect_equal(client.delete("a"), True, "delete")
    expect_equal(client.delete("a"), False, "delete of a key that is not there")
    expect(b"curr_items" in client.stats(), "curr_items in stats", "none")
    expect_equal(client.flush_all(), True, "flush_all")
    expect_equal(client.get("k1"), None, "get after flush_all")
    client.close()


@pytest.mark.parametrize(("dram", "flags"), [
    ("64MiB", ()),
    ("72MiB", ("--layout", "clock", "--index", "cascade")),
    ("96MiB", ("--layout", "ripq", "--index", "cascade")),
    ("96MiB", ("--layout", "sipq", "--index", "cascade")),
])
def test_clients(directory, size, dram, flags):
    with Pumice(directory, "--dram", dram, "--flash-size", "256MiB", *flags) as server:
        memccapable(server)
        pymemcache(server)
        memcaslap(server, size("seconds", 4, 10))
        server.check_books()
        server.terminate()


def program(*command, **environment):
    """Starts a client that ends with status 0 if all is as it expects."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment})


def ended(process):
    """What a client printed."""
    said, _ = process.communicate(timeout=120)
    expect_equal(process.returncode, 0, f"the status of {' '.join(process.args)}, which said {said[-1500:]!r}")
    return said


def php(script, *arguments):
    return program(installed("php", "php-cli"), os.path.join(PROGRAMS, script), *map(str, arguments))


def dalli(*arguments):
    return program(installed("ruby", "ruby-dalli"), os.path.join(PROGRAMS, "dalli.rb"), *arguments)


def memjs(*arguments):
    # ./check installs it there.
    modules = os.path.join(TARGET, "node", "node_modules")
    return program(installed("node", "nodejs"), os.path.join(PROGRAMS, "memjs.js"), *arguments, NODE_PATH=modules)


def pylibmc_in_frames(server):
    import pylibmc

    client = pylibmc.Client([server.target], binary=True, behaviors={"cas": True, "tcp_nodelay": True})
    expect_equal(client.get("a"), None, "get of nothing")
    expect_equal(client.set("a", {"list": [1, "two"]}, time=100), True, "set")
    value, unique = client.gets("a")
    expect_equal(value, {"list": [1, "two"]}, "gets")
    expect_equal(client.cas("a", "first", unique), True, "cas with the right unique")
    try:
        stored = client.cas("a", "second", unique)
    except pylibmc.Error:
        stored = False
    expect_equal(stored, False, "cas with an old unique")
    expect_equal(client.add("a", 1), False, "add of a key that is there")
    expect_equal(client.replace("a", 41), True, "replace")
    expect_equal(client.incr("a"), 42, "incr")
    expect_equal(client.decr("a", 100), 0, "decr below 0")
    expect_equal(client.touch("a", 100), True, "touch")
    many = {f"k{i}": "x" * i for i in range(500)}
    expect_equal(client.set_multi(many), [], "keys that set_multi could not set")
    expect_equal(client.get_multi([*many, "none"]), many, "what get_multi finds")
    large = bytes(range(256)) * 4000
    expect_equal(client.set("large", large), True, "set of a large value")
    expect_equal(client.get("large"), large, "get of a large value")
    expect_equal(client.delete("a"), True, "delete")
    expect_equal(client.delete("a"), False, "delete of a key that is not there")
    expect(client.get_stats()[0][1], "statistics", "none")
    expect_equal(client.flush_all(), True, "flush_all")
    expect_equal(client.get("k1"), None, "get after flush_all")


def php_sessions(server):
    """Each process takes the lock of the session, reads a number in it, and writes it back: none may be lost."""
    writers = [php("sessions.php", server.target, "session", SESSION_INCREMENTS) for _ in range(SESSION_PROCESSES)]
    numbers = [int(ended(writer)) for writer in writers]
    expect_equal(max(numbers), SESSION_PROCESSES * SESSION_INCREMENTS, "what the last of the processes reads")


def test_clients_that_speak_in_frames(directory):
    with Pumice(directory, "--dram", "64MiB", "--flash-size", "256MiB") as server:
        php_sessions(server)
        ended(php("extension.php", server.target))
        ended(dalli(server.target))
        ended(memjs(server.target))
        pylibmc_in_frames(server)
        server.check_books()
        server.terminate()


def test_clients_that_come_in_by_sasl(directory):
    users = os.path.join(directory, "users")
    with open(users, "w") as file:
        file.write("foo:bar\n")
    with Pumice(directory, "--dram", "64MiB", "--flash-size", "256MiB", "--auth-file", users) as server:
        ended(dalli(server.target, "foo", "bar"))
        ended(memjs(server.target, "foo", "bar"))
        for client in (dalli, memjs):
            stranger = client(server.target, "foo", "baz")
            said, _ = stranger.communicate(timeout=120)
            expect(stranger.returncode != 0, f"{' '.join(stranger.args)} to be refused", said)
        server.terminate()
