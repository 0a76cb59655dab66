"""What optilock does behind poolers, on standbys, on clusters, and when servers come and go.

A folder each, with a marker of the same name, which its tests bear by lying there. They run with
``--full``, or by their ids; where a program is missing they are left out, and the summary says why
in one line; under ``CI=true`` they fail.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

__all__ = ["NAMES", "find", "missing", "of"]

#: What each needs beside what every test has: a program or a library, and the package that has it.
NAMES: dict[str, dict[str, str]] = {
    "galera": {
        "mariadbd": "mariadb-server",
        "/usr/lib/galera/libgalera_smm.so": "galera-4",
        "rsync": "rsync",
    },
    "pgbouncer": {"pgbouncer": "pgbouncer"},
    "standby": {},
    "restarts": {"mariadbd": "mariadb-server"},
}


def of(item: pytest.Item) -> str | None:
    """The deployment that a test is about."""
    before, _, place = item.nodeid.partition("checks/deployments/")
    return place.partition("/")[0] if place and not before else None


def missing(item: pytest.Item) -> str | None:
    """Why the test cannot run on this machine."""
    name = of(item)
    if name is None or os.environ.get("CI") == "true":
        return None
    packages = [package for program, package in NAMES[name].items() if find(program) is None]
    return f"{name} needs, by apt: {', '.join(packages)}" if packages else None


def find(program: str) -> str | None:
    """Where it is: daemons are seldom on the PATH of a plain user. A library is where it is."""
    if Path(program).is_absolute():
        return program if Path(program).exists() else None
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec")
