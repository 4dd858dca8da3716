#!/usr/bin/env python3
"""A clean stop and start: what was held is served again, every value verified, and the start reads little flash."""

import argparse
import random

from harness import Client, Directory, Server, expect, main, mib


def value_of(key, seed, length):
    stamp = b"%s/%d/" % (key, seed)
    return (stamp * (length // len(stamp) + 1))[:length]


def read_back(server, held, lengths, seed):
    client = Client(server.address)
    served = 0
    for key, value in client.get_many(held):
        if value is None:
            continue
        expected = value_of(key, seed, lengths[key])
        expect(value == expected, f"the value of {key.decode()} ({len(expected)} bytes)", value[:100])
        served += 1
    client.close()
    return served


def run(seed, dram, flash, offered, length_of, most_read):
    """Fills a cache with `offered` bytes, restarts it, and reads everything back."""
    rng = random.Random(seed)
    print(f"seed {seed}, {mib(offered)} offered to {dram} of DRAM and {flash} of flash")
    with Directory("restart") as directory:
        arguments = ("--dram", dram, "--flash-size", flash)
        lengths = {}
        with Server(directory, *arguments) as server:
            client = Client(server.address)
            size = 0

            def items():
                nonlocal size
                while size < offered:
                    key = b"key-%d" % len(lengths)
                    lengths[key] = length_of(rng)
                    size += lengths[key]
                    yield key, value_of(key, seed, lengths[key])

            client.set_many(items())
            held = client.held(lengths)
            client.close()
            expect(len(held) > len(lengths) // 10, "a good part of the objects to be held", len(held))
            served = read_back(server, held, lengths, seed)
            expect(served >= 0.99 * len(held), f"99 % of {len(held)} objects before the stop", served)
            server.check_books()
            used = server.stats()["engine"]["resident_bytes"]
            stopping = server.terminate()
        with Server(directory, *arguments) as server:
            engine = server.stats()["engine"]
            served = read_back(server, held, lengths, seed)
            print(
                f"held {len(held)} of {len(lengths)} objects, {mib(used)}; stopped in {stopping:.2f} s; "
                f"started in {engine['recovery_milliseconds']} ms reading {mib(engine['recovery_read_bytes'])}; "
                f"served {served} ({100 * served / len(held):.3f} %)"
            )
            expect(engine["recovery_clean"] == 1, "a clean start", engine)
            expect(served >= 0.99 * len(held), f"99 % of {len(held)} objects after the start", served)
            if most_read is not None:
                share = engine["recovery_read_bytes"] / used
                expect(share <= most_read, f"at most {most_read:.0%} of the flash in use to be read", f"{share:.2%}")
            server.check_books()
            server.terminate()


def test():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--scale", type=float, default=1.0, help="1: a few hundred MiB")
    arguments = arguments.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    offered = int(200 * arguments.scale) << 20
    # Objects of 4 KiB, as the bound on what a start reads is stated for them; then all lengths, sliced ones included.
    run(seed, "64MiB", "512MiB", offered, lambda rng: 4096, 0.02)
    run(seed, "64MiB", "256MiB", offered, lambda rng: int(100 * 10486 ** rng.random()), None)


if __name__ == "__main__":
    main(test)
