"""The log of a store of chunks, as docs/formats.md has it: read from a cache file, and written anew without some of its records."""

import dataclasses
import struct

from harness import expect, expect_equal

SECTOR = 4096
RECORD = 32
LEVELS = range(13)
VOID, CLEAN = 16, 144


def crc(cache_id, data):
    """CRC-32C of the cache's id and then the data."""
    crc = 0xFFFFFFFF
    for byte in struct.pack("<Q", cache_id) + data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Record:
    kind: int
    index: int
    version: int

    def covers(self, kind, chunk):
        """Whether it is a void or a clean record, which have a kind for each power of two of chunks, of a range with this chunk."""
        level = self.kind - kind
        return level in LEVELS and self.index == chunk >> level


class ChunkLog:
    """The log of a cache that has written no checkpoint yet, so that a start reads all of it."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            slots = [file.read(SECTOR) for _ in range(2)]
            newest = max(slots, key=lambda slot: struct.unpack_from("<Q", slot, 80)[0])
            self.cache_id, = struct.unpack_from("<Q", newest, 16)
            self.offset, self.slots = struct.unpack_from("<QQ", newest, 56)
            expect_equal(newest[104:168], bytes(64), "checkpoints of the superblock")
            file.seek(self.offset)
            self.records = []
            while len(self.records) < self.slots:
                record = file.read(RECORD)
                sum, kind, _, position, index, version = struct.unpack("<IHHQQQ", record)
                if position != len(self.records) or sum != crc(self.cache_id, record[4:]):
                    break
                self.records.append(Record(kind, index, version))
        expect(0 < len(self.records) < self.slots, "a log that has not come round", len(self.records))

    def write_without(self, dropped):
        """Writes the log as if some records had never been appended: those after them have lower positions, and fitting checksums."""
        kept = [record for record in self.records if record not in dropped]
        out = b""
        for position, record in enumerate(kept):
            body = struct.pack("<HHQQQ", record.kind, 0, position, record.index, record.version)
            out += struct.pack("<I", crc(self.cache_id, body)) + body
        with open(self.path, "r+b") as file:
            file.seek(self.offset)
            file.write(out.ljust(len(self.records) * RECORD, b"\0"))
