#!/usr/bin/env python3
"""The sweep of bench/sweep.py on workers of Dask: the same words, the same file, the same table.

    python3 -m venv /tmp/dask && /tmp/dask/bin/pip install dask distributed
    /tmp/dask/bin/python bench/sweep_dask.py out.jsonl --trace t.csv.zst --flash-size 1GiB 4GiB --dram 64MiB --jobs 2
    /tmp/dask/bin/python bench/sweep_dask.py out.jsonl ... --scheduler tcp://10.0.0.1:8786      workers of other machines, which have program and traces

Results are written by this process alone, as they come. A replay whose workers die is run again some times, then it is not done, as one that fails. Without --scheduler --jobs worker processes are started here.
"""

import sys

import sweep
from dask.distributed import Client, LocalCluster, as_completed


def main():
    form = sweep.parser(__doc__)
    form.add_argument("--scheduler", help="address of a scheduler of Dask that is there")
    arguments, flags = sweep.parse(sys.argv[1:], form)
    if arguments.merge:
        form.error("--merge: bench/sweep.py does that")

    def run_all(left):
        where = arguments.scheduler or LocalCluster(n_workers=arguments.jobs, threads_per_worker=1, dashboard_address=None)
        with Client(where) as client:
            client.upload_file(sweep.__file__)
            # Each is run, although another may look the same to Dask.
            futures = {client.submit(sweep.replay, arguments.program, words, pure=False): words for words in left}
            for future in as_completed(list(futures)):
                try:
                    yield future.result()
                except Exception as error:  # whatever it is: the others go on
                    yield {"words": futures[future], "error": f"{type(error).__name__}: {error}"}

    try:
        return sweep.collect(arguments.files[0], arguments, flags, run_all)
    except sweep.SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
