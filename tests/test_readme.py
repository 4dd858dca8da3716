"""The table of README: all rows are there, of one commit that is not old."""

import datetime
import os
import re
import subprocess
import sys

from harness import expect, expect_equal, machine

DAYS_MAX = 30


def test_the_table_is_whole_and_not_old():
    sys.path.insert(0, os.path.join(machine.ROOT, "bench"))
    import readme

    with open(readme.README, encoding="utf-8") as file:
        table = file.read().split(readme.BEGIN)[1].split(readme.END)[0]
    measured = re.search(r"^Measured on (\d{4}-\d\d-\d\d), commit ([0-9a-f]{12}): ", table, re.MULTILINE)
    expect(measured, "a line with the day and the commit of all rows", table)
    git = subprocess.run(["git", "-C", machine.ROOT, "log", "-1", "--format=%cs"], capture_output=True, text=True)
    # An archive without a history is as old as it is today.
    now = datetime.date.fromisoformat(git.stdout.strip()) if git.returncode == 0 else datetime.date.today()
    age = (now - datetime.date.fromisoformat(measured[1])).days
    expect(age <= DAYS_MAX, f"a table that is at most {DAYS_MAX} days older than the last commit: python3 bench/bench.py readme", f"{age} days")
    rows = re.findall(r"^\| (.+?) \| `(.+?)` \|", table, re.MULTILINE)
    expect_equal(rows, [(name, case) for case, (_, names) in readme.ROWS.items() for name in names.values()], "the rows")
