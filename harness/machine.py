"""The machine: what it is, which cores to use, what must be installed and built, and programs that print JSON."""

import atexit
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys

from . import Failure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))
BINARY = os.path.abspath(os.environ.get("PUMICE_BIN", os.path.join(TARGET, "release", "pumice")))
# Load, checks and models: those of this checkout where an older build has none beside it.
BENCH = os.path.join(os.path.dirname(BINARY), "pumice-bench")
if not os.path.exists(BENCH):
    BENCH = os.path.join(TARGET, "release", "pumice-bench")
INPROCESS = os.path.join(TARGET, "inprocess", "release", "inprocess")
THREADS = os.path.join(TARGET, "inprocess", "release", "threads")
TRACES = os.environ.get("PUMICE_TRACES", os.path.join(os.path.dirname(ROOT), "shared", "traces"))
# Formats of traces that do not show, by parts of their names.
TRACE_FORMATS = {"scarab-recs": "keys-be-i64", "cache2k-": "keys-be-u32", "jedi-v": "jedi", ".lis": "arc", ".oracleGeneral": "oracle-general",
                 ".vscsi": "vscsi"}
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"


def end_by_signals():
    """Makes SIGINT, SIGTERM and SIGHUP end this process as `sys.exit` does, so that servers, files and cgroups go and the
    machine's settings come back. Only the first counts: nothing disturbs the cleanup."""
    signals = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
               if signal.getsignal(number) is not signal.SIG_IGN]

    def leave(number, _):
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in signals:
        signal.signal(number, leave)


def read(path, default=""):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return default


def field(path, name, default=None):
    """The first line `name: value` of a file in /proc."""
    for line in read(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return default


def commit():
    """The commit that is checked out, and whether files differ from it."""

    def git(*arguments):
        result = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else ""

    dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
    return {"commit": git("rev-parse", "--short=12", "HEAD") or "unknown", "dirty": dirty}


def file_system(directory):
    """The device and type of the file system that a directory is on."""
    device, kind = succeed("findmnt", "--noheadings", "--output", "SOURCE,FSTYPE", "--target", directory).split()[-2:]
    return {"device": device, "type": kind}


def describe(directory):
    """What figures depend on."""
    return {
        "processor": field("/proc/cpuinfo", "model name") or field("/proc/cpuinfo", "Model") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": int(field("/proc/meminfo", "MemTotal", "0 kB").split()[0]) * 1024,
        "kernel": platform.release(),
        "tcp": steady_tcp(),
        "file_system": file_system(directory),
    }


def steady_tcp():
    """Turns bbr off while this process runs, and says what TCP uses. bbr paces by the bandwidth that it saw: on loopback,
    with small requests, one moment without a processor makes it send a few requests a second for seconds."""
    before = read(CONGESTION, "unknown").strip()
    if before != "bbr":
        return before

    def use(name):
        with open(CONGESTION, "w") as file:
            file.write(name)

    def restore():
        with contextlib.suppress(OSError):
            use(before)

    # First, so that there is no moment at which an end would leave the other one.
    atexit.register(restore)
    for other in ("cubic", "reno"):
        with contextlib.suppress(OSError):
            use(other)
            return other
    return before


def cores():
    """Two cores, the server's and the load's; where there are hyper-threads, two that share nothing."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise Failure(f"one core for the server and one for the load are needed; this process may only run on {allowed}")

    def siblings(core):
        return read(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", str(core)).strip()

    for core in allowed[1:]:
        if siblings(core) != siblings(allowed[0]):
            return allowed[0], core
    print(f"note: cores {allowed[0]} and {allowed[1]} are threads of one core", file=sys.stderr)
    return allowed[0], allowed[1]


# Packages of programs that do not have the same name.
PACKAGES = {"nbdinfo": "libnbd-bin", "nbdcopy": "libnbd-bin", "nbdfuse": "libnbd-bin", "nbdsh": "python3-libnbd", "qemu-img": "qemu-utils",
            "qemu-io": "qemu-utils", "mkfs.ext4": "e2fsprogs", "mke2fs": "e2fsprogs", "e2fsck": "e2fsprogs", "debugfs": "e2fsprogs",
            "losetup": "mount", "umount": "mount", "fstrim": "util-linux", "promtool": "prometheus", "memccapable": "libmemcached-tools",
            "memcaslap": "libmemcached-tools", "php": "php-cli", "ruby": "ruby-dalli", "node": "nodejs",
            "h2load": "nghttp2-client", "varnishd": "varnish", "traffic_server": "trafficserver"}


def installed(program):
    """The path of a program that somebody else has to install."""
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if not found:
        raise Failure(f"{program} is missing: apt-get install -y {PACKAGES.get(program, program)}")
    return found


def run(*command, timeout=120, core=None, **more):
    """Status and output of a program; one that hangs is a failure."""
    words = [installed(str(command[0])), *map(str, command[1:])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **more, **confine(core, None))
    return done.returncode, done.stdout + done.stderr


def succeed(*command, statuses=(0,), **more):
    """What a program prints that ends with one of these statuses."""
    status, said = run(*command, **more)
    if status not in statuses:
        raise Failure(f"status {status}: {' '.join(map(str, command))}\n{said[-2000:]}")
    return said


def trace_format(name):
    return next((form for part, form in TRACE_FORMATS.items() if part in name), "auto")


def version_of(program):
    result = subprocess.run([program, "--version"], capture_output=True, text=True)
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


def build(path, build=True, throttle=False):
    """`BINARY` and `BENCH`, `INPROCESS`, which has the engine and foyer in it, or `THREADS`, with locks that tell how long they were waited
    for. With `throttle` the server can make its devices slow."""
    command = ["cargo", "build", "--release", "--quiet", "--locked"]
    if path == BINARY:
        command += ["--package", "pumice-cli", "--package", "pumice-bench"] + ["--features", "pumice-cli/throttle"] * throttle
    else:
        manifest = os.path.join(ROOT, "bench", "inprocess", "Cargo.toml")
        command += ["--manifest-path", manifest, "--target-dir", os.path.join(TARGET, "inprocess"), "--bin", os.path.basename(path)]
    if path == THREADS:
        command += ["--no-default-features", "--features", "locks"]
    if build and (path != BINARY or "PUMICE_BIN" not in os.environ):
        if not shutil.which("cargo"):
            raise Failure("cargo is missing: install the Rust toolchain (https://rustup.rs)")
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            raise Failure(f"{' '.join(command)} failed")
    for program in [path, BENCH] if path == BINARY else [path]:
        if not os.path.exists(program):
            raise Failure(f"{program} is missing: {' '.join(command)}")
    return path


def busy_seconds():
    """CPU time of all processes on all cores so far, and what the host of a virtual machine took away, in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [int(number) for number in read("/proc/stat", "cpu 0").splitlines()[0].split()[1:]]
    steal = fields[7] if len(fields) > 7 else 0
    return sum(fields[:3]) / ticks, steal / ticks


def device_reads(directory):
    """Reads that the device under a directory has done, and the milliseconds that all of them waited for it."""
    number = os.stat(directory).st_dev
    name = [str(os.major(number)), str(os.minor(number))]
    for line in read("/proc/diskstats").splitlines():
        fields = line.split()
        if fields[:2] == name:
            return int(fields[3]), int(fields[6])
    return 0, 0


def own_seconds():
    """CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def cpu_seconds(pid):
    """CPU time of a process with all its threads so far."""
    # The name, in parentheses, may have spaces.
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not fields:
        raise Failure(f"process {pid} is gone")
    return sum(int(ticks) for ticks in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    """(resident now, most so far) of a process, in bytes."""
    sizes = [field(f"/proc/{pid}/status", name) for name in ("VmRSS", "VmHWM")]
    if None in sizes:
        raise Failure(f"process {pid} is gone")
    return tuple(int(size.split()[0]) << 10 for size in sizes)


def confine(core, group):
    """How a new process begins before it becomes the program: keywords of `Popen`."""

    def enter():
        if core is not None:
            os.sched_setaffinity(0, {core})
        if group is not None:
            group.enter()

    return {} if core is None and group is None else {"preexec_fn": enter}


class Child:
    """A process that does not outlive the `with` block; subclasses set `process`."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def run_json(command, core=None, group=None, timeout=7200):
    """Runs a program on one core, in a memory cgroup if there is one, and returns the JSON that it prints."""
    command = [str(word) for word in command]
    environment = dict(os.environ, RUST_BACKTRACE="0")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **pipes, **confine(core, group)) as process:
        try:
            text, errors = process.communicate(timeout=timeout)
        except BaseException as error:
            # Asked first: fio's jobs are processes of their own, which only fio ends.
            process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failure(f"not done within {timeout} s: {' '.join(command)}") from None
            raise
    if process.returncode != 0 or "{" not in text:
        killed = "; killed: out of its memory cgroup?" if process.returncode == -9 else ""
        raise Failure(f"status {process.returncode}{killed}: {' '.join(command)}\n{errors[-2000:]}{text[-500:]}")
    return json.loads(text[text.index("{"):])
