"""The machine: what it is, which cores to use, what must be installed and built."""

import atexit
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
BINARY = os.environ.get("PUMICE_BIN", os.path.join(TARGET, "release", "pumice"))
INPROCESS = os.path.join(TARGET, "inprocess", "release", "inprocess")


class Trouble(Exception):
    """The measurement cannot be made; the text says why and what would help."""


def end_by_signals():
    """Makes SIGINT, SIGTERM and SIGHUP end this process as `sys.exit` does, so that servers, files and cgroups go and the
    machine's settings come back. Only the first counts: nothing disturbs what it starts."""
    signals = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
               if signal.getsignal(number) is not signal.SIG_IGN]  # fmt: skip

    def leave(number, _):
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in signals:
        signal.signal(number, leave)


def read(path, default=None):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return default


def git(*arguments):
    result = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def commit():
    """The commit that is checked out, and whether files differ from it."""
    return {
        "commit": git("rev-parse", "--short=12", "HEAD") or "unknown",
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def processor():
    for line in (read("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_bytes():
    for line in (read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def file_system(directory):
    """The device and type of the file system that a directory is on."""
    best = ("unknown", "unknown", "")
    directory = os.path.realpath(directory)
    for line in (read("/proc/mounts") or "").splitlines():
        device, point, kind = line.split()[:3]
        inside = directory == point or directory.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[2]):
            best = (device, kind, point)
    return {"device": best[0], "type": best[1]}


def describe(directory):
    """What figures depend on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "kernel": platform.release(),
        "tcp": steady_tcp(),
        "file_system": file_system(directory),
    }


CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"


def steady_tcp():
    """Turns bbr off while this process runs, and says what TCP uses. bbr paces by the bandwidth that it saw: on loopback,
    with small requests, one moment without a processor makes it send a few requests a second for seconds."""
    before = (read(CONGESTION) or "unknown").strip()
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


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def cores():
    """Two cores, the server's and the load's; where there are hyper-threads, two that share nothing."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise Trouble(
            f"one core for the server and one for the load are needed; this process may only run on {allowed}"
        )

    def siblings(core):
        return read(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", str(core)).strip()

    first = allowed[0]
    for core in allowed[1:]:
        if siblings(core) != siblings(first):
            return first, core
    print(f"note: cores {allowed[0]} and {allowed[1]} are threads of one core", file=sys.stderr)
    return allowed[0], allowed[1]


def install(program, package):
    """The path of a program, from Debian's package where it is missing."""
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found:
        return found
    apt = shutil.which("apt-get")
    if not apt:
        raise Trouble(f"{program} is missing, and there is no apt-get: install {package} by hand")
    prefix = []
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            raise Trouble(f"{program} is missing; as root: apt-get install -y {package}")
        prefix = ["sudo", "-n"]
    print(f"installing {package}", file=sys.stderr)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for step in (["update"], ["install", "-y", "--no-install-recommends", package]):
        result = subprocess.run(
            [*prefix, apt, *step], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if result.returncode != 0:
            raise Trouble(f"apt-get {' '.join(step)} failed; as root: apt-get install -y {package}\n{result.stderr}")
    found = shutil.which(program)
    if not found:
        raise Trouble(f"{package} is installed, but {program} is not in PATH")
    # Debian starts some servers when they are installed; that one would only be in the way.
    if shutil.which("systemctl"):
        subprocess.run([*prefix, "systemctl", "stop", package], stderr=subprocess.DEVNULL)
    return found


def version_of(command):
    result = subprocess.run(command, capture_output=True, text=True)
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


def cargo(*arguments):
    if not shutil.which("cargo"):
        raise Trouble("cargo is missing: install the Rust toolchain (https://rustup.rs)")
    if subprocess.run(["cargo", *arguments], cwd=ROOT).returncode != 0:
        raise Trouble(f"cargo {' '.join(arguments)} failed")


def build_pumice(build=True):
    """The program `pumice`, which is server and load generator."""
    if build and "PUMICE_BIN" not in os.environ:
        cargo("build", "--release", "--quiet")
    if not os.path.exists(BINARY):
        raise Trouble(f"{BINARY} is missing: cargo build --release")
    return BINARY


def build_inprocess(build=True):
    """The program that has the engine and foyer in it."""
    manifest = os.path.join(ROOT, "bench", "inprocess", "Cargo.toml")
    if build:
        target = os.path.join(TARGET, "inprocess")
        cargo("build", "--release", "--quiet", "--locked", "--manifest-path", manifest, "--target-dir", target)
    if not os.path.exists(INPROCESS):
        raise Trouble(f"{INPROCESS} is missing: run without --no-build")
    return INPROCESS


def busy_seconds():
    """CPU time of all processes on all cores so far, and what the host of a virtual machine took away, in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [int(field) for field in (read("/proc/stat") or "cpu 0").splitlines()[0].split()[1:]]
    steal = fields[7] if len(fields) > 7 else 0
    return sum(fields[:3]) / ticks, steal / ticks


def device_reads(directory):
    """Reads that the device under a directory has done, and the milliseconds that all of them waited for it."""
    number = os.stat(directory).st_dev
    name = [str(os.major(number)), str(os.minor(number))]
    for line in (read("/proc/diskstats") or "").splitlines():
        fields = line.split()
        if fields[:2] == name:
            return int(fields[3]), int(fields[6])
    return 0, 0


def own_seconds():
    """CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def end(process):
    """Ends a program early. It is asked first: fio's jobs are processes of their own, which only fio ends."""
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()


def run_json(command, core=None, group=None, timeout=1800):
    """Runs a program on one core, in a memory cgroup if there is one, and returns the JSON that it prints."""
    started = {} if core is None and group is None else {"preexec_fn": confine(core, group)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, RUST_BACKTRACE="0"),
        **started,
    ) as process:
        try:
            text, errors = process.communicate(timeout=timeout)
        except BaseException as error:
            end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Trouble(f"not done within {timeout} s: {' '.join(map(str, command))}") from None
            raise
    if process.returncode != 0 or "{" not in text:
        killed = "; killed: out of its memory cgroup?" if process.returncode == -9 else ""
        raise Trouble(
            f"status {process.returncode}{killed}: {' '.join(map(str, command))}\n{errors[-2000:]}{text[-500:]}"
        )
    return json.loads(text[text.index("{") :])


def confine(core, group):
    """What a new process does before it becomes the program."""

    def enter():
        if core is not None:
            os.sched_setaffinity(0, {core})
        if group is not None:
            group.enter()

    return enter
