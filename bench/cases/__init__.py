"""The cases of bench.py, in the order of the table."""

from . import builds, loopback, quiet_gets, inprocess, items, ripq, nhc_report, nhc_real, cascade, chunk_report, volume, advise, advise_path, admission, \
    write_budget, large, http  # noqa: F401
