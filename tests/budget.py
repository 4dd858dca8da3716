#!/usr/bin/env python3
"""The DRAM budget: resident memory stays within it plus 10 %, the books balance, and a restart keeps what was held."""

import argparse
import random
import threading

from harness import Client, Directory, MemorySampler, Server, expect, main, mib

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


def fill(server, items, offered, connections):
    """Offers items over several connections; returns how many."""
    lock = threading.Lock()
    state = {"next": 0, "bytes": 0}
    failures = []

    def numbers():
        while True:
            with lock:
                number = state["next"]
                if state["bytes"] >= offered:
                    return
                state["next"] += 1
                state["bytes"] += items.length(number)
            yield number

    def work():
        try:
            client = Client(server.address)
            client.set_many((b"item-%d" % number, items.value(number)) for number in numbers())
            client.close()
        except Exception as failure:  # reported by the main thread
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return state["next"]


def read_back(server, items, keys):
    served = 0
    client = Client(server.address)
    for key, value in client.get_many(keys, batch_items=16):
        if value is None:
            continue
        expected = items.value(int(key.rsplit(b"-", 1)[1]))
        expect(value == expected, f"the value of {key.decode()} ({len(expected)} bytes)", value[:100])
        served += 1
    client.close()
    return served


def test():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--dram", type=int, default=128, help="MiB")
    arguments.add_argument("--flash", type=int, default=2048, help="MiB")
    arguments.add_argument("--offered", type=int, default=3072, help="MiB")
    arguments.add_argument("--connections", type=int, default=4)
    arguments = arguments.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, {arguments.offered} MiB offered to {arguments.dram} MiB of DRAM and {arguments.flash} MiB of flash")
    items = Items(seed)
    budget = arguments.dram << 20
    flags = ("--dram", f"{arguments.dram}MiB", "--flash-size", f"{arguments.flash}MiB")

    def within_budget(sampler, when):
        most = sampler.end()
        print(f"{when}: resident memory at most {mib(most)} of {mib(budget)} ({sampler.samples} samples)")
        expect(most <= budget * 1.1, f"{when}: resident memory within {mib(budget)} plus 10 %", mib(most))

    with Directory("budget") as directory:
        with Server(directory, *flags) as server:
            sampler = MemorySampler(server)
            count = fill(server, items, arguments.offered << 20, arguments.connections)
            client = Client(server.address)
            held = client.held(b"item-%d" % number for number in range(count))
            served = read_back(server, items, held)
            expect(served >= 0.95 * len(held), f"95 % of {len(held)} objects while the server runs", served)
            # Reading moves objects between the tiers of a full cache: what is held now is what counts.
            held = client.held(held)
            client.close()
            within_budget(sampler, "filling and reading")
            books = server.check_books()
            resident = books["resident"]
            print(f"offered {count} items, read back {served}, hold {len(held)} of {mib(resident['bytes'])}")
            expect(resident["bytes"] >= 0.5 * (arguments.flash << 20), "flash to be used well", mib(resident["bytes"]))
            server.terminate()
        with Server(directory, *flags) as server:
            sampler = MemorySampler(server)
            served = read_back(server, items, held)
            within_budget(sampler, "after the restart")
            print(f"restart: served {served} of {len(held)} ({100 * served / len(held):.3f} %)")
            expect(served >= 0.99 * len(held), f"99 % of {len(held)} objects after the start", served)
            server.check_books()
            server.terminate()


if __name__ == "__main__":
    main(test)
