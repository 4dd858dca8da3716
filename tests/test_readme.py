"""README's tables. The rows of commands run as they are printed; names of files, addresses and devices are replaced by those of a test. The rows
of peers are of one commit, and not old."""

import contextlib
import datetime
import os
import re
import shutil
import subprocess
import time

import pytest

from harness import Failure, expect, expect_equal
from harness.client import Client
from harness.machine import BENCH, BINARY, ROOT
from harness.servers import Memcached, Pumice, Server, Volume

MIB = 1 << 20
# What ends by itself may be cut short: generators go on for long.
SECONDS = 60
# Of the figures against peers.
DAYS_MAX = 30


PROGRAMS = {"pumice": BINARY, "pumice-bench": BENCH}


def commands():
    """Every `pumice …` and `pumice-bench …` of the first column, in order."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        cells = re.findall(r"^\| (`pumice[ -][^|]*) \|", file.read(), re.MULTILINE)
    return [found for cell in cells for found in re.findall(r"`(pumice[ -][^`]*)`", cell)]


def test_the_table_is_found():
    kinds = {" ".join(command.split()[:2]) for command in commands()}
    wanted = [f"pumice {kind}" for kind in ("serve", "replay", "advise", "trace", "inspect")]
    wanted += [f"pumice-bench {kind}" for kind in ("memcached", "nbd", "device")]
    expect_equal(kinds, set(wanted), "the commands in README's table")


@pytest.mark.parametrize("command", commands())
def test_a_row_runs(directory, command):
    program, *words = command.split()
    with contextlib.ExitStack() as servers:
        if words[0] == "serve":
            serves(directory, words)
            return
        if words[0] == "inspect":
            Pumice(directory, "--flash", "pumice.flash", "--flash-size", "64MiB").terminate()
        names = {"TRACE": trace(directory), "PATH": "scratch", "OUT": "out.csv"}
        if "127.0.0.1:11211" in words or "ADDR" in words:
            server = servers.enter_context(Pumice(directory, "--dram", "128MiB", "--flash-size", "64MiB"))
            names |= {"127.0.0.1:11211": server.target, "ADDR": server.target}
        if "nbd://127.0.0.1/disk" in words:
            disk = os.path.join(directory, "disk")
            with open(disk, "wb") as file:
                file.write(os.urandom(16 * MIB))
            volume = servers.enter_context(Volume(directory, disk, "--cache", "cache", "--cache-size", "16MiB"))
            names["nbd://127.0.0.1/disk"] = volume.uri
        if words[:2] == ["trace", "record"]:
            # A Pumice says nothing of requests at its memcached port.
            server = servers.enter_context(Memcached(directory))
            names["ADDR"] = server.target
        process = subprocess.Popen([PROGRAMS[program], *(names.get(word, word) for word in words)], cwd=directory, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        if words[:2] == ["trace", "record"]:
            client = Client(server.address)
            server.wait_for(lambda: "conn_watch" in client.stats("conns").values(), "the recording to listen")
            client.command(b"get k")
            time.sleep(0.5)
            process.terminate()
        try:
            said = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"expected `{command}` to end within {SECONDS} s") from None
        expect(process.returncode == 0 and said[0], f"`{command}` to succeed and to say something", said)


def trace(directory):
    """A small trace with times and sizes."""
    path = os.path.join(directory, "trace")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(f"{n} {n * n % 50021} {200 + n % 1000}\n" for n in range(1, 100_001))
    return path


def serves(directory, words):
    """It becomes ready, with addresses that the system chooses."""
    shutil.copy(os.path.join(ROOT, "pumice.toml"), directory)
    with open(os.path.join(directory, "disk"), "wb") as file:
        file.truncate(64 * MIB)
    names = {"/dev/nvme1n1": "flash", "127.0.0.1:11211,unix:/run/pumice.sock": f"127.0.0.1:0,unix:{directory}/m", "PATH": "tier",
             "unix:PATH": f"unix:{directory}/n", "127.0.0.1:8080": "127.0.0.1:0", "16GiB": "64MiB"}
    words = [names.get(word, word) for word in words]
    files = iter(["disk", "cache"])
    words = [next(files) if word == "FILE" else word for word in words]
    words += ["--admin", "127.0.0.1:0"]
    if not {"--nbd", "--memcached", "--http"} & set(words):
        words += ["--memcached", "127.0.0.1:0"]
    with Server("pumice", directory, [BINARY, *words]) as server:
        server.wait_for_log("ready: ", 60)
        server.terminate()


def test_the_table_of_peers_is_of_one_commit_and_not_old():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        table = file.read().split("<!-- table of peers")[1].split("<!-- end of the table -->")[0]
    measured = re.findall(r"^Measured on (\d{4}-\d\d-\d\d), commit ([0-9a-f]{7,40}): ", table, re.MULTILINE)
    expect_equal(len(measured), 1, "dates and commits of the table")
    rows = re.findall(r"^\|.*\|$", table, re.MULTILINE)[2:]
    expect(len(rows) >= 10, "rows of the table", rows)
    expect_equal([row for row in rows if row.count("|") != 6 or re.search(r"\b(?=\w*[a-f])(?=\w*\d)[0-9a-f]{7,40}\b", row)], [],
                 "rows with a commit of their own")
    git = subprocess.run(["git", "log", "-1", "--format=%cs"], cwd=ROOT, capture_output=True, text=True)
    # Outside a checkout, in an unpacked archive, nothing changes any more.
    if git.returncode == 0:
        age = datetime.date.fromisoformat(git.stdout.strip()) - datetime.date.fromisoformat(measured[0][0])
        expect(age.days <= DAYS_MAX, f"a table that was made at most {DAYS_MAX} days before the last commit; bench/bench.py readme makes it", age)
