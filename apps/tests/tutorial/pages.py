"""The tutorial's pages as a reader uses them: files to copy, commands to type, output to expect.

A Python block belongs to the file that its first line names (``# shop.py``); ``# shop.py,
continued`` appends to it, and ``# shop.py, changed`` replaces it. A ``console`` block is a command
after ``$``, and its output. A ``text`` block is output that follows a key or a click. A ``diff``
block edits a file.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy

__all__ = ["ENVIRONMENT", "FOLDER", "ROOT", "Terminal", "blocks", "edit", "files", "with_get_one"]

with_get_one = pytest.mark.skipif(
    tuple(int(part) for part in sqlalchemy.__version__.split(".")[:3]) < (2, 0, 22),
    reason="the programs of the tutorial use get_one, which came with SQLAlchemy 2.0.22",
)

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "tutorial"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "apps"), *sys.path]),
}


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of one language on a page, in order."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def files(folder: Path, *pages: str) -> None:
    """Write the files that a reader has at the end of these pages."""
    for page in pages:
        for block in blocks(page, "python"):
            head, _, code = block.partition("\n")
            named = re.fullmatch(r"# (\w+\.py)(?:, (continued|changed))?", head)
            assert named is not None, f"{page}: a block names no file: {head}"
            mode = {"continued": "a", "changed": "w", None: "x"}[named[2]]
            assert (mode == "x") != (folder / named[1]).exists(), f"{page}: {head}"
            with (folder / named[1]).open(mode, encoding="utf-8") as file:
                file.write(f"\n\n{code}" if mode == "a" else code)


def edit(path: Path, diff: str) -> None:
    """Replace the lines with ``-`` by those with ``+``."""
    old, new = ("".join(re.findall(rf"^\{sign}(.*\n)", diff, re.MULTILINE)) for sign in "-+")
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} does not have {old!r} once"
    path.write_text(text.replace(old, new), encoding="utf-8")


class Terminal:
    """A program that waits for Enter."""

    def __init__(self, console: str, folder: Path) -> None:
        """Start the command of a ``console`` block, and expect the block's output."""
        command, _, expected = console.removeprefix("$ ").partition("\n")
        words = shlex.split(command)
        assert words[0] == "python"
        self._process = subprocess.Popen(
            [sys.executable, *words[1:]],
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.prompts(expected)

    def prompts(self, expected: str) -> None:
        """Read the prompt, which has a space at its end and no newline."""
        assert self._process.stdout is not None
        wanted = expected.rstrip("\n") + " "
        assert self._process.stdout.read(len(wanted)) == wanted

    def enter(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ends(self, expected: str) -> None:
        """Press Enter, and expect the rest of the output."""
        rest, _ = self._process.communicate("\n", timeout=240)
        assert rest == expected

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
