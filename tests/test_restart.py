"""A clean stop and start: what was held is served again, every value verified, and the start reads little flash; as does one after a
kill -9, which serves no wrong value."""

import contextlib
import random

import pytest

from harness import expect, mib
from harness.client import Client
from harness.servers import Pumice


def value_of(key, seed, length):
    stamp = b"%s/%d/" % (key, seed)
    return (stamp * (length // len(stamp) + 1))[:length]


def read_back(server, held, lengths, seed):
    with contextlib.closing(Client(server.address)) as client:
        return len(client.read_back(held, lambda key: value_of(key, seed, lengths[key])))


# Objects of 4 KiB, as the bound on what a start reads is stated for them; then all lengths, sliced ones included.
@pytest.mark.parametrize(("flash", "length_of", "most_read"), [
    ("512MiB", lambda rng: 4096, 0.02),
    ("256MiB", lambda rng: int(100 * 10486 ** rng.random()), None),
], ids=["4 KiB", "all lengths"])
def test_a_clean_stop_keeps_what_was_held(directory, seed, size, flash, length_of, most_read):
    """Fills a cache with `--with offered=` MiB, restarts it, and reads everything back."""
    offered = size("offered", 200, 200) << 20
    rng = random.Random(seed)
    arguments = ("--dram", "64MiB", "--flash-size", flash)
    lengths = {}

    def share(engine):
        return engine["recovery_read_bytes"] / used

    with Pumice(directory, *arguments) as server:
        client = Client(server.address)
        offered_bytes = 0

        def items():
            nonlocal offered_bytes
            while offered_bytes < offered:
                key = b"key-%d" % len(lengths)
                lengths[key] = length_of(rng)
                offered_bytes += lengths[key]
                yield key, value_of(key, seed, lengths[key])

        client.set_many(items())
        held = client.held(lengths)
        for _ in range(10):
            # What a slow or busy device had no time for comes again: the bound is of a cache that is full.
            missing = lengths.keys() - set(held)
            if len(missing) <= len(lengths) // 20:
                break
            client.set_many((key, value_of(key, seed, lengths[key])) for key in missing)
            held = client.held(lengths)
        client.close()
        expect(len(held) > len(lengths) // 10, "a good part of the objects to be held", len(held))
        served = read_back(server, held, lengths, seed)
        expect(served >= 0.99 * len(held), f"99 % of {len(held)} objects before the stop", served)
        server.check_books()
        used = server.stats()["engine"]["resident_bytes"]
        stopping = server.terminate()
    with Pumice(directory, *arguments) as server:
        engine = server.stats()["engine"]
        served = read_back(server, held, lengths, seed)
        print(
            f"held {len(held)} of {len(lengths)} objects, {mib(used)}; stopped in {stopping:.2f} s; "
            f"started in {engine['recovery_seconds']:.3f} s reading {mib(engine['recovery_read_bytes'])}, {share(engine):.2%}; "
            f"served {served} ({100 * served / len(held):.3f} %)"
        )
        expect(engine["recovery_clean"] == 1, "a clean start", engine)
        expect(served >= 0.99 * len(held), f"99 % of {len(held)} objects after the start", served)
        expect(most_read is None or share(engine) <= most_read, f"at most {most_read} of the flash in use to be read", share(engine))
        server.check_books()
        server.kill9()
    with Pumice(directory, *arguments) as server:
        engine = server.stats()["engine"]
        print(f"after kill -9: {share(engine):.2%} of the flash in use read")
        expect(engine["recovery_clean"] == 0, "a start after a crash", engine)
        expect(most_read is None or share(engine) <= most_read, f"at most {most_read} of the flash in use to be read", share(engine))
        read_back(server, held, lengths, seed)
        server.check_books()
        server.terminate()
