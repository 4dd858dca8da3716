"""The DRAM budget: resident memory stays within it plus 10 %, the books balance, and a restart keeps what was held.

`--with dram=`, `flash=` and `offered=` are MiB; with --full 3 GiB are offered to 128 MiB of DRAM and 2 GiB of flash."""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

from harness import expect, mib
from harness.client import Client
from harness.servers import Pumice

SMALLEST, LARGEST = 100, 1 << 20


class Items:
    """Items by number, of lengths that are as often below as above any of 100 B, 1 KB, 10 KB ... in equal parts."""

    def __init__(self, seed):
        self.seed = seed
        self.noise = random.Random(seed).randbytes(2 * LARGEST)

    def length(self, number):
        return int(SMALLEST * (LARGEST / SMALLEST) ** random.Random(self.seed * 1000003 + number).random())

    def value(self, number):
        stamp = b"%d:" % number
        start = number * 7919 % LARGEST
        return stamp + self.noise[start : start + self.length(number) - len(stamp)]


def fill(server, items, offered, connections=4):
    """Offers items over several connections; returns how many."""
    lock = threading.Lock()
    count = size = 0

    def numbers():
        nonlocal count, size
        while True:
            with lock:
                if size >= offered:
                    return
                number, count = count, count + 1
                size += items.length(number)
            yield number

    def work(_):
        with contextlib.closing(Client(server.address)) as client:
            client.set_many((b"item-%d" % number, items.value(number)) for number in numbers())

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(work, range(connections)))
    return count


def read_back(server, items, keys):
    with contextlib.closing(Client(server.address)) as client:
        return len(client.read_back(keys, lambda key: items.value(int(key.rsplit(b"-", 1)[1])), batch_items=16))


def test_budget(directory, seed, size):
    dram, flash, offered = size("dram", 64, 128), size("flash", 512, 2048), size("offered", 800, 3072)
    items, budget = Items(seed), dram << 20
    flags = ("--dram", f"{dram}MiB", "--flash-size", f"{flash}MiB")

    def within_budget(server, when):
        most = server.memory()[1]
        print(f"{when}: resident memory at most {mib(most)} of {mib(budget)}")
        expect(most <= budget * 1.1, f"{when}: resident memory within {mib(budget)} plus 10 %", mib(most))

    with Pumice(directory, *flags) as server:
        count = fill(server, items, offered << 20)
        client = Client(server.address)
        held = client.held(b"item-%d" % number for number in range(count))
        served = read_back(server, items, held)
        expect(served >= 0.95 * len(held), f"95 % of {len(held)} objects while the server runs", served)
        # Reading moves objects between the tiers of a full cache: what is held now is what counts.
        held = client.held(held)
        client.close()
        within_budget(server, "filling and reading")
        books = server.check_books()
        resident = books["resident"]
        print(f"offered {count} items, read back {served}, hold {len(held)} of {mib(resident['bytes'])}")
        expect(resident["bytes"] >= 0.5 * (flash << 20), "flash to be used well", mib(resident["bytes"]))
        server.terminate()
    with Pumice(directory, *flags) as server:
        served = read_back(server, items, held)
        within_budget(server, "after the restart")
        print(f"restart: served {served} of {len(held)} ({100 * served / len(held):.3f} %)")
        expect(served >= 0.99 * len(held), f"99 % of {len(held)} objects after the start", served)
        server.check_books()
        server.terminate()
