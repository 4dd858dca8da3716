"""The cases of bench.py, in the order of the table."""

from . import builds, loopback, quiet_gets, inprocess, items, ripq, ripq_report, nhc_report, nhc_real, cascade, cascade_report, chunk_report, volume, \
    volume_amplification, volume_scan, volume_split, advise, advise_path, admission, write_budget  # noqa: F401
