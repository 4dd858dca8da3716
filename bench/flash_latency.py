#!/usr/bin/env python3
"""p99 latency of flash hits over loopback against memcached's extstore, at 70 % of the slower side's peak, open loop.

    python3 bench/flash_latency.py [--pairs 5] [--seconds 10] [--rate R]

Servers, budget and workload are those of `flash_hits.py`. First each side's peak is measured once, closed loop, as that
script does; the rate is 70 % of the smaller (or --rate). Then both sides get that rate in turns: arrivals by a schedule,
whatever the server does, and each latency counts from when its request was due. Every turn starts a server anew, sets every
key once and warms up at the rate. A turn in which the schedule was not kept at the end is noted.
"""

from lib import compare
from lib.flash import FlashRow, parser
from lib.load import figures


def main():
    options = parser(__doc__)
    options.add_argument("--rate", type=float, help="requests per second; without it 70 %% of the slower side's peak")
    options.add_argument("--share", type=float, default=0.7, help="share of the peak (%(default)s)")
    row = FlashRow("flash-latency", options.parse_args(), {})
    comparison, arguments = row.comparison, row.arguments
    rate = arguments.rate
    if rate is None:
        peaks = {}
        for name in ("pumice", "peer"):
            with row.filled(name) as server:
                peaks[name] = row.look_aside(server, duration=arguments.seconds)["requests_per_second"]
            print(f"  peak of {comparison.sides[name]}: {peaks[name]:.0f} requests/s", flush=True)
        comparison.settings["peaks"] = peaks
        rate = min(peaks.values()) * arguments.share
    rate = round(rate)
    comparison.settings["rate"] = rate
    print(f"  rate: {rate} requests/s", flush=True)

    def side(name):
        def turn(number):
            with row.filled(name) as server:
                report = row.look_aside(server, duration=arguments.seconds, rate=rate)
                behind = report["behind_seconds"]
                if behind > 0.01:
                    comparison.notes.append(f"{name}, turn {number + 1}: {behind:.2f} s behind the schedule at the end")
                return {**figures(report, server), "p99_9_us": report["latency"]["p99_9_us"]}

        return turn

    def show(run):
        return (
            f"p50 {run['p50_us']:.0f} us, p99 {run['p99_us']:.0f} us, p99.9 {run['p99_9_us']:.0f} us at "
            f"{run['requests_per_second']:.0f}/s, hit ratio {run['hit_ratio']:.4f}, {run['server_cpu_us']:.1f} us CPU each, client "
            f"idle {run['client_idle'] * 100:.0f} %"
        )

    comparison.turns(side("pumice"), side("peer"), show)
    comparison.row(
        f"p99 of flash hits against extstore at {rate}/s ({arguments.share * 100:.0f} % of the slower peak), open loop",
        "p99_us", "≤ 1.0 ×", "≤ 0.5 ×", lambda value: f"{value:.0f} us", cpu="server_cpu_us", client="client_idle",
    )  # fmt: skip
    return comparison.finish()


if __name__ == "__main__":
    compare.main(main)
