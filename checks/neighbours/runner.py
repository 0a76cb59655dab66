"""One run of a neighbour's tests: pytest in a process of its own, with the plug-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from checks.neighbours.comparison import Run
from checks.neighbours.environments import Neighbour, Place

__all__ = ["run"]

_HERE = Path(__file__).parent
_OPTIONS = ("-p", "watch_sessions", "-p", "no:cacheprovider", "-q", "-o", "addopts=")


def run(neighbour: Neighbour, place: Place, mode: str) -> Run:
    """Run the tests in one mode: plain, watched or versioned.

    Raises ``SystemExit`` with pytest's words where it could not run them.
    """
    with tempfile.TemporaryDirectory(prefix="optilock-neighbour-") as folder:
        report, source = Path(folder, "report.json"), Path(folder, "source")
        shutil.copytree(place.source, source)  # some of them leave a database behind
        plugins = [word for one in neighbour.plugins for word in ("-p", one)]
        # Later releases of what they need warn of other things than those that they were made with.
        options = [*_OPTIONS, *plugins, "-o", "filterwarnings=", "--tb=short"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *neighbour.tests],
            cwd=source,
            env=_environment(neighbour, [place.packages, source], mode, report),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise SystemExit(f"{neighbour.name} could not be run:\n{done.stdout[-10_000:]}")
        return Run(**json.loads(report.read_text()))


def _environment(
    neighbour: Neighbour, theirs: list[Path], mode: str, report: Path
) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    # optilock last: its folder has a package ``tests``, and so have they.
    folders = [*theirs, _HERE, _HERE.with_name("sqlalchemy_suite")]
    root = _HERE.parents[1]
    return {
        **kept,
        **neighbour.environment,
        "PYTHONPATH": os.pathsep.join(map(str, [*folders, root, root / "apps"])),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OPTILOCK_NEIGHBOUR_MODE": mode,
        "OPTILOCK_NEIGHBOUR_REPORT": str(report),
    }
