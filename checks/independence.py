"""Run tests alone, backwards, in another folder, and on servers that are named by their URLs.

::

    python -m checks.independence alone --count 300 --seed 7    # each in a new process of its own
    python -m checks.independence backwards tests/database/queue
    python -m checks.independence elsewhere tests/unit          # in a folder with an odd name
    python -m checks.independence servers tests/database        # in three processes, by URL

A test that passes only after, or before, another one hides what it needs. Such a test fails when it
is run by its name, and when its neighbour is moved. Processes that run tests ``alone`` are forked
from one that has collected all of them, and share servers.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from optilock_apps import servers

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["tests", "apps/tests", "checks"]
#: Spaces, quotes and other letters: what a path may have.
_NAME = "a folder, Zoë's (1)"
_HOW, _COUNT, _SEED = "OPTILOCK_CHECK_HOW", "OPTILOCK_CHECK_COUNT", "OPTILOCK_CHECK_SEED"


# -- the plug-in of pytest -------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ[_HOW] == "backwards":
        items.reverse()
    elif os.environ[_HOW] == "alone":
        functions = [item for item in items if isinstance(item, pytest.Function)]
        count = min(int(os.environ[_COUNT]), len(functions))
        items[:] = random.Random(int(os.environ[_SEED])).sample(functions, count)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if os.environ[_HOW] != "alone":
        return None
    for item in session.items:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os._exit(_failures(item))
        _, status = os.waitpid(child, 0)
        session.testsfailed += status != 0
    print(f"\n{len(session.items)} tests ran alone, {session.testsfailed} of them failed")
    return True


def _failures(item: pytest.Item) -> int:
    """As pytest runs a test: with its own filters of warnings, and its limit of time."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    for one in _failed:
        print(f"\n{item.nodeid} failed ({one.when}):\n{one.longreprtext}", flush=True)
    return len(_failed)


#: Of the test of this process.
_failed: list[pytest.TestReport] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if os.environ[_HOW] == "alone" and report.failed:
        _failed.append(report)


# -- the commands ----------------------------------------------------------------------------------


def run(how: str, words: Sequence[str], folder: Path = ROOT, **environment: str) -> int:
    path = os.pathsep.join(map(str, (folder, folder / "apps")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "checks.independence", *words]
    variables = {**os.environ, _HOW: how, "PYTHONPATH": path, **environment}
    return subprocess.run(command, cwd=folder, env=variables).returncode


@contextmanager
def named_servers() -> Iterator[dict[str, str]]:
    """The variables that name servers, of those that can be started."""
    found = {}
    with ExitStack() as stack:
        for kind in ("postgresql", "mariadb"):
            try:
                server = stack.enter_context(getattr(servers, kind)())
            except servers.ServerMissing as missing:
                print(f"without {kind}: {missing}")
            else:
                found[f"OPTILOCK_TEST_{kind.upper()}_URL"] = server.url
        yield found


@contextmanager
def another_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="optilock-elsewhere-") as name:
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
        yield Path(shutil.copytree(ROOT, Path(name, _NAME), ignore=ignored))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m checks.independence", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("how", choices=["alone", "backwards", "elsewhere", "servers"])
    parser.add_argument("tests", nargs="*", default=FOLDERS, help="default: all")
    parser.add_argument("--count", type=int, default=300, help="how many run alone")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of these")
    options = parser.parse_intermixed_args()
    if options.how == "elsewhere":
        with another_folder() as folder:
            return run(options.how, options.tests, folder)
    if options.how == "backwards":
        return run(options.how, ["-n0", *options.tests])
    with named_servers() as variables:
        if options.how == "servers":
            return run(options.how, options.tests, **variables)
        variables |= {_COUNT: str(options.count), _SEED: str(options.seed)}
        return run(options.how, ["-n0", *options.tests], **variables)


if __name__ == "__main__":
    sys.exit(main())
