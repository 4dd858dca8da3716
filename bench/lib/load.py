"""The load: `pumice bench memcached` on a core of its own."""

from . import machine
from .machine import Trouble


def load(server, core, **settings):
    """Runs the load generator against a server; settings are its flags. Returns its report."""
    command = [machine.BINARY, "bench", "memcached", "--json", "--target", server.target]
    command += ["--server-pid", str(server.pid), "--threads", "1"]
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        command += [flag] if value is True else [flag, str(value)]
    report = machine.run_json(command, core)
    server.check_alive()
    if report["wrong_answers"]:
        raise Trouble(f"{server.name} gave wrong answers: {report['examples']}")
    if report["unanswered"]:
        raise Trouble(f"{server.name} left requests unanswered: {report['errors']}")
    refused = {kind: n for kind, n in report["errors"].items() if n}
    if refused:
        raise Trouble(f"{server.name} refused or lost requests, which are no throughput: {refused}, {report['examples']}")
    report.pop("series", None)
    for part in [report, *report.get("kinds", {}).values()]:
        if part.get("latency"):
            part["latency"].pop("curve", None)
    return report


def figures(report, server):
    """What rows compare."""
    latency = report["latency"] or {}
    return {
        "requests_per_second": report["requests_per_second"],
        "hit_ratio": report["hit_ratio"],
        "p50_us": latency.get("p50_us"),
        "p99_us": latency.get("p99_us"),
        "server_cpu_us": report["server"]["cpu_us_per_request"],
        "server_cores": report["server"]["cores"],
        "client_idle": report["client"]["idle_share"],
        "errors": report["errors"],
        "memory": server.memory(),
        "report": report,
    }
