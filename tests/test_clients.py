"""Real memcached clients against a server. Words: memccapable, memcaslap with verification, pymemcache. Frames: memccapable, PHP's sessions
and its extension, Dalli, memjs, pylibmc. `--with seconds=60` runs memcaslap so long."""

import os
import re
import subprocess

import pytest

from harness import expect, expect_equal
from harness.machine import ROOT, TARGET, installed, run
from harness.servers import Pumice

PROGRAMS = os.path.join(ROOT, "tests", "clients")
SESSION_PROCESSES, SESSION_INCREMENTS = 4, 50


def memccapable(server):
    host, port = server.address
    status, said = run("memccapable", "-h", host, "-p", port)
    lines = said.splitlines()
    for half in ("ascii ", "binary "):
        tests = [line for line in lines if line.startswith(half)]
        failed = [line for line in tests if "[pass]" not in line]
        expect(status == 0 and tests and not failed, f"all {half}tests of memccapable to pass", "\n".join(lines))
        print(f"memccapable: {len(tests)} {half}tests passed")


def memcaslap(server, seconds):
    host, port = server.address
    # Verifies a fifth of the values it gets, and expiry of a twentieth of them.
    status, said = run("memcaslap", "-s", f"{host}:{port}", "-t", f"{seconds}s", "-T", "2", "-c", "16", "-X", "1k", "-v", "0.2", "-e", "0.05")
    figures = dict(re.findall(r"^(\w+): (\d+)$", said, re.MULTILINE))
    seen = f"status {status}:\n{said[-3000:]}"
    expect(status == 0 and int(figures.get("cmd_get", 0)) > 0, "memcaslap to run", seen)
    for name in ("verify_misses", "verify_failed", "expired_get", "unexpired_unget"):
        expect(figures.get(name) == "0", f"{name} of memcaslap to be 0", seen)
    # Everything fits, so nothing may be missing either, but for keys that are one to the index (37 bits of hash on this device: of
    # 140,000 keys two in one run of fourteen, on average). Each such miss reads the other key's object.
    others = server.stats()["flash"]["key_mismatches"]
    misses = int(figures.get("get_misses", "1000"))
    expect(misses <= min(others, 100), f"get_misses of memcaslap to be 0, or the {others} of keys that share a mapping", seen)
    print(f"memcaslap: {figures['cmd_get']} gets; {misses} misses, {others} reads of another key's object")


def exchange(client, set_many, get_many):
    """What two libraries of Python do alike."""
    large, many = bytes(range(256)) * 4000, {f"k{i}": b"v%d" % i for i in range(500)}
    for call, arguments, expected in [
        ("get", ("none",), None), ("set", ("a", b"1", 100), True), ("get", ("a",), b"1"), ("add", ("a", b"2"), False), ("replace", ("a", b"3"), True),
        ("append", ("a", b"4"), True), ("prepend", ("a", b"2"), True), ("incr", ("a", 6), 240), ("decr", ("a", 300), 0), ("touch", ("a", 100), True),
        ("set", ("large", large), True), ("get", ("large",), large),
    ]:
        expect_equal(getattr(client, call)(*arguments), expected, f"{call} of {arguments[0]}")
    value, unique = client.gets("a")
    expect_equal(value, b"0  ", "gets after decr, padded as memcached pads")
    expect_equal(client.cas("a", b"x", unique), True, "cas with the right unique")
    try:
        stored = client.cas("a", b"y", unique)
    except Exception as error:
        stored = "EXISTS" not in str(error).upper() and error
    expect_equal(stored, False, "cas with an old unique")
    expect_equal(set_many(many), [], "keys that could not be set")
    expect_equal(get_many([*many, "none"]), many, "what is found of many")
    for call, arguments, expected in [("delete", ("a",), True), ("delete", ("a",), False), ("flush_all", (), True), ("get", ("k1",), None)]:
        expect_equal(getattr(client, call)(*arguments), expected, f"{call} of {arguments}")


def pymemcache(server):
    from pymemcache.client.base import Client

    client = Client(server.address, default_noreply=False, connect_timeout=5, timeout=30)
    expect(b"curr_items" in client.stats(), "curr_items in stats", "none")
    expect_equal(client.set("gone", "x", expire=-1), True, "set of an expired object")
    expect_equal(client.get("gone"), None, "get of an expired object")
    exchange(client, client.set_many, client.get_many)
    client.close()


def pylibmc_in_frames(server):
    import pylibmc

    client = pylibmc.Client([server.target], binary=True, behaviors={"cas": True, "tcp_nodelay": True})
    expect_equal(client.set("object", {"list": [1, "two"]}), True, "set of an object")
    expect_equal(client.get("object"), {"list": [1, "two"]}, "get of an object")
    expect(client.get_stats()[0][1], "statistics", "none")
    exchange(client, client.set_multi, client.get_multi)


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
    return program(installed("php"), os.path.join(PROGRAMS, script), *map(str, arguments))


def dalli(*arguments):
    return program(installed("ruby"), os.path.join(PROGRAMS, "dalli.rb"), *arguments)


def memjs(*arguments):
    # ./check installs it there.
    modules = os.path.join(TARGET, "node", "node_modules")
    return program(installed("node"), os.path.join(PROGRAMS, "memjs.js"), *arguments, NODE_PATH=modules)


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
