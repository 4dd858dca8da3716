"""The HTTP door against nginx, Traffic Server and Varnish."""

import contextlib
import functools
import itertools
import json
import lzma
import math
import os
import random
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from comparison import Comparison, case
from harness import Failure, expect, machine
from harness.servers import fresh_directory
from harness.web import Answer, Body, Connection, Cut, Http, Nginx, Origin, OriginProcess, Peer, free_port
from tools import percent, points, removed, replay, thousands

from .items import beside_tier, tier_bytes
from traces import SHARED

MIB = 1 << 20
TLS = os.path.join(machine.ROOT, "crates", "doors", "memcached", "tests", "data", "server.%s")


# --- servers -------------------------------------------------------------------------------------------------------------

def nginx(directory, origin, _, flash, in_page_cache=False, **how):
    # Where all files are in the page cache, threads for them cost it half of its rate.
    cache = (f"proxy_cache_path {directory}/c levels=1:2 keys_zone=c:64m max_size={flash}m inactive=1d use_temp_path=off; proxy_http_version 1.1; "
             f"proxy_cache_revalidate on; proxy_cache_lock on; sendfile on; tcp_nopush off; {'aio threads;' * (not in_page_cache)} ssl_certificate {TLS % 'crt'}; ssl_certificate_key {TLS % 'key'};")
    tls = f"listen 127.0.0.1:{free_port()} ssl http2;"
    one = Nginx(directory, f"proxy_pass {origin.url}; proxy_set_header Connection ''; proxy_cache c;", cache, f"; {tls[:-1]}", **how)
    one.tls = tls.split()[1]
    return one


def traffic_server(directory, origin, ram, flash, **how):
    port = free_port()
    shutil.copytree("/etc/trafficserver", directory, dirs_exist_ok=True)
    places = {"bindir": "/usr/bin", "sbindir": "/usr/sbin", "includedir": "/usr/include", "libdir": "/usr/lib/trafficserver", "libexecdir": "/usr/lib/trafficserver/modules"}
    places |= dict.fromkeys(("prefix", "exec_prefix", "sysconfdir", "datadir", "localstatedir", "runtimedir", "logdir", "cachedir"), directory)
    settings = {"exec_thread.autoconfig": "INT 0", "exec_thread.limit": "INT 1", "cache.ram_cache.size": f"INT {ram * MIB}", "log.logging_enabled": "INT 0",
                "http.server_ports": f"STRING {port}:ip-in=127.0.0.1", "admin.user_id": "STRING trafficserver"}
    for name, text in {"runroot.yaml": "\n".join(f"{name}: {place}" for name, place in places.items()), "storage.config": f"{directory} {flash}M",
                       "records.config": "\n".join(f"CONFIG proxy.config.{name} {value}" for name, value in settings.items()),
                       "remap.config": f"map / {origin.url}/"}.items():
        with open(os.path.join(directory, name), "w") as file:
            file.write(text + "\n")
    machine.run("chown", "-R", "trafficserver", directory)
    return Peer("traffic_server", directory, ["env", f"TS_RUNROOT={directory}", machine.installed("traffic_server")], port, **how)


def varnish(directory, origin, _, flash, **how):
    port = free_port()
    command = [machine.installed("varnishd"), "-F", "-j", "none", "-n", directory, "-a", f"127.0.0.1:{port}", "-b", origin.url.removeprefix("http://"),
               "-s", f"file,{directory}/store,{flash}M"]
    return Peer("varnishd", directory, command, port, **how)


PEERS = {"nginx": nginx, "nginx, page cache": functools.partial(nginx, in_page_cache=True), "Traffic Server": traffic_server,
         "Varnish": varnish}


@contextlib.contextmanager
def served(comparison, side, origin, dram, flash, *flags, ram=0, group=None):
    """Pumice, or a peer, before an origin; sizes in MiB. `ram` is of Traffic Server's own tier."""
    directory, how = fresh_directory(comparison.directory, "served"), {"group": group, "core": comparison.server_core}
    if side == "Pumice":
        server = Http(directory, origin, "--threads", 1, "--dram", f"{dram}MiB", "--flash-size", f"{flash}MiB", *flags, **how)
    else:
        server = PEERS[side](directory, origin, ram, flash, **how)
    with removed(directory), server:
        yield server


def seconds_of(pid):
    """CPU time of a process and all below it."""
    children = " ".join(machine.read(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task"))
    return machine.cpu_seconds(pid) + sum(seconds_of(child) for child in children.split())


# --- load ------------------------------------------------------------------------------------------------------------------

def get(connection, path, host=None):
    """Every byte of what comes is compared. The host is as wrk and h2load have it, or another."""
    answer = connection.ask(path, host=host or "%s:%d" % connection.address)
    expect(answer.status == 200 and answer.body == bytes(Body(path, size_of(path))), f"the body of {path}", answer.words)


def size_of(url):
    return int(url.split("/")[1])


def fill(server, urls, connections=4, host=None):
    """Every URL once."""
    def some(part):
        with contextlib.closing(Connection(server.address)) as connection:
            for url in part:
                get(connection, url, host)

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(some, [urls[n::connections] for n in range(connections)]))


SCRIPT = """local urls, at = {}, 0
function init(words) for line in io.lines(words[1]) do urls[#urls + 1] = wrk.format("GET", line) end end
function request() at = at % #urls + 1 return urls[at] end
function done(all, latency) local e = all.errors
  io.write(string.format('{"requests": %d, "us": %d, "failed": %d}', all.requests, all.duration, e.connect + e.read + e.write + e.status + e.timeout)) end
"""


def wrk(comparison, server, urls, seconds):
    """32 connections that ask for URLs in this order, over and over: requests, and seconds."""
    with comparison.files("wrk.lua", "urls") as (script, list_of_urls):
        for path, text in ((script, SCRIPT), (list_of_urls, "\n".join(urls))):
            with open(path, "w") as file:
                file.write(text)
        command = ["-t1", "-c32", f"-d{math.ceil(seconds)}s", "-s", script, f"http://{server.target}", "--", list_of_urls]
        _, said = machine.run("wrk", *command, core=comparison.load_core, timeout=seconds + 60)
    report = json.loads(said[said.find("{"):])
    expect(report["failed"] == 0, "no failed request", said)
    return report["requests"], report["us"] / 1e6


def h2load(comparison, *words):
    status, said = machine.run("h2load", *words, core=comparison.load_core, timeout=600)
    rate, done, good = re.search(r"finished in .*, ([\d.]+) req/s.*\s(\d+) done, (\d+) succeeded", said, re.DOTALL).groups()
    expect(status == 0 and done == good, "only good answers", said)
    return int(done), int(done) / float(rate)


def measured(server, origin, name, load):
    """Figures of a load that returns (requests, seconds), of which all but one in a hundred must be hits."""
    fetched, cpu, own = origin.count(), seconds_of(server.pid), machine.own_seconds()
    requests, seconds = load()
    cpu, own, misses = seconds_of(server.pid) - cpu, machine.own_seconds() - own, origin.count() - fetched
    expect(misses <= requests / 100, "hits", f"{misses} misses in {requests} requests of {server.name}")
    found = {"rate": requests / cpu, "requests/s": requests / seconds, "cpu us": cpu / requests * 1e6, "idle": 1 - own / seconds, "misses": misses}
    return {f"{name}: {figure}": value for figure, value in found.items()}


def rate_row(comparison, name, what, must, aim):
    comparison.row(f"{what}: hits per CPU second", f"{name}: rate", must, aim, thousands, cpu=f"{name}: cpu us")
    comparison.row(f"{what}: requests/s", f"{name}: requests/s", "", "", thousands, client=f"{name}: idle")


def against(arguments, settings, *names):
    """A comparison with these peers, by their packages."""
    packages = machine.run("dpkg-query", "-W", *(name.lower().replace(" ", "") for name in names))[1]
    return Comparison(arguments, {**settings, "peers": ", ".join(packages.split())}, "Pumice", names[0])


def both(comparison, origin, peer, turn, dram, flash, *flags, ram=0):
    """Turns of Pumice and of a peer, each in a memory cgroup of as many MiB; `turn` is given the server."""
    def side(name):
        def one(_):
            with comparison.group(dram, "side") as group, served(comparison, name, origin, dram, flash, *flags, ram=ram, group=group) as server:
                return turn(server)

        return one

    comparison.sides["peer"] = peer
    comparison.turns(side("Pumice"), side(peer))


@case(seconds=10, dram=512, cgroup=True, quick={"seconds": 1, "pairs": 1})
def http_dram(arguments):
    """Hits in DRAM over HTTP/1.1 against nginx with its files in the page cache: bodies of 1 KiB and of 64 KiB, wrk with 32 connections.

    `serve --threads 1 --dram 512MiB`; nginx as docs/http.md has it, one worker. All threads of a server are on one core, wrk on the other."""
    comparison = against(arguments, {"connections": 32, "DRAM MiB": arguments.dram, "seconds": arguments.seconds}, "nginx")
    with OriginProcess(comparison.load_core) as origin:
        def turn(server):
            found = {}
            for name, length, count in (("1 KiB", 1024, 10_000), ("64 KiB", 65_536, 1000)):
                urls = [f"/{length}/{n}" for n in range(count)]
                fill(server, urls)
                wrk(comparison, server, urls, 2)
                found |= measured(server, origin, name, lambda: wrk(comparison, server, urls, arguments.seconds))
            return found

        both(comparison, origin, "nginx, page cache", turn, arguments.dram, 2048)
    rate_row(comparison, "1 KiB", "DRAM hits of 1 KiB against nginx", "≥ 1.2 ×", "≥ 2 ×")
    rate_row(comparison, "64 KiB", "DRAM hits of 64 KiB against nginx", "≥ 1.0 ×", "≥ 1.25 ×")
    return comparison


class OnFlash:
    """Bodies of 4 to 148 KiB, asked for by Zipf 0.9: eight times the DRAM, in flash of 3 GiB."""

    FLASH = 3072

    def __init__(self, arguments):
        rng = random.Random(1)
        self.urls = [f"/{int(4096 * (148 / 4) ** rng.random())}/{n}" for n in range(arguments.bodies)]
        self.drawn = rng.choices(self.urls, [1 / (n + 1) ** 0.9 for n in range(arguments.bodies)], k=300_000)

    def fill(self, comparison, server):
        fill(server, self.urls[::-1])
        wrk(comparison, server, self.drawn, 3)


BODIES = {"seconds": 10, "dram": 256, "cgroup": True, "bodies": (52_000, "bodies"), "quick": {"seconds": 1, "pairs": 1, "bodies": 2000}}


@case(**BODIES)
def http_flash(arguments):
    """Hits on flash over HTTP/1.1 against nginx and Traffic Server: 52,000 bodies of 4 to 148 KiB, Zipf 0.9, 256 MiB each, 3 GiB of flash.

    Each URL is asked for once, least popular first, then 32 connections of wrk ask in an order drawn before. Traffic Server's own tier has what Pumice has
    for items and index."""
    comparison = against(arguments, {"bodies": arguments.bodies, "connections": 32, "seconds": arguments.seconds}, "nginx", "Traffic Server")
    bodies = OnFlash(arguments)
    with OriginProcess(comparison.load_core) as origin:
        for peer in ("nginx", "Traffic Server"):
            def turn(server):
                bodies.fill(comparison, server)
                return measured(server, origin, peer, lambda: wrk(comparison, server, bodies.drawn, arguments.seconds))

            both(comparison, origin, peer, turn, arguments.dram, bodies.FLASH, ram=arguments.dram // 2)
    rate_row(comparison, "nginx", "flash hits against nginx", "≥ 2 ×", "≥ 3.3 ×")
    rate_row(comparison, "Traffic Server", "flash hits against Traffic Server", "≥ 1.0 ×", "≥ 1.4 ×")
    return comparison


@case(**BODIES)
def http_latency(arguments):
    """p99 of the flash hits of http-flash against nginx, at 70 % of nginx's peak: 32 processes of `h2load --h1 --rps`, each with an order of its own."""
    comparison, bodies = against(arguments, {"bodies": arguments.bodies, "seconds": arguments.seconds}, "nginx"), OnFlash(arguments)
    rates = []

    def turn(server):
        bodies.fill(comparison, server)
        if not rates:
            requests, seconds = wrk(comparison, server, bodies.drawn, arguments.seconds)
            rates.append(0.7 * requests / seconds)
            comparison.note(f"nginx's peak: {requests / seconds:.0f} requests/s")
        names = [name for n in range(32) for name in (f"urls-{n}", f"times-{n}")]
        with comparison.files(*names) as paths, contextlib.ExitStack() as stack:
            for n in range(32):
                with open(paths[2 * n], "w") as file:
                    file.write("\n".join(f"http://{server.target}{url}" for url in random.Random(n).sample(bodies.drawn, 20_000)))
                command = ["h2load", "--h1", "-c1", f"-D{arguments.seconds:g}", f"--rps={rates[0] / 32:.3f}", "-i", paths[2 * n], f"--log-file={paths[2 * n + 1]}"]
                stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, **machine.confine(comparison.load_core, None)))
            stack.close()
            times = [line.split() for path in paths[1::2] for line in machine.read(path).splitlines()]
        expect(times and all(status == "200" for _, status, _ in times), "good answers", len(times))
        times = sorted(int(us) for _, _, us in times)
        return {"p99_us": times[len(times) * 99 // 100], "p50_us": times[len(times) // 2], "requests_per_second": len(times) / arguments.seconds}

    with OriginProcess(comparison.load_core) as origin:
        if comparison.runs_side("peer"):
            with comparison.group(arguments.dram, "peak") as group, served(comparison, "nginx", origin, 0, bodies.FLASH, group=group) as server:
                turn(server)
        both(comparison, origin, "nginx", turn, arguments.dram, bodies.FLASH)
    comparison.row(f"p99 of flash hits at {sum(rates):.0f}/s (70 % of nginx's peak)", "p99_us", "≤ 1.0 ×", "≤ 0.5 ×", "{:.0f} us".format)
    return comparison


@case(seconds=10, dram=512, cgroup=True, quick={"seconds": 1, "pairs": 1})
def http_h2(arguments):
    """Hits of 1 KiB over TLS and HTTP/2 against nginx: h2load with 32 connections of 10 streams."""
    comparison = against(arguments, {"connections": 32, "streams": 10, "seconds": arguments.seconds}, "nginx")
    with OriginProcess(comparison.load_core) as origin:
        def turn(server):
            place = server.place("HTTP with TLS") if isinstance(server, Http) else server.tls

            def load(seconds=arguments.seconds):
                return h2load(comparison, "-c32", "-m10", "-D", f"{seconds:g}", f"https://{place}/1024/h2")

            load(1)
            return measured(server, origin, "h2", load)

        flags = ["--http-tls", "127.0.0.1:0", "--tls-certificate", TLS % "crt", "--tls-key", TLS % "key"]
        both(comparison, origin, "nginx, page cache", turn, arguments.dram, 2048, *flags)
    rate_row(comparison, "h2", "hits of 1 KiB over TLS and HTTP/2 against nginx", "reported", "≥ 1.0 ×")
    return comparison


# --- traces ---------------------------------------------------------------------------------------------------------------

TRACES = {"wiki-train": "wiki_sampled_train_trace.tsv.zst", "wiki-val": "wiki_sampled_val_trace.tsv.zst", "adaptsize": "adaptsize-bu98.request.trace.xz"}
TRACE_DRAM = 64


def requests_of(name, shared, most=None):
    """The URLs of a trace; an object has the size of its first request."""
    path, sizes, urls = os.path.join(shared, "object", TRACES[name]), {}, []
    if path.endswith(".xz"):
        text = lzma.open(path, "rt").read()
    else:
        text = subprocess.run([machine.installed("zstd"), "-dc", path], capture_output=True, check=True, text=True).stdout
    for line in text.splitlines():
        _, number, size, *_ = line.split()
        if size.isdecimal():
            urls.append(f"/{sizes.setdefault(number, int(size))}/{number}")
    return urls[:most]


def of_trace(comparison, origin, urls, side, flash, *flags, dram=TRACE_DRAM, more=0):
    """Hit ratio of a trace, one request at a time, and what the server said in the end. `more` is given to peers beside `flash`."""
    with served(comparison, side, origin, dram, flash + (more if side != "Pumice" else 0), "--max-connections", 64, *flags, ram=1) as server:
        fetched, connection = origin.count(), Connection(server.address)
        for url in urls:
            try:
                get(connection, url)
            except (Cut, Failure):
                # Varnish, which finds no room for a large one.
                if side == "Pumice":
                    raise
                connection = Connection(server.address)
        found = {"hit ratio": 1 - (origin.count() - fetched) / len(urls)}
        if side == "Pumice":
            found["stats"] = server.stats()
        return found


SHORT = {"pairs": 1, "shared": SHARED, "trace": ([], "only this one; may be given again"), "requests": (10_000_000, "at most so many"),
         "quick": {"requests": 3000}}


def chosen(arguments):
    """Of each trace its URLs, and a tenth of its footprint in MiB."""
    for name in arguments.trace or TRACES:
        urls = requests_of(name, arguments.shared, arguments.requests)
        yield name, urls, max(16, sum(map(size_of, set(urls))) // 10 >> 20)


@case(**SHORT)
def http_ratio(arguments):
    """Object hit ratio of three traces, one request at a time, every byte compared: against Traffic Server, Varnish and LRU with as many bytes.

    Flash is a tenth of the footprint; `serve --threads 1 --dram 64MiB`. What that leaves for items in DRAM the peers get as well, in their stores. LRU, which
    is nginx's order, is `replay --layout exact --policy lru`. Bodies have the size of their first request. The last rows are `replay --config` with the
    server's own settings and the sizes that it stores."""
    comparison = against(arguments, {"flash": "10 % of the footprint", "DRAM MiB": TRACE_DRAM}, "Traffic Server", "Varnish")
    with OriginProcess(comparison.load_core) as origin:
        for name, urls, flash in chosen(arguments):
            comparison.sides["peer"] = "Traffic Server"
            more = [0]

            def ours(_):
                found = of_trace(comparison, origin, urls, "Pumice", flash)
                hits, offered, more[0] = found["hit ratio"], found["stats"]["books"]["offered"], tier_bytes(found["stats"]) >> 20
                head = (offered["bytes"] - (1 - hits) * sum(map(size_of, urls))) / offered["entries"]
                again = replayed(comparison, urls, max(0, round(head)), "--dram-pool", f"{more[0]}MiB", "--flash-size", f"{flash}MiB", "--policy", "gdsf-3")
                return {**{f"{name}, {peer}": hits for peer in ("Traffic Server", "Varnish", "LRU")}, f"{name}, off": abs(hits - again), "stats": found["stats"]}

            def theirs(_):
                found = {f"{name}, {peer}": of_trace(comparison, origin, urls, peer, flash, more=more[0])["hit ratio"] for peer in ("Traffic Server", "Varnish")}
                lru = replayed(comparison, urls, 0, "--flash-size", f"{flash + more[0]}MiB", "--layout", "exact", "--policy", "lru")
                return found | {f"{name}, LRU": lru}

            comparison.turns(ours, theirs)
    for name in arguments.trace or TRACES:
        for peer, must, aim in (("Traffic Server", "≥ 1.10 ×", "≥ 1.18 ×"), ("Varnish", "≥ 1.10 ×", "≥ 1.18 ×"), ("LRU", "≥ 1.0 ×", "≥ 1.04 ×")):
            comparison.row(f"{name}: object hit ratio against {peer}", f"{name}, {peer}", must, aim, percent)
        comparison.row(f"{name}: off a replay of the stored sizes", f"{name}, off", "≤ 1 points", "≤ 0.3 points", points)
    return comparison


def replayed(comparison, urls, head, *flags):
    """The hit ratio of a replay, each object with so many bytes beside its body."""
    with comparison.files("trace.csv") as (path,):
        with open(path, "w") as file:
            file.writelines(f"{int(url.split('/')[2])},{size_of(url) + head}\n" for url in urls)
        return replay(path, "--format", "csv", "--columns", "id=1,size=2", *flags)["object_hit_ratio"]


@case(**SHORT)
def http_ripq(arguments):
    """What RIPQ brings: gdsf-3 against `--layout fifo` of the same server, on three traces; and on jedi-v by replays."""
    comparison = Comparison(arguments, {"flash": "10 % of the footprint", "DRAM MiB": TRACE_DRAM}, "gdsf-3", "fifo")
    with OriginProcess(comparison.load_core) as origin:
        for name, urls, flash in chosen(arguments):
            comparison.turns(*[lambda _, flags=flags: {name: of_trace(comparison, origin, urls, "Pumice", flash, *flags)["hit ratio"]}
                               for flags in ((), ("--layout", "fifo"))])
    trace = os.path.join(arguments.shared, "object", "jedi-v.gen_sequence.txt.zst")
    if not arguments.trace and not arguments.quick:
        comparison.turns(*[lambda _, flags=flags: {"jedi-v": replay(trace, "--format", "jedi", "--flash-size", "10%", *flags)["object_hit_ratio"]}
                           for flags in (("--policy", "gdsf-3"), ("--layout", "fifo"))])
    for name in arguments.trace or [*TRACES, "jedi-v"]:
        must, aim = ("≥ 1.05 ×", "≥ 1.10 ×") if name == "jedi-v" else ("≥ 1.10 ×", "≥ 1.25 ×" if name == "adaptsize" else "≥ 1.13 ×")
        comparison.row(f"{name}: object hit ratio, gdsf-3 against fifo", name, must, aim, percent)
    return comparison


# --- bytes, restarts, collapse -----------------------------------------------------------------------------------------------

@case(pairs=1, shared=SHARED, stored=(1_000_000, "responses of 1 KiB"), quick={"stored": 150_000})
def http_bytes(arguments):
    """Bytes appended to flash for each byte of a response that is stored (wiki-train), and for a 304 on 1 MiB; DRAM for a response of 1 KiB.

    The last is the slope of resident memory beside the DRAM tier and block buffers, from a third of the responses to all, under `--dram 128MiB`."""
    comparison = Comparison(arguments, {"responses": arguments.stored})

    def traced():
        urls = requests_of("wiki-train", arguments.shared, 5000 if arguments.quick else None)
        with OriginProcess(comparison.load_core) as origin:
            stats = of_trace(comparison, origin, urls, "Pumice", max(16, sum(map(size_of, set(urls))) // 10 >> 20))["stats"]
        return stats["flash"]["appended_bytes"] / stats["books"]["offered"]["bytes"]

    def validated():
        def answer(request):
            return Answer(b"" if request["if-none-match"] else Body("1", MIB), (("cache-control", "max-age=1"), ("etag", '"1"')), 304 if request["if-none-match"] else 200)

        with Origin() as origin, served(comparison, "Pumice", origin, 256, 1024) as server:
            origin.answers["/1"] = answer
            server.ask("/1")
            before, times = server.stats()["flash"]["appended_bytes"], 3
            for _ in range(times):
                time.sleep(2.1)
                expect(len(server.ask("/1").body) == MIB, "the body", "another")
            expect(len(origin.asked("/1")) == times + 1, "a validation each", len(origin.asked("/1")))
            return (server.stats()["flash"]["appended_bytes"] - before) / times

    def slope():
        place, readings = fresh_directory(comparison.directory, "origin"), []
        with removed(place), Nginx(place, f'return 200 "{"x" * 1024}"; expires 1d;', core=comparison.load_core) as origin, \
                served(comparison, "Pumice", origin, 128, 4096, "--max-connections", 64) as server:
            for count in (arguments.stored // 3, arguments.stored):
                while (stored := server.stats()["http"]["stored"]) < count:
                    wrk(comparison, server, [f"/{n}" for n in range(stored, count)], 5)
                readings.append(beside_tier(server))
        return (readings[1]["bytes"] - readings[0]["bytes"]) / (readings[1]["items"] - readings[0]["items"])

    comparison.turns(lambda _: {"appended": traced(), "304": validated(), "DRAM": slope()})
    comparison.row("bytes appended to flash / bytes of responses stored, wiki-train", "appended", "≤ 1.3", "≤ 1.15", "{:.3f}".format)
    comparison.row("bytes appended for a 304 on 1 MiB", "304", "≤ 16384 B", "≤ 1024 B", "{:.0f} B".format)
    comparison.row("DRAM of a stored response of 1 KiB", "DRAM", "≤ 24 B", "≤ 14 B", "{:.1f} B".format)
    return comparison


@case(pairs=3, stored=(2048, "MiB of responses"), quick={"stored": 128, "pairs": 1})
def http_restart(arguments):
    """The share of 2 GiB of responses of 256 KiB, stored in 15 s, that is served as hits after `kill -9` right then, and after SIGTERM."""
    comparison = Comparison(arguments, {"MiB": arguments.stored})

    def after(end):
        with OriginProcess(comparison.load_core) as origin:
            urls = [f"/{MIB // 4}/{n}" for n in range(arguments.stored * 4)]
            with served(comparison, "Pumice", origin, 256, max(256, arguments.stored * 2)) as server:
                began = time.monotonic()
                for at in range(0, len(urls), 64):
                    fill(server, urls[at:at + 64], host="test")
                    time.sleep(max(0, 15 * at / 8192 - (time.monotonic() - began)))
                server.terminate() if end == "SIGTERM" else server.kill9()
                began = time.monotonic()
                with Http(server.directory, origin, *server.flags, core=comparison.server_core) as again:
                    fetched = origin.count()
                    fill(again, urls[:1], host="test")
                    first = time.monotonic() - began
                    fill(again, urls[1:], host="test")
                    return {end: 1 - (origin.count() - fetched) / len(urls), f"{end}: first": first}

    comparison.turns(lambda _: after("kill -9") | after("SIGTERM"))
    for end, must, aim in (("kill -9", "≥ 98 %", "≥ 99.8 %"), ("SIGTERM", "≥ 99.9 %", "100 %")):
        comparison.row(f"share of responses that are hits after {end}", end, must, aim, percent)
    comparison.row("the first hit after kill -9", "kill -9: first", "≤ 1 s", "≤ 0.2 s", "{:.2f} s".format)
    return comparison


@case(pairs=5, clients=(500, "clients"), quick={"clients": 50, "pairs": 1})
def http_collapse(arguments):
    """Clients on one cold URL of 1 MiB whose origin takes 200 ms: requests to the origin, and the last byte of the slowest after the first's, against nginx."""
    comparison = against(arguments, {"clients": arguments.clients}, "nginx")

    def turn(server):
        number = next(numbers)
        origin.answers[f"/{MIB}/{number}"] = Answer(Body(f"/{MIB}/{number}", MIB), delay=0.2)
        with comparison.files("times") as (times,):
            h2load(comparison, "--h1", f"-c{arguments.clients}", f"-n{arguments.clients}", f"--log-file={times}", f"http://{server.target}/{MIB}/{number}")
            ends = [int(began) + int(took) for began, _, took in map(str.split, machine.read(times).splitlines())]
        return {"origin": len(origin.asked(f"/{MIB}/{number}")), "spread": (max(ends) - min(ends)) / 1e6}

    numbers = itertools.count()
    with Origin() as origin:
        both(comparison, origin, "nginx", turn, 512, 1024)
    comparison.row("last byte of the slowest client after the first's", "spread", "≤ 0.2 ×", "≤ 0.05 ×", "{:.3f} s".format)
    comparison.row("requests to the origin", "origin", "≤ 1", "≤ 1", "{:.0f}".format)
    return comparison
