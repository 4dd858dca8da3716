"""Values of 64 MiB and more: stored in slices, changed, and served again after a clean restart and after `kill -9`.

The largest values that the settings allow are set, appended to and read back byte for byte; one byte more is refused; memory stays
within the budget meanwhile."""

import random

import pytest

from harness import expect, expect_equal, mib
from harness.client import Client
from harness.servers import Pumice

MIB = 1 << 20
LARGEST = 96 * MIB
DRAM, FLASH = 128 * MIB, 1024 * MIB


def get(client, key):
    return dict(client.get_many([key]))[key]


@pytest.mark.parametrize("end", ["clean", "kill"])
def test_huge_values(directory, end):
    # Not the same in any two places, so that a slice in the wrong place shows.
    noise = random.Random(1).randbytes(LARGEST)
    # Layout fifo, where one block is filled after the other, so that what comes later shows that what came before is on flash.
    flags = ("--dram", DRAM, "--flash-size", FLASH, "--max-item-size", LARGEST, "--max-connections", 64, "--layout", "fifo")
    with Pumice(directory, *flags) as server:
        client = Client(server.address)
        client.set_many([(b"largest", noise), (b"64", noise[: 64 * MIB])])
        expect(get(client, b"largest") == noise, "the largest value as it was set", "another")
        client.send(b"append 64 0 0 %d\r\n" % MIB, noise[64 * MIB : 65 * MIB], b"\r\n")
        expect_equal(client.line(), b"STORED", "the answer to append")
        client.send(b"append largest 0 0 1\r\nx\r\n")
        expect_equal(client.line(), b"NOT_STORED", "the answer to one byte more than the largest value")
        expect(get(client, b"largest") == noise, "the largest value as it was", "another")
        expect(get(client, b"64") == noise[: 65 * MIB], "the value with what was appended", "another")
        # What is on flash is what a kill leaves: so much more that all blocks of these are written.
        client.set_many((b"filler-%d" % n, noise[n * MIB : (n + 4) * MIB]) for n in range(0, 64, 4))
        server.check_books()
        most = server.memory()[1]
        expect(most <= DRAM * 1.1, f"resident memory within {mib(DRAM)} plus 10 %", mib(most))
        client.close()
        if end == "clean":
            server.terminate()
        else:
            server.kill9()
    with Pumice(directory, *flags) as server:
        client = Client(server.address)
        for key, value in ((b"largest", noise), (b"64", noise[: 65 * MIB])):
            expect(get(client, key) == value, f"{key.decode()} as it was before the {end} end", "another, or none")
        client.close()
        server.check_books()
        server.terminate()
    print(f"{end}: values of {mib(LARGEST)} and 65 MiB are there; resident memory at most {mib(most)}")
