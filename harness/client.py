"""One connection to a memcached door."""

import socket

from . import expect


class Client:
    """Commands are sent together, replies are read in their order."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb", buffering=1 << 18)

    def close(self):
        self.reader.close()
        self.socket.close()

    def send(self, *parts):
        self.socket.sendall(b"".join(parts))

    def line(self):
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        return line[:-2]

    def values(self):
        """The values of one get or gets: {key: (flags, value, cas or None)}."""
        found = {}
        while True:
            line = self.line()
            if line == b"END":
                return found
            words = line.split(b" ")
            expect(words[0] == b"VALUE" and len(words) in (4, 5), "VALUE or END", line)
            length = int(words[3])
            value = self.reader.read(length + 2)
            if len(value) != length + 2:
                raise ConnectionError("the connection ended")
            expect(value.endswith(b"\r\n"), "a line end after the value", value[-10:])
            cas = int(words[4]) if len(words) == 5 else None
            found[words[1]] = (int(words[2]), value[:-2], cas)

    def command(self, line):
        self.send(line, b"\r\n")
        return self.line()

    def stats(self, what=""):
        """The command `stats`, as a dictionary of texts."""
        self.send(f"stats {what}".strip().encode(), b"\r\n")
        found = {}
        while (line := self.line()) != b"END":
            _, name, value = (line.decode() + " ").split(" ", 2)
            found[name] = value.strip()
        return found

    def set_many(self, items, batch_bytes=1 << 20, batch_items=256):
        """Sets (key, value) pairs; returns the keys that were stored."""
        stored = []
        batch, size = [], 0

        def settle():
            nonlocal batch, size
            if not batch:
                return
            parts = []
            for key, value in batch:
                parts += [b"set %s 0 0 %d\r\n" % (key, len(value)), value, b"\r\n"]
            self.send(*parts)
            for key, _ in batch:
                reply = self.line()
                if reply == b"STORED":
                    stored.append(key)
                else:
                    expect(reply.startswith(b"SERVER_ERROR"), "STORED or SERVER_ERROR", reply)
            batch, size = [], 0

        for key, value in items:
            batch.append((key, value))
            size += len(value)
            if size >= batch_bytes or len(batch) >= batch_items:
                settle()
        settle()
        return stored

    def send_numbered(self, command, first, last, batch=20_000, pause=lambda: None):
        """Sends `command % number` with noreply for a range of numbers; `pause` is called after each batch."""
        for start in range(first, last, batch):
            self.send(*(command % number for number in range(start, min(start + batch, last))), b"mn\r\n")
            expect(self.line() == b"MN", "MN after a batch without replies", "something else")
            pause()

    def get_many(self, keys, batch_items=64):
        """Yields (key, value or None), a batch of keys per command."""
        keys = list(keys)
        for at in range(0, len(keys), batch_items):
            batch = keys[at:at + batch_items]
            self.send(b"get ", b" ".join(batch), b"\r\n")
            found = self.values()
            for key in found:
                expect(key in batch, "only keys that were asked for", key)
            for key in batch:
                yield key, found[key][1] if key in found else None

    def read_back(self, keys, expected, batch_items=64):
        """The keys that are there; each has to have the value that `expected` gives for it."""
        served = []
        for key, value in self.get_many(keys, batch_items):
            if value is not None:
                right = expected(key)
                expect(value == right, f"the value of {key.decode()} ({len(right)} bytes)", value[:100])
                served.append(key)
        return served

    def held(self, keys, batch_items=1000):
        """The keys that are there, without their values."""
        keys = list(keys)
        there = []
        for at in range(0, len(keys), batch_items):
            batch = keys[at:at + batch_items]
            self.send(b"".join(b"mg %s\r\n" % key for key in batch))
            for key in batch:
                reply = self.line()
                expect(reply in (b"HD", b"EN"), "HD or EN for mg", reply)
                if reply == b"HD":
                    there.append(key)
        return there
