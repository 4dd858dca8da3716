"""Django's own tests of its caches and sessions, with its backends on pylibmc and pymemcache, against a server. ./check unpacks Django's
source, which has them, into target/django; tests/django.txt names the version."""

import os
import re
import subprocess
import sys

import pytest

from harness import expect
from harness.machine import ROOT, TARGET
from harness.servers import Pumice

SOURCE = os.path.join(TARGET, "django")
# What of them asks a server, and the classes that must have run.
LABELS = {"cache.tests.PyMemcacheCacheTests": ["PyMemcacheCacheTests"],
          "cache.tests.PyLibMCCacheTests sessions_tests": ["PyLibMCCacheTests", "CacheSessionTests", "CacheDBSessionTests"]}


@pytest.mark.parametrize("labels", LABELS)
def test_django(directory, labels):
    expect(os.path.exists(os.path.join(SOURCE, "tests", "runtests.py")), f"Django's source in {SOURCE}, as ./check e2e unpacks it", "none")
    with Pumice(directory, "--dram", "128MiB", "--flash-size", "64MiB") as server:
        path = os.pathsep.join([SOURCE, os.path.join(ROOT, "tests")])
        command = [sys.executable, "runtests.py", "--settings=django_settings", "--parallel=1", "--verbosity=2", *labels.split()]
        done = subprocess.run(command, cwd=os.path.join(SOURCE, "tests"), capture_output=True, text=True, timeout=600,
                              env=os.environ | {"PYTHONPATH": path, "DJANGO_MEMCACHED": server.target})
        lines = done.stderr.splitlines()
        # One of the expected failures is Django's own.
        failed = [line for line in lines if re.search(r"\.\.\. (FAIL|ERROR)|^(FAIL|ERROR): ", line)]
        expect(done.returncode == 0 and not failed, "all of Django's tests to pass", "\n".join(failed) or done.stderr[-2000:])
        for name in LABELS[labels]:
            passed = sum(f".{name}." in line and line.endswith("ok") for line in lines)
            expect(passed >= 20, f"tests of {name} to run", f"{passed} did")
        print(re.search(r"^Ran \d+ tests in .*$", done.stderr, re.MULTILINE)[0])
        server.check_books()
        server.terminate()
