"""`pumice advise`: sizes to buy for a workload; and `pumice trace record`, which records one."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from harness import expect, expect_equal
from harness.client import Client
from harness.machine import BINARY
from harness.servers import Memcached, Pumice

TRACE = "zipf:keys=60000,theta=0.9,requests=200000,seed=1"
COSTS = ["--dram-price", "5", "--flash-price", "0.1", "--backend", "hdd"]


def program(*words, status=0, cwd=None):
    """What the program prints, or where it fails its error."""
    done = subprocess.run([BINARY, *words], cwd=cwd, capture_output=True, text=True, timeout=120)
    expect_equal(done.returncode, status, f"the exit status of {' '.join(words)}: {done.stderr}")
    return done.stdout if status == 0 else done.stderr


def run(*words, status=0):
    return program("advise", *words, status=status)


def advise(*words, trace=TRACE):
    return json.loads(run(trace, *COSTS, *words, "--json"))


def rows(report):
    return {row["what"]: row for row in report["rows"]}


def replay(row, *flags):
    """A replay with the sizes of the command line that a row prints."""
    words = row["command"].replace("pumice serve", "").replace("--flash PATH", "").split()
    return json.loads(program("replay", TRACE, *words, "--superblock", "0", "--ops", "look-aside", "--json", *flags))


def check_life(report, best):
    """Years that flash lasts by cycles, and under twice the traffic; the lines that say so."""
    twice = report["twice"]
    amplification = best["device_write_amplification"]
    expect(1 <= amplification < 2, "what a drive writes for each byte that it is sent", str(best))
    years = 3000 * best["flash_bytes"] / (best["host_bytes_a_day"] * amplification) / 365
    expect(abs(best["flash_years_by_cycles"] / years - 1) < 1e-9, "years of 3000 cycles", str(best))
    expect(years < best["flash_years"], "cells to be worn out first, of so little flash", str(best))
    expect_equal(twice["flash_years"], best["flash_years_by_cycles"] / 2, "years under twice the traffic")
    expect_equal(twice["is_too_short"], twice["flash_years"] < 5, "whether that is less than --years")
    reads = best["hit_ratio"] - best["dram_hit_ratio"]
    expect(abs(twice["flash_reads_a_second"] / (2 * reads * report["requests"] / 3600) - 1) < 0.1, "reads of flash", str(twice))
    return (f"by --cycles the flash lasts {years:.1f} years",
            f"twice the traffic: the same sizes; the flash would have to take {twice['flash_reads_a_second']:.0f} reads a second")


def test_advice_is_what_the_engine_does():
    """The figures of the advice are those of `replay` with the sizes of the command line that it prints, and the same by any number of threads."""
    flags = ["--have", "dram=64MiB,flash=64MiB", "--tbw", "600", "--cycles", "3000", "--span", "3600", "--years", "5"]
    report = advise(*flags, "--jobs", "1")
    found = rows(report)
    expect(len(report["rows"]) > 3, "some rows", str(report["rows"]))
    expect_equal(advise(*flags, "--jobs", "4")["rows"], report["rows"], "the rows of four threads")
    best, today = found["advice"], found["today"]
    expect(best["flash_bytes"] > best["dram_bytes"], "more flash than DRAM, where flash costs a fiftieth", str(best))
    expect(best["response_ns"] < today["response_ns"], "the advice to be faster than today's sizes", str(found))
    alone = found["dram alone"]
    expect(alone["flash_bytes"] == 0 and alone["money"] > 2 * best["money"], "DRAM alone to cost more", str(found))
    for row in (best, today):
        replayed = replay(row)
        for name, of_replay in (("hit_ratio", "object_hit_ratio"), ("bytes_written_host", "bytes_written_host"), ("index", "index")):
            expect_equal(row[name], replayed[of_replay], f"{name} of {row['what']}")
        timed = replay(row, "--throttle", "nvme", "--dram-latency", "1us", "--miss-latency", f"{report['miss_ns']:.0f}ns")
        expect(abs(timed["object_hit_ratio"] - row["hit_ratio"]) < 0.005, "the hits in virtual time", f"{timed} {row}")
        off = abs(timed["response_ns"] - row["response_ns"])
        expect(off < 0.05 * row["response_ns"], "the response time in virtual time", f"{timed} {row}")
        expect(abs(off - row["response_error_ns"]) < 5, "the error to be what that differs by", f"{off}: {row}")
        day = row["bytes_written_host"] * 24
        expect(abs(row["host_bytes_a_day"] / day - 1) < 1e-9, "bytes of a day of an hour's", str(row))
        expect(abs(row["flash_years"] - 600e12 / day / 365) < 1e-6 * row["flash_years"], "years of 600 TB", str(row))
    response = best["dram_hit_ratio"] * 1e3 + (best["hit_ratio"] - best["dram_hit_ratio"]) * report["flash_ns"]
    response += (1 - best["hit_ratio"]) * report["miss_ns"]
    expect(response <= best["response_ns"] * 1.001, "the mean response time of equation 2", str(best))
    expect_equal([rule["rule"] for rule in best["by_rule"]], ["second-hit", "random:0.25"], "the rules of the advice")
    for rule in best["by_rule"]:
        replayed = replay(best, "--flash-admit", rule["rule"])
        expect_equal(rule["hit_ratio"], replayed["object_hit_ratio"], f"hits with {rule['rule']}")
        expect_equal(rule["bytes_written_host"], replayed["bytes_written_host"], f"bytes written with {rule['rule']}")
        expect(rule["bytes_written_host"] < best["bytes_written_host"], "fewer bytes than with all", str(best))
    text = run(TRACE, *COSTS, *flags)
    for words in (*check_life(report, best), "run: " + best["command"], "figures are of look-aside: a get that misses is followed by a set",
                  "knees of LRU's curve"):
        expect(words in text, words, text)


def test_a_limit_is_kept_or_the_nearest_is_said():
    free = rows(advise("--no-replay"))["advice"]
    within = rows(advise("--no-replay", "--budget", str(free["money"] / 2)))["advice"]
    expect(within["money"] <= free["money"] / 2 and within["response_ns"] > free["response_ns"], "a budget to be kept", str(within))
    within = rows(advise("--no-replay", "--response", f"{2 * free['response_ns']:.0f}ns"))["advice"]
    expect(within["response_ns"] <= 2 * free["response_ns"] and within["money"] < free["money"], "a response time to be kept", str(within))
    text = run(TRACE, *COSTS, "--no-replay", "--response", "2ns")
    expect("no sizes keep --response; the nearest are shown" in text, "a word of what cannot be", text)


def test_a_page_is_known_to_be_writable_before_the_work(directory):
    said = run("zipf:keys=60000,theta=0.9,requests=9000000000,seed=1", *COSTS, "--html", "/nowhere/page.html", status=1)
    expect("/nowhere/page.html" in said, "the path in the error", said)
    page = os.path.join(directory, "page.html")
    run("/nowhere", *COSTS, "--html", page, status=1)
    expect_equal(os.listdir(directory), [], "what is left where there is no advice")
    words = [BINARY, "advise", "zipf:keys=60000,theta=0.9,requests=9000000000,seed=1", *COSTS, "--html", page]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not os.path.exists(page + ".part") and time.monotonic() < deadline:
            time.sleep(0.01)
        process.terminate()
    expect_equal(os.listdir(directory), ["page.html.part"], "what is left by a signal")
    run(TRACE, *COSTS, "--no-replay", "--html", page)
    with open(page) as file:
        expect("</html>" in file.read(), "a whole page", page)
    expect_equal(os.listdir(directory), ["page.html"], "what is there in the end")


def test_where_no_flash_is_needed_that_is_said_with_a_line_to_run(directory):
    small = ["zipf:keys=1000,theta=0.9,requests=20000,seed=1", *COSTS, "--no-replay"]
    page = os.path.join(directory, "page.html")
    text = run(*small, "--html", page)
    for line in ("no flash is needed: 16 MiB of DRAM alone are the advice", "run: memcached -m 16"):
        expect(line in text.splitlines(), line, text)
    with open(page) as file:
        expect("No flash is needed" in file.read(), "the same on the page", page)
    expect_equal(rows(json.loads(run(*small, "--json")))["advice"]["command"], "memcached -m 16", "the command in JSON")


def test_the_grid_has_the_smallest_dram_that_a_server_takes(directory):
    """Where flash is as good as DRAM and costs nothing, it is all that is bought beside what a server needs."""
    costs = ["--dram-price", "1000", "--flash-price", "0.001", "--miss-latency", "10ms", "--flash-latency", "1.1us"]
    advice = rows(json.loads(run(TRACE, *costs, "--no-replay", "--json")))["advice"]
    dram, flash = advice["dram_bytes"] >> 20, advice["flash_bytes"]
    said = program("serve", "--flash", "f", "--flash-size", f"{flash}B", "--memcached", "127.0.0.1:0", "--admin", "off", "--dram", f"{dram - 1}MiB",
                   status=2, cwd=directory)
    expect(f"the smallest that works is {dram} MiB" in said, f"a server to want the {dram} MiB", said)


def test_what_a_trace_cannot_say(directory):
    """Most gets are first ones; or there are no times: the last column of format `arc` counts records, so no years are made of it."""
    text = run("uniform:keys=1000000,requests=60000,seed=1", *COSTS)
    expect("objects that were not asked for before" in text, "a note that most gets are first ones", text)
    path = os.path.join(directory, "t.lis")
    with open(path, "w") as file:
        file.writelines(f"{number % 20000 * 8} 8 0 {number}\n" for number in range(60000))
    words = [path, "--format", "arc", *COSTS, "--no-replay"]
    expect("--span: the trace has no times" in run(*words, "--tbw", "600", status=2), "a trace without times to be told", path)
    for flags, span in (([], None), (["--tbw", "600", "--span", "3600"], 3600)):
        expect_equal(json.loads(run(*words, *flags, "--json"))["span_seconds"], span, f"the span with {flags}")


def test_bad_numbers_name_their_flag():
    for words, named in (
        (["--dram-price", "-1", "--flash-price", "1", "--backend", "hdd"], "--dram-price"),
        (["--flash-price", "1", "--backend", "hdd"], "--dram-price"),
        (["--dram-price", "5", "--flash-price", "nan", "--backend", "hdd"], "--flash-price"),
        (["--dram-price", "5", "--flash-price", "1"], "--miss-latency"),
        (["--dram-price", "5", "--flash-price", "1", "--miss-latency", "soon"], "--miss-latency"),
        (["--dram-price", "5", "--flash-price", "1", "--miss-latency", "2us"], "--miss-latency"),
        ([*COSTS, "--tbw", "600"], "--span"),
        ([*COSTS, "--years", "5"], "--tbw"),
        ([*COSTS, "--cycles", "3000"], "--span"),
        ([*COSTS, "--jobs", "0"], "--jobs"),
        ([*COSTS, "--dram-latency", "10s"], "--dram-latency"),
        ([*COSTS, "--dwpd", "1", "--span", "60"], "--drive-size"),
        ([*COSTS, "--have", "flash=1GiB"], "dram=SIZE"),
        ([*COSTS, "--budget", "1", "--response", "1ms"], "--response"),
    ):
        said = run(TRACE, *words, status=2)
        expect(named in said, f"{named} in what advise {' '.join(words)} says", said)
    said = run("/nowhere", *COSTS, status=1)
    expect("/nowhere" in said, "the name of a trace that is not there", said)


def load(clients):
    """4,000 gets by turns, and a set where one misses: how many of each."""
    gets = sets = 0
    for number in range(4000):
        client, key = clients[number % len(clients)], f"key{number * number % 1009}".encode()
        client.send(b"get ", key, b"\r\n")
        gets += 1
        if not client.values():
            expect_equal(client.command(b"set " + key + b" 0 60 100\r\n" + b"x" * 100), b"STORED", "the reply to set")
            sets += 1
    return gets, sets


def test_record_and_advise(directory):
    """A running memcached is listened to, and the recording is advised on."""
    path = os.path.join(directory, "recorded.csv.zst")
    with Memcached(directory, "-m", "64", "-t", "2") as server:
        with record(path, "--memcached", "%s:%d" % server.address, "--seconds", "4") as recording:
            client = Client(server.address)
            server.wait_for(lambda: "conn_watch" in client.stats("conns").values(), "the recording to listen")
            gets, sets = load([client])
            said, errors = recording.communicate(timeout=60)
        expect_equal((recording.returncode, said), (0, f"{gets} gets and {sets} sets\n"), f"what was recorded; {errors}")
    info = json.loads(program("trace", "info", path, "--json"))
    expect_equal((info["objects"], info["accesses"]), (sets, gets + sets), "objects and accesses of the recording")
    report = advise(trace=path)
    expect_equal((report["requests"], report["sets"], report["objects"]), (gets, sets, sets), "gets, sets and objects of the recording")
    expect(abs(report["hit_ratio_max"] - (gets - sets) / gets) < 1e-9, "hits of a cache of everything", str(report))


def record(path, *words):
    """A recording under way."""
    return subprocess.Popen([BINARY, "trace", "record", path, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pumice(directory, *flags):
    return Pumice(directory, "--flash-size", "64MiB", "--dram", "64MiB", "--threads", "2", *flags)


def admin(server):
    return server.admin.removeprefix("http://")


def rows_of(path):
    with open(path) as file:
        expect_equal(file.readline(), "time,id,size,op,ttl\n", "the head of a recording")
        return [line.rstrip("\n").split(",") for line in file]


def test_record_from_a_pumice(directory):
    """What a Pumice is asked for is told as what it is, without keys, until a signal ends it."""
    path = os.path.join(directory, "recorded.csv")
    with pumice(directory) as server, record(path, "--admin", admin(server), "--seconds", "90") as recording:
        server.wait_for_log("a recording of requests begins")
        clients = [Client(server.address) for _ in range(4)]
        gets, sets = load(clients)
        expect_equal(clients[0].command(b"touch key1 1000"), b"TOUCHED", "the reply to touch")
        expect_equal(clients[0].command(b"delete key1"), b"DELETED", "the reply to delete")
        status, why = server.get("/requests")
        expect(status == 409 and "one at a time" in why, "a second recording to be refused", f"{status} {why}")
        second = os.path.join(directory, "second.csv")
        said = program("trace", "record", second, "--admin", admin(server), status=1)
        expect("409" in said and not os.path.exists(second), "an error that says so", said)
        # They are told within milliseconds.
        time.sleep(1)
        recording.send_signal(signal.SIGTERM)
        said, errors = recording.communicate(timeout=60)
        expect_equal((recording.returncode, said), (0, f"{gets} gets, {sets} sets, 1 touches and 1 deletes: ended by a signal\n"), f"what was recorded; {errors}")
        server.wait_for_log("the recording of requests ends")
        expect(b"key" not in open(path, "rb").read(), "no key in the recording", "")
        rows = rows_of(path)
        expect_equal(len({row[1] for row in rows}), sets, "the keys of the recording")
        changes = {(size, "set", "60") for size in ("104", "105", "106", "107")} | {("", "delete", "")}
        expect_equal({tuple(row[2:]) for row in rows if row[3] != "get"}, changes, "sizes of key and value, and seconds to live")
        expect_equal(sum(row[2] == "" and row[3] == "get" for row in rows), sets, "misses, of which no size is known")
        expect_equal([row[0] for row in rows], sorted(row[0] for row in rows), "times in order")
        server.check_books()
    report = advise(trace=path)
    expect_equal((report["requests"], report["sets"], report["objects"]), (gets + 1, sets, sets), "gets, sets and objects of the recording")


def test_a_recorder_that_is_slow_misses_requests(directory):
    """They are counted, and the server does not wait for it."""
    with pumice(directory) as server, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        host, port = admin(server).split(":")
        slow.connect((host, int(port)))
        slow.sendall(b"GET /requests HTTP/1.0\r\n\r\n")
        server.wait_for_log("a recording of requests begins")
        client = Client(server.address)
        batches, keys = 600, 1000
        for _ in range(batches):
            client.send(b"get", *(b" k%d" % number for number in range(keys)), b"\r\n")
            expect_equal(client.values(), {}, "the reply to gets of nothing")
        heard = bytearray()
        lines, skipped, deadline = 0, 0, time.monotonic() + 60
        while lines + skipped < batches * keys:
            part = slow.recv(1 << 20)
            expect(part and time.monotonic() < deadline, "all requests to be told or counted", f"{lines} lines, {skipped} skipped")
            heard += part
            *whole, rest = heard.split(b"\n")
            heard = bytearray(rest)
            lines += sum(b" get " in line for line in whole)
            skipped += sum(int(line[8:]) for line in whole if line.startswith(b"skipped="))
        expect_equal(lines + skipped, batches * keys, "requests that were told or counted")
        expect(lines > 1000 and skipped > 1000, "some of both", f"{lines} lines, {skipped} skipped")


def test_a_sample_of_a_pumice(directory):
    path = os.path.join(directory, "recorded.csv")
    with pumice(directory) as server, record(path, "--admin", admin(server), "--sample", "1/8", "--seconds", "90") as recording:
        server.wait_for_log("a recording of requests begins, of one key in 8")
        client = Client(server.address)
        for _ in range(20):
            client.send(b"get", *(b" k%d" % number for number in range(800)), b"\r\n")
            client.values()
        time.sleep(1)
        recording.send_signal(signal.SIGINT)
        said, errors = recording.communicate(timeout=60)
        rows = rows_of(path)
        keys = {row[1] for row in rows}
        expect_equal(len(rows), 20 * len(keys), "all requests of the keys that are recorded")
        expect(40 < len(keys) < 200, "about an eighth of 800 keys", str(len(keys)))
        expect(f"note: {16000 - len(rows)} requests were of keys that are not in the sample" in said, "how many the others are", said + errors)


# What who is asked answers, again and again where it goes on, and what the error says.
PEERS = {
    "older": ("--admin", b"HTTP/1.0 404 Not Found\r\n\r\n", None, "older"),
    "says why": ("--admin", b"HTTP/1.0 404 Not Found\r\n\r\nno requests are told here\n", None, "no requests are told here"),
    "a page": ("--admin", b"HTTP/1.0 200 OK\r\n\r\n<html>\n", None, "<html>"),
    "no door": ("--admin", b"ERROR\r\n", None, "`ERROR`"),
    "silent": ("--admin", b"", None, "closed the connection"),
    "drips": ("--admin", b"HTTP/1.0 200 OK\r\n", b"x\n", "takes too long"),
    "drips as memcached": ("--memcached", b"", b"x", "takes too long"),
    "ends no line": ("--memcached", b"OK\r\n", b"x" * 65536, "a line of more than"),
    "no memcached": ("--memcached", b"-ERR unknown command\r\n", None, "-ERR unknown command"),
}


@contextlib.contextmanager
def peer(answer, more):
    """An address at which every connection is answered so; and an event that says that one was."""
    is_asked = threading.Event()

    def serve(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(1000)
            connection.sendall(answer)
            is_asked.set()
            while more:
                connection.sendall(more)
                time.sleep(0.2 if len(more) < 10 else 0)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield "127.0.0.1:%d" % listener.getsockname()[1], is_asked


@pytest.mark.parametrize("name", PEERS)
def test_who_is_nobody_to_listen_to_is_named(directory, name):
    """One that goes on without an end takes no memory, and is not listened to for ever; a signal ends the program before that."""
    flag, answer, more, named = PEERS[name]
    path = os.path.join(directory, "out.csv")
    with peer(answer, more) as (address, is_asked):
        if name.startswith("drips"):
            with record(path, flag, address) as recording:
                expect(is_asked.wait(60), "the peer to be asked", "nothing")
                recording.send_signal(signal.SIGTERM)
                recording.communicate(timeout=60)
            expect_equal(recording.returncode, -signal.SIGTERM, "how the program ended")
        said = program("trace", "record", path, flag, address, status=1)
        expect(named in said and (more or address in said), f"an error with {named} and {address}", said)
    expect_equal(os.listdir(directory), [], "what is left")


def test_addresses_that_are_none_are_told(directory):
    path = os.path.join(directory, "out.csv")
    for words, status, named in (((), 2, "--admin"), (("--memcached", "127.0.0.1:1", "--admin", "127.0.0.1:2"), 2, "--admin"),
                                 (("--admin", "127.0.0.1:1"), 1, "cannot connect"), (("--memcached", "127.0.0.1:1"), 1, "127.0.0.1:1"),
                                 (("--admin", "here"), 2, "such as 127.0.0.1:11250"), (("--memcached", "here"), 2, "such as 127.0.0.1:11211")):
        said = program("trace", "record", path, *words, status=status)
        expect(named in said, named, said)


def test_a_pumice_that_is_gone_is_noticed(directory):
    """It says each second that it is there."""
    path = os.path.join(directory, "out.csv")
    with socket.create_server(("127.0.0.1", 0)) as other, record(path, "--admin", "127.0.0.1:%d" % other.getsockname()[1]) as recording:
        connection, _ = other.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\npumice requests 1\n10 get 5 0 miss\n\n")
            said, errors = recording.communicate(timeout=60)
    expect_equal((recording.returncode, said), (0, "1 gets and 0 sets: Pumice said nothing for 10 s\n"), f"what was recorded; {errors}")
