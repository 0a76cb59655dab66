"""What a neighbour's tests need: its source, and packages in a folder of their own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks.sqlalchemy_suite.source import unpacked

__all__ = ["Neighbour", "Place", "neighbours", "prepared"]

_LIST = Path(__file__).with_name("neighbours.toml")


@dataclass(frozen=True)
class Neighbour:
    """A package, and those of its tests that run."""

    name: str
    source: str
    packages: Sequence[str]
    #: Arguments of pytest.
    tests: Sequence[str]
    plugins: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Its tests update rows of classes with a base: with versions, guarded statements are sent.
    updates: bool = True


@dataclass(frozen=True)
class Place:
    """Where its source is unpacked, and its packages are installed."""

    source: Path
    packages: Path


def neighbours() -> dict[str, Neighbour]:
    """Each neighbour by its name."""
    return {name: Neighbour(name, **of) for name, of in tomllib.loads(_LIST.read_text()).items()}


def prepared(neighbour: Neighbour, folder: Path) -> Place:
    """Get the source and the packages, without changing this environment.

    Raises ``SystemExit`` with pip's words where they cannot be had.
    """
    place = Place(unpacked(folder / "source", neighbour.source), folder / "packages")
    place.packages.mkdir()
    if neighbour.packages:
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        command += ["--no-deps", "--target", str(place.packages), *neighbour.packages]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"pip could not install {neighbour.packages}:\n{done.stderr}")
    return place
