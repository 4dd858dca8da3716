"""HTTP: bodies of which every byte says where it belongs, an origin that does as it is told, a client, Pumice's door and nginx."""

import contextlib
import dataclasses
import http
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time

from . import Failure, machine
from .servers import Pumice, Server

PIECE = 1 << 16
FRESH = (("cache-control", "max-age=3600"),)


class Body:
    """Bytes that are the same for the same tag, and in no two places."""

    def __init__(self, tag, length):
        self.tag, self.length = tag, length

    def slice(self, first, last):
        """From byte `first` up to, without it, `last`."""
        last, pieces = min(last, self.length), []
        for at in range(first - first % PIECE, last, PIECE):
            text = b"%s %d;" % (self.tag.encode(), at)
            whole = (text * (PIECE // len(text) + 1))[:PIECE]
            pieces.append(whole[max(first - at, 0):last - at])
        return b"".join(pieces)

    def __bytes__(self):
        return self.slice(0, self.length)

    def __len__(self):
        return self.length

    def pieces(self):
        return (self.slice(at, at + PIECE) for at in range(0, self.length, PIECE))


@dataclasses.dataclass
class Answer:
    """What an origin answers, and how."""

    body: Body | bytes = b""
    fields: tuple = FRESH
    status: int = 200
    chunked: bool = False
    # The Content-Length that is said, where it is not the body's own.
    length: int | None = None
    # Seconds before the head, and between any two pieces.
    delay: float = 0
    pace: float = 0
    # After so many bytes of the body the connection ends, by a reset if asked.
    cut: int | None = None
    reset: bool = False
    # In place of all that, these bytes and the end.
    raw: bytes | None = None


@dataclasses.dataclass
class Message:
    """A request or an answer: its first line in words, its fields with names in lower case."""

    words: list
    fields: list
    body: bytes = b""

    def __getitem__(self, name):
        """A field's value, all its lines joined; empty where it is not there."""
        return ", ".join(value for other, value in self.fields if other == name)

    @property
    def status(self):
        return int(self.words[1])

    @property
    def cache(self):
        return self["cache-status"]


class Cut(ConnectionError):
    """A message ended before its end."""


def line_of(reader):
    line = reader.readline(1 << 20)
    if not line.endswith(b"\r\n"):
        raise Cut(f"the connection ended in {line[:100]!r}")
    return line[:-2].decode("latin-1")


def read_head(reader):
    message = Message(line_of(reader).split(" ", 2), [])
    while line := line_of(reader):
        name, _, value = line.partition(":")
        message.fields.append((name.lower(), value.strip()))
    return message


def read_body(reader, message, take, to_the_end):
    """Gives `take` the pieces of a body."""

    def exactly(left):
        while left:
            piece = reader.read1(min(left, 1 << 20))
            if not piece:
                raise Cut(f"{left} bytes before the end of what was announced")
            take(piece)
            left -= len(piece)

    if message["transfer-encoding"]:
        while size := int(line_of(reader).split(";")[0], 16):
            exactly(size)
            if line_of(reader):
                raise Failure("a chunk is longer than it says")
        while line_of(reader):
            pass
    elif length := message["content-length"]:
        exactly(int(length))
    elif to_the_end:
        while piece := reader.read1(1 << 20):
            take(piece)


class Origin:
    """A server with a thread for each connection: for a path an `Answer` or a function of the request, by default `/LENGTH/...` as a `Body`."""

    def __init__(self):
        self.answers, self.requests, self.faults = {}, [], []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.address = self.listener.getsockname()
        self.url = "http://%s:%d" % self.address
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=[self.listener.accept()[0]], daemon=True).start()

    def serve(self, peer):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer, contextlib.suppress(ConnectionError), peer.makefile("rb", 1 << 18) as reader:
            while reader.peek(1):
                try:
                    request, body = read_head(reader), []
                    read_body(reader, request, body.append, False)
                    request.body = b"".join(body)
                    assert request.words[2].startswith("HTTP/1."), request.words
                except (ValueError, IndexError, AssertionError) as fault:
                    self.faults.append(f"{fault!r}, in {body!r:.100}")
                    return
                if request.words[1] != "/count":
                    self.requests.append(request)
                if not self.answer(peer, request):
                    return

    def answer(self, peer, request):
        """Says whether the connection goes on."""
        answer = self.answers.get(request.words[1], self.by_default)
        answer = answer(request) if callable(answer) else answer
        time.sleep(answer.delay)
        if answer.raw is not None:
            peer.sendall(answer.raw)
            return False
        body, has_none = answer.body, request.words[0] == "HEAD" or answer.status in (204, 304)
        head = [f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}", *(f"{name}: {value}" for name, value in answer.fields)]
        if answer.chunked:
            head.append("Transfer-Encoding: chunked")
        elif answer.length is not None or answer.status not in (204, 304):
            head.append(f"Content-Length: {len(body) if answer.length is None else answer.length}")
        pending, sent = "\r\n".join([*head, "", ""]).encode("latin-1"), 0
        for piece in [] if has_none else body.pieces() if isinstance(body, Body) else [body] if body else []:
            piece = piece if answer.cut is None else piece[:max(answer.cut - sent, 0)]
            sent += len(piece)
            peer.sendall(pending + (b"%x\r\n%s\r\n" % (len(piece), piece) if answer.chunked and piece else piece))
            pending = b""
            if answer.cut is not None and sent >= answer.cut:
                if answer.reset:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            time.sleep(answer.pace)
        peer.sendall(pending + (b"0\r\n\r\n" if answer.chunked and not has_none else b""))
        return request["connection"].lower() != "close"

    def by_default(self, request):
        if request.words[1] == "/count":
            return Answer(b"%d" % len(self.requests), (("cache-control", "no-store"),))
        length = request.words[1].split("/")[1]
        return Answer(Body(request.words[1], int(length)) if length.isdecimal() else b"here", (*FRESH, ("etag", '"1"')))

    def asked(self, path):
        """The requests for a path."""
        return [request for request in self.requests if request.words[1] == path]


class OriginProcess(machine.Child):
    """An `Origin` that answers by default, in a process of its own."""

    def __init__(self, core=None):
        program = "from harness.web import Origin; import time; print(Origin().url, flush=True); time.sleep(1e6)"
        self.process = subprocess.Popen([sys.executable, "-c", program], cwd=machine.ROOT, stdout=subprocess.PIPE, text=True, **machine.confine(core, None))
        self.url = self.process.stdout.readline().strip()
        host, port = self.url.removeprefix("http://").split(":")
        self.address = host, int(port)

    def count(self):
        """How many requests came."""
        with contextlib.closing(Connection(self.address)) as connection:
            return int(connection.ask("/count").body)


class Connection:
    """A client's connection, over TCP or to the path of a unix socket."""

    def __init__(self, address, timeout=60, receive_bytes=None):
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(timeout)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(address)
        self.reader = self.socket.makefile("rb", 1 << 18)

    def close(self):
        self.reader.close()
        self.socket.close()

    def send(self, raw):
        self.socket.sendall(raw)

    def ask(self, target, method="GET", body=None, take=None, **fields):
        """Sends a request and returns the answer; names of fields have _ for -. `take` gets the body in pieces."""
        head = [f"{method} {target} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in ({"host": "test"} | fields).items())]
        if body is not None:
            head.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*head, "", ""]).encode("latin-1") + (body or b""))
        return self.reply(method, take)

    def reply(self, method="GET", take=None):
        """The next answer that is none of 1xx."""
        while (message := read_head(self.reader)).status < 200:
            pass
        body = []
        if method != "HEAD" and message.status not in (204, 304):
            read_body(self.reader, message, take or body.append, True)
            message.body = b"".join(body)
        return message

    def rest(self):
        """What comes until the other side closes."""
        with contextlib.suppress(ConnectionResetError):
            return self.reader.read()
        return b""


class Http(Pumice):
    """Pumice's HTTP door before an origin."""

    def __init__(self, directory, origin, *flags, **how):
        self.origin = origin
        super().__init__(directory, *flags, **how)

    def doors(self, _):
        return ["--http", "127.0.0.1:0", "--origin", self.origin.url]

    def place(self, what):
        """Where the log says that something is served, such as `HTTP with TLS`."""
        return re.search(rf"ready: .*?\b{what} on ([^\s,]+)", self.log())[1]

    def ask(self, target, method="GET", **how):
        """One request on a connection of its own."""
        with contextlib.closing(Connection(self.address)) as connection:
            return connection.ask(target, method, **how)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Peer(Server):
    """A web server of others that is ready once it listens on its port."""

    def __init__(self, name, directory, command, port, **how):
        super().__init__(name, directory, command, **how)
        self.address, self.url = ("127.0.0.1", port), f"http://127.0.0.1:{port}"
        try:
            self.wait_for(self.listens, "it to listen")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def listens(self):
        with contextlib.suppress(OSError):
            socket.create_connection(self.address).close()
            return True

    def terminate(self, seconds=60):
        """Its children, too."""
        self.process.terminate()
        self.process.wait(seconds)

    def __exit__(self, *how):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.terminate(10)
        super().__exit__(*how)


class Nginx(Peer):
    """nginx: `listen` and `more` are what its one server listens by and what stands before it; `LOCATION` is what it does."""

    def __init__(self, directory, location, more="", listen="", **how):
        port, place = free_port(), os.path.join(directory, "nginx")
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, "nginx.conf"), "w") as file:
            file.write(f"""{'user root;' * (os.geteuid() == 0)} daemon off; worker_processes 1; pid nginx.pid; error_log error.log;
events {{ worker_connections 4096; }}
http {{ include /etc/nginx/mime.types; access_log off; keepalive_requests 1000000000; {more}
server {{ listen 127.0.0.1:{port} {listen}; location / {{ {location} }} }} }}
""")
        super().__init__("nginx", place, [machine.installed("nginx"), "-p", place, "-c", "nginx.conf", "-e", "error.log"], port, **how)
