#!/usr/bin/env python3
"""Values of 64 MiB and more: stored in slices, changed, and served again after a clean restart and after `kill -9`.

The largest values that the settings allow are set, appended to and read back byte for byte; one byte more is refused; memory stays
within the budget meanwhile."""

import random

from harness import Client, Directory, MemorySampler, Server, expect, expect_equal, main, mib

MIB = 1 << 20
LARGEST = 96 * MIB
SETTINGS = {"dram": 704 * MIB, "flash": 1024 * MIB}


def get(client, key):
    found = dict(client.get_many([key]))
    return found.get(key)


def test():
    # Not the same in any two places, so that a slice in the wrong place shows.
    noise = random.Random(1).randbytes(LARGEST)
    flags = (
        *("--dram", str(SETTINGS["dram"]), "--flash-size", str(SETTINGS["flash"])),
        *("--max-item-size", str(LARGEST), "--max-connections", "64"),
        # Where one block is filled after the other, so that what comes later shows that what came before is on flash.
        *("--layout", "fifo"),
    )  # fmt: skip
    with Directory("huge") as directory:
        for end in ("clean", "kill"):
            with Server(directory, *flags) as server:
                sampler = MemorySampler(server)
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
                most = sampler.end()
                expect(most <= SETTINGS["dram"] * 1.1, f"resident memory within {mib(SETTINGS['dram'])} plus 10 %", mib(most))
                client.close()
                if end == "clean":
                    server.terminate()
                else:
                    server.kill9()
            with Server(directory, *flags) as server:
                client = Client(server.address)
                for key, value in ((b"largest", noise), (b"64", noise[: 65 * MIB])):
                    expect(get(client, key) == value, f"{key.decode()} as it was before the {end} end", "another, or none")
                client.close()
                server.check_books()
                server.terminate()
            print(f"{end}: values of {mib(LARGEST)} and 65 MiB are there; resident memory at most {mib(most)}")


if __name__ == "__main__":
    main(test)
