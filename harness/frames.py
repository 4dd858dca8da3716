"""The binary protocol of memcached: frames, and a connection that speaks in them."""

import collections
import socket
import struct

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION, GETK, GETKQ, APPEND, PREPEND, STAT = range(0x11)
SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ, QUITQ, FLUSHQ, APPENDQ, PREPENDQ = range(0x11, 0x1b)
TOUCH, GAT, GATQ, MECHANISMS, AUTH, STEP, GATK, GATKQ = 0x1C, 0x1D, 0x1E, 0x20, 0x21, 0x22, 0x23, 0x24
NAMES = {number: name for name, number in list(globals().items()) if name.isupper() and isinstance(number, int)}

DONE, NOT_FOUND, EXISTS, TOO_LARGE, INVALID, NOT_STORED, NOT_NUMERIC, AUTH_FAILED, UNKNOWN = 0, 1, 2, 3, 4, 5, 6, 0x20, 0x81
MAKE_NONE = 0xFFFFFFFF

HEAD = struct.Struct(">BBHBBHIIQ")
Reply = collections.namedtuple("Reply", "opcode status opaque cas extras key value")


def frame(opcode, key=b"", extras=b"", value=b"", opaque=0, cas=0, **lies):
    """The bytes of a request; `lies` are other numbers than the right ones: magic, key_len, extras_len, body_len."""
    head = HEAD.pack(lies.get("magic", 0x80), opcode, lies.get("key_len", len(key)), lies.get("extras_len", len(extras)), 0, 0,
                     lies.get("body_len", len(extras) + len(key) + len(value)), opaque, cas)
    return b"".join((head, extras, key, value))


class Connection:
    """Requests are sent together, replies are read in their order."""

    def __init__(self, address, timeout=30):
        self.socket = socket.create_connection(address, timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb", buffering=1 << 18)

    def close(self):
        self.reader.close()
        self.socket.close()

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def reply(self):
        """The next reply; None where the server has closed the connection."""
        try:
            head = self.reader.read(HEAD.size)
        except ConnectionResetError:
            return None
        if len(head) < HEAD.size:
            return None
        magic, opcode, key_len, extras_len, _, status, body_len, opaque, cas = HEAD.unpack(head)
        if magic != 0x81 or key_len + extras_len > body_len:
            raise AssertionError(f"no reply: {head!r}")
        body = self.reader.read(body_len)
        return Reply(opcode, status, opaque, cas, body[:extras_len], body[extras_len:extras_len + key_len], body[extras_len + key_len:])

    def to_the_end(self, *frames):
        """What is answered to these frames, the last of which ends the connection, and a None."""
        self.send(*frames)
        return [*iter(self.reply, None), None]

    def all_of(self, *frames):
        """What is answered to these frames up to a noop behind them, or to the end, which is a None."""
        self.send(*frames, frame(NOOP, opaque=0xFFFFFFFF))
        replies = []
        while (reply := self.reply()) and reply.opaque != 0xFFFFFFFF:
            replies.append(reply)
        return replies if reply else [*replies, None]
