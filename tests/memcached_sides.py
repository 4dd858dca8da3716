"""The two servers of test_differential.py: memcached and Pumice, asked the same, with what no two servers can have in common
made alike.

docs/memcached.md has the reason of whatever is marked "known".
"""

import re
import socket
import time

from harness import servers
from memcached_commands import ABSOLUTE_EXPTIMES, TTLS

PATIENCE_SECONDS = 30
# A server that says nothing for so long has seen the first part of what was cut in two, or has it in the same turn as the second.
SWALLOWED_SECONDS = 0.05
PAD = b"get " + b"~" * 200 + b"\r\n"
# Behind every command: what comes back before its answer belongs to the command.
ASK, SAID = b"mg ~ k\r\n", b"EN k~\r\n"
# How long a segment may take: TTLs that are this much shorter are the same.
SEGMENT_SECONDS = 30
META_REPLIES = {b"HD", b"VA", b"EN", b"NF", b"NS", b"EX"}


class Side:
    """One of the two servers."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.socket = None
        self.sequence = 0
        self.begin()

    def connect(self):
        if self.socket:
            self.socket.close()
        self.socket = socket.create_connection(self.address, timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self):
        """Forgets what was seen of CAS uniques."""
        self.cas, self.ids, self.next_id = {}, {}, 0

    def send(self, batch, stale_keys):
        """Sends commands together; but one that is cut is sent in two parts, the second when all before it is answered."""
        if self.socket is None:
            self.connect()
        self.sequence += 1
        parts, renewed = [], set()
        self.later, self.answers_before = b"", 0
        cut = None
        for number, command in enumerate(batch):
            text = command.text
            if command.cas_shift is not None:
                known = None if command.key in renewed else self.cas.get(command.key)
                # 1 is older than all, and nobody's any more. Pumice's grow by 2^44 with each start.
                unique = 1 if known is None or command.cas_shift < 0 else known + (command.cas_shift << 62)
                text = text.replace(b"@C@", b"%d" % unique)
            if command.may_renew(stale_keys):
                renewed.update(command.keys)
            if command.cut is not None and cut is None:
                self.answers_before = number
                cut = sum(map(len, parts)) + max(1, int(command.cut * len(text)))
            parts += (text, ASK)
        if batch[-1].ends:
            # What a server has not read when it closes a connection could take its last words with it.
            parts.pop()
            self.end = None
        else:
            # Whatever an unfinished value takes of this, the end is seen.
            self.end = b"EN k~%d\r\n" % self.sequence
            parts += (PAD, b"mg ~%d k\r\n" % self.sequence)
        whole = b"".join(parts)
        cut = len(whole) if cut is None else cut
        self.socket.sendall(whole[:cut])
        self.later = whole[cut:]

    def receive(self):
        """What came back, in pieces: one for each command, but the last has all that came after it too."""
        buffer = bytearray()
        while True:
            if self.later and buffer.count(SAID) >= self.answers_before:
                self.socket.sendall(self.later)
                self.later = b""
            if self.end and buffer.endswith(self.end):
                return bytes(buffer[: -len(self.end)]).split(SAID)
            self.socket.settimeout(SWALLOWED_SECONDS if self.later else PATIENCE_SECONDS)
            try:
                bytes_ = self.socket.recv(1 << 18)
            except TimeoutError:
                if self.later:
                    # A command took the question behind it for its value.
                    self.answers_before = 0
                    continue
                bytes_, why = b"", b"<nothing more came>"
            else:
                why = b"<closed>"
            if not bytes_:
                self.connect()
                return (bytes(buffer) + why).split(SAID)
            buffer += bytes_

    def unique_id(self, key, unique, renewed):
        if renewed and key in self.cas:
            self.ids.pop(self.cas[key], None)
        self.cas[key] = unique
        if unique not in self.ids:
            # Never one that another had, though that is forgotten.
            self.next_id += 1
            self.ids[unique] = self.next_id
        return b"<cas %d>" % self.ids[unique]

    def normal(self, command, reply):
        """A reply with what no two servers have in common made alike."""
        name = command.name
        if name in (b"gets", b"gats"):
            # Known: what changes the expiry gives a new CAS unique.
            renewed = name == b"gats"

            def value(match):
                return match[1] + self.unique_id(match[2], int(match[3]), renewed) + b"\r\n"

            return re.sub(rb"(VALUE ([^ ]+) \d+ \d+ )(\d+)\r\n", value, reply)
        if name in (b"touch", b"gat"):
            for touched in command.keys:
                self.forget(touched)
            return reply
        if name in (b"mg", b"ms", b"ma", b"md") and reply[:2] in META_REPLIES:
            return self.normal_meta(command, reply)
        if name == b"me" and reply.startswith(b"ME "):
            return b"ME\r\n"
        if name == b"version":
            return re.sub(rb"^VERSION \S+", b"VERSION", reply)
        if name == b"stats":
            return re.sub(rb"^(STAT [^\r]*\r\n)*END\r\n", b"<stats>", reply)
        return reply

    def normal_meta(self, command, reply):
        name, key = command.name, command.key
        line, end, rest = reply.partition(b"\r\n")
        words = line.split(b" ")
        is_hit = words[0] in (b"HD", b"VA")
        # Known: what changes the expiry, or wins, gives a new CAS unique. Only a hit or a win does either.
        touches = any(flag[:1] == b"T" for flag in command.flags)
        renewed = name == b"mg" and is_hit and (touches or b"W" in words[1:])
        has_unique = False
        normal = words[:2] if words[0] == b"VA" else words[:1]
        for word in words[len(normal) :]:
            letter = word[:1]
            # ms says c0 where it did not store.
            if letter == b"c" and word != b"c0":
                has_unique = True
                word = b"c" + self.unique_id(key, int(word[1:]), renewed)
            elif letter == b"t":
                word = b"t" + ttl(int(word[1:]))
            elif letter == b"k":
                # Known for what mg finds: the key as it stood in the command, not as it stood when it was stored.
                word = b"k" if name == b"mg" and words[0] != b"EN" else word
            elif word == b"b" and name == b"mg" and words[0] != b"EN":
                continue
            normal.append(word)
        if renewed and not has_unique:
            self.forget(key)
        return b" ".join(normal) + end + rest

    def forget(self, key):
        if key in self.cas:
            self.ids.pop(self.cas.pop(key), None)


def ttl(seconds):
    if seconds > 0x80000000 or seconds == 0:
        # Known: memcached shows the distance to a time that has passed as a number below 2^32, Pumice as 0.
        return b"<past>"
    now = time.time()
    for number, choice in enumerate(TTLS + [exptime - now for exptime in ABSOLUTE_EXPTIMES]):
        # The clocks of the servers tick apart.
        if choice - SEGMENT_SECONDS <= seconds <= choice + 3:
            return b"<ttl %d>" % number
    return b"%d" % seconds


class Memcached(Side):
    """memcached on a port that the system chooses."""

    def __init__(self, directory):
        # Its thread that sorts items by use holds one at times, and a number that is held is not changed in place.
        options = ["-m", "1024", "-t", "2", "-o", "no_lru_maintainer,no_lru_crawler"]
        self.server = servers.Memcached(directory, *options)
        super().__init__("memcached", self.server.address)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.server.__exit__(*raised)


class Pumice(Side):
    """The server under test."""

    def __init__(self, directory, arguments):
        self.directory, self.arguments = directory, arguments
        self.lives, self.hits_flash = 0, 0
        self.server = servers.Pumice(directory, *arguments)
        super().__init__("pumice", self.server.address)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.server.__exit__(*raised)

    def stop(self):
        """A clean stop: whatever DRAM has goes to flash."""
        if self.socket:
            self.socket.close()
            self.socket = None
        self.hits_flash += self.server.stats()["memcached"]["get_hits_flash"]
        self.server.check_books()
        self.server.terminate()
        self.lives += 1

    def restart(self):
        """Empties DRAM: what is asked for next is on flash."""
        self.stop()
        self.server = servers.Pumice(self.directory, *self.arguments)
        self.address = self.server.address
