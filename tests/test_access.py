"""Who may use the server: the auth file, compared byte for byte with memcached's -Y, TLS with Python's ssl, and SIGHUP."""

import os
import signal
import socket
import ssl
import subprocess

from harness import Failure, expect, expect_equal
from harness.client import Client
from harness.machine import BINARY, ROOT
from harness.servers import Memcached, Pumice

CERTIFICATES = os.path.join(ROOT, "crates", "doors", "memcached", "tests", "data")
USERS = b"foo:bar\nbaz:qux:more\nother:one\n"
LOGIN = b"set auth 0 0 7\r\nfoo bar\r\n"

# Parts that are sent one after the other, each when all answers to the one before have come.
SAME = [
    [LOGIN, b"mn\r\n"],
    [LOGIN + b"set b 0 0 1\r\n1\r\nget b\r\n"],
    [LOGIN, LOGIN, b"get auth\r\n"],
    [b"get a\r\n", b"quit\r\n", b"mn\r\n", b"stats\r\n", b"\r\n", b"flush_all\r\n", LOGIN, b"mn\r\n"],
    [b"set k 0 0 7\r\nfoo baz\r\n", LOGIN],
    [b"set k 0 0 9\r\nother bar\r\n", b"set k 0 0 9\r\nother one\r\n"],
    [b"set k 0 0 7\r\nbaz qux\r\n", b"set k 0 0 12\r\nbaz qux:more\r\n"],
    [b"set k 0 0 3\r\nfoo\r\n", b"set k 0 0 0\r\n\r\n", b"set k 0 0 7\r\nfoo barxx", LOGIN],
    [b"set k 0 0\r\n", b"set k 0 0 x\r\n", b"set k 0 0 -1\r\n", b"set k 0 0 7x\r\n"],
    [b"add k 0 0 7\r\n", b"foo bar\r\n", LOGIN],
    [b"SET k 0 0 7\r\n", b"ms k 7\r\n"],
    [b"set k x y 7\r\nfoo bar\r\n", b"mn\r\n"],
    [b"set k 0 0 7 noreply\r\nfoo bar\r\n", b"mn\r\n"],
    [b"set k 0 0 7\nfoo bar\r\n", b"mn\r\n"],
    [b" set  k 0 0  +07\r\nfoo bar\r\n", b"mn\r\n"],
    [b"set k 0 0 9\r\n foo  bar\r\n", b"mn\r\n"],
    [b"set k 0 0 13\r\nfoo bar extra\r\n", b"mn\r\n"],
    [b"set " + b"k" * 300 + b" 0 0 7\r\nfoo bar\r\n", b"mn\r\n"],
    [b"set k 0 0 2000\r\nfoo " + b"b" * 1996 + b"\r\n", LOGIN],
    [b"x" * 3000],
]


def answers(address, parts):
    """What comes back, up to the end of each part's answers: a `\\r\\n` in the end and nothing more for a while."""
    with socket.create_connection(address) as sock:
        said = []
        for part in parts:
            sock.sendall(part)
            sock.settimeout(20)
            got = b""
            try:
                while True:
                    more = sock.recv(1 << 16)
                    if not more:
                        said.append(got + b"<end>")
                        return said
                    got += more
                    if got.endswith(b"\r\n"):
                        sock.settimeout(0.05)
            except TimeoutError:
                expect(got, f"an answer to {part[:60]!r}", "nothing")
            except ConnectionResetError:
                said.append(got + b"<end>")
                return said
            said.append(got)
        return said


def test_auth_file_as_with_memcached(directory):
    users = os.path.join(directory, "users")
    with open(users, "wb") as file:
        file.write(USERS)
    with (Pumice(directory, "--flash-size", "64MiB", "-Y", users) as server, Memcached(directory, "-m", 64, "-Y", users) as theirs):
        for parts in SAME:
            expect_equal(answers(server.address, parts), answers(theirs.address, parts), f"the answers to {parts!r:.200}")
        client = Client(server.address)
        expect_equal(client.command(LOGIN[:-2]), b"STORED", "the answer to user and password")
        with open(users, "wb") as file:
            file.write(b"foo:new\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("1 users")
        expect_equal(client.command(b"mn"), b"MN", "the answer to one who is in")
        expect_equal(answers(server.address, [LOGIN]), [b"CLIENT_ERROR authentication failure\r\n"], "the old password's answer")
        with open(users, "wb") as file:
            file.write(b"foo:secret\nbroken secret\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("line 2: expected user:password; the users stay as they were")
        expect("secret" not in server.log(), "no password in the log", server.log()[-1000:])
        expect_equal(answers(server.address, [b"set k 0 0 7\r\nfoo new\r\n"]), [b"STORED\r\n"], "the last good file's answer")
        client.close()
        server.terminate()
        # Of three signals one asked for that.
        expect_equal(server.log().count(" INFO stopping\n"), 1, "how often the server says that it stops")


def test_tls(directory):
    certificate, key = (os.path.join(CERTIFICATES, name) for name in ("server.crt", "server.key"))
    flags = ("--flash-size", "64MiB", "--memcached-tls", "127.0.0.1:0", "--tls-certificate", certificate, "--tls-key", key)
    with Pumice(directory, *flags) as server:
        place = next(word for word in server.log().split("memcached with TLS on ")[1].replace(",", " ").split())
        host, port = place.rsplit(":", 1)

        def client(version):
            context = ssl.create_default_context(cafile=certificate)
            context.minimum_version = context.maximum_version = version
            plain = Client((host, int(port)))
            plain.reader.close()
            plain.socket = context.wrap_socket(plain.socket, server_hostname="localhost")
            plain.reader = plain.socket.makefile("rb", buffering=1 << 18)
            expect_equal(plain.socket.version(), version.name.replace("_", "."), "the version of TLS")
            return plain

        value_bytes = os.urandom(1 << 20)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            one = client(version)
            items = [(b"key-%d" % n, value_bytes[n : n + size]) for n, size in enumerate([1, 100, 16_000, 16_384, 70_000, 1 << 20])]
            items[-1] = (items[-1][0], value_bytes)
            expect_equal(one.set_many(items), [key for key, _ in items], "the keys that are stored")
            for key, value in items:
                found = dict(one.get_many([key]))
                expect(found[key] == value, f"the value of {key.decode()} through {version.name}", found[key] and found[key][:40])
            # The ordinary door has the same objects.
            expect(dict(Client(server.address).get_many([b"key-4"]))[b"key-4"] == items[4][1], "the value without TLS", "another")
            expect_equal(one.command(b"mn"), b"MN", "the answer to mn")
            one.send(b"quit\r\n")
            expect_equal(one.reader.read(), b"", "the end after quit")
            one.close()
        try:
            ssl.create_default_context().wrap_socket(socket.create_connection((host, int(port))), server_hostname="localhost")
            raise Failure("expected a client that does not know the certificate to refuse it; it did not")
        except ssl.SSLCertVerificationError:
            pass
        expect("panicked" not in server.log(), "no panic", server.log()[-2000:])
        server.terminate()


def test_bad_files_are_refused(directory):
    """Bad files are refused before anything is made, with what is wrong."""
    bad = os.path.join(directory, "bad")
    with open(bad, "wb") as file:
        file.write(b"foo:bar\nsecret\n")
    certificate, key, other = (os.path.join(CERTIFICATES, name) for name in ("server.crt", "server.key", "other.key"))
    on_tls = ("--memcached-tls", "127.0.0.1:0")
    for flags, text in [
        (("--auth-file", bad), "bad, line 2: expected user:password"),
        (("--auth-file", bad + "-none"), "bad-none: No such file"),
        (("-Y", bad, "--auth-file", bad), "--auth-file: give it once"),
        (on_tls, "TLS needs a certificate"),
        (("--tls-certificate", certificate), "nothing listens with TLS"),
        ((*on_tls, "--tls-certificate", certificate), "there is no private key in it"),
        ((*on_tls, "--tls-certificate", key, "--tls-key", key), "there is no certificate in it"),
        ((*on_tls, "--tls-certificate", certificate, "--tls-key", other), "KeyMismatch"),
        (("--idle-timeout=-1",), "--idle-timeout"),
        (("--idle-timeout", "31536001"), "0 to 31536000"),
        (("--memcached", "off"), "nothing is left to listen on"),
    ]:
        done = subprocess.run([BINARY, "serve", *flags], cwd=directory, capture_output=True, text=True, timeout=60)
        expect(done.returncode == 2 and text in done.stderr, f"status 2 and {text!r} for {flags}", f"{done.returncode}, {done.stderr}")
        expect("secret" not in done.stderr, "no line of the file", done.stderr)
    expect_equal(os.listdir(directory), ["bad"], "what is left behind")
