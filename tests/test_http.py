"""The HTTP door as a whole: with real clients (curl, wrk, h2load over TLS, a browser) and nginx as origin, with an origin that misbehaves on
purpose, with bytes that are no requests, and with what public reports found in other caches."""

import contextlib
import os
import random
import re
import subprocess
import time

import pytest

from harness import expect, expect_equal, machine
from harness.servers import Directory
from harness.web import FRESH, Answer, Body, Connection, Http, Nginx, Origin
from test_access import CERTIFICATES

MIB = 1 << 20
TLS = [word for flag, name in (("certificate", "crt"), ("key", "key")) for word in (f"--tls-{flag}", os.path.join(CERTIFICATES, f"server.{name}"))]
SMALL = ("--dram", "128MiB", "--flash-size", "256MiB", "--max-connections", "128")
GIF = bytes.fromhex("47494638396101000100800000ff000000000021f90400000000002c00000000010001000002024401003b")


@pytest.fixture(scope="module")
def origin():
    with Origin() as origin:
        yield origin
        expect_equal(origin.faults, [], "what the origin could not read as requests")


@pytest.fixture(scope="module")
def server(origin):
    """One for the tests that do not end it, each of which has paths of its own."""
    with Directory("http") as directory, Http(directory, origin, *SMALL, "--http-tls", "127.0.0.1:0", *TLS) as server:
        yield server
        server.check_books()
        server.terminate()


def curl(*words):
    status, said = machine.run("curl", "--silent", "--show-error", "--include", *words)
    expect_equal(status, 0, f"curl's status after {said[-500:]!r}")
    return said


def has(message, *parts):
    """The answer's Cache-Status has these parts."""
    for part in parts:
        expect(part in message.cache.split("; "), f"{part!r} in Cache-Status", message.cache)
    return message


def within(seconds, ready, what):
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        expect(time.monotonic() < deadline, f"{what} within {seconds} s", "nothing")
        time.sleep(0.05)
    return found


# --- real servers and clients ------------------------------------------------------------------------------------------

@contextlib.contextmanager
def static(directory, more="", listen=""):
    """nginx with files: page.txt of 40,000 bytes."""
    files = os.path.join(directory, "files")
    os.makedirs(files, exist_ok=True)
    with open(os.path.join(files, "page.txt"), "wb") as file:
        file.write(bytes(Body("page", 40_000)))
    with Nginx(directory, f"root {files}; expires 1h; {more}", listen=listen) as nginx:
        yield nginx


@pytest.mark.parametrize("end", ["terminate", "kill9"])
def test_a_hit_after_a_restart(directory, end):
    with static(directory) as nginx:
        flags = (*SMALL, "--flush-interval", "1")
        for life in range(2):
            with Http(directory, nginx, *flags) as server:
                # The key has the host, and the port is another each time.
                words = "--header", "Host: page.test", f"http://{server.target}/page.txt"
                first, second = curl(*words), curl(*words)
                expect("Pumice; fwd=uri-miss" in first if life == 0 else re.search("Pumice; hit; .*detail=flash", first), "a miss, then a hit on flash", first[:600])
                expect("Pumice; hit" in second, "a hit", second[:600])
                for said in (first, second):
                    expect(said.startswith("HTTP/1.1 200 OK") and bytes(Body("page", 40_000)).decode() in said, "the page", said[:600])
                if life == 0 and end == "kill9":
                    # What is in a buffer is written after a second.
                    time.sleep(2.5)
                server.check_books()
                getattr(server, end if life == 0 else "terminate")()


def test_variants_of_gzip(directory):
    more = "gzip on; gzip_vary on; gzip_min_length 1; gzip_types text/plain; gzip_proxied any;"
    with static(directory, more) as nginx, Http(directory, nginx, *SMALL) as server:
        for coding in ("identity", "gzip", "br, gzip;q=0.5", "gzip;q=0", "GZIP"):
            for turn in range(2):
                answer = server.ask("/page.txt", accept_encoding=coding)
                expect_equal(answer["content-encoding"], "gzip" if coding in ("gzip", "br, gzip;q=0.5", "GZIP") else "", f"the coding for {coding}")
                expect(turn == 0 or "hit" in answer.cache, "a hit the second time", answer.cache)
        url = f"http://{server.target}/page.txt"
        expect(bytes(Body("page", 40_000)).decode() in curl("--compressed", url), "the page as curl unpacks it", "another")


def test_an_origin_with_tls(directory):
    certificate, key = (os.path.join(CERTIFICATES, f"server.{name}") for name in ("crt", "key"))
    with static(directory, f"}} ssl_certificate {certificate}; ssl_certificate_key {key}; location /x {{", "ssl") as nginx:
        nginx.url = f"https://localhost:{nginx.address[1]}"
        with Http(directory, nginx, *SMALL, "--origin-ca", certificate) as server:
            expect_equal(has(server.ask("/page.txt"), "stored").body, bytes(Body("page", 40_000)), "the page")
        with Http(directory, nginx, *SMALL, "--reformat") as server:
            expect_equal(server.ask("/page.txt").status, 502, "the status where the certificate is not known")


def test_unix_socket(directory, origin):
    path = os.path.join(directory, "http.socket")
    with Http(directory, origin, *SMALL, "--http", f"unix:{path}") as server:
        for expected in ("fwd=uri-miss", "hit"):
            said = curl("--unix-socket", path, "http://a.test/5/unix")
            expect(f"Pumice; {expected}" in said and said.endswith("/5/un"), expected, said)
        server.terminate()


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2"])
def test_versions_and_tls(server, origin, version):
    host, port = server.place("HTTP with TLS").rsplit(":", 1)
    names = ["--cacert", os.path.join(CERTIFICATES, "server.crt"), "--connect-to", f"localhost:443:{host}:{port}", version]
    url = f"https://localhost/100000/tls{version}"
    for expected in ("fwd=uri-miss", "hit"):
        said = curl(*names, url)
        expect(said.startswith(f"HTTP/{version.removeprefix('--http').removesuffix('.0')}") and f"Pumice; {expected}" in said, f"{version}, {expected}", said[:600])
        expect(said.endswith(bytes(Body(f"/100000/tls{version}", 100_000)).decode()), "the body", said[-200:])
    expect_equal(len(origin.asked(f"/100000/tls{version}")), 1, "requests to the origin")


def test_load_of_h2load_and_wrk(server, origin):
    place = server.place("HTTP with TLS")
    status, said = machine.run("h2load", "-n", 5000, "-c", 8, "-m", 10, f"https://{place}/1024/h2load")
    expect(status == 0 and "5000 succeeded, 0 failed" in said and "Application protocol: h2" in said, "5000 answers over h2", said)
    status, said = machine.run("wrk", "-t1", "-c32", "-d2s", f"http://{server.target}/1024/wrk")
    expect(status == 0 and "Non-2xx" not in said and "Socket errors" not in said, "good answers to wrk", said)
    for path in ("/1024/h2load", "/1024/wrk"):
        expect_equal(len(origin.asked(path)), 1, f"requests for {path} to the origin")


PAGE = b"""<!doctype html><body><script>(async () => { let seen = {}, sizes = 0; await Promise.all([...Array(50).keys()].map(async n => {
const answer = await fetch(`/image-${n}.gif`), status = answer.headers.get("cache-status").split("; ")[1]; seen[status] = (seen[status] || 0) + 1;
const image = new Image(); image.src = URL.createObjectURL(await answer.blob()); await image.decode(); sizes += image.naturalWidth; }));
document.body.textContent = `seen ${JSON.stringify(seen)} ${sizes} end`; })()</script></body>"""


def test_browser(directory, server, origin):
    origin.answers["/page.html"] = Answer(PAGE, (*FRESH, ("content-type", "text/html")))
    for n in range(50):
        origin.answers[f"/image-{n}.gif"] = Answer(GIF, (*FRESH, ("content-type", "image/gif")))
    for expected in ("fwd=uri-miss", "hit"):
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={directory}/profile-{expected}"]
        _, said = machine.run("chromium", *flags, "--virtual-time-budget=600000", "--dump-dom", f"http://{server.target}/page.html")
        expect(f'seen {{"{expected}":50}} 50 end' in said.replace("&quot;", '"'), f"50 images, each {expected}", said[:500])


# --- what is stored, and for whom ----------------------------------------------------------------------------------------

STORED = Body("stored", 100_001)
LAST_MODIFIED = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize("target", ["whole", "chunked"])
@pytest.mark.parametrize("method, fields, status, first, last", [
    ("GET", {}, 200, 0, 100_001),
    ("HEAD", {}, 200, 0, 0),
    ("GET", {"range": "bytes=0-0"}, 206, 0, 1),
    ("GET", {"range": "bytes=100000-"}, 206, 100_000, 100_001),
    ("GET", {"range": "bytes=-7"}, 206, 99_994, 100_001),
    ("GET", {"range": "bytes=5-200000"}, 206, 5, 100_001),
    ("GET", {"range": "bytes=100001-"}, 416, 0, 0),
    ("GET", {"range": "bytes=0-1,5-6"}, 200, 0, 100_001),
    ("GET", {"range": "bytes=3-4", "if_range": '"one"'}, 206, 3, 5),
    ("GET", {"range": "bytes=3-4", "if_range": '"two"'}, 200, 0, 100_001),
    ("GET", {"if_none_match": '"none", W/"one"'}, 304, 0, 0),
    ("HEAD", {"if_none_match": "*"}, 304, 0, 0),
    ("GET", {"if_modified_since": LAST_MODIFIED}, 304, 0, 0),
])
def test_answers_of_what_is_stored(server, origin, target, method, fields, status, first, last):
    path = f"/stored-{target}"
    origin.answers[path] = Answer(STORED, (*FRESH, ("etag", '"one"'), ("last-modified", LAST_MODIFIED)), chunked=target == "chunked")
    server.ask(path)
    asked = len(origin.requests)
    answer = has(server.ask(path, method, **fields), "hit")
    expect_equal((answer.status, len(origin.requests) - asked), (status, 0), "the status, and requests to the origin")
    if status in (200, 206):
        expect(answer.body == STORED.slice(first, last), f"bytes {first} to {last}", f"{len(answer.body)} others")
        expect_equal(answer["content-length"], str(100_001 if method == "HEAD" else last - first), "Content-Length")
    expect_equal(answer["content-range"], {206: f"bytes {first}-{last - 1}/100001", 416: "bytes */100001"}.get(status, ""), "Content-Range")


def test_vary(server, origin):
    origin.answers["/vary"] = lambda request: Answer(request["x-color"].encode(), (*FRESH, ("vary", "X-Color, X-Other")))
    for expected in ("vary-miss", "hit"):
        for color in ("red", "green", "blue"):
            answer = server.ask("/vary", x_color=color)
            expect_equal(answer.body, color.encode(), "the variant")
            expect(expected in answer.cache or color == "red" and "uri-miss" in answer.cache, expected, answer.cache)
    server.ask("/vary", "POST", body=b"")
    expect("fwd=" in server.ask("/vary", x_color="red").cache, "no variant after a POST", "a hit")
    expect("fwd=" in server.ask("/vary", x_color="blue").cache, "no variant after a POST", "a hit")


def numbered(origin, path, control, **more):
    """The origin numbers its answers; their validators are the numbers."""
    origin.answers[path] = lambda _: Answer(b"%d" % len(origin.asked(path)), (("cache-control", control), ("etag", f'"{len(origin.asked(path))}"')), **more)


def test_stale_while_revalidate(server, origin):
    numbered(origin, "/swr", "max-age=1, stale-while-revalidate=60", delay=0.5)
    server.ask("/swr")
    time.sleep(2.1)
    began = time.monotonic()
    for _ in range(20):
        expect_equal(has(server.ask("/swr"), "hit").body, b"1", "the stale body")
    expect(time.monotonic() - began < 0.5, "nobody to wait", f"{time.monotonic() - began:.2f} s")
    within(5, lambda: server.ask("/swr").body == b"2", "the new body")
    expect_equal(len(origin.asked("/swr")), 2, "requests to the origin")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_unsafe_methods(server, origin, method):
    path = f"/unsafe-{method}"
    numbered(origin, path, "max-age=3600")
    server.ask(path)
    has(server.ask(path), "hit")
    answer = server.ask(path, method, body=b"x" * 100_000)
    expect_equal((answer.body, origin.requests[-1].body), (b"2", b"x" * 100_000), "the answer, and the body that came")
    expect_equal(server.ask(path).body, b"3", "what is fetched anew")
    origin.answers[path] = Answer(b"", (), 500)
    server.ask(path, method, body=b"")
    expect_equal(server.ask(path).body, b"3", "what stands after an unsafe method that failed")


def test_a_304_from_the_origin_changes_fields_alone(server, origin):
    """squid PR#2401: a Content-Length of a 304 is not that of the body."""
    def answer(request):
        if request["if-none-match"]:
            return Answer(b"", (("cache-control", "max-age=3600"), ("etag", '"1"'), ("x-new", "yes")), 304, length=5)
        return Answer(Body("304", 70_000), (("cache-control", "max-age=1"), ("etag", '"1"'), ("x-old", "yes")))

    origin.answers["/304"] = answer
    server.ask("/304")
    time.sleep(2.1)
    for _ in range(3):
        found = server.ask("/304")
        expect(found.body == bytes(Body("304", 70_000)), "the body", len(found.body))
        expect_equal((found["content-length"], found["x-new"], found["x-old"]), ("70000", "yes", "yes"), "the fields")
    expect_equal(len(origin.asked("/304")), 2, "requests to the origin")


def test_a_new_empty_body(server, origin):
    """trafficserver PR#8779: a new empty body went out under the old one's length."""
    bodies = [Body("old", 5000), b""]
    origin.answers["/empty"] = lambda _: Answer(bodies[len(origin.asked("/empty")) - 1], (("cache-control", "max-age=1"), ("etag", f'"{len(origin.asked("/empty"))}"')))
    server.ask("/empty")
    time.sleep(2.1)
    with contextlib.closing(Connection(server.address)) as connection:
        for _ in range(2):
            answer = connection.ask("/empty")
            expect_equal((answer.status, answer["content-length"], answer.body), (200, "0", b""), "the new body")


def test_ranges_at_the_last_slice(directory, origin):
    """trafficserver #6674: ranges in the last fragment."""
    length = 5 * MIB + 1
    path, flags = f"/{length}/slices", ("--dram", "128MiB", "--flash-size", "512MiB")
    body = Body(path, length)
    with Http(directory, origin, *flags) as server:
        expect(server.ask(path).body == bytes(body), "the body", "another")
        server.terminate()
    with Http(directory, origin, *flags) as server:
        for first, last in [(length - 1, length), (length - 2, length), (4 * MIB - 1, 4 * MIB + 1), (5 * MIB - 1, length), (5 * MIB, length), (0, length)]:
            answer = has(server.ask(path, range=f"bytes={first}-{last - 1}"), "hit")
            expect(answer.status == 206 and answer.body == body.slice(first, last), f"bytes {first} to {last}", (answer.status, len(answer.body)))
        server.check_books()


# --- bad requests ---------------------------------------------------------------------------------------------------------

GET = b"GET /bad HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /bad HTTP/1.1\r\nHost: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("raw", [
    POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", POST + b"Content-Length: 3, 3\r\n\r\nabc", POST + b"Content-Length: +3\r\n\r\nabc",
    POST + b"Content-Length: -3\r\n\r\nabc", POST + b"Content-Length: 0x3\r\n\r\nabc", POST + b"Content-Length: \r\n\r\n",
    POST + b"Content-Length: 99999999999999999999\r\n\r\nabc", POST + b"Transfer-Encoding: gzip\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n3\r\nabc\r\n0\r\n\r\n", POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n", POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", POST + b"Transfer-Encoding:\r\n\r\n",
    POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n", b"GET /bad HTTP/1.1\r\n\r\n", GET + b"Host: b\r\n\r\n", GET + b"Host: a\r\n\r\n",
    b"GET /bad HTTP/1.1\r\nHost: a b\r\n\r\n", b"GET /bad HTTP/1.1\r\nHost: a, b\r\n\r\n", b"GET /bad HTTP/1.1\r\nHost : a\r\n\r\n",
    POST + b"Content-Length : 3\r\n\r\nabc", GET + b"X: a\r\n b\r\n\r\n", GET + b"X: a\x00b\r\n\r\n", GET + b"X: a\rb\r\n\r\n", GET + b" X: a\r\n\r\n",
    GET + b": a\r\n\r\n", GET + b"X\r\n\r\n", b"GET /bad HTTP/9.9\r\nHost: a\r\n\r\n", b"GET  /bad HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /b\x01d HTTP/1.1\r\nHost: a\r\n\r\n", b"GET bad HTTP/1.1\r\nHost: a\r\n\r\n", b"get key\r\n", b"set k 0 0 3\r\nabc\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", b"TRACE /bad HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", GET + b"X: " + b"x" * 33_000 + b"\r\n\r\n", GET + b"X: x\r\n" * 129 + b"\r\n",
], ids=lambda raw: ascii(raw[:70]).removeprefix("b'"))
def test_bad_requests(server, origin, raw):
    """Refused and closed, nothing forwarded, neither the request nor what comes behind it."""
    asked = len(origin.requests)
    with contextlib.closing(Connection(server.address, timeout=20)) as connection:
        connection.send(raw + b"GET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
        said = connection.rest()
    expect(re.match(rb"HTTP/1\.[01] (400|405|414|431|501|505) ", said), "a refusal", said[:300])
    expect(len(re.findall(rb"HTTP/1\.[01] \d{3} ", said)) == 1, "one answer", said[:600])
    expect_equal([request.words for request in origin.requests[asked:]], [], "what reached the origin")


@pytest.mark.parametrize("chunks", [b"x\r\nabc\r\n0\r\n\r\n", b"-3\r\nabc\r\n0\r\n\r\n", b"ffffffffffffffff1\r\nabc\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"3\nabc\n0\n\n"])
def test_bad_chunks(server, origin, chunks):
    """The request may be on its way by then; it is not completed, and nothing comes behind it."""
    asked = len(origin.requests)
    with contextlib.closing(Connection(server.address, timeout=20)) as connection:
        connection.send(POST + CHUNKED + b"\r\n" + chunks + b"GET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
        said = connection.rest()
    expect(said == b"" or re.match(rb"HTTP/1\.1 (400|502) ", said) and said.count(b"HTTP/1.1 ") == 1, "one refusal, or an end", said[:300])
    expect_equal([request.words for request in origin.requests[asked:]], [], "whole requests at the origin")


def test_both_framings(server, origin):
    """Transfer-Encoding beside Content-Length: refused, or read as chunked and then closed; never two requests."""
    with contextlib.closing(Connection(server.address, timeout=20)) as connection:
        connection.send(b"POST /both HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\nGET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
        said = connection.rest()
    expect(re.match(rb"HTTP/1\.1 (400|200) ", said) and said.count(b"HTTP/1.1 ") == 1, "one answer, and the end", said[:300])
    expect_equal(origin.asked("/behind"), [], "what came behind it")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_that_a_hit_does_not_read(server, origin, method, framing):
    """CVE-2025-4366: what a hit leaves of the request's body in the connection was taken for the next request."""
    smuggled, path = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", f"/5/hit-{method}-{framing}"
    server.ask(path)
    how = b"Content-Length: %d\r\n\r\n%s" % (len(smuggled), smuggled) if framing == "length" else CHUNKED + b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    with contextlib.closing(Connection(server.address, timeout=20)) as connection:
        connection.send(f"{method} {path} HTTP/1.1\r\nHost: test\r\n".encode() + how + f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        said = connection.rest()
    expect(said.count(b"HTTP/1.1 200") in (1, 2), "one answer and the end, or two", said)
    expect_equal(origin.asked("/smuggled"), [], "what the body asked for")


def test_an_upload_over_h2(server, origin):
    """pingora #935: the last chunk went out twice after an upload without a length, and the second was taken for a request."""
    place = server.place("HTTP with TLS")
    for n in range(3):
        upload = subprocess.run(["curl", "-sSk", "--http2", "-T", "-", f"https://{place}/upload"], input=b"u" * 100_000, capture_output=True, timeout=60)
        expect_equal(upload.stdout, b"here", f"the answer to the upload, {upload.stderr}")
        server.ask(f"/5/after-{n}", cache_control="no-cache")
    expect_equal([len(request.body) for request in origin.asked("/upload")], [100_000] * 3, "the bodies that came")
    expect_equal(origin.faults, [], "what the origin could not read")


# --- a flood ------------------------------------------------------------------------------------------------------------

def test_a_flood_of_urls_that_come_once(directory, origin, size):
    """Ten times the flash: no request fails, the file keeps its size; with second-hit the hot set keeps its hits."""
    flash, length, hot = size("flash", 96, 256) * MIB, 65_000, 500
    urls, rng, hits, asked = 10 * flash // length, random.Random(1), 0, 0
    with Http(directory, origin, "--dram", "128MiB", "--flash-size", flash, "--flash-admit", "second-hit") as server, contextlib.closing(Connection(server.address)) as connection:
        def ask(name):
            path = f"/{length}/{name}"
            answer = connection.ask(path)
            expect(answer.status == 200 and len(answer.body) == length and answer.body.startswith(path.encode()), "the body", answer)
            return "hit" in answer.cache

        for _ in range(3):
            for n in range(hot):
                ask(f"hot-{n}")
        held = os.path.getsize(os.path.join(directory, "pumice.flash"))
        for n in range(urls):
            ask(f"flood-{n}")
            if n % 5 == 0:
                asked += 1
                hits += ask(f"hot-{rng.randrange(hot)}")
        expect_equal(os.path.getsize(os.path.join(directory, "pumice.flash")), held, "the size of the file")
        print(f"{urls} URLs that come once; of the hot set {hits / asked:.4f} were hits")
        expect(hits / asked >= 0.95, "the hot set to keep 0.95 of its hits", hits / asked)
        server.check_books()
        server.terminate()
