"""A clean stop and start: what was held is served again, every value verified, and the start reads little flash; as does one after a
kill -9, which serves no wrong value. Objects of 4 KiB, as the bound on what a start reads is stated for them; test_budget.py has all lengths."""

import contextlib

from harness import expect, mib
from harness.client import Client
from harness.servers import Pumice

BYTES = 4096
MOST_READ = 0.02


def test_a_clean_stop_keeps_what_was_held(directory, seed, size):
    """Fills a cache with `--with offered=` MiB, restarts it, and reads everything back."""
    keys = [b"key-%d" % number for number in range((size("offered", 200, 200) << 20) // BYTES)]
    flags = ("--dram", "64MiB", "--flash-size", "512MiB")

    def value_of(key):
        return (b"%s/%d/" % (key, seed) * BYTES)[:BYTES]

    def read_back(server):
        with contextlib.closing(Client(server.address)) as client:
            return len(client.read_back(held, value_of))

    with Pumice(directory, *flags) as server:
        with contextlib.closing(Client(server.address)) as client:
            held = []
            for _ in range(10):
                # What a slow or busy device had no time for comes again: the bound is of a cache that is full.
                missing = set(keys) - set(held)
                if len(missing) <= len(keys) // 20:
                    break
                client.set_many((key, value_of(key)) for key in missing)
                held = client.held(keys)
        expect(len(held) > len(keys) // 10, "a good part of the objects to be held", len(held))
        served = read_back(server)
        expect(served >= 0.99 * len(held), f"99 % of {len(held)} objects before the stop", served)
        server.check_books()
        used = server.stats()["engine"]["resident_bytes"]
        stopping = server.terminate()
    for is_clean in (True, False):
        with Pumice(directory, *flags) as server:
            engine = server.stats()["engine"]
            expect(engine["recovery_clean"] == is_clean, f"a start after {'a clean stop' if is_clean else 'kill -9'}", engine)
            share, served = engine["recovery_read_bytes"] / used, read_back(server)
            print(f"held {len(held)} of {len(keys)} objects, {mib(used)}; stopped in {stopping:.2f} s; clean {is_clean}: started in "
                  f"{engine['recovery_seconds']:.3f} s reading {mib(engine['recovery_read_bytes'])}, {share:.2%}; served {served}")
            expect(served >= 0.99 * len(held) or not is_clean, f"99 % of {len(held)} objects after the start", served)
            expect(share <= MOST_READ, f"at most {MOST_READ} of the flash in use to be read", f"{share:.2%}")
            server.check_books()
            server.kill9()
