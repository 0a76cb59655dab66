"""The source distribution of a package, such as SQLAlchemy: the wheel has no tests."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import sqlalchemy

__all__ = ["unpacked"]


def unpacked(folder: Path, wanted: str = "") -> Path:
    """Download and unpack the source distribution into ``folder``; nothing is built or installed.

    ``wanted`` is ``package==version``; without it, it is the SQLAlchemy that is installed. Raises
    ``SystemExit`` with pip's words where it cannot be had.
    """
    wanted = wanted or f"sqlalchemy=={sqlalchemy.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", wanted.split("==")[0], "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pip could not download the source of {wanted}:\n{done.stderr}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    archive.unlink()
    (root,) = folder.iterdir()
    return root
