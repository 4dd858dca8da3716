#!/usr/bin/env python3
"""DRAM per object on flash: fills a server with 100-byte objects and fits the slope of its resident memory.

    python3 bench/dram_per_object.py [--objects 10000000] [--pumice target/release/pumice]

From 1 million objects on, every million: resident memory (VmRSS) less what the DRAM tier and the block buffers hold, as
the server reports them, against objects on flash. Prints the points, the slope by least squares in bytes per object, and
what the server itself reports as index bytes per object.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stats(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=60) as reply:
        return json.load(reply)


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def slope(points):
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000_000)
    parser.add_argument("--pumice", default="target/release/pumice")
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, kernel {platform.release()}; commit {commit}")
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(args.pumice))) as folder:
        server = subprocess.Popen(
            [args.pumice, "serve", "--dram", "224MiB", "--flash", f"{folder}/flash", "--flash-size", "4GiB",
             "--memcached", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"],
            stdout=subprocess.DEVNULL,
        )
        try:
            return run(args, server, port, admin)
        finally:
            server.kill()
            server.wait()


def run(args, server, port, admin):
    for _ in range(300):
        try:
            sock = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("the server does not answer")
    value = b"v" * 100
    done, points = 0, []
    next_point = 1_000_000
    while done < args.objects:
        batch = b"".join(b"set k%09d 0 0 100 noreply\r\n%s\r\n" % (n, value) for n in range(done, done + 20_000))
        sock.sendall(batch + b"version\r\n")
        reply = b""
        while not reply.endswith(b"\r\n"):
            reply += sock.recv(4096)
        done += 20_000
        if done >= next_point:
            next_point += 1_000_000
            time.sleep(0.5)
            now = stats(admin)
            tier = sum(now["tier"][name] for name in ("dram_segment_bytes", "dram_table_bytes", "ghost_bytes"))
            index, items = now["index"]["dram_bytes"], now["index"]["mappings"]
            rest = resident_bytes(server.pid) - tier - now["flash"]["buffer_bytes"]
            points.append((items, rest, index))
            print(f"{items:>9} objects on flash: {rest / 2**20:7.1f} MiB beside tier and buffers,"
                  f" index {index / 2**20:6.1f} MiB, {index / items:5.2f} bytes each", flush=True)
    measured = slope([(items, rest) for items, rest, _ in points])
    reported = slope([(items, index) for items, _, index in points])
    print(f"slope of resident memory: {measured:.2f} bytes per object; of the reported index: {reported:.2f}"
          f" ({(reported / measured - 1) * 100:+.1f} %)")
    return 0 if measured <= 16 and abs(reported / measured - 1) <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
