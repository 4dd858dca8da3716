"""Large values in pieces: longer than DRAM could hold, read while they come from flash, and clients that stop in their middle.

A value of 512 MiB under 64 MiB of DRAM (with --full 4 GiB less 1 MiB, the longest that the settings allow, under 128 MiB), whole and after
a restart; 1,000 clients that stop in the middle of large sets and gets (with --full; else 200) while others go on. Resident memory stays within the budget plus 10 % in each."""

import contextlib
import hashlib
import random
import socket
import struct
import time

import pytest

from harness import expect, expect_equal, mib
from harness.client import Client
from harness.servers import Pumice

MIB = 1 << 20
PIECE = MIB
FRAME = struct.Struct(">BBHBBHIIQ")


class Pieces:
    """A long value in pieces, no two of which are equal."""

    def __init__(self, seed, length):
        self.noise, self.length = random.Random(seed).randbytes(PIECE), length

    def __iter__(self):
        for at in range(0, self.length, PIECE):
            yield (b"%016d" % at + self.noise[16:])[: min(PIECE, self.length - at)]

    def digest(self):
        digest = hashlib.blake2b()
        for piece in self:
            digest.update(piece)
        return digest.hexdigest()


def set_pieces(client, key, pieces):
    client.send(b"set %s 0 0 %d\r\n" % (key, pieces.length))
    for piece in pieces:
        client.send(piece)
    client.send(b"\r\n")
    return client.line()


def get_digest(client, key):
    """Length and digest of a value, which is never in memory as a whole."""
    client.send(b"get %s\r\n" % key)
    line = client.line()
    if line == b"END":
        return None
    length = left = int(line.split(b" ")[3])
    digest = hashlib.blake2b()
    while left > 0:
        piece = client.reader.read(min(left, PIECE))
        expect(len(piece) > 0, "the whole value", f"the end of the connection, {left} bytes before")
        digest.update(piece)
        left -= len(piece)
    expect_equal(client.line(), b"", "what ends the value")
    expect_equal(client.line(), b"END", "what ends the answer")
    return length, digest.hexdigest()


def test_a_value_longer_than_dram(directory, size):
    length, dram = size("value", 512, 4095) * MIB, size("dram", 64, 128) * MIB
    flags = ("--dram", dram, "--flash-size", 2 * length + 512 * MIB, "--max-item-size", length, "--max-connections", 64, "--layout", "fifo")
    pieces = Pieces(1, length)
    whole = length, pieces.digest()
    with Pumice(directory, *flags) as server:
        with contextlib.closing(Client(server.address)) as client:
            began = time.monotonic()
            expect_equal(set_pieces(client, b"long", pieces), b"STORED", "the answer to the set")
            took = time.monotonic() - began
            expect_equal(get_digest(client, b"long"), whole, "length and digest of the value")
            # What stands under the key stays until all of the next value has come.
            client.send(b"set long 0 0 %d\r\n" % length, next(iter(pieces)))
        with contextlib.closing(Client(server.address)) as client:
            expect_equal(get_digest(client, b"long"), whole, "the value, after a set that was broken off")
            client.send(b"append long 0 0 5\r\nlast.\r\n")
            expect_equal(client.line(), b"NOT_STORED", "the answer to five bytes more than the longest value")
            expect_equal(client.command(b"incr long 1"), b"CLIENT_ERROR cannot increment or decrement non-numeric value", "incr")
            expect_equal(client.command(b"touch long 0"), b"TOUCHED", "touch")
            expect_equal(client.command(b"mg long s")[:2], b"HD", "mg")
        server.check_books()
        most = server.memory()[1]
        expect(most <= dram * 1.1, f"resident memory within {mib(dram)} plus 10 %", mib(most))
        server.terminate()
    with Pumice(directory, *flags) as server:
        with contextlib.closing(Client(server.address)) as client:
            expect_equal(get_digest(client, b"long"), whole, "the value after a restart")
            expect_equal(client.command(b"delete long"), b"DELETED", "delete")
        server.check_books()
        server.terminate()
    print(f"{mib(length)} were set in {took:.1f} s; resident memory at most {mib(most)}")


def test_values_are_joined_and_compared(directory):
    """append, prepend, add, replace and cas of values that are stored in slices, and the same values in frames."""
    flags = ("--dram", 64 * MIB, "--flash-size", 512 * MIB, "--max-item-size", 16 * MIB)
    noise = random.Random(2).randbytes(4 * MIB)
    with Pumice(directory, *flags) as server, contextlib.closing(Client(server.address)) as client:
        def store(command, key, value, more=b""):
            client.send(b"%s %s 3 0 %d%s\r\n" % (command, key, len(value), more), value, b"\r\n")
            return client.line()

        def held(key):
            client.send(b"gets %s\r\n" % key)
            return client.values().get(key)

        value = noise[: 3 * MIB]
        expect_equal(store(b"add", b"key", value), b"STORED", "add")
        expect_equal(store(b"add", b"key", value), b"NOT_STORED", "add of what is there")
        expect_equal(store(b"replace", b"none", value), b"NOT_STORED", "replace of what is not there")
        expect_equal(store(b"append", b"none", value), b"NOT_STORED", "append to what is not there")
        for command, more in ((b"append", b"short"), (b"prepend", b"short"), (b"append", noise[MIB : 3 * MIB]), (b"prepend", noise[:MIB])):
            expect_equal(store(command, b"key", more), b"STORED", command.decode())
            value = value + more if command == b"append" else more + value
            expect(held(b"key")[:2] == (3, value), "the value with what was joined to it", "another")
        expect_equal(store(b"set", b"small", b"small"), b"STORED", "set")
        expect_equal(store(b"append", b"small", noise[: 2 * MIB]), b"STORED", "append of a large value to a small one")
        expect(held(b"small")[1] == b"small" + noise[: 2 * MIB], "the value with what was joined to it", "another")
        unique = held(b"key")[2]
        expect_equal(store(b"cas", b"key", noise, b" %d" % (unique + 1)), b"EXISTS", "cas with another number")
        expect_equal(store(b"cas", b"key", noise, b" %d" % unique), b"STORED", "cas")
        expect_equal(store(b"cas", b"none", noise, b" %d" % unique), b"NOT_FOUND", "cas of what is not there")
        expect(held(b"key")[:2] == (3, noise), "the value that cas has set", "another")
        client.send(b"ms key %d F7\r\n" % (2 * MIB), noise[: 2 * MIB], b"\r\nmg key v f\r\nmg key s\r\n")
        expect_equal(client.line(), b"HD", "ms")
        expect_equal(client.line(), b"VA %d f7" % (2 * MIB), "mg")
        expect(client.reader.read(2 * MIB + 2) == noise[: 2 * MIB] + b"\r\n", "the value", "another")
        expect_equal(client.line(), b"HD s%d" % (2 * MIB), "mg without the value")
        client.send(b"gat 1000 key small\r\nset key 0 0 %d\r\n" % MIB, noise[:MIB], b"xx\r\nget key\r\n")
        found = client.values()
        expect(found[b"key"][1] == noise[: 2 * MIB] and len(found[b"small"][1]) == 2 * MIB + 5, "both values", "others")
        expect_equal(client.line(), b"CLIENT_ERROR bad data chunk", "a value with another end")
        while (line := client.line()) == b"ERROR":
            pass
        expect_equal(line, b"VALUE key 7 %d" % (2 * MIB), "what was there before")
        client.reader.read(2 * MIB + 2)
        expect_equal(client.line(), b"END", "the end")
        with contextlib.closing(Client(server.address)) as binary:
            def ask(opcode, key, extras=b"", value=b""):
                """Status and rest of the reply to a frame."""
                lengths = len(key), len(extras), 0, 0, len(extras) + len(key) + len(value)
                binary.send(FRAME.pack(0x80, opcode, *lengths, 0, 0) + extras + key + value)
                _, _, _, _, _, status, length, _, _ = FRAME.unpack(binary.reader.read(FRAME.size))
                return status, binary.reader.read(length)

            expect_equal(ask(0x01, b"frame", bytes(8), noise)[0], 0, "the status of a set in a frame")
            expect(ask(0x0e, b"frame", b"", noise[:MIB])[0] == 0, "the status of append in a frame, 0", "another")
            expect(ask(0x00, b"frame") == (0, bytes(4) + noise + noise[:MIB]), "the value in a frame", "another")
            expect_equal(ask(0x02, b"frame", bytes(8), noise)[0], 2, "the status of an add of what is there")
            expect(ask(0x1d, b"key", bytes(4)) == (0, (7).to_bytes(4, "big") + noise[: 2 * MIB]), "the value of a gat in a frame", "another")
        server.check_books()
        server.terminate()


@pytest.mark.parametrize("stops_in", ["sets", "gets"])
def test_clients_that_stop_in_the_middle(directory, size, stops_in):
    clients, dram, length = size("clients", 200, 1000), size("dram", 96, 96) * MIB, 8 * MIB
    flags = ("--dram", dram, "--flash-size", 1024 * MIB, "--max-item-size", length, "--max-connections", clients + 64)
    pieces = Pieces(3, length)
    with Pumice(directory, *flags) as server:
        with contextlib.closing(Client(server.address)) as client:
            expect_equal(set_pieces(client, b"long", pieces), b"STORED", "the answer to a set")
            expect_equal(client.command(b"set small 0 0 5\r\nsmall"), b"STORED", "the answer to a small set")
            stopped, slowest, longest = [], 0, 0
            for n in range(clients):
                peer = socket.create_connection(server.address, timeout=60)
                stopped.append(peer)
                # Some are cut off before all of it is sent.
                with contextlib.suppress(ConnectionError):
                    peer.sendall(b"set stopped-%d 0 0 %d\r\n" % (n, length) + b"x" * 300_000 if stops_in == "sets" else b"get long\r\n")
                if n % (clients // 20) == 0:
                    began = time.monotonic()
                    expect_equal(client.command(b"get small"), b"VALUE small 0 5", "a small get beside them")
                    client.line(), client.line()
                    slowest = max(slowest, time.monotonic() - began)
                    began = time.monotonic()
                    expect_equal(set_pieces(client, b"other", pieces), b"STORED", "a large set beside them")
                    expect_equal(get_digest(client, b"other"), (length, pieces.digest()), "a large get beside them")
                    longest = max(longest, time.monotonic() - began)
            for peer in stopped:
                peer.close()
            expect_equal(get_digest(client, b"long"), (length, pieces.digest()), "the large value in the end")
        most = server.memory()[1]
        expect(most <= dram * 1.1, f"resident memory within {mib(dram)} plus 10 %", mib(most))
        expect(slowest <= 2, "a small get within 2 s", f"{slowest:.2f} s")
        expect(longest <= 30, "a large set and get within 30 s", f"{longest:.1f} s")
        server.check_books()
        server.terminate()
    print(f"{clients} stopped in {stops_in}: small gets took at most {slowest:.3f} s, large ones {longest:.2f} s; resident memory at most {mib(most)}")
