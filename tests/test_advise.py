"""`pumice advise`: sizes to buy for a workload."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time

from harness import expect, expect_equal
from harness.client import Client
from harness.machine import BINARY
from harness.servers import Memcached, Pumice

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
        times = ["--throttle", "nvme", "--dram-latency", "1us", "--miss-latency", f"{report['miss_ns']:.0f}ns"]
        done = subprocess.run([BINARY, "replay", TRACE, *words, *times, "--superblock", "0", "--ops", "look-aside", "--json"], capture_output=True,
                              text=True, timeout=120)
        expect_equal(done.returncode, 0, f"the exit status of a replay that tells times: {done.stderr}")
        timed = json.loads(done.stdout)
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
        words = [*best["command"].replace("pumice serve", "").replace("--flash PATH", "").split(), "--flash-admit", rule["rule"]]
        replayed = json.loads(subprocess.run([BINARY, "replay", TRACE, *words, "--superblock", "0", "--ops", "look-aside", "--json"],
                                             capture_output=True, text=True, timeout=120, check=True).stdout)
        expect_equal(rule["hit_ratio"], replayed["object_hit_ratio"], f"hits with {rule['rule']}")
        expect_equal(rule["bytes_written_host"], replayed["bytes_written_host"], f"bytes written with {rule['rule']}")
        expect(rule["bytes_written_host"] < best["bytes_written_host"], "fewer bytes than with all", str(best))
    text = run(TRACE, *COSTS)
    expect("run: " + best["command"] in text, "the command line in the text", text)


def test_the_life_of_flash(directory):
    """By bytes written and by cycles, and under twice the traffic."""
    flags = ["--tbw", "600", "--cycles", "3000", "--span", "3600", "--years", "5"]
    report = advise(*flags)
    best, twice = rows(report)["advice"], report["twice"]
    amplification = best["device_write_amplification"]
    expect(1 <= amplification < 2, "what a drive writes for each byte that it is sent", str(best))
    years = 3000 * best["flash_bytes"] / (best["host_bytes_a_day"] * amplification) / 365
    expect(abs(best["flash_years_by_cycles"] / years - 1) < 1e-9, "years of 3000 cycles", str(best))
    expect(years < best["flash_years"], "cells to be worn out first, of so little flash", str(best))
    expect_equal(twice["flash_years"], best["flash_years_by_cycles"] / 2, "years under twice the traffic")
    expect_equal(twice["is_too_short"], twice["flash_years"] < 5, "whether that is less than --years")
    reads = best["hit_ratio"] - best["dram_hit_ratio"]
    expect(abs(twice["flash_reads_a_second"] / (2 * reads * report["requests"] / 3600) - 1) < 0.1, "reads of flash", str(twice))
    text = run(TRACE, *COSTS, *flags)
    for line in (f"by --cycles the flash lasts {years:.1f} years", f"twice the traffic: the same sizes; the flash would have to take {twice['flash_reads_a_second']:.0f} reads a second"):
        expect(line in text, line, text)


def test_the_life_of_the_flash_of_a_server(directory):
    """In its first hour it has no pace; a rating that says nothing is refused."""
    with pumice(directory, "--dwpd", "1", "--drive-size", "960") as server:
        figures = server.stats()["lifetime"]
        expect(list(figures) == ["host_bytes"] and figures["host_bytes"] > 0, "bytes sent so far, and no pace", str(figures))
    for flags, named in ((["--dwpd", "1"], "--drive-size"), (["--tbw", "600TB"], "--tbw"), (["--warranty", "5"], "--dwpd")):
        done = subprocess.run([BINARY, "serve", *flags], cwd=directory, capture_output=True, text=True, timeout=30)
        expect(done.returncode == 2 and named in done.stderr, f"usage that names {named}", done.stderr)


def test_rows_are_the_same_by_any_number_of_threads(directory):
    flags = ["--have", "dram=64MiB,flash=64MiB", "--span", "3600"]
    one, four = (advise(*flags, "--jobs", jobs) for jobs in ("1", "4"))
    expect(len(one["rows"]) > 3, "some rows", str(one["rows"]))
    expect_equal(four["rows"], one["rows"], "the rows of four threads")


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


def test_limits_are_kept(directory):
    free = rows(advise("--no-replay"))["advice"]
    within = rows(advise("--no-replay", "--budget", str(free["money"] / 2)))["advice"]
    expect(within["money"] <= free["money"] / 2 and within["response_ns"] > free["response_ns"], "a budget to be kept", str(within))
    within = rows(advise("--no-replay", "--response", f"{2 * free['response_ns']:.0f}ns"))["advice"]
    expect(within["response_ns"] <= 2 * free["response_ns"] and within["money"] <= free["money"], "a time to be kept", str(within))
    text = run(TRACE, *COSTS, "--no-replay", "--response", "2ns")
    expect("no sizes keep --response" in text, "a word of what cannot be", text)


def test_where_no_flash_is_needed_that_is_said_with_a_line_to_run(directory):
    small = ["zipf:keys=1000,theta=0.9,requests=20000,seed=1", *COSTS, "--no-replay"]
    page = os.path.join(directory, "page.html")
    text = run(*small, "--html", page)
    for line in ("no flash is needed: 16 MiB of DRAM alone are the advice", "run: memcached -m 16"):
        expect(line in text.splitlines(), line, text)
    with open(page) as file:
        expect("No flash is needed" in file.read(), "the same on the page", page)
    expect_equal(rows(json.loads(run(*small, "--json")))["advice"]["command"], "memcached -m 16", "the command in JSON")


def test_figures_are_said_to_be_of_look_aside_and_knees_are_shown(directory):
    """A loop of 2,000 objects of 10 KB, one of 6,000, in turns."""
    path = os.path.join(directory, "loops")
    with open(path, "w", encoding="ascii") as file:
        keys = [*range(2_000)] * 20 + [*range(2_000, 8_000)] * 5
        file.writelines(f"{second} {key} 10000\n" for second, key in enumerate(keys, 1))
    text = run(path, *COSTS, "--no-replay")
    expect("figures are of look-aside: a get that misses is followed by a set" in text, "what the figures are of", text)
    knees = [size for size, _ in json.loads(run(path, *COSTS, "--no-replay", "--json"))["knees"]]
    expect(len(knees) == 2 and 20e6 <= knees[0] < 23e6 and 60e6 <= knees[1] < 66e6, "a knee for each loop", knees)
    expect("knees of LRU's curve" in text, "them in the text", text)


def test_the_grid_has_the_smallest_dram_that_a_server_takes(directory):
    """Where flash is as good as DRAM and costs nothing, it is all that is bought beside what a server needs."""
    costs = ["--dram-price", "1000", "--flash-price", "0.001", "--miss-latency", "10ms", "--flash-latency", "1.1us"]
    advice = rows(json.loads(run(TRACE, *costs, "--no-replay", "--json")))["advice"]
    dram, flash = advice["dram_bytes"] >> 20, advice["flash_bytes"]
    words = [BINARY, "serve", "--flash", "f", "--flash-size", f"{flash}B", "--memcached", "127.0.0.1:0", "--admin", "off"]
    done = subprocess.run([*words, "--dram", f"{dram - 1}MiB"], cwd=directory, capture_output=True, text=True, timeout=60)
    expect(done.returncode == 2 and f"the smallest that works is {dram} MiB" in done.stderr, f"a server to want the {dram} MiB", done)


def test_what_a_trace_cannot_say(directory):
    text = run("uniform:keys=1000000,requests=60000,seed=1", *COSTS)
    expect("objects that were not asked for before" in text, "a note that most gets are first ones", text)


def test_a_trace_without_times_needs_its_span(directory):
    """The last column of format `arc` counts records: no years are made of it."""
    path = os.path.join(directory, "t.lis")
    with open(path, "w") as file:
        file.writelines(f"{number % 20000 * 8} 8 0 {number}\n" for number in range(60000))
    words = [BINARY, "advise", path, "--format", "arc", *COSTS, "--no-replay"]
    done = subprocess.run([*words, "--tbw", "600"], capture_output=True, text=True, timeout=120)
    expect(done.returncode == 2 and "--span: the trace has no times" in done.stderr, "a trace without times to be told", str(done))
    for flags, span in (([], None), (["--tbw", "600", "--span", "3600"], 3600)):
        done = subprocess.run([*words, *flags, "--json"], capture_output=True, text=True, timeout=120, check=True)
        expect_equal(json.loads(done.stdout)["span_seconds"], span, f"the span with {flags}")


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
        gets = sets = 0
        for number in range(4000):
            client, key = clients[number % 4], f"key{number * number % 1009}".encode()
            client.send(b"get ", key, b"\r\n")
            gets += 1
            if not client.values():
                expect_equal(client.command(b"set " + key + b" 0 60 100\r\n" + b"x" * 100), b"STORED", "the reply to set")
                sets += 1
        expect_equal(clients[0].command(b"touch key1 1000"), b"TOUCHED", "the reply to touch")
        expect_equal(clients[0].command(b"delete key1"), b"DELETED", "the reply to delete")
        status, why = server.get("/requests")
        expect(status == 409 and "one at a time" in why, "a second recording to be refused", f"{status} {why}")
        second = os.path.join(directory, "second.csv")
        done = subprocess.run([BINARY, "trace", "record", second, "--admin", admin(server)], capture_output=True, text=True, timeout=30)
        expect(done.returncode == 1 and "409" in done.stderr and not os.path.exists(second), "an error that says so", done.stderr)
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
    report = json.loads(run(path, *COSTS, "--json"))
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


def test_who_to_listen_to(directory):
    """Exactly one address; one that tells no requests is said to."""
    path = os.path.join(directory, "out.csv")
    for words in ((), ("--memcached", "127.0.0.1:1", "--admin", "127.0.0.1:2")):
        done = subprocess.run([BINARY, "trace", "record", path, *words], capture_output=True, text=True, timeout=30)
        expect(done.returncode == 2 and "--memcached" in done.stderr and "--admin" in done.stderr, "usage that names both flags", done.stderr)
    for answer, named in (
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "older"),
        (b"HTTP/1.0 404 Not Found\r\n\r\nno requests are told here\n", "no requests are told here"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>\n", "<html>"),
        (b"ERROR\r\n", "`ERROR`"),
        (b"", "closed the connection"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as other:

            def reply(other=other, answer=answer):
                connection, _ = other.accept()
                connection.recv(1000)
                connection.sendall(answer)
                connection.close()

            thread = threading.Thread(target=reply)
            thread.start()
            address = "127.0.0.1:%d" % other.getsockname()[1]
            done = subprocess.run([BINARY, "trace", "record", path, "--admin", address], capture_output=True, text=True, timeout=30)
            thread.join()
        expect(done.returncode == 1 and named in done.stderr and address in done.stderr, f"an error with {named}", done.stderr)
    done = subprocess.run([BINARY, "trace", "record", path, "--admin", address], capture_output=True, text=True, timeout=30)
    expect(done.returncode == 1 and "cannot connect" in done.stderr, "an error where nothing listens", done.stderr)
    expect(os.listdir(directory) == [], "no file to be left", str(os.listdir(directory)))


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


def test_a_peer_that_drips_and_a_signal_before_it_has_answered(directory):
    """There is one deadline for all of its answer; a signal ends the program, as there is no recording yet."""
    path = os.path.join(directory, "out.csv")
    for flag, head in (("--admin", b"HTTP/1.0 200 OK\r\n"), ("--memcached", b"")):
        with socket.create_server(("127.0.0.1", 0)) as other:
            is_asked = threading.Event()

            def answer(other=other, head=head, is_asked=is_asked):
                for _ in range(2):
                    connection, _ = other.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(1000)
                        connection.sendall(head)
                        is_asked.set()
                        while True:
                            connection.sendall(b"x")
                            time.sleep(0.2)
                            connection.sendall(b"\n" if head else b"x")

            thread = threading.Thread(target=answer)
            thread.start()
            address = "127.0.0.1:%d" % other.getsockname()[1]
            with record(path, flag, address) as recording:
                is_asked.wait(60)
                recording.send_signal(signal.SIGTERM)
                recording.communicate(timeout=60)
            expect_equal(recording.returncode, -signal.SIGTERM, "how the program ended")
            done = subprocess.run([BINARY, "trace", "record", path, flag, address], capture_output=True, text=True, timeout=30)
            thread.join()
        expect(done.returncode == 1 and "takes too long" in done.stderr, "an error that says so", done.stderr)
    expect_equal(os.listdir(directory), [], "what is left")
    for flag, example in (("--admin", "127.0.0.1:11250"), ("--memcached", "127.0.0.1:11211")):
        done = subprocess.run([BINARY, "trace", "record", path, flag, "here"], capture_output=True, text=True, timeout=30)
        expect(done.returncode == 2 and f"such as {example}" in done.stderr, "an example of this kind of address", done.stderr)


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
