"""A body far longer than DRAM: 4 GiB under 128 MiB with --full, its length known and chunked; whole, then whole and by ranges from flash."""

import contextlib
import random

import pytest

from harness import expect, expect_equal, mib
from harness.web import Answer, Body, Connection, Http, Origin

MIB = 1 << 20
FRESH = (("cache-control", "max-age=86400"), ("etag", '"huge"'))


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_huge_body(directory, size, seed, how):
    # The last piece is a part of a slice.
    length, dram, rng = size("mib", 256, 4096) * MIB + 12_345, size("dram", 96, 128) * MIB, random.Random(seed)
    body = Body("/huge", length)
    flags = ("--dram", dram, "--flash-size", 2 * length + 512 * MIB, "--http-object-max", length + MIB, "--max-connections", 64)
    with Origin() as origin:
        origin.answers["/huge"] = Answer(body, FRESH, chunked=how == "chunked")

        def read(server, **fields):
            """All of an answer, compared as it comes: the answer, and where it ended."""
            at = int(fields["range"].split("=")[1].split("-")[0]) if fields else 0

            def take(piece):
                nonlocal at
                expect(piece == body.slice(at, at + len(piece)), f"the bytes from {at} on", "others")
                at += len(piece)

            with contextlib.closing(Connection(server.address)) as connection:
                return connection.ask("/huge", take=take, **fields), at

        with Http(directory, origin, *flags) as server:
            for expected in ("fwd=uri-miss", "hit"):
                answer, end = read(server)
                expect_equal((end, expected in answer.cache), (length, True), f"the whole body, {expected}")
            server.check_books()
            most = server.memory()[1]
            server.terminate()
        with Http(directory, origin, *flags) as server:
            expect_equal(read(server)[1], length, "the whole body after a restart")
            for _ in range(100):
                first = rng.randrange(length)
                last = min(length, first + rng.choice([1, 1000, MIB, 5 * MIB])) - 1
                answer, end = read(server, range=f"bytes={first}-{last}")
                expect_equal((answer.status, answer["content-range"], end), (206, f"bytes {first}-{last}/{length}", last + 1), "a range")
            most = max(most, server.memory()[1])
            server.terminate()
        expect_equal(len(origin.asked("/huge")), 1, "requests to the origin")
        expect(most <= dram * 1.1, f"resident memory within {mib(dram)} plus 10 %", mib(most))
        print(f"{mib(length)}, {how}: resident memory at most {mib(most)}")
