"""`pumice advise`: sizes to buy for a workload."""

import contextlib
import json
import os
import socket
import subprocess
import threading

from harness import expect, expect_equal
from harness.client import Client
from harness.machine import BINARY
from harness.servers import Memcached

TRACE = "zipf:keys=60000,theta=0.9,requests=600000,seed=1"
COSTS = ["--dram-price", "5", "--flash-price", "0.1", "--backend", "hdd"]


def run(*words, status=0):
    done = subprocess.run([BINARY, "advise", *words], capture_output=True, text=True, timeout=120)
    expect_equal(done.returncode, status, f"the exit status of advise {' '.join(words)}: {done.stderr}")
    return done.stdout if status == 0 else done.stderr


def advise(*words):
    return json.loads(run(TRACE, *COSTS, *words, "--json"))


def rows(report):
    return {row["what"]: row for row in report["rows"]}


def test_advice_is_what_the_engine_does(directory):
    """The figures of the advice are those of `replay` with the sizes of the command line that it prints."""
    report = advise("--have", "dram=64MiB,flash=64MiB", "--tbw", "600", "--span", "3600", "--years", "5")
    found = rows(report)
    best, today = found["advice"], found["today"]
    expect(best["flash_bytes"] > best["dram_bytes"], "more flash than DRAM, where flash costs a fiftieth", str(best))
    expect(best["response_ns"] < today["response_ns"], "the advice to be faster than today's sizes", str(found))
    alone = found["dram alone"]
    expect(alone["flash_bytes"] == 0 and alone["money"] > 2 * best["money"], "DRAM alone to cost more", str(found))
    for row in (best, today):
        words = row["command"].replace("pumice serve", "").replace("--flash PATH", "").split()
        done = subprocess.run([BINARY, "replay", TRACE, *words, "--superblock", "0", "--ops", "look-aside", "--json"], capture_output=True, text=True, timeout=120)
        expect_equal(done.returncode, 0, f"the exit status of replay: {done.stderr}")
        replayed = json.loads(done.stdout)
        for name, of_replay in (("hit_ratio", "object_hit_ratio"), ("bytes_written_host", "bytes_written_host"), ("index", "index")):
            expect_equal(row[name], replayed[of_replay], f"{name} of {row['what']}")
        day = row["bytes_written_host"] * 24
        expect(abs(row["host_bytes_a_day"] / day - 1) < 1e-9, "bytes of a day of an hour's", str(row))
        expect(abs(row["flash_years"] - 600e12 / day / 365) < 1e-6 * row["flash_years"], "years of 600 TB", str(row))
    response = best["dram_hit_ratio"] * 1e3 + (best["hit_ratio"] - best["dram_hit_ratio"]) * report["flash_ns"]
    response += (1 - best["hit_ratio"]) * report["miss_ns"]
    expect(response <= best["response_ns"] * 1.001, "the mean response time of equation 2", str(best))
    text = run(TRACE, *COSTS)
    expect("run: " + best["command"] in text, "the command line in the text", text)


def test_limits_are_kept(directory):
    free = rows(advise("--no-replay"))["advice"]
    within = rows(advise("--no-replay", "--budget", str(free["money"] / 2)))["advice"]
    expect(within["money"] <= free["money"] / 2 and within["response_ns"] > free["response_ns"], "a budget to be kept", str(within))
    within = rows(advise("--no-replay", "--response", f"{2 * free['response_ns']:.0f}ns"))["advice"]
    expect(within["response_ns"] <= 2 * free["response_ns"] and within["money"] <= free["money"], "a time to be kept", str(within))
    text = run(TRACE, *COSTS, "--no-replay", "--response", "2ns")
    expect("no sizes keep --response" in text, "a word of what cannot be", text)


def test_what_a_trace_cannot_say(directory):
    text = run("uniform:keys=1000000,requests=60000,seed=1", *COSTS)
    expect("objects that were not asked for before" in text, "a note that most gets are first ones", text)


def test_bad_numbers_name_their_flag(directory):
    for words, named in (
        (["--dram-price", "-1", "--flash-price", "1", "--backend", "hdd"], "--dram-price"),
        (["--flash-price", "1", "--backend", "hdd"], "--dram-price"),
        (["--dram-price", "5", "--flash-price", "nan", "--backend", "hdd"], "--flash-price"),
        (["--dram-price", "5", "--flash-price", "1"], "--miss-latency"),
        (["--dram-price", "5", "--flash-price", "1", "--miss-latency", "soon"], "--miss-latency"),
        (["--dram-price", "5", "--flash-price", "1", "--miss-latency", "2us"], "--miss-latency"),
        ([*COSTS, "--tbw", "600"], "--span"),
        ([*COSTS, "--years", "5"], "--tbw"),
        ([*COSTS, "--dram-latency", "10s"], "--dram-latency"),
        ([*COSTS, "--dwpd", "1", "--span", "60"], "--drive-size"),
        ([*COSTS, "--have", "flash=1GiB"], "dram=SIZE"),
        ([*COSTS, "--budget", "1", "--response", "1ms"], "--response"),
    ):
        said = run(TRACE, *words, status=2)
        expect(named in said, f"{named} in what advise {' '.join(words)} says", said)
    said = run("/nowhere", *COSTS, status=1)
    expect("/nowhere" in said, "the name of a trace that is not there", said)


def test_record_and_advise(directory):
    """A running memcached is listened to, and the recording is advised on."""
    path = os.path.join(directory, "recorded.csv.zst")
    with Memcached(directory, "-m", "64", "-t", "2") as server:
        words = [BINARY, "trace", "record", path, "--memcached", "%s:%d" % server.address, "--seconds", "6"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as recording:
            client = Client(server.address)
            server.wait_for(lambda: "conn_watch" in client.stats("conns").values(), "the recording to listen")
            gets = sets = 0
            for number in range(4000):
                key = f"key{number * number % 1009}".encode()
                client.send(b"get ", key, b"\r\n")
                gets += 1
                if not client.values():
                    expect_equal(client.command(b"set " + key + b" 0 60 100\r\n" + b"x" * 100), b"STORED", "the reply to set")
                    sets += 1
            said, errors = recording.communicate(timeout=60)
        expect_equal((recording.returncode, said), (0, f"{gets} gets and {sets} sets\n"), f"what was recorded; {errors}")
    info = json.loads(subprocess.run([BINARY, "trace", "info", path, "--json"], capture_output=True, text=True, check=True).stdout)
    expect_equal((info["objects"], info["accesses"]), (sets, gets + sets), "objects and accesses of the recording")
    report = json.loads(run(path, *COSTS, "--json"))
    expect_equal((report["requests"], report["sets"], report["objects"]), (gets, sets, sets), "gets, sets and objects of the recording")
    expect(abs(report["hit_ratio_max"] - (gets - sets) / gets) < 1e-9, "hits of a cache of everything", str(report))


def test_a_peer_that_ends_no_line(directory):
    """It takes no memory, and is not listened to for ever."""
    path = os.path.join(directory, "out.csv")
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            connection, _ = other.accept()
            connection.recv(100)
            connection.sendall(b"OK\r\n")
            with contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"x" * 65536)
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        words = [BINARY, "trace", "record", path, "--memcached", "127.0.0.1:%d" % other.getsockname()[1]]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        thread.join()
    expect(done.returncode == 1 and "a line of more than" in done.stderr, "an error that says what is wrong", done.stderr)
    expect(not os.path.exists(path + ".part"), "no file to be left", "")


def test_an_address_that_is_no_memcached(directory):
    with socket.create_server(("127.0.0.1", 0)) as other:
        path = os.path.join(directory, "out.csv")
        address = "127.0.0.1:%d" % other.getsockname()[1]

        def answer():
            connection, _ = other.accept()
            connection.recv(100)
            connection.sendall(b"-ERR unknown command\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        done = subprocess.run([BINARY, "trace", "record", path, "--memcached", address], capture_output=True, text=True, timeout=60)
        thread.join()
        expect(done.returncode == 1 and "-ERR unknown command" in done.stderr, "the answer in the error", done.stderr)
        expect(not os.path.exists(path) and not os.path.exists(path + ".part"), "no file to be left", "")
    done = subprocess.run([BINARY, "trace", "record", path, "--memcached", address], capture_output=True, text=True, timeout=60)
    expect(done.returncode == 1 and address in done.stderr, "an error that names the address", done.stderr)
