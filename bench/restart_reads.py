#!/usr/bin/env python3
"""What a restart reads: bytes read from the flash device until ready, against the flash bytes in use.

    python3 bench/restart_reads.py [--flash 1024] [--object-bytes 4096]

Fills the flash device with objects of one size, then starts the server again twice: after a clean stop and after a
kill -9. Prints machine, commit and, for each, the bytes read and their share.
"""

import argparse
import os
import platform
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from harness import Directory, Server  # noqa: E402


def fill(address, count, size):
    value = os.urandom(size)
    with socket.create_connection(address) as sock:
        for start in range(0, count, 500):
            batch = [b"set k%09d 0 0 %d noreply\r\n%s\r\n" % (n, size, value) for n in range(start, start + 500)]
            sock.sendall(b"".join(batch) + b"version\r\n")
            reply = b""
            while not reply.endswith(b"\r\n"):
                reply += sock.recv(4096)


def in_use(stats):
    flash = stats["flash"]
    return flash["blocks_sealed"] * flash["block_bytes"]


def report(name, before, stats, seconds):
    read = max(stats["engine"]["recovery_read_bytes"], stats["device"]["read_bytes"])
    share = read / in_use(before)
    print(
        f"{name}: {read / 2**20:.2f} MiB read of {in_use(before) / 2**20:.0f} MiB in use: {share * 100:.2f} %; "
        f"{stats['engine']['recovery_objects']} objects back, ready in {seconds:.2f} s"
    )
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flash", type=int, default=1024, help="MiB")
    parser.add_argument("--object-bytes", type=int, default=4096)
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, kernel {platform.release()}; commit {commit}")
    flags = ["--dram", "128MiB", "--flash", "flash", "--flash-size", f"{args.flash}MiB"]
    worst = 0
    with Directory("restart-reads") as folder:
        server = Server(folder, *flags)
        fill(server.address, args.flash * 2**20 // (args.object_bytes + 60), args.object_bytes)
        for name, stop in (("after a clean stop", signal.SIGTERM), ("after kill -9", signal.SIGKILL)):
            time.sleep(1)
            before = server.stats()
            server.process.send_signal(stop)
            server.process.wait()
            started = time.monotonic()
            server = Server(folder, *flags)
            worst = max(worst, report(name, before, server.stats(), time.monotonic() - started))
        server.process.kill()
        server.process.wait()
    return 0 if worst <= 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
