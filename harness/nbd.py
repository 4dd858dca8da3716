"""One connection to an export of an NBD server on a unix socket, one request at a time."""

import contextlib
import socket
import struct
import urllib.parse

from . import expect, expect_equal

OPTION_MAGIC = b"IHAVEOPT"
FIXED_NO_ZEROES = 3
GO = 7
ACK = 1
REPLY_MAGIC = 0x3E889045565A9
READ, WRITE, DISCONNECT, FLUSH = range(4)


class Nbd:
    """`uri` is nbd+unix:///EXPORT?socket=PATH."""

    def __init__(self, uri):
        parts = urllib.parse.urlsplit(uri)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(urllib.parse.parse_qs(parts.query)["socket"][0])
        self.reader = self.socket.makefile("rb")
        expect_equal(self.take(16), b"NBDMAGIC" + OPTION_MAGIC, "the greeting")
        self.take(2)
        name = parts.path[1:].encode()
        data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.socket.sendall(struct.pack(">I", FIXED_NO_ZEROES) + OPTION_MAGIC + struct.pack(">II", GO, len(data)) + data)
        kind = 0
        while kind != ACK:
            magic, _, kind, length = struct.unpack(">QIII", self.take(20))
            said = self.take(length)
            expect(magic == REPLY_MAGIC and kind < 1 << 31, "the export", f"{kind:x}: {said}")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        with contextlib.suppress(OSError):
            self.socket.sendall(self.head(DISCONNECT, 0, 0))
        self.reader.close()
        self.socket.close()

    def take(self, length):
        taken = self.reader.read(length)
        if len(taken) != length:
            raise ConnectionError("the connection ended")
        return taken

    def head(self, kind, offset, length):
        return struct.pack(">IHHQQI", 0x25609513, 0, kind, 0, offset, length)

    def request(self, kind, offset=0, length=0, data=b""):
        self.socket.sendall(self.head(kind, offset, length) + data)
        magic, error, _ = struct.unpack(">IIQ", self.take(16))
        expect_equal((magic, error), (0x67446698, 0), f"the answer to request {kind} of {length} bytes at {offset}")

    def read(self, offset, length):
        self.request(READ, offset, length)
        return self.take(length)

    def write(self, offset, data):
        self.request(WRITE, offset, len(data), data)

    def flush(self):
        self.request(FLUSH)
