"""Options and fixtures of the end-to-end tests. The program under test is target/release/pumice, or what PUMICE_BIN names, and its load
pumice-bench beside it."""

import os
import random

import pytest

from harness import machine
from harness.servers import Directory


def pytest_addoption(parser):
    group = parser.getgroup("pumice")
    group.addoption("--full", action="store_true", help="full sizes instead of those of ./check")
    group.addoption("--seed", type=int, help="the seed of what is drawn by chance; a run prints its own")
    group.addoption("--with", dest="sizes", action="append", default=[], metavar="NAME=VALUE",
                    help="another size of a test, such as rounds=200; a test that has it says so")
    group.addoption("--server", default="", help="more flags of the server, in one word: '--layout fifo'")


def pytest_sessionstart(session):
    for program in (machine.BINARY, machine.BENCH):
        if not session.config.option.collectonly and not os.access(program, os.X_OK):
            build = "cargo build --release -p pumice-cli -p pumice-bench --features pumice-cli/throttle"
            pytest.exit(f"{program} is missing: {build}, or set PUMICE_BIN", returncode=2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.has_failed = getattr(item, "has_failed", False) or report.failed
    return report


@pytest.fixture
def directory(request):
    """A directory of the test's own, kept for a look where the test fails."""
    place = Directory(request.node.originalname.removeprefix("test_"))
    yield place.path
    place.__exit__(Exception if getattr(request.node, "has_failed", False) else None, None, None)


@pytest.fixture
def size(pytestconfig):
    """size(name, short, full): the short one, with --full the other, or what --with says."""
    given = dict(text.split("=", 1) for text in pytestconfig.option.sizes)

    def choose(name, short, full):
        chosen = full if pytestconfig.option.full else short
        return type(full)(given[name]) if name in given else chosen

    return choose


@pytest.fixture
def seed(pytestconfig):
    given = pytestconfig.option.seed
    chosen = random.SystemRandom().randrange(1 << 32) if given is None else given
    print(f"seed {chosen}", flush=True)
    return chosen


@pytest.fixture
def server_flags(pytestconfig):
    return pytestconfig.option.server.split()
